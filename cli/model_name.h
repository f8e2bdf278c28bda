/* model_name.h - names of models on a hub, as in `forerun pull OWNER/NAME:TYPE`, and the choice of a file by type. */
#ifndef APP_MODEL_NAME_H
#define APP_MODEL_NAME_H

#include "base/error.h"

#include <stdbool.h>

enum { MODEL_NAME_PART = 96, MODEL_NAME_MAX_FILES = 100000, MODEL_NAME_MAX_PARTS = 99999 };

/* OWNER/NAME or OWNER/NAME:TYPE. */
typedef struct ModelName {
    char repo[2 * MODEL_NAME_PART + 2]; /* OWNER/NAME, of letters, digits, '-', '_' and '.' */
    const char *type;                   /* behind the colon, in the caller's text: Q4_K_M, or a file's name; or NULL */
} ModelName;

/* False: the text is not such a name. */
bool model_name_parse(const char *text, ModelName *out);

/* Whether a path from elsewhere stays inside the folder that it is joined to: components of printable ASCII, none of
 * them empty, "." or "..". */
bool model_path_is_safe(const char *path);

/* Chooses among the .gguf files in paths [n_paths]: that of `type` (NULL: Q4_K_M, else Q8_0, else the only one). A type
 * is a word of the path, in any case, so that Q4_K does not choose Q4_K_M; or it is the name of a file. chosen: the
 * index of the file, or of all parts of a file that is split, in order; malloc'ed. `where` is how errors call the
 * repository. */
int model_choose(const char *where, const char *const *paths, int n_paths, const char *type, int **chosen,
                 int *n_chosen, fr_error *err);

#endif

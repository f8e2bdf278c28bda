/* model_name.h - models on a command line: in place of a command, by their name on a hub, or among the fetched ones. */
#ifndef CLI_MODEL_NAME_H
#define CLI_MODEL_NAME_H

#include "base/error.h"
#include "cli/command.h"

#include <stdbool.h>

/* Turns `forerun MODEL.gguf [OPTION...]` or `forerun -m MODEL.gguf [OPTION...]` into the command line of "chat", if
 * standard input is a terminal and no prompt is given, or else of "run". The result is malloc'ed, borrows its strings
 * and ends in NULL. NULL: the first word is neither a GGUF file nor -m. */
char **model_argument(int argc, char **argv, int *n_words);

/* Returns whether a word that is not a command looks like the path of a file. */
bool model_argument_is_path(const char *word);

/* ---- names of models on a hub, and the choice of a file by type ----------------------------------------- */

enum { MODEL_NAME_PART = 96, MODEL_NAME_MAX_FILES = 100000, MODEL_NAME_MAX_PARTS = 99999 };

/* OWNER/NAME, OWNER/NAME:TYPE, or the address of the page of a model or of one of its files on huggingface.co, with or
 * without https://. It is not copied by assignment, because `type` may point into `page`. */
typedef struct ModelName {
    char page[512];                     /* the address from OWNER on, if it was one */
    char repo[2 * MODEL_NAME_PART + 2]; /* OWNER/NAME, of letters, digits, '-', '_' and '.' */
    const char *type;                   /* after the colon, borrowed or in `page`: Q4_K_M, or a file; NULL: none */
} ModelName;

/* False: the text is not such a name. */
bool model_name_parse(const char *text, ModelName *out);

/* Returns whether an untrusted path stays inside the folder that it is joined to: its components are printable ASCII,
 * and none is empty, "." or "..". */
bool model_path_is_safe(const char *path);

/* Chooses a .gguf file in paths [n_paths]: that of `type` (NULL: Q4_K_M, else Q8_0, else the only one). A type is a
 * whole word of the path, in upper or lower case, so Q4_K does not match Q4_K_M; or it is the name of a file.
 * *chosen: malloc'ed index of the file, or indices of all parts of a split file, in order. Errors call the
 * repository `where`. */
int model_choose(const char *where, const char *const *paths, int n_paths, const char *type, int **chosen,
                 int *n_chosen, fr_error *err);

/* ---- fetched models: $XDG_CACHE_HOME/forerun/models/OWNER/NAME/FILE.gguf --------------------------------- */

enum { MODEL_CACHE_PATH = 4096 };

/* Writes the folder of a repository, or of all repositories (repo NULL). False: there is no cache folder, or the path
 * is too long. */
bool model_cache_folder(const char *repo, char out[MODEL_CACHE_PATH]);

/* Lists the files below a folder, as sorted paths relative to it; the list and each path are malloc'ed. A folder that
 * does not exist has no files. */
int model_cache_list(const char *folder, char ***paths, int *n_paths, fr_error *err);
void model_cache_free_list(char **paths, int n_paths);

/* For each OPT_MODEL row, replaces a value that is not a file but the name of a fetched model by the path of its file.
 * The paths live as long as the program. */
int model_cache_resolve(const Command *c, fr_error *err);

#endif

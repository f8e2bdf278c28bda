/* model_name.h - `forerun MODEL.gguf [OPTION...]` and `forerun -m MODEL.gguf [OPTION...]`, without a command. */
#ifndef CLI_MODEL_NAME_H
#define CLI_MODEL_NAME_H

#include "base/error.h"
#include "cli/command.h"

#include <stdbool.h>

/* The command line of a command that the words after the program's name stand for: "chat" where standard input is a
 * terminal and no prompt is given, otherwise "run". malloc'ed, its strings borrowed, NULL at its end; NULL: the first word
 * is neither a GGUF file nor -m. */
char **model_argument(int argc, char **argv, int *n_words);

/* Whether a word that is no command was meant as a file. */
bool model_argument_is_path(const char *word);

/* Names of models on a hub, as in `forerun pull OWNER/NAME:TYPE`, and the choice of a file by type. */

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

/* The folder of models that were fetched, and the options that name one of them.
 *
 *     $XDG_CACHE_HOME/forerun/models/OWNER/NAME/FILE.gguf
 */

enum { MODEL_CACHE_PATH = 4096 };

/* The folder of a repository, or of all of them (repo NULL). False: there is no cache folder, or the path is too long. */
bool model_cache_folder(const char *repo, char out[MODEL_CACHE_PATH]);

/* The files below a folder, as paths relative to it, sorted; malloc'ed, and so is each. A folder that does not exist
 * holds none. */
int model_cache_list(const char *folder, char ***paths, int *n_paths, fr_error *err);
void model_cache_free_list(char **paths, int n_paths);

/* For each OPT_MODEL row: a value that is no file but the name of a model that was fetched becomes the path of its file.
 * The texts live as long as the program. */
int model_cache_resolve(const Command *c, fr_error *err);

#endif

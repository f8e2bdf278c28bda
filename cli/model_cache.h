/* model_cache.h - the folder of models that were fetched, and the options that name one of them.
 *
 *     $XDG_CACHE_HOME/forerun/models/OWNER/NAME/FILE.gguf
 */
#ifndef APP_MODEL_CACHE_H
#define APP_MODEL_CACHE_H

#include "cli/command.h"
#include "cli/model_name.h"

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

/* model_cache.c - finds models that `forerun pull` fetched, so that -m OWNER/NAME:TYPE works in every command.
 *
 * The folder itself is the index: there is no other file that could disagree with it. A file has its name only once it
 * is whole and its hash was checked; until then it is FILE.gguf.HASH.part. What exists as a path is never looked up. */
#include "cli/model_cache.h"

#include "cli/cli.h"
#include "base/error.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_DEPTH = 8 };

bool model_cache_folder(const char *repo, char out[MODEL_CACHE_PATH]) {
    const char *cache = cli_cache_folder();
    if (!cache) return false;
    int n = snprintf(out, MODEL_CACHE_PATH, "%s/models%s%s", cache, repo ? "/" : "", repo ? repo : "");
    return n > 0 && n < MODEL_CACHE_PATH;
}

/* ---- listing ---------------------------------------------------------------------------------------- */

typedef struct List {
    char **paths;
    int n, capacity;
    size_t n_root; /* bytes of the folder and its slash, which the paths do not have */
} List;

static bool add(List *l, const char *path) {
    if (l->n == MODEL_NAME_MAX_FILES) return true;
    if (l->n == l->capacity) {
        int capacity = 2 * l->capacity + 16;
        char **paths = realloc(l->paths, (size_t)capacity * sizeof *paths);
        if (!paths) return false;
        l->paths = paths;
        l->capacity = capacity;
    }
    l->paths[l->n] = strdup(path + l->n_root);
    return l->paths[l->n] != NULL && l->n++ >= 0;
}

static bool list_folder(List *l, const char *folder, int depth) {
    DIR *d = opendir(folder);
    bool fits = true;
    for (struct dirent *e; d && fits && (e = readdir(d));) {
        char path[MODEL_CACHE_PATH];
        struct stat st;
        int n = snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        if (e->d_name[0] == '.' || n >= (int)sizeof path || stat(path, &st) != 0) continue;
        if (S_ISREG(st.st_mode)) fits = add(l, path);
        else if (S_ISDIR(st.st_mode) && depth < MAX_DEPTH) fits = list_folder(l, path, depth + 1);
    }
    if (d) closedir(d);
    return fits;
}

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

int model_cache_list(const char *folder, char ***paths, int *n_paths, fr_error *err) {
    List l = {.n_root = strlen(folder) + 1};
    bool fits = list_folder(&l, folder, 0);
    *paths = l.paths;
    *n_paths = l.n;
    if (l.n) qsort(l.paths, (size_t)l.n, sizeof *l.paths, by_name);
    if (fits) return FR_OK;
    model_cache_free_list(l.paths, l.n);
    return error_memory(err, "a list of files", (size_t)l.n * sizeof *l.paths);
}

void model_cache_free_list(char **paths, int n_paths) {
    for (int i = 0; i < n_paths; i++) free(paths[i]);
    free((void *)paths);
}

/* ---- options that name a model ------------------------------------------------------------------------ */

/* The path of a model that was fetched, malloc'ed. */
static int find(const ModelName *name, const char *text, char **out, fr_error *err) {
    char folder[MODEL_CACHE_PATH], **paths = NULL;
    int n_paths = 0, *chosen = NULL, n_chosen;
    fr_error why;
    if (!model_cache_folder(name->repo, folder)) folder[0] = '\0';
    int status = *folder ? model_cache_list(folder, &paths, &n_paths, err) : FR_OK;
    if (status) return status;
    status = model_choose(name->repo, (const char *const *)paths, n_paths, name->type, &chosen, &n_chosen, &why);
    if (n_paths == 0)
        status = error_set(
            err, FR_ERR_IO,
            "%.200s: cannot be opened: there is no such file, and no model of that name has been fetched "
            "(forerun pull %.200s)",
            text, text);
    else if (status) status = error_set(err, (fr_code)status, "among the models that were fetched: %s", why.message);
    else if (asprintf(out, "%s/%s", folder, paths[chosen[0]]) < 0) status = error_memory(err, "a path", strlen(folder));
    free(chosen);
    model_cache_free_list(paths, n_paths);
    return status;
}

static int resolve(const CommandRow *at, fr_error *err) {
    const char **value = (const char **)(void *)((char *)at->to + at->row->offset);
    ModelName name;
    char *path;
    if (!*value || access(*value, F_OK) == 0 || !model_name_parse(*value, &name)) return FR_OK;
    size_t n = strlen(name.repo);
    if (!name.type && n > 5 && strcasecmp(name.repo + n - 5, ".gguf") == 0) return FR_OK; /* a file that is missing */
    int status = find(&name, *value, &path, err);
    if (!status) *value = path;
    return status;
}

int model_cache_resolve(const Command *c, fr_error *err) {
    int status = FR_OK;
    for (CommandRow at = {.row = NULL}; !status && command_next_row(c, &at);)
        if (at.row->is_model) status = resolve(&at, err);
    return status;
}

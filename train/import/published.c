/* published.c - finds tensors among the files of a checkpoint, and keeps account of those that were taken. */
#include "train/import/published.h"

#include "base/files.h"
#include "base/mem.h"
#include "base/error.h"

#include <dirent.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- opening --------------------------------------------------------------------------------------- */

static int add_file(Published *c, const char *path, fr_error *err) {
    if (c->n_files == PUBLISHED_MAX_FILES)
        return error_set(err, FR_ERR_ARGUMENT, "%s: the checkpoint has more than %d files, which is not supported",
                         path, PUBLISHED_MAX_FILES);
    int status = safetensors_open(&c->files[c->n_files], path, err);
    if (status) return status;
    size_t n = (size_t)safetensors_count(c->files[c->n_files]);
    c->taken[c->n_files] = mem_calloc(n + 1, sizeof **c->taken);
    if (!c->taken[c->n_files++]) return error_memory(err, "a checkpoint", n);
    return FR_OK;
}

static int is_safetensors(const struct dirent *d) {
    size_t n = strlen(d->d_name), n_end = strlen(".safetensors");
    return n > n_end && strcmp(d->d_name + n - n_end, ".safetensors") == 0;
}

static int add_folder(Published *c, const char *path, fr_error *err) {
    struct dirent **names = NULL;
    int n = scandir(path, &names, is_safetensors, alphasort), status = FR_OK;
    if (n < 1)
        status = error_set(err, FR_ERR_IO,
                           "%s: there is no *.safetensors in this folder; if there is a *.bin or *.pt, pass that file "
                           "to see how to convert it",
                           path);
    for (int i = 0; i < n; i++) {
        char file[4096 + 300];
        snprintf(file, sizeof file, "%.4095s/%s", path, names[i]->d_name);
        if (!status) status = add_file(c, file, err);
        free(names[i]);
    }
    free(names);
    return status;
}

int published_open(Published *c, const char *const *paths, int n, fr_error *err) {
    *c = (Published){.n_files = 0};
    int status = FR_OK;
    for (int i = 0; i < n && !status; i++) {
        struct stat st;
        bool is_folder = stat(paths[i], &st) == 0 && S_ISDIR(st.st_mode);
        if (i == 0) {
            const char *slash = strrchr(paths[0], '/');
            if (is_folder) snprintf(c->folder, sizeof c->folder, "%s", paths[0]);
            else
                snprintf(c->folder, sizeof c->folder, "%.*s", slash ? (int)(slash - paths[0]) + 1 : 1,
                         slash ? paths[0] : ".");
        }
        status = (is_folder ? add_folder : add_file)(c, paths[i], err);
    }
    return status;
}

void published_close(Published *c) {
    for (int i = 0; i < c->n_files; i++) {
        safetensors_close(c->files[i]);
        mem_free(c->taken[i]);
    }
    c->n_files = 0;
}

int published_check(const Published *c, fr_error *err) {
    int status = FR_OK;
    for (int i = 0; i < c->n_files && !status; i++) status = safetensors_check(c->files[i], err);
    return status;
}

const char *published_path(const Published *c) { return safetensors_path(c->files[0]); }

/* ---- tensors -------------------------------------------------------------------------------------- */

static const SafeTensor *find(const Published *c, const char *name, bool **taken) {
    for (int i = 0; i < c->n_files; i++) {
        const SafeTensor *t = safetensors_find(c->files[i], name);
        if (!t) continue;
        *taken = &c->taken[i][t - safetensors_tensor(c->files[i], 0)];
        return t;
    }
    return NULL;
}

const SafeTensor *published_find(const Published *c, const char *name) {
    bool *taken;
    return find(c, name, &taken);
}

int published_take(Published *c, const char *name, int64_t n_in, int64_t n_out, const SafeTensor **out, fr_error *err) {
    bool *taken;
    const SafeTensor *t = *out = find(c, name, &taken);
    if (!t) return error_set(err, FR_ERR_FORMAT, "%s: tensor %s is missing", published_path(c), name);
    if (!t->has_type)
        return error_set(err, FR_ERR_UNSUPPORTED,
                         "%s: tensor %s has the type %s; only F32, F16 and BF16 can be imported", published_path(c),
                         name, t->dtype);
    bool fits = n_out ? t->n_dims == 2 && t->dims[0] == n_out && t->dims[1] == n_in
                      : t->n_dims == 1 && t->dims[0] == n_in;
    if (!fits)
        return error_set(err, FR_ERR_MISMATCH,
                         "%s: tensor %s is %lld x %lld, but the target needs %lld x %lld; the drafter was trained for "
                         "another target",
                         published_path(c), name, (long long)t->dims[0], (long long)t->dims[1],
                         (long long)(n_out ? n_out : n_in), (long long)(n_out ? n_in : 1));
    *taken = true;
    return FR_OK;
}

void published_pass_over(Published *c, const char *prefix) {
    for (int i = 0; i < c->n_files; i++)
        for (int64_t k = 0; k < safetensors_count(c->files[i]); k++)
            if (strncmp(safetensors_tensor(c->files[i], k)->name, prefix, strlen(prefix)) == 0) c->taken[i][k] = true;
}

int published_finish(const Published *c, const char *method, fr_error *err) {
    for (int i = 0; i < c->n_files; i++)
        for (int64_t k = 0; k < safetensors_count(c->files[i]); k++) {
            if (c->taken[i][k]) continue;
            const char *name = safetensors_tensor(c->files[i], k)->name;
            Printable p;
            return error_set(
                err, FR_ERR_UNSUPPORTED,
                "%s: holds the tensor %s, which the method %s does not have; the drafter would not compute "
                "the same without it",
                safetensors_path(c->files[i]), printable(&p, name, strlen(name)), method);
        }
    return FR_OK;
}

enum { MAX_CONFIG = 1 << 20 }; /* bytes of a config.json; published ones have a few thousand */

typedef struct ConfigReader {
    FILE *file;
    size_t n_left;
} ConfigReader;

/* For json_load_callback: a file that is too long ends early, and then is no JSON. */
static size_t read_config(void *buffer, size_t n, void *user) {
    ConfigReader *r = user;
    n = fread(buffer, 1, n < r->n_left ? n : r->n_left, r->file);
    r->n_left -= n;
    return n;
}

bool published_config(const Published *c, const char *key, int64_t *out) {
    char path[sizeof c->folder + 16];
    snprintf(path, sizeof path, "%s/config.json", c->folder);
    ConfigReader reader = {.file = input_text_open(path, NULL), .n_left = MAX_CONFIG};
    json_t *config = reader.file ? json_load_callback(read_config, &reader, 0, NULL) : NULL;
    if (reader.file) fclose(reader.file);
    const json_t *value = json_object_get(config, key);
    bool is_there = json_is_integer(value);
    if (is_there) *out = (int64_t)json_integer_value(value);
    json_decref(config);
    return is_there;
}

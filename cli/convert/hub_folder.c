/* hub_folder.c - opens the files of a folder, finds tensors in its parts, and reads the values of config.json with
 * limits. */
#include "cli/convert/hub_folder.h"

#include "base/files.h"
#include "base/mem.h"
#include "base/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Published files tokenizer.json have up to 35 MB; jansson takes about twenty times as much memory for one. */
enum { MAX_JSON = 64 << 20 };

/* ---- files ------------------------------------------------------------------------------------------- */

/* Writes the path of a file in the folder. False: the path is too long. */
static bool hub_path(const HubFolder *c, const char *file, char out[HUB_MAX_PATH]) {
    int n = snprintf(out, HUB_MAX_PATH, "%s/%s", c->folder, file);
    return n > 0 && n < HUB_MAX_PATH;
}

bool hub_has(const HubFolder *c, const char *file) {
    char path[HUB_MAX_PATH];
    return hub_path(c, file, path) && access(path, F_OK) == 0;
}

int hub_read(const HubFolder *c, const char *file, size_t max_bytes, char **out, size_t *n, fr_error *err) {
    char path[HUB_MAX_PATH], chunk[65536];
    *out = NULL;
    *n = 0;
    if (!hub_has(c, file)) return FR_OK;
    FILE *f = hub_path(c, file, path) ? input_text_open(path, err) : NULL;
    if (!f) return FR_ERR_IO;
    Buf text = {.max_bytes = max_bytes};
    bool fits = buf_append(&text, "", 0);
    for (size_t got; fits && (got = fread(chunk, 1, sizeof chunk, f)) > 0;) fits = buf_append(&text, chunk, got);
    bool broken = ferror(f) != 0;
    fclose(f);
    if (fits && !broken) {
        *out = text.data;
        *n = text.n;
        return FR_OK;
    }
    buf_free(&text);
    return broken
               ? error_set(err, FR_ERR_IO, "%s: cannot be read", path)
               : error_set(err, FR_ERR_UNSUPPORTED, "%s: is larger than %zu bytes, or memory ran out", path, max_bytes);
}

/* Reads a file that must be a JSON object. *out NULL: there is no such file. */
static int read_object(const HubFolder *c, const char *file, json_t **out, fr_error *err) {
    char *text;
    size_t n;
    json_error_t why;
    Printable p;
    int status = hub_read(c, file, MAX_JSON, &text, &n, err);
    *out = NULL;
    if (status || !text) return status;
    *out = json_loadb(text, n, 0, &why);
    if (!*out && json_error_code(&why) == json_error_numeric_overflow) /* such as 1e30, written out */
        *out = json_loadb(text, n, JSON_DECODE_INT_AS_REAL, &why);
    free(text);
    if (json_is_object(*out)) return FR_OK;
    if (*out) return error_set(err, FR_ERR_FORMAT, "%s/%s: must be a JSON object", c->folder, file);
    return error_set(err, FR_ERR_FORMAT, "%s/%s: line %d: is not JSON: %s", c->folder, file, why.line,
                     printable(&p, why.text, strlen(why.text)));
}

static int add_weights(HubFolder *c, const char *file, fr_error *err) {
    char path[HUB_MAX_PATH];
    if (c->n_files == HUB_MAX_FILES || !hub_path(c, file, path))
        return error_set(err, FR_ERR_UNSUPPORTED, "%.200s: has more than %d files of weights, or its path is too long",
                         c->folder, HUB_MAX_FILES);
    int status = safetensors_open(&c->files[c->n_files], path, err);
    if (status) return status;
    size_t n = (size_t)safetensors_count(c->files[c->n_files]);
    c->taken[c->n_files] = mem_calloc(n + 1, sizeof **c->taken);
    if (!c->taken[c->n_files++]) return error_memory(err, "a list of tensors", n);
    return FR_OK;
}

static bool is_open(const HubFolder *c, const char *file) {
    char path[HUB_MAX_PATH];
    if (!hub_path(c, file, path)) return false;
    for (int i = 0; i < c->n_files; i++)
        if (strcmp(safetensors_path(c->files[i]), path) == 0) return true;
    return false;
}

/* A part must be a file of the folder: its name may not lead anywhere else. */
static bool is_sound_name(const char *name) {
    return name && *name && *name != '.' && !strchr(name, '/') && strlen(name) < 200;
}

static int open_parts(HubFolder *c, const char *index, fr_error *err) {
    json_t *list, *value;
    const char *tensor;
    int status = read_object(c, index, &list, err);
    const json_t *map = json_object_get(list, "weight_map");
    if (!status && json_object_size(map) == 0)
        status = error_set(err, FR_ERR_FORMAT, "%s/%s: holds no weight_map", c->folder, index);
    if (!status) {
        json_object_foreach((json_t *)(uintptr_t)map, tensor, value) {
            const char *name = json_string_value(value);
            if (!is_sound_name(name))
                status = error_set(err, FR_ERR_FORMAT, "%s/%s: a part of the weights has no valid file name", c->folder,
                                   index);
            else if (!is_open(c, name)) status = add_weights(c, name, err);
            if (status) break;
        }
    }
    json_decref(list);
    return status;
}

static int open_weights(HubFolder *c, fr_error *err) {
    static const char index[] = "model.safetensors.index.json", one[] = "model.safetensors";
    if (hub_has(c, index)) return open_parts(c, index, err);
    if (hub_has(c, one)) return add_weights(c, one, err);
    if (hub_has(c, "pytorch_model.bin"))
        return add_weights(c, "pytorch_model.bin", err); /* its error message says what to do */
    return error_set(err, FR_ERR_IO, "%s: holds neither %s nor %s", c->folder, one, index);
}

int hub_folder_open(HubFolder *c, const char *folder, fr_error *err) {
    *c = (HubFolder){.n_files = 0};
    size_t n = strlen(folder);
    struct stat st;
    while (n > 1 && folder[n - 1] == '/') n--;
    if (n + 256 > sizeof c->folder) return error_set(err, FR_ERR_IO, "%.100s...: the path is too long", folder);
    snprintf(c->folder, sizeof c->folder, "%.*s", (int)n, folder);
    if (stat(c->folder, &st) != 0 || !S_ISDIR(st.st_mode))
        return error_set(err, FR_ERR_IO, "%s: is not a folder; give the folder that holds config.json", c->folder);
    int status = read_object(c, "config.json", &c->config, err);
    if (!status && !c->config)
        status = error_set(err, FR_ERR_IO, "%s: holds no config.json; give the folder of a model", c->folder);
    if (!status) status = read_object(c, "tokenizer.json", &c->tokenizer, err);
    if (!status) status = read_object(c, "tokenizer_config.json", &c->tokenizer_config, err);
    if (!status) status = read_object(c, "generation_config.json", &c->generation, err);
    return status ? status : open_weights(c, err);
}

void hub_folder_close(HubFolder *c) {
    for (int i = 0; i < c->n_files; i++) {
        safetensors_close(c->files[i]);
        mem_free(c->taken[i]);
    }
    json_decref(c->config);
    json_decref(c->tokenizer);
    json_decref(c->tokenizer_config);
    json_decref(c->generation);
    *c = (HubFolder){.n_files = 0};
}

int hub_check(const HubFolder *c, fr_error *err) {
    int status = FR_OK;
    for (int i = 0; i < c->n_files && !status; i++) status = safetensors_check(c->files[i], err);
    return status;
}

void hub_enter_part(HubFolder *c, const char *name) {
    json_t *part = json_object_get(c->config, name), *whole = c->config;
    if (!json_is_object(part)) return;
    c->config = json_incref(part);
    (void)json_object_update_missing(part, whole);
    json_decref(whole);
}

/* ---- tensors ----------------------------------------------------------------------------------------- */

static const SafeTensor *find(const HubFolder *c, const char *name, int *i_file) {
    for (*i_file = 0; *i_file < c->n_files; ++*i_file) {
        const SafeTensor *t = safetensors_find(c->files[*i_file], name);
        if (t) return t;
    }
    return NULL;
}

static void mark(HubFolder *c, const SafeTensor *t, int i_file) {
    c->taken[i_file][t - safetensors_tensor(c->files[i_file], 0)] = true;
}

static int refuse_shape(const HubFolder *c, int i_file, const SafeTensor *t, const int64_t *dims, int n_dims,
                        fr_error *err) {
    char is[100] = "", wanted[100] = "";
    for (int i = 0; i < t->n_dims || i < n_dims; i++) {
        size_t a = strlen(is), b = strlen(wanted);
        if (i < t->n_dims) snprintf(is + a, sizeof is - a, "%s%lld", i ? " x " : "", (long long)t->dims[i]);
        if (i < n_dims) snprintf(wanted + b, sizeof wanted - b, "%s%lld", i ? " x " : "", (long long)dims[i]);
    }
    return error_set(err, FR_ERR_FORMAT, "%s: tensor %s is %s, but config.json asks for %s",
                     safetensors_path(c->files[i_file]), t->name, is, wanted);
}

int hub_take_shaped(HubFolder *c, const char *name, const int64_t *dims, int n_dims, bool bytes, const SafeTensor **out,
                    fr_error *err) {
    int i_file;
    const SafeTensor *t = *out = find(c, name, &i_file);
    if (!t) return FR_OK;
    if (bytes ? strcmp(t->dtype, "U8") != 0 : !t->has_type)
        return error_set(err, FR_ERR_UNSUPPORTED, "%s: tensor %s has the type %s; only %s read",
                         safetensors_path(c->files[i_file]), name, t->dtype, bytes ? "U8 is" : "F32, F16 and BF16 are");
    bool fits = t->n_dims == n_dims;
    for (int i = 0; i < n_dims && fits; i++) fits = t->dims[i] == dims[i];
    if (!fits) return refuse_shape(c, i_file, t, dims, n_dims, err);
    mark(c, t, i_file);
    return FR_OK;
}

int hub_take(HubFolder *c, const char *name, int64_t n_in, int64_t n_out, const SafeTensor **out, fr_error *err) {
    const int64_t dims[] = {n_out ? n_out : n_in, n_in};
    return hub_take_shaped(c, name, dims, n_out ? 2 : 1, false, out, err);
}

int64_t hub_pass_over_all(HubFolder *c, const char *prefix) {
    int64_t n = 0;
    for (int i = 0; i < c->n_files; i++)
        for (int64_t k = 0; k < safetensors_count(c->files[i]); k++)
            if (strncmp(safetensors_tensor(c->files[i], k)->name, prefix, strlen(prefix)) == 0)
                c->taken[i][k] = true, n++;
    return n;
}

void hub_pass_over(HubFolder *c, const char *name) {
    int i_file;
    const SafeTensor *t = find(c, name, &i_file);
    if (t) mark(c, t, i_file);
}

const SafeTensor *hub_left_over(const HubFolder *c) {
    for (int i = 0; i < c->n_files; i++)
        for (int64_t k = 0; k < safetensors_count(c->files[i]); k++)
            if (!c->taken[i][k]) return safetensors_tensor(c->files[i], k);
    return NULL;
}

/* ---- the values of config.json ------------------------------------------------------------------------ */

bool config_has(const ConfigReader *r, const char *key) {
    const json_t *v = json_object_get(r->object, key);
    return v && !json_is_null(v);
}

int64_t config_int(ConfigReader *r, const char *key, int64_t fallback, int64_t low, int64_t high) {
    const json_t *v = json_object_get(r->object, key);
    int64_t n = config_has(r, key) ? (int64_t)json_integer_value(v) : fallback;
    bool is_number = !config_has(r, key) || json_is_integer(v);
    if (is_number && n >= low && n <= high) return n;
    if (!r->status)
        r->status = error_set(r->err, FR_ERR_FORMAT, "%s/config.json: %s must be an integer from %lld to %lld",
                              r->c->folder, key, (long long)low, (long long)high);
    return low;
}

double config_real(ConfigReader *r, const char *key, double fallback, double low, double high) {
    const json_t *v = json_object_get(r->object, key);
    double x = config_has(r, key) ? json_number_value(v) : fallback;
    bool is_number = !config_has(r, key) || json_is_number(v);
    if (is_number && x >= low && x <= high) return x;
    if (!r->status)
        r->status = error_set(r->err, FR_ERR_FORMAT, "%s/config.json: %s must be a number from %g to %g", r->c->folder,
                              key, low, high);
    return low;
}

void config_refuse(ConfigReader *r, const char *what) {
    if (!r->status) r->status = error_set(r->err, FR_ERR_UNSUPPORTED, "%s/config.json: %s", r->c->folder, what);
}

const char *config_text(const json_t *object, const char *key) {
    return json_string_value(json_object_get(object, key));
}

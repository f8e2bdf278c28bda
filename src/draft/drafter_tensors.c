/* drafter_tensors.c - reads the keys and tensors of a drafter's file, and checks each of them before it is used: the
 * range of each number, the shape of each tensor, and that every weight is finite. Tensors that no method reads are an
 * error, too (drafter_file_finish). */
#include "draft/drafter_file.h"

#include "base/mem.h"
#include "gguf/tensor_type.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- keys -------------------------------------------------------------------------------------------------------- */

const char *drafter_file_prefix(const DrafterFile *f) { return f->is_published ? "" : DRAFTER_KEY(""); }

int drafter_file_int(const DrafterFile *f, const char *name, int64_t min, int64_t max, int32_t *out, fr_error *err) {
    char key[128];
    int64_t v;
    snprintf(key, sizeof key, DRAFTER_KEY("%s"), name);
    if (!gguf_get_i64(f->gguf, key, &v))
        return error_set(err, FR_ERR_FORMAT, "%s: the key %s is missing or not an integer", gguf_path(f->gguf), key);
    if (v < min || v > max)
        return error_set(err, FR_ERR_FORMAT, "%s: %s is %lld but must be from %lld to %lld", gguf_path(f->gguf), key,
                         (long long)v, (long long)min, (long long)max);
    *out = (int32_t)v;
    return FR_OK;
}

int drafter_file_choice(const DrafterFile *f, const char *name, const char *const *choices, int *out, fr_error *err) {
    char key[128], is[DRAFTER_TEXT_BYTES];
    snprintf(key, sizeof key, DRAFTER_KEY("%s"), name);
    drafter_file_text(f->gguf, key, is);
    for (int i = 0; choices[i]; i++)
        if (strcmp(choices[i], is) == 0) {
            *out = i;
            return FR_OK;
        }
    return error_set(err, FR_ERR_FORMAT, "%s: %s is '%s', which this program does not know; it knows '%s', for example",
                     gguf_path(f->gguf), key, is, choices[0]);
}

int drafter_file_tokens(const DrafterFile *f, const char *name, int32_t n_vocab, int32_t **out, int32_t *n,
                        fr_error *err) {
    char key[128];
    snprintf(key, sizeof key, DRAFTER_KEY("%s"), name);
    int64_t kv = gguf_find_key(f->gguf, key), n_listed = kv < 0 ? 0 : gguf_kv_count(f->gguf, kv), token, last = -1;
    if (kv < 0) return FR_OK;
    if (gguf_kv_type(f->gguf, kv) != GGUF_ARRAY || n_listed < 1 || n_listed > n_vocab)
        return error_set(err, FR_ERR_FORMAT, "%s: the key %s lists %lld tokens but must list from 1 to %d",
                         gguf_path(f->gguf), key, (long long)n_listed, n_vocab);
    int32_t *tokens = mem_calloc((size_t)n_listed, sizeof *tokens);
    if (!tokens) return error_memory(err, key, (size_t)n_listed * sizeof *tokens);
    for (int64_t i = 0; i < n_listed; i++, last = token) {
        if (gguf_array_i64(f->gguf, kv, i, &token) && token > last && token < n_vocab) {
            tokens[i] = (int32_t)token;
            continue;
        }
        mem_free(tokens);
        return error_set(err, FR_ERR_FORMAT, "%s: entry %lld of %s breaks the list, which must rise and stay below %d",
                         gguf_path(f->gguf), (long long)i, key, n_vocab);
    }
    *out = tokens;
    *n = (int32_t)n_listed;
    return FR_OK;
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

static void note_taken(const DrafterFile *f, const GgufTensor *t) { f->taken[t - gguf_tensor(f->gguf, 0)] = true; }

/* Returns number i of a list; -1 if it is a float that is no token. */
static int64_t item_of_list(const GgufTensor *list, int64_t i) {
    int32_t narrow;
    int64_t wide;
    float number;
    const char *data = list->data;
    if (list->is_i32) return memcpy(&narrow, data + (size_t)i * sizeof narrow, sizeof narrow), narrow;
    if (list->is_i64) return memcpy(&wide, data + (size_t)i * sizeof wide, sizeof wide), wide;
    memcpy(&number, data + (size_t)i * sizeof number, sizeof number);
    return number >= 0 && number < (float)(1 << 24) && number == (float)(int32_t)number ? (int32_t)number : -1;
}

/* Reads a list of n different tokens of the target. */
static int read_list(DrafterFile *f, const GgufTensor *list, int64_t n, int32_t n_vocab, int32_t **out, fr_error *err) {
    int32_t *tokens = mem_calloc((size_t)n, sizeof *tokens);
    bool *taken = mem_calloc((size_t)n_vocab, sizeof *taken);
    int status = tokens && taken ? FR_OK : error_memory(err, list->name, (size_t)n_vocab);
    for (int64_t i = 0; i < n && !status; i++) {
        int64_t token = item_of_list(list, i);
        if (token < 0 || token >= n_vocab || taken[token])
            status = error_set(err, FR_ERR_FORMAT,
                               "%s: item %lld of tensor %s is %lld, which is not a token of the target, or is there "
                               "twice",
                               gguf_path(f->gguf), (long long)i, list->name, (long long)token);
        else taken[tokens[i] = (int32_t)token] = true;
    }
    mem_free(taken);
    if (status) {
        mem_free(tokens);
        return status;
    }
    note_taken(f, list);
    *out = tokens;
    return FR_OK;
}

int drafter_file_map(DrafterFile *f, int32_t n_vocab, int32_t **out, int32_t *n, fr_error *err) {
    const GgufTensor *map = gguf_find_tensor(f->gguf, GGUF_MAP);
    if (!map) return FR_OK;
    int64_t n_listed = map->is_i64 ? map->dims[0] : 0;
    if (n_listed < 1 || n_listed > n_vocab)
        return error_set(err, FR_ERR_FORMAT, "%s: tensor %s is not a list of 1 to %d tokens", gguf_path(f->gguf),
                         GGUF_MAP, n_vocab);
    int status = read_list(f, map, n_listed, n_vocab, out, err);
    if (!status) *n = (int32_t)n_listed;
    return status;
}

int drafter_file_clusters(DrafterFile *f, int32_t n_vocab, int32_t **out, fr_error *err) {
    const GgufTensor *list = gguf_find_tensor(f->gguf, GGUF_CLUSTERS);
    if (!list) return error_set(err, FR_ERR_FORMAT, "%s: tensor %s is missing", gguf_path(f->gguf), GGUF_CLUSTERS);
    bool has_type = gguf_is_list(list) || list->type == TYPE_F32;
    if (!has_type || list->n_dims != 1 || list->dims[0] != n_vocab)
        return error_set(err, FR_ERR_FORMAT, "%s: tensor %s is not a list of %d tokens", gguf_path(f->gguf),
                         GGUF_CLUSTERS, n_vocab);
    return read_list(f, list, n_vocab, n_vocab, out, err);
}

static int check_finite(const DrafterFile *f, const GgufTensor *t, fr_error *err) {
    if (finite_weights(t->type, t->data, t->dims[0] * t->dims[1] * t->dims[2])) return FR_OK;
    return error_set(err, FR_ERR_FORMAT, "%s: tensor %s holds NaN or infinity; its training went wrong",
                     gguf_path(f->gguf), t->name);
}

/* Finds the tensor with that name, which must have exactly this shape; n_out is 0 for a vector. */
static int take(DrafterFile *f, const char *name, int64_t n_in, int64_t n_out, const GgufTensor **out, fr_error *err) {
    const GgufTensor *t = *out = gguf_find_tensor(f->gguf, name);
    if (!t) return error_set(err, FR_ERR_FORMAT, "%s: tensor %s is missing", gguf_path(f->gguf), name);
    if (gguf_is_list(t) || t->n_dims != (n_out ? 2 : 1) || t->dims[0] != n_in || (n_out && t->dims[1] != n_out))
        return error_set(err, FR_ERR_FORMAT, "%s: tensor %s has the wrong shape: %lld x %lld instead of %lld x %lld",
                         gguf_path(f->gguf), name, (long long)t->dims[0], (long long)t->dims[1], (long long)n_in,
                         (long long)(n_out ? n_out : 1));
    note_taken(f, t);
    return check_finite(f, t, err);
}

int drafter_file_matrix(DrafterFile *f, const char *name, int64_t n_in, int64_t n_out, const GgufTensor **out,
                        fr_error *err) {
    return take(f, name, n_in, n_out, out, err);
}

int drafter_file_vector(DrafterFile *f, const char *name, int64_t n, float **out, fr_error *err) {
    const GgufTensor *t;
    int status = take(f, name, n, 0, &t, err);
    if (status) return status;
    *out = mem_calloc((size_t)n, sizeof **out);
    if (!*out) return error_memory(err, name, (size_t)n * sizeof **out);
    blocks_dequantize(t->type, t->data, n, *out);
    return FR_OK;
}

int drafter_file_cube(DrafterFile *f, const char *name, const int64_t dims[3], float **out, fr_error *err) {
    const GgufTensor *t = gguf_find_tensor(f->gguf, name);
    int64_t n = dims[0] * dims[1] * dims[2];
    if (!t) return error_set(err, FR_ERR_FORMAT, "%s: tensor %s is missing", gguf_path(f->gguf), name);
    if (gguf_is_list(t) || t->dims[0] != dims[0] || t->dims[1] != dims[1] || t->dims[2] != dims[2] || t->dims[3] != 1)
        return error_set(err, FR_ERR_FORMAT,
                         "%s: tensor %s has the wrong shape: %lld x %lld x %lld instead of %lld x %lld x %lld",
                         gguf_path(f->gguf), name, (long long)t->dims[0], (long long)t->dims[1], (long long)t->dims[2],
                         (long long)dims[0], (long long)dims[1], (long long)dims[2]);
    note_taken(f, t);
    int status = check_finite(f, t, err);
    if (status) return status;
    *out = mem_calloc((size_t)n, sizeof **out);
    if (!*out) return error_memory(err, name, (size_t)n * sizeof **out);
    blocks_dequantize(t->type, t->data, n, *out);
    return FR_OK;
}

bool drafter_file_has(const DrafterFile *f, const char *name) { return gguf_find_tensor(f->gguf, name) != NULL; }

bool drafter_file_has_printed(const DrafterFile *f, const char *format, ...) {
    char name[96];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(name, sizeof name, format, args);
    va_end(args);
    return n < (int)sizeof name && drafter_file_has(f, name);
}

int drafter_file_table(DrafterFile *f, const char *name, int64_t n_rows, int64_t *n, float **out, fr_error *err) {
    const GgufTensor *t = gguf_find_tensor(f->gguf, name);
    int status = take(f, name, t ? t->dims[0] : 0, n_rows, &t, err);
    if (status) return status;
    *n = t->dims[0];
    *out = mem_calloc((size_t)(*n * n_rows), sizeof **out);
    if (!*out) return error_memory(err, name, t->bytes);
    blocks_dequantize(t->type, t->data, *n * n_rows, *out);
    return FR_OK;
}

int drafter_file_finish(const DrafterFile *f, fr_error *err) {
    Printable p;
    for (int64_t i = 0; i < gguf_n_tensors(f->gguf); i++) {
        const char *name = gguf_tensor(f->gguf, i)->name;
        if (!f->taken[i])
            return error_set(err, FR_ERR_UNSUPPORTED,
                             "%s: holds the tensor %s, which its method does not read; another version of the method, "
                             "or of the program, wrote it",
                             gguf_path(f->gguf), printable(&p, name, strlen(name)));
    }
    return gguf_check(f->gguf, err);
}

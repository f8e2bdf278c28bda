/* gguf_split.c - models in several files.
 *
 * Large models are published in parts, NAME-00001-of-00003.gguf to NAME-00003-of-00003.gguf (llama.cpp's gguf-split). Each
 * is a GGUF file of its own with the keys split.no (from 0), split.count and split.tensors.count (of all parts); only the first
 * has the other key-values. The user names the first. The others are found by its name, opened and checked like any
 * file, and their tensors follow its own, so that nobody else needs to know how many files there are. Keys and names must
 * agree with each other: a part of another model would give a model that is wrong. Test: test_gguf_split.c. */
#include "gguf/gguf_split.h"

#include "base/mem.h"
#include "gguf/gguf_internal.h"
#include "gguf/printable.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEY_COUNT "split.count"
#define KEY_NO "split.no"
#define KEY_TENSORS "split.tensors.count"

enum { N_SUFFIX = sizeof "-00001-of-00003.gguf" - 1, N_DIGITS = 5 };

/* ---- names ------------------------------------------------------------------------------------------- */

/* Five digits, or -1. */
static int number_at(const char *p) {
    int v = 0;
    for (int i = 0; i < N_DIGITS; i++) {
        if (p[i] < '0' || p[i] > '9') return -1;
        v = 10 * v + (p[i] - '0');
    }
    return v;
}

int gguf_split_count(const char *path) {
    size_t n = strlen(path);
    if (n <= N_SUFFIX) return 1;
    const char *end = path + n - N_SUFFIX;
    int no = number_at(end + 1), count = number_at(end + 10);
    bool fits = end[0] == '-' && memcmp(end + 6, "-of-", 4) == 0 && strcmp(end + 15, ".gguf") == 0;
    return fits && no == 1 && count >= 1 && count <= GGUF_MAX_PARTS ? count : 1;
}

bool gguf_split_path(const char *first, int i, char out[GGUF_MAX_PATH]) {
    size_t n = strlen(first);
    int n_stem = n > N_SUFFIX ? (int)(n - N_SUFFIX) : 0;
    int written = snprintf(out, GGUF_MAX_PATH, "%.*s-%05d-of-%05d.gguf", n_stem, first, i + 1, gguf_split_count(first));
    return written > 0 && written < GGUF_MAX_PATH;
}

/* ---- parts ------------------------------------------------------------------------------------------- */

/* A key that must be a number of [low, high]; `missing` where there is none. */
static int read_key(const Gguf *g, const char *key, int64_t missing, int64_t low, int64_t high, int64_t *out,
                    fr_error *err) {
    *out = missing;
    if (gguf_find_key(g, key) < 0) return FR_OK;
    if (gguf_get_i64(g, key, out) && *out >= low && *out <= high) return FR_OK;
    return error_set(err, FR_ERR_FORMAT, "%s: %s must be an integer from %lld to %lld", g->path, key, (long long)low,
                     (long long)high);
}

static int read_place(const Gguf *g, int64_t *no, int64_t *count, fr_error *err) {
    int status = read_key(g, KEY_COUNT, 1, 0, GGUF_MAX_PARTS, count, err);
    if (*count < 1) *count = 1; /* some writers give 0 to a file that is whole */
    return status ? status : read_key(g, KEY_NO, 0, 0, *count - 1, no, err);
}

static int check_part(const Gguf *part, int64_t i, int64_t n, fr_error *err) {
    int64_t no, count;
    int status = read_place(part, &no, &count, err);
    if (status || (no == i && count == n)) return status;
    return error_set(err, FR_ERR_MISMATCH, "%s: is part %lld of %lld by its keys, and %lld of %lld by its name",
                     part->path, (long long)no + 1, (long long)count, (long long)i + 1, (long long)n);
}

static int open_part(Gguf *g, int i, fr_error *err) {
    char path[GGUF_MAX_PATH];
    fr_error why;
    if (!gguf_split_path(g->path, i, path))
        return error_set(err, FR_ERR_IO, "%.100s...: the path is too long", g->path);
    int status = gguf_open_file(&g->parts[i - 1], path, &why);
    if (status)
        return error_set(err, (fr_code)status, "part %d of %d of the model: %s", i + 1, g->n_parts, why.message);
    return check_part(g->parts[i - 1], i, g->n_parts, err);
}

/* ---- tensors ----------------------------------------------------------------------------------------- */

static int append_tensors(Gguf *g, const Gguf *part, fr_error *err) {
    for (int64_t i = 0; i < part->n_tensors; i++) {
        const GgufTensor *t = &part->tensors[i];
        Printable safe;
        int32_t got;
        if (!hash_table_add(&g->names, t->name, strlen(t->name), (int32_t)g->n_tensors, &got))
            return error_memory(err, "tensor infos", sizeof(HashSlot) * (size_t)g->n_tensors);
        if (got != (int32_t)g->n_tensors)
            return error_set(err, FR_ERR_FORMAT, "%s: the tensor %s is in another part already", part->path,
                             printable(&safe, t->name, strlen(t->name)));
        g->tensors[g->n_tensors++] = *t;
    }
    return FR_OK;
}

static int join_tensors(Gguf *g, fr_error *err) {
    int64_t n = g->n_tensors, wanted;
    for (int i = 0; i < g->n_parts - 1; i++) n += g->parts[i]->n_tensors;
    int status = read_key(g, KEY_TENSORS, n, 0, INT32_MAX, &wanted, err);
    if (status) return status;
    if (wanted != n || n > GGUF_MAX_ENTRIES)
        return error_set(err, FR_ERR_MISMATCH, "%s: promises %lld tensors in %d parts, which have %lld", g->path,
                         (long long)wanted, g->n_parts, (long long)n);
    GgufTensor *all = gguf_allocate(g, (size_t)n * sizeof *all);
    if (!all) return error_memory(err, "tensor infos", (size_t)n * sizeof *all);
    memcpy(all, g->tensors, (size_t)g->n_tensors * sizeof *all);
    g->tensors = all;
    for (int i = 0; i < g->n_parts - 1 && !status; i++) status = append_tensors(g, g->parts[i], err);
    return status;
}

int gguf_join_parts(Gguf *g, fr_error *err) {
    int64_t no, count;
    int status = read_place(g, &no, &count, err);
    if (status || count == 1) return status;
    if (no != 0)
        return error_set(
            err, FR_ERR_ARGUMENT,
            "%s: is part %lld of %lld of a model; give the first part, which ends in -00001-of-%05lld.gguf", g->path,
            (long long)no + 1, (long long)count, (long long)count);
    if (gguf_split_count(g->path) != count)
        return error_set(err, FR_ERR_FORMAT,
                         "%s: is the first of %lld parts, which are found by its name: it must end in "
                         "-00001-of-%05lld.gguf",
                         g->path, (long long)count, (long long)count);
    g->parts = mem_calloc((size_t)count, sizeof *g->parts);
    if (!g->parts) return error_memory(err, "the parts of a model", (size_t)count * sizeof *g->parts);
    g->n_parts = (int)count;
    for (int i = 1; i < g->n_parts && !status; i++) status = open_part(g, i, err);
    return status ? status : join_tensors(g, err);
}

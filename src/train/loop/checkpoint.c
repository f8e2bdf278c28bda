#include "train/loop/checkpoint.h"

#include "base/hash.h"
#include "format/gguf_write.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HEX_BYTES = 17 };

static void to_hex(char out[HEX_BYTES], uint64_t v) { snprintf(out, HEX_BYTES, "%016" PRIx64, v); }

static uint64_t begin_fingerprint(int64_t step, const char *data, const char *options, size_t n_options) {
    uint64_t h = hash64(&step, sizeof step, 0);
    return hash64(options, n_options, hash64(data, HEX_BYTES - 1, h));
}

static uint64_t add_array(uint64_t h, const char *name, const void *data, int64_t n) {
    return hash64(data, (size_t)n * sizeof(float), hash64(name, strlen(name), h));
}

/* ---- writing ------------------------------------------------------------------------------------ */

/* A second name for the file at `path`; without one nothing is to be kept. */
static int keep_previous(const char *path, fr_error *err) {
    size_t room = strlen(path) + sizeof ".previous";
    char *previous = malloc(room);
    if (!previous) return error_memory(err, "a path", room);
    snprintf(previous, room, "%s.previous", path);
    int status = FR_OK;
    if ((unlink(previous) != 0 && errno != ENOENT) || (link(path, previous) != 0 && errno != ENOENT))
        status = error_set(err, FR_ERR_IO, "%s: the checkpoint before cannot be kept: %s", previous, strerror(errno));
    free(previous);
    return status;
}

int checkpoint_write(const char *path, const Checkpoint *c, fr_error *err) {
    GgufWriter *w = gguf_writer_new();
    if (!w) return error_memory(err, "a checkpoint", 1);
    char data[HEX_BYTES], hash[HEX_BYTES];
    to_hex(data, c->data);
    uint64_t h = begin_fingerprint(c->step, data, c->options, strlen(c->options));
    for (int i = 0; i < c->n_arrays; i++) {
        const CheckpointArray *a = &c->arrays[i];
        h = add_array(h, a->name, a->data, a->n);
        gguf_add_tensor(w, a->name, TYPE_F32, 1, &a->n, a->data);
    }
    to_hex(hash, h);
    gguf_set_string(w, "general.type", "checkpoint", strlen("checkpoint"));
    gguf_set_u64(w, "checkpoint.step", (uint64_t)c->step);
    gguf_set_string(w, "checkpoint.data", data, strlen(data));
    gguf_set_string(w, "checkpoint.options", c->options, strlen(c->options));
    gguf_set_string(w, "checkpoint.hash", hash, strlen(hash));
    int status = keep_previous(path, err);
    if (!status) status = gguf_writer_finish(w, path, err);
    gguf_writer_free(w);
    return status;
}

/* ---- reading ------------------------------------------------------------------------------------ */

static bool same(GgufString a, const char *b) { return a.n == strlen(b) && memcmp(a.data, b, a.n) == 0; }

static int damaged(const char *path, const char *how, fr_error *err) {
    return error_set(err, FR_ERR_FORMAT,
                     "%.120s: is no whole checkpoint (%.200s); the one before it, if any, is %.120s.previous: put that in its "
                     "place, or delete both and begin anew",
                     path, how, path);
}

/* The first words in which the options differ. */
static int other_options(const char *path, GgufString had, const char *wanted, fr_error *err) {
    size_t i = 0, word = 0;
    for (; i < had.n && wanted[i] && had.data[i] == wanted[i]; i++)
        if (wanted[i] == ' ') word = i + 1;
    size_t n_had = 0;
    while (word + n_had < had.n && had.data[word + n_had] != ' ') n_had++;
    return error_set(err, FR_ERR_MISMATCH,
                     "%.160s: is of a run with %.*s, this one has %.*s; resume with the options it was begun with, or delete it "
                     "and begin anew",
                     path, n_had > 60 ? 60 : (int)n_had, had.data + word, (int)strcspn(wanted + word, " "), wanted + word);
}

static int find_arrays(const Gguf *g, const char *path, const Checkpoint *c, const GgufTensor **found, uint64_t h,
                       GgufString hash, fr_error *err) {
    bool fits = gguf_n_tensors(g) == c->n_arrays;
    for (int i = 0; i < c->n_arrays && fits; i++) {
        found[i] = gguf_find_tensor(g, c->arrays[i].name);
        fits = found[i] && found[i]->type == TYPE_F32 && found[i]->n_dims == 1 && found[i]->dims[0] == c->arrays[i].n;
        if (fits) h = add_array(h, c->arrays[i].name, found[i]->data, c->arrays[i].n);
    }
    if (!fits) return error_set(err, FR_ERR_MISMATCH, "%s: holds other parameters than those being trained; delete it and begin anew", path);
    char hex[HEX_BYTES];
    to_hex(hex, h);
    return same(hash, hex) ? FR_OK : damaged(path, "its fingerprint does not fit its content", err);
}

static int read_open(const Gguf *g, const char *path, Checkpoint *c, const GgufTensor **found, fr_error *err) {
    GgufString data, options, hash, type;
    char hex[HEX_BYTES];
    int64_t step;
    if (!gguf_get_string(g, "general.type", &type) || !same(type, "checkpoint") ||
        !gguf_get_string(g, "checkpoint.data", &data) || data.n != HEX_BYTES - 1 ||
        !gguf_get_string(g, "checkpoint.options", &options) || !gguf_get_string(g, "checkpoint.hash", &hash) ||
        !gguf_get_i64(g, "checkpoint.step", &step) || step < 0)
        return damaged(path, "it lacks what a checkpoint tells of itself", err);
    to_hex(hex, c->data);
    if (!same(data, hex))
        return error_set(err, FR_ERR_MISMATCH,
                         "%s: is of a run on other data; resume with the files it was begun with, or delete it and begin anew", path);
    if (!same(options, c->options)) return other_options(path, options, c->options, err);
    int status = find_arrays(g, path, c, found, begin_fingerprint(step, data.data, options.data, options.n), hash, err);
    if (status) return status;
    for (int i = 0; i < c->n_arrays; i++) memcpy(c->arrays[i].data, found[i]->data, found[i]->bytes);
    c->step = step;
    return FR_OK;
}

int checkpoint_read(const char *path, Checkpoint *c, fr_error *err) {
    Gguf *g;
    fr_error why;
    if (gguf_open(&g, path, &why)) {
        if (why.code != FR_ERR_IO) return damaged(path, why.message, err);
        if (err) *err = why;
        return why.code;
    }
    const GgufTensor **found = calloc((size_t)c->n_arrays, sizeof *found);
    int status = found ? read_open(g, path, c, found, err) : error_memory(err, "a checkpoint", (size_t)c->n_arrays);
    free(found);
    gguf_close(g);
    return status;
}

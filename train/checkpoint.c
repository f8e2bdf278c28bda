/* checkpoint.c - writes and reads checkpoints.
 *
 * A checkpoint is refused unless it belongs to the very run that wants to resume: the same data, options and
 * parameters. Otherwise the resumed run would silently compute something that no undisturbed run computes. The
 * fingerprint covers all arrays, because a file damaged on disk would do the same. Test: test_checkpoint.c kills runs
 * and damages files. */
#include "train/loop.h"

#include "base/hash.h"
#include "gguf/gguf_write.h"
#include "base/error.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HEX_BYTES = 17 };

static void to_hex(char out[HEX_BYTES], uint64_t v) { snprintf(out, HEX_BYTES, "%016" PRIx64, v); }

static uint64_t begin_fingerprint(int64_t step, const char *data, const char *signature, size_t n_signature) {
    uint64_t h = hash64(&step, sizeof step, 0);
    return hash64(signature, n_signature, hash64(data, HEX_BYTES - 1, h));
}

static uint64_t add_array(uint64_t h, const char *name, const void *data, int64_t n) {
    return hash64(data, (size_t)n * sizeof(float), hash64(name, strlen(name), h));
}

/* ---- writing ------------------------------------------------------------------------------------ */

/* Gives the file at `path` the second name PATH.previous; does nothing where there is no file. */
static int keep_previous(const char *path, fr_error *err) {
    size_t room = strlen(path) + sizeof ".previous";
    char *previous = malloc(room);
    if (!previous) return error_memory(err, "a path", room);
    snprintf(previous, room, "%s.previous", path);
    int status = FR_OK;
    if ((unlink(previous) != 0 && errno != ENOENT) ||
        (linkat(AT_FDCWD, path, AT_FDCWD, previous, AT_SYMLINK_FOLLOW) != 0 && errno != ENOENT))
        status = error_set(err, FR_ERR_IO, "%s: the previous checkpoint cannot be kept: %s", previous, strerror(errno));
    free(previous);
    return status;
}

int checkpoint_write(const char *path, const Checkpoint *c, fr_error *err) {
    GgufWriter *w = gguf_writer_new();
    if (!w) return error_memory(err, "a checkpoint", 1);
    char data[HEX_BYTES], hash[HEX_BYTES];
    to_hex(data, c->data);
    uint64_t h = begin_fingerprint(c->step, data, c->run_signature, strlen(c->run_signature));
    for (int i = 0; i < c->n_arrays; i++) {
        const CheckpointArray *a = &c->arrays[i];
        h = add_array(h, a->name, a->data, a->n);
        gguf_add_tensor(w, a->name, TYPE_F32, 1, &a->n, a->data);
    }
    to_hex(hash, h);
    gguf_set_string(w, "general.type", "checkpoint", strlen("checkpoint"));
    gguf_set_u64(w, "checkpoint.step", (uint64_t)c->step);
    gguf_set_string(w, "checkpoint.data", data, strlen(data));
    gguf_set_string(w, "checkpoint.options", c->run_signature, strlen(c->run_signature));
    gguf_set_string(w, "checkpoint.hash", hash, strlen(hash));
    int status = keep_previous(path, err);
    if (!status) status = gguf_writer_finish(w, path, err);
    gguf_writer_free(w);
    return status;
}

/* ---- reading ------------------------------------------------------------------------------------ */

static bool same(GgufString a, const char *b) { return a.n == strlen(b) && memcmp(a.data, b, a.n) == 0; }

static int refuse_damaged(const char *path, const char *how, fr_error *err) {
    return error_set(
        err, FR_ERR_FORMAT,
        "%.120s: the checkpoint is incomplete or damaged (%.200s); replace it by the one before, %.120s.previous, "
        "or delete both to start a new run",
        path, how, path);
}

/* Names the first option in which the two run signatures differ. */
static int refuse_other_run(const char *path, GgufString there, const char *here, fr_error *err) {
    size_t i = 0, option = 0;
    for (; i < there.n && here[i] && there.data[i] == here[i]; i++)
        if (here[i] == ' ') option = i + 1;
    size_t n_there = 0;
    while (option + n_there < there.n && there.data[option + n_there] != ' ') n_there++;
    Printable safe;
    return error_set(
        err, FR_ERR_MISMATCH,
        "%.160s: the checkpoint was made by a run with other options: %s there, %.*s here; restore the option, or "
        "delete the checkpoint to start a new run",
        path, printable(&safe, there.data + option, n_there), (int)strcspn(here + option, " "), here + option);
}

/* The fingerprint shows damage, not forgery: whoever writes a file can compute it. */
static int check_values(const char *path, const CheckpointArray *a, const float *values, fr_error *err) {
    bool sound = true;
    for (int64_t i = 0; i < a->n; i++) sound = sound && isfinite(values[i]) && (values[i] >= 0 || !a->not_negative);
    if (sound) return FR_OK;
    return refuse_damaged(path, "it holds numbers that training does not compute", err);
}

static int find_arrays(const Gguf *g, const char *path, const Checkpoint *c, const GgufTensor **found, uint64_t h,
                       GgufString hash, fr_error *err) {
    bool fits = gguf_n_tensors(g) == c->n_arrays;
    for (int i = 0; i < c->n_arrays && fits; i++) {
        found[i] = gguf_find_tensor(g, c->arrays[i].name);
        fits = found[i] && found[i]->type == TYPE_F32 && found[i]->n_dims == 1 && found[i]->dims[0] == c->arrays[i].n;
        if (fits) h = add_array(h, c->arrays[i].name, found[i]->data, c->arrays[i].n);
    }
    if (!fits)
        return error_set(
            err, FR_ERR_MISMATCH,
            "%s: the checkpoint holds other parameters than those being trained; delete it to start a new run", path);
    char hex[HEX_BYTES];
    to_hex(hex, h);
    if (!same(hash, hex)) return refuse_damaged(path, "its fingerprint does not match its content", err);
    int status = FR_OK;
    for (int i = 0; i < c->n_arrays && !status; i++) status = check_values(path, &c->arrays[i], found[i]->data, err);
    return status;
}

bool checkpoint_option(const char *path, const char *name, char *value, size_t size) {
    Gguf *g = NULL;
    GgufString options;
    fr_error ignored;
    size_t n_name = strlen(name), n = 0;
    bool is_found = gguf_open(&g, path, &ignored) == FR_OK && gguf_get_string(g, "checkpoint.options", &options);
    const char *at = is_found ? options.data : NULL, *end = is_found ? at + options.n : NULL;
    for (is_found = false; at < end && !is_found; at += n + 1) {
        for (n = 0; at + n < end && at[n] != ' '; n++) {}
        is_found = n > n_name && at[n_name] == '=' && memcmp(at, name, n_name) == 0 && n - n_name <= size;
        if (is_found) snprintf(value, size, "%.*s", (int)(n - n_name - 1), at + n_name + 1);
    }
    gguf_close(g);
    return is_found;
}

static int read_open(const Gguf *g, const char *path, Checkpoint *c, const GgufTensor **found, fr_error *err) {
    GgufString data, signature, hash, type;
    char hex[HEX_BYTES];
    int64_t step;
    if (!gguf_get_string(g, "general.type", &type) || !same(type, "checkpoint") ||
        !gguf_get_string(g, "checkpoint.data", &data) || data.n != HEX_BYTES - 1 ||
        !gguf_get_string(g, "checkpoint.options", &signature) || !gguf_get_string(g, "checkpoint.hash", &hash) ||
        !gguf_get_i64(g, "checkpoint.step", &step) || step < 0)
        return refuse_damaged(path, "it lacks the keys of a checkpoint", err);
    to_hex(hex, c->data);
    if (!same(data, hex))
        return error_set(
            err, FR_ERR_MISMATCH,
            "%s: the checkpoint was made by a run on other data; restore the data, or delete the checkpoint to start "
            "a new run",
            path);
    if (!same(signature, c->run_signature)) return refuse_other_run(path, signature, c->run_signature, err);
    int status = find_arrays(g, path, c, found, begin_fingerprint(step, data.data, signature.data, signature.n), hash,
                             err);
    if (status) return status;
    if (step > c->n_steps)
        return error_set(err, FR_ERR_MISMATCH,
                         "%s: the checkpoint is of step %lld, beyond the %lld steps of this run; delete it to start a "
                         "new run",
                         path, (long long)step, (long long)c->n_steps);
    for (int i = 0; i < c->n_arrays; i++) memcpy(c->arrays[i].data, found[i]->data, found[i]->bytes);
    c->step = step;
    return FR_OK;
}

int checkpoint_read(const char *path, Checkpoint *c, fr_error *err) {
    Gguf *g;
    fr_error why;
    if (gguf_open(&g, path, &why)) {
        if (why.code != FR_ERR_IO) return refuse_damaged(path, why.message, err);
        if (err) *err = why;
        return why.code;
    }
    const GgufTensor **found = calloc((size_t)c->n_arrays, sizeof *found);
    int status = found ? read_open(g, path, c, found, err) : error_memory(err, "a checkpoint", (size_t)c->n_arrays);
    free(found);
    gguf_close(g);
    return status;
}

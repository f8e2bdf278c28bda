/* traffic.c - what is new in a file of records.
 *
 * The file only grows, so what an earlier training has read is its first n lines. The drafter's file remembers n and a
 * hash of these lines: if the file still begins with them, the records after them are new; if not, because it was
 * deleted, rotated or edited, all are. So there is no state beside the two files, and deleting either is safe.
 *
 * A line is read only if it is complete: a process may be about to write the rest of the last one, which counts next
 * time. */
#include "cli/train/traffic.h"

#include "base/hash.h"

#include <unistd.h>

/* What the drafter's file remembers. A file that is no drafter, or cannot be read, remembers nothing. */
static DrafterTraffic remembered(const char *drafter, const char *method, uint64_t target) {
    Gguf *g;
    DrafterTraffic t = {0};
    if (access(drafter, F_OK) != 0 || gguf_open(&g, drafter, NULL)) return t;
    drafter_file_get_traffic(g, method, target, &t);
    gguf_close(g);
    return t;
}

/* Counts and hashes the complete lines. *n_known: those that `known` describes; 0 if the file does not begin with them. */
static int scan(const char *path, const DrafterTraffic *known, DrafterTraffic *out, int64_t *n_known, fr_error *err) {
    LineReader *r;
    const char *line;
    size_t n;
    *out = (DrafterTraffic){0};
    *n_known = 0;
    int got = line_reader_open(&r, path, false, LINE_MAX_BYTES, err);
    if (got) return got;
    while ((got = line_reader_next(r, &line, &n, err)) == 1 && line_reader_is_complete(r)) {
        out->n_lines++;
        out->hash = hash64(line, n, out->hash);
        if (out->n_lines == known->n_lines && out->hash == known->hash) *n_known = (int64_t)out->n_lines;
    }
    line_reader_close(r);
    return got < 0 ? got : FR_OK;
}

int traffic_open(Traffic *out, DrafterTraffic *state, const TrainArgs *a, const char *method, const Gguf *target,
                 fr_error *err) {
    Model *model;
    *out = (Traffic){.path = a->traffic};
    int status = model_open(&model, target, err);
    if (status) return status;
    out->target = drafter_target_fingerprint(model);
    model_close(model);
    status = gguf_check(target, err); /* the fingerprint has read the weights */
    DrafterTraffic known = remembered(a->init ? a->init : a->output, method, out->target);
    if (!status) status = scan(a->traffic, &known, state, &out->new_line, err);
    if (a->init) out->first_line = out->new_line;
    out->end_line = (int64_t)state->n_lines;
    return status;
}

static int64_t n_right(const TrainSums *s) {
    int64_t n = 0;
    for (int i = 0; i < s->n_heads; i++) n += s->right[i];
    return n;
}

int traffic_check_gain(const TrainSums *before, const TrainSums *after, const char *output, fr_error *err) {
    if (n_right(after) >= n_right(before)) return FR_OK;
    return error_set(err, FR_ERR_UNSUPPORTED,
                     "%s is not written: on the held-out records the drafter was right in %lld predictions before the "
                     "training and in %lld after it; wait for more records, or pass a lower --lr",
                     output, (long long)n_right(before), (long long)n_right(after));
}

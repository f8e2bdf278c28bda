/* train_traffic.c - --from-traffic: the new lines of a file of records.
 *
 * A file of records only grows, so the lines that an earlier training has read are its first n lines. The drafter's
 * file stores n and a hash of these lines. If the file still begins with them, the lines after them are new. If not,
 * because it was deleted, rotated or edited, all lines are new. So there is no state besides the two files, and either
 * of them can be deleted safely.
 *
 * An incomplete last line is left for the next training, because another process may be writing it. */
#include "base/hash.h"
#include "cli/train/training.h"

#include <unistd.h>

/* Returns the state that the drafter's file stores; empty if the file cannot be read or is not a drafter. */
static DrafterTraffic remembered(const char *drafter, const char *method, uint64_t target) {
    Gguf *g;
    DrafterTraffic t = {0};
    if (access(drafter, F_OK) != 0 || gguf_open(&g, drafter, NULL)) return t;
    drafter_file_get_traffic(g, method, target, &t);
    gguf_close(g);
    return t;
}

/* Counts and hashes the complete lines. *n_known: how many of them `known` describes; 0 if the file does not begin with
 * them. */
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
    status = gguf_check(target, err); /* because the fingerprint has read the weights */
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

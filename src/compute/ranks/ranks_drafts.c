/* ranks_drafts.c - a draft model, or the layers of a learned drafter, beside a target that is divided among ranks: they
 * are whole on rank 0, or divided as the target is, whichever is faster.
 *
 * The problem. While rank 0 drafts, the other ranks wait. Divided, the weights are read by all of them, but each layer
 * has four exchanges. Large ones gain by that, and small ones lose: 22 layers have 90 exchanges, which take 0.4 ms
 * between processes of one machine and 5 ms over Ethernet.
 *
 * The idea. A forward of about as many rows as a level of the tree has is timed in rank 0, and then divided, with the
 * exchanges and with the rows of logits that rank 0 receives. If the exchanges and a rank's share of the time of the
 * whole take longer than the whole, the second measurement is left out, and so is the reading of the file by the
 * others. Rank 0 decides, and the others hear of it only by the calls of the backend.
 *
 * A rank reads its part from its own copy of the file, which must be at the same path. If one has no such file, or
 * another one, the drafter is whole on rank 0, which needs nothing from the others. It is also whole if its layers
 * cannot be described to the others (ranks_copies.c).
 *
 * Layers that read the target's keys and values (Model.kv_model) have no such choice: they run where the keys are. They
 * are always divided, and since their KV heads are the target's, a rank has the keys of exactly the heads for which it
 * makes queries. If a rank cannot open its part, the drafter is refused.
 *
 * Memory. Rank 0 gives the whole up before it reads its part, so it never has both.
 *
 * Invariants. Both places give the same bits, so time decides nothing but time. Proof: tests/compute/test_ranks.c and
 * tests/lossless/test_ranks_text.c. */
#include "base/system.h"
#include "compute/executor.h"
#include "compute/ranks/ranks.h"

#include <stdlib.h>
#include <string.h>

enum { N_CTX = 64, PAGE_SIZE = 16, MIN_ROUNDS = 5, MAX_ROUNDS = 200 };
#define BUDGET_S 0.004
/* Ranks that have waited for long sleep, and the first exchange of a forward wakes them. The forwards of a measurement
 * follow each other too closely for that. */
#define WAKE_S 100e-6

/* Opens weights with the options of the target: the part of this rank (ranks: those of the target), or all (NULL). */
static int open_here(Weights **out, const Weights *target, const Model *m, Ranks *ranks, fr_error *err) {
    WeightsOptions options = target->options;
    if (model_is_of_layers(m, target->model)) return backend_cpu.submodel(out, target, m, ranks != NULL, err);
    options.progress = NULL, options.packed_file = NULL, options.ranks = ranks;
    return backend_cpu.weights_open(out, m, &options, err);
}

static int open_whole(Weights **out, const Weights *target, const Model *m, fr_error *err) {
    int status = open_here(out, target, m, NULL, err);
    if (!status) (*out)->backend = ranks_backend();
    return status;
}

/* ---- divided ---------------------------------------------------------------------------------------------- */

int ranks_n_drafts(const Ranks *r) {
    int n = 0;
    for (int i = 0; i < RANKS_MAX_DRAFTS; i++) n += r->drafts[i] != NULL;
    return n;
}

static int open_divided(Weights **out, const Weights *target, const Model *m, fr_error *err) {
    Ranks *r = target->options.ranks;
    const uint64_t mark = gguf_weights_mark(m->gguf);
    const char *path = gguf_path(m->gguf);
    int number = 1;
    *out = NULL;
    while (number < RANKS_MAX_DRAFTS && r->drafts[number]) number++;
    if (number == RANKS_MAX_DRAFTS)
        return error_set(err, FR_ERR_MEMORY, "ranks can divide %d drafters", RANKS_MAX_DRAFTS - 1);
    ranks_put(r, &mark, sizeof mark);
    ranks_put(r, path, strlen(path) + 1);
    if (model_is_of_layers(m, target->model)) ranks_put_layers(r, m, target->model);
    ranks_send(r, (Call){.kind = CALL_OPEN_DRAFT, .context = -1, .numbers = {number}});
    int opened = open_here(out, target, m, r, err), status = ranks_agree(r, opened, err);
    if (status) {
        if (!opened) backend_cpu.weights_close(*out);
        *out = NULL;
        return status;
    }
    r->drafts[number] = *out;
    (*out)->backend = ranks_backend();
    (*out)->number = number;
    (*out)->exchange_s = target->exchange_s;
    (*out)->exchange_bytes_per_s = target->exchange_bytes_per_s;
    return FR_OK;
}

void ranks_draft_close(const Weights *w) {
    Ranks *r = w->options.ranks;
    ranks_send(r, (Call){.kind = CALL_CLOSE_DRAFT, .context = -1, .numbers = {w->number}});
    r->drafts[w->number] = NULL;
}

/* ---- on the other ranks ----------------------------------------------------------------------------------- */

/* Makes the model of the description, n bytes. */
static int take_layers(DraftPart *p, const char *description, size_t n, const Model *target, fr_error *err) {
    p->layers = mem_alloc(n);
    if (!p->layers) return error_memory(err, "the layers of a drafter", n);
    memcpy(p->layers, description, n);
    p->model = ranks_take_layers(p->layers, p->gguf, target);
    return FR_OK;
}

int draft_part_open(DraftPart *p, Ranks *r, const Call *call, fr_error *err) {
    uint64_t mark;
    const char *path = r->body.data + sizeof mark, *description = path + strlen(path) + 1;
    memcpy(&mark, r->body.data, sizeof mark);
    int status = gguf_open(&p->gguf, path, err);
    if (!status && gguf_weights_mark(p->gguf) != mark) status = rank_refuse("draft", err);
    if (status) return status;
    if (description == r->body.data + call->bytes) status = model_open(&p->model, p->gguf, err);
    else
        status = take_layers(p, description, (size_t)(r->body.data + call->bytes - description), r->weights->model,
                             err);
    return status ? status : open_here(&p->weights, r->weights, p->model, r, err);
}

void draft_part_close(DraftPart *p) {
    weights_close(p->weights);
    if (!p->layers) model_close(p->model);
    mem_free(p->layers);
    gguf_close(p->gguf);
    *p = (DraftPart){.gguf = NULL};
}

/* ---- the choice ------------------------------------------------------------------------------------------- */

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Returns the median time of forwards of the rows [n_rows] of a sequence. */
static int time_rows(Executor *e, const Row *rows, int32_t n_rows, double *seconds, fr_error *err) {
    double samples[MAX_ROUNDS];
    int n = 0;
    for (double end_s = clock_s() + BUDGET_S; n < MIN_ROUNDS || (n < MAX_ROUNDS && clock_s() < end_s); n++) {
        int status = executor_reserve(e, rows[0].sequence, n_rows, err);
        double start_s = clock_s();
        if (!status) status = executor_forward(e, rows, n_rows, err);
        if (status) return status;
        samples[n] = clock_s() - start_s;
        executor_commit(e, rows[0].sequence, NULL, 0);
    }
    qsort(samples, (size_t)n, sizeof *samples, compare_doubles);
    *seconds = samples[n / 2];
    return FR_OK;
}

/* Opens a sequence, and times a chain of rows in it, all of whose logits are read. Rows of the layers of a drafter
 * bring their inputs along. */
static int time_chain(Executor *e, const Model *m, bool has_inputs, int32_t n_rows, double *seconds, fr_error *err) {
    Row *rows = mem_calloc((size_t)n_rows, sizeof *rows);
    float *input = mem_calloc((size_t)model_input_width(m), sizeof *input);
    int32_t sequence;
    int status = rows && input ? FR_OK : error_memory(err, "a measurement", (size_t)n_rows * sizeof *rows);
    if (!status) status = executor_sequence_open(e, &sequence, err);
    for (int32_t i = 0; i < n_rows && !status; i++)
        rows[i] = (Row){.token = (i * 37 + 11) % m->hparams.n_vocab,
                        .sequence = sequence,
                        .parent = i - 1,
                        .input = has_inputs ? input : NULL,
                        .want_logits = true};
    if (!status) status = time_rows(e, rows, n_rows, seconds, err);
    mem_free(rows);
    mem_free(input);
    return status;
}

/* Measures a forward of n_rows rows, after which the drafter reads their logits. */
static int time_forward(const Weights *w, Device *d, const Weights *target, int32_t n_rows, double *seconds,
                        fr_error *err) {
    const ExecutorOptions options = {.kv_type = KV_F16,
                                     .page_size = PAGE_SIZE,
                                     .n_ctx = N_CTX + n_rows,
                                     .max_sequences = 1,
                                     .max_rows = n_rows};
    Executor *e;
    int status = executor_open(&e, d, w, &options, err);
    if (status) return status;
    bool are_layers = model_is_of_layers(w->model, target->model);
    status = time_chain(e, w->model, are_layers, n_rows, seconds, err);
    executor_close(e);
    if (w->n_ranks && !are_layers) *seconds += WAKE_S;
    return status;
}

/* Returns the least time of a divided forward: that of its exchanges, and a rank's share of the time of the whole.
 * Layers of a drafter that are whole wake the other ranks, too, for the logits. */
static double least_s(const Weights *target, const Model *m, double whole_s) {
    int32_t n_exchanges = 0, n_layer = m->takes_turns ? 1 : m->hparams.n_layer;
    for (int32_t i = 0; i < n_layer; i++) n_exchanges += m->layers[i].ffn == FFN_NONE ? 2 : 4;
    return n_exchanges * target->exchange_s + whole_s / target->n_ranks +
           (model_is_of_layers(m, target->model) ? 0 : WAKE_S);
}

/* Returns whether the weights that are open, which are whole, are to stay so without another measurement. */
static int try_whole(bool *stays, const Weights *whole, Device *d, const Weights *target, int32_t n_rows,
                     fr_error *err) {
    Ranks *r = target->options.ranks;
    bool are_layers = model_is_of_layers(whole->model, target->model);
    *stays = r->draft_place == DRAFTS_WHOLE || (are_layers && !ranks_can_send(whole->model, target->model));
    if (*stays || r->draft_place == DRAFTS_DIVIDED) return FR_OK;
    int status = time_forward(whole, d, target, n_rows, &r->draft_whole_s, err);
    r->draft_divided_s = least_s(target, whole->model, r->draft_whole_s);
    *stays = r->draft_divided_s >= r->draft_whole_s;
    return status;
}

/* Returns whether the divided weights, which are closed otherwise, are to be used. */
static bool try_divided(Weights **out, Device *d, const Weights *target, const Model *m, int32_t n_rows) {
    Ranks *r = target->options.ranks;
    r->draft_divided_s = 0;
    if (open_divided(out, target, m, NULL)) return false;
    r->has_timed_divided = time_forward(*out, d, target, n_rows, &r->draft_divided_s, NULL) == FR_OK;
    bool is_faster = r->has_timed_divided && r->draft_divided_s < r->draft_whole_s;
    if (is_faster || (r->has_timed_divided && r->draft_place == DRAFTS_DIVIDED)) return true;
    weights_close(*out);
    *out = NULL;
    return false;
}

int ranks_draft_weights(Weights **out, Device *d, const Weights *target, const Model *m, int32_t n_rows,
                        fr_error *err) {
    Ranks *r = target->options.ranks;
    bool stays;
    r->draft_whole_s = r->draft_divided_s = 0;
    r->has_timed_divided = false;
    if (m->kv_model) {
        fr_assert(ranks_can_send(m, target->model)); /* the drafter has made them so */
        return open_divided(out, target, m, err);
    }
    int status = open_whole(out, target, m, err);
    if (status) return status;
    if ((status = try_whole(&stays, *out, d, target, n_rows, err)) || stays) {
        if (status) weights_close(*out);
        return status;
    }
    weights_close(*out);
    if (try_divided(out, d, target, m, n_rows)) return FR_OK;
    status = comm_check(target->options.ranks->comm, err);
    return status ? status : open_whole(out, target, m, err);
}

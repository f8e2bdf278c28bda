#include "spec/drafters/learned/learned.h"

#include "base/mem.h"
#include "spec/drafter/feedback.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- opening ------------------------------------------------------------------------------------ */

int learned_open(LearnedDrafter *d, const DraftSpec *spec, const DrafterClass *class, const DrafterEnv *env, fr_error *err) {
    if (!env->target_model)
        return error_set(err, FR_ERR_UNSUPPORTED, "%s: drafts from the target's hidden states, and no target runs here; use "
                         "run or compare", class->name);
    d->target = env->target_model;
    d->n_embd = d->target->hparams.n_embd;
    d->n_vocab = d->target->hparams.n_vocab;
    d->max_sequences = env->max_sequences;
    int status = drafter_file_open(&d->file, draft_spec_get(spec, class, "file"), class->name, d->target, err);
    if (status) return status;
    d->sequences = mem_calloc((size_t)d->max_sequences, sizeof *d->sequences);
    if (!d->sequences) return error_memory(err, class->name, (size_t)d->max_sequences * sizeof *d->sequences);
    for (int32_t i = 0; i < d->max_sequences; i++) {
        d->sequences[i].temperature = 1;
        if (!(d->sequences[i].hidden = mem_calloc((size_t)d->n_embd, sizeof(float))))
            return error_memory(err, "a hidden state", (size_t)d->n_embd * sizeof(float));
    }
    return FR_OK;
}

int learned_open_products(LearnedDrafter *d, const DrafterEnv *env, int64_t max_in, int64_t max_rows, fr_error *err) {
    if (max_rows > INT32_MAX)
        return error_set(err, FR_ERR_MEMORY, "a drafter of %lld rows at once; ask for a narrower one", (long long)max_rows);
    int status = multiplier_open(&d->multiplier, d->target->kernels, env->n_threads > 0 ? env->n_threads : 1, max_in,
                             (int32_t)max_rows, err);
    if (status) return status;
    d->max_in = max_in;
    d->ones = mem_calloc((size_t)max_in, sizeof *d->ones);
    if (!d->ones) return error_memory(err, "a drafter", (size_t)max_in * sizeof *d->ones);
    for (int64_t i = 0; i < max_in; i++) d->ones[i] = 1;
    return FR_OK;
}

int learned_tree_option(const DraftSpec *spec, const DrafterClass *class, bool *is_static, fr_error *err) {
    const char *tree = draft_spec_get(spec, class, "tree");
    *is_static = strcmp(tree, "static") == 0;
    if (*is_static || strcmp(tree, "dynamic") == 0) return FR_OK;
    return error_set(err, FR_ERR_ARGUMENT, "%s: 'tree=%.40s' must be dynamic or static", class->name, tree);
}

void learned_release(LearnedDrafter *d) {
    for (int32_t i = 0; d->sequences && i < d->max_sequences; i++) mem_free(d->sequences[i].hidden);
    mem_free(d->sequences);
    mem_free(d->ones);
    multiplier_close(d->multiplier);
    drafter_file_close(&d->file);
}

/* ---- layers ------------------------------------------------------------------------------------- */

int learned_linear_read(LearnedDrafter *d, const char *name, int64_t n_in, int64_t n_out, bool has_bias, LearnedLinear *out,
                        fr_error *err) {
    char tensor[96];
    snprintf(tensor, sizeof tensor, "%s.weight", name);
    int status = drafter_file_matrix(&d->file, tensor, n_in, n_out, &out->weight, err);
    if (status || !has_bias) return status;
    snprintf(tensor, sizeof tensor, "%s.bias", name);
    return drafter_file_vector(&d->file, tensor, n_out, &out->bias, err);
}

void learned_linear_free(LearnedLinear *l) {
    packed_free(&l->weight);
    mem_free(l->bias);
}

void learned_linear_run(LearnedDrafter *d, const LearnedLinear *l, const float *x, int32_t n_rows, float *y) {
    multiplier_run(d->multiplier, &l->weight, x, n_rows, y);
    int64_t n = l->weight.n_out;
    for (int32_t i = 0; i < n_rows && l->bias; i++) d->target->kernels->add(y + i * n, l->bias, n);
}

void learned_silu(const LearnedDrafter *d, float *x, int64_t n) {
    fr_assert(n <= d->max_in);
    d->target->kernels->silu_mul(x, d->ones, n);
}

void learned_add_silu(LearnedDrafter *d, const LearnedLinear *l, const float *in, int32_t n_rows, float *scratch, float *x) {
    int64_t n = l->weight.n_out;
    learned_linear_run(d, l, in, n_rows, scratch);
    for (int32_t i = 0; i < n_rows; i++) {
        learned_silu(d, scratch + i * n, n);
        d->target->kernels->add(x + i * n, scratch + i * n, n);
    }
}

void learned_residual_block(LearnedDrafter *d, const LearnedLinear *l, float *x, int32_t n_rows, float *scratch) {
    learned_add_silu(d, l, x, n_rows, scratch, x);
}

/* x *= by; in blocks of a known length, which compilers turn into vector code. */
static void scale(float *x, int32_t n, float by) {
    enum { BLOCK = 16 };
    int32_t i = 0;
    for (; i + BLOCK <= n; i += BLOCK)
        for (int32_t k = 0; k < BLOCK; k++) x[i + k] *= by;
    for (; i < n; i++) x[i] *= by;
}

int32_t learned_top(const LearnedDrafter *d, int32_t sequence, float *logits, int32_t k, int32_t *tokens, double *log_p) {
    float temperature = d->sequences[sequence].temperature;
    float sharpen = 1 / (temperature > LEARNED_SHARPEST ? temperature : LEARNED_SHARPEST);
    scale(logits, d->n_vocab, sharpen);
    d->target->kernels->softmax(logits, d->n_vocab);
    int32_t n = logits_top_k(logits, d->n_vocab, k, tokens); /* an infinite logit made NaN of all, and NaN is in no top */
    for (int32_t i = 0; i < n; i++) log_p[i] = log((double)logits[tokens[i]]);
    return n;
}

int32_t learned_best_nodes(const double *log_p, int32_t first, int32_t end, int32_t k, int32_t *nodes) {
    bool taken[TREE_MAX_NODES] = {false};
    int32_t n = 0;
    for (; n < k && n < end - first; n++) {
        int32_t best = -1;
        for (int32_t i = first; i < end; i++)
            if (!taken[i] && (best < 0 || log_p[i] > log_p[best])) best = i;
        taken[nodes[n] = best] = true;
    }
    return n;
}

/* ---- sequences ---------------------------------------------------------------------------------- */

static LearnedSequence *sequence_of(const Drafter *drafter, int32_t sequence) {
    const LearnedDrafter *d = (const LearnedDrafter *)drafter;
    fr_assert(sequence >= 0 && sequence < d->max_sequences);
    return &d->sequences[sequence];
}

const float *learned_hidden(const LearnedDrafter *d, int32_t sequence) {
    const LearnedSequence *s = sequence_of(&d->base, sequence);
    return s->n_hidden > 0 && s->n_hidden == s->n_tokens - 1 ? s->hidden : NULL;
}

void learned_set_sampling(Drafter *drafter, int32_t sequence, const SamplingOptions *sampling, uint64_t position) {
    (void)position;
    sequence_of(drafter, sequence)->temperature = sampling->temperature;
}

int learned_begin(Drafter *drafter, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err) {
    const LearnedDrafter *d = (const LearnedDrafter *)drafter;
    LearnedSequence *s = sequence_of(drafter, sequence);
    s->n_tokens = n;
    s->n_hidden = 0;
    return feedback_check_tokens(tokens, n, d->n_vocab, err);
}

/* The target read n more tokens of the sequence, from place `first` on; `last` is the hidden state of the last. */
static int take_hidden(Drafter *drafter, int32_t sequence, int64_t first, int32_t n, const float *last, fr_error *err) {
    LearnedSequence *s = sequence_of(drafter, sequence);
    if (first != s->n_hidden)
        return error_set(err, FR_ERR_INTERNAL, "hidden states from token %lld on where those from %lld on are next",
                         (long long)first, (long long)s->n_hidden);
    s->n_hidden += n;
    memcpy(s->hidden, last, (size_t)((const LearnedDrafter *)drafter)->n_embd * sizeof *last);
    return FR_OK;
}

int learned_observe_prompt(Drafter *drafter, int32_t sequence, int64_t first, const float *const *hidden, int32_t n,
                           fr_error *err) {
    return take_hidden(drafter, sequence, first, n, hidden[n - 1], err);
}

int learned_observe_tree(Drafter *drafter, int32_t sequence, const VerifiedTree *v, fr_error *err) {
    int32_t depth = v->verdict->n_path;
    return take_hidden(drafter, sequence, sequence_of(drafter, sequence)->n_tokens - 1, depth + 1,
                       v->hidden[feedback_node(v, depth)], err);
}

int learned_observe(Drafter *drafter, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err) {
    const LearnedDrafter *d = (const LearnedDrafter *)drafter;
    sequence_of(drafter, sequence)->n_tokens += n;
    return feedback_check_tokens(tokens, n, d->n_vocab, err);
}

void learned_end(Drafter *drafter, int32_t sequence) {
    LearnedSequence *s = sequence_of(drafter, sequence);
    s->n_tokens = s->n_hidden = 0;
}

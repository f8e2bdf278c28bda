/* token_scores.c - log-probabilities of the tokens that a step decided.
 *
 * They are those of softmax(logits), before logit_bias, penalties and filters, so that a client sees what the model
 * thinks, whatever it made of it. (OpenAI documents that a bias is added "prior to sampling", and leaves open what it
 * does to log-probabilities.) The row of logits that decided a token has the same bits with and without drafts, and so
 * have these numbers. Rows are read while they are in the cache, by the thread that verifies the request; each takes
 * one pass for the greatest logit, one for the sum of exponentials (RowKernels.exp_sum), one for the top ones and one
 * for the hash.
 *
 * Proof: tests/lossless/test_logprobs.c, against softmax in double, with drafters, rules, threads and batches. */
#include "engine/token_scores.h"

#include "base/hash.h"
#include "engine/api_check.h"
#include "engine/engine.h"
#include "engine/request.h"
#include "draft/feedback.h"

#include <math.h>
#include <stdlib.h>

int check_scores(const fr_request_options *o, int32_t n_vocab, fr_error *err) {
    int status = check_array(o->logit_bias, o->n_logit_bias, "fr_request_open", "logit_bias", err);
    if (status) return status;
    for (int i = 0; i < o->n_logit_bias; i++)
        if (o->logit_bias[i].token < 0 || o->logit_bias[i].token >= n_vocab)
            return error_set(err, FR_ERR_ARGUMENT,
                             "logit bias %d is of token %d, which is outside the vocabulary of %d tokens", i,
                             o->logit_bias[i].token, n_vocab);
    if (o->n_top_logprobs >= 0 && o->n_top_logprobs <= FR_MAX_TOP_LOGPROBS) return FR_OK;
    return error_set(err, FR_ERR_ARGUMENT, "n_top_logprobs is %d; it must be from 0 to %d", o->n_top_logprobs,
                     FR_MAX_TOP_LOGPROBS);
}

static int copy_bias(fr_request *r, const fr_request_options *o, fr_error *err) {
    if (o->n_logit_bias == 0) return FR_OK;
    r->bias = calloc((size_t)o->n_logit_bias, sizeof *r->bias);
    if (!r->bias) return error_memory(err, "the biases of a request", (size_t)o->n_logit_bias * sizeof *r->bias);
    for (int i = 0; i < o->n_logit_bias; i++) r->bias[i] = (LogitBias){o->logit_bias[i].token, o->logit_bias[i].bias};
    r->sampling.bias = r->bias;
    r->sampling.n_bias = o->n_logit_bias;
    return sampling_check(&r->sampling, err);
}

int open_scores(fr_request *r, const fr_request_options *o, fr_error *err) {
    _Static_assert((int)FR_MAX_TOP_LOGPROBS <= (int)TOP_K_MAX, "logits_top_k finds so many");
    int32_t n_vocab = r->engine->model->model->hparams.n_vocab;
    int status = copy_bias(r, o, err);
    if (status) return status;
    if (r->options.n_top_logprobs > n_vocab) r->options.n_top_logprobs = n_vocab;
    if (r->options.n_top_logprobs == 0) return FR_OK;
    size_t n = ((size_t)r->tree_budget + 1) * (size_t)r->options.n_top_logprobs;
    r->top_logprobs = calloc(n, sizeof *r->top_logprobs);
    return r->top_logprobs ? FR_OK : error_memory(err, "log-probabilities", n * sizeof *r->top_logprobs);
}

/* All logits are finite, so that there are as many as wanted. */
static void find_top(const float *logits, int32_t n_vocab, const LogSoftmax *l, int32_t n, fr_top_logprob *out) {
    int32_t ids[TOP_K_MAX];
    n = logits_top_k(logits, n_vocab, n, ids);
    for (int32_t i = 0; i < n; i++) out[i] = (fr_top_logprob){ids[i], log_softmax_of(l, logits[ids[i]])};
}

void score_tokens(fr_request *r, const Sampler *sampler) {
    const VerifyResult *v = &r->verdict.result;
    const float *const *rows = r->engine->step.row_logits + r->first_row;
    int32_t n_vocab = r->engine->model->model->hparams.n_vocab, n_top = r->options.n_top_logprobs;
    uint64_t hash = r->stats.logits_hash;
    for (int32_t i = 0; i <= v->n_path; i++) {
        const float *logits = rows[i ? v->path[i - 1] : 0];
        int32_t token = i < v->n_path ? r->tree.nodes[v->path[i]].token : v->next_token;
        hash = hash64(logits, (size_t)n_vocab * sizeof *logits, hash);
        r->verdict.scores[i] = (TokenScore){.logprob = NAN, .logits_hash = hash};
        if (!r->options.want_logprobs && n_top == 0) continue;
        LogSoftmax l = sampler_log_softmax(sampler, logits);
        r->verdict.scores[i].logprob = log_softmax_of(&l, logits[token]);
        if (n_top > 0) find_top(logits, n_vocab, &l, n_top, r->top_logprobs + (int64_t)i * n_top);
    }
}

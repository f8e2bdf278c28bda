/* results.c - what a caller learns about a request: its text, its statistics, its log-probabilities and its embedding.
 *
 * These functions of forerun.h may be called at any time, also within a callback. If the request is NULL, they return
 * what they would return for a request that has ended without text. */
#include "base/hash.h"
#include "base/system.h"
#include "draft/feedback.h"
#include "engine/engine.h"
#include "engine/request.h"

#include <math.h>
#include <stdlib.h>

static const fr_error no_request = {FR_ERR_ARGUMENT, "the request is NULL, but must be given"};

fr_finish fr_request_finish_reason(const fr_request *r) { return r ? r->finish : FR_FINISH_ERROR; }

const char *fr_finish_name(fr_finish finish) {
    static const char *const names[] = {"running", "eos", "stop", "length", "context", "cancelled", "error"};
    return (unsigned)finish < sizeof names / sizeof *names ? names[finish] : "unknown";
}

const fr_error *fr_request_error(const fr_request *r) { return r ? &r->error : &no_request; }

const int32_t *fr_request_tokens(const fr_request *r, int64_t *n) {
    if (n) *n = r ? r->stats.n_generated : 0;
    return r ? r->context + r->stats.n_prompt : NULL;
}

const char *fr_request_text(const fr_request *r, size_t *n_bytes) {
    if (n_bytes) *n_bytes = r ? r->text.n : 0;
    return r ? r->text.data : "";
}

/* Completes fr_stats.plain_s, which contains only forwards yet. The time outside forwards and drafting counts once,
 * although plain decoding has more steps: so plain decoding never looks slower than it is. */
static double plain_s(const fr_stats *s) {
    double rest_s = s->decode_s - s->forward_s - s->draft_s;
    if (s->drafted == 0 || s->plain_s <= 0) return 0;
    return s->plain_s + (rest_s > 0 ? rest_s : 0);
}

int fr_request_get_stats(const fr_request *r, fr_stats *out) {
    fr_stats s = {0};
    if (!r) {
        (void)fill_result(out, &s, sizeof s);
        return FR_ERR_ARGUMENT;
    }
    FpEnv caller_env = fp_env_enter();
    s = r->stats;
    if (r->is_queued) s.queue_s = clock_s() - r->opened_s;
    bool decodes = r->decode_started_s > 0, runs = !r->finish && r->sequence >= 0;
    if (!r->finish && decodes) s.decode_s = clock_s() - r->decode_started_s;
    if (runs && !decodes) s.prefill_s = clock_s() - r->started_s;
    s.n_prompt_read = decodes ? s.n_prompt : runs ? executor_sequence_length(r->engine->executor, r->sequence) : 0;
    s.acceptance_length = s.n_steps ? (double)s.n_generated / (double)s.n_steps : 0;
    s.tokens_per_s = s.decode_s > 0 ? (double)s.n_generated / s.decode_s : 0;
    s.plain_s = plain_s(&s);
    fp_env_leave(&caller_env);
    return fill_result(out, &s, sizeof s);
}

int fr_request_get_draft_stats(const fr_request *r, fr_draft_stats *out) {
    static const fr_draft_stats none;
    int status = fill_result(out, r ? &r->draft_stats : &none, sizeof none);
    return r ? status : FR_ERR_ARGUMENT;
}

const char *fr_request_draft_error(const fr_request *r) { return r ? r->draft_error : ""; }

int fr_request_tree(const fr_request *r, fr_tree_node *nodes, int max_nodes) {
    if (!r || r->stats.n_steps == 0 || r->is_prefill_step) return 0;
    for (int32_t i = 0; nodes && i < r->tree.n && i < max_nodes; i++) {
        const TreeNode *node = &r->tree.nodes[i];
        nodes[i] = (fr_tree_node){.token = node->token,
                                  .parent = node->parent,
                                  .source = node->source,
                                  .p_accept = node->p_accept};
    }
    return r->tree.n;
}

const char *fr_request_draft(const fr_request *r, int source) {
    return r && source >= 0 && source < r->options.n_drafts ? r->drafts[source].shared->spec : NULL;
}

/* ---- log-probabilities ----------------------------------------------------------------------------
 *
 * Log-probabilities are those of softmax(logits), before logit_bias, penalties and filters, so that a client sees the
 * model's own distribution. (OpenAI documents that a bias is added "prior to sampling", and leaves open what it does to
 * log-probabilities.) The row of logits that decided a token has the same bits with and without drafts, and so do these
 * numbers. The thread that verifies the request reads the rows, while they are in the cache: one pass for the greatest
 * logit, one for the sum of exponentials (RowKernels.exp_sum), one for the most probable tokens and one for the hash.
 *
 * Proof: tests/lossless/test_logprobs.c, against softmax in double, with drafters, rules, threads and batches. */

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

/* Copies the biases of the options. Tokens that the model's file suppresses are banned by biases, too. */
static int copy_bias(fr_request *r, const fr_request_options *o, fr_error *err) {
    int32_t n_suppressed;
    const int32_t *suppressed = tokenizer_suppressed(r->engine->model->tokenizer, &n_suppressed);
    size_t n = (size_t)n_suppressed + (size_t)o->n_logit_bias;
    if (n == 0) return FR_OK;
    r->bias = calloc(n, sizeof *r->bias);
    if (!r->bias) return error_memory(err, "the biases of a request", n * sizeof *r->bias);
    LogitBias *bias = r->bias;
    for (int32_t i = 0; i < n_suppressed; i++) *bias++ = (LogitBias){suppressed[i], -INFINITY};
    for (int i = 0; i < o->n_logit_bias; i++) *bias++ = (LogitBias){o->logit_bias[i].token, o->logit_bias[i].bias};
    r->sampling.bias = r->bias;
    r->sampling.n_bias = (int32_t)n;
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

/* Finds the n most probable tokens. All logits are finite, so there are n of them. */
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
        if (!r->options.no_logits_hash) hash = hash64(logits, (size_t)n_vocab * sizeof *logits, hash);
        r->verdict.scores[i] = (TokenScore){.logprob = NAN, .logits_hash = hash};
        if (!r->options.want_logprobs && n_top == 0) continue;
        LogSoftmax l = sampler_log_softmax(sampler, logits);
        r->verdict.scores[i].logprob = log_softmax_of(&l, logits[token]);
        if (n_top > 0) find_top(logits, n_vocab, &l, n_top, r->top_logprobs + (int64_t)i * n_top);
    }
}

/* ---- embeddings ------------------------------------------------------------------------------------
 *
 * An embedding is the mean of the final hidden states over a prompt.
 *
 * The text models that forerun runs were not trained to compare texts, but the mean of the hidden states before their
 * output matrix distinguishes topics, and other servers return it for such models. The states are those after the final
 * norm. They are summed in the order of the prompt and in double precision, so an embedding depends only on its prompt,
 * as every row does. Hidden states are not kept, so a request with an embedding reads its whole prompt itself
 * (prefix_cache.c). The last token of a prompt is the root of the first tree; its state comes from the forward of that
 * tree. */

int request_embedding_begin(fr_request *r, const fr_request_options *o, fr_error *err) {
    size_t n = (size_t)r->engine->model->model->hparams.n_embd;
    if (!o->want_embedding) return FR_OK;
    r->embedding.sum = calloc(n, sizeof *r->embedding.sum);
    return r->embedding.sum ? FR_OK : error_memory(err, "an embedding", n * sizeof *r->embedding.sum);
}

void request_embedding_end(fr_request *r) {
    free(r->embedding.sum);
    r->embedding.sum = NULL;
}

void request_embedding_add(fr_request *r, const float *hidden) {
    RequestEmbedding *m = &r->embedding;
    if (!m->sum || m->n == r->stats.n_prompt) return;
    for (int32_t i = 0; i < r->engine->model->model->hparams.n_embd; i++) m->sum[i] += (double)hidden[i];
    m->n++;
}

int fr_request_embedding(const fr_request *r, float *out, fr_error *err) {
    int status = check_given(r, "fr_request_embedding", "request", err);
    if (!status) status = check_given(out, "fr_request_embedding", "out", err);
    if (status) return status;
    if (!r->embedding.sum) return error_set(err, FR_ERR_ARGUMENT, "the request was opened without want_embedding");
    if (r->embedding.n < r->stats.n_prompt)
        return error_set(err, FR_ERR_ARGUMENT, "the prompt has not been read yet: %lld of %lld tokens",
                         (long long)r->embedding.n, (long long)r->stats.n_prompt);
    int32_t n = r->engine->model->model->hparams.n_embd;
    double squares = 0;
    for (int32_t i = 0; i < n; i++) squares += r->embedding.sum[i] * r->embedding.sum[i];
    double length = squares > 0 ? sqrt(squares) : 1;
    for (int32_t i = 0; i < n; i++) out[i] = (float)(r->embedding.sum[i] / length);
    return FR_OK;
}

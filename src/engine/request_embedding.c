/* request_embedding.c - the mean of the final hidden states over a prompt.
 *
 * The text models that forerun runs were not trained to compare texts, but the mean of what they hand to their output matrix
 * tells topics apart, and is what other servers give for them. The states are those after the final norm, in the order of
 * the prompt and summed in double precision: a mean depends on its prompt and on nothing else, as every row does. Hidden
 * states are kept nowhere, so such a request reads all of its prompt itself (prefix_cache.c). The last token of a prompt is
 * the root of the first tree; its state comes from that forward. */
#include "engine/request_embedding.h"

#include "engine/api_check.h"
#include "engine/engine.h"
#include "engine/request.h"

#include <math.h>
#include <stdlib.h>

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

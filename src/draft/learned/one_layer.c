/* one_layer.c - reads a drafter's own transformer layer from its file, and opens it as a model.
 *
 * The layer is a model with one layer between the target's embedding and an LM head, so that paging, tree attention,
 * threads and quantised weights work as they do for the target. Its keys and values are F16. */
#include "base/mem.h"
#include "draft/learned/layer_entries.h"
#include "draft/learned/learned_files.h"

enum { PAGE_SIZE = 16 };

static int read_vector(LearnedDrafter *d, const char *method, const char *what, float **out, fr_error *err) {
    return drafter_file_vector(&d->file, learned_name(method, what).text, d->n_embd, out, err);
}

/* Reads layer i, whose tensors have names that begin with `method`. *widest_ff grows to its feed-forward width. */
static int read_layer(OneLayer *l, LearnedDrafter *d, int32_t i_layer, const char *method, bool has_attn_norm,
                      int32_t *widest_ff, fr_error *err) {
    const Hparams *h = &d->target->hparams;
    int64_t embd = h->n_embd, q_dim = hparams_q_dim(h), kv_dim = hparams_kv_dim(h);
    LayerSpec *spec = &l->specs[i_layer];
    float **attn_norm = &l->norms[2 * i_layer], **ffn_norm = attn_norm + 1;
    int32_t n_ff = 0;
    int status = drafter_file_int(&d->file, learned_name(method, LAYER_KEY_FEED_FORWARD).text, 1, 1 << 20, &n_ff, err);
    if (n_ff > *widest_ff) *widest_ff = n_ff;
    if (!status && has_attn_norm) status = read_vector(d, method, LAYER_ATTN_NORM, attn_norm, err);
    if (!status) status = read_vector(d, method, LAYER_FFN_NORM, ffn_norm, err);
    const struct {
        const char *name;
        int64_t n_in, n_out;
        const GgufTensor **out;
    } matrices[] = {{LAYER_ATTN_Q, embd, q_dim, &spec->matrices[MATRIX_Q]},
                    {LAYER_ATTN_K, embd, kv_dim, &spec->matrices[MATRIX_K]},
                    {LAYER_ATTN_V, embd, kv_dim, &spec->matrices[MATRIX_V]},
                    {LAYER_ATTN_OUTPUT, q_dim, embd, &spec->matrices[MATRIX_O]},
                    {LAYER_FFN_GATE, embd, n_ff, &spec->matrices[MATRIX_GATE]},
                    {LAYER_FFN_UP, embd, n_ff, &spec->matrices[MATRIX_UP]},
                    {LAYER_FFN_DOWN, n_ff, embd, &spec->matrices[MATRIX_DOWN]}};
    for (size_t i = 0; i < sizeof matrices / sizeof *matrices && !status; i++)
        status = drafter_file_matrix(&d->file, learned_name(method, matrices[i].name).text, matrices[i].n_in,
                                     matrices[i].n_out, matrices[i].out, err);
    spec->attn_norm = *attn_norm;
    spec->ffn_norm = *ffn_norm;
    return status;
}

int one_layer_open(OneLayer *l, LearnedDrafter *d, const OneLayerParts *parts, fr_error *err) {
    int32_t n_ff = 0;
    if (d->target->hparams.latent.rank)
        return error_set(err, FR_ERR_UNSUPPORTED,
                         "%s: drafters with a layer of their own cannot draft for a model with latent attention (MLA), "
                         "whose cache has no keys and values of heads; use another method",
                         gguf_path(d->target->gguf));
    int status = read_layer(l, d, 0, parts->first, parts->has_attn_norm, &n_ff, err);
    if (!status && parts->second) status = read_layer(l, d, 1, parts->second, true, &n_ff, err);
    if (!status && parts->has_output_norm)
        status = read_vector(d, parts->first, LAYER_OUTPUT_NORM, &l->output_norm, err);
    if (status) return status;
    l->model = model_of_layers(d->target, l->specs, parts->second ? 2 : 1, n_ff);
    l->model.gguf = d->file.gguf;
    l->model.output_norm = l->output_norm;
    l->model.takes_turns = parts->second != NULL;
    if (parts->wants_logits && (status = head_tokens_set(d, &l->model, err))) return status;
    return learned_layers_open(d, &l->model, &l->weights, err);
}

int one_layer_open_executor(OneLayer *l, LearnedDrafter *d, int32_t n_ctx, int32_t n_more, int32_t max_rows,
                            int32_t max_logits, fr_error *err) {
    const ExecutorOptions options = {.kv_type = KV_F16,
                                     .page_size = PAGE_SIZE,
                                     .n_ctx = n_ctx + TREE_MAX_NODES + n_more,
                                     .max_sequences = d->max_sequences + d->env.n_cached,
                                     .n_pages = cached_kv_n_pages(&d->env, n_ctx + TREE_MAX_NODES + n_more, PAGE_SIZE),
                                     .max_rows = max_rows,
                                     .max_logits = max_logits};
    return executor_open(&l->executor, d->device, l->weights, &options, err);
}

void one_layer_close(OneLayer *l) {
    executor_close(l->executor);
    weights_close(l->weights);
    for (size_t i = 0; i < sizeof l->norms / sizeof *l->norms; i++) mem_free(l->norms[i]);
    mem_free(l->output_norm);
}

/* one_layer.c - opens a drafter's layer as a model with one layer, so that paging, tree attention, threads and
 * quantised weights work as they do for the target. */
#include "draft/learned/one_layer.h"

#include "base/mem.h"
#include "draft/cached_kv.h"

enum { PAGE_SIZE = 16 };

static int read_tensors(OneLayer *l, LearnedDrafter *d, const OneLayerNames *names, int32_t n_ff, fr_error *err) {
    const Hparams *h = &d->target->hparams;
    int64_t embd = h->n_embd, q_dim = hparams_q_dim(h), kv_dim = hparams_kv_dim(h);
    int status = FR_OK;
    if (names->attn_norm) status = drafter_file_vector(&d->file, names->attn_norm, embd, &l->attn_norm, err);
    if (!status) status = drafter_file_vector(&d->file, names->ffn_norm, embd, &l->ffn_norm, err);
    const struct {
        const char *name;
        int64_t n_in, n_out;
        const GgufTensor **out;
    } matrices[] = {{names->q, embd, q_dim, &l->spec.matrices[MATRIX_Q]},
                    {names->k, embd, kv_dim, &l->spec.matrices[MATRIX_K]},
                    {names->v, embd, kv_dim, &l->spec.matrices[MATRIX_V]},
                    {names->o, q_dim, embd, &l->spec.matrices[MATRIX_O]},
                    {names->gate, embd, n_ff, &l->spec.matrices[MATRIX_GATE]},
                    {names->up, embd, n_ff, &l->spec.matrices[MATRIX_UP]},
                    {names->down, n_ff, embd, &l->spec.matrices[MATRIX_DOWN]}};
    for (size_t i = 0; i < sizeof matrices / sizeof *matrices && !status; i++)
        status = drafter_file_matrix(&d->file, matrices[i].name, matrices[i].n_in, matrices[i].n_out, matrices[i].out,
                                     err);
    l->spec.attn_norm = l->attn_norm;
    l->spec.ffn_norm = l->ffn_norm;
    return status;
}

int one_layer_open(OneLayer *l, LearnedDrafter *d, const OneLayerNames *names, fr_error *err) {
    int32_t n_ff = 0;
    if (d->target->hparams.latent.rank)
        return error_set(err, FR_ERR_UNSUPPORTED,
                         "%s: drafters with a layer of their own cannot draft for a model with latent attention (MLA), "
                         "whose cache has no keys and values of heads; use another method",
                         gguf_path(d->target->gguf));
    int status = drafter_file_int(&d->file, names->key_feed_forward, 1, 1 << 20, &n_ff, err);
    if (!status) status = read_tensors(l, d, names, n_ff, err);
    if (status) return status;
    l->model = model_of_layers(d->target, &l->spec, 1, n_ff);
    return d->backend->submodel(&l->weights, d->weights, &l->model, err);
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
    mem_free(l->attn_norm);
    mem_free(l->ffn_norm);
}

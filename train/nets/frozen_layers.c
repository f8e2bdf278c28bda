/* frozen_layers.c - the layers of a frozen target as floats, for a drafter that is trained through them (mask_rows.c). */
#include "gguf/tensor_type.h"
#include "model/scales.h"
#include "train/nets/frozen.h"

/* Does mask_rows.c compute this layer? */
static bool is_plain(const LayerSpec *l) {
    return l->mixer == MIXER_ATTENTION && l->soft_cap == 0 && !l->q_norm && !l->k_norm && !l->sinks && !l->o_bias &&
           !l->post_attn_norm && !l->post_ffn_norm && !l->gates_output && l->attn_scale == 0 &&
           (l->residual_scale == 0 || l->residual_scale == 1) && l->activation == ACTIVATION_SILU &&
           l->ffn == FFN_DENSE && l->i_rope == 0;
}

static int load_matrix(FrozenTarget *f, const GgufTensor *t, const float **out, fr_error *err) {
    int64_t n = t->dims[0] * t->dims[1];
    float *values;
    int status = arena_take(&f->arena, (const ArenaItem[]){ARENA_ITEM(&values, n)}, 1, t->name, err);
    if (status) return status;
    blocks_dequantize(t->type, t->data, n, values);
    float scale = model_scale(f->model, t->data);
    for (int64_t i = 0; i < n; i++) values[i] *= scale;
    *out = values;
    return FR_OK;
}

static int load_layer(FrozenTarget *f, const LayerSpec *l, MaskLayer *out, fr_error *err) {
    *out = (MaskLayer){.attn_norm = l->attn_norm,
                       .q_bias = l->q_bias,
                       .k_bias = l->k_bias,
                       .v_bias = l->v_bias,
                       .ffn_norm = l->ffn_norm};
    const GgufTensor *const from[] = {l->q, l->k, l->v, l->o, l->gate, l->up, l->down};
    const float **const to[] = {&out->q, &out->k, &out->v, &out->o, &out->gate, &out->up, &out->down};
    int status = FR_OK;
    for (size_t i = 0; i < sizeof from / sizeof *from && !status; i++) status = load_matrix(f, from[i], to[i], err);
    return status;
}

int frozen_load_layers(FrozenTarget *f, MaskTarget *out, fr_error *err) {
    const Model *m = f->model;
    const Hparams *h = &m->hparams;
    for (int32_t i = 0; i < h->n_layer; i++)
        if (!is_plain(&m->layers[i]) || h->embedding_scale != 1)
            return error_set(err, FR_ERR_UNSUPPORTED,
                             "%s: masks can be trained for targets of the architectures llama and qwen2 only; train "
                             "another drafter, such as lyanna",
                             gguf_path(m->gguf));
    int status = arena_take(&f->arena, (const ArenaItem[]){ARENA_ITEM(&f->layers, h->n_layer)}, 1, "a target's layers",
                            err);
    for (int32_t i = 0; i < h->n_layer && !status; i++) status = load_layer(f, &m->layers[i], &f->layers[i], err);
    *out = (MaskTarget){.C = h->n_embd,
                        .n_ff = h->n_ff,
                        .n_head = h->n_head,
                        .n_head_kv = h->n_head_kv,
                        .head_dim = h->head_dim,
                        .n_layer = h->n_layer,
                        .rms_eps = h->rms_eps,
                        .rope = &m->ropes[0],
                        .layers = f->layers,
                        .output_norm = m->output_norm};
    return status;
}

/* model_layers.c - questions to the layers of a model: which of them have keys and values or a state, where a layer stands
 * among those of its kind; the matrix of one expert, the embedding of one token, and a model of other layers. */
#include "model/model.h"

#include "gguf/tensor_type.h"

bool layer_has_state(const LayerSpec *l) {
    return l->mixer == MIXER_DELTA_NET || l->mixer == MIXER_MAMBA2 || l->mixer == MIXER_SHORT_CONV;
}

int layer_state_products(const LayerSpec *l, StateProduct out[STATE_PRODUCTS_MAX]) {
    const DeltaNetSpec *d = &l->delta;
    const StateProduct all[] = {{d->qkv, STATE_INPUTS, 0},          {d->z, STATE_Z, 0},
                                {d->beta, STATE_GATES, 0},          {d->alpha, STATE_GATES, d->shape.n_value_heads},
                                {d->beta_alpha, STATE_GATES, 0},    {l->mamba.xbc, STATE_INPUTS, 0},
                                {l->mamba.z, STATE_Z, 0},           {l->mamba.dt, STATE_GATES, 0},
                                {l->short_conv.x, STATE_INPUTS, 0}, {l->short_conv.b, STATE_FACTOR, 0},
                                {l->short_conv.c, STATE_Z, 0}};
    int n = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].m) out[n++] = all[i];
    return n;
}

int32_t model_mixer_place(const Model *m, int32_t i) {
    int32_t n = 0;
    for (int32_t k = 0; k < i; k++) n += m->layers[k].mixer == m->layers[i].mixer;
    return n;
}

int32_t model_n_mixers(const Model *m, MixerKind kind) {
    int32_t n = 0;
    for (int32_t i = 0; i < m->hparams.n_layer; i++) n += m->layers[i].mixer == kind;
    return n;
}

int32_t model_n_states(const Model *m) {
    int32_t n = 0;
    for (int32_t i = 0; i < m->hparams.n_layer; i++) n += layer_has_state(&m->layers[i]);
    return n;
}

int32_t model_window(const Model *m) {
    int32_t widest = 0;
    for (int32_t i = 0; i < m->hparams.n_layer; i++)
        if (m->layers[i].mixer == MIXER_WINDOW && m->layers[i].window > widest) widest = m->layers[i].window;
    return widest;
}

int32_t model_n_attention(const Model *m) { return m->hparams.n_layer - model_n_states(m); }

GgufTensor expert_matrix(const GgufTensor *all, int64_t i) {
    GgufTensor out = *all;
    if (all->n_dims < 3) return out;
    out.n_dims = 2, out.dims[2] = 1, out.bytes = all->bytes / (size_t)all->dims[2];
    out.data = (const char *)all->data + (size_t)i * out.bytes;
    return out;
}

Model model_of_layers(const Model *target, const LayerSpec *layers, int32_t n_layer, int32_t n_ff) {
    Model m = *target;
    m.layers = layers;
    m.output_norm = NULL;
    m.memory = NULL;
    m.hparams.n_layer = n_layer;
    m.hparams.n_ff = n_ff;
    return m;
}

void embedding_row(const GgufTensor *embd, int32_t token, float *out) {
    size_t row_bytes = embd->bytes / (size_t)embd->dims[1];
    blocks_dequantize(embd->type, (const char *)embd->data + (size_t)token * row_bytes, embd->dims[0], out);
}

void model_embedding(const Model *m, int32_t token, float *out) { embedding_row(m->token_embd, token, out); }

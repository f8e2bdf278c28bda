/* tensor_table.c - the table of tensors, and their sizes in a model. */
#include "model/tensor_table.h"

#include <stddef.h>

#define MATRIX(slot) MATRIX_##slot, SIZE_MAX
#define FLOATS(field) LAYER_MATRICES, offsetof(LayerSpec, field)
#define ELSEWHERE LAYER_MATRICES, SIZE_MAX
#define X(id, name, n_in, n_out, place) [TENSOR_##id] = {name, SIZE_##n_in, SIZE_##n_out, place},
const TensorInfo tensor_table[TENSOR_COUNT] = {TENSORS_OF_MODEL(X) TENSORS_OF_LAYERS(X)};
#undef X

int64_t tensor_size(const Hparams *h, TensorSize size) {
    const LatentShape *l = &h->latent;
    const StateShape *s = &h->state;
    switch (size) {
    case SIZE_NONE: return 0;
    case SIZE_ONE: return 1;
    case SIZE_EMBD: return h->n_embd;
    case SIZE_TWO_EMBD: return 2 * (int64_t)h->n_embd;
    case SIZE_THREE_EMBD: return 3 * (int64_t)h->n_embd;
    case SIZE_VOCAB: return h->n_vocab;
    case SIZE_Q: return hparams_q_dim(h);
    case SIZE_KV: return hparams_kv_dim(h);
    case SIZE_QKV: return hparams_q_dim(h) + 2 * hparams_kv_dim(h);
    case SIZE_Q_AND_GATES: return 2 * hparams_q_dim(h);
    case SIZE_HEADS: return h->n_head;
    case SIZE_HEAD:
    case SIZE_CACHED: return h->head_dim;
    case SIZE_FF: return h->n_ff;
    case SIZE_GATE_UP: return 2 * (int64_t)h->n_ff;
    case SIZE_EXPERTS: return h->n_expert;
    case SIZE_EXPERT_FF: return h->n_ff_expert;
    case SIZE_EXPERT_GATE_UP: return 2 * (int64_t)h->n_ff_expert;
    case SIZE_SHARED_FF: return h->n_ff_shared;
    case SIZE_CONV: return s->n_conv;
    case SIZE_CHANNELS: return s->n_channels;
    case SIZE_VALUES: return s->n_values;
    case SIZE_STATE_HEADS: return s->n_heads;
    case SIZE_TWO_HEADS: return 2 * (int64_t)s->n_heads;
    case SIZE_DELTA_HEAD: return h->delta.dim;
    case SIZE_MAMBA_IN: return s->n_values + s->n_channels + s->n_heads;
    case SIZE_MAMBA_GROUPS: return h->mamba.n_groups;
    case SIZE_MAMBA_GROUP: return s->n_values / h->mamba.n_groups;
    case SIZE_Q_RANK: return l->q_rank;
    case SIZE_KV_RANK: return l->rank;
    case SIZE_LATENT_QUERIES: return latent_query_dim(h);
    case SIZE_LATENT_VALUES: return latent_values_dim(h);
    case SIZE_PLAIN: return l->plain_dim;
    case SIZE_VALUE: return l->value_dim;
    case SIZE_KV_B: return h->n_head * ((int64_t)l->plain_dim + l->value_dim);
    case SIZE_PLE: return h->n_ple;
    case SIZE_ALL_PLE: return (int64_t)h->n_layer * h->n_ple;
    }
    return 0;
}

StateShape delta_net_state(const DeltaNetShape *d, int32_t n_conv) {
    int64_t n_values = (int64_t)d->n_value_heads * d->dim;
    return (StateShape){.n_conv = n_conv,
                        .n_heads = d->n_value_heads,
                        .n_channels = n_values + 2 * (int64_t)d->n_key_heads * d->dim,
                        .n_gates = 2 * (int64_t)d->n_value_heads,
                        .n_values = n_values,
                        .head_dim = d->dim,
                        .head_floats = (int64_t)d->dim * d->dim};
}

StateShape mamba2_state(const Mamba2Shape *m, int32_t n_conv) {
    int64_t n_values = (int64_t)m->n_heads * m->dim;
    return (StateShape){.n_conv = n_conv,
                        .n_heads = m->n_heads,
                        .n_channels = n_values + 2 * (int64_t)m->n_groups * m->n_state,
                        .n_gates = m->n_heads,
                        .n_values = n_values,
                        .head_dim = m->dim,
                        .head_floats = (int64_t)m->dim * m->n_state};
}

/* Only the inputs of the convolution are kept. Here a head is a number of channels that one thread computes at a
 * time. */
StateShape short_conv_state(int32_t n_embd, int32_t n_conv) {
    enum { HEAD = 128 };
    return (StateShape){.n_conv = n_conv,
                        .n_heads = (n_embd + HEAD - 1) / HEAD,
                        .n_channels = n_embd,
                        .n_values = n_embd,
                        .head_dim = HEAD};
}

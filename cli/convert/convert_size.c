/* convert_size.c - the dimensions of tensors, by what they count. */
#include "cli/convert/convert_arch.h"

int64_t convert_size(const ConvertShape *s, ConvertSize size) {
    switch (size) {
    case SIZE_EMBD: return s->n_embd;
    case SIZE_TWO_EMBD: return 2 * s->n_embd;
    case SIZE_Q: return s->n_head * s->head_dim;
    case SIZE_KV: return s->n_head_kv * s->head_dim;
    case SIZE_QKV: return (s->n_head + 2 * s->n_head_kv) * s->head_dim;
    case SIZE_FF: return s->n_ff;
    case SIZE_GATE_UP: return 2 * s->n_ff;
    case SIZE_HEAD: return s->head_dim;
    case SIZE_VOCAB: return s->n_vocab;
    case SIZE_EXPERTS: return s->n_expert;
    case SIZE_EXPERT_FF: return s->n_ff_expert ? s->n_ff_expert : s->n_ff;
    case SIZE_SHARED_FF: return s->n_ff_shared;
    case SIZE_ONE: return 1;
    case SIZE_HEADS: return s->n_head;
    case SIZE_Q_AND_GATES: return 2 * s->n_head * s->head_dim;
    case SIZE_DELTA_CHANNELS: return (2 * s->n_key_heads + s->n_value_heads) * s->delta_dim;
    case SIZE_DELTA_VALUES: return s->n_value_heads * s->delta_dim;
    case SIZE_DELTA_HEADS: return s->n_value_heads;
    case SIZE_DELTA_GATES: return 2 * s->n_value_heads;
    case SIZE_DELTA_HEAD: return s->delta_dim;
    case SIZE_CONV: return s->n_conv;
    case SIZE_GATED_EMBD: return 3 * s->n_embd;
    case SIZE_MAMBA: return s->n_value_heads * s->delta_dim;
    case SIZE_MAMBA_CHANNELS: return s->n_value_heads * s->delta_dim + 2 * s->n_key_heads * s->n_state;
    case SIZE_MAMBA_IN: return 2 * s->n_value_heads * s->delta_dim + 2 * s->n_key_heads * s->n_state + s->n_value_heads;
    case SIZE_MAMBA_GROUPS: return s->n_key_heads;
    case SIZE_MAMBA_GROUP: return s->n_value_heads * s->delta_dim / s->n_key_heads;
    case SIZE_Q_RANK: return s->q_rank;
    case SIZE_KV_RANK: return s->kv_rank;
    case SIZE_LATENT_QUERIES: return s->n_head * (s->plain_dim + s->n_rot);
    case SIZE_LATENT_VALUES: return s->n_head * s->value_dim;
    case SIZE_PLAIN: return s->plain_dim;
    case SIZE_VALUE: return s->value_dim;
    case SIZE_NONE: break;
    }
    return 0;
}

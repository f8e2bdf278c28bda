/* model_layers.c - what the layers of a model have: the table of their matrices, the number of layers of a kind, one
 * matrix of many, the embedding of a token, and a model with the layers of a drafter. */
#include "model/model.h"

#include "gguf/tensor_type.h"

bool layer_has_state(const LayerSpec *l) {
    return l->mixer == MIXER_DELTA_NET || l->mixer == MIXER_MAMBA2 || l->mixer == MIXER_SHORT_CONV;
}

const LayerMatrixInfo layer_matrix_info[LAYER_MATRICES] = {
    [MATRIX_ATTN_CONV] = {PART_QKV, ONE_MATRIX, INPUT_QKV},
    [MATRIX_Q_A] = {PART_QKV, ONE_MATRIX, INPUT_QKV},
    [MATRIX_KV_A] = {PART_QKV, ONE_MATRIX, INPUT_QKV},
    [MATRIX_Q] = {PART_QKV, ONE_MATRIX, INPUT_QKV},
    [MATRIX_K] = {PART_QKV, ONE_MATRIX, INPUT_QKV},
    [MATRIX_V] = {PART_QKV, ONE_MATRIX, INPUT_QKV},
    [MATRIX_STATE_INPUTS] = {PART_QKV, ONE_MATRIX, INPUT_QKV},
    [MATRIX_STATE_FACTOR] = {PART_QKV, ONE_MATRIX, INPUT_QKV},
    [MATRIX_STATE_Z] = {PART_QKV, ONE_MATRIX, INPUT_QKV},
    [MATRIX_STATE_GATES] = {PART_QKV, ONE_MATRIX, INPUT_QKV},
    [MATRIX_STATE_MORE_GATES] = {PART_QKV, ONE_MATRIX, INPUT_QKV},
    [MATRIX_O] = {PART_O, ONE_MATRIX, INPUT_O},
    [MATRIX_FFN_CONV] = {PART_GATE_UP, ONE_MATRIX, INPUT_GATE_UP},
    [MATRIX_GATE] = {PART_GATE_UP, ONE_MATRIX, INPUT_GATE_UP},
    [MATRIX_UP] = {PART_GATE_UP, ONE_MATRIX, INPUT_GATE_UP},
    [MATRIX_DOWN] = {PART_DOWN, ONE_MATRIX, INPUT_DOWN},
    [MATRIX_SHARED_GATE] = {PART_GATE_UP, ONE_MATRIX, INPUT_GATE_UP},
    [MATRIX_SHARED_UP] = {PART_GATE_UP, ONE_MATRIX, INPUT_GATE_UP},
    [MATRIX_SHARED_DOWN] = {PART_DOWN, ONE_MATRIX, INPUT_SHARED_DOWN},
    [MATRIX_ROUTER] = {PART_GATE_UP, ONE_MATRIX, INPUT_GATE_UP},
    [MATRIX_K_B] = {PART_QKV, MATRIX_OF_HEADS, INPUT_LATENT_QUERIES},
    [MATRIX_V_B] = {PART_O, MATRIX_OF_HEADS, INPUT_READ_LATENTS},
    [MATRIX_EXPERT_GATE] = {PART_GATE_UP, MATRIX_OF_EXPERTS, INPUT_EXPERT_GATE_UP},
    [MATRIX_EXPERT_UP] = {PART_GATE_UP, MATRIX_OF_EXPERTS, INPUT_EXPERT_GATE_UP},
    [MATRIX_EXPERT_DOWN] = {PART_DOWN, MATRIX_OF_EXPERTS, INPUT_EXPERT_DOWN},
    [MATRIX_PLE_INPUT] = {PART_GATE_UP, ONE_MATRIX, INPUT_EMBEDDING},
    [MATRIX_PLE_GATE] = {PART_GATE_UP, ONE_MATRIX, INPUT_STREAM},
    [MATRIX_PLE_OUT] = {PART_DOWN, ONE_MATRIX, INPUT_PLE},
};

InputKind layer_matrix_inputs(const LayerSpec *l, LayerMatrix m) {
    if (m == MATRIX_Q && l->matrices[MATRIX_Q_A]) return INPUT_Q_LATENT;
    if (m == MATRIX_O && layer_has_state(l)) return INPUT_STATE_O;
    if (m == MATRIX_O && l->mixer == MIXER_LATENT) return INPUT_LATENT_O;
    return layer_matrix_info[m].inputs;
}

int64_t input_width(const Hparams *h, InputKind kind) {
    switch (kind) {
    case INPUT_QKV:
    case INPUT_GATE_UP: return h->n_embd;
    case INPUT_O: return h->latent.rank ? 0 : hparams_q_dim(h);
    case INPUT_STATE_O: return h->state.n_values;
    case INPUT_DOWN: return h->n_ff;
    case INPUT_SHARED_DOWN: return h->n_ff_shared;
    case INPUT_EXPERT_GATE_UP: return (int64_t)h->n_expert * h->n_embd;
    case INPUT_EXPERT_DOWN: return (int64_t)h->n_expert * h->n_ff_expert;
    case INPUT_LATENT: return h->latent.rank ? h->head_dim : 0;
    case INPUT_Q_LATENT: return h->latent.q_rank;
    case INPUT_LATENT_QUERIES: return latent_query_dim(h);
    case INPUT_READ_LATENTS: return (int64_t)h->n_head * h->latent.rank;
    case INPUT_LATENT_O: return latent_values_dim(h);
    case INPUT_EMBEDDING:
    case INPUT_STREAM: return h->n_ple ? h->n_embd : 0;
    case INPUT_PLE: return h->n_ple;
    case INPUT_KINDS: break;
    }
    return 0;
}

int32_t model_mixer_place(const Model *m, int32_t i) {
    int32_t n = 0;
    if (m->takes_turns) return 0;
    if (m->layers[i].shares_kv) {
        i = m->layers[i].shares_kv - 1;
        if (m->kv_model) m = m->kv_model;
    }
    for (int32_t k = 0; k < i; k++) n += m->layers[k].mixer == m->layers[i].mixer && !m->layers[k].shares_kv;
    return n;
}

int32_t model_n_mixers(const Model *m, MixerKind kind) {
    int32_t n = 0;
    for (int32_t i = 0; i < m->hparams.n_layer; i++) n += m->layers[i].mixer == kind && !m->layers[i].shares_kv;
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

int32_t model_n_attention(const Model *m) {
    int32_t n = m->hparams.n_layer - model_n_states(m);
    if (m->takes_turns) return 1;
    for (int32_t i = 0; i < m->hparams.n_layer; i++) n -= m->layers[i].shares_kv > 0;
    return n;
}

GgufTensor expert_matrix(const GgufTensor *all, int64_t i) {
    GgufTensor out = *all;
    if (all->n_dims < 3) return out;
    out.n_dims = 2, out.dims[2] = 1, out.step = 0, out.bytes = all->bytes / (size_t)all->dims[2];
    out.data = (const char *)all->data + (size_t)i * (all->step ? all->step : out.bytes);
    return out;
}

Model model_of_layers(const Model *target, const LayerSpec *layers, int32_t n_layer, int32_t n_ff) {
    Model m = *target;
    m.layers = layers;
    m.output_norm = NULL;
    m.memory = NULL;
    m.ple_table = NULL;
    m.hparams.n_layer = n_layer;
    m.hparams.n_ff = n_ff;
    m.hparams.n_ple = 0;
    return m;
}

void embedding_row(const GgufTensor *embd, int32_t token, float *out) {
    size_t row_bytes = embd->bytes / (size_t)embd->dims[1];
    blocks_dequantize(embd->type, (const char *)embd->data + (size_t)token * row_bytes, embd->dims[0], out);
}

void model_embedding(const Model *m, int32_t token, float *out) { embedding_row(m->token_embd, token, out); }

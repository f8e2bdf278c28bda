/* arch_deepseek2.c - architecture "deepseek2": DeepSeek V2, V2-Lite, V3 and R1, GLM-4.7-Flash and others with multi-head latent
 * attention; leading dense layers, then experts in groups with shared ones beside them.
 *
 * Shapes. The files of today describe what is cached: one KV head, key_length = kv_lora_rank + rope.dimension_count; a head has
 * key_length_mla and value_length_mla components. Older ones give the heads' own lengths as key_length and value_length, and one
 * matrix attn_kv_b in the place of attn_k_b and attn_v_b: by head the rows that make its keys, then those that make its values.
 * We need the transpose of the former, which is made as F32 when the file is read, and copies of the latter.
 *
 * YaRN. These models turn vectors without a factor (magnitude 1) and multiply the scores by (1 + 0.1 m ln factor)^2 instead, in
 * all components, rotated or not; the file has 0.1 m as yarn_log_multiplier. Without that key, YaRN is the ordinary one.
 *
 * Routing. Files of GLM-4.7-Flash may lack expert_gating_func; only a router with sigmoids has a bias of choices. GLM-4.5
 * (arch_glm4moe.c) routes in the same way.
 *
 * The layer for multi-token prediction (nextn.h) has the same attention, with a latent of its own, and experts. */
#include "model/arch.h"

#include "gguf/tensor_type.h"

#include <math.h>
#include <string.h>

enum { MAX_RANK = 1 << 12, MAX_HEAD = 1 << 12, GATE_SOFTMAX = 1, GATE_SIGMOID = 2 };

/* Of the heads, and of what is cached in their place. */
static void latent_keys(KeyReader *r, Hparams *h) {
    LatentShape *s = &h->latent;
    s->q_rank = key_int(r, "attention.q_lora_rank", 0, 0, MAX_RANK);
    s->rank = key_int(r, "attention.kv_lora_rank", -1, 1, MAX_RANK);
    int32_t value_dim = key_int(r, "attention.value_length", h->head_dim, 1, 1 << 15);
    int32_t key_dim = key_int(r, "attention.key_length_mla", h->head_dim, h->rope.n_rot + 1, MAX_HEAD);
    s->plain_dim = key_dim - h->rope.n_rot;
    s->value_dim = key_int(r, "attention.value_length_mla", value_dim, 1, MAX_HEAD);
    h->attn_scale = (float)(1 / sqrt((double)key_dim));
    h->n_head_kv = 1;
    h->head_dim = s->rank + h->rope.n_rot;
}

static void yarn_keys(KeyReader *r, Hparams *h) {
    double log_multiplier = key_float(r, "rope.scaling.yarn_log_multiplier", 0, 0, 10),
           log_factor = log(h->rope.factor);
    if (h->rope.scaling != ROPE_SCALING_YARN || log_multiplier <= 0) return;
    double m = h->rope.factor > 1 ? 1 + log_multiplier * log_factor : 1;
    h->attn_scale = (float)((double)h->attn_scale * m * m);
    h->rope.attn_factor /= 1 + 0.1 * log_factor; /* which rope_init multiplies by */
}

static void group_keys(KeyReader *r, Hparams *h) {
    int32_t n = key_int(r, "expert_group_count", 0, 0, h->n_expert);
    if (n <= 1) return;
    int32_t each = h->n_expert / n, fewest = (h->n_expert_used + each - 1) / each;
    (void)key_int(r, "expert_count", -1, (int64_t)n * each, (int64_t)n * each); /* groups of one size */
    h->n_expert_groups = n;
    h->n_expert_groups_used = key_int(r, "expert_group_used_count", -1, fewest, n);
}

void arch_routed_keys(KeyReader *r, Hparams *h) {
    arch_expert_keys(r, h);
    h->n_dense = key_int(r, "leading_dense_block_count", 0, 0, h->n_layer);
    if (h->n_expert == 0) {
        h->n_dense = h->n_layer;
        return;
    }
    int64_t n_shared = key_int(r, "expert_shared_count", 0, 0, MODEL_MAX_EXPERTS);
    h->n_ff_shared = (int32_t)(n_shared * h->n_ff_expert);
    (void)key_int(r, "expert_shared_count", 0, 0, (1 << 20) / h->n_ff_expert); /* so that the product is a width */
    h->expert_scale = (float)key_float(r, "expert_weights_scale", 1, 0, 1e4);
    h->keeps_probabilities = !key_bool(r, "expert_weights_norm", false);
    int32_t gate = key_int(r, "expert_gating_func", 0, 0, GATE_SIGMOID);
    h->router_gate = gate == GATE_SIGMOID ? ROUTER_SIGMOID : ROUTER_SOFTMAX;
    h->has_router_gate = gate != 0;
    group_keys(r, h);
}

static void keys(KeyReader *r, Hparams *h) {
    arch_nextn_keys(r, h);
    latent_keys(r, h);
    yarn_keys(r, h);
    arch_routed_keys(r, h);
    arch_temperature_keys(r, h, 0);
}

/* attn_kv_b of older files. */
static int split_kv_b(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    const Hparams *h = arch_hparams(r);
    const int64_t rank = h->latent.rank, n_plain = h->latent.plain_dim, n_values = h->latent.value_dim, n = h->n_head;
    const GgufTensor *both;
    void *k, *v;
    float row[MAX_RANK];
    int status = arch_matrix(r, i_layer, "attn_kv_b.weight", rank, n * (n_plain + n_values), false, &both);
    if (!status) status = arch_own_matrices(r, both->name, TYPE_F32, n_plain, rank, n, &out->matrices[MATRIX_K_B], &k);
    if (!status)
        status = arch_own_matrices(r, both->name, both->type, rank, n_values, n, &out->matrices[MATRIX_V_B], &v);
    if (status) return status;
    size_t row_bytes = both->bytes / (size_t)both->dims[1];
    for (int64_t head = 0; head < n; head++) {
        const char *from = (const char *)both->data + (size_t)(head * (n_plain + n_values)) * row_bytes;
        float *to = (float *)k + head * rank * n_plain;
        for (int64_t d = 0; d < n_plain; d++) {
            blocks_dequantize(both->type, from + (size_t)d * row_bytes, rank, row);
            for (int64_t i = 0; i < rank; i++) to[i * n_plain + d] = row[i];
        }
        memcpy((char *)v + (size_t)(head * n_values) * row_bytes, from + (size_t)n_plain * row_bytes,
               (size_t)n_values * row_bytes);
    }
    return FR_OK;
}

static int heads_of_latent(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    const Hparams *h = arch_hparams(r);
    const LatentShape *s = &h->latent;
    if (!arch_has(r, i_layer, "attn_k_b.weight") && arch_has(r, i_layer, "attn_kv_b.weight"))
        return split_kv_b(r, i_layer, out);
    int status = arch_matrices(r, i_layer, "attn_k_b.weight", s->plain_dim, s->rank, h->n_head,
                               &out->matrices[MATRIX_K_B]);
    return status ? status
                  : arch_matrices(r, i_layer, "attn_v_b.weight", s->rank, s->value_dim, h->n_head,
                                  &out->matrices[MATRIX_V_B]);
}

static int attention(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    const Hparams *h = arch_hparams(r);
    const LatentShape *s = &h->latent;
    const int64_t embd = h->n_embd, n_rot = h->rope.n_rot, q_dim = h->n_head * (s->plain_dim + n_rot);
    LatentSpec *l = &out->latent;
    out->mixer = MIXER_LATENT, out->attn_scale = h->attn_scale, out->temperature = h->temperature;
    int status = arch_vector(r, i_layer, "attn_norm.weight", embd, false, &out->attn_norm);
    if (!status && s->q_rank)
        status = arch_matrix(r, i_layer, "attn_q_a.weight", embd, s->q_rank, false, &out->matrices[MATRIX_Q_A]);
    if (!status && s->q_rank) status = arch_vector(r, i_layer, "attn_q_a_norm.weight", s->q_rank, false, &l->q_a_norm);
    if (!status && s->q_rank)
        status = arch_matrix(r, i_layer, "attn_q_b.weight", s->q_rank, q_dim, false, &out->matrices[MATRIX_Q]);
    if (!status && !s->q_rank)
        status = arch_matrix(r, i_layer, "attn_q.weight", embd, q_dim, false, &out->matrices[MATRIX_Q]);
    if (!status)
        status = arch_matrix(r, i_layer, "attn_kv_a_mqa.weight", embd, s->rank + n_rot, false,
                             &out->matrices[MATRIX_KV_A]);
    if (!status) status = arch_vector(r, i_layer, "attn_kv_a_norm.weight", s->rank, false, &l->kv_a_norm);
    if (!status) status = heads_of_latent(r, i_layer, out);
    if (status) return status;
    return arch_matrix(r, i_layer, "attn_output.weight", (int64_t)h->n_head * s->value_dim, embd, false,
                       &out->matrices[MATRIX_O]);
}

static int experts(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    const Hparams *h = arch_hparams(r);
    int status = arch_experts(r, i_layer, out);
    if (!status) status = arch_vector(r, i_layer, "exp_probs_b.bias", h->n_expert, true, &out->choice_bias);
    out->router_gate = !h->has_router_gate && out->choice_bias ? ROUTER_SIGMOID : h->router_gate;
    out->keeps_probabilities = h->keeps_probabilities;
    out->expert_scale = h->expert_scale;
    out->n_groups = h->n_expert_groups, out->n_groups_used = h->n_expert_groups_used;
    return status;
}

int arch_routed_ffn(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    const Hparams *h = arch_hparams(r);
    bool is_dense = h->n_expert == 0 || i_layer < h->n_dense;
    return is_dense ? arch_dense(r, i_layer, out) : experts(r, i_layer, out);
}

static int layer(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    int status = attention(r, i_layer, out);
    return status ? status : arch_routed_ffn(r, i_layer, out);
}

const Architecture arch_deepseek2 = {.name = "deepseek2", .rope = ROPE_PAIRS, .keys = keys, .layer = layer};

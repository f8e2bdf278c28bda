/* arch_deepseek.c - architectures "deepseek2" (DeepSeek V2, V2-Lite, V3 and R1, GLM-4.7-Flash and others with
 * multi-head latent attention) and "glm4moe" (GLM-4.5, 4.5-Air, 4.6 and 4.7). Both have leading dense layers, then
 * layers of experts with a shared expert.
 *
 * Shapes. Newer files of deepseek2 describe what is cached: one KV head, and a key_length of kv_lora_rank +
 * rope.dimension_count; a head has key_length_mla and value_length_mla components. Older files give the lengths of the
 * heads as key_length and value_length, and have one matrix attn_kv_b in the place of attn_k_b and attn_v_b: for each
 * head the rows that make its keys, then those that make its values. We need the transpose of the former, which is made
 * as F32 when the file is read, and copies of the latter.
 *
 * YaRN. These models rotate vectors without a factor (magnitude 1) and multiply the scores by (1 + 0.1 m ln factor)^2
 * instead, in all components, rotated or not. The file has 0.1 m as yarn_log_multiplier. Without that key, YaRN is the
 * ordinary one.
 *
 * Routing. Experts may be chosen in groups, with a bias that only a router with sigmoids has. A file may lack
 * expert_gating_func. Then a layer of deepseek2 has sigmoids if it has such a bias (GLM-4.7-Flash), or as many experts
 * as DeepSeek-V3 has. In glm4moe a missing key always means sigmoids.
 *
 * glm4moe has ordinary attention. Part of each head is rotated; queries, keys and values have biases, and in GLM-4.5
 * (not Air) query and key heads have norms. The norm before the feed-forward part is called post_attention_norm.
 *
 * The layer for multi-token prediction (Nextn in model.h) has the same attention, with a latent of its own, and
 * experts. */
#include "model/arch.h"

#include "base/math_functions.h"
#include "gguf/tensor_type.h"

#include <math.h>
#include <string.h>

enum { MAX_RANK = 1 << 12, MAX_HEAD = 1 << 12, GATE_SIGMOID = 2 };

/* DeepSeek-V3 and its descendants have 256 experts or more; V2, whose router has a softmax, has at most 160. */
enum { FEWEST_EXPERTS_OF_V3 = 256 };

/* Reads the lengths of heads, and of the latents that are cached in their place. */
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
           log_factor = math_log(h->rope.factor);
    if (h->rope.scaling != ROPE_SCALING_YARN || log_multiplier <= 0) return;
    double m = h->rope.factor > 1 ? 1 + log_multiplier * log_factor : 1;
    h->attn_scale = (float)((double)h->attn_scale * m * m);
    arch_divide_yarn(h, 1);
}

static void group_keys(KeyReader *r, Hparams *h) {
    int32_t n = key_int(r, "expert_group_count", 0, 0, h->n_expert);
    if (n <= 1) {
        keys_without_meaning(r, "expert_group_used_count");
        return;
    }
    int32_t each = h->n_expert / n, fewest = (h->n_expert_used + each - 1) / each;
    (void)key_int(r, "expert_count", -1, (int64_t)n * each, (int64_t)n * each); /* all groups have one size */
    h->n_expert_groups = n;
    h->n_expert_groups_used = key_int(r, "expert_group_used_count", -1, fewest, n);
}

static void routed_keys(KeyReader *r, Hparams *h) {
    h->keeps_probabilities = true;
    arch_expert_keys(r, h);
    h->n_dense = key_int(r, "leading_dense_block_count", 0, 0, h->n_layer);
    if (h->n_expert == 0) {
        h->n_dense = h->n_layer;
        return;
    }
    int64_t n_shared = key_int(r, "expert_shared_count", 0, 0, MODEL_MAX_EXPERTS);
    h->n_ff_shared = (int32_t)(n_shared * h->n_ff_expert);
    (void)key_int(r, "expert_shared_count", 0, 0,
                  (1 << 20) / h->n_ff_expert); /* keeps the product within the range of a width */
    (void)key_int(r, "expert_gating_func", 0, 0, GATE_SIGMOID);
    group_keys(r, h);
}

static void deepseek2_keys(KeyReader *r, Hparams *h) {
    arch_nextn_keys(r, h);
    latent_keys(r, h);
    yarn_keys(r, h);
    routed_keys(r, h);
    if (!h->has_router_gate && h->n_expert >= FEWEST_EXPERTS_OF_V3) {
        h->has_router_gate = true;
        h->router_gate = ROUTER_SIGMOID;
    }
    arch_temperature_keys(r, h, 0);
}

/* Makes the matrices of the heads from attn_kv_b. */
static int split_kv_b(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    const Hparams *h = arch_hparams(r);
    const int64_t rank = h->latent.rank, n_plain = h->latent.plain_dim, n_values = h->latent.value_dim, n = h->n_head;
    const GgufTensor *both;
    void *k, *v;
    float row[MAX_RANK];
    int status = arch_tensor(r, i_layer, TENSOR_LATENT_KV_B, false, &both);
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
    if (!arch_has(r, i_layer, TENSOR_LATENT_K_B) && arch_has(r, i_layer, TENSOR_LATENT_KV_B))
        return split_kv_b(r, i_layer, out);
    return ARCH_TAKE(r, i_layer, out, TENSOR_LATENT_K_B, TENSOR_LATENT_V_B);
}

static int latent_attention(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    const Hparams *h = arch_hparams(r);
    out->mixer = MIXER_LATENT, out->attn_scale = h->attn_scale, out->temperature = h->temperature;
    int status = ARCH_TAKE(r, i_layer, out, TENSOR_ATTN_NORM);
    if (!status)
        status = h->latent.q_rank
                     ? ARCH_TAKE(r, i_layer, out, TENSOR_LATENT_Q_A, TENSOR_LATENT_Q_A_NORM, TENSOR_LATENT_Q_B)
                     : ARCH_TAKE(r, i_layer, out, TENSOR_LATENT_Q);
    if (!status) status = ARCH_TAKE(r, i_layer, out, TENSOR_LATENT_KV_A, TENSOR_LATENT_KV_A_NORM);
    if (!status) status = heads_of_latent(r, i_layer, out);
    return status ? status : ARCH_TAKE(r, i_layer, out, TENSOR_LATENT_OUTPUT);
}

static int experts(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    const Hparams *h = arch_hparams(r);
    int status = arch_experts(r, i_layer, out);
    if (!status) status = ARCH_TAKE(r, i_layer, out, OPTIONAL(TENSOR_CHOICE_BIAS));
    if (!h->has_router_gate && out->choice_bias) out->router_gate = ROUTER_SIGMOID;
    out->n_groups = h->n_expert_groups, out->n_groups_used = h->n_expert_groups_used;
    return status;
}

static int routed_ffn(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    const Hparams *h = arch_hparams(r);
    bool is_dense = h->n_expert == 0 || i_layer < h->n_dense;
    return is_dense ? arch_dense(r, i_layer, out) : experts(r, i_layer, out);
}

static int deepseek2_layer(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    int status = latent_attention(r, i_layer, out);
    return status ? status : routed_ffn(r, i_layer, out);
}

const Architecture arch_deepseek2 = {
    .name = "deepseek2", .rope = ROPE_PAIRS, .keys = deepseek2_keys, .layer = deepseek2_layer};

/* ---- glm4moe ------------------------------------------------------------------------------------------- */

static void glm4moe_keys(KeyReader *r, Hparams *h) {
    arch_nextn_keys(r, h);
    routed_keys(r, h);
    if (!h->has_router_gate) h->has_router_gate = true, h->router_gate = ROUTER_SIGMOID;
}

static int glm4moe_layer(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    int status = arch_attention(r, i_layer, out);
    if (!status)
        status = ARCH_TAKE(r, i_layer, out, OPTIONAL(TENSOR_ATTN_Q_NORM), OPTIONAL(TENSOR_ATTN_K_NORM),
                           TENSOR_FFN_NORM_POST_ATTN);
    return status ? status : routed_ffn(r, i_layer, out);
}

const Architecture arch_glm4moe = {
    .name = "glm4moe", .rope = ROPE_HALVES, .keys = glm4moe_keys, .layer = glm4moe_layer};

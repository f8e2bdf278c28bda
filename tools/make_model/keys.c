/* keys.c - the key-values of a random model (the name of its architecture, its shape, and the factors that files of its
 * family have), and which parts its architecture has. */
#include "make_model.h"

#include <stdio.h>
#include <string.h>

/* ---- what the architecture has --------------------------------------------------------------------------- */

bool plan_is(const ModelPlan *plan, const char *list) {
    size_t n = strlen(plan->arch);
    for (const char *at = list; (at = strstr(at, plan->arch)); at += n)
        if ((at == list || at[-1] == ' ') && (at[n] == ' ' || at[n] == '\0')) return true;
    return false;
}

bool plan_has_attention(const ModelPlan *p, int64_t layer) {
    if (!plan_is(p, RECURRENT)) return true;
    return p->attention_interval && (layer + 1) % p->attention_interval == 0;
}

bool plan_has_local_heads(const ModelPlan *p, int64_t layer) {
    enum { PERIOD = 6 };
    return plan_is(p, "gemma4") && layer % PERIOD < PERIOD - 1;
}

bool plan_has_experts(const ModelPlan *p, int64_t layer) {
    if (!p->n_experts || layer < p->n_dense) return false;
    return !p->expert_interval || (layer + 1) % p->expert_interval == 0;
}

/* ---- keys ------------------------------------------------------------------------------------------------ */

static void set_string(GgufWriter *w, const char *key, const char *v) { gguf_set_string(w, key, v, strlen(v)); }

static const char *arch_key(const ModelPlan *p, const char *name, char key[96]) {
    snprintf(key, 96, "%s.%s", p->arch, name);
    return key;
}

static void set_rope(GgufWriter *w, const ModelPlan *p) {
    char key[96];
    gguf_set_f32(w, arch_key(p, "rope.freq_base", key), (float)p->rope_base);
    uint32_t n_rot = (uint32_t)(p->rope_dim ? p->rope_dim : p->head_dim);
    if (plan_is(p, HYBRIDS) && n_rot % 8 == 0) n_rot /= 4;
    if (plan_is(p, "glm4moe") && n_rot % 4 == 0) n_rot /= 2;
    gguf_set_u32(w, arch_key(p, "rope.dimension_count", key), n_rot);
    const int32_t pairs = (int32_t)n_rot / 2, sections[4] = {(pairs + 2) / 3, (pairs + 1) / 3, pairs / 3, 0};
    if (plan_is(p, HYBRIDS)) gguf_set_i32s(w, arch_key(p, "rope.dimension_sections", key), sections, 4);
    if (p->rope_scaling != ROPE_LINEAR && p->rope_scaling != ROPE_YARN) return; /* llama3 is a tensor */
    set_string(w, arch_key(p, "rope.scaling.type", key), p->rope_scaling == ROPE_LINEAR ? "linear" : "yarn");
    gguf_set_f32(w, arch_key(p, "rope.scaling.factor", key), (float)p->rope_factor);
    if (p->rope_scaling == ROPE_YARN)
        gguf_set_u32(w, arch_key(p, "rope.scaling.original_context_length", key), (uint32_t)p->rope_original);
}

static void set_latent_keys(GgufWriter *w, const ModelPlan *p) {
    char key[96];
    gguf_set_u32(w, arch_key(p, "attention.q_lora_rank", key), (uint32_t)p->q_rank);
    gguf_set_u32(w, arch_key(p, "attention.kv_lora_rank", key), (uint32_t)p->kv_rank);
    gguf_set_u32(w, arch_key(p, "attention.key_length_mla", key), (uint32_t)p->head_dim);
    gguf_set_u32(w, arch_key(p, "attention.value_length_mla", key), (uint32_t)p->value_dim);
    if (p->rope_scaling == ROPE_YARN) gguf_set_f32(w, arch_key(p, "rope.scaling.yarn_log_multiplier", key), 0.1f);
}

static void set_routed_keys(GgufWriter *w, const ModelPlan *p) {
    char key[96];
    gguf_set_u32(w, arch_key(p, "leading_dense_block_count", key), (uint32_t)p->n_dense);
    gguf_set_u32(w, arch_key(p, "expert_shared_count", key), (uint32_t)(p->shared_ffn / p->expert_ffn));
    gguf_set_u32(w, arch_key(p, "expert_gating_func", key), p->has_sigmoid_router ? 2 : 1);
    gguf_set_f32(w, arch_key(p, "expert_weights_scale", key), p->has_sigmoid_router ? 2.5f : 1.0f);
    gguf_set_bool(w, arch_key(p, "expert_weights_norm", key), p->has_sigmoid_router);
    if (!p->n_groups) return;
    gguf_set_u32(w, arch_key(p, "expert_group_count", key), (uint32_t)p->n_groups);
    gguf_set_u32(w, arch_key(p, "expert_group_used_count", key), (uint32_t)p->n_groups_used);
}

static void set_expert_keys(GgufWriter *w, const ModelPlan *p) {
    char key[96];
    if (p->n_experts) {
        gguf_set_u32(w, arch_key(p, "expert_count", key), (uint32_t)p->n_experts);
        gguf_set_u32(w, arch_key(p, "expert_used_count", key), (uint32_t)p->n_experts_used);
        gguf_set_u32(w, arch_key(p, "expert_feed_forward_length", key), (uint32_t)p->expert_ffn);
    }
    if (plan_is(p, ROUTED)) set_routed_keys(w, p);
    if (p->shared_ffn && !plan_is(p, ROUTED))
        gguf_set_u32(w, arch_key(p, "expert_shared_feed_forward_length", key), (uint32_t)p->shared_ffn);
    if (plan_is(p, "lfm2moe")) {
        gguf_set_u32(w, arch_key(p, "leading_dense_block_count", key), (uint32_t)p->n_dense);
        gguf_set_u32(w, arch_key(p, "expert_gating_func", key), 2);
    }
    if (p->expert_interval)
        gguf_set_u32(w, arch_key(p, "interleave_moe_layer_step", key), (uint32_t)p->expert_interval);
}

static void set_state_keys(GgufWriter *w, const ModelPlan *p, int64_t size, int64_t groups, int64_t heads,
                           int64_t dim) {
    char key[96];
    gguf_set_u32(w, arch_key(p, "ssm.conv_kernel", key), PLAN_CONV);
    gguf_set_u32(w, arch_key(p, "ssm.state_size", key), (uint32_t)size);
    gguf_set_u32(w, arch_key(p, "ssm.group_count", key), (uint32_t)groups);
    gguf_set_u32(w, arch_key(p, "ssm.time_step_rank", key), (uint32_t)heads);
    gguf_set_u32(w, arch_key(p, "ssm.inner_size", key), (uint32_t)(heads * dim));
}

static void set_recurrent_keys(GgufWriter *w, const ModelPlan *p) {
    char key[96];
    if (plan_is(p, LFM2S)) gguf_set_u32(w, arch_key(p, "shortconv.l_cache", key), PLAN_SHORT_CONV);
    if (plan_is(p, MAMBAS)) set_state_keys(w, p, p->ssm_state, p->ssm_groups, p->ssm_heads, p->ssm_dim);
    if (!plan_is(p, HYBRIDS)) return;
    set_state_keys(w, p, p->delta_dim, p->delta_key_heads, p->delta_heads, p->delta_dim);
    gguf_set_u32(w, arch_key(p, "full_attention_interval", key), (uint32_t)p->attention_interval);
}

/* Factors of embeddings, scores, residuals and logits; caps; temperatures. */
static void set_factor_keys(GgufWriter *w, const ModelPlan *p) {
    char key[96];
    if (plan_is(p, "mistral3")) {
        gguf_set_f32(w, arch_key(p, "attention.temperature_scale", key), 0.1f);
        gguf_set_f32(w, arch_key(p, "rope.scaling.yarn_log_multiplier", key), 1);
    }
    if (plan_is(p, "gemma2")) {
        gguf_set_f32(w, arch_key(p, "attn_logit_softcapping", key), 50);
        gguf_set_f32(w, arch_key(p, "final_logit_softcapping", key), 30);
    }
    if (plan_is(p, "granitehybrid")) gguf_set_bool(w, arch_key(p, "rope.scaling.finetuned", key), false);
    if (!plan_is(p, "granite granitehybrid")) return;
    gguf_set_f32(w, arch_key(p, "embedding_scale", key), 6);
    gguf_set_f32(w, arch_key(p, "residual_scale", key), 0.5f);
    gguf_set_f32(w, arch_key(p, "attention.scale", key), 1.0f / 64);
    gguf_set_f32(w, arch_key(p, "logit_scale", key), 2);
}

/* A list where some layers have a recurrent state, except for the architectures that have an interval instead. */
static void set_kv_heads(GgufWriter *w, const ModelPlan *p) {
    char key[96];
    int32_t heads[1024];
    arch_key(p, "attention.head_count_kv", key);
    for (int64_t i = 0; i < p->n_layers; i++) heads[i] = plan_has_attention(p, i) ? (int32_t)p->n_kv_heads : 0;
    if (plan_is(p, "granitehybrid " LFM2S)) gguf_set_i32s(w, key, heads, p->n_layers);
    else if (!plan_is(p, "mamba2")) gguf_set_u32(w, key, (uint32_t)p->n_kv_heads);
}

static void set_gemma4_keys(GgufWriter *w, const ModelPlan *p) {
    char key[96];
    int32_t windows[1024];
    for (int64_t i = 0; i < p->n_layers; i++) windows[i] = plan_has_local_heads(p, i);
    gguf_set_i32s(w, arch_key(p, "attention.sliding_window_pattern", key), windows, p->n_layers);
    gguf_set_u32(w, arch_key(p, "attention.key_length_swa", key), (uint32_t)p->head_dim / 2);
    gguf_set_u32(w, arch_key(p, "attention.value_length_swa", key), (uint32_t)p->head_dim / 2);
    gguf_set_u32(w, arch_key(p, "rope.dimension_count_swa", key), (uint32_t)p->head_dim / 2);
    gguf_set_f32(w, arch_key(p, "rope.freq_base_swa", key), 10000);
    gguf_set_u32(w, arch_key(p, "attention.shared_kv_layers", key), (uint32_t)p->n_shared_kv);
    gguf_set_u32(w, arch_key(p, "embedding_length_per_layer_input", key), (uint32_t)p->n_ple);
    gguf_set_f32(w, arch_key(p, "final_logit_softcapping", key), 30);
}

void plan_set_keys(GgufWriter *w, const ModelPlan *p) {
    char key[96], name[96];
    uint32_t file_type = 0;
    plan_file_type(p->type, &file_type);
    snprintf(name, sizeof name, "random %s, %lld layers of %lld, seed %llu", p->arch, (long long)p->n_layers,
             (long long)p->dim, (unsigned long long)p->seed);
    set_string(w, "general.architecture", p->arch);
    set_string(w, "general.name", name);
    gguf_set_u32(w, "general.file_type", file_type);
    gguf_set_u32(w, "general.quantization_version", 2);
    gguf_set_u32(w, arch_key(p, "context_length", key), (uint32_t)p->n_context);
    gguf_set_u32(w, arch_key(p, "embedding_length", key), (uint32_t)p->dim);
    gguf_set_u32(w, arch_key(p, "block_count", key), (uint32_t)(p->n_layers + p->n_nextn));
    if (p->n_nextn) gguf_set_u32(w, arch_key(p, "nextn_predict_layers", key), (uint32_t)p->n_nextn);
    bool is_mamba2 = plan_is(p, "mamba2"); /* their files contain neither key */
    gguf_set_u32(w, arch_key(p, "feed_forward_length", key), is_mamba2 ? 0 : (uint32_t)p->ffn_dim);
    gguf_set_u32(w, arch_key(p, "attention.head_count", key), is_mamba2 ? 0 : (uint32_t)p->n_heads);
    set_kv_heads(w, p);
    int64_t key_dim = p->kv_rank ? p->kv_rank + p->rope_dim : p->head_dim;
    gguf_set_u32(w, arch_key(p, "attention.key_length", key), (uint32_t)key_dim);
    gguf_set_u32(w, arch_key(p, "attention.value_length", key), (uint32_t)(p->kv_rank ? p->kv_rank : p->head_dim));
    gguf_set_f32(w, arch_key(p, "attention.layer_norm_rms_epsilon", key),
                 strcmp(p->arch, "llama") == 0 ? 1e-5f : 1e-6f);
    gguf_set_u32(w, arch_key(p, "vocab_size", key), (uint32_t)p->n_vocab);
    if (!plan_is(p, "mamba2")) set_rope(w, p);
    if (p->window) gguf_set_u32(w, arch_key(p, "attention.sliding_window", key), (uint32_t)p->window);
    if (p->kv_rank) set_latent_keys(w, p);
    set_expert_keys(w, p);
    set_recurrent_keys(w, p);
    set_factor_keys(w, p);
    if (plan_is(p, "gemma4")) set_gemma4_keys(w, p);
}

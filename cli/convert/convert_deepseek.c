/* convert_deepseek.c - DeepSeek V2, V2-Lite and V3, GLM-4.7-Flash (architecture deepseek2: latent attention) and
 * GLM-4.5 to 4.7 (glm4moe): leading dense layers, then layers whose experts have shared ones beside them.
 *
 * Latent attention. kv_b_proj has, for each head, the rows that make its keys from a latent and those that make its
 * values. A GGUF file stores them as two tensors: attn_v_b as published, and attn_k_b transposed, because it is applied
 * to the query (LatentSpec in model.h). Rotated components are published as neighbours, and stay neighbours.
 *
 * Multi-token prediction. Such layers are published as further ones of model.layers, with eh_proj, enorm, hnorm,
 * shared_head, and perhaps an embedding and a head of their own. They are converted as far as eh_proj is there,
 * whatever num_nextn_predict_layers is.
 *
 * Routing. topk_method "greedy" has no groups of experts; "group_limited_greedy" (V2) compares the greatest probability
 * of each group; "noaux_tc" (V3, GLM) compares the sums of the two greatest sigmoids, with a bias. With YaRN,
 * mscale_all_dim is a factor of the scores, which a GGUF file has as yarn_log_multiplier; mscale must be the same, so
 * that cos and sin have no factor.
 *
 * Proof: tests/cli/test_convert_deepseek.c. */
#include "cli/convert/convert_arch.h"

#include <stdio.h>
#include <string.h>

static bool is_of(const ConvertTensor *t, const char *part) { return strstr(t->from, part) != NULL; }

static bool routed_has(const ConvertShape *s, const ConvertTensor *t, int64_t layer) {
    bool is_dense = is_of(t, ".mlp.gate_proj") || is_of(t, ".mlp.up_proj") || is_of(t, ".mlp.down_proj");
    if (is_of(t, "mlp.shared_experts") && s->n_ff_shared == 0) return false;
    if (is_of(t, ".mlp.")) return is_dense == (layer < s->n_dense);
    if (t->to >= TENSOR_NEXTN_EH_PROJ) return layer >= s->n_layer;
    if (s->kv_rank && is_of(t, ".q_proj")) return s->q_rank == 0;
    return !is_of(t, ".q_a_") && !is_of(t, ".q_b_") ? true : s->q_rank > 0;
}

/* ---- config.json -------------------------------------------------------------------------------------- */

static bool is_text(const ConfigReader *r, const char *key, const char *fallback, const char *value) {
    const char *text = config_text(r->object, key);
    return strcmp(text ? text : fallback, value) == 0;
}

/* V2 has other defaults than V3 and GLM for keys that config.json leaves out: it routes by a softmax, without a choice
 * bias. */
static bool is_v2(const HubFolder *c) {
    const char *name = json_string_value(json_array_get(json_object_get(c->config, "architectures"), 0));
    return name && strcmp(name, "DeepseekV2ForCausalLM") == 0;
}

static void read_experts(ConvertShape *s, ConfigReader *r) {
    const char *usual_gate = is_v2(r->c) ? "softmax" : "sigmoid";
    s->n_expert = config_int(r, "n_routed_experts", -1, 1, 512);
    s->n_expert_used = config_int(r, "num_experts_per_tok", -1, 1, s->n_expert);
    s->n_ff_expert = config_int(r, "moe_intermediate_size", -1, 1, 1 << 20);
    s->n_ff_shared = s->n_ff_expert *
                     (config_has(r, "n_shared_experts") ? config_int(r, "n_shared_experts", 0, 0, 64) : 0);
    s->n_dense = config_int(r, "first_k_dense_replace", 0, 0, s->n_layer);
    s->has_sigmoid_router = is_text(r, "scoring_func", usual_gate, "sigmoid");
    if (!s->has_sigmoid_router && !is_text(r, "scoring_func", usual_gate, "softmax"))
        config_refuse(r, "scoring_func must be softmax or sigmoid");
    if (config_int(r, "moe_layer_freq", 1, 1, 1 << 20) != 1)
        config_refuse(r, "moe_layer_freq leaves layers without experts, which is not supported");
}

static void read_groups(ConvertShape *s, ConfigReader *r) {
    const char *usual = is_v2(r->c) ? "greedy" : "noaux_tc";
    bool is_greedy = is_text(r, "topk_method", usual, "greedy"),
         by_greatest = is_text(r, "topk_method", usual, "group_limited_greedy"),
         by_two = is_text(r, "topk_method", usual, "noaux_tc");
    if (!is_greedy && !by_greatest && !by_two)
        config_refuse(r, "topk_method must be greedy, group_limited_greedy or noaux_tc");
    if (is_greedy || !config_has(r, "n_group")) return;
    s->n_groups = config_int(r, "n_group", 1, 1, s->n_expert);
    s->n_groups_used = config_int(r, "topk_group", 1, 1, s->n_groups);
    if (s->n_groups > 1 && by_two != s->has_sigmoid_router)
        config_refuse(
            r, "groups of experts must be chosen by noaux_tc with sigmoids, or by group_limited_greedy with a softmax");
}

/* Checks that YaRN's factor applies to the scores only, and not to cos and sin. */
static void check_magnitude(const ConvertShape *s, ConfigReader *r) {
    ConfigReader sub = {.c = r->c, .object = s->scaling, .err = r->err, .status = r->status};
    if (strcmp(s->scaling_type, "yarn") != 0 || !config_has(&sub, "mscale_all_dim")) return;
    double all = config_real(&sub, "mscale_all_dim", 0, 0, 100), of_turns = config_real(&sub, "mscale", 1, 0, 100);
    r->status = sub.status;
    if (all > 0 && (all > of_turns || all < of_turns)) config_refuse(r, "mscale must be mscale_all_dim");
}

static void read_latent(ConvertShape *s, ConfigReader *r) {
    s->q_rank = config_has(r, "q_lora_rank") ? config_int(r, "q_lora_rank", 0, 1, 1 << 12) : 0;
    s->kv_rank = config_int(r, "kv_lora_rank", -1, 1, 1 << 12);
    s->plain_dim = config_int(r, "qk_nope_head_dim", -1, 1, 1 << 12);
    s->value_dim = config_int(r, "v_head_dim", -1, 1, 1 << 12);
    s->n_rot = config_int(r, "qk_rope_head_dim", -1, 2, 1 << 12);
    s->head_dim = s->kv_rank + s->n_rot; /* the width of a cached row */
    s->n_head_kv = 1;
    if (s->n_rot % 2) config_refuse(r, "qk_rope_head_dim must be even");
    if (json_is_false(json_object_get(r->object, "rope_interleave"))) config_refuse(r, "rope_interleave must be true");
    if (json_is_true(json_object_get(r->object, "attention_bias")))
        config_refuse(r, "attention_bias is not supported here");
    check_magnitude(s, r);
}

static int glm4moe_read(ConvertShape *s, const HubFolder *c, fr_error *err) {
    ConfigReader r = {.c = c, .object = c->config, .err = err};
    read_experts(s, &r);
    read_groups(s, &r);
    return r.status;
}

static int deepseek_read(ConvertShape *s, const HubFolder *c, fr_error *err) {
    ConfigReader r = {.c = c, .object = c->config, .err = err};
    read_latent(s, &r);
    read_experts(s, &r);
    read_groups(s, &r);
    return r.status;
}

/* ---- keys --------------------------------------------------------------------------------------------- */

static int glm4moe_keys(const ConvertShape *s, const HubFolder *c, GgufWriter *w, fr_error *err) {
    ConfigReader r = {.c = c, .object = c->config, .err = err};
    const json_t *norm = json_object_get(c->config, "norm_topk_prob");
    char full[128];
    convert_set_int(w, s->arch, "leading_dense_block_count", s->n_dense);
    convert_set_int(w, s->arch, "expert_count", s->n_expert);
    convert_set_int(w, s->arch, "expert_used_count", s->n_expert_used);
    convert_set_int(w, s->arch, "expert_feed_forward_length", s->n_ff_expert);
    convert_set_int(w, s->arch, "expert_shared_count", s->n_ff_shared / s->n_ff_expert);
    convert_set_real(w, s->arch, "expert_weights_scale", config_real(&r, "routed_scaling_factor", 1, 1e-6, 1e4));
    convert_set_int(w, s->arch, "expert_gating_func", s->has_sigmoid_router ? 2 : 1);
    snprintf(full, sizeof full, "%s.expert_weights_norm", s->arch);
    gguf_set_bool(w, full, norm ? json_is_true(norm) : !is_v2(c));
    if (s->n_groups > 1) convert_set_int(w, s->arch, "expert_group_count", s->n_groups);
    if (s->n_groups > 1) convert_set_int(w, s->arch, "expert_group_used_count", s->n_groups_used);
    return r.status;
}

static int deepseek_keys(const ConvertShape *s, const HubFolder *c, GgufWriter *w, fr_error *err) {
    const json_t *all = json_object_get(s->scaling, "mscale_all_dim");
    if (s->q_rank) convert_set_int(w, s->arch, "attention.q_lora_rank", s->q_rank);
    convert_set_int(w, s->arch, "attention.kv_lora_rank", s->kv_rank);
    convert_set_int(w, s->arch, "attention.key_length_mla", s->plain_dim + s->n_rot);
    convert_set_int(w, s->arch, "attention.value_length_mla", s->value_dim);
    if (strcmp(s->scaling_type, "yarn") == 0 && json_number_value(all) > 0)
        convert_set_real(w, s->arch, "rope.scaling.yarn_log_multiplier", 0.1 * json_number_value(all));
    return glm4moe_keys(s, c, w, err);
}

/* ---- tables ------------------------------------------------------------------------------------------- */

#define ROUTED_TENSORS \
    DENSE_TENSORS, SAME("mlp.gate.weight", TENSOR_ROUTER), \
        OPTIONAL("mlp.gate.e_score_correction_bias", TENSOR_CHOICE_BIAS), \
        SAME("mlp.experts.%d.gate_proj.weight", TENSOR_EXPERT_GATE), \
        SAME("mlp.experts.%d.up_proj.weight", TENSOR_EXPERT_UP), \
        SAME("mlp.experts.%d.down_proj.weight", TENSOR_EXPERT_DOWN), \
        SAME("mlp.shared_experts.gate_proj.weight", TENSOR_SHARED_GATE), \
        SAME("mlp.shared_experts.up_proj.weight", TENSOR_SHARED_UP), \
        SAME("mlp.shared_experts.down_proj.weight", TENSOR_SHARED_DOWN)
#define NEXTN_TENSORS \
    SAME("eh_proj.weight", TENSOR_NEXTN_EH_PROJ), SAME("enorm.weight", TENSOR_NEXTN_ENORM), \
        SAME("hnorm.weight", TENSOR_NEXTN_HNORM), OPTIONAL("shared_head.norm.weight", TENSOR_NEXTN_HEAD_NORM), \
        OPTIONAL("shared_head.head.weight", TENSOR_NEXTN_HEAD), OPTIONAL("embed_tokens.weight", TENSOR_NEXTN_EMBD)

static const ConvertTensor deepseek_tensors[] = {
    MODEL_TENSORS,
    SAME("post_attention_layernorm.weight", TENSOR_FFN_NORM),
    SAME("self_attn.q_proj.weight", TENSOR_LATENT_Q),
    SAME("self_attn.q_a_proj.weight", TENSOR_LATENT_Q_A),
    SAME("self_attn.q_a_layernorm.weight", TENSOR_LATENT_Q_A_NORM),
    SAME("self_attn.q_b_proj.weight", TENSOR_LATENT_Q_B),
    SAME("self_attn.kv_a_proj_with_mqa.weight", TENSOR_LATENT_KV_A),
    SAME("self_attn.kv_a_layernorm.weight", TENSOR_LATENT_KV_A_NORM),
    ROW("self_attn.kv_b_proj.weight", TENSOR_LATENT_K_B, FORM_KEYS_OF_LATENT),
    ROW("self_attn.kv_b_proj.weight", TENSOR_LATENT_V_B, FORM_VALUES_OF_LATENT),
    SAME("self_attn.o_proj.weight", TENSOR_LATENT_OUTPUT),
    ROUTED_TENSORS,
    NEXTN_TENSORS,
    END_OF_TENSORS,
};

static const ConvertTensor glm4moe_tensors[] = {
    MODEL_TENSORS,
    SAME("post_attention_layernorm.weight", TENSOR_FFN_NORM_POST_ATTN),
    SELF_ATTENTION,
    OPTIONAL_BIASES,
    OPTIONAL("self_attn.q_norm.weight", TENSOR_ATTN_Q_NORM),
    OPTIONAL("self_attn.k_norm.weight", TENSOR_ATTN_K_NORM),
    ROUTED_TENSORS,
    NEXTN_TENSORS,
    END_OF_TENSORS,
};

const ConvertArch convert_deepseek_archs[] = {
    {.published = "DeepseekV2ForCausalLM DeepseekV3ForCausalLM Glm4MoeLiteForCausalLM",
     .name = "deepseek2",
     .tensors = deepseek_tensors,
     .rotates_pairs = true,
     .read = deepseek_read,
     .keys = deepseek_keys,
     .has = routed_has,
     .nextn_in_layers = true,
     .usual = {.head_dim = 64}},
    {.published = "Glm4MoeForCausalLM",
     .name = "glm4moe",
     .tensors = glm4moe_tensors,
     .read = glm4moe_read,
     .keys = glm4moe_keys,
     .has = routed_has,
     .nextn_in_layers = true,
     .usual = {.head_dim = 128, .rotated_part = 0.5}},
    {.published = NULL},
};

/* convert_deepseek.c - DeepSeek V2, V2-Lite and V3, GLM-4.7-Flash (architecture deepseek2: latent attention) and GLM-4.5 to 4.7
 * (glm4moe): leading dense layers, then experts with shared ones beside them.
 *
 * Latent attention. kv_b_proj has, by head, the rows that make its keys of a latent and those that make its values. A GGUF file has
 * them apart, attn_v_b as it is and attn_k_b transposed, because it is applied to the query (LatentSpec in model.h). Rotated
 * components are published as neighbours, and stay so.
 *
 * Multi-token prediction. That layer is published as one more of model.layers, with eh_proj, enorm, hnorm, shared_head, and perhaps an
 * embedding and a head of its own. It is converted if eh_proj is there, whatever num_nextn_predict_layers says.
 *
 * Routing. topk_method: "greedy" knows no groups, "group_limited_greedy" (V2) compares the greatest of each, "noaux_tc" (V3, GLM)
 * the sums of the two greatest behind sigmoids, with a bias. YaRN: mscale_all_dim is in the scores, for which the GGUF file
 * has yarn_log_multiplier; mscale must be the same then, so that cos and sin have no factor.
 *
 * Proof: tests/cli/test_convert_deepseek.c. */
#include "cli/convert/config_reader.h"
#include "cli/convert/convert_arch.h"

#include <stdio.h>
#include <string.h>

#define LAYER(name) "model.layers.%d." name
#define ATTENTION(name) LAYER("self_attn." name ".weight")
#define TENSOR(from, to) \
    { LAYER(from), to, false, FORM_SAME }
#define OPTIONAL(from, to) \
    { LAYER(from), to, true, FORM_SAME }

#define MODEL_TENSORS \
    {"model.embed_tokens.weight", TENSOR_TOKEN_EMBD, false, FORM_SAME}, \
        {"model.norm.weight", TENSOR_OUTPUT_NORM, false, FORM_SAME}, \
        {"lm_head.weight", TENSOR_OUTPUT, true, FORM_SAME}, TENSOR("input_layernorm.weight", TENSOR_ATTN_NORM)
#define FEED_FORWARD_TENSORS \
    TENSOR("mlp.gate_proj.weight", TENSOR_FFN_GATE), TENSOR("mlp.up_proj.weight", TENSOR_FFN_UP), \
        TENSOR("mlp.down_proj.weight", TENSOR_FFN_DOWN), TENSOR("mlp.gate.weight", TENSOR_ROUTER), \
        OPTIONAL("mlp.gate.e_score_correction_bias", TENSOR_CHOICE_BIAS), \
        TENSOR("mlp.experts.%d.gate_proj.weight", TENSOR_EXPERT_GATE), \
        TENSOR("mlp.experts.%d.up_proj.weight", TENSOR_EXPERT_UP), \
        TENSOR("mlp.experts.%d.down_proj.weight", TENSOR_EXPERT_DOWN), \
        TENSOR("mlp.shared_experts.gate_proj.weight", TENSOR_SHARED_GATE), \
        TENSOR("mlp.shared_experts.up_proj.weight", TENSOR_SHARED_UP), \
        TENSOR("mlp.shared_experts.down_proj.weight", TENSOR_SHARED_DOWN)
#define NEXTN_TENSORS \
    TENSOR("eh_proj.weight", TENSOR_NEXTN_EH_PROJ), TENSOR("enorm.weight", TENSOR_NEXTN_ENORM), \
        TENSOR("hnorm.weight", TENSOR_NEXTN_HNORM), OPTIONAL("shared_head.norm.weight", TENSOR_NEXTN_HEAD_NORM), \
        OPTIONAL("shared_head.head.weight", TENSOR_NEXTN_HEAD), OPTIONAL("embed_tokens.weight", TENSOR_NEXTN_EMBD)

const ConvertTensor convert_deepseek_tensors[] = {
    MODEL_TENSORS,
    TENSOR("post_attention_layernorm.weight", TENSOR_FFN_NORM),
    TENSOR("self_attn.q_proj.weight", TENSOR_LATENT_Q),
    TENSOR("self_attn.q_a_proj.weight", TENSOR_LATENT_Q_A),
    TENSOR("self_attn.q_a_layernorm.weight", TENSOR_LATENT_Q_A_NORM),
    TENSOR("self_attn.q_b_proj.weight", TENSOR_LATENT_Q_B),
    TENSOR("self_attn.kv_a_proj_with_mqa.weight", TENSOR_LATENT_KV_A),
    TENSOR("self_attn.kv_a_layernorm.weight", TENSOR_LATENT_KV_A_NORM),
    {ATTENTION("kv_b_proj"), TENSOR_LATENT_K_B, false, FORM_KEYS_OF_LATENT},
    {ATTENTION("kv_b_proj"), TENSOR_LATENT_V_B, false, FORM_VALUES_OF_LATENT},
    TENSOR("self_attn.o_proj.weight", TENSOR_LATENT_OUTPUT),
    FEED_FORWARD_TENSORS,
    NEXTN_TENSORS,
    {.from = NULL},
};

const ConvertTensor convert_glm4moe_tensors[] = {
    MODEL_TENSORS,
    TENSOR("post_attention_layernorm.weight", TENSOR_FFN_NORM_POST_ATTN),
    TENSOR("self_attn.q_proj.weight", TENSOR_ATTN_Q),
    TENSOR("self_attn.k_proj.weight", TENSOR_ATTN_K),
    TENSOR("self_attn.v_proj.weight", TENSOR_ATTN_V),
    TENSOR("self_attn.o_proj.weight", TENSOR_ATTN_OUTPUT),
    OPTIONAL("self_attn.q_proj.bias", TENSOR_ATTN_Q_BIAS),
    OPTIONAL("self_attn.k_proj.bias", TENSOR_ATTN_K_BIAS),
    OPTIONAL("self_attn.v_proj.bias", TENSOR_ATTN_V_BIAS),
    OPTIONAL("self_attn.q_norm.weight", TENSOR_ATTN_Q_NORM),
    OPTIONAL("self_attn.k_norm.weight", TENSOR_ATTN_K_NORM),
    FEED_FORWARD_TENSORS,
    NEXTN_TENSORS,
    {.from = NULL},
};

static bool is_of(const ConvertTensor *t, const char *part) { return strstr(t->from, part) != NULL; }

bool convert_routed_has(const ConvertShape *s, const ConvertTensor *t, int64_t layer) {
    bool is_dense = is_of(t, ".mlp.gate_proj") || is_of(t, ".mlp.up_proj") || is_of(t, ".mlp.down_proj");
    if (is_of(t, "mlp.shared_experts") && s->n_ff_shared == 0) return false;
    if (is_of(t, ".mlp.")) return is_dense == (layer < s->n_dense);
    if (t->to >= TENSOR_NEXTN_EH_PROJ) return layer >= s->n_layer;
    if (s->kv_rank && is_of(t, ".q_proj")) return s->q_rank == 0;
    return !is_of(t, ".q_a_") && !is_of(t, ".q_b_") ? true : s->q_rank > 0;
}

/* ---- config.json -------------------------------------------------------------------------------------- */

static void refuse(ConfigReader *r, const char *what) {
    if (!r->status) r->status = error_set(r->err, FR_ERR_UNSUPPORTED, "%s/config.json: %s", r->c->folder, what);
}

static bool is_text(const ConfigReader *r, const char *key, const char *fallback, const char *value) {
    const char *text = config_text(r->object, key);
    return strcmp(text ? text : fallback, value) == 0;
}

/* What the three models leave out differs: V2 routes by a softmax and has no bias of choices. */
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
        refuse(r, "scoring_func must be softmax or sigmoid");
    if (config_int(r, "moe_layer_freq", 1, 1, 1 << 20) != 1)
        refuse(r, "moe_layer_freq leaves layers without experts, which is not supported");
}

static void read_groups(ConvertShape *s, ConfigReader *r) {
    const char *usual = is_v2(r->c) ? "greedy" : "noaux_tc";
    bool is_greedy = is_text(r, "topk_method", usual, "greedy"),
         by_greatest = is_text(r, "topk_method", usual, "group_limited_greedy"),
         by_two = is_text(r, "topk_method", usual, "noaux_tc");
    if (!is_greedy && !by_greatest && !by_two)
        refuse(r, "topk_method must be greedy, group_limited_greedy or noaux_tc");
    if (is_greedy || !config_has(r, "n_group")) return;
    s->n_groups = config_int(r, "n_group", 1, 1, s->n_expert);
    s->n_groups_used = config_int(r, "topk_group", 1, 1, s->n_groups);
    if (s->n_groups > 1 && by_two != s->has_sigmoid_router)
        refuse(r,
               "groups of experts must be chosen by noaux_tc with sigmoids, or by group_limited_greedy with a softmax");
}

/* The factor of scores; cos and sin must have none. */
static void check_magnitude(const ConvertShape *s, ConfigReader *r) {
    ConfigReader sub = {.c = r->c, .object = s->scaling, .err = r->err, .status = r->status};
    if (strcmp(s->scaling_type, "yarn") != 0 || !config_has(&sub, "mscale_all_dim")) return;
    double all = config_real(&sub, "mscale_all_dim", 0, 0, 100), of_turns = config_real(&sub, "mscale", 1, 0, 100);
    r->status = sub.status;
    if (all > 0 && (all > of_turns || all < of_turns)) refuse(r, "mscale must be mscale_all_dim");
}

static void read_latent(ConvertShape *s, ConfigReader *r) {
    s->q_rank = config_has(r, "q_lora_rank") ? config_int(r, "q_lora_rank", 0, 1, 1 << 12) : 0;
    s->kv_rank = config_int(r, "kv_lora_rank", -1, 1, 1 << 12);
    s->plain_dim = config_int(r, "qk_nope_head_dim", -1, 1, 1 << 12);
    s->value_dim = config_int(r, "v_head_dim", -1, 1, 1 << 12);
    s->n_rot = config_int(r, "qk_rope_head_dim", -1, 2, 1 << 12);
    s->head_dim = s->kv_rank + s->n_rot; /* of what is cached */
    s->n_head_kv = 1;
    if (s->n_rot % 2) refuse(r, "qk_rope_head_dim must be even");
    if (json_is_false(json_object_get(r->object, "rope_interleave"))) refuse(r, "rope_interleave must be true");
    if (json_is_true(json_object_get(r->object, "attention_bias"))) refuse(r, "attention_bias is not supported here");
    check_magnitude(s, r);
}

int convert_glm4moe_read(ConvertShape *s, const HubFolder *c, fr_error *err) {
    ConfigReader r = {.c = c, .object = c->config, .err = err};
    read_experts(s, &r);
    read_groups(s, &r);
    return r.status;
}

int convert_deepseek_read(ConvertShape *s, const HubFolder *c, fr_error *err) {
    ConfigReader r = {.c = c, .object = c->config, .err = err};
    read_latent(s, &r);
    read_experts(s, &r);
    read_groups(s, &r);
    return r.status;
}

/* ---- keys --------------------------------------------------------------------------------------------- */

int convert_glm4moe_keys(const ConvertShape *s, const HubFolder *c, GgufWriter *w, fr_error *err) {
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

int convert_deepseek_keys(const ConvertShape *s, const HubFolder *c, GgufWriter *w, fr_error *err) {
    const json_t *all = json_object_get(s->scaling, "mscale_all_dim");
    if (s->q_rank) convert_set_int(w, s->arch, "attention.q_lora_rank", s->q_rank);
    convert_set_int(w, s->arch, "attention.kv_lora_rank", s->kv_rank);
    convert_set_int(w, s->arch, "attention.key_length_mla", s->plain_dim + s->n_rot);
    convert_set_int(w, s->arch, "attention.value_length_mla", s->value_dim);
    if (strcmp(s->scaling_type, "yarn") == 0 && json_number_value(all) > 0)
        convert_set_real(w, s->arch, "rope.scaling.yarn_log_multiplier", 0.1 * json_number_value(all));
    return convert_glm4moe_keys(s, c, w, err);
}

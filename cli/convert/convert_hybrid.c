/* convert_hybrid.c - the architectures with attention in some layers and a recurrent state in the others: Gated
 * DeltaNet (qwen3next, qwen35 and qwen35moe), short convolutions (LFM2) and Mamba-2 (Granite 4.0 H).
 *
 * Granite 4.0 H has no rotation, unless position_embedding_type is "rope". Every token passes its shared_mlp; in models
 * with experts these are beside it, and in models without experts it is the feed-forward part.
 *
 * Proof: tests/cli/test_convert_arch.c, tests/cli/test_convert_published.c. */
#include "cli/convert/convert_arch.h"

#include <stdio.h>
#include <string.h>

/* ---- Gated DeltaNet ----------------------------------------------------------------------------------- */

/* One layer in N has attention. If layer_types is there, it must agree. */
static void read_interval(ConfigReader *r, ConvertShape *s) {
    const json_t *types = json_object_get(r->object, "layer_types"), *type;
    int64_t first = 4;
    size_t i;
    if (json_array_size(types)) first = 1024;
    json_array_foreach(types, i, type) if (first == 1024 && json_is_string(type) &&
                                           strcmp(json_string_value(type), "full_attention") == 0)
        first = (int64_t)i + 1;
    s->attention_interval = config_int(r, "full_attention_interval", first, 1, 1024);
    json_array_foreach(types, i, type) {
        bool full = ((int64_t)i + 1) % s->attention_interval == 0;
        const char *wanted = full ? "full_attention" : "linear_attention";
        if (!json_is_string(type) || strcmp(json_string_value(type), wanted) != 0)
            config_refuse(r, "layer_types must have full_attention at equal distances");
    }
}

static int delta_read(ConvertShape *s, const HubFolder *c, fr_error *err) {
    ConfigReader r = {.c = c, .object = c->config, .err = err};
    s->n_key_heads = config_int(&r, "linear_num_key_heads", -1, 1, 1 << 10);
    s->n_value_heads = config_int(&r, "linear_num_value_heads", -1, 1, 1 << 10);
    s->delta_dim = config_int(&r, "linear_key_head_dim", -1, 1, 1 << 10);
    s->n_conv = config_int(&r, "linear_conv_kernel_dim", -1, 1, 1 << 10);
    if (config_int(&r, "linear_value_head_dim", -1, 1, 1 << 10) != s->delta_dim)
        config_refuse(&r, "linear_value_head_dim must be linear_key_head_dim");
    read_interval(&r, s);
    if (s->n_value_heads % s->n_key_heads)
        config_refuse(&r, "linear_num_value_heads must be a multiple of linear_num_key_heads");
    if (json_is_false(json_object_get(c->config, "attn_output_gate")))
        config_refuse(&r, "attention without attn_output_gate is not supported");
    for (int64_t i = 0; i < s->n_layer; i++) s->recurrent[i] = (i + 1) % s->attention_interval != 0;
    return r.status;
}

/* Writes the numbers of rotated pairs for time, height and width. In text the three are the same position, but other
 * programs need the key. */
static void write_sections(const ConvertShape *s, const HubFolder *c, GgufWriter *w) {
    const json_t *rope = json_object_get(c->config, "rope_parameters"),
                 *sections = json_object_get(rope, "mrope_section");
    int32_t n[4] = {0};
    char full[128];
    if (json_array_size(sections) == 0 || json_array_size(sections) > 4) return;
    for (size_t i = 0; i < json_array_size(sections); i++)
        n[i] = (int32_t)json_integer_value(json_array_get(sections, i));
    snprintf(full, sizeof full, "%s.rope.dimension_sections", s->arch);
    gguf_set_i32s(w, full, n, 4);
}

static int delta_keys(const ConvertShape *s, const HubFolder *c, GgufWriter *w, fr_error *err) {
    (void)err;
    convert_set_int(w, s->arch, "ssm.conv_kernel", s->n_conv);
    convert_set_int(w, s->arch, "ssm.state_size", s->delta_dim);
    convert_set_int(w, s->arch, "ssm.group_count", s->n_key_heads);
    convert_set_int(w, s->arch, "ssm.time_step_rank", s->n_value_heads);
    convert_set_int(w, s->arch, "ssm.inner_size", s->n_value_heads * s->delta_dim);
    convert_set_int(w, s->arch, "full_attention_interval", s->attention_interval);
    write_sections(s, c, w);
    return FR_OK;
}

/* ---- which layers are recurrent ----------------------------------------------------------------------- */

/* Finds the recurrent layers: from layer_types, whose names for the two kinds are given, or from a list of the layers
 * with attention (in older files of LFM2). */
static void read_layers(ConfigReader *r, ConvertShape *s, const char *attention, const char *recurrent) {
    const json_t *types = json_object_get(r->object, "layer_types"),
                 *full = json_object_get(r->object, "full_attn_idxs"), *one;
    size_t i;
    s->lists_kv_heads = true;
    if (!json_is_array(types) && json_is_array(full)) {
        for (i = 0; i < (size_t)s->n_layer; i++) s->recurrent[i] = true;
        json_array_foreach(full, i, one) {
            json_int_t layer = json_is_integer(one) ? json_integer_value(one) : -1;
            if (layer >= 0 && layer < s->n_layer) s->recurrent[layer] = false;
            else config_refuse(r, "full_attn_idxs names a layer that the model does not have");
        }
        return;
    }
    if ((int64_t)json_array_size(types) != s->n_layer) config_refuse(r, "layer_types must name the kind of each layer");
    json_array_foreach(types, i, one) {
        const char *type = json_string_value(one);
        bool is_recurrent = type && strcmp(type, recurrent) == 0;
        if (i < (size_t)s->n_layer) s->recurrent[i] = is_recurrent;
        if (!is_recurrent && (!type || strcmp(type, attention) != 0))
            config_refuse(r, "layer_types has an unknown kind of layer");
    }
}

/* ---- LFM2 --------------------------------------------------------------------------------------------- */

/* The feed-forward width is two thirds of the number in config.json, times a factor, rounded up to a multiple of
 * another number, unless block_auto_adjust_ff_dim is false. */
static void adjust_ff(ConfigReader *r, ConvertShape *s) {
    if (json_is_false(json_object_get(r->object, "block_auto_adjust_ff_dim"))) return;
    double factor = config_real(r, "block_ffn_dim_multiplier", 1, 1e-3, 1e3);
    int64_t multiple = config_int(r, "block_multiple_of", 256, 1, 1 << 16), n = 2 * s->n_ff / 3;
    n = (int64_t)(factor * (double)n);
    s->n_ff = (n + multiple - 1) / multiple * multiple;
}

static int lfm2_read(ConvertShape *s, const HubFolder *c, fr_error *err) {
    ConfigReader r = {.c = c, .object = c->config, .err = err};
    s->n_conv = config_int(&r, "conv_L_cache", 3, 2, 1 << 10);
    if (json_is_true(json_object_get(c->config, "conv_bias"))) config_refuse(&r, "conv_bias is not supported");
    adjust_ff(&r, s);
    read_layers(&r, s, "full_attention", "conv");
    return r.status;
}

static int lfm2_keys(const ConvertShape *s, const HubFolder *c, GgufWriter *w, fr_error *err) {
    (void)c, (void)err;
    gguf_set_u32(w, "lfm2.shortconv.l_cache", (uint32_t)s->n_conv);
    return FR_OK;
}

static bool lfm2moe_has(const ConvertShape *s, const ConvertTensor *t, int64_t layer) {
    if (strstr(t->from, s->recurrent[layer] ? ".self_attn." : ".conv.")) return false;
    bool is_dense = strstr(t->from, "feed_forward.w") != NULL;
    return !strstr(t->from, "feed_forward.") || is_dense == (layer < s->n_dense);
}

static int lfm2moe_read(ConvertShape *s, const HubFolder *c, fr_error *err) {
    ConfigReader r = {.c = c, .object = c->config, .err = err};
    const json_t *scale = json_object_get(c->config, "routed_scaling_factor");
    s->n_conv = config_int(&r, "conv_L_cache", 3, 2, 1 << 10);
    s->n_dense = config_int(&r, "num_dense_layers", 2, 0, s->n_layer);
    if (json_is_true(json_object_get(c->config, "conv_bias"))) config_refuse(&r, "conv_bias is not supported");
    if (json_is_false(json_object_get(c->config, "use_expert_bias"))) config_refuse(&r, "use_expert_bias must be true");
    if (scale && !(json_number_value(scale) >= 1 && json_number_value(scale) <= 1))
        config_refuse(&r, "routed_scaling_factor must be 1");
    read_layers(&r, s, "full_attention", "conv");
    return r.status;
}

static int lfm2moe_keys(const ConvertShape *s, const HubFolder *c, GgufWriter *w, fr_error *err) {
    enum { GATE_SIGMOID = 2 };
    (void)c, (void)err;
    gguf_set_u32(w, "lfm2moe.shortconv.l_cache", (uint32_t)s->n_conv);
    gguf_set_u32(w, "lfm2moe.leading_dense_block_count", (uint32_t)s->n_dense);
    gguf_set_u32(w, "lfm2moe.expert_gating_func", GATE_SIGMOID);
    return FR_OK;
}

/* ---- Granite 4.0 H ------------------------------------------------------------------------------------ */

static void read_mamba(ConfigReader *r, ConvertShape *s) {
    int64_t expand = config_int(r, "mamba_expand", 2, 1, 64);
    s->n_conv = config_int(r, "mamba_d_conv", 4, 2, 1 << 10);
    s->n_state = config_int(r, "mamba_d_state", 256, 1, 1 << 12);
    s->n_key_heads = config_int(r, "mamba_n_groups", 1, 1, 1 << 12);
    s->n_value_heads = config_int(r, "mamba_n_heads", 128, 1, 1 << 12);
    s->delta_dim = expand * s->n_embd / s->n_value_heads;
    bool is_whole = s->n_value_heads * s->delta_dim == expand * s->n_embd && s->n_value_heads % s->n_key_heads == 0;
    if (!is_whole)
        config_refuse(r, "mamba_n_heads must divide mamba_expand * hidden_size, and mamba_n_groups must divide it");
    const json_t *dim = json_object_get(r->object, "mamba_d_head"); /* a number, or "auto" */
    if (json_is_integer(dim) && json_integer_value(dim) != s->delta_dim)
        config_refuse(r, "mamba_d_head must be mamba_expand * hidden_size / mamba_n_heads");
    if (json_is_true(json_object_get(r->object, "mamba_proj_bias")))
        config_refuse(r, "mamba_proj_bias is not supported");
}

static int granite_hybrid_read(ConvertShape *s, const HubFolder *c, fr_error *err) {
    ConfigReader r = {.c = c, .object = c->config, .err = err};
    int64_t n_ff_shared = config_int(&r, "shared_intermediate_size", -1, 1, 1 << 20);
    if (s->n_expert) s->n_ff_shared = n_ff_shared, s->n_ff_expert = s->n_ff;
    else s->n_ff = n_ff_shared;
    read_mamba(&r, s);
    read_layers(&r, s, "attention", "mamba");
    return r.status;
}

static int granite_hybrid_keys(const ConvertShape *s, const HubFolder *c, GgufWriter *w, fr_error *err) {
    const char *rotation = config_text(c->config, "position_embedding_type");
    gguf_set_bool(w, "granitehybrid.rope.scaling.finetuned", rotation && strcmp(rotation, "rope") == 0);
    gguf_set_u32(w, "granitehybrid.ssm.conv_kernel", (uint32_t)s->n_conv);
    gguf_set_u32(w, "granitehybrid.ssm.state_size", (uint32_t)s->n_state);
    gguf_set_u32(w, "granitehybrid.ssm.group_count", (uint32_t)s->n_key_heads);
    gguf_set_u32(w, "granitehybrid.ssm.time_step_rank", (uint32_t)s->n_value_heads);
    gguf_set_u32(w, "granitehybrid.ssm.inner_size", (uint32_t)(s->n_value_heads * s->delta_dim));
    return convert_granite_keys(s, c, w, err);
}

/* ---- tables ------------------------------------------------------------------------------------------- */

/* The queries of attention come with gates. The norm before the feed-forward part has the name that Gemma's files give
 * to the norm after attention. */
#define DELTA_NET_TENSORS \
    MODEL_TENSORS, SAME("post_attention_layernorm.weight", TENSOR_FFN_NORM_POST_ATTN), \
        SAME("self_attn.q_proj.weight", TENSOR_ATTN_Q_GATED), SAME("self_attn.k_proj.weight", TENSOR_ATTN_K), \
        SAME("self_attn.v_proj.weight", TENSOR_ATTN_V), SAME("self_attn.o_proj.weight", TENSOR_ATTN_OUTPUT), \
        HEAD_NORMS, SAME("linear_attn.norm.weight", TENSOR_DELTA_NORM)
static const ConvertTensor qwen3next_tensors[] = {
    DELTA_NET_TENSORS,
    ROW("linear_attn.in_proj_qkvz.weight", TENSOR_DELTA_QKV, FORM_QKV_OF_QKVZ),
    ROW("linear_attn.in_proj_qkvz.weight", TENSOR_DELTA_Z, FORM_Z_OF_QKVZ),
    SAME("linear_attn.in_proj_ba.weight", TENSOR_DELTA_BETA_ALPHA),
    ROW("linear_attn.conv1d.weight", TENSOR_STATE_CONV, FORM_CONV),
    SAME("linear_attn.dt_bias", TENSOR_DELTA_DT),
    ROW("linear_attn.A_log", TENSOR_DELTA_A, FORM_DECAY),
    SAME("linear_attn.out_proj.weight", TENSOR_STATE_OUT),
    QWEN_EXPERTS,
    QWEN_SHARED_EXPERT,
    END_OF_TENSORS,
};
#define QWEN35_TENSORS \
    DELTA_NET_TENSORS, ROW("linear_attn.in_proj_qkv.weight", TENSOR_DELTA_QKV, FORM_QKV), \
        ROW("linear_attn.in_proj_z.weight", TENSOR_DELTA_Z, FORM_VALUES), \
        ROW("linear_attn.in_proj_b.weight", TENSOR_DELTA_BETA, FORM_HEADS), \
        ROW("linear_attn.in_proj_a.weight", TENSOR_DELTA_ALPHA, FORM_HEADS), \
        ROW("linear_attn.conv1d.weight", TENSOR_STATE_CONV, FORM_QKV_CONV), \
        ROW("linear_attn.dt_bias", TENSOR_DELTA_DT, FORM_HEADS), \
        ROW("linear_attn.A_log", TENSOR_DELTA_A, FORM_HEADS_DECAY), \
        ROW("linear_attn.out_proj.weight", TENSOR_STATE_OUT, FORM_VALUE_INPUTS)
static const ConvertTensor qwen35_tensors[] = {QWEN35_TENSORS, DENSE_TENSORS, END_OF_TENSORS};
static const ConvertTensor qwen35moe_tensors[] = {
    QWEN35_TENSORS,
    SAME("mlp.gate.weight", TENSOR_ROUTER),
    ROW("mlp.experts.gate_up_proj", TENSOR_EXPERT_GATE, FORM_FIRST_HALF),
    ROW("mlp.experts.gate_up_proj", TENSOR_EXPERT_UP, FORM_SECOND_HALF),
    ROW("mlp.experts.down_proj", TENSOR_EXPERT_DOWN, FORM_STACKED),
    QWEN_SHARED_EXPERT,
    END_OF_TENSORS,
};

#define LFM2_TENSORS \
    {"model.embed_tokens.weight", TENSOR_TOKEN_EMBD, false, FORM_SAME}, \
        {"model.embedding_norm.weight", TENSOR_EMBD_NORM, false, FORM_SAME}, \
        {"lm_head.weight", TENSOR_OUTPUT, true, FORM_SAME}, SAME("operator_norm.weight", TENSOR_ATTN_NORM), \
        SAME("self_attn.q_proj.weight", TENSOR_ATTN_Q), SAME("self_attn.k_proj.weight", TENSOR_ATTN_K), \
        SAME("self_attn.v_proj.weight", TENSOR_ATTN_V), SAME("self_attn.out_proj.weight", TENSOR_ATTN_OUTPUT), \
        SAME("self_attn.q_layernorm.weight", TENSOR_ATTN_Q_NORM), \
        SAME("self_attn.k_layernorm.weight", TENSOR_ATTN_K_NORM), SAME("conv.in_proj.weight", TENSOR_SHORT_CONV_IN), \
        ROW("conv.conv.weight", TENSOR_SHORT_CONV, FORM_CONV), SAME("conv.out_proj.weight", TENSOR_SHORT_CONV_OUT), \
        SAME("ffn_norm.weight", TENSOR_FFN_NORM), SAME("feed_forward.w1.weight", TENSOR_FFN_GATE), \
        SAME("feed_forward.w3.weight", TENSOR_FFN_UP), SAME("feed_forward.w2.weight", TENSOR_FFN_DOWN)
static const ConvertTensor lfm2_tensors[] = {LFM2_TENSORS, END_OF_TENSORS};
static const ConvertTensor lfm2moe_tensors[] = {
    LFM2_TENSORS,
    SAME("feed_forward.gate.weight", TENSOR_ROUTER),
    SAME("feed_forward.expert_bias", TENSOR_CHOICE_BIAS),
    SAME("feed_forward.experts.%d.w1.weight", TENSOR_EXPERT_GATE),
    SAME("feed_forward.experts.%d.w3.weight", TENSOR_EXPERT_UP),
    SAME("feed_forward.experts.%d.w2.weight", TENSOR_EXPERT_DOWN),
    END_OF_TENSORS,
};

#define GRANITE_HYBRID_TENSORS(gate, up, down) \
    ATTENTION_TENSORS, SAME("mamba.in_proj.weight", TENSOR_MAMBA_IN), \
        ROW("mamba.conv1d.weight", TENSOR_STATE_CONV, FORM_CONV), \
        OPTIONAL("mamba.conv1d.bias", TENSOR_MAMBA_CONV_BIAS), SAME("mamba.dt_bias", TENSOR_MAMBA_DT), \
        ROW("mamba.A_log", TENSOR_MAMBA_A, FORM_CUT_DECAY), ROW("mamba.D", TENSOR_MAMBA_D, FORM_CUT), \
        ROW("mamba.norm.weight", TENSOR_MAMBA_NORM, FORM_CUT), SAME("mamba.out_proj.weight", TENSOR_STATE_OUT), \
        ROW("shared_mlp.input_linear.weight", gate, FORM_FIRST_ROWS), \
        ROW("shared_mlp.input_linear.weight", up, FORM_SECOND_ROWS), SAME("shared_mlp.output_linear.weight", down)
static const ConvertTensor granite_dense_tensors[] = {
    GRANITE_HYBRID_TENSORS(TENSOR_FFN_GATE, TENSOR_FFN_UP, TENSOR_FFN_DOWN), END_OF_TENSORS};
static const ConvertTensor granite_expert_tensors[] = {
    GRANITE_HYBRID_TENSORS(TENSOR_SHARED_GATE, TENSOR_SHARED_UP, TENSOR_SHARED_DOWN),
    SAME("block_sparse_moe.router.layer.weight", TENSOR_ROUTER),
    ROW("block_sparse_moe.input_linear.weight", TENSOR_EXPERT_GATE, FORM_FIRST_HALF),
    ROW("block_sparse_moe.input_linear.weight", TENSOR_EXPERT_UP, FORM_SECOND_HALF),
    ROW("block_sparse_moe.output_linear.weight", TENSOR_EXPERT_DOWN, FORM_STACKED),
    END_OF_TENSORS,
};

#define DELTA_NET \
    .recurrent = ".linear_attn.", .read = delta_read, .keys = delta_keys, .has_mtp = true, .adds_1_to_norms = true, \
    .usual = {.head_dim = 256, .rotated_part = 0.25}

const ConvertArch convert_hybrid_archs[] = {
    {.published = "Qwen3NextForCausalLM",
     .name = "qwen3next",
     .tensors = qwen3next_tensors,
     .experts = EXPERTS_SUM_TO_1,
     DELTA_NET},
    {.published = "Qwen3_5ForConditionalGeneration Qwen3_5ForCausalLM",
     .name = "qwen35",
     .tensors = qwen35_tensors,
     .has_text_part = true,
     DELTA_NET},
    {.published = "Qwen3_5MoeForConditionalGeneration Qwen3_5MoeForCausalLM",
     .name = "qwen35moe",
     .tensors = qwen35moe_tensors,
     .experts = EXPERTS_ALWAYS_SUM_TO_1,
     .has_text_part = true,
     DELTA_NET},
    {.published = "Lfm2ForCausalLM",
     .name = "lfm2",
     .tensors = lfm2_tensors,
     .recurrent = ".conv.",
     .read = lfm2_read,
     .keys = lfm2_keys,
     .usual = {.rope_base = 1e6, .is_tied = true, .eps_key = "norm_eps", .ff_key = "block_ff_dim"}},
    {.published = "Lfm2MoeForCausalLM",
     .name = "lfm2moe",
     .tensors = lfm2moe_tensors,
     .experts = EXPERTS_ALWAYS_SUM_TO_1,
     .recurrent = ".conv.",
     .read = lfm2moe_read,
     .keys = lfm2moe_keys,
     .has = lfm2moe_has,
     .usual = {.rope_base = 1e6, .is_tied = true, .eps_key = "norm_eps"}},
    {.published = "GraniteMoeHybridForCausalLM",
     .name = "granitehybrid",
     .tensors = granite_expert_tensors,
     .dense = granite_dense_tensors,
     .rotates_pairs = true,
     .experts = EXPERTS_SUM_TO_1,
     .recurrent = ".mamba.",
     .read = granite_hybrid_read,
     .keys = granite_hybrid_keys},
    {.published = NULL},
};

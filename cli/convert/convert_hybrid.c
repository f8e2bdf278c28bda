/* convert_hybrid.c - the shape and the keys of models with attention in some layers and a recurrent state in the others: LFM2 (short
 * convolutions) and Granite 4.0 H (Mamba-2).
 *
 * The feed-forward width of LFM2 is not the number in config.json, but two thirds of it, times a factor, in whole multiples
 * of another number, unless block_auto_adjust_ff_dim is false. Granite 4.0 H has no rotation, unless
 * position_embedding_type is "rope"; where it has no experts, the feed-forward part is what stands beside them in others. */
#include "cli/convert/config_reader.h"
#include "cli/convert/convert_arch.h"

#include <string.h>

/* By layer_types, whose names of the two kinds are given, or by a list of the layers with attention (LFM2's older files). */
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

#define LAYER(name) "model.layers.%d." name

/* LFM2: layers with attention, and others with a short convolution; experts behind the first layers, or none. */
#define LFM2_TENSORS \
    {"model.embed_tokens.weight", TENSOR_TOKEN_EMBD, false, FORM_SAME}, \
        {"model.embedding_norm.weight", TENSOR_EMBD_NORM, false, FORM_SAME}, \
        {"lm_head.weight", TENSOR_OUTPUT, true, FORM_SAME}, \
        {LAYER("operator_norm.weight"), TENSOR_ATTN_NORM, false, FORM_SAME}, \
        {LAYER("self_attn.q_proj.weight"), TENSOR_ATTN_Q, false, FORM_SAME}, \
        {LAYER("self_attn.k_proj.weight"), TENSOR_ATTN_K, false, FORM_SAME}, \
        {LAYER("self_attn.v_proj.weight"), TENSOR_ATTN_V, false, FORM_SAME}, \
        {LAYER("self_attn.out_proj.weight"), TENSOR_ATTN_OUTPUT, false, FORM_SAME}, \
        {LAYER("self_attn.q_layernorm.weight"), TENSOR_ATTN_Q_NORM, false, FORM_SAME}, \
        {LAYER("self_attn.k_layernorm.weight"), TENSOR_ATTN_K_NORM, false, FORM_SAME}, \
        {LAYER("conv.in_proj.weight"), TENSOR_SHORT_CONV_IN, false, FORM_SAME}, \
        {LAYER("conv.conv.weight"), TENSOR_SHORT_CONV, false, FORM_CONV}, \
        {LAYER("conv.out_proj.weight"), TENSOR_SHORT_CONV_OUT, false, FORM_SAME}, \
        {LAYER("ffn_norm.weight"), TENSOR_FFN_NORM, false, FORM_SAME}, \
        {LAYER("feed_forward.w1.weight"), TENSOR_FFN_GATE, false, FORM_SAME}, \
        {LAYER("feed_forward.w3.weight"), TENSOR_FFN_UP, false, FORM_SAME}, { \
        LAYER("feed_forward.w2.weight"), TENSOR_FFN_DOWN, false, FORM_SAME \
    }

const ConvertTensor convert_lfm2_tensors[] = {LFM2_TENSORS, {.from = NULL}};
const ConvertTensor convert_lfm2moe_tensors[] = {
    LFM2_TENSORS,
    {LAYER("feed_forward.gate.weight"), TENSOR_ROUTER, false, FORM_SAME},
    {LAYER("feed_forward.expert_bias"), TENSOR_CHOICE_BIAS, false, FORM_SAME},
    {LAYER("feed_forward.experts.%d.w1.weight"), TENSOR_EXPERT_GATE, false, FORM_SAME},
    {LAYER("feed_forward.experts.%d.w3.weight"), TENSOR_EXPERT_UP, false, FORM_SAME},
    {LAYER("feed_forward.experts.%d.w2.weight"), TENSOR_EXPERT_DOWN, false, FORM_SAME},
    {.from = NULL},
};

static void adjust_ff(ConfigReader *r, ConvertShape *s) {
    if (json_is_false(json_object_get(r->object, "block_auto_adjust_ff_dim"))) return;
    double factor = config_real(r, "block_ffn_dim_multiplier", 1, 1e-3, 1e3);
    int64_t multiple = config_int(r, "block_multiple_of", 256, 1, 1 << 16), n = 2 * s->n_ff / 3;
    n = (int64_t)(factor * (double)n);
    s->n_ff = (n + multiple - 1) / multiple * multiple;
}

int convert_lfm2_read(ConvertShape *s, const HubFolder *c, fr_error *err) {
    ConfigReader r = {.c = c, .object = c->config, .err = err};
    s->n_conv = config_int(&r, "conv_L_cache", 3, 2, 1 << 10);
    if (json_is_true(json_object_get(c->config, "conv_bias"))) config_refuse(&r, "conv_bias is not supported");
    adjust_ff(&r, s);
    read_layers(&r, s, "full_attention", "conv");
    return r.status;
}

int convert_lfm2_keys(const ConvertShape *s, const HubFolder *c, GgufWriter *w, fr_error *err) {
    (void)c, (void)err;
    gguf_set_u32(w, "lfm2.shortconv.l_cache", (uint32_t)s->n_conv);
    return FR_OK;
}

bool convert_lfm2moe_has(const ConvertShape *s, const ConvertTensor *t, int64_t layer) {
    if (strstr(t->from, s->recurrent[layer] ? ".self_attn." : ".conv.")) return false;
    bool is_dense = strstr(t->from, "feed_forward.w") != NULL;
    return !strstr(t->from, "feed_forward.") || is_dense == (layer < s->n_dense);
}

int convert_lfm2moe_read(ConvertShape *s, const HubFolder *c, fr_error *err) {
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

int convert_lfm2moe_keys(const ConvertShape *s, const HubFolder *c, GgufWriter *w, fr_error *err) {
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

int convert_granite_hybrid_read(ConvertShape *s, const HubFolder *c, fr_error *err) {
    ConfigReader r = {.c = c, .object = c->config, .err = err};
    int64_t n_ff_shared = config_int(&r, "shared_intermediate_size", -1, 1, 1 << 20);
    if (s->n_expert) s->n_ff_shared = n_ff_shared, s->n_ff_expert = s->n_ff;
    else s->n_ff = n_ff_shared;
    read_mamba(&r, s);
    read_layers(&r, s, "attention", "mamba");
    return r.status;
}

int convert_granite_hybrid_keys(const ConvertShape *s, const HubFolder *c, GgufWriter *w, fr_error *err) {
    const char *rotation = config_text(c->config, "position_embedding_type");
    gguf_set_bool(w, "granitehybrid.rope.scaling.finetuned", rotation && strcmp(rotation, "rope") == 0);
    gguf_set_u32(w, "granitehybrid.ssm.conv_kernel", (uint32_t)s->n_conv);
    gguf_set_u32(w, "granitehybrid.ssm.state_size", (uint32_t)s->n_state);
    gguf_set_u32(w, "granitehybrid.ssm.group_count", (uint32_t)s->n_key_heads);
    gguf_set_u32(w, "granitehybrid.ssm.time_step_rank", (uint32_t)s->n_value_heads);
    gguf_set_u32(w, "granitehybrid.ssm.inner_size", (uint32_t)(s->n_value_heads * s->delta_dim));
    return convert_granite_keys(s, c, w, err);
}

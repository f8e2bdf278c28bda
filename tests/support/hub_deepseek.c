/* hub_deepseek.c - takes models of DeepSeek's and GLM's architectures apart. */
#include "hub_build.h"

#include "safetensors_build.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[][2] = {
    {"attn_norm.weight", "input_layernorm.weight"},
    {"ffn_norm.weight", "post_attention_layernorm.weight"},
    {"post_attention_norm.weight", "post_attention_layernorm.weight"},
    {"attn_q.weight", "self_attn.q_proj.weight"},
    {"attn_k.weight", "self_attn.k_proj.weight"},
    {"attn_v.weight", "self_attn.v_proj.weight"},
    {"attn_q.bias", "self_attn.q_proj.bias"},
    {"attn_k.bias", "self_attn.k_proj.bias"},
    {"attn_v.bias", "self_attn.v_proj.bias"},
    {"attn_q_norm.weight", "self_attn.q_norm.weight"},
    {"attn_k_norm.weight", "self_attn.k_norm.weight"},
    {"attn_output.weight", "self_attn.o_proj.weight"},
    {"attn_q_a.weight", "self_attn.q_a_proj.weight"},
    {"attn_q_a_norm.weight", "self_attn.q_a_layernorm.weight"},
    {"attn_q_b.weight", "self_attn.q_b_proj.weight"},
    {"attn_kv_a_mqa.weight", "self_attn.kv_a_proj_with_mqa.weight"},
    {"attn_kv_a_norm.weight", "self_attn.kv_a_layernorm.weight"},
    {"ffn_gate.weight", "mlp.gate_proj.weight"},
    {"ffn_up.weight", "mlp.up_proj.weight"},
    {"ffn_down.weight", "mlp.down_proj.weight"},
    {"ffn_gate_inp.weight", "mlp.gate.weight"},
    {"exp_probs_b.bias", "mlp.gate.e_score_correction_bias"},
    {"ffn_gate_shexp.weight", "mlp.shared_experts.gate_proj.weight"},
    {"ffn_up_shexp.weight", "mlp.shared_experts.up_proj.weight"},
    {"ffn_down_shexp.weight", "mlp.shared_experts.down_proj.weight"},
    {"nextn.eh_proj.weight", "eh_proj.weight"},
    {"nextn.enorm.weight", "enorm.weight"},
    {"nextn.hnorm.weight", "hnorm.weight"},
    {"nextn.shared_head_norm.weight", "shared_head.norm.weight"},
    {"nextn.shared_head_head.weight", "shared_head.head.weight"},
    {"nextn.embed_tokens.weight", "embed_tokens.weight"},
};

bool hub_deepseek_has(const Gguf *g) { return hub_is_arch(g, "deepseek2") || hub_is_arch(g, "glm4moe"); }

static void add_matrix(SafeTensorsBuild *b, int layer, const char *name, const float *x, int64_t n_in, int64_t n_out) {
    char full[200];
    snprintf(full, sizeof full, "model.layers.%d.%s", layer, name);
    safetensors_build_add(b, full, x, n_in, n_out);
}

/* For each head, the rows of its keys, then the rows of its values. k [head][rank][plain], v [head][value][rank]. */
static void add_kv_b(SafeTensorsBuild *b, int layer, const GgufTensor *k, const GgufTensor *v) {
    int64_t plain = k->dims[0], rank = k->dims[1], heads = k->dims[2], value = v->dims[1], at = 0;
    float *x = malloc((size_t)(heads * (plain + value) * rank) * sizeof *x);
    assert_non_null(x);
    for (int64_t h = 0; h < heads; h++) {
        for (int64_t d = 0; d < plain; d++)
            for (int64_t r = 0; r < rank; r++) x[at++] = ((const float *)k->data)[(h * rank + r) * plain + d];
        for (int64_t d = 0; d < value; d++)
            for (int64_t r = 0; r < rank; r++) x[at++] = ((const float *)v->data)[(h * value + d) * rank + r];
    }
    add_matrix(b, layer, "self_attn.kv_b_proj.weight", x, rank, heads * (plain + value));
    free(x);
}

static void add_experts(SafeTensorsBuild *b, int layer, const GgufTensor *t, const char *part) {
    char name[80];
    int64_t each = t->dims[0] * t->dims[1];
    for (int64_t e = 0; e < t->dims[2]; e++) {
        snprintf(name, sizeof name, "mlp.experts.%d.%s_proj.weight", (int)e, part);
        add_matrix(b, layer, name, (const float *)t->data + e * each, t->dims[0], t->dims[1]);
    }
}

static void add_of_layer(SafeTensorsBuild *b, const Gguf *g, const GgufTensor *t) {
    int layer, n = 0;
    char part[10], values[40];
    assert_int_equal(sscanf(t->name, "blk.%d.%n", &layer, &n), 1);
    const char *base = t->name + n;
    if (strcmp(base, "attn_v_b.weight") == 0) return;
    if (strcmp(base, "attn_k_b.weight") == 0) {
        snprintf(values, sizeof values, "blk.%d.attn_v_b.weight", layer);
        add_kv_b(b, layer, t, gguf_find_tensor(g, values));
        return;
    }
    if (strstr(base, "_exps.weight") && sscanf(base, "ffn_%9[a-z]", part) == 1) {
        add_experts(b, layer, t, part);
        return;
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i][0], base) == 0) {
            add_matrix(b, layer, names[i][1], t->data, t->dims[0], t->n_dims == 2 ? t->dims[1] : 0);
            return;
        }
    fail_msg("no published name of %s is known", t->name);
}

void hub_deepseek_write(const Gguf *g, const char *folder, const HubBuild *o) {
    static const char *const others[][2] = {{"token_embd.weight", "model.embed_tokens.weight"},
                                            {"output_norm.weight", "model.norm.weight"},
                                            {"output.weight", "lm_head.weight"}};
    SafeTensorsBuild b;
    char path[300];
    safetensors_build_begin(&b, o->type);
    for (int64_t i = 0; i < gguf_n_tensors(g); i++) {
        const GgufTensor *t = gguf_tensor(g, i);
        assert_int_equal(t->type, TYPE_F32);
        if (strncmp(t->name, "blk.", 4) == 0) add_of_layer(&b, g, t);
        for (int k = 0; k < 3; k++)
            if (strcmp(t->name, others[k][0]) == 0)
                safetensors_build_add(&b, others[k][1], t->data, t->dims[0], t->n_dims == 2 ? t->dims[1] : 0);
    }
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    safetensors_build_write(&b, path);
}

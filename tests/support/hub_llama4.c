/* hub_llama4.c - takes models of Llama 4's architecture apart. Names are plain, and all experts are transposed in one
 * tensor, whose rows have the outputs of gate, then those of up. */
#include "hub_build.h"

#include "safetensors_build.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *gguf, *published;
} names[] = {
    {"attn_norm.weight", "input_layernorm.weight"},
    {"attn_q.weight", "self_attn.q_proj.weight"},
    {"attn_k.weight", "self_attn.k_proj.weight"},
    {"attn_v.weight", "self_attn.v_proj.weight"},
    {"attn_output.weight", "self_attn.o_proj.weight"},
    {"ffn_norm.weight", "post_attention_layernorm.weight"},
    {"ffn_gate.weight", "feed_forward.gate_proj.weight"},
    {"ffn_up.weight", "feed_forward.up_proj.weight"},
    {"ffn_down.weight", "feed_forward.down_proj.weight"},
    {"ffn_gate_inp.weight", "feed_forward.router.weight"},
    {"ffn_gate_shexp.weight", "feed_forward.shared_expert.gate_proj.weight"},
    {"ffn_up_shexp.weight", "feed_forward.shared_expert.up_proj.weight"},
    {"ffn_down_shexp.weight", "feed_forward.shared_expert.down_proj.weight"},
};

static const GgufTensor *tensor(const Gguf *g, int layer, const char *name) {
    char full[100];
    snprintf(full, sizeof full, "blk.%d.%s", layer, name);
    return gguf_find_tensor(g, full);
}

/* out [n_expert][n_in][width], columns from `at` on: the transpose of t [n_expert][n_out][n_in]. */
static void transpose(const GgufTensor *t, int64_t width, int64_t at, float *out) {
    int64_t n_in = t->dims[0], n_out = t->dims[1];
    const float *x = t->data;
    for (int64_t e = 0; e < t->dims[2]; e++)
        for (int64_t o = 0; o < n_out; o++)
            for (int64_t i = 0; i < n_in; i++) out[(e * n_in + i) * width + at + o] = x[(e * n_out + o) * n_in + i];
}

static void add_experts(const Gguf *g, SafeTensorsBuild *b, const char *prefix, int layer) {
    const GgufTensor *gate = tensor(g, layer, "ffn_gate_exps.weight"), *up = tensor(g, layer, "ffn_up_exps.weight"),
                     *down = tensor(g, layer, "ffn_down_exps.weight");
    char name[150];
    if (!gate) return;
    int64_t n_embd = gate->dims[0], n_ff = gate->dims[1], n = gate->dims[2];
    float *x = malloc((size_t)(2 * n * n_ff * n_embd) * sizeof *x);
    assert_non_null(x);
    transpose(gate, 2 * n_ff, 0, x);
    transpose(up, 2 * n_ff, n_ff, x);
    snprintf(name, sizeof name, "%smodel.layers.%d.feed_forward.experts.gate_up_proj", prefix, layer);
    safetensors_build_add_shaped(b, name, x, (int64_t[]){n, n_embd, 2 * n_ff}, 3);
    transpose(down, n_embd, 0, x);
    snprintf(name, sizeof name, "%smodel.layers.%d.feed_forward.experts.down_proj", prefix, layer);
    safetensors_build_add_shaped(b, name, x, (int64_t[]){n, n_ff, n_embd}, 3);
    free(x);
}

static void add(SafeTensorsBuild *b, const GgufTensor *t, const char *prefix, const char *name) {
    char full[150];
    if (!t) return;
    assert_int_equal(t->type, TYPE_F32);
    snprintf(full, sizeof full, "%s%s", prefix, name);
    safetensors_build_add(b, full, t->data, t->dims[0], t->n_dims == 2 ? t->dims[1] : 0);
}

void hub_llama4_write(const Gguf *g, const char *folder, const HubBuild *o) {
    const char *prefix = o->text_part ? "language_model." : "";
    const float picture[6] = {0};
    SafeTensorsBuild b;
    char path[300], name[150];
    safetensors_build_begin(&b, o->type);
    add(&b, gguf_find_tensor(g, "token_embd.weight"), prefix, "model.embed_tokens.weight");
    add(&b, gguf_find_tensor(g, "output_norm.weight"), prefix, "model.norm.weight");
    add(&b, gguf_find_tensor(g, "output.weight"), prefix, "lm_head.weight");
    for (int layer = 0; tensor(g, layer, "attn_q.weight"); layer++) {
        for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
            snprintf(name, sizeof name, "model.layers.%d.%s", layer, names[i].published);
            add(&b, tensor(g, layer, names[i].gguf), prefix, name);
        }
        add_experts(g, &b, prefix, layer);
    }
    if (o->text_part) safetensors_build_add(&b, "vision_model.patch_embedding.linear.weight", picture, 3, 2);
    if (o->text_part) safetensors_build_add(&b, "multi_modal_projector.linear_1.weight", picture, 2, 3);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    safetensors_build_write(&b, path);
}

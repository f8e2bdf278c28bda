/* hub_forms.c - takes apart models whose published tensors are not those of a GGUF file. */
#include "hub_build.h"

#include "safetensors_build.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The model that is taken apart, one layer after the other. */
typedef struct Apart {
    const Gguf *g;
    SafeTensorsBuild b;
    const char *prefix; /* the beginning of all names of the text model */
    int64_t first;      /* the layer of the GGUF file that is published as layer 0 */
    int64_t layer, n_embd, n_keys, n_values, dim, n_conv, n_expert, n_ff;
    bool is_tiled; /* value head h reads with key head h % n_keys */
} Apart;

static bool is_hybrid(const Gguf *g) {
    return hub_is_arch(g, "qwen3next") || hub_is_arch(g, "qwen35") || hub_is_arch(g, "qwen35moe");
}
static bool is_lfm2(const Gguf *g) { return hub_is_arch(g, "lfm2") || hub_is_arch(g, "lfm2moe"); }
bool hub_forms_has(const Gguf *g) {
    return is_hybrid(g) || hub_is_arch(g, "gpt-oss") || is_lfm2(g) || hub_is_arch(g, "granitehybrid");
}

static const GgufTensor *tensor(const Apart *a, const char *name) {
    char full[100];
    snprintf(full, sizeof full, "blk.%d.%s", (int)a->layer, name);
    return gguf_find_tensor(a->g, full);
}

static const float *floats(const Apart *a, const char *name) {
    const GgufTensor *t = tensor(a, name);
    if (!t || t->type != TYPE_F32) fail_msg("no %s in F32", name);
    return t->data;
}

static float *room(int64_t n) {
    float *x = malloc((size_t)n * sizeof *x);
    assert_non_null(x);
    return x;
}

static void add(Apart *a, const char *name, const float *x, int n_dims, const int64_t *dims) {
    char full[200];
    snprintf(full, sizeof full, "%slayers.%d.%s", a->prefix, (int)(a->layer - a->first), name);
    safetensors_build_add_shaped(&a->b, full, x, dims, n_dims);
}

/* Publishes a tensor unchanged. A vector has n_out 0. */
static void add_plain(Apart *a, const char *from, const char *to, int64_t n_in, int64_t n_out) {
    const int64_t dims[] = {n_out ? n_out : n_in, n_in};
    add(a, to, floats(a, from), n_out ? 2 : 1, dims);
}

/* The norms of the Qwen hybrids are published as the numbers that are added to 1. */
static void add_norm(Apart *a, const char *from, const char *to, int64_t n) {
    float *x = room(n);
    for (int64_t i = 0; i < n; i++) x[i] = floats(a, from)[i] - 1;
    add(a, to, x, 1, &n);
    free(x);
}

/* ---- recurrent layers -------------------------------------------------------------------------------- */

/* The value head of the GGUF file that is the published head p, where each key head has n_values / n_keys value
 * heads. */
static int64_t value_head(const Apart *a, int64_t p) {
    int64_t each = a->n_values / a->n_keys, key = p / each, rank = p % each;
    return a->is_tiled ? rank * a->n_keys + key : p;
}

/* Copies `each` numbers of each value head, in the published order. */
static void copy_heads(const Apart *a, const float *from, int64_t each, float *to) {
    for (int64_t p = 0; p < a->n_values; p++)
        memcpy(to + p * each, from + value_head(a, p) * each, (size_t)each * sizeof *to);
}

static void add_heads(Apart *a, const char *from, const char *to, int64_t each, int n_dims, const int64_t *dims) {
    float *x = room(a->n_values * each);
    copy_heads(a, floats(a, from), each, x);
    add(a, to, x, n_dims, dims);
    free(x);
}

/* Publishes queries and keys, then values, as rows of n numbers. */
static void add_channels(Apart *a, const char *from, const char *to, int64_t n, int n_dims, const int64_t *dims) {
    int64_t keys = 2 * a->n_keys * a->dim * n;
    float *x = room(keys + a->n_values * a->dim * n);
    memcpy(x, floats(a, from), (size_t)keys * sizeof *x);
    copy_heads(a, floats(a, from) + keys, a->dim * n, x + keys);
    add(a, to, x, n_dims, dims);
    free(x);
}

/* For each key head: its queries, its keys, the values of its heads, and their z. */
static void add_qkvz(Apart *a) {
    int64_t head = a->dim * a->n_embd, each = a->n_values / a->n_keys, rows = 2 * (a->n_keys + a->n_values) * a->dim;
    float *x = room(rows * a->n_embd), *at = x;
    const float *q = floats(a, "attn_qkv.weight"), *k = q + a->n_keys * head, *v = k + a->n_keys * head,
                *z = floats(a, "attn_gate.weight");
    for (int64_t key = 0; key < a->n_keys; key++) {
        const float *const parts[] = {q + key * head, k + key * head, v + key * each * head, z + key * each * head};
        const int64_t n[] = {head, head, each * head, each * head};
        for (int i = 0; i < 4; at += n[i++]) memcpy(at, parts[i], (size_t)n[i] * sizeof *x);
    }
    add(a, "linear_attn.in_proj_qkvz.weight", x, 2, (int64_t[]){rows, a->n_embd});
    free(x);
}

static void add_decay(Apart *a) {
    float *x = room(a->n_values);
    copy_heads(a, floats(a, "ssm_a"), 1, x);
    for (int64_t i = 0; i < a->n_values; i++) x[i] = (float)log(-(double)x[i]);
    add(a, "linear_attn.A_log", x, 1, &a->n_values);
    free(x);
}

/* Publishes a matrix whose inputs are value heads. */
static void add_out(Apart *a) {
    int64_t n = a->n_values * a->dim;
    float *x = room(a->n_embd * n);
    for (int64_t row = 0; row < a->n_embd; row++)
        copy_heads(a, floats(a, "ssm_out.weight") + row * n, a->dim, x + row * n);
    add(a, "linear_attn.out_proj.weight", x, 2, (int64_t[]){a->n_embd, n});
    free(x);
}

static void add_recurrent(Apart *a) {
    int64_t channels = (2 * a->n_keys + a->n_values) * a->dim, heads[] = {a->n_values, a->n_embd};
    const int64_t conv[] = {channels, 1, a->n_conv};
    if (hub_is_arch(a->g, "qwen3next")) {
        add_qkvz(a);
        add_plain(a, "ssm_ba.weight", "linear_attn.in_proj_ba.weight", a->n_embd, 2 * a->n_values);
    } else {
        add_channels(a, "attn_qkv.weight", "linear_attn.in_proj_qkv.weight", a->n_embd, 2,
                     (int64_t[]){channels, a->n_embd});
        add_heads(a, "attn_gate.weight", "linear_attn.in_proj_z.weight", a->dim * a->n_embd, 2,
                  (int64_t[]){a->n_values * a->dim, a->n_embd});
        add_heads(a, "ssm_beta.weight", "linear_attn.in_proj_b.weight", a->n_embd, 2, heads);
        add_heads(a, "ssm_alpha.weight", "linear_attn.in_proj_a.weight", a->n_embd, 2, heads);
    }
    add_channels(a, "ssm_conv1d.weight", "linear_attn.conv1d.weight", a->n_conv, 3, conv);
    add_heads(a, "ssm_dt.bias", "linear_attn.dt_bias", 1, 1, heads);
    add_decay(a);
    add_plain(a, "ssm_norm.weight", "linear_attn.norm.weight", a->dim, 0);
    add_out(a);
}

/* ---- experts ------------------------------------------------------------------------------------------ */

static void add_shared(Apart *a) {
    int64_t n = hub_number(a->g, "expert_shared_feed_forward_length");
    add_plain(a, "ffn_gate_inp_shexp.weight", "mlp.shared_expert_gate.weight", a->n_embd, 1);
    add_plain(a, "ffn_gate_shexp.weight", "mlp.shared_expert.gate_proj.weight", a->n_embd, n);
    add_plain(a, "ffn_up_shexp.weight", "mlp.shared_expert.up_proj.weight", a->n_embd, n);
    add_plain(a, "ffn_down_shexp.weight", "mlp.shared_expert.down_proj.weight", n, a->n_embd);
}

/* Each expert has a tensor of its own, as in Qwen3-Next. */
static void add_single_experts(Apart *a) {
    static const char *const names[][2] = {{"ffn_gate_exps.weight", "gate_proj"},
                                           {"ffn_up_exps.weight", "up_proj"},
                                           {"ffn_down_exps.weight", "down_proj"}};
    for (int64_t e = 0; e < a->n_expert; e++)
        for (int i = 0; i < 3; i++) {
            char to[100];
            const GgufTensor *t = tensor(a, names[i][0]);
            snprintf(to, sizeof to, "mlp.experts.%d.%s.weight", (int)e, names[i][1]);
            add(a, to, floats(a, names[i][0]) + e * t->dims[0] * t->dims[1], 2, (int64_t[]){t->dims[1], t->dims[0]});
        }
}

/* Gate and up of each expert are the halves of one tensor, as in Qwen 3.5. */
static void add_stacked_experts(Apart *a) {
    int64_t n = a->n_ff * a->n_embd;
    float *x = room(2 * a->n_expert * n);
    for (int64_t e = 0; e < a->n_expert; e++) {
        memcpy(x + 2 * e * n, floats(a, "ffn_gate_exps.weight") + e * n, (size_t)n * sizeof *x);
        memcpy(x + (2 * e + 1) * n, floats(a, "ffn_up_exps.weight") + e * n, (size_t)n * sizeof *x);
    }
    add(a, "mlp.experts.gate_up_proj", x, 3, (int64_t[]){a->n_expert, 2 * a->n_ff, a->n_embd});
    add(a, "mlp.experts.down_proj", floats(a, "ffn_down_exps.weight"), 3, (int64_t[]){a->n_expert, a->n_embd, a->n_ff});
    free(x);
}

/* Rows of gate and up alternate, transposed, as in gpt-oss in BF16: number (e, i, o) belongs to input i. */
static void add_transposed_experts(Apart *a) {
    int64_t h = a->n_embd, n = a->n_ff;
    const float *gate = floats(a, "ffn_gate_exps.weight"), *up = floats(a, "ffn_up_exps.weight"),
                *down = floats(a, "ffn_down_exps.weight");
    float *x = room(2 * a->n_expert * n * h);
    for (int64_t e = 0; e < a->n_expert; e++)
        for (int64_t i = 0; i < h; i++)
            for (int64_t o = 0; o < 2 * n; o++)
                x[(e * h + i) * 2 * n + o] = (o % 2 ? up : gate)[(e * n + o / 2) * h + i];
    add(a, "mlp.experts.gate_up_proj", x, 3, (int64_t[]){a->n_expert, h, 2 * n});
    for (int64_t e = 0; e < a->n_expert; e++)
        for (int64_t i = 0; i < n; i++)
            for (int64_t o = 0; o < h; o++) x[(e * n + i) * h + o] = down[(e * h + o) * n + i];
    add(a, "mlp.experts.down_proj", x, 3, (int64_t[]){a->n_expert, n, h});
    free(x);
}

/* A block of a GGUF file is a scale and numbers i and i + 16 in byte i; a published block has 2 i and 2 i + 1 in byte
 * i. */
static void unpack_row(const unsigned char *from, int64_t n_blocks, unsigned char *blocks, unsigned char *scales) {
    for (int64_t b = 0; b < n_blocks; b++, from += 17) {
        unsigned char x[32];
        for (int i = 0; i < 16; i++) x[i] = from[1 + i] & 15, x[i + 16] = from[1 + i] >> 4;
        for (int i = 0; i < 16; i++) blocks[16 * b + i] = (unsigned char)(x[2 * i] + 16 * x[2 * i + 1]);
        scales[b] = from[0];
    }
}

/* Rows of the two tensors alternate. */
static void add_packed(Apart *a, const char *const *from, int n_from, const char *to) {
    const GgufTensor *t = tensor(a, from[0]);
    int64_t n_blocks = t->dims[0] / 32, rows = t->dims[1] * t->dims[2] * n_from;
    const int64_t dims[] = {t->dims[2], n_from * t->dims[1], n_blocks, 16};
    unsigned char *blocks = malloc((size_t)(rows * n_blocks * 16)), *scales = malloc((size_t)(rows * n_blocks));
    char name[200];
    assert_true(blocks && scales);
    for (int64_t o = 0; o < rows; o++) {
        const GgufTensor *source = tensor(a, from[o % n_from]);
        assert_int_equal(source->type, TYPE_MXFP4);
        unpack_row((const unsigned char *)source->data + o / n_from * n_blocks * 17, n_blocks,
                   blocks + o * n_blocks * 16, scales + o * n_blocks);
    }
    snprintf(name, sizeof name, "%slayers.%d.mlp.experts.%s_blocks", a->prefix, (int)a->layer, to);
    safetensors_build_add_bytes(&a->b, name, blocks, dims, 4);
    snprintf(name, sizeof name, "%slayers.%d.mlp.experts.%s_scales", a->prefix, (int)a->layer, to);
    safetensors_build_add_bytes(&a->b, name, scales, dims, 3);
    free(blocks);
    free(scales);
}

static void add_oss_biases(Apart *a) {
    const float *gate = floats(a, "ffn_gate_exps.bias"), *up = floats(a, "ffn_up_exps.bias");
    int64_t n = a->n_expert * a->n_ff;
    float *x = room(2 * n);
    for (int64_t i = 0; i < n; i++) x[2 * i] = gate[i], x[2 * i + 1] = up[i];
    add(a, "mlp.experts.gate_up_proj_bias", x, 2, (int64_t[]){a->n_expert, 2 * a->n_ff});
    add_plain(a, "ffn_down_exps.bias", "mlp.experts.down_proj_bias", a->n_embd, a->n_expert);
    free(x);
}

/* ---- layers ------------------------------------------------------------------------------------------- */

static void add_attention(Apart *a, int64_t q_rows) {
    int64_t dim = hub_number(a->g, "attention.key_length"), kv = hub_number(a->g, "attention.head_count_kv") * dim,
            q = hub_number(a->g, "attention.head_count") * dim;
    add_plain(a, "attn_q.weight", "self_attn.q_proj.weight", a->n_embd, q_rows * q);
    add_plain(a, "attn_k.weight", "self_attn.k_proj.weight", a->n_embd, kv);
    add_plain(a, "attn_v.weight", "self_attn.v_proj.weight", a->n_embd, kv);
    add_plain(a, "attn_output.weight", "self_attn.o_proj.weight", q, a->n_embd);
}

static void add_hybrid_layer(Apart *a) {
    int64_t dim = hub_number(a->g, "attention.key_length"), n_ff = hub_number(a->g, "feed_forward_length");
    add_norm(a, "attn_norm.weight", "input_layernorm.weight", a->n_embd);
    add_norm(a, "post_attention_norm.weight", "post_attention_layernorm.weight", a->n_embd);
    if (tensor(a, "attn_q.weight")) {
        add_attention(a, 2);
        add_norm(a, "attn_q_norm.weight", "self_attn.q_norm.weight", dim);
        add_norm(a, "attn_k_norm.weight", "self_attn.k_norm.weight", dim);
    } else {
        add_recurrent(a);
    }
    if (a->n_expert == 0) {
        add_plain(a, "ffn_gate.weight", "mlp.gate_proj.weight", a->n_embd, n_ff);
        add_plain(a, "ffn_up.weight", "mlp.up_proj.weight", a->n_embd, n_ff);
        add_plain(a, "ffn_down.weight", "mlp.down_proj.weight", n_ff, a->n_embd);
        return;
    }
    add_plain(a, "ffn_gate_inp.weight", "mlp.gate.weight", a->n_embd, a->n_expert);
    if (hub_is_arch(a->g, "qwen3next")) add_single_experts(a);
    else add_stacked_experts(a);
    add_shared(a);
}

static void add_oss_layer(Apart *a) {
    int64_t dim = hub_number(a->g, "attention.key_length"), heads = hub_number(a->g, "attention.head_count"),
            kv = hub_number(a->g, "attention.head_count_kv") * dim;
    static const char *const gate_up[] = {"ffn_gate_exps.weight", "ffn_up_exps.weight"}, *const down[] = {
                                                                                             "ffn_down_exps.weight"};
    add_plain(a, "attn_norm.weight", "input_layernorm.weight", a->n_embd, 0);
    add_plain(a, "post_attention_norm.weight", "post_attention_layernorm.weight", a->n_embd, 0);
    add_attention(a, 1);
    add_plain(a, "attn_q.bias", "self_attn.q_proj.bias", heads * dim, 0);
    add_plain(a, "attn_k.bias", "self_attn.k_proj.bias", kv, 0);
    add_plain(a, "attn_v.bias", "self_attn.v_proj.bias", kv, 0);
    add_plain(a, "attn_output.bias", "self_attn.o_proj.bias", a->n_embd, 0);
    add_plain(a, "attn_sinks.weight", "self_attn.sinks", heads, 0);
    add_plain(a, "ffn_gate_inp.weight", "mlp.router.weight", a->n_embd, a->n_expert);
    add_plain(a, "ffn_gate_inp.bias", "mlp.router.bias", a->n_expert, 0);
    add_oss_biases(a);
    if (tensor(a, down[0])->type == TYPE_MXFP4) {
        add_packed(a, gate_up, 2, "gate_up_proj");
        add_packed(a, down, 1, "down_proj");
    } else {
        add_transposed_experts(a);
    }
}

static void add_lfm2_experts(Apart *a, const char *from, const char *to, int64_t n_in, int64_t n_out) {
    char name[80];
    for (int64_t e = 0; e < a->n_expert; e++) {
        snprintf(name, sizeof name, "feed_forward.experts.%d.%s.weight", (int)e, to);
        add(a, name, floats(a, from) + e * n_in * n_out, 2, (int64_t[]){n_out, n_in});
    }
}

static void add_lfm2_layer(Apart *a) {
    int64_t n = a->n_embd, n_ff = hub_number(a->g, "feed_forward_length"),
            dim = hub_number(a->g, "attention.key_length"), kv = hub_number(a->g, "attention.head_count_kv") * dim,
            q = hub_number(a->g, "attention.head_count") * dim;
    add_plain(a, "attn_norm.weight", "operator_norm.weight", n, 0);
    add_plain(a, "ffn_norm.weight", "ffn_norm.weight", n, 0);
    if (tensor(a, "ffn_gate_inp.weight")) {
        add_plain(a, "ffn_gate_inp.weight", "feed_forward.gate.weight", n, a->n_expert);
        add_plain(a, "exp_probs_b.bias", "feed_forward.expert_bias", a->n_expert, 0);
        add_lfm2_experts(a, "ffn_gate_exps.weight", "w1", n, a->n_ff);
        add_lfm2_experts(a, "ffn_down_exps.weight", "w2", a->n_ff, n);
        add_lfm2_experts(a, "ffn_up_exps.weight", "w3", n, a->n_ff);
    } else {
        add_plain(a, "ffn_gate.weight", "feed_forward.w1.weight", n, n_ff);
        add_plain(a, "ffn_down.weight", "feed_forward.w2.weight", n_ff, n);
        add_plain(a, "ffn_up.weight", "feed_forward.w3.weight", n, n_ff);
    }
    if (tensor(a, "attn_q.weight")) {
        add_plain(a, "attn_q.weight", "self_attn.q_proj.weight", n, q);
        add_plain(a, "attn_k.weight", "self_attn.k_proj.weight", n, kv);
        add_plain(a, "attn_v.weight", "self_attn.v_proj.weight", n, kv);
        add_plain(a, "attn_output.weight", "self_attn.out_proj.weight", q, n);
        add_plain(a, "attn_q_norm.weight", "self_attn.q_layernorm.weight", dim, 0);
        add_plain(a, "attn_k_norm.weight", "self_attn.k_layernorm.weight", dim, 0);
        return;
    }
    add_plain(a, "shortconv.in_proj.weight", "conv.in_proj.weight", n, 3 * n);
    add(a, "conv.conv.weight", floats(a, "shortconv.conv.weight"), 3,
        (int64_t[]){n, 1, hub_number(a->g, "shortconv.l_cache")});
    add_plain(a, "shortconv.out_proj.weight", "conv.out_proj.weight", n, n);
}

/* The pairs of a head become its halves. */
static void add_halved(Apart *a, const char *from, const char *to, int64_t n_heads, int64_t dim) {
    int64_t n = a->n_embd;
    float *x = room(n_heads * dim * n);
    for (int64_t i = 0; i < n_heads * dim; i++) {
        int64_t in_head = i % dim, row = i - in_head + in_head % 2 * (dim / 2) + in_head / 2;
        memcpy(x + row * n, floats(a, from) + i * n, (size_t)n * sizeof *x);
    }
    add(a, to, x, 2, (int64_t[]){n_heads * dim, n});
    free(x);
}

/* Publishes two matrices as one, the rows of the first one before those of the second. */
static void add_joined(Apart *a, const char *first, const char *second, const char *to, int64_t n_out) {
    int64_t n = n_out * a->n_embd;
    float *x = room(2 * n);
    memcpy(x, floats(a, first), (size_t)n * sizeof *x);
    memcpy(x + n, floats(a, second), (size_t)n * sizeof *x);
    add(a, to, x, 2, (int64_t[]){2 * n_out, a->n_embd});
    free(x);
}

static void add_mamba(Apart *a) {
    int64_t inner = hub_number(a->g, "ssm.inner_size"), channels = inner + 2 * a->n_keys * a->dim, heads = a->n_values;
    float *decay = room(heads);
    for (int64_t i = 0; i < heads; i++) decay[i] = (float)log(-(double)floats(a, "ssm_a")[i]);
    add_plain(a, "ssm_in.weight", "mamba.in_proj.weight", a->n_embd, inner + channels + heads);
    add(a, "mamba.conv1d.weight", floats(a, "ssm_conv1d.weight"), 3, (int64_t[]){channels, 1, a->n_conv});
    add_plain(a, "ssm_conv1d.bias", "mamba.conv1d.bias", channels, 0);
    add_plain(a, "ssm_dt.bias", "mamba.dt_bias", heads, 0);
    add(a, "mamba.A_log", decay, 1, &heads);
    add_plain(a, "ssm_d", "mamba.D", heads, 0);
    add_plain(a, "ssm_norm.weight", "mamba.norm.weight", inner, 0);
    add_plain(a, "ssm_out.weight", "mamba.out_proj.weight", inner, a->n_embd);
    free(decay);
}

static void add_granite_experts(Apart *a) {
    int64_t n = a->n_ff * a->n_embd;
    float *x = room(2 * a->n_expert * n);
    for (int64_t e = 0; e < a->n_expert; e++) {
        memcpy(x + 2 * e * n, floats(a, "ffn_gate_exps.weight") + e * n, (size_t)n * sizeof *x);
        memcpy(x + (2 * e + 1) * n, floats(a, "ffn_up_exps.weight") + e * n, (size_t)n * sizeof *x);
    }
    add_plain(a, "ffn_gate_inp.weight", "block_sparse_moe.router.layer.weight", a->n_embd, a->n_expert);
    add(a, "block_sparse_moe.input_linear.weight", x, 3, (int64_t[]){a->n_expert, 2 * a->n_ff, a->n_embd});
    add(a, "block_sparse_moe.output_linear.weight", floats(a, "ffn_down_exps.weight"), 3,
        (int64_t[]){a->n_expert, a->n_embd, a->n_ff});
    free(x);
}

static void add_granite_layer(Apart *a) {
    int64_t dim = hub_number(a->g, "attention.key_length"), n = hub_number(a->g, "expert_shared_feed_forward_length"),
            kv = hub_number(a->g, "attention.head_count_kv"), q = hub_number(a->g, "attention.head_count");
    add_plain(a, "attn_norm.weight", "input_layernorm.weight", a->n_embd, 0);
    add_plain(a, "ffn_norm.weight", "post_attention_layernorm.weight", a->n_embd, 0);
    if (tensor(a, "attn_q.weight")) {
        add_halved(a, "attn_q.weight", "self_attn.q_proj.weight", q, dim);
        add_halved(a, "attn_k.weight", "self_attn.k_proj.weight", kv, dim);
        add_plain(a, "attn_v.weight", "self_attn.v_proj.weight", a->n_embd, kv * dim);
        add_plain(a, "attn_output.weight", "self_attn.o_proj.weight", q * dim, a->n_embd);
    } else {
        add_mamba(a);
    }
    if (a->n_expert) {
        add_granite_experts(a);
        add_joined(a, "ffn_gate_shexp.weight", "ffn_up_shexp.weight", "shared_mlp.input_linear.weight", n);
        add_plain(a, "ffn_down_shexp.weight", "shared_mlp.output_linear.weight", n, a->n_embd);
    } else {
        n = hub_number(a->g, "feed_forward_length");
        add_joined(a, "ffn_gate.weight", "ffn_up.weight", "shared_mlp.input_linear.weight", n);
        add_plain(a, "ffn_down.weight", "shared_mlp.output_linear.weight", n, a->n_embd);
    }
}

static void add_rest(Apart *a, bool has_pictures) {
    const GgufTensor *embd = gguf_find_tensor(a->g, "token_embd.weight"),
                     *head = gguf_find_tensor(a->g, "output.weight"),
                     *norm = gguf_find_tensor(a->g, is_lfm2(a->g) ? "token_embd_norm.weight" : "output_norm.weight");
    char name[100];
    float *x = room(a->n_embd);
    for (int64_t i = 0; i < a->n_embd; i++) x[i] = ((const float *)norm->data)[i] - (is_hybrid(a->g) ? 1.0f : 0.0f);
    snprintf(name, sizeof name, "%sembed_tokens.weight", a->prefix);
    safetensors_build_add(&a->b, name, embd->data, a->n_embd, embd->dims[1]);
    snprintf(name, sizeof name, "%s%s", a->prefix, is_lfm2(a->g) ? "embedding_norm.weight" : "norm.weight");
    safetensors_build_add(&a->b, name, x, a->n_embd, 0);
    if (head) safetensors_build_add(&a->b, "lm_head.weight", head->data, a->n_embd, embd->dims[1]);
    if (has_pictures) safetensors_build_add(&a->b, "model.visual.patch_embed.proj.weight", x, 3, 2);
    free(x);
}

/* Adds the tensors around the layer for multi-token prediction. */
static void add_nextn(Apart *a) {
    static const char *const norms[][2] = {{"nextn.enorm.weight", "mtp.pre_fc_norm_embedding.weight"},
                                           {"nextn.hnorm.weight", "mtp.pre_fc_norm_hidden.weight"},
                                           {"nextn.shared_head_norm.weight", "mtp.norm.weight"}};
    float *x = room(a->n_embd);
    for (int k = 0; k < 3; k++) {
        for (int64_t i = 0; i < a->n_embd; i++) x[i] = floats(a, norms[k][0])[i] - 1;
        safetensors_build_add(&a->b, norms[k][1], x, a->n_embd, 0);
    }
    safetensors_build_add(&a->b, "mtp.fc.weight", floats(a, "nextn.eh_proj.weight"), 2 * a->n_embd, a->n_embd);
    free(x);
}

void hub_forms_write(const Gguf *g, const char *folder, const HubBuild *o) {
    const char *prefix = o->text_part ? "model.language_model." : "model.";
    Apart a = {.g = g,
               .prefix = prefix,
               .n_embd = hub_number(g, "embedding_length"),
               .n_keys = hub_number(g, "ssm.group_count"),
               .n_values = hub_number(g, "ssm.time_step_rank"),
               .dim = hub_number(g, "ssm.state_size"),
               .n_conv = hub_number(g, "ssm.conv_kernel"),
               .n_expert = hub_number(g, "expert_count"),
               .n_ff = hub_number(g, "expert_feed_forward_length"),
               .is_tiled = !hub_is_arch(g, "qwen3next")};
    char path[300];
    int64_t n_layer = hub_number(g, "block_count") - hub_number(g, "nextn_predict_layers");
    assert_int_equal(o->n_parts, 1);
    safetensors_build_begin(&a.b, o->type);
    for (a.layer = 0; a.layer < hub_number(g, "block_count"); a.layer++) {
        if (a.layer == n_layer) {
            a.prefix = "mtp.", a.first = n_layer;
            add_nextn(&a);
        }
        if (is_hybrid(g)) add_hybrid_layer(&a);
        else if (is_lfm2(g)) add_lfm2_layer(&a);
        else if (hub_is_arch(g, "granitehybrid")) add_granite_layer(&a);
        else add_oss_layer(&a);
    }
    a.prefix = prefix;
    add_rest(&a, o->text_part);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    safetensors_build_write(&a.b, path);
}

#include "reference.h"

#include "format/blocks.h"
#include "testing.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Matrix {
    int64_t n_in, n_out;
    TensorType type; /* of the file: decides how an engine rounds what it multiplies with */
    float *w;        /* [n_out][n_in] exact values */
} Matrix;

typedef struct Layer {
    Matrix q, k, v, o, gate, up, down;
    float *attn_norm, *ffn_norm, *q_bias, *k_bias, *v_bias, *q_norm, *k_norm; /* the last five: or NULL */
} Layer;

struct Reference {
    bool halves; /* rotate (i, i + n_rot/2) rather than (2i, 2i + 1) */
    int32_t n_layer, n_embd, n_head, n_head_kv, head_dim, n_rot, n_vocab;
    double eps, magnitude;
    double *theta; /* [n_rot/2] */
    Layer *layers;
    float *output_norm;
    Matrix embd, output; /* output.w is embd.w where tied */
};

/* ---- reading -------------------------------------------------------------------------------------- */

static void *zeros(int64_t n, size_t each) {
    void *p = calloc((size_t)n + 1, each);
    if (!p) fail_msg("no memory for the reference");
    return p;
}

static double key_number(const Gguf *g, const char *arch, const char *what, double fallback) {
    char key[128];
    int64_t i;
    float f;
    snprintf(key, sizeof key, "%s.%s", arch, what);
    if (gguf_get_i64(g, key, &i)) return (double)i;
    if (gguf_get_f32(g, key, &f)) return (double)f;
    return fallback;
}

static float *values_of(const GgufTensor *t) {
    int64_t n = t->dims[0] * t->dims[1];
    float *w = zeros(n, sizeof *w);
    for (int64_t o = 0; o < t->dims[1]; o++)
        blocks_dequantize(t->type, (const char *)t->data + (size_t)o * (t->bytes / (size_t)t->dims[1]),
                          t->dims[0], w + o * t->dims[0]);
    return w;
}

static const GgufTensor *layer_tensor(const Gguf *g, int32_t layer, const char *what) {
    char name[64];
    snprintf(name, sizeof name, "blk.%d.%s", layer, what);
    return gguf_find_tensor(g, name);
}

static float *vector(const Gguf *g, int32_t layer, const char *what) {
    const GgufTensor *t = layer_tensor(g, layer, what);
    return t ? values_of(t) : NULL;
}

static Matrix matrix_of(const GgufTensor *t) {
    assert_non_null(t);
    return (Matrix){t->dims[0], t->dims[1], t->type, values_of(t)};
}

static Matrix matrix(const Gguf *g, int32_t layer, const char *what) {
    return matrix_of(layer_tensor(g, layer, what));
}

/* Angles per position. YaRN as published (arXiv 2309.00071 and its code): pairs are counted in the index i
 * at which b^(-2i/d) makes `beta` turns in the original context L, i = d ln(L / (2 pi beta)) / (2 ln b). */
static void read_rope(Reference *r, const Gguf *g, const char *arch) {
    double base = key_number(g, arch, "rope.freq_base", 10000),
           scale = key_number(g, arch, "rope.scaling.factor", 1);
    double context =
        key_number(g, arch, "rope.scaling.original_context_length", key_number(g, arch, "context_length", 0));
    char key[64];
    snprintf(key, sizeof key, "%s.rope.scaling.type", arch);
    GgufString type = {"none", 4};
    gguf_get_string(g, key, &type);
    bool linear = type.n == 6 && !memcmp(type.data, "linear", 6),
         yarn = type.n == 4 && !memcmp(type.data, "yarn", 4);
    const GgufTensor *freqs = gguf_find_tensor(g, "rope_freqs.weight");
    float *factors = freqs ? values_of(freqs) : NULL;
    double fast = floor(r->n_rot * log(context / (2 * M_PI * 32)) / (2 * log(base)));
    double slow = ceil(r->n_rot * log(context / (2 * M_PI * 1)) / (2 * log(base)));
    fast = fast < 0 ? 0 : fast;
    slow = slow > r->n_rot - 1 ? r->n_rot - 1 : slow;
    r->magnitude = yarn ? 0.1 * log(scale) + 1 : 1;
    r->theta = zeros(r->n_rot / 2, sizeof *r->theta);
    for (int32_t i = 0; i < r->n_rot / 2; i++) {
        double theta = exp(-2.0 * i / r->n_rot * log(base)), ramp = (i - fast) / (slow - fast);
        if (factors) theta /= (double)factors[i];
        ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp; /* 0: keep, 1: interpolate */
        r->theta[i] = linear ? theta / scale : yarn ? theta * (1 - ramp) + theta / scale * ramp : theta;
    }
    free(factors);
}

Reference *reference_open(const Gguf *g) {
    Reference *r = zeros(1, sizeof *r);
    GgufString name;
    assert_true(gguf_get_string(g, "general.architecture", &name));
    char arch[16];
    snprintf(arch, sizeof arch, "%.*s", (int)name.n, name.data);
    r->halves = strcmp(arch, "llama") != 0;
    if (r->halves && strcmp(arch, "qwen2") != 0 && strcmp(arch, "qwen3") != 0) fail_msg("what is %s?", arch);
    r->n_layer = (int32_t)key_number(g, arch, "block_count", 0);
    r->n_embd = (int32_t)key_number(g, arch, "embedding_length", 0);
    r->n_head = (int32_t)key_number(g, arch, "attention.head_count", 0);
    r->n_head_kv = (int32_t)key_number(g, arch, "attention.head_count_kv", r->n_head);
    r->head_dim = (int32_t)key_number(g, arch, "attention.key_length", r->n_embd / r->n_head);
    r->n_rot = (int32_t)key_number(g, arch, "rope.dimension_count", r->head_dim);
    r->eps = key_number(g, arch, "attention.layer_norm_rms_epsilon", 0);
    read_rope(r, g, arch);
    r->embd = matrix_of(gguf_find_tensor(g, "token_embd.weight"));
    r->n_vocab = (int32_t)r->embd.n_out;
    const GgufTensor *output = gguf_find_tensor(g, "output.weight");
    r->output = output ? matrix_of(output) : r->embd;
    r->output_norm = values_of(gguf_find_tensor(g, "output_norm.weight"));
    r->layers = zeros(r->n_layer, sizeof *r->layers);
    for (int32_t i = 0; i < r->n_layer; i++)
        r->layers[i] = (Layer){.q = matrix(g, i, "attn_q.weight"),
                               .k = matrix(g, i, "attn_k.weight"),
                               .v = matrix(g, i, "attn_v.weight"),
                               .o = matrix(g, i, "attn_output.weight"),
                               .gate = matrix(g, i, "ffn_gate.weight"),
                               .up = matrix(g, i, "ffn_up.weight"),
                               .down = matrix(g, i, "ffn_down.weight"),
                               .attn_norm = vector(g, i, "attn_norm.weight"),
                               .ffn_norm = vector(g, i, "ffn_norm.weight"),
                               .q_bias = vector(g, i, "attn_q.bias"),
                               .k_bias = vector(g, i, "attn_k.bias"),
                               .v_bias = vector(g, i, "attn_v.bias"),
                               .q_norm = vector(g, i, "attn_q_norm.weight"),
                               .k_norm = vector(g, i, "attn_k_norm.weight")};
    return r;
}

void reference_close(Reference *r) {
    for (int32_t i = 0; i < r->n_layer; i++) {
        Layer *l = &r->layers[i];
        float *all[] = {l->q.w,       l->k.w,      l->v.w,    l->o.w,    l->gate.w, l->up.w,   l->down.w,
                        l->attn_norm, l->ffn_norm, l->q_bias, l->k_bias, l->v_bias, l->q_norm, l->k_norm};
        for (size_t k = 0; k < sizeof all / sizeof *all; k++) free(all[k]);
    }
    if (r->output.w != r->embd.w) free(r->output.w);
    free(r->embd.w);
    free(r->output_norm);
    free(r->layers);
    free(r->theta);
    free(r);
}

int32_t reference_n_vocab(const Reference *r) { return r->n_vocab; }

/* ---- arithmetic ----------------------------------------------------------------------------------- */

/* The rounding that is coarse enough to be imitated: of the inputs that BF16 weights are multiplied with. */
static void round_inputs(TensorType type, double *x, int64_t n) {
    for (int64_t i = 0; type == TYPE_BF16 && i < n; i++) x[i] = (double)bf16_to_float(float_to_bf16((float)x[i]));
}

static void product(const Matrix *m, ReferenceRounding rounding, const double *x, double *y) {
    double *in = zeros(m->n_in, sizeof *in);
    memcpy(in, x, (size_t)m->n_in * sizeof *in);
    if (rounding.activations) round_inputs(m->type, in, m->n_in);
    for (int64_t o = 0; o < m->n_out; o++) {
        double sum = 0;
        for (int64_t i = 0; i < m->n_in; i++) sum += (double)m->w[o * m->n_in + i] * in[i];
        y[o] = sum;
    }
    free(in);
}

static void normalise(const Reference *r, const double *x, const float *w, int64_t n, double *y) {
    double squares = 0;
    for (int64_t i = 0; i < n; i++) squares += x[i] * x[i];
    for (int64_t i = 0; i < n; i++) y[i] = x[i] / sqrt(squares / (double)n + r->eps) * (double)w[i];
}

/* Bias, head norms where given, rotation where asked for. */
static void finish_heads(const Reference *r, double *x, int32_t n_heads, const float *bias, const float *norm,
                         bool rotate, int32_t position) {
    for (int32_t i = 0; bias && i < n_heads * r->head_dim; i++) x[i] += (double)bias[i];
    for (int32_t h = 0; h < n_heads; h++) {
        double *y = x + h * r->head_dim;
        if (norm) normalise(r, y, norm, r->head_dim, y);
        for (int32_t i = 0; rotate && i < r->n_rot / 2; i++) {
            double *a = r->halves ? &y[i] : &y[2 * i], *b = r->halves ? &y[i + r->n_rot / 2] : &y[2 * i + 1];
            double c = cos(position * r->theta[i]) * r->magnitude,
                   s = sin(position * r->theta[i]) * r->magnitude;
            double re = *a * c - *b * s, im = *a * s + *b * c;
            *a = re, *b = im;
        }
    }
}

/* Query head h over keys and values 0..position of its group; keys, values: [position + 1][n_head_kv *
 * head_dim]. */
static void attend(const Reference *r, const double *q, const double *keys, const double *values,
                   int32_t position, int32_t h, double *out) {
    int64_t width = (int64_t)r->n_head_kv * r->head_dim, at = h / (r->n_head / r->n_head_kv) * r->head_dim;
    double *p = zeros(position + 1, sizeof *p), largest = -INFINITY, total = 0;
    for (int32_t t = 0; t <= position; t++) {
        for (int32_t d = 0; d < r->head_dim; d++) p[t] += q[h * r->head_dim + d] * keys[t * width + at + d];
        p[t] /= sqrt(r->head_dim);
        largest = fmax(largest, p[t]);
    }
    for (int32_t t = 0; t <= position; t++) total += p[t] = exp(p[t] - largest);
    for (int32_t d = 0; d < r->head_dim; d++) {
        double sum = 0;
        for (int32_t t = 0; t <= position; t++) sum += p[t] / total * values[t * width + at + d];
        out[h * r->head_dim + d] = sum;
    }
    free(p);
}

/* One layer over all n positions: x [n][n_embd] in place. */
static void run_layer(const Reference *r, const Layer *l, ReferenceRounding rounding, int32_t n, double *x) {
    int64_t q_dim = l->q.n_out, kv_dim = l->k.n_out, n_ff = l->gate.n_out, embd = r->n_embd;
    double *keys = zeros(n * kv_dim, sizeof *keys), *values = zeros(n * kv_dim, sizeof *values);
    double *q = zeros(q_dim, sizeof *q), *mixed = zeros(q_dim, sizeof *mixed),
           *normed = zeros(embd, sizeof *normed);
    double *gate = zeros(n_ff, sizeof *gate), *up = zeros(n_ff, sizeof *up), *out = zeros(embd, sizeof *out);
    for (int32_t t = 0; t < n; t++, x += embd) {
        double *k = keys + t * kv_dim, *v = values + t * kv_dim;
        normalise(r, x, l->attn_norm, embd, normed);
        product(&l->q, rounding, normed, q);
        product(&l->k, rounding, normed, k);
        product(&l->v, rounding, normed, v);
        finish_heads(r, q, r->n_head, l->q_bias, l->q_norm, true, t);
        finish_heads(r, k, r->n_head_kv, l->k_bias, l->k_norm, true, t);
        finish_heads(r, v, r->n_head_kv, l->v_bias, NULL, false, t);
        for (int64_t i = 0; rounding.kv_half && i < kv_dim; i++) {
            k[i] = (double)half_to_float(float_to_half((float)k[i]));
            v[i] = (double)half_to_float(float_to_half((float)v[i]));
        }
        for (int32_t h = 0; h < r->n_head; h++) attend(r, q, keys, values, t, h, mixed);
        product(&l->o, rounding, mixed, out);
        for (int64_t i = 0; i < embd; i++) x[i] += out[i];
        normalise(r, x, l->ffn_norm, embd, normed);
        product(&l->gate, rounding, normed, gate);
        product(&l->up, rounding, normed, up);
        for (int64_t i = 0; i < n_ff; i++) gate[i] = gate[i] / (1 + exp(-gate[i])) * up[i];
        product(&l->down, rounding, gate, out);
        for (int64_t i = 0; i < embd; i++) x[i] += out[i];
    }
    double *all[] = {keys, values, q, mixed, normed, gate, up, out};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

void reference_logits(const Reference *r, ReferenceRounding rounding, const int32_t *tokens, int32_t n,
                      double *logits) {
    int64_t embd = r->n_embd;
    double *x = zeros(n * embd, sizeof *x), *normed = zeros(embd, sizeof *normed);
    for (int32_t t = 0; t < n; t++)
        for (int64_t i = 0; i < embd; i++) x[t * embd + i] = (double)r->embd.w[tokens[t] * embd + i];
    for (int32_t i = 0; i < r->n_layer; i++) run_layer(r, &r->layers[i], rounding, n, x);
    for (int32_t t = 0; t < n; t++) {
        normalise(r, x + t * embd, r->output_norm, embd, normed);
        product(&r->output, rounding, normed, logits + (int64_t)t * r->n_vocab);
    }
    free(x);
    free(normed);
}

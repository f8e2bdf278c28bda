/* plain_layer.c - the parts of a transformer layer for one row, in double precision. */
#include "plain_layer.h"

#include "gguf/tensor_type.h"
#include "learned_rig.h"

#include <math.h>
#include <string.h>

void plain_kv_begin(PlainKv *kv, const PlainKv *before) {
    kv->before = before;
    kv->position = before ? before->position + 1 : 0;
}

void plain_kv_round(PlainKv *kv, PlainHeads heads) {
    assert_true(heads.n_kv * heads.dim <= PLAIN_MAX_KV);
    for (int32_t i = 0; i < heads.n_kv * heads.dim; i++) {
        kv->k[i] = (double)half_to_float(float_to_half((float)kv->k[i]));
        kv->v[i] = (double)half_to_float(float_to_half((float)kv->v[i]));
    }
}

void plain_norm(const float *gain, const double *x, int32_t n, double eps, double *y) {
    double square = 0;
    for (int32_t i = 0; i < n; i++) square += x[i] * x[i];
    for (int32_t i = 0; i < n; i++) y[i] = x[i] / sqrt(square / n + eps) * (double)gain[i];
}

/* Rotates the components i * step and i * step + apart of each head, for i < dim / 2. */
static void rotate(const Rope *rope, double *x, int32_t n_heads, int32_t dim, int32_t position, int32_t step,
                   int32_t apart) {
    float cos_sin[PLAIN_MAX_KV];
    assert_true(dim <= PLAIN_MAX_KV);
    rope_angles(rope, position, cos_sin);
    for (int32_t h = 0; h < n_heads; h++)
        for (int32_t i = 0; i < dim / 2; i++) {
            double *a = &x[h * dim + i * step], *b = a + apart;
            double c = (double)cos_sin[2 * i], s = (double)cos_sin[2 * i + 1], x0 = *a;
            *a = x0 * c - *b * s;
            *b = x0 * s + *b * c;
        }
}

void plain_rotate_pairs(const Rope *rope, double *x, int32_t n_heads, int32_t dim, int32_t position) {
    rotate(rope, x, n_heads, dim, position, 2, 1);
}

void plain_rotate_halves(const Rope *rope, double *x, int32_t n_heads, int32_t dim, int32_t position) {
    rotate(rope, x, n_heads, dim, position, 1, dim / 2);
}

/* The greatest score is not subtracted before the exponentials, because the scores of tests do not overflow in double
 * precision. */
void plain_attend(PlainHeads heads, const PlainKv *row, const double *q, double *out) {
    int32_t dim = heads.dim;
    double scale = heads.scale > 0 ? heads.scale : 1 / sqrt(dim);
    memset(out, 0, (size_t)(heads.n_head * dim) * sizeof *out);
    for (int32_t head = 0; head < heads.n_head; head++) {
        int32_t from = head / (heads.n_head / heads.n_kv) * dim;
        double sum = 0;
        for (const PlainKv *at = row; at; at = at->before) {
            double score = 0;
            for (int32_t i = 0; i < dim; i++) score += q[head * dim + i] * at->k[from + i] * scale;
            sum += exp(score);
            for (int32_t i = 0; i < dim; i++) out[head * dim + i] += exp(score) * at->v[from + i];
        }
        for (int32_t i = 0; i < dim; i++) out[head * dim + i] /= sum;
    }
}

static double gelu(double x) { return x / 2 * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }

void plain_feed_forward(PlainFeedForward ff, const double *x, double *y) {
    double gate[PLAIN_MAX_FF], up[PLAIN_MAX_FF];
    assert_true(ff.n_ff <= PLAIN_MAX_FF);
    learned_rig_linear(ff.gate, NULL, x, ff.n_embd, ff.n_ff, gate);
    learned_rig_linear(ff.up, NULL, x, ff.n_embd, ff.n_ff, up);
    for (int32_t i = 0; i < ff.n_ff; i++) gate[i] = (ff.is_gelu ? gelu(gate[i]) : learned_rig_silu(gate[i])) * up[i];
    learned_rig_linear(ff.down, NULL, gate, ff.n_ff, ff.n_embd, y);
}

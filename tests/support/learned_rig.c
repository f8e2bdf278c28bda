/* learned_rig.c - writes drafter files with random weights, and computes with them in double precision. */
#include "learned_rig.h"

#include "base/rng.h"
#include "compute/cpu/kernels/ref.h"
#include "gguf/tensor_type.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void learned_rig_write_target(const char *path, uint64_t seed) {
    const RandomModel m = {.arch = "llama",
                           .n_layer = 2,
                           .n_embd = 64,
                           .n_head = 4,
                           .n_head_kv = 2,
                           .n_ff = 96,
                           .n_vocab = 300,
                           .types = {TYPE_Q8_0, TYPE_F16},
                           .n_types = 2,
                           .seed = seed};
    fr_error err;
    if (random_model_write(&m, path, &err)) fail_msg("%s", err.message);
}

/* ---- files --------------------------------------------------------------------------------------- */

void learned_rig_begin(LearnedRig *r, const char *method, const Weights *target, uint64_t seed) {
    const DrafterTraining training = {.command = "none: random weights", .n_steps = 7, .seed = seed};
    *r = (LearnedRig){.w = drafter_file_writer(method, target->model, &training), .seed = seed};
    assert_non_null(r->w);
}

static void *keep(LearnedRig *r, void *p) {
    assert_non_null(p);
    assert_true(r->n_kept < (int)(sizeof r->kept / sizeof *r->kept));
    return r->kept[r->n_kept++] = p;
}

/* The matrices of rigs that consist of blocks, whose inputs the engine rounds; NULL: a free place. */
static const float *rounding[256];

static void set_rounding(const float *from, const float *to) {
    size_t i = 0, n = sizeof rounding / sizeof *rounding;
    while (i < n && rounding[i] != from) i++;
    assert_true(i < n);
    rounding[i] = to;
}

static bool is_rounding(const float *w) {
    for (size_t i = 0; i < sizeof rounding / sizeof *rounding; i++)
        if (w && rounding[i] == w) return true;
    return false;
}

float *learned_rig_tensor(LearnedRig *r, const char *name, TensorType type, int64_t n_in, int64_t n_out, double std) {
    int64_t rows = n_out ? n_out : 1, dims[] = {n_in, n_out};
    size_t row_bytes;
    assert_true(tensor_type_row_bytes(type, n_in, &row_bytes));
    float *x = keep(r, malloc((size_t)(n_in * rows) * sizeof *x));
    char *data = keep(r, malloc((size_t)rows * row_bytes));
    for (int64_t i = 0; i < n_in * rows; i++) /* uniform, with standard deviation std */
        x[i] = (float)(std * sqrt(12) * (rng_uniform(r->seed, RNG_TEST, (uint64_t)i, (uint32_t)r->n_kept) - 0.5));
    for (int64_t o = 0; o < rows; o++) {
        blocks_quantize(type, x + o * n_in, n_in, data + (size_t)o * row_bytes);
        blocks_dequantize(type, data + (size_t)o * row_bytes, n_in, x + o * n_in);
    }
    gguf_add_tensor(r->w, name, type, n_out ? 2 : 1, dims, data);
    if (act_form(type, ACT_Q16) == ACT_Q16) set_rounding(NULL, x);
    return x;
}

float *learned_rig_cube(LearnedRig *r, const char *name, int64_t n0, int64_t n1, int64_t n2, double std) {
    const int64_t dims[] = {n0, n1, n2};
    float *x = keep(r, malloc((size_t)(n0 * n1 * n2) * sizeof *x));
    for (int64_t i = 0; i < n0 * n1 * n2; i++)
        x[i] = (float)(std * sqrt(12) * (rng_uniform(r->seed, RNG_TEST, (uint64_t)i, (uint32_t)r->n_kept) - 0.5));
    gguf_add_tensor(r->w, name, TYPE_F32, 3, dims, x);
    return x;
}

LearnedRigInfo learned_rig_info(LearnedRig *r, const char *method, TensorType type, int32_t H, int32_t rank,
                                int32_t n) {
    char down[64], up[64], gain[64], key[128];
    snprintf(key, sizeof key, DRAFTER_KEY("%s.token_info.rank"), method);
    snprintf(down, sizeof down, "%s.token_info.down.weight", method);
    snprintf(up, sizeof up, "%s.token_info.up.weight", method);
    snprintf(gain, sizeof gain, "%s.token_info.gain", method);
    gguf_set_u32(r->w, key, (uint32_t)rank);
    LearnedRigInfo info = {.H = H, .rank = rank, .n = n};
    info.down = learned_rig_tensor(r, down, TYPE_F32, H, rank, 0.2);
    info.up = learned_rig_tensor(r, up, type, rank, n, 0.2);
    info.gain = learned_rig_tensor(r, gain, TYPE_F32, n, 0, 1);
    return info;
}

void learned_rig_write(LearnedRig *r, const char *path) {
    fr_error err;
    if (gguf_writer_finish(r->w, path, &err)) fail_msg("%s", err.message);
}

void learned_rig_free(LearnedRig *r) {
    gguf_writer_free(r->w);
    for (int i = 0; i < r->n_kept; i++) {
        if (is_rounding(r->kept[i])) set_rounding(r->kept[i], NULL);
        free(r->kept[i]);
    }
}

/* ---- arithmetic ---------------------------------------------------------------------------------- */

/* Rounds the inputs of a matrix of blocks to 16 bits, with one scale for ACT_BLOCK of them, as the engine does. Without
 * that, keys and values would often lie on the other side of a rounding to F16, and a tree after them differ. */
static void round_inputs(const double *x, int64_t n, double *out) {
    for (int64_t i = 0; i < n; i += ACT_BLOCK) {
        double amax = 0;
        for (int64_t k = i; k < i + ACT_BLOCK; k++) amax = fmax(amax, fabs(x[k]));
        double step = amax / (double)act_levels(ACT_Q16);
        for (int64_t k = i; k < i + ACT_BLOCK; k++) out[k] = step > 0 ? rint(x[k] / step) * step : 0;
    }
}

void learned_rig_linear(const float *w, const float *b, const double *x, int64_t n_in, int64_t n_out, double *y) {
    double rounded[512];
    if (is_rounding(w)) {
        assert_true(n_in <= (int64_t)(sizeof rounded / sizeof *rounded) && n_in % ACT_BLOCK == 0);
        round_inputs(x, n_in, rounded);
        x = rounded;
    }
    for (int64_t o = 0; o < n_out; o++) {
        y[o] = b ? (double)b[o] : 0;
        for (int64_t i = 0; i < n_in; i++) y[o] += (double)w[o * n_in + i] * x[i];
    }
}

double learned_rig_silu(double x) { return x / (1 + exp(-x)); }

void learned_rig_run_info(const LearnedRigInfo *info, const float *embedding, double *out) {
    double x[64] = {0}, narrow[64] = {0}, square = 0;
    assert_true(info->H <= 64 && info->rank <= 64);
    for (int32_t i = 0; i < info->H; i++) x[i] = (double)embedding[i];
    learned_rig_linear(info->down, NULL, x, info->H, info->rank, narrow);
    learned_rig_linear(info->up, NULL, narrow, info->rank, info->n, out);
    for (int32_t i = 0; i < info->n; i++) square += out[i] * out[i];
    for (int32_t i = 0; i < info->n; i++) out[i] *= (double)info->gain[i] / sqrt(square / info->n + 1e-5);
}

void learned_rig_log_softmax(double *x, int64_t n) {
    double max = -INFINITY, sum = 0;
    for (int64_t i = 0; i < n; i++) max = x[i] > max ? x[i] : max;
    for (int64_t i = 0; i < n; i++) sum += exp(x[i] - max);
    for (int64_t i = 0; i < n; i++) x[i] -= max + log(sum);
}

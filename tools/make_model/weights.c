/* weights.c - random weights with which a model generates varied text.
 *
 * Values are normal: 16 random bits choose one of 65536 quantiles of the normal distribution from a table, and a value
 * depends only on (seed, tensor, element), so the file does not depend on the number of threads.
 *
 * Standard deviations: with x of size 1 per element, a matrix of n columns and deviation g / sqrt(n) gives outputs of
 * size g. Two things make greedy text of a random model degenerate, and the gains g are chosen against them:
 *   - The residual stream stays close to the embedding, and a tied output then repeats its input for ever. So
 *     embeddings are small (2.5 / sqrt(dim) per element) and every layer adds much more than they contain.
 *   - Attention averages so many values that nothing is left of them, and the next token depends only on the last one,
 *     which ends in a short cycle. So queries and keys have gain 1.7 (scores of deviation 3: few positions win) and
 *     attention's output has gain 2. The output matrix has gain 2.5, which gives a next-token distribution that is
 *     neither flat nor a point.
 */
#include "base/mem.h"
#include "base/progress.h"
#include "base/rng.h"
#include "base/threads.h"
#include "gguf/tensor_type.h"
#include "make_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_QUANTILES = 1 << 16, PER_DRAW = 8 };

/* How the elements of one tensor are made: mean + std * normal, or given values. */
typedef struct Filler {
    Weights *all;
    uint64_t stream; /* the tensor's number */
    TensorType type;
    int64_t row_n;
    float mean, std;
    const float *given; /* not NULL: these row_n values, F32 */
} Filler;

struct Weights {
    const ModelPlan *plan;
    float quantiles[N_QUANTILES];
    Filler *fillers;
    int64_t n_fillers, capacity;
    int n_threads;
    int64_t row_max;
    float *rows;         /* [n_threads][row_max] */
    float *rope_factors; /* [head_dim / 2], llama3 scaling only */
    Progress progress;
    int64_t n_done, n_total; /* elements */
};

/* ---- numbers --------------------------------------------------------------------------------- */

/* Returns the q-quantile of the standard normal distribution, by Newton's method on its distribution function. */
static double quantile(double q) {
    double x = 0;
    for (int i = 0; i < 60; i++) {
        double wrong = 0.5 * erfc(-x / sqrt(2)) - q;
        double step = wrong / (exp(-x * x / 2) / sqrt(8 * atan(1)));
        x -= step > 0.5 ? 0.5 : step < -0.5 ? -0.5 : step; /* far out the tangent overshoots */
        if (fabs(step) < 1e-12) break;
    }
    return x;
}

static void make_quantiles(float *table) {
    for (int i = 0; i < N_QUANTILES / 2; i++) {
        float x = (float)quantile((i + 0.5) / N_QUANTILES);
        table[i] = x;
        table[N_QUANTILES - 1 - i] = -x;
    }
}

static void make_row(const Filler *f, int64_t row, float *out) {
    const Weights *all = f->all;
    if (f->given) {
        memcpy(out, f->given, (size_t)f->row_n * sizeof *out);
        return;
    }
    uint32_t draws = (uint32_t)((f->row_n + PER_DRAW - 1) / PER_DRAW), words[4];
    for (uint32_t d = 0; d < draws; d++) {
        rng_words(all->plan->seed, RNG_TEST, f->stream << 32 | (uint64_t)row, d, words);
        int64_t at = (int64_t)d * PER_DRAW, n = f->row_n - at < PER_DRAW ? f->row_n - at : PER_DRAW;
        for (int64_t i = 0; i < n; i++)
            out[at + i] = f->mean + f->std * all->quantiles[words[i / 2] >> i % 2 * 16 & 0xffff];
    }
}

/* ---- rows, on all threads -------------------------------------------------------------------- */

typedef struct Job {
    const Filler *filler;
    int64_t first_row, n_rows;
    uint8_t *dst;
} Job;

static void fill_part(void *ctx, int i_part, int n_parts, int i_thread) {
    (void)i_thread;
    const Job *job = ctx;
    const Filler *f = job->filler;
    float *row = f->all->rows + i_thread * f->all->row_max;
    size_t row_bytes;
    int64_t begin, end;
    fr_assert(tensor_type_row_bytes(f->type, f->row_n, &row_bytes));
    threads_split(job->n_rows, 1, i_part, n_parts, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        make_row(f, job->first_row + i, row);
        blocks_quantize(f->type, row, f->row_n, job->dst + (size_t)i * row_bytes);
    }
}

static void fill(void *ctx, int64_t first_row, int64_t n_rows, void *dst) {
    Filler *f = ctx;
    Job job = {.filler = f, .first_row = first_row, .n_rows = n_rows, .dst = dst};
    threads_run_once(f->all->n_threads, fill_part, &job);
    f->all->n_done += n_rows * f->row_n;
    progress_update(&f->all->progress, f->all->n_done);
}

/* ---- types ----------------------------------------------------------------------------------- */

static bool is_mix(const char *type) { return strcmp(type, "Q4_K_M") == 0 || strcmp(type, "Q5_K_M") == 0; }

bool plan_file_type(const char *type, uint32_t *out) {
    static const struct {
        const char *type;
        uint32_t id;
    } ids[] = {{"F32", 0},      {"F16", 1},     {"Q4_0", 2},     {"Q4_1", 3},    {"Q8_0", 7},    {"Q5_0", 8},
               {"Q5_1", 9},     {"Q4_K", 14},   {"Q4_K_M", 15},  {"Q5_K", 16},   {"Q5_K_M", 17}, {"Q6_K", 18},
               {"BF16", 32},    {"Q2_K", 10},   {"Q3_K", 11},    {"IQ4_NL", 25}, {"IQ4_XS", 30}, {"MXFP4", 38},
               {"IQ2_XXS", 19}, {"IQ2_XS", 20}, {"IQ3_XXS", 23}, {"IQ1_S", 24},  {"IQ3_S", 26},  {"IQ2_S", 28},
               {"IQ1_M", 31},   {"NVFP4", 39}};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++)
        if (strcmp(ids[i].type, type) == 0) {
            *out = ids[i].id;
            return true;
        }
    return false;
}

/* llama.cpp's choice of the layers whose attn_v and ffn_down get more bits in the _M mixes. */
static bool use_more_bits(int64_t layer, int64_t n) {
    return layer < n / 8 || layer >= 7 * n / 8 || (layer - n / 8) % 3 == 2;
}

/* Returns the type that replaces a type whose blocks do not divide the rows (again as llama.cpp does). */
static TensorType fitting(TensorType type, int64_t row_n) {
    size_t bytes;
    if (tensor_type_row_bytes(type, row_n, &bytes)) return type;
    TensorType next = type == TYPE_Q4_K                        ? TYPE_Q5_0
                      : type == TYPE_Q5_K                      ? TYPE_Q5_1
                      : type == TYPE_Q6_K                      ? TYPE_Q8_0
                      : tensor_type_info(type)->block_n == 256 ? TYPE_IQ4_NL
                                                               : TYPE_F16;
    return fitting(next, row_n);
}

static TensorType matrix_type(const ModelPlan *p, bool more_bits, int64_t row_n) {
    TensorType type = TYPE_F32;
    char base[8] = "";
    snprintf(base, sizeof base, "%.*s", is_mix(p->type) ? 4 : 7, p->type); /* "Q4_K" of "Q4_K_M" */
    if (is_mix(p->type) && more_bits) type = TYPE_Q6_K;
    else fr_assert(tensor_type_from_name(base, &type));
    return fitting(type, row_n);
}

/* ---- tensors --------------------------------------------------------------------------------- */

/* n_rows rows in all, of n matrices one after the other. */
static Filler *add_pile(Weights *all, GgufWriter *w, const char *name, TensorType type, int64_t row_n, int64_t n_rows,
                        int64_t n) {
    fr_assert(all->n_fillers < all->capacity);
    Filler *f = &all->fillers[all->n_fillers];
    *f = (Filler){.all = all, .stream = (uint64_t)all->n_fillers++, .type = type, .row_n = row_n};
    if (row_n > all->row_max) all->row_max = row_n;
    all->n_total += row_n * n_rows;
    gguf_add_tensor_filled(w, name, type, n > 1 ? 3 : n_rows > 1 ? 2 : 1, (int64_t[]){row_n, n_rows / n, n}, fill, f);
    return f;
}

static Filler *add(Weights *all, GgufWriter *w, const char *name, TensorType type, int64_t row_n, int64_t n_rows) {
    return add_pile(all, w, name, type, row_n, n_rows, 1);
}

static void add_matrix(Weights *all, GgufWriter *w, const char *name, int64_t columns, int64_t rows, double gain,
                       bool more_bits) {
    Filler *f = add(all, w, name, matrix_type(all->plan, more_bits, columns), columns, rows);
    f->std = (float)(gain / sqrt((double)columns));
}

static void add_experts_matrix(Weights *all, GgufWriter *w, const char *name, int64_t columns, int64_t rows,
                               double gain, bool more_bits) {
    int64_t n = all->plan->n_experts;
    Filler *f = add_pile(all, w, name, matrix_type(all->plan, more_bits, columns), columns, rows * n, n);
    f->std = (float)(gain / sqrt((double)columns));
}

static void add_vector(Weights *all, GgufWriter *w, const char *name, int64_t n, double mean, double std) {
    Filler *f = add(all, w, name, TYPE_F32, n, 1);
    f->mean = (float)mean;
    f->std = (float)std;
}

static const char *in_layer(char name[64], int64_t layer, const char *part) {
    snprintf(name, 64, "blk.%lld.%s", (long long)layer, part);
    return name;
}

/* Decays are about 0.9 per position, so a state remembers some ten positions. */
static void add_delta_net(Weights *all, GgufWriter *w, int64_t l) {
    const ModelPlan *p = all->plan;
    int64_t n = p->delta_heads, values = n * p->delta_dim, channels = values + 2 * p->delta_key_heads * p->delta_dim;
    char name[64];
    add_vector(all, w, in_layer(name, l, "attn_norm.weight"), p->dim, 1, 0.1);
    add_matrix(all, w, in_layer(name, l, "attn_qkv.weight"), p->dim, channels, 1.7, false);
    add_matrix(all, w, in_layer(name, l, "attn_gate.weight"), p->dim, values, 1.4, false);
    if (plan_is(p, "qwen3next")) add_matrix(all, w, in_layer(name, l, "ssm_ba.weight"), p->dim, 2 * n, 1, false);
    else add_matrix(all, w, in_layer(name, l, "ssm_beta.weight"), p->dim, n, 1, false);
    if (!plan_is(p, "qwen3next")) add_matrix(all, w, in_layer(name, l, "ssm_alpha.weight"), p->dim, n, 1, false);
    add(all, w, in_layer(name, l, "ssm_conv1d.weight"), TYPE_F32, PLAN_CONV, channels)->std = 0.7f;
    add_vector(all, w, in_layer(name, l, "ssm_dt.bias"), n, 0, 0.5);
    add_vector(all, w, in_layer(name, l, "ssm_a"), n, -0.15, 0.03);
    add_vector(all, w, in_layer(name, l, "ssm_norm.weight"), p->delta_dim, 1, 0.1);
    add_matrix(all, w, in_layer(name, l, "ssm_out.weight"), values, p->dim, 2, false);
}

static void add_mamba2(Weights *all, GgufWriter *w, int64_t l) {
    const ModelPlan *p = all->plan;
    int64_t n = p->ssm_heads * p->ssm_dim, channels = n + 2 * p->ssm_groups * p->ssm_state;
    char name[64];
    add_vector(all, w, in_layer(name, l, "attn_norm.weight"), p->dim, 1, 0.1);
    add_matrix(all, w, in_layer(name, l, "ssm_in.weight"), p->dim, n + channels + p->ssm_heads, 1.4, false);
    add(all, w, in_layer(name, l, "ssm_conv1d.weight"), TYPE_F32, PLAN_CONV, channels)->std = 0.7f;
    add_vector(all, w, in_layer(name, l, "ssm_conv1d.bias"), channels, 0, 0.3);
    add_vector(all, w, in_layer(name, l, "ssm_dt.bias"), p->ssm_heads, 0, 0.5);
    Filler *a = add(all, w, in_layer(name, l, "ssm_a"), TYPE_F32, 1, p->ssm_heads);
    a->mean = -0.15f, a->std = 0.03f;
    Filler *d = add(all, w, in_layer(name, l, "ssm_d"), TYPE_F32, 1, p->ssm_heads);
    d->mean = 1, d->std = 0.2f;
    Filler *norm = add(all, w, in_layer(name, l, "ssm_norm.weight"), TYPE_F32, n / p->ssm_groups, p->ssm_groups);
    norm->mean = 1, norm->std = 0.1f;
    add_matrix(all, w, in_layer(name, l, "ssm_out.weight"), n, p->dim, 2, false);
}

static void add_short_conv(Weights *all, GgufWriter *w, int64_t l) {
    const ModelPlan *p = all->plan;
    char name[64];
    add_vector(all, w, in_layer(name, l, "attn_norm.weight"), p->dim, 1, 0.1);
    add_matrix(all, w, in_layer(name, l, "shortconv.in_proj.weight"), p->dim, 3 * p->dim, 1.4, false);
    add(all, w, in_layer(name, l, "shortconv.conv.weight"), TYPE_F32, PLAN_SHORT_CONV, p->dim)->std = 0.7f;
    add_matrix(all, w, in_layer(name, l, "shortconv.out_proj.weight"), p->dim, p->dim, 1, false);
}

static void add_head_matrices(Weights *all, GgufWriter *w, const char *name, int64_t columns, int64_t rows,
                              double std) {
    int64_t n = all->plan->n_heads;
    Filler *f = add_pile(all, w, name, matrix_type(all->plan, false, columns), columns, rows * n, n);
    f->std = (float)std;
}

/* A key is attn_k_b' times a latent with numbers of size 1, so its deviation is 1.7 over the root of their number. */
static void add_latent_attention(Weights *all, GgufWriter *w, int64_t l) {
    const ModelPlan *p = all->plan;
    int64_t plain = p->head_dim - p->rope_dim, q = p->n_heads * p->head_dim, values = p->n_heads * p->value_dim;
    char name[64];
    add_vector(all, w, in_layer(name, l, "attn_norm.weight"), p->dim, 1, 0.1);
    if (p->q_rank) {
        add_matrix(all, w, in_layer(name, l, "attn_q_a.weight"), p->dim, p->q_rank, 1, false);
        add_vector(all, w, in_layer(name, l, "attn_q_a_norm.weight"), p->q_rank, 1, 0.1);
    }
    add_matrix(all, w, in_layer(name, l, p->q_rank ? "attn_q_b.weight" : "attn_q.weight"),
               p->q_rank ? p->q_rank : p->dim, q, 1.7, false);
    add_matrix(all, w, in_layer(name, l, "attn_kv_a_mqa.weight"), p->dim, p->kv_rank + p->rope_dim, 1.7, false);
    add_vector(all, w, in_layer(name, l, "attn_kv_a_norm.weight"), p->kv_rank, 1, 0.1);
    add_head_matrices(all, w, in_layer(name, l, "attn_k_b.weight"), plain, p->kv_rank, 1.7 / sqrt((double)p->kv_rank));
    add_head_matrices(all, w, in_layer(name, l, "attn_v_b.weight"), p->kv_rank, p->value_dim,
                      1 / sqrt((double)p->kv_rank));
    add_matrix(all, w, in_layer(name, l, "attn_output.weight"), values, p->dim, 2, false);
}

static void add_attention(Weights *all, GgufWriter *w, int64_t l, bool more_bits) {
    const ModelPlan *p = all->plan;
    int64_t head_dim = plan_has_local_heads(p, l) ? p->head_dim / 2 : p->head_dim;
    int64_t q = p->n_heads * head_dim, kv = p->n_kv_heads * head_dim;
    bool has_keys = l < p->n_layers - p->n_shared_kv || l >= p->n_layers;
    char name[64];
    add_vector(all, w, in_layer(name, l, "attn_norm.weight"), p->dim, 1, 0.1);
    if (plan_is(p, "phi3")) {
        add_matrix(all, w, in_layer(name, l, "attn_qkv.weight"), p->dim, q + 2 * kv, 1.7, more_bits);
    } else {
        add_matrix(all, w, in_layer(name, l, "attn_q.weight"), p->dim, (plan_is(p, HYBRIDS) ? 2 : 1) * q, 1.7, false);
        if (has_keys) add_matrix(all, w, in_layer(name, l, "attn_k.weight"), p->dim, kv, 1.7, false);
        if (has_keys) add_matrix(all, w, in_layer(name, l, "attn_v.weight"), p->dim, kv, 1, more_bits);
    }
    add_matrix(all, w, in_layer(name, l, "attn_output.weight"), q, p->dim, 2, false);
    if (plan_is(p, GEMMAS)) add_vector(all, w, in_layer(name, l, "post_attention_norm.weight"), p->dim, 4, 0.3);
    if (plan_is(p, "gpt-oss")) {
        add_vector(all, w, in_layer(name, l, "attn_output.bias"), p->dim, 0, 0.1);
        add_vector(all, w, in_layer(name, l, "attn_sinks.weight"), p->n_heads, 1, 1);
    }
    if (plan_is(p, "qwen2 qwen2moe gpt-oss glm4moe")) {
        add_vector(all, w, in_layer(name, l, "attn_q.bias"), q, 0, p->bias_std);
        add_vector(all, w, in_layer(name, l, "attn_k.bias"), kv, 0, p->bias_std);
        add_vector(all, w, in_layer(name, l, "attn_v.bias"), kv, 0, p->bias_std);
    }
    if (plan_is(p, "qwen3 qwen3moe gemma3 glm4moe " LFM2S
                   " " HYBRIDS)) { /* these norms undo the gain of queries and keys, so they carry it */
        add_vector(all, w, in_layer(name, l, "attn_q_norm.weight"), p->head_dim, 1.7, 0.1);
        add_vector(all, w, in_layer(name, l, "attn_k_norm.weight"), p->head_dim, 1.7, 0.1);
    }
    if (!plan_is(p, "gemma4")) return;
    double gain = 1.7 * 1.7 / sqrt((double)head_dim); /* scores are not divided by the square root of the head size */
    add_vector(all, w, in_layer(name, l, "attn_q_norm.weight"), head_dim, gain, 0.1 * gain);
    if (has_keys) add_vector(all, w, in_layer(name, l, "attn_k_norm.weight"), head_dim, 1, 0.1);
}

/* Adds the per-layer embedding of a layer, and its factor. */
static void add_layer_end(Weights *all, GgufWriter *w, int64_t l) {
    const ModelPlan *p = all->plan;
    char name[64];
    if (p->n_ple) {
        add_matrix(all, w, in_layer(name, l, "inp_gate.weight"), p->dim, p->n_ple, 0.3, false);
        add_matrix(all, w, in_layer(name, l, "proj.weight"), p->n_ple, p->dim, 1, false);
        add_vector(all, w, in_layer(name, l, "post_norm.weight"), p->dim, 4, 0.3);
    }
    add_vector(all, w, in_layer(name, l, "layer_output_scale.weight"), 1, 0.9, 0.05);
}

static void add_expert_biases(Weights *all, GgufWriter *w, int64_t l) {
    const ModelPlan *p = all->plan;
    const struct {
        const char *name;
        int64_t n;
    } biases[] = {{"ffn_gate_exps.bias", p->expert_ffn},
                  {"ffn_up_exps.bias", p->expert_ffn},
                  {"ffn_down_exps.bias", p->dim}};
    char name[64];
    add_vector(all, w, in_layer(name, l, "ffn_gate_inp.bias"), p->n_experts, 0, 0.5);
    for (int i = 0; i < 3; i++)
        add(all, w, in_layer(name, l, biases[i].name), TYPE_F32, biases[i].n, p->n_experts)->std = 0.1f;
}

/* A router with gain 3 chooses its experts with a clear margin, as a trained one does. */
static void add_experts(Weights *all, GgufWriter *w, int64_t l, bool more_bits) {
    const ModelPlan *p = all->plan;
    char name[64];
    Filler *router = add(all, w, in_layer(name, l, "ffn_gate_inp.weight"), TYPE_F32, p->dim, p->n_experts);
    router->std = (float)(3 / sqrt((double)p->dim));
    add_experts_matrix(all, w, in_layer(name, l, "ffn_gate_exps.weight"), p->dim, p->expert_ffn, 1.4, false);
    add_experts_matrix(all, w, in_layer(name, l, "ffn_up_exps.weight"), p->dim, p->expert_ffn, 1.4, false);
    add_experts_matrix(all, w, in_layer(name, l, "ffn_down_exps.weight"), p->expert_ffn, p->dim, 2, more_bits);
    if (plan_is(p, "gpt-oss")) add_expert_biases(all, w, l);
    if (p->has_sigmoid_router) add_vector(all, w, in_layer(name, l, "exp_probs_b.bias"), p->n_experts, 0, 0.1);
    if (!p->shared_ffn) return;
    add_matrix(all, w, in_layer(name, l, "ffn_gate_shexp.weight"), p->dim, p->shared_ffn, 1.4, false);
    add_matrix(all, w, in_layer(name, l, "ffn_up_shexp.weight"), p->dim, p->shared_ffn, 1.4, false);
    add_matrix(all, w, in_layer(name, l, "ffn_down_shexp.weight"), p->shared_ffn, p->dim, 1, more_bits);
    if (plan_is(p, "granitehybrid llama4 " ROUTED)) return;
    add_vector(all, w, in_layer(name, l, "ffn_gate_inp_shexp.weight"), p->dim, 0, 1 / sqrt((double)p->dim));
}

static void add_ffn(Weights *all, GgufWriter *w, int64_t l, bool more_bits) {
    const ModelPlan *p = all->plan;
    char name[64];
    bool is_fused = plan_is(p, "phi3");
    bool has_post_name = plan_is(p, "gpt-oss glm4moe " HYBRIDS);
    add_vector(all, w, in_layer(name, l, has_post_name ? "post_attention_norm.weight" : "ffn_norm.weight"), p->dim, 1,
               0.1);
    if (plan_has_experts(p, l)) {
        add_experts(all, w, l, more_bits);
    } else {
        if (!is_fused) add_matrix(all, w, in_layer(name, l, "ffn_gate.weight"), p->dim, p->ffn_dim, 1.4, false);
        add_matrix(all, w, in_layer(name, l, "ffn_up.weight"), p->dim, (is_fused ? 2 : 1) * p->ffn_dim, 1.4, false);
        add_matrix(all, w, in_layer(name, l, "ffn_down.weight"), p->ffn_dim, p->dim, 1, more_bits);
    }
    if (plan_is(p, GEMMAS)) add_vector(all, w, in_layer(name, l, "post_ffw_norm.weight"), p->dim, 4, 0.3);
    if (plan_is(p, "gemma4")) add_layer_end(all, w, l);
}

/* Adds a layer for multi-token prediction. */
static void add_nextn(Weights *all, GgufWriter *w, int64_t l) {
    const ModelPlan *p = all->plan;
    char name[64];
    if (p->kv_rank) add_latent_attention(all, w, l);
    else add_attention(all, w, l, true);
    add_ffn(all, w, l, true);
    add_matrix(all, w, in_layer(name, l, "nextn.eh_proj.weight"), 2 * p->dim, p->dim, 1, false);
    add_vector(all, w, in_layer(name, l, "nextn.enorm.weight"), p->dim, 1, 0.1);
    add_vector(all, w, in_layer(name, l, "nextn.hnorm.weight"), p->dim, 1, 0.1);
    add_vector(all, w, in_layer(name, l, "nextn.shared_head_norm.weight"), p->dim, 1, 0.1);
}

/* What each rotation frequency is divided by: Llama 3.1's rule. Fast rotations stay, slow ones are stretched
 * by the whole factor, and those between get a part of it. */
static void make_rope_factors(const ModelPlan *p, float *out) {
    for (int64_t i = 0; plan_is(p, "gemma4") && i < p->head_dim / 2; i++)
        out[i] = i < p->head_dim / 8 ? 1 : 1e30f; /* a quarter of a head turns */
    if (plan_is(p, "gemma4")) return;
    for (int64_t i = 0; i < p->head_dim / 2; i++) {
        double wavelength = 8 * atan(1) * pow(p->rope_base, 2.0 * (double)i / (double)p->head_dim);
        double turns = p->rope_original / wavelength; /* in the context that the model was trained on */
        double kept = (turns - p->rope_low) / (p->rope_high - p->rope_low);
        kept = kept < 0 ? 0 : kept > 1 ? 1 : kept;
        out[i] = (float)(1 / ((1 - kept) / p->rope_factor + kept));
    }
}

static void add_mixer(Weights *all, GgufWriter *w, int64_t l, bool more_bits) {
    const ModelPlan *p = all->plan;
    if (p->kv_rank) add_latent_attention(all, w, l);
    else if (plan_has_attention(p, l)) add_attention(all, w, l, more_bits);
    else if (plan_is(p, HYBRIDS)) add_delta_net(all, w, l);
    else if (plan_is(p, MAMBAS)) add_mamba2(all, w, l);
    else add_short_conv(all, w, l);
}

static void add_all(Weights *all, GgufWriter *w) {
    const ModelPlan *p = all->plan;
    add_matrix(all, w, "token_embd.weight", p->dim, p->n_vocab, 2.5, p->tied);
    if (p->n_ple) {
        add_matrix(all, w, "per_layer_token_embd.weight", p->n_layers * p->n_ple, p->n_vocab, 1, false);
        add_matrix(all, w, "per_layer_model_proj.weight", p->dim, p->n_layers * p->n_ple, 1, false);
        add_vector(all, w, "per_layer_proj_norm.weight", p->n_ple, 1, 0.1);
    }
    if (p->rope_scaling == ROPE_LLAMA3 || plan_is(p, "gemma4"))
        add(all, w, "rope_freqs.weight", TYPE_F32, p->head_dim / 2, 1)->given = all->rope_factors;
    for (int64_t l = 0; l < p->n_layers; l++) {
        bool more_bits = use_more_bits(l, p->n_layers);
        add_mixer(all, w, l, more_bits);
        if (!plan_is(p, "mamba2")) add_ffn(all, w, l, more_bits);
    }
    add_vector(all, w, plan_is(p, LFM2S) ? "token_embd_norm.weight" : "output_norm.weight", p->dim, 1, 0.1);
    if (!p->tied) add_matrix(all, w, "output.weight", p->dim, p->n_vocab, 2.5, true);
    for (int64_t l = p->n_layers; l < p->n_layers + p->n_nextn; l++)
        add_nextn(all, w, l); /* the others stay the same */
}

int weights_add(Weights **out, GgufWriter *w, const ModelPlan *plan, fr_error *err) {
    Weights *all = mem_calloc(1, sizeof *all);
    *out = all;
    if (!all) return error_memory(err, "weights", sizeof *all);
    all->plan = plan;
    all->capacity = (plan->n_layers + plan->n_nextn) * 28 + 8;
    all->n_threads = threads_n_physical_cores();
    all->fillers = mem_calloc((size_t)all->capacity, sizeof *all->fillers);
    all->rope_factors = mem_calloc((size_t)plan->head_dim / 2 + 1, sizeof(float));
    if (!all->fillers || !all->rope_factors) return error_memory(err, "weights", (size_t)all->capacity);
    make_quantiles(all->quantiles);
    if (plan->rope_scaling == ROPE_LLAMA3 || plan_is(plan, "gemma4")) make_rope_factors(plan, all->rope_factors);
    add_all(all, w);
    all->rows = mem_calloc((size_t)(all->n_threads * all->row_max), sizeof *all->rows);
    if (!all->rows) return error_memory(err, "rows", (size_t)all->row_max);
    progress_begin(&all->progress, stderr, "weights", all->n_total);
    return FR_OK;
}

void weights_free(Weights *all) {
    if (!all) return;
    progress_end(&all->progress);
    mem_free(all->fillers);
    mem_free(all->rope_factors);
    mem_free(all->rows);
    mem_free(all);
}

/* test_reference.c - compares the CPU backend's forward with the reference backend in double precision.
 *
 * Tolerances, relative rms of logits:
 *   F32, F16 weights     1e-5   some hundred float roundings (2^-24 each) on the way, seen up to 2e-6
 *   BF16 weights         2^-9 / sqrt(3) rms error of each rounded input: 0.11 %. A token passes
 *                        d = 4 n_layer + 1 products in a row, whose errors add as squares.
 *   block types          32 Gaussian inputs have a largest of about 2.3 sigma, a step of 2.3/32512 sigma and so
 *                        an rms error of 2.3/32512/sqrt(12) = 0.002 % of each input, likewise.
 *   The bound is 3 * each * sqrt(d) more: residual branches carry little of the sum, but norms after a small
 *   residual and a steep softmax may amplify; and so may queries that read little from the state of a Gated DeltaNet,
 *   after
 *   which there is a norm: twice as much there. (That this is the model's own doing, and no fault of a type or of tied
 *   weights: the same numbers stored as F32 have the same error divided by 130 to 220, whatever the layers are.
 *   research/DIARY.md.)
 * For BF16 a second comparison, with the same rounding imitated, leaves only what single precision costs: 1e-5 again in
 * the quarter of the tokens that agree best. (A few inputs lie so near to a rounding edge that single precision pushes
 * them over, and from there on the rounding of everything after them is another one.) */
#include "testing.h"

#include "model_rig.h"
#include "compute/reference/reference.h"
#include "compute/backend.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct Case {
    const char *name;
    RandomModel m;
} Case;

#define SHAPE(a, layers, embd, heads, kv, ff, vocab) \
    .arch = a, .n_layer = layers, .n_embd = embd, .n_head = heads, .n_head_kv = kv, .n_ff = ff, .n_vocab = vocab
#define TYPE(t) .types = {t}, .n_types = 1
#define HYBRID(keys, values, dim, conv, interval) \
    .n_key_heads = keys, .n_value_heads = values, .delta_dim = dim, .n_conv = conv, .attention_interval = interval

#define LATENT(q, kv, plain, rot, value) \
    .q_rank = q, .kv_rank = kv, .plain_dim = plain, .n_rot = rot, .value_dim = value

static const Case cases[] = {
    {"one head, tiny", {SHAPE("llama", 1, 8, 1, 1, 7, 33), .seed = 1}},
    {"head_dim 8", {SHAPE("llama", 2, 64, 8, 2, 100, 301), .seed = 2}},
    {"no grouping", {SHAPE("llama", 2, 48, 4, 4, 129, 77), .seed = 3}},
    {"all heads share one", {SHAPE("llama", 2, 96, 6, 1, 200, 310), .seed = 4}},
    {"groups of three, tied", {SHAPE("llama", 3, 96, 6, 2, 133, 259), .tied = true, .seed = 5}},
    {"heads wider than the model", {SHAPE("llama", 2, 40, 3, 1, 50, 61), .head_dim = 24, .seed = 6}},
    {"half of a head rotates", {SHAPE("llama", 2, 64, 4, 2, 90, 61), .n_rot = 8, .seed = 7}},
    {"biases on llama", {SHAPE("llama", 2, 64, 4, 2, 90, 61), .biases = true, .seed = 8}},
    {"biases everywhere", {SHAPE("llama", 2, 64, 4, 2, 90, 300), .biases = true, .more_biases = true, .seed = 70}},
    {"biases everywhere, tied, q8_0",
     {SHAPE("gemma2", 2, 64, 4, 2, 96, 300), .window = 5, .biases = true, .more_biases = true, .tied = true,
      TYPE(TYPE_Q8_0), .seed = 71}},
    {"numbers of each layer",
     {SHAPE("llama", 4, 64, 8, 4, 130, 300), .head_dim = 16, .head_counts = {4, 8, 6, 8},
      .kv_head_counts = {1, 4, 2, 2}, .ff_widths = {90, 130, 7, 64}, .seed = 72}},
    {"numbers of each layer, windows, q8_0",
     {SHAPE("gemma3", 3, 64, 6, 3, 128, 300), .head_dim = 32, .window = 6, .head_counts = {2, 6, 4},
      .kv_head_counts = {2, 3, 1}, .ff_widths = {128, 32, 64}, TYPE(TYPE_Q8_0), .seed = 73}},
    {"rope base", {SHAPE("llama", 2, 64, 4, 2, 90, 61), .rope_base = 500000, .seed = 9}},
    {"linear", {SHAPE("llama", 2, 64, 4, 2, 90, 61), .rope_scaling = "linear", .rope_factor = 4, .seed = 10}},
    {"none", {SHAPE("llama", 2, 64, 4, 2, 90, 61), .rope_scaling = "none", .rope_factor = 4, .seed = 10}},
    {"yarn",
     {SHAPE("llama", 2, 64, 2, 2, 90, 61), .rope_scaling = "yarn", .rope_factor = 4, .rope_n_ctx_orig = 512,
      .seed = 11}},
    {"yarn, qwen2",
     {SHAPE("qwen2", 2, 64, 2, 1, 90, 61), .rope_scaling = "yarn", .rope_factor = 8, .rope_n_ctx_orig = 4096,
      .rope_base = 1e6, .seed = 12}},
    {"llama 3 factors", {SHAPE("llama", 2, 64, 2, 2, 90, 61), .rope_factors = true, .rope_base = 5e5, .seed = 13}},
    {"qwen2", {SHAPE("qwen2", 2, 56, 7, 1, 99, 300), .seed = 14}},
    {"qwen2 tied", {SHAPE("qwen2", 2, 64, 4, 2, 99, 300), .tied = true, .rope_base = 1e6, .seed = 15}},
    {"qwen3", {SHAPE("qwen3", 2, 64, 4, 2, 99, 300), .seed = 16}},
    {"qwen3, wide heads", {SHAPE("qwen3", 3, 48, 4, 2, 99, 300), .head_dim = 32, .tied = true, .seed = 17}},
    {"mixtral",
     {SHAPE("llama", 2, 64, 4, 2, 40, 300), .n_expert = 5, .n_expert_used = 2, .n_ff_expert = 40, .seed = 40}},
    {"qwen2moe",
     {SHAPE("qwen2moe", 2, 56, 7, 1, 99, 300), .n_expert = 9, .n_expert_used = 4, .n_ff_expert = 33, .n_ff_shared = 70,
      .seed = 41}},
    {"qwen3moe",
     {SHAPE("qwen3moe", 3, 48, 4, 2, 99, 300), .head_dim = 32, .n_expert = 16, .n_expert_used = 3, .n_ff_expert = 24,
      .seed = 42}},
    {"qwen3moe, q8_0",
     {SHAPE("qwen3moe", 2, 64, 4, 2, 96, 300), .n_expert = 8, .n_expert_used = 2, .n_ff_expert = 32, TYPE(TYPE_Q8_0),
      .seed = 43}},
    {"gemma2", {SHAPE("gemma2", 4, 64, 4, 2, 90, 300), .head_dim = 24, .window = 5, .tied = true, .seed = 44}},
    {"gemma3",
     {SHAPE("gemma3", 7, 64, 4, 1, 90, 300), .head_dim = 24, .window = 6, .tied = true, .rope_base = 1e6,
      .rope_scaling = "linear", .rope_factor = 8, .seed = 45}},
    {"gemma4",
     {SHAPE("gemma4", 6, 64, 4, 2, 90, 300), .head_dim = 40, .local_head_dim = 24, .kv_head_counts = {2, 2, 1, 2, 2, 1},
      .window = 6, .attention_interval = 3, .values_of_keys = true, .rope_factors = true, .tied = true,
      .rope_base = 1e6, .seed = 80}},
    {"gemma4, experts, q8_0",
     {SHAPE("gemma4", 2, 64, 4, 2, 96, 300), .head_dim = 64, .local_head_dim = 32, .window = 6, .attention_interval = 2,
      .n_expert = 6, .n_expert_used = 2, .n_ff_expert = 32, .rope_factors = true, TYPE(TYPE_Q8_0), .seed = 83}},
    {"gemma4, shared keys, per-layer embeddings",
     {SHAPE("gemma4", 7, 64, 4, 1, 90, 300), .head_dim = 40, .local_head_dim = 24, .window = 6, .attention_interval = 3,
      .n_shared_kv = 4, .n_ple = 20, .ff_widths = {45, 45, 45, 90, 90, 90, 90}, .rope_factors = true, .tied = true,
      .seed = 81}},
    {"gemma4, shared keys, q8_0 and f16",
     {SHAPE("gemma4", 5, 64, 4, 2, 96, 300), .head_dim = 64, .local_head_dim = 32, .window = 9, .attention_interval = 2,
      .n_shared_kv = 2, .n_ple = 64, .rope_factors = true, .types = {TYPE_Q8_0, TYPE_F16}, .n_types = 2, .seed = 82}},
    {"phi3", {SHAPE("phi3", 2, 64, 4, 2, 90, 300), .window = 9, .seed = 46}},
    {"phi3, long rope",
     {SHAPE("phi3", 2, 64, 4, 2, 90, 300), .window = 9, .long_rope = true, .rope_n_ctx_orig = 4, .seed = 48}},
    {"phi3, mixed types",
     {SHAPE("phi3", 2, 64, 4, 2, 96, 300), .types = {TYPE_Q8_0, TYPE_F16, TYPE_BF16}, .n_types = 3, .seed = 47}},
    {"smollm3", {SHAPE("smollm3", 5, 64, 4, 2, 90, 300), .tied = true, .rope_base = 5e6, .seed = 48}},
    {"granite", {SHAPE("granite", 3, 64, 4, 2, 90, 300), .seed = 49}},
    {"qwen35", {SHAPE("qwen35", 4, 64, 4, 2, 90, 300), HYBRID(3, 6, 18, 4, 2), .n_rot = 8, .seed = 50}},
    {"qwen35moe, q8_0",
     {SHAPE("qwen35moe", 3, 64, 4, 2, 96, 300), HYBRID(2, 4, 32, 3, 3), .n_expert = 8, .n_expert_used = 2,
      .n_ff_expert = 32, .n_ff_shared = 64, TYPE(TYPE_Q8_0), .seed = 51}},
    {"qwen3next",
     {SHAPE("qwen3next", 4, 48, 4, 1, 90, 300), HYBRID(2, 6, 24, 4, 4), .head_dim = 24, .n_expert = 9,
      .n_expert_used = 3, .n_ff_expert = 24, .n_ff_shared = 33, .seed = 52}},
    {"lfm2", {SHAPE("lfm2", 4, 72, 6, 2, 90, 300), .n_conv = 3, .attention_interval = 3, .seed = 60}},
    {"lfm2, q4_k",
     {SHAPE("lfm2", 3, 256, 4, 2, 256, 300), .n_conv = 4, .attention_interval = 3, TYPE(TYPE_Q4_K), .seed = 61}},
    {"granitehybrid",
     {SHAPE("granitehybrid", 4, 48, 4, 2, 90, 300), HYBRID(1, 6, 18, 4, 3), .n_ssm_state = 20, .seed = 62}},
    {"granitehybrid with experts, q8_0",
     {SHAPE("granitehybrid", 3, 64, 4, 2, 96, 300), HYBRID(2, 4, 32, 4, 2), .n_ssm_state = 16, .rope_base = 1e4,
      .n_expert = 8, .n_expert_used = 2, .n_ff_expert = 32, .n_ff_shared = 64, TYPE(TYPE_Q8_0), .seed = 63}},
    {"mamba2",
     {SHAPE("mamba2", 4, 40, 0, 0, 0, 300), HYBRID(2, 6, 14, 3, 0), .n_ssm_state = 24, .tied = true, .seed = 64}},
    {"gpt-oss",
     {SHAPE("gpt-oss", 3, 64, 4, 2, 90, 300), .head_dim = 24, .n_expert = 9, .n_expert_used = 3, .n_ff_expert = 70,
      .window = 5, .rope_scaling = "yarn", .rope_factor = 8, .rope_n_ctx_orig = 64, .seed = 50}},
    {"gpt-oss, mxfp4",
     {SHAPE("gpt-oss", 2, 64, 4, 2, 96, 300), .n_expert = 8, .n_expert_used = 2, .n_ff_expert = 96, .window = 7,
      TYPE(TYPE_MXFP4), .seed = 51}},
    {"deepseek2, lite",
     {SHAPE("deepseek2", 3, 64, 5, 1, 90, 300), LATENT(0, 36, 10, 6, 14), .n_dense = 1, .n_expert = 7,
      .n_expert_used = 3, .n_ff_expert = 24, .n_ff_shared = 48, .rope_scaling = "yarn", .rope_factor = 40,
      .rope_n_ctx_orig = 64, .yarn_log_multiplier = 0.0707, .seed = 60}},
    {"deepseek2, groups",
     {SHAPE("deepseek2", 3, 64, 11, 1, 90, 300), LATENT(30, 44, 20, 10, 16), .n_dense = 1, .n_expert = 12,
      .n_expert_used = 3, .n_ff_expert = 24, .n_ff_shared = 24, .n_groups = 4, .n_groups_used = 2,
      .has_sigmoid_router = true, .divides_by_chosen = true, .expert_scale = 2.5, .seed = 61}},
    {"mistral3",
     {SHAPE("mistral3", 2, 64, 4, 2, 90, 300), .rope_scaling = "yarn", .rope_factor = 16, .rope_n_ctx_orig = 7,
      .yarn_log_multiplier = 1, .temperature_scale = 0.3, .seed = 60}},
    {"mistral3, experts, q8_0",
     {SHAPE("mistral3", 2, 64, 4, 2, 64, 300), .n_expert = 6, .n_expert_used = 2, .n_ff_expert = 64,
      .rope_n_ctx_orig = 9, .temperature_scale = 0.5, TYPE(TYPE_Q8_0), .seed = 61}},
    {"deepseek2, temperature",
     {SHAPE("deepseek2", 2, 64, 5, 1, 90, 300), LATENT(0, 36, 10, 6, 14), .temperature_scale = 0.4,
      .temperature_length = 8, .seed = 62}},
    {"llama4",
     {SHAPE("llama4", 5, 64, 4, 2, 90, 300), .n_expert = 6, .n_expert_used = 2, .n_ff_expert = 40, .n_ff_shared = 40,
      .expert_interval = 2, .window = 7, .temperature_length = 5, .rope_factors = true, .seed = 63}},
    {"llama4, q8_0 and f16",
     {SHAPE("llama4", 4, 64, 4, 1, 96, 300), .n_expert = 5, .n_expert_used = 1, .n_ff_expert = 64, .n_ff_shared = 64,
      .expert_interval = 1, .window = 10, .temperature_scale = 0.6, .temperature_length = 4,
      .types = {TYPE_Q8_0, TYPE_F16}, .n_types = 2, .seed = 64}},
    {"lfm2moe",
     {SHAPE("lfm2moe", 4, 64, 4, 2, 90, 300), .n_conv = 3, .attention_interval = 2, .n_dense = 2, .n_expert = 8,
      .n_expert_used = 3, .n_ff_expert = 40, .has_sigmoid_router = true, .seed = 65}},
    {"deepseek2, groups of a softmax",
     {SHAPE("deepseek2", 2, 64, 4, 1, 90, 300), LATENT(12, 20, 7, 2, 5), .n_expert = 12, .n_expert_used = 4,
      .n_ff_expert = 24, .n_ff_shared = 24, .n_groups = 6, .n_groups_used = 3, .expert_scale = 2, .seed = 62}},
    {"deepseek2, dense, joined, q8_0",
     {SHAPE("deepseek2", 2, 64, 12, 1, 96, 300), LATENT(0, 64, 24, 8, 8), .joins_kv_b = true, TYPE(TYPE_Q8_0),
      .seed = 63}},
    {"deepseek2, q8_0 and f16",
     {SHAPE("deepseek2", 2, 64, 4, 1, 96, 300), LATENT(32, 64, 32, 16, 32), .n_dense = 1, .n_expert = 8,
      .n_expert_used = 2, .n_ff_expert = 32, .n_ff_shared = 64, .has_sigmoid_router = true, .expert_scale = 0.5,
      .types = {TYPE_Q8_0, TYPE_F16}, .n_types = 2, .seed = 64}},
    {"nvfp4 with scales, experts",
     {SHAPE("qwen3moe", 2, 64, 2, 1, 64, 300), .head_dim = 64, .n_expert = 6, .n_expert_used = 2, .n_ff_expert = 64,
      TYPE(TYPE_NVFP4), .has_scales = true, .seed = 67}},
    {"nvfp4 with scales, latents",
     {SHAPE("deepseek2", 2, 64, 2, 1, 64, 300), LATENT(64, 64, 64, 16, 64), .n_dense = 1, .n_expert = 4,
      .n_expert_used = 2, .n_ff_expert = 64, .n_ff_shared = 64, TYPE(TYPE_NVFP4), .has_scales = true, .seed = 68}},
    {"glm4moe",
     {SHAPE("glm4moe", 3, 64, 4, 2, 90, 300), .head_dim = 22, .n_rot = 12, .n_dense = 1, .n_expert = 9,
      .n_expert_used = 3, .n_ff_expert = 24, .n_ff_shared = 48, .has_sigmoid_router = true, .divides_by_chosen = true,
      .expert_scale = 2.5, .head_norms = true, .seed = 65}},
    {"glm4moe, no norms of heads, q8_0",
     {SHAPE("glm4moe", 2, 64, 4, 1, 96, 300), .head_dim = 32, .n_rot = 16, .n_dense = 1, .n_expert = 8,
      .n_expert_used = 2, .n_ff_expert = 32, .n_ff_shared = 32, .has_sigmoid_router = true, .divides_by_chosen = true,
      TYPE(TYPE_Q8_0), .seed = 66}},
    {"q2_k", {SHAPE("llama", 2, 256, 8, 2, 512, 301), TYPE(TYPE_Q2_K), .seed = 52}},
    {"q3_k", {SHAPE("qwen2", 2, 256, 8, 4, 256, 301), TYPE(TYPE_Q3_K), .seed = 53}},
    {"iq4_nl", {SHAPE("llama", 2, 64, 8, 2, 96, 301), TYPE(TYPE_IQ4_NL), .seed = 54}},
    {"iq4_xs", {SHAPE("qwen3", 2, 256, 4, 2, 256, 301), .tied = true, TYPE(TYPE_IQ4_XS), .seed = 55}},
    {"iq2_xs", {SHAPE("qwen3", 2, 256, 4, 2, 256, 301), .tied = true, TYPE(TYPE_IQ2_XS), .seed = 56}},
    {"iq3_s", {SHAPE("llama", 2, 256, 8, 2, 512, 301), .tied = true, TYPE(TYPE_IQ3_S), .seed = 57}},
    {"iq1_m", {SHAPE("llama", 2, 256, 8, 2, 256, 301), .tied = true, TYPE(TYPE_IQ1_M), .seed = 58}},
    {"nvfp4", {SHAPE("llama", 2, 128, 8, 2, 192, 301), TYPE(TYPE_NVFP4), .seed = 60}},
    {"f16", {SHAPE("llama", 2, 72, 6, 3, 101, 301), TYPE(TYPE_F16), .seed = 20}},
    {"bf16", {SHAPE("llama", 2, 72, 6, 3, 102, 301), TYPE(TYPE_BF16), .seed = 21}},
    {"bf16, odd inner sizes", {SHAPE("llama", 2, 45, 3, 1, 77, 61), .head_dim = 10, TYPE(TYPE_BF16), .seed = 22}},
    {"q8_0", {SHAPE("llama", 2, 64, 8, 2, 96, 301), TYPE(TYPE_Q8_0), .seed = 23}},
    {"q4_0", {SHAPE("qwen2", 2, 64, 8, 2, 96, 301), TYPE(TYPE_Q4_0), .seed = 24}},
    {"q4_1", {SHAPE("llama", 2, 64, 8, 2, 96, 301), TYPE(TYPE_Q4_1), .seed = 25}},
    {"q5_0", {SHAPE("qwen3", 2, 64, 8, 2, 96, 301), TYPE(TYPE_Q5_0), .seed = 26}},
    {"q5_1", {SHAPE("llama", 2, 64, 8, 2, 160, 301), .tied = true, TYPE(TYPE_Q5_1), .seed = 27}},
    {"q4_k", {SHAPE("llama", 2, 256, 8, 2, 512, 301), TYPE(TYPE_Q4_K), .seed = 28}},
    {"q5_k", {SHAPE("qwen2", 2, 256, 8, 4, 256, 301), TYPE(TYPE_Q5_K), .seed = 29}},
    {"q6_k", {SHAPE("qwen3", 2, 256, 4, 2, 256, 301), .tied = true, TYPE(TYPE_Q6_K), .seed = 30}},
    {"q, k, v of three kinds",
     {SHAPE("llama", 2, 64, 8, 2, 96, 301), .types = {TYPE_BF16, TYPE_F32, TYPE_Q4_0}, .n_types = 3, .seed = 31}},
    {"two kinds", {SHAPE("qwen2", 2, 64, 4, 2, 96, 301), .types = {TYPE_Q8_0, TYPE_F16}, .n_types = 2, .seed = 32}},
};
enum { N_CASES = sizeof cases / sizeof *cases, N_TOKENS = 24, N_LONG = 330 };

/* rms error of one rounded input, from the head of this file. */
static double input_error(TensorType t) {
    return t == TYPE_F32 || t == TYPE_F16 ? 0 : t == TYPE_BF16 ? ldexp(1, -9) / sqrt(3) : 2.3 / 32512 / sqrt(12);
}

/* Returns what the worst rounded inputs of a file may add to the error of its logits; without_bf16 leaves that out. */
static double rounding_bound(const Gguf *g, int32_t n_layer, bool without_bf16) {
    double worst = 0;
    for (int64_t i = 0; i < gguf_n_tensors(g); i++) {
        const GgufTensor *t = gguf_tensor(g, i);
        if (t->n_dims == 2 && !(without_bf16 && t->type == TYPE_BF16)) worst = fmax(worst, input_error(t->type));
    }
    return 3 * worst * sqrt(4 * n_layer + 1);
}

/* round_bf16: the reference rounds the inputs of BF16 matrices as the CPU backend does, so that only other errors
 * remain. */
static float *logits_of(const Weights *w, KvType kv_type, bool round_bf16, const int32_t *tokens, int32_t n) {
    int32_t n_vocab = w->model->hparams.n_vocab;
    RigOptions o = rig_options(n, 16);
    o.kv_type = kv_type;
    Executor *e = rig_executor(w, &o);
    if (round_bf16) ((RefContext *)executor_context(e))->rounds_bf16 = true;
    float *logits = calloc((size_t)n * (size_t)n_vocab, sizeof *logits);
    rig_append(e, rig_sequence(e), tokens, n, 16, n_vocab, logits);
    rig_executor_close(e);
    return logits;
}

static void expect_near(const char *name, const char *what, double error, double bound) {
    print_message("%-28s %-24s %.2e (at most %.2e)\n", name, what, error, bound);
    if (!(error <= bound))
        fail_msg("%s: %s: relative rms error of logits %.3e, at most %.3e", name, what, error, bound);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Returns the error that a quarter of the tokens stay below. */
static double lower_quartile(const float *ours, const float *theirs, int32_t n, int32_t n_vocab) {
    double *errors = calloc((size_t)n, sizeof *errors);
    for (int32_t t = 0; t < n; t++)
        errors[t] = rig_rel_rms(ours + (int64_t)t * n_vocab, theirs + (int64_t)t * n_vocab, n_vocab);
    qsort(errors, (size_t)n, sizeof *errors, by_value);
    double quartile = errors[n / 4];
    free(errors);
    return quartile;
}

/* The CPU backend's logits over n random tokens by one kernel table against the reference backend. */
static void compare(const char *name, const Gguf *g, const Kernels *kernels, int32_t n) {
    Weights *r = rig_weights_in(&backend_reference, g), *m = rig_weights(g, kernels);
    int32_t n_vocab = m->model->hparams.n_vocab, *tokens = calloc((size_t)n, sizeof *tokens);
    int64_t n_all = (int64_t)n * n_vocab;
    rig_tokens(99, n_vocab, tokens, n);
    float *ours = logits_of(m, KV_F32, false, tokens, n), *half = logits_of(m, KV_F16, false, tokens, n);
    float *exact = logits_of(r, KV_F32, false, tokens, n), *exact_half = logits_of(r, KV_F16, false, tokens, n);
    double factor = model_n_mixers(m->model, MIXER_DELTA_NET) ? 2 : 1,
           rounded = factor * rounding_bound(g, m->model->hparams.n_layer, false),
           fine = factor * rounding_bound(g, m->model->hparams.n_layer, true);
    expect_near(name, "exact", rig_rel_rms(ours, exact, n_all), 1e-5 + rounded);
    if (rounded > fine) {
        float *alike = logits_of(r, KV_F32, true, tokens, n);
        expect_near(name, "inputs rounded alike", lower_quartile(ours, alike, n, n_vocab), 1e-5 + fine);
        free(alike);
    }
    expect_near(name, "half keys and values", rig_rel_rms(half, exact_half, n_all), 2e-4 + rounded);
    free(ours), free(half), free(exact), free(exact_half), free(tokens);
    rig_weights_close(m);
    rig_weights_close(r);
}

static void random_models_have_the_values_of_the_formulas(void **state) {
    (void)state;
    for (int i = 0; i < N_CASES; i++) {
        Gguf *g = rig_random_gguf(&cases[i].m);
        compare(cases[i].name, g, NULL, N_TOKENS);
        gguf_close(g);
    }
}

static void every_kernel_table_has_them(void **state) {
    (void)state;
    int n;
    const Kernels *const *tables = kernels_available(&n);
    for (int k = 0; k < n; k++)
        for (int i = 18; i < N_CASES; i += 3) {
            Gguf *g = rig_random_gguf(&cases[i].m);
            compare(tables[k]->name, g, tables[k], N_TOKENS / 2);
            gguf_close(g);
        }
}

static void a_long_text_has_them(void **state) {
    (void)state;
    Gguf *g = rig_random_gguf(&cases[4].m);
    compare("330 tokens", g, NULL, N_LONG);
    gguf_close(g);
}

static void shipped_models_have_the_reference_values(void **state) {
    (void)state;
    static const char *const paths[] = {RIG_TARGET, "models/draft.gguf"};
    for (int i = 0; i < 2; i++) {
        Gguf *g = rig_gguf(paths[i]);
        compare(paths[i], g, NULL, N_TOKENS);
        gguf_close(g);
    }
}

/* The reference must notice: the same numbers under another rope are far away. */
static void another_rope_is_detected(void **state) {
    (void)state;
    RandomModel plain = cases[14].m, scaled = cases[13].m;
    Gguf *a = rig_random_gguf(&plain), *b = rig_random_gguf(&scaled);
    Weights *r = rig_weights_in(&backend_reference, a), *m = rig_weights(b, NULL);
    int32_t tokens[N_TOKENS], n_vocab = m->model->hparams.n_vocab;
    rig_tokens(99, n_vocab, tokens, N_TOKENS);
    float *ours = logits_of(m, KV_F32, false, tokens, N_TOKENS),
          *theirs = logits_of(r, KV_F32, false, tokens, N_TOKENS);
    double error = rig_rel_rms(ours, theirs, (int64_t)N_TOKENS * n_vocab);
    if (error < 0.05) fail_msg("a model with linear scaling differs by %.2e only from one without", error);
    free(ours), free(theirs);
    rig_weights_close(m);
    rig_weights_close(r);
    gguf_close(a), gguf_close(b);
}

/* Random models must be worth testing with: logits of a sensible size, greedy texts that go somewhere. */
static void random_models_do_not_degenerate(void **state) {
    (void)state;
    enum { N_TEXT = 96 };
    for (int c = 0; c < N_CASES; c++) {
        if (cases[c].m.n_embd < 40) continue;
        Gguf *g = rig_random_gguf(&cases[c].m);
        Weights *m = rig_weights(g, NULL);
        RigOptions o = rig_options(N_TEXT, 1);
        Executor *e = rig_executor(m, &o);
        int32_t s = rig_sequence(e), token = 1, n_vocab = m->model->hparams.n_vocab, n_seen = 0;
        float *logits = calloc((size_t)n_vocab, sizeof *logits);
        bool *seen = calloc((size_t)n_vocab, sizeof *seen);
        double squares = 0;
        for (int32_t i = 0; i < N_TEXT; i++) {
            rig_append(e, s, &token, 1, 1, n_vocab, logits);
            token = 0;
            for (int32_t k = 0; k < n_vocab; k++) {
                squares += (double)logits[k] * (double)logits[k];
                if (logits[k] > logits[token]) token = k;
            }
            n_seen += !seen[token];
            seen[token] = true;
        }
        double rms = sqrt(squares / N_TEXT / n_vocab);
        if (rms < 2 || rms > 4 || n_seen < 5)
            fail_msg("%s: logits of rms %.2f (2 to 4), %d tokens in a text of %d (5 or more)", cases[c].name, rms,
                     n_seen, N_TEXT);
        free(seen), free(logits);
        rig_executor_close(e);
        rig_weights_close(m);
        gguf_close(g);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_models_do_not_degenerate),
        cmocka_unit_test(random_models_have_the_values_of_the_formulas),
        cmocka_unit_test(every_kernel_table_has_them),
        cmocka_unit_test(a_long_text_has_them),
        cmocka_unit_test(shipped_models_have_the_reference_values),
        cmocka_unit_test(another_rope_is_detected),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

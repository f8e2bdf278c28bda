/* small_models.c - a small random model of each architecture, in the forms that its layers can take. */
#include "random_model.h"

#define SHAPE(a, layers, embd, heads, kv, ff) \
    .arch = a, .n_layer = layers, .n_embd = embd, .n_head = heads, .n_head_kv = kv, .n_ff = ff, .n_vocab = 300
#define HYBRID(keys, values, dim, conv, interval) \
    .n_key_heads = keys, .n_value_heads = values, .delta_dim = dim, .n_conv = conv, .attention_interval = interval
#define LATENT(q, kv, plain, rot, value) \
    .q_rank = q, .kv_rank = kv, .plain_dim = plain, .n_rot = rot, .value_dim = value
#define EXPERTS(n, used, ff) .n_expert = n, .n_expert_used = used, .n_ff_expert = ff

const RandomModel small_models[] = {
    {SHAPE("llama", 2, 48, 4, 2, 70), .seed = 1},
    {SHAPE("qwen2", 2, 48, 4, 2, 70), .seed = 2},
    {SHAPE("qwen3", 2, 48, 4, 2, 70), .seed = 3},
    {SHAPE("llama", 2, 48, 4, 2, 40), EXPERTS(8, 2, 40), .seed = 4},
    {SHAPE("qwen2moe", 2, 64, 4, 2, 96), EXPERTS(12, 4, 32), .n_ff_shared = 64, .types = {TYPE_Q8_0}, .n_types = 1,
     .seed = 5},
    {SHAPE("qwen3moe", 2, 64, 4, 2, 96), EXPERTS(16, 3, 32), .types = {TYPE_Q8_0}, .n_types = 1, .seed = 6},
    {SHAPE("gemma2", 2, 48, 4, 2, 70), .window = 7, .seed = 7},
    {SHAPE("gemma3", 6, 48, 4, 2, 70), .window = 9, .seed = 8},
    {SHAPE("phi3", 2, 48, 4, 2, 70), .window = 11, .seed = 9},
    {SHAPE("smollm3", 4, 48, 4, 2, 70), .seed = 10},
    {SHAPE("granite", 2, 48, 4, 2, 70), .seed = 11},
    {SHAPE("qwen35", 4, 48, 4, 2, 70), HYBRID(2, 4, 12, 4, 2), .n_rot = 6, .n_nextn = 1, .seed = 22},
    {SHAPE("qwen35moe", 3, 64, 4, 2, 96), HYBRID(2, 2, 32, 3, 3), EXPERTS(6, 2, 32), .n_ff_shared = 64,
     .types = {TYPE_Q8_0}, .n_types = 1, .n_nextn = 1, .seed = 33},
    {SHAPE("qwen3next", 4, 48, 4, 2, 70), HYBRID(1, 3, 20, 2, 4), EXPERTS(5, 2, 24), .n_ff_shared = 40, .n_nextn = 2,
     .seed = 38},
    {SHAPE("lfm2", 4, 48, 4, 2, 70), .n_conv = 3, .attention_interval = 3, .seed = 55},
    {SHAPE("granitehybrid", 3, 48, 4, 2, 70), HYBRID(1, 6, 16, 4, 3), .n_ssm_state = 12, .seed = 46},
    {SHAPE("granitehybrid", 2, 64, 4, 2, 96), HYBRID(2, 4, 32, 3, 2), .n_ssm_state = 16, EXPERTS(6, 2, 32),
     .n_ff_shared = 64, .rope_base = 1e4, .types = {TYPE_Q8_0}, .n_types = 1, .seed = 48},
    {SHAPE("mamba2", 3, 48, 0, 0, 0), HYBRID(2, 6, 16, 4, 0), .n_ssm_state = 12, .seed = 47},
    {SHAPE("gpt-oss", 3, 64, 4, 2, 96), EXPERTS(7, 3, 32), .head_dim = 24, .window = 7, .types = {TYPE_MXFP4},
     .n_types = 1, .seed = 12},
    {SHAPE("deepseek2", 3, 48, 5, 1, 70), LATENT(0, 36, 10, 6, 14), .n_dense = 1, EXPERTS(7, 3, 22), .n_ff_shared = 44,
     .seed = 14},
    {SHAPE("deepseek2", 2, 64, 4, 1, 96), LATENT(32, 64, 32, 16, 32), .n_dense = 1, EXPERTS(8, 2, 32),
     .n_ff_shared = 64, .n_groups = 4, .n_groups_used = 2, .has_sigmoid_router = true, .divides_by_chosen = true,
     .expert_scale = 2.5, .types = {TYPE_Q8_0}, .n_types = 1, .seed = 15},
    {SHAPE("deepseek2", 2, 48, 5, 1, 70), LATENT(20, 36, 10, 6, 14), .n_dense = 1, EXPERTS(7, 3, 22), .n_ff_shared = 44,
     .has_sigmoid_router = true, .n_nextn = 1, .seed = 16},
    {SHAPE("glm4moe", 3, 48, 4, 2, 70), .head_dim = 18, .n_rot = 10, .n_dense = 1, EXPERTS(7, 3, 22), .n_ff_shared = 44,
     .has_sigmoid_router = true, .divides_by_chosen = true, .head_norms = true, .n_nextn = 2, .seed = 17},
    {SHAPE("mistral3", 2, 48, 4, 2, 70), .rope_scaling = "yarn", .rope_factor = 16, .rope_n_ctx_orig = 9,
     .yarn_log_multiplier = 1, .temperature_scale = 0.4, .seed = 60},
    {SHAPE("deepseek2", 2, 48, 4, 1, 70), LATENT(0, 36, 10, 6, 14), .temperature_scale = 0.4, .temperature_length = 9,
     .seed = 61},
    {SHAPE("llama4", 4, 48, 4, 2, 70), EXPERTS(6, 2, 32), .n_ff_shared = 32, .expert_interval = 2, .window = 11,
     .temperature_length = 9, .seed = 62},
    {SHAPE("llama", 2, 48, 4, 2, 70), .biases = true, .more_biases = true, .seed = 82},
    {SHAPE("llama", 3, 48, 8, 4, 70), .head_dim = 12, .head_counts = {4, 8, 6}, .kv_head_counts = {1, 4, 2},
     .ff_widths = {70, 33, 64}, .seed = 83},
    {SHAPE("lfm2moe", 3, 48, 4, 2, 70), .n_conv = 3, .attention_interval = 3, .n_dense = 1, EXPERTS(6, 2, 32),
     .has_sigmoid_router = true, .seed = 81},
    {SHAPE("gemma4", 4, 48, 4, 2, 70), .head_dim = 24, .local_head_dim = 12, .kv_head_counts = {2, 1, 2, 1},
     .window = 7, .attention_interval = 2, .values_of_keys = true, .rope_factors = true, .seed = 84},
    {SHAPE("gemma4", 6, 64, 4, 1, 96), .head_dim = 32, .local_head_dim = 16, .window = 9, .attention_interval = 3,
     .n_shared_kv = 3, .n_ple = 32, .ff_widths = {64, 64, 64, 96, 96, 96}, .rope_factors = true, .types = {TYPE_Q8_0},
     .n_types = 1, .seed = 85},
    {SHAPE("gemma4", 3, 64, 4, 2, 96), EXPERTS(6, 2, 32), .head_dim = 32, .local_head_dim = 16, .window = 9,
     .attention_interval = 3, .values_of_keys = true, .rope_factors = true, .types = {TYPE_Q8_0}, .n_types = 1,
     .seed = 86},
};
const int n_small_models = sizeof small_models / sizeof *small_models;

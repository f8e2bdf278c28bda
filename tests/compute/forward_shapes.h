/* forward_shapes.h - the random models of test_forward.c: every architecture with every part that it can have, odd
 * widths, and every kind of tensor type. */
#ifndef FORWARD_SHAPES_H
#define FORWARD_SHAPES_H

#include "random_model.h"

#define SHAPE(a, layers, embd, heads, kv, ff, vocab) \
    .arch = a, .n_layer = layers, .n_embd = embd, .n_head = heads, .n_head_kv = kv, .n_ff = ff, .n_vocab = vocab

#define HYBRID(keys, values, dim, conv, interval) \
    .n_key_heads = keys, .n_value_heads = values, .delta_dim = dim, .n_conv = conv, .attention_interval = interval

#define LATENT(q, kv, plain, rot, value) \
    .q_rank = q, .kv_rank = kv, .plain_dim = plain, .n_rot = rot, .value_dim = value

static const struct {
    const char *name;
    RandomModel m;
} shapes[] = {
    {"f32", {SHAPE("llama", 2, 40, 5, 1, 50, 61), .seed = 1}},
    {"f16, qwen2", {SHAPE("qwen2", 2, 48, 6, 3, 70, 61), .types = {TYPE_F16}, .n_types = 1, .seed = 2}},
    {"bf16", {SHAPE("llama", 2, 48, 4, 2, 51, 61), .types = {TYPE_BF16}, .n_types = 1, .seed = 3}},
    {"q8_0, qwen3", {SHAPE("qwen3", 2, 64, 4, 2, 96, 61), .types = {TYPE_Q8_0}, .n_types = 1, .seed = 4}},
    {"q4_0 and q5_1", {SHAPE("llama", 2, 64, 4, 4, 96, 61), .types = {TYPE_Q4_0, TYPE_Q5_1}, .n_types = 2, .seed = 5}},
    {"q4_k and q6_k",
     {SHAPE("llama", 1, 256, 4, 2, 256, 61), .tied = true, .types = {TYPE_Q4_K, TYPE_Q6_K}, .n_types = 2, .seed = 6}},
    {"q5_k, yarn",
     {SHAPE("qwen2", 1, 256, 4, 2, 256, 61), .rope_scaling = "yarn", .rope_factor = 4, .rope_n_ctx_orig = 64,
      .types = {TYPE_Q5_K}, .n_types = 1, .seed = 7}},
    {"biases everywhere",
     {SHAPE("llama", 2, 48, 4, 2, 50, 61), .biases = true, .more_biases = true, .types = {TYPE_BF16}, .n_types = 1,
      .seed = 70}},
    {"numbers of each layer",
     {SHAPE("llama", 3, 64, 8, 4, 96, 61), .head_dim = 16, .head_counts = {4, 8, 6}, .kv_head_counts = {1, 4, 2},
      .ff_widths = {96, 33, 64}, .seed = 71}},
    {"numbers of each layer, windows, q8_0",
     {SHAPE("gemma3", 3, 64, 12, 6, 96, 61), .head_dim = 32, .window = 9, .head_counts = {12, 4, 8},
      .kv_head_counts = {1, 2, 4}, .ff_widths = {32, 96, 64}, .types = {TYPE_Q8_0}, .n_types = 1, .seed = 72}},
    {"mixtral", {SHAPE("llama", 2, 48, 4, 2, 50, 61), .n_expert = 5, .n_expert_used = 2, .n_ff_expert = 50, .seed = 8}},
    {"qwen2moe, q8_0 and bf16",
     {SHAPE("qwen2moe", 2, 64, 4, 2, 96, 61), .n_expert = 12, .n_expert_used = 4, .n_ff_expert = 32, .n_ff_shared = 64,
      .types = {TYPE_Q8_0, TYPE_BF16, TYPE_F16}, .n_types = 3, .seed = 9}},
    {"qwen3moe, q4_0",
     {SHAPE("qwen3moe", 2, 64, 4, 2, 96, 61), .n_expert = 16, .n_expert_used = 3, .n_ff_expert = 64,
      .types = {TYPE_Q4_0}, .n_types = 1, .seed = 10}},
    {"gemma2", {SHAPE("gemma2", 3, 64, 4, 2, 90, 61), .head_dim = 24, .window = 5, .tied = true, .seed = 11}},
    {"gemma3, f16",
     {SHAPE("gemma3", 6, 32, 2, 1, 40, 61), .head_dim = 32, .window = 9, .rope_base = 1e6, .types = {TYPE_F16},
      .n_types = 1, .seed = 12}},
    {"gemma4, f16",
     {SHAPE("gemma4", 4, 64, 4, 2, 40, 61), .head_dim = 32, .local_head_dim = 16, .window = 9, .attention_interval = 2,
      .kv_head_counts = {2, 1, 2, 1}, .values_of_keys = true, .rope_factors = true, .types = {TYPE_F16}, .n_types = 1,
      .seed = 73}},
    {"gemma4, experts, q8_0",
     {SHAPE("gemma4", 2, 64, 4, 2, 96, 61), .head_dim = 32, .local_head_dim = 16, .window = 7, .attention_interval = 2,
      .n_expert = 5, .n_expert_used = 2, .n_ff_expert = 32, .types = {TYPE_Q8_0}, .n_types = 1, .seed = 75}},
    {"gemma4, shared keys, q8_0",
     {SHAPE("gemma4", 4, 64, 4, 2, 96, 61), .head_dim = 32, .local_head_dim = 16, .window = 7, .attention_interval = 2,
      .n_shared_kv = 2, .n_ple = 32, .types = {TYPE_Q8_0}, .n_types = 1, .seed = 74}},
    {"phi3", {SHAPE("phi3", 2, 64, 4, 2, 96, 61), .window = 20, .types = {TYPE_Q8_0}, .n_types = 1, .seed = 13}},
    {"smollm3", {SHAPE("smollm3", 5, 48, 4, 2, 50, 61), .seed = 14}},
    {"gpt-oss, mxfp4 and iq4_nl",
     {SHAPE("gpt-oss", 3, 64, 4, 2, 96, 61), .head_dim = 24, .n_expert = 7, .n_expert_used = 3, .n_ff_expert = 96,
      .window = 6, .rope_scaling = "yarn", .rope_factor = 4, .rope_n_ctx_orig = 64, .types = {TYPE_MXFP4, TYPE_IQ4_NL},
      .n_types = 2, .seed = 16}},
    {"q2_k, q3_k and iq4_xs",
     {SHAPE("llama", 1, 256, 4, 2, 256, 61), .tied = true, .types = {TYPE_Q2_K, TYPE_Q3_K, TYPE_IQ4_XS}, .n_types = 3,
      .seed = 17}},
    {"deepseek2, f32",
     {SHAPE("deepseek2", 3, 48, 5, 1, 50, 61), LATENT(0, 36, 10, 6, 14), .n_dense = 1, .n_expert = 7,
      .n_expert_used = 3, .n_ff_expert = 22, .n_ff_shared = 44, .rope_scaling = "yarn", .rope_factor = 40,
      .rope_n_ctx_orig = 64, .yarn_log_multiplier = 0.07, .seed = 20}},
    {"deepseek2, q8_0 and bf16",
     {SHAPE("deepseek2", 2, 64, 10, 1, 96, 61), LATENT(32, 64, 32, 16, 32), .n_dense = 1, .n_expert = 8,
      .n_expert_used = 2, .n_ff_expert = 32, .n_ff_shared = 64, .n_groups = 4, .n_groups_used = 2,
      .has_sigmoid_router = true, .divides_by_chosen = true, .expert_scale = 2.5, .types = {TYPE_Q8_0, TYPE_BF16},
      .n_types = 2, .seed = 21}},
    {"nvfp4 with scales",
     {SHAPE("qwen2moe", 2, 64, 2, 2, 64, 61), .head_dim = 32, .n_expert = 5, .n_expert_used = 2, .n_ff_expert = 64,
      .n_ff_shared = 64, .types = {TYPE_NVFP4}, .n_types = 1, .has_scales = true, .seed = 23}},
    {"glm4moe, q8_0",
     {SHAPE("glm4moe", 2, 64, 5, 1, 96, 61), .head_dim = 32, .n_rot = 16, .n_dense = 1, .n_expert = 6,
      .n_expert_used = 3, .n_ff_expert = 32, .n_ff_shared = 64, .has_sigmoid_router = true, .divides_by_chosen = true,
      .expert_scale = 1.5, .types = {TYPE_Q8_0}, .n_types = 1, .seed = 22}},
    {"iq2_s, iq3_xxs and nvfp4",
     {SHAPE("llama", 1, 256, 4, 2, 256, 61), .tied = true, .types = {TYPE_IQ2_S, TYPE_IQ3_XXS, TYPE_NVFP4},
      .n_types = 3, .seed = 18}},
    {"granite", {SHAPE("granite", 2, 48, 4, 2, 50, 61), .seed = 15}},
    {"qwen35", {SHAPE("qwen35", 3, 40, 5, 1, 50, 61), HYBRID(3, 6, 14, 4, 3), .n_rot = 4, .seed = 16}},
    {"qwen35moe, q8_0 and bf16",
     {SHAPE("qwen35moe", 2, 64, 4, 2, 96, 61), HYBRID(2, 2, 32, 3, 2), .n_expert = 6, .n_expert_used = 2,
      .n_ff_expert = 32, .n_ff_shared = 64, .types = {TYPE_Q8_0, TYPE_BF16}, .n_types = 2, .seed = 17}},
    {"qwen3next, f16",
     {SHAPE("qwen3next", 4, 48, 4, 2, 50, 61), HYBRID(1, 3, 20, 2, 4), .n_rot = 8, .n_expert = 5, .n_expert_used = 2,
      .n_ff_expert = 30, .n_ff_shared = 22, .types = {TYPE_F16}, .n_types = 1, .seed = 18}},
    {"lfm2", {SHAPE("lfm2", 3, 40, 5, 1, 50, 61), .n_conv = 3, .attention_interval = 3, .seed = 19}},
    {"lfm2, two blocks of channels, q8_0",
     {SHAPE("lfm2", 2, 160, 5, 5, 64, 61), .n_conv = 4, .attention_interval = 2, .types = {TYPE_Q8_0}, .n_types = 1,
      .seed = 20}},
    {"granitehybrid, q8_0 and f16",
     {SHAPE("granitehybrid", 3, 64, 4, 2, 96, 61), HYBRID(2, 4, 32, 4, 3), .n_ssm_state = 10, .n_expert = 6,
      .n_expert_used = 2, .n_ff_expert = 32, .n_ff_shared = 64, .types = {TYPE_Q8_0, TYPE_F16}, .n_types = 2,
      .seed = 21}},
    {"mamba2", {SHAPE("mamba2", 2, 40, 0, 0, 0, 61), HYBRID(1, 5, 14, 4, 0), .n_ssm_state = 18, .seed = 22}},
    {"mistral3",
     {SHAPE("mistral3", 2, 64, 4, 2, 50, 61), .rope_scaling = "yarn", .rope_factor = 16, .rope_n_ctx_orig = 11,
      .yarn_log_multiplier = 1, .temperature_scale = 0.3, .seed = 23}},
    {"llama4, f16",
     {SHAPE("llama4", 4, 64, 4, 1, 50, 61), .n_expert = 5, .n_expert_used = 2, .n_ff_expert = 30, .n_ff_shared = 30,
      .expert_interval = 2, .window = 13, .temperature_length = 9, .types = {TYPE_F16}, .n_types = 1, .seed = 24}},
    {"lfm2moe, q8_0",
     {SHAPE("lfm2moe", 3, 64, 4, 2, 96, 61), .n_conv = 3, .attention_interval = 3, .n_dense = 1, .n_expert = 6,
      .n_expert_used = 2, .n_ff_expert = 32, .has_sigmoid_router = true, .types = {TYPE_Q8_0}, .n_types = 1,
      .seed = 25}},
};

#endif

/* make_model.c - writes a random model of any shape and type, for tests and for measuring speed.
 *
 * Its text is nonsense, but the arithmetic is that of a real model of the same shape, and greedy text neither
 * repeats one token nor ends at once (make_model/weights.c explains how). The same options give the same bytes.
 */
#include "make_model/make_model.h"

#include "make_model/count_options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    OPT_PRESET = OTHER_OPTION_KEY,
    OPT_ARCH,
    OPT_SIGMOID_ROUTER,
    OPT_VOCAB_FROM,
    OPT_TYPE,
    OPT_TIE,
    OPT_ROPE_BASE,
    OPT_ROPE_SCALING,
    OPT_BIAS_STD,
    OPT_SEED
};

static const CountOption counts[] = {
    {"layers", offsetof(ModelPlan, n_layers), 1000, "Layers (4)"},
    {"dim", offsetof(ModelPlan, dim), 1 << 20, "Width of the residual stream (256)"},
    {"heads", offsetof(ModelPlan, n_heads), 4096, "Query heads (dim / 64)"},
    {"kv-heads", offsetof(ModelPlan, n_kv_heads), 4096, "Key and value heads (as many)"},
    {"head-dim", offsetof(ModelPlan, head_dim), 4096, "Width of a head (dim / heads)"},
    {"ffn", offsetof(ModelPlan, ffn_dim), 1 << 20, "Inner width of the feed-forward (3 dim)"},
    {"experts", offsetof(ModelPlan, n_experts), 512,
     "Experts of each layer (8 where the architecture has them; llama, mistral3, granitehybrid: none)"},
    {"experts-used", offsetof(ModelPlan, n_experts_used), 64, "Experts that a token uses (2)"},
    {"expert-ffn", offsetof(ModelPlan, expert_ffn), 1 << 20, "Inner width of an expert (--ffn)"},
    {"shared-ffn", offsetof(ModelPlan, shared_ffn), 1 << 20,
     "qwen2moe, qwen35moe, qwen3next, granitehybrid, deepseek2, glm4moe: inner width of the expert that every token "
     "passes (--ffn)"},
    {"window", offsetof(ModelPlan, window), 1 << 24,
     "gemma2, gemma3, gemma4, phi3, gpt-oss: positions that a layer with a window sees (512; gpt-oss: 128); llama4: of "
     "a chunk (8192)"},
    {"shared-kv", offsetof(ModelPlan, n_shared_kv), 1024,
     "gemma4: the last layers, which read the keys of earlier ones (0)"},
    {"ple", offsetof(ModelPlan, n_ple), 1 << 16, "gemma4: width of the per-layer embeddings (none)"},
    {"delta-heads", offsetof(ModelPlan, delta_heads), 1024,
     "qwen35, qwen35moe, qwen3next: value heads of a layer with a recurrent state (2 dim / --delta-dim)"},
    {"delta-key-heads", offsetof(ModelPlan, delta_key_heads), 1024,
     "and its key heads (half as many as --delta-heads)"},
    {"delta-dim", offsetof(ModelPlan, delta_dim), 512, "Width of these heads (128, at most dim)"},
    {"ssm-heads", offsetof(ModelPlan, ssm_heads), 4096,
     "granitehybrid, mamba2: heads of a Mamba-2 layer (2 dim / --ssm-dim)"},
    {"ssm-groups", offsetof(ModelPlan, ssm_groups), 4096, "Groups of these heads that share B and C (1)"},
    {"ssm-dim", offsetof(ModelPlan, ssm_dim), 512, "Width of these heads (64, at most dim)"},
    {"ssm-state", offsetof(ModelPlan, ssm_state), 512, "Numbers of B and C (128)"},
    {"attention-every", offsetof(ModelPlan, attention_interval), 1000,
     "One layer in N of a model with recurrent layers has attention (4; mamba2: none)"},
    {"mtp", offsetof(ModelPlan, n_nextn), 8,
     "qwen35, qwen35moe, qwen3next, deepseek2, glm4moe: layers for multi-token prediction after the others, for the "
     "drafter mtp (0)"},
    {"kv-rank", offsetof(ModelPlan, kv_rank), 4096, "deepseek2: width of the latent that is cached (dim / 4)"},
    {"q-rank", offsetof(ModelPlan, q_rank), 4096, "deepseek2: width of the latent of the queries (none)"},
    {"rope-dim", offsetof(ModelPlan, rope_dim), 4096,
     "deepseek2: width of the rotated part of a head (--head-dim / 3, even)"},
    {"value-dim", offsetof(ModelPlan, value_dim), 4096,
     "deepseek2: width of a value head (--head-dim less --rope-dim)"},
    {"dense-layers", offsetof(ModelPlan, n_dense), 1000,
     "deepseek2, glm4moe, lfm2moe: leading layers without experts (1)"},
    {"experts-every", offsetof(ModelPlan, expert_interval), 1000, "llama4: one layer in N has experts (2)"},
    {"expert-groups", offsetof(ModelPlan, n_groups), 512, "deepseek2, glm4moe: groups of experts (none)"},
    {"expert-groups-used", offsetof(ModelPlan, n_groups_used), 512, "Groups of experts that a token uses (half)"},
    {"vocab", offsetof(ModelPlan, n_vocab), 1000000, "Tokens (4096, or those of --vocab-from)"},
    {"ctx", offsetof(ModelPlan, n_context), 1 << 24, "Context length written into the file (2048)"},
};

static const struct argp_option others[] = {
    {"preset", OPT_PRESET, "NAME", 0, "Start from a known shape (give it first): tinyllama-1.1b", 0},
    {"arch", OPT_ARCH, "NAME", 0,
     "llama (default), qwen2, qwen3, qwen2moe, qwen3moe, gemma2, gemma3, gemma4, phi3, smollm3, granite, gpt-oss, "
     "qwen35, qwen35moe, qwen3next, lfm2, granitehybrid, mamba2, deepseek2, glm4moe, mistral3, llama4, lfm2moe",
     0},
    {"sigmoid-router", OPT_SIGMOID_ROUTER, NULL, 0, "deepseek2: sigmoids with a bias choose experts, as in V3", 0},
    {"vocab-from", OPT_VOCAB_FROM, "FILE", 0, "Take the vocabulary of this GGUF file, cut or padded to --vocab", 0},
    {"type", OPT_TYPE, "TYPE", 0,
     "Type of the matrices: F32, F16, BF16, Q8_0 (default), Q4_0 ... Q6_K, Q2_K, Q3_K, IQ4_NL, IQ4_XS, MXFP4, IQ3_S "
     "... IQ1_S, NVFP4, Q4_K_M, Q5_K_M",
     0},
    {"tie", OPT_TIE, NULL, 0, "The output matrix is the embedding", 0},
    {"rope-base", OPT_ROPE_BASE, "F", 0, "Base of the rotary frequencies (10000; qwen: 1000000)", 0},
    {"rope-scaling", OPT_ROPE_SCALING, "RULE", 0,
     "linear:FACTOR, yarn:FACTOR:ORIGINAL_CONTEXT or llama3:FACTOR:LOW:HIGH:ORIGINAL_CONTEXT", 0},
    {"bias-std", OPT_BIAS_STD, "F", 0, "Deviation of qwen2's biases (0.1)", 0},
    {"seed", OPT_SEED, "N", 0, "Another seed, another model (1)", 0},
    {"output", 'o', "FILE", 0, "Where to write it", 0},
    {0},
};
enum { N_COUNTS = sizeof counts / sizeof *counts, N_OTHERS = sizeof others / sizeof *others };

static const char doc[] = "Write a GGUF file of a random model, of any shape and tensor type."
                          "\vExamples:\n"
                          "  make_model --arch qwen3 --layers 2 --dim 128 --type F32 -o small.gguf\n"
                          "  make_model --preset tinyllama-1.1b --type Q4_K_M -o speed.gguf\n";

static double real_number(struct argp_state *state, const char *arg) {
    char *end;
    double v = strtod(arg, &end);
    if (end == arg || *end || !(v >= 0 && v < 1e12)) argp_error(state, "'%s' must be a number of at least zero", arg);
    return v;
}

static void parse_rope_scaling(struct argp_state *state, ModelPlan *p, const char *arg) {
    double a, b, c, d;
    char end;
    if (sscanf(arg, "linear:%lf%c", &a, &end) == 1) {
        p->rope_scaling = ROPE_LINEAR;
        p->rope_factor = a;
    } else if (sscanf(arg, "yarn:%lf:%lf%c", &a, &b, &end) == 2) {
        p->rope_scaling = ROPE_YARN;
        p->rope_factor = a, p->rope_original = b;
    } else if (sscanf(arg, "llama3:%lf:%lf:%lf:%lf%c", &a, &b, &c, &d, &end) == 4 && c > b) {
        p->rope_scaling = ROPE_LLAMA3;
        p->rope_factor = a, p->rope_low = b, p->rope_high = c, p->rope_original = d;
    } else argp_error(state, "unknown rope scaling '%s'; --help lists the three forms", arg);
    if (!(p->rope_factor > 0 && p->rope_original >= 0 && p->rope_original < 1e9))
        argp_error(state, "'%s': the factor must be above zero, the context at least zero", arg);
}

static void parse_preset(struct argp_state *state, ModelPlan *p, const char *arg) {
    if (strcmp(arg, "tinyllama-1.1b") != 0) argp_error(state, "unknown preset '%s'; known: tinyllama-1.1b", arg);
    p->arch = "llama";
    p->dim = 2048, p->n_layers = 22, p->n_heads = 32, p->n_kv_heads = 4, p->ffn_dim = 5632;
    p->n_vocab = 32000, p->n_context = 2048;
}

static error_t parse_option(int key, char *arg, struct argp_state *state) {
    ModelPlan *p = state->input;
    if (count_option_parse(counts, N_COUNTS, key, arg, state, p)) return 0;
    switch (key) {
    case OPT_PRESET: parse_preset(state, p, arg); return 0;
    case OPT_ARCH: p->arch = arg; return 0;
    case OPT_TYPE: p->type = arg; return 0;
    case OPT_TIE: p->tied = true; return 0;
    case OPT_ROPE_BASE: p->rope_base = real_number(state, arg); return 0;
    case OPT_ROPE_SCALING: parse_rope_scaling(state, p, arg); return 0;
    case OPT_BIAS_STD: p->bias_std = real_number(state, arg); return 0;
    case OPT_SEED: p->seed = (uint64_t)count_parse(state, arg, INT64_MAX); return 0;
    case OPT_VOCAB_FROM: p->vocab_from = arg; return 0;
    case OPT_SIGMOID_ROUTER: p->has_sigmoid_router = true; return 0;
    case 'o': p->out = arg; return 0;
    case ARGP_KEY_ARG: argp_error(state, "'%s' is not an option", arg); return 0;
    case ARGP_KEY_END:
        if (!p->out) argp_error(state, "missing output file: pass -o FILE");
        output_option_check(state, p->out, p->vocab_from, "the file of --vocab-from");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

#define EXPERTS "llama qwen2moe qwen3moe gpt-oss qwen35moe qwen3next granitehybrid mistral3 llama4 lfm2moe " ROUTED

static int complete_experts(ModelPlan *p, fr_error *err) {
    if (plan_is(p, "qwen2moe qwen3moe gpt-oss qwen35moe qwen3next llama4 lfm2moe " ROUTED) && !p->n_experts)
        p->n_experts = 8;
    if (p->n_experts && !plan_is(p, EXPERTS))
        return error_set(err, FR_ERR_ARGUMENT, "architecture %s has no experts; these have: " EXPERTS, p->arch);
    if (!p->n_experts) return FR_OK;
    if (!p->n_experts_used) p->n_experts_used = p->n_experts > 1 ? 2 : 1;
    if (!p->expert_ffn) p->expert_ffn = p->ffn_dim;
    if (plan_is(p, "llama4 " ROUTED) && !p->shared_ffn) p->shared_ffn = p->expert_ffn;
    if (plan_is(p, "qwen2moe qwen35moe qwen3next granitehybrid") && !p->shared_ffn) p->shared_ffn = p->ffn_dim;
    if (p->n_experts_used > p->n_experts)
        return error_set(err, FR_ERR_ARGUMENT, "a token cannot use %lld of %lld experts", (long long)p->n_experts_used,
                         (long long)p->n_experts);
    return FR_OK;
}

static int complete_delta_net(ModelPlan *p, fr_error *err) {
    bool is_hybrid = plan_is(p, HYBRIDS);
    if (!is_hybrid && (p->delta_heads || p->delta_key_heads || p->delta_dim))
        return error_set(err, FR_ERR_ARGUMENT, "architecture %s has no Gated DeltaNet; " HYBRIDS " do", p->arch);
    if (p->attention_interval && (!plan_is(p, RECURRENT) || plan_is(p, "mamba2")))
        return error_set(err, FR_ERR_ARGUMENT, "architecture %s does not mix attention and recurrent layers", p->arch);
    if (!p->attention_interval && plan_is(p, RECURRENT) && !plan_is(p, "mamba2")) p->attention_interval = 4;
    if (p->n_nextn && !plan_is(p, HYBRIDS " " ROUTED))
        return error_set(err, FR_ERR_ARGUMENT,
                         "architecture %s has no layers for multi-token prediction; " HYBRIDS " " ROUTED " do",
                         p->arch);
    if (!is_hybrid) return FR_OK;
    if (!p->delta_dim) p->delta_dim = p->dim < 128 ? p->dim : 128;
    if (!p->delta_heads) p->delta_heads = 2 * p->dim / p->delta_dim;
    if (!p->delta_key_heads) p->delta_key_heads = p->delta_heads % 2 ? p->delta_heads : p->delta_heads / 2;
    if (p->delta_heads % p->delta_key_heads == 0) return FR_OK;
    return error_set(err, FR_ERR_ARGUMENT, "%lld value heads cannot share %lld key heads evenly",
                     (long long)p->delta_heads, (long long)p->delta_key_heads);
}

static int complete_mamba2(ModelPlan *p, fr_error *err) {
    bool is_mamba = plan_is(p, MAMBAS);
    if (!is_mamba && (p->ssm_heads || p->ssm_groups || p->ssm_dim || p->ssm_state))
        return error_set(err, FR_ERR_ARGUMENT, "architecture %s has no Mamba-2; " MAMBAS " do", p->arch);
    if (!is_mamba) return FR_OK;
    if (!p->ssm_dim) p->ssm_dim = p->dim < 64 ? p->dim : 64;
    if (!p->ssm_heads) p->ssm_heads = 2 * p->dim / p->ssm_dim;
    if (!p->ssm_groups) p->ssm_groups = 1;
    if (!p->ssm_state) p->ssm_state = 128;
    if (p->ssm_heads % p->ssm_groups == 0) return FR_OK;
    return error_set(err, FR_ERR_ARGUMENT, "%lld heads cannot be %lld groups of equal size", (long long)p->ssm_heads,
                     (long long)p->ssm_groups);
}

static int complete_latent(ModelPlan *p, fr_error *err) {
    bool is_latent = plan_is(p, "deepseek2");
    if (!is_latent && (p->kv_rank || p->q_rank || p->rope_dim || p->value_dim))
        return error_set(err, FR_ERR_ARGUMENT, "architecture %s has no latent attention; deepseek2 does", p->arch);
    if (!is_latent) return FR_OK;
    if (!p->kv_rank) p->kv_rank = p->dim >= 8 ? p->dim / 4 : 1;
    if (!p->rope_dim) p->rope_dim = p->head_dim < 6 ? 2 : p->head_dim / 6 * 2;
    if (p->rope_dim % 2 || p->rope_dim >= p->head_dim)
        return error_set(err, FR_ERR_ARGUMENT, "--rope-dim must be even and less than --head-dim, which is %lld",
                         (long long)p->head_dim);
    if (!p->value_dim) p->value_dim = p->head_dim - p->rope_dim;
    p->n_kv_heads = 1;
    return FR_OK;
}

static int complete_routed(ModelPlan *p, fr_error *err) {
    bool is_given = p->n_dense || p->n_groups || p->n_groups_used || p->has_sigmoid_router;
    if (plan_is(p, "lfm2moe")) p->has_sigmoid_router = true, p->n_dense = p->n_dense ? p->n_dense : 1;
    if (plan_is(p, "llama4") && !p->expert_interval) p->expert_interval = 2;
    if (p->expert_interval && (!plan_is(p, "llama4") || p->expert_interval > p->n_layers))
        return error_set(err, FR_ERR_ARGUMENT, "--experts-every is for llama4, and is at most its layers");
    if (plan_is(p, "lfm2moe") && !p->n_groups && !p->n_groups_used) return FR_OK;
    if (!plan_is(p, ROUTED))
        return is_given ? error_set(err, FR_ERR_ARGUMENT,
                                    "only " ROUTED " have groups of experts, and they and lfm2moe leading dense layers")
                        : FR_OK;
    if (!p->n_dense) p->n_dense = 1;
    if (p->n_groups && !p->n_groups_used) p->n_groups_used = (p->n_groups + 1) / 2;
    p->has_sigmoid_router = p->has_sigmoid_router || plan_is(p, "glm4moe");
    return FR_OK;
}

/* The plan's experts are complete by then. */
static int check_groups(const ModelPlan *p, fr_error *err) {
    if (p->shared_ffn && plan_is(p, ROUTED) && p->shared_ffn % p->expert_ffn)
        return error_set(err, FR_ERR_ARGUMENT, "--shared-ffn must be a multiple of --expert-ffn, which is %lld",
                         (long long)p->expert_ffn);
    if (!p->n_groups) return FR_OK;
    bool fits = p->n_experts % p->n_groups == 0 && p->n_groups_used <= p->n_groups &&
                p->n_groups_used * (p->n_experts / p->n_groups) >= p->n_experts_used;
    if (fits) return FR_OK;
    return error_set(err, FR_ERR_ARGUMENT, "%lld of %lld groups of %lld experts do not hold the %lld that a token uses",
                     (long long)p->n_groups_used, (long long)p->n_groups, (long long)p->n_experts,
                     (long long)p->n_experts_used);
}

/* Fills in the defaults of options that were not given, and then checks the whole shape. */
static int complete(ModelPlan *p, fr_error *err) {
    bool has_large_base = plan_is(p, "qwen2 qwen3 qwen2moe qwen3moe gemma3 gemma4 glm4moe mistral3 " LFM2S " " HYBRIDS);
    uint32_t file_type;
    if (!p->n_layers) p->n_layers = 4;
    if (!p->dim) p->dim = 256;
    if (!p->n_heads) p->n_heads = p->dim >= 64 ? p->dim / 64 : 1;
    if (!p->n_kv_heads) p->n_kv_heads = p->n_heads;
    if (!p->head_dim) p->head_dim = p->dim / p->n_heads;
    if (!p->ffn_dim) p->ffn_dim = 3 * p->dim;
    if (!p->n_context) p->n_context = 2048;
    if (p->rope_base == 0) p->rope_base = has_large_base ? 1e6 : 1e4;
    if (!p->window && plan_is(p, GEMMAS " phi3")) p->window = 512;
    if (!p->window && plan_is(p, "gpt-oss")) p->window = 128;
    if (!plan_is(p, "llama qwen2 qwen3 qwen2moe qwen3moe " GEMMAS
                    " phi3 smollm3 granite gpt-oss mistral3 llama4 " ROUTED " " RECURRENT))
        return error_set(err, FR_ERR_ARGUMENT, "unknown architecture '%.40s'; --help lists them", p->arch);
    if (!plan_file_type(p->type, &file_type))
        return error_set(err, FR_ERR_ARGUMENT, "unknown type or mix '%.40s'; --help lists them", p->type);
    if (p->n_heads % p->n_kv_heads != 0)
        return error_set(err, FR_ERR_ARGUMENT, "%lld heads cannot share %lld key and value heads evenly",
                         (long long)p->n_heads, (long long)p->n_kv_heads);
    if (p->head_dim < 2 || p->head_dim % 2 != 0)
        return error_set(err, FR_ERR_ARGUMENT, "a head of width %lld cannot be rotated; the width must be even",
                         (long long)p->head_dim);
    if ((p->n_shared_kv || p->n_ple) && !plan_is(p, "gemma4"))
        return error_set(err, FR_ERR_ARGUMENT, "--shared-kv and --ple are for gemma4");
    if (plan_is(p, "gemma4") && (p->head_dim % 8 || p->n_shared_kv >= p->n_layers))
        return error_set(err, FR_ERR_ARGUMENT,
                         "gemma4 needs a --head-dim that is a multiple of 8, and layers with keys of their own");
    if (plan_is(p, "mistral3") && p->rope_scaling == ROPE_PLAIN)
        p->rope_scaling = ROPE_YARN, p->rope_factor = 16, p->rope_original = (double)(p->n_context / 16 + 1);
    int status = complete_delta_net(p, err);
    if (!status) status = complete_mamba2(p, err);
    if (!status) status = complete_latent(p, err);
    if (!status) status = complete_routed(p, err);
    if (!status) status = complete_experts(p, err);
    return status ? status : check_groups(p, err);
}

static int make_model(ModelPlan *p, fr_error *err) {
    int status = complete(p, err);
    if (status) return status;
    Weights *weights = NULL;
    GgufWriter *w = gguf_writer_new();
    if (!w) return error_memory(err, "a writer", 0);
    if ((status = vocabulary_set(w, p, err)) == FR_OK) {
        plan_set_keys(w, p);
        status = weights_add(&weights, w, p, err);
    }
    if (!status) status = gguf_writer_finish(w, p->out, err);
    weights_free(weights);
    gguf_writer_free(w);
    return status;
}

int main(int argc, char **argv) {
    static struct argp_option options[N_COUNTS + N_OTHERS];
    static const struct argp parser = {.options = options, .parser = parse_option, .doc = doc};
    ModelPlan plan = {.arch = "llama", .type = "Q8_0", .bias_std = 0.1, .seed = 1};
    fr_error err = {0};
    argp_err_exit_status = 2;
    count_options_list(options, counts, N_COUNTS, others, N_OTHERS);
    if (argp_parse(&parser, argc, argv, 0, NULL, &plan)) {
        fprintf(stderr, "make_model: out of memory\n");
        return 1;
    }
    if (make_model(&plan, &err) == FR_OK) return 0;
    fprintf(stderr, "make_model: %s\n", err.message);
    return err.code == FR_ERR_ARGUMENT ? 2 : 1;
}

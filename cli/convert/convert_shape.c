/* convert_shape.c - reads the hyper-parameters in config.json and writes them as the keys of a GGUF file.
 *
 * The names in config.json are those of transformers' configurations for llama-like models, which the supported
 * architectures share. A value that would change what the model computes and has no place in the GGUF file is refused.
 *
 * Rope. Newer files have the base and the scaling in rope_parameters, older ones in rope_theta and rope_scaling. The
 * scalings "linear" and "yarn" become keys. "llama3" becomes a tensor of divisors of the frequencies. LongRoPE (Phi-3
 * 128k) becomes two such tensors, and a factor of cos and sin that config.json may leave to be computed. */
#include "cli/convert/convert_shape.h"

#include "base/error.h"
#include "base/math_functions.h"
#include "model/tensor_table.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- reading rope ----------------------------------------------------------------------------------- */

static const char *const long_rope_lists[] = {"short_factor", "long_factor"};

static bool is_long_rope(const ConvertShape *s) { return strcmp(s->scaling_type, "longrope") == 0; }

static void refuse_scaling(ConfigReader *r, const char *type) {
    Printable p;
    if (!r->status)
        r->status = error_set(r->err, FR_ERR_UNSUPPORTED,
                              "%s/config.json: rope scaling '%s' is not supported; forerun knows linear, yarn, llama3 "
                              "and, of Phi-3, longrope",
                              r->c->folder, printable(&p, type, strlen(type)));
}

/* Reads how many components of a head are rotated. */
static void read_rotated_part(ConfigReader *r, ConvertShape *s, const ConvertUsual *usual) {
    if (!config_has(r, "partial_rotary_factor")) return;
    double part = config_real(r, "partial_rotary_factor", 1, 0, 1);
    if (part < 1 && usual->rotated_part <= 0 && !r->status)
        r->status = error_set(r->err, FR_ERR_UNSUPPORTED,
                              "%s/config.json: partial_rotary_factor below 1 is not supported here", r->c->folder);
    s->n_rot = (int64_t)((double)s->head_dim * part);
}

/* LongRoPE has a divisor for each pair of components: one list for contexts up to the original length, one for longer
 * ones. */
static void read_long_rope(ConfigReader *r, ConvertShape *s) {
    const json_t *one;
    size_t k;
    snprintf(s->scaling_type, sizeof s->scaling_type, "longrope");
    /* newer files have the original length in the scaling object, older ones beside it */
    ConfigReader sub = {.c = r->c, .object = s->scaling, .err = r->err, .status = r->status};
    bool is_within = config_has(&sub, "original_max_position_embeddings");
    ConfigReader *from = is_within ? &sub : r;
    s->n_ctx_orig = config_int(from, "original_max_position_embeddings", -1, 2, 1 << 28);
    r->status = from->status;
    for (int i = 0; i < 2; i++) {
        const json_t *list = json_object_get(s->scaling, long_rope_lists[i]);
        bool is_good = (int64_t)json_array_size(list) == s->n_rot / 2;
        json_array_foreach(list, k, one) is_good = is_good && json_number_value(one) > 0;
        if (!is_good && !r->status)
            r->status = error_set(r->err, FR_ERR_FORMAT, "%s/config.json: %s must be a list of %lld positive numbers",
                                  r->c->folder, long_rope_lists[i], (long long)s->n_rot / 2);
    }
}

static void read_rope(ConvertShape *s, ConfigReader *r, const ConvertUsual *usual) {
    static const char *const known[] = {"linear", "yarn", "llama3"};
    json_t *parameters = json_object_get(r->c->config, "rope_parameters"),
           *scaling = json_object_get(r->c->config, "rope_scaling");
    if (json_object_get(parameters, "full_attention")) parameters = json_object_get(parameters, "full_attention");
    s->rope_base = config_real(r, "rope_theta", usual->rope_base > 0 ? usual->rope_base : 10000, 1, 1e12);
    s->n_rot = usual->rotated_part > 0 ? (int64_t)((double)s->head_dim * usual->rotated_part) : s->head_dim;
    read_rotated_part(r, s, usual);
    if (!json_is_object(scaling)) scaling = parameters;
    if (!json_is_object(scaling)) return;
    const char *type = config_text(scaling, "rope_type");
    if (!type) type = config_text(scaling, "type");
    ConfigReader sub = {.c = r->c, .object = scaling, .err = r->err, .status = r->status};
    s->rope_base = config_real(&sub, "rope_theta", s->rope_base, 1, 1e12);
    read_rotated_part(&sub, s, usual);
    if (!type || strcmp(type, "default") == 0) {
        r->status = sub.status;
        return;
    }
    s->scaling = scaling;
    s->scaling_factor = config_real(&sub, "factor", 1, 1e-3, 1e6);
    r->status = sub.status;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(type, known[i]) == 0) snprintf(s->scaling_type, sizeof s->scaling_type, "%s", type);
    bool is_long = strcmp(type, "longrope") == 0 || strcmp(type, "su") == 0;
    if (usual->has_long_rope && is_long) read_long_rope(r, s);
    if (!s->scaling_type[0]) refuse_scaling(r, type);
}

/* ---- reading the rest ------------------------------------------------------------------------------- */

/* Checks the activation. Gemma's files have it in hidden_activation, and may have an outdated one in hidden_act. */
static void check_rest(ConfigReader *r, const char *supported) {
    const char *key = config_text(r->object, "hidden_activation") ? "hidden_activation" : "hidden_act",
               *act = config_text(r->object, key);
    Printable p;
    if (!r->status && act && strcmp(act, supported) != 0)
        r->status = error_set(r->err, FR_ERR_UNSUPPORTED, "%s/config.json: %s is '%s'; only %s is supported",
                              r->c->folder, key, printable(&p, act, strlen(act)), supported);
}

int convert_shape_read(ConvertShape *s, const HubFolder *c, const ConvertUsual *usual, fr_error *err) {
    ConfigReader r = {.c = c, .object = c->config, .err = err};
    *s = (ConvertShape){.arch = s->arch, .tied = usual->is_tied ? 1 : -1};
    s->n_layer = config_int(&r, "num_hidden_layers", -1, 1, CONVERT_MAX_LAYER);
    s->n_embd = config_int(&r, "hidden_size", -1, 2, 1 << 18);
    int64_t of_experts = config_int(&r, "moe_intermediate_size", -1, -1, 1 << 20);
    const char *ff_key = usual->ff_key && config_has(&r, usual->ff_key) ? usual->ff_key : "intermediate_size";
    s->n_ff = config_int(&r, ff_key, of_experts, 1, 1 << 20); /* may be missing where all layers have experts */
    s->n_head = config_int(&r, "num_attention_heads", -1, 1, 1 << 12);
    s->n_head_kv = config_int(&r, "num_key_value_heads", s->n_head, 1, s->n_head);
    s->has_head_dim = config_has(&r, "head_dim") || usual->head_dim;
    s->head_dim = config_int(&r, "head_dim", usual->head_dim ? usual->head_dim : s->n_embd / s->n_head, 2, 1 << 12);
    s->n_vocab = config_int(&r, "vocab_size", -1, 1, 1 << 24);
    s->n_ctx = config_int(&r, "max_position_embeddings", -1, 1, 1 << 28);
    s->eps = config_real(&r, usual->eps_key ? usual->eps_key : "rms_norm_eps", usual->eps_key ? 1e-5 : 1e-6, 0, 1);
    if (config_has(&r, "tie_word_embeddings"))
        s->tied = json_is_true(json_object_get(c->config, "tie_word_embeddings"));
    read_rope(s, &r, usual);
    check_rest(&r, usual->activation ? usual->activation : "silu");
    if (!r.status && s->head_dim % 2)
        r.status = error_set(err, FR_ERR_UNSUPPORTED, "%s/config.json: head_dim is %lld, but must be even", c->folder,
                             (long long)s->head_dim);
    if (!r.status && (s->n_rot % 2 || s->n_rot < 2))
        r.status = error_set(
            err, FR_ERR_UNSUPPORTED,
            "%s/config.json: %lld of the %lld components of a head are rotated, but the number must be "
            "even and not 0",
            c->folder, (long long)s->n_rot, (long long)s->head_dim);
    return r.status;
}

/* Mixtral has key names of its own, and the weights of its experts always sum to 1. A GGUF file cannot express that
 * only some layers have experts. */
int convert_experts_read(ConvertShape *s, const HubFolder *c, ConvertExperts experts, fr_error *err) {
    ConfigReader r = {.c = c, .object = c->config, .err = err};
    bool is_mixtral = config_has(&r, "num_local_experts"), sums_to_1 = experts != EXPERTS_KEEP_PROBABILITIES;
    s->n_expert = config_int(&r, is_mixtral ? "num_local_experts" : "num_experts", -1, 1, 512);
    s->n_expert_used = config_int(&r, "num_experts_per_tok", -1, 1, s->n_expert);
    s->n_ff_expert = config_int(&r, "moe_intermediate_size", 0, 0, 1 << 20);
    s->n_ff_shared = config_int(&r, "shared_expert_intermediate_size", 0, 0, 1 << 20);
    bool has_dense = json_array_size(json_object_get(c->config, "mlp_only_layers")) > 0 ||
                     config_int(&r, "decoder_sparse_step", 1, 1, 1024) != 1;
    if (!r.status && has_dense)
        r.status = error_set(err, FR_ERR_UNSUPPORTED,
                             "%s/config.json: mlp_only_layers or decoder_sparse_step leave layers without experts, "
                             "which is not supported",
                             c->folder);
    bool is_given = !is_mixtral && (experts != EXPERTS_ALWAYS_SUM_TO_1 || config_has(&r, "norm_topk_prob"));
    if (!r.status && is_given && json_is_true(json_object_get(c->config, "norm_topk_prob")) != sums_to_1)
        r.status = error_set(err, FR_ERR_UNSUPPORTED, "%s/config.json: norm_topk_prob must be %s in this architecture",
                             c->folder, sums_to_1 ? "true" : "false");
    return r.status;
}

/* ---- writing rope ----------------------------------------------------------------------------------- */

void convert_set_int(GgufWriter *w, const char *arch, const char *key, int64_t v) {
    char full[128];
    snprintf(full, sizeof full, "%s.%s", arch, key);
    gguf_set_u32(w, full, (uint32_t)v);
}

void convert_set_real(GgufWriter *w, const char *arch, const char *key, double v) {
    char full[128];
    snprintf(full, sizeof full, "%s.%s", arch, key);
    gguf_set_f32(w, full, (float)v);
}

/* Returns the factor of cos and sin: attention_factor if config.json has it, else arXiv 2402.13753, eq. 5. */
static double long_rope_magnitude(const ConvertShape *s) {
    const json_t *given = json_object_get(s->scaling, "attention_factor");
    double longer = (double)s->n_ctx / (double)s->n_ctx_orig;
    if (json_is_number(given)) return json_number_value(given);
    return longer > 1 ? sqrt(1 + math_log(longer) / math_log((double)s->n_ctx_orig)) : 1;
}

static double scaling_value(const ConvertShape *s, const char *key, double fallback) {
    const json_t *v = json_object_get(s->scaling, key);
    double x = json_is_number(v) ? json_number_value(v) : fallback;
    return x > 0 && x < 1e12 ? x : fallback;
}

/* Llama 3.1's scaling: low frequencies are divided by the factor, high ones are not, and in between the divisor changes
 * smoothly. */
static bool llama3_factors(const ConvertShape *s, float *out) {
    if (strcmp(s->scaling_type, "llama3") != 0) return false;
    double low = scaling_value(s, "low_freq_factor", 1), high = scaling_value(s, "high_freq_factor", 4),
           n_ctx = scaling_value(s, "original_max_position_embeddings", 8192);
    for (int64_t i = 0; i < s->head_dim / 2; i++) {
        double wave = 2 * M_PI * math_pow(s->rope_base, 2 * (double)i / (double)s->head_dim), turns = n_ctx / wave;
        double part = (turns - low) / (high - low);
        if (turns > high || !(high > low)) out[i] = 1;
        else if (turns < low) out[i] = (float)s->scaling_factor;
        else out[i] = (float)(1 / ((1 - part) / s->scaling_factor + part));
    }
    return true;
}

void convert_rope_write(const ConvertShape *s, GgufWriter *w) {
    const char *arch = s->arch;
    char full[128];
    bool is_yarn = strcmp(s->scaling_type, "yarn") == 0, is_long = is_long_rope(s);
    if (!is_yarn && !is_long && strcmp(s->scaling_type, "linear") != 0) return;
    snprintf(full, sizeof full, "%s.rope.scaling.type", arch);
    gguf_set_string(w, full, s->scaling_type, strlen(s->scaling_type));
    if (is_long) {
        convert_set_int(w, arch, "rope.scaling.original_context_length", s->n_ctx_orig);
        convert_set_real(w, arch, "rope.scaling.attn_factor", long_rope_magnitude(s));
        return;
    }
    convert_set_real(w, arch, "rope.scaling.factor", s->scaling_factor);
    if (!is_yarn) return;
    convert_set_int(w, arch, "rope.scaling.original_context_length",
                    (int64_t)scaling_value(s, "original_max_position_embeddings", (double)s->n_ctx));
    if (json_is_number(json_object_get(s->scaling, "beta_fast")))
        convert_set_real(w, arch, "rope.scaling.yarn_beta_fast", scaling_value(s, "beta_fast", 32));
    if (json_is_number(json_object_get(s->scaling, "beta_slow")))
        convert_set_real(w, arch, "rope.scaling.yarn_beta_slow", scaling_value(s, "beta_slow", 1));
    if (json_is_number(json_object_get(s->scaling, "attention_factor")))
        convert_set_real(w, arch, "rope.scaling.yarn_attn_factor", scaling_value(s, "attention_factor", 1));
}

void convert_rope_tensors(const ConvertShape *s, float *room, GgufWriter *w) {
    static const char *const names[] = {"rope_factors_short.weight", "rope_factors_long.weight"};
    const json_t *one;
    int64_t n = s->n_rot / 2;
    size_t k;
    if (llama3_factors(s, room)) {
        n = s->head_dim / 2;
        gguf_add_tensor(w, "rope_freqs.weight", TYPE_F32, 1, &n, room);
    }
    for (int i = 0; i < 2 && is_long_rope(s); i++) {
        float *to = room + i * n;
        json_array_foreach(json_object_get(s->scaling, long_rope_lists[i]), k, one)
            to[k] = (float)json_number_value(one);
        gguf_add_tensor(w, names[i], TYPE_F32, 1, &n, to);
    }
}

/* ---- writing the rest ------------------------------------------------------------------------------- */

static void write_names(const HubFolder *c, const char *arch, TensorType type, GgufWriter *w) {
    static const struct {
        TensorType type;
        uint32_t number;
    } file_types[] = {{TYPE_F32, 0}, {TYPE_F16, 1}, {TYPE_BF16, 32}, {TYPE_Q8_0, 7}, {TYPE_MXFP4, 38}};
    const char *slash = strrchr(c->folder, '/'), *name = slash ? slash + 1 : c->folder;
    gguf_set_string(w, "general.architecture", arch, strlen(arch));
    gguf_set_string(w, "general.type", "model", strlen("model"));
    gguf_set_string(w, "general.name", name, strlen(name));
    for (size_t i = 0; i < sizeof file_types / sizeof *file_types; i++)
        if (file_types[i].type == type) gguf_set_u32(w, "general.file_type", file_types[i].number);
    if (type == TYPE_Q8_0) gguf_set_u32(w, "general.quantization_version", 2);
}

/* Writes the sampling that the publisher recommends, under llama.cpp's keys. `forerun chat` uses it as its default. */
static void write_sampling(const HubFolder *c, GgufWriter *w) {
    static const struct {
        const char *from, *to;
    } reals[] = {
        {"temperature", "general.sampling.temp"},
        {"top_p", "general.sampling.top_p"},
        {"min_p", "general.sampling.min_p"},
        {"repetition_penalty", "general.sampling.penalty_repeat"},
    };
    const json_t *o = c->generation, *top_k = json_object_get(o, "top_k");
    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++) {
        const json_t *v = json_object_get(o, reals[i].from);
        if (json_is_number(v)) gguf_set_f32(w, reals[i].to, (float)json_number_value(v));
    }
    if (json_is_integer(top_k) && json_integer_value(top_k) >= 0 && json_integer_value(top_k) <= INT32_MAX)
        gguf_set_u32(w, "general.sampling.top_k", (uint32_t)json_integer_value(top_k));
}

void convert_general_write(const HubFolder *c, const char *arch, TensorType type, GgufWriter *w) {
    write_names(c, arch, type, w);
    write_sampling(c, w);
}

static void write_kv_heads(const ConvertShape *s, GgufWriter *w) {
    int32_t heads[CONVERT_MAX_LAYER];
    char full[128];
    if (!s->lists_kv_heads) {
        convert_set_int(w, s->arch, "attention.head_count_kv", s->n_head_kv);
        return;
    }
    for (int64_t i = 0; i < s->n_layer; i++) heads[i] = s->recurrent[i] ? 0 : (int32_t)s->n_head_kv;
    snprintf(full, sizeof full, "%s.attention.head_count_kv", s->arch);
    gguf_set_i32s(w, full, heads, (int32_t)s->n_layer);
}

void convert_shape_write(const ConvertShape *s, const char *arch, bool rotates_pairs, GgufWriter *w) {
    convert_set_int(w, arch, "block_count", s->n_layer + s->n_nextn);
    if (s->n_nextn) convert_set_int(w, arch, "nextn_predict_layers", s->n_nextn);
    convert_set_int(w, arch, "context_length", s->n_ctx);
    convert_set_int(w, arch, "embedding_length", s->n_embd);
    convert_set_int(w, arch, "feed_forward_length", s->n_ff);
    convert_set_int(w, arch, "attention.head_count", s->n_head);
    write_kv_heads(s, w);
    convert_set_real(w, arch, "attention.layer_norm_rms_epsilon", s->eps);
    convert_set_int(w, arch, "vocab_size", s->n_vocab);
    convert_set_real(w, arch, "rope.freq_base", s->rope_base);
    if (rotates_pairs || s->n_rot != s->head_dim) convert_set_int(w, arch, "rope.dimension_count", s->n_rot);
    if (s->has_head_dim || s->head_dim * s->n_head != s->n_embd) {
        convert_set_int(w, arch, "attention.key_length", s->head_dim);
        convert_set_int(w, arch, "attention.value_length", s->kv_rank ? s->kv_rank : s->head_dim);
    }
    convert_rope_write(s, w);
}

void convert_experts_write(const ConvertShape *s, const char *arch, GgufWriter *w) {
    convert_set_int(w, arch, "expert_count", s->n_expert);
    convert_set_int(w, arch, "expert_used_count", s->n_expert_used);
    if (s->n_ff_expert) convert_set_int(w, arch, "expert_feed_forward_length", s->n_ff_expert);
    if (s->n_ff_shared) convert_set_int(w, arch, "expert_shared_feed_forward_length", s->n_ff_shared);
}

/* No number overflows: all are within the limits of convert_shape_read and of the architectures. */
Hparams convert_hparams(const ConvertShape *s) {
    Hparams h = {.n_embd = (int32_t)s->n_embd,
                 .n_ff = (int32_t)s->n_ff,
                 .n_vocab = (int32_t)s->n_vocab,
                 .n_head = (int32_t)s->n_head,
                 .n_head_kv = (int32_t)s->n_head_kv,
                 .head_dim = (int32_t)s->head_dim,
                 .n_expert = (int32_t)s->n_expert,
                 .n_ff_expert = (int32_t)(s->n_ff_expert ? s->n_ff_expert : s->n_ff),
                 .n_ff_shared = (int32_t)s->n_ff_shared,
                 .rope = {.n_rot = (int32_t)s->n_rot},
                 .latent = {.rank = (int32_t)s->kv_rank,
                            .q_rank = (int32_t)s->q_rank,
                            .plain_dim = (int32_t)s->plain_dim,
                            .value_dim = (int32_t)s->value_dim}};
    int32_t n_conv = (int32_t)s->n_conv, groups = (int32_t)s->n_key_heads, heads = (int32_t)s->n_value_heads,
            dim = (int32_t)s->delta_dim;
    h.delta = (DeltaNetShape){.n_key_heads = groups, .n_value_heads = heads, .dim = dim};
    h.mamba = (Mamba2Shape){.n_heads = heads, .dim = dim, .n_groups = groups, .n_state = (int32_t)s->n_state};
    if (s->n_state) h.state = mamba2_state(&h.mamba, n_conv);
    else if (heads) h.state = delta_net_state(&h.delta, n_conv);
    else if (n_conv) h.state = short_conv_state(h.n_embd, n_conv);
    return h;
}

/* convert_shape.c - reads config.json and writes "<architecture>.<name>" keys.
 *
 * The names are those of transformers' configurations for llama-like models, which the supported architectures share. Newer
 * files have the base and the scaling of rope in rope_parameters, older ones in rope_theta and rope_scaling. A value that
 * would change what the model computes and has no place in the GGUF file is refused. */
#include "convert/convert_shape.h"

#include "format/printable.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Reads numbers of one object and remembers the first failure. */
typedef struct Reader {
    const HubFolder *c;
    const json_t *object;
    fr_error *err;
    int status;
} Reader;

static bool is_given(const Reader *r, const char *key) {
    const json_t *v = json_object_get(r->object, key);
    return v && !json_is_null(v);
}

/* fallback below `low`: the key must be there. */
static int64_t read_int(Reader *r, const char *key, int64_t fallback, int64_t low, int64_t high) {
    const json_t *v = json_object_get(r->object, key);
    int64_t n = is_given(r, key) ? (int64_t)json_integer_value(v) : fallback;
    bool is_number = !is_given(r, key) || json_is_integer(v);
    if (is_number && n >= low && n <= high) return n;
    if (!r->status)
        r->status = error_set(r->err, FR_ERR_FORMAT, "%s/config.json: %s must be an integer from %lld to %lld",
                              r->c->folder, key, (long long)low, (long long)high);
    return low;
}

static double read_real(Reader *r, const char *key, double fallback, double low, double high) {
    const json_t *v = json_object_get(r->object, key);
    double x = is_given(r, key) ? json_number_value(v) : fallback;
    bool is_number = !is_given(r, key) || json_is_number(v);
    if (is_number && x >= low && x <= high) return x;
    if (!r->status)
        r->status = error_set(r->err, FR_ERR_FORMAT, "%s/config.json: %s must be a number from %g to %g", r->c->folder,
                              key, low, high);
    return low;
}

const char *config_text(const json_t *object, const char *key) {
    return json_string_value(json_object_get(object, key));
}

/* ---- rope -------------------------------------------------------------------------------------------- */

static void refuse_scaling(Reader *r, const char *type) {
    Printable p;
    if (!r->status)
        r->status = error_set(
            r->err, FR_ERR_UNSUPPORTED,
            "%s/config.json: rope scaling '%s' is not supported; forerun knows linear, yarn and llama3", r->c->folder,
            printable(&p, type, strlen(type)));
}

/* Part of a head that is not rotated. */
static void read_rotated_part(Reader *r, ConvertShape *s, const ConvertUsual *usual) {
    if (!is_given(r, "partial_rotary_factor")) return;
    double part = read_real(r, "partial_rotary_factor", 1, 0, 1);
    if (part < 1 && usual->rotated_part <= 0 && !r->status)
        r->status = error_set(r->err, FR_ERR_UNSUPPORTED,
                              "%s/config.json: partial_rotary_factor below 1 is not supported here", r->c->folder);
    s->n_rot = (int64_t)((double)s->head_dim * part);
}

static void read_rope(Reader *r, ConvertShape *s, const ConvertUsual *usual) {
    static const char *const known[] = {"linear", "yarn", "llama3"};
    json_t *parameters = json_object_get(r->c->config, "rope_parameters"),
           *scaling = json_object_get(r->c->config, "rope_scaling");
    if (json_object_get(parameters, "full_attention")) parameters = json_object_get(parameters, "full_attention");
    s->rope_base = read_real(r, "rope_theta", usual->rope_base > 0 ? usual->rope_base : 10000, 1, 1e12);
    s->n_rot = usual->rotated_part > 0 ? (int64_t)((double)s->head_dim * usual->rotated_part) : s->head_dim;
    read_rotated_part(r, s, usual);
    if (!json_is_object(scaling)) scaling = parameters;
    if (!json_is_object(scaling)) return;
    const char *type = config_text(scaling, "rope_type");
    if (!type) type = config_text(scaling, "type");
    Reader sub = {.c = r->c, .object = scaling, .err = r->err, .status = r->status};
    s->rope_base = read_real(&sub, "rope_theta", s->rope_base, 1, 1e12);
    read_rotated_part(&sub, s, usual);
    if (!type || strcmp(type, "default") == 0) {
        r->status = sub.status;
        return;
    }
    s->scaling = scaling;
    s->scaling_factor = read_real(&sub, "factor", 1, 1e-3, 1e6);
    r->status = sub.status;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(type, known[i]) == 0) snprintf(s->scaling_type, sizeof s->scaling_type, "%s", type);
    if (!s->scaling_type[0]) refuse_scaling(r, type);
}

static double scaling_value(const ConvertShape *s, const char *key, double fallback) {
    const json_t *v = json_object_get(s->scaling, key);
    double x = json_is_number(v) ? json_number_value(v) : fallback;
    return x > 0 && x < 1e12 ? x : fallback;
}

/* Long waves are slowed down by the factor, short ones not at all, and between the two it changes smoothly
 * (Llama 3.1's configuration). */
bool convert_rope_factors(const ConvertShape *s, float *out) {
    if (strcmp(s->scaling_type, "llama3") != 0) return false;
    double low = scaling_value(s, "low_freq_factor", 1), high = scaling_value(s, "high_freq_factor", 4),
           n_ctx = scaling_value(s, "original_max_position_embeddings", 8192);
    for (int64_t i = 0; i < s->head_dim / 2; i++) {
        double wave = 2 * M_PI * pow(s->rope_base, 2 * (double)i / (double)s->head_dim), turns = n_ctx / wave;
        double part = (turns - low) / (high - low);
        if (turns > high || !(high > low)) out[i] = 1;
        else if (turns < low) out[i] = (float)s->scaling_factor;
        else out[i] = (float)(1 / ((1 - part) / s->scaling_factor + part));
    }
    return true;
}

/* ---- the shape --------------------------------------------------------------------------------------- */

/* Gemma's files have the activation in hidden_activation, and perhaps an older one in hidden_act. */
static void check_rest(Reader *r, const char *supported) {
    const char *key = config_text(r->object, "hidden_activation") ? "hidden_activation" : "hidden_act",
               *act = config_text(r->object, key);
    Printable p;
    if (!r->status && act && strcmp(act, supported) != 0)
        r->status = error_set(r->err, FR_ERR_UNSUPPORTED, "%s/config.json: %s is '%s'; only %s is supported",
                              r->c->folder, key, printable(&p, act, strlen(act)), supported);
}

int convert_shape_read(ConvertShape *s, const HubFolder *c, const ConvertUsual *usual, fr_error *err) {
    Reader r = {.c = c, .object = c->config, .err = err};
    *s = (ConvertShape){.arch = s->arch, .tied = usual->is_tied ? 1 : -1};
    s->n_layer = read_int(&r, "num_hidden_layers", -1, 1, 1024);
    s->n_embd = read_int(&r, "hidden_size", -1, 2, 1 << 18);
    int64_t of_experts = read_int(&r, "moe_intermediate_size", -1, -1, 1 << 20);
    s->n_ff = read_int(&r, "intermediate_size", of_experts, 1, 1 << 20); /* missing where all layers have experts */
    s->n_head = read_int(&r, "num_attention_heads", -1, 1, 1 << 12);
    s->n_head_kv = read_int(&r, "num_key_value_heads", s->n_head, 1, s->n_head);
    s->has_head_dim = is_given(&r, "head_dim") || usual->head_dim;
    s->head_dim = read_int(&r, "head_dim", usual->head_dim ? usual->head_dim : s->n_embd / s->n_head, 2, 1 << 12);
    s->n_vocab = read_int(&r, "vocab_size", -1, 1, 1 << 24);
    s->n_ctx = read_int(&r, "max_position_embeddings", -1, 1, 1 << 28);
    s->eps = read_real(&r, "rms_norm_eps", 1e-6, 0, 1);
    if (is_given(&r, "tie_word_embeddings")) s->tied = json_is_true(json_object_get(c->config, "tie_word_embeddings"));
    read_rope(&r, s, usual);
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

/* Mixtral has its own names, and its weights always sum to 1. Layers without experts among others have no place in the file. */
int convert_experts_read(ConvertShape *s, const HubFolder *c, ConvertExperts experts, fr_error *err) {
    Reader r = {.c = c, .object = c->config, .err = err};
    bool is_mixtral = is_given(&r, "num_local_experts"), sums_to_1 = experts != EXPERTS_KEEP_PROBABILITIES;
    s->n_expert = read_int(&r, is_mixtral ? "num_local_experts" : "num_experts", -1, 1, 512);
    s->n_expert_used = read_int(&r, "num_experts_per_tok", -1, 1, s->n_expert);
    s->n_ff_expert = read_int(&r, "moe_intermediate_size", 0, 0, 1 << 20);
    s->n_ff_shared = read_int(&r, "shared_expert_intermediate_size", 0, 0, 1 << 20);
    bool has_dense = json_array_size(json_object_get(c->config, "mlp_only_layers")) > 0 ||
                     read_int(&r, "decoder_sparse_step", 1, 1, 1024) != 1;
    if (!r.status && has_dense)
        r.status = error_set(err, FR_ERR_UNSUPPORTED,
                             "%s/config.json: mlp_only_layers or decoder_sparse_step leave layers without experts, "
                             "which is not supported",
                             c->folder);
    bool is_said = !is_mixtral && (experts != EXPERTS_ALWAYS_SUM_TO_1 || is_given(&r, "norm_topk_prob"));
    if (!r.status && is_said && json_is_true(json_object_get(c->config, "norm_topk_prob")) != sums_to_1)
        r.status = error_set(err, FR_ERR_UNSUPPORTED, "%s/config.json: norm_topk_prob must be %s in this architecture",
                             c->folder, sums_to_1 ? "true" : "false");
    return r.status;
}

static void set_int(GgufWriter *w, const char *arch, const char *key, int64_t v) {
    char full[128];
    snprintf(full, sizeof full, "%s.%s", arch, key);
    gguf_set_u32(w, full, (uint32_t)v);
}

static void set_real(GgufWriter *w, const char *arch, const char *key, double v) {
    char full[128];
    snprintf(full, sizeof full, "%s.%s", arch, key);
    gguf_set_f32(w, full, (float)v);
}

static void write_scaling(const ConvertShape *s, const char *arch, GgufWriter *w) {
    char full[128];
    bool is_yarn = strcmp(s->scaling_type, "yarn") == 0;
    if (!is_yarn && strcmp(s->scaling_type, "linear") != 0) return;
    snprintf(full, sizeof full, "%s.rope.scaling.type", arch);
    gguf_set_string(w, full, s->scaling_type, strlen(s->scaling_type));
    set_real(w, arch, "rope.scaling.factor", s->scaling_factor);
    if (!is_yarn) return;
    set_int(w, arch, "rope.scaling.original_context_length",
            (int64_t)scaling_value(s, "original_max_position_embeddings", (double)s->n_ctx));
    if (json_is_number(json_object_get(s->scaling, "beta_fast")))
        set_real(w, arch, "rope.scaling.yarn_beta_fast", scaling_value(s, "beta_fast", 32));
    if (json_is_number(json_object_get(s->scaling, "beta_slow")))
        set_real(w, arch, "rope.scaling.yarn_beta_slow", scaling_value(s, "beta_slow", 1));
}

void convert_shape_write(const ConvertShape *s, const char *arch, bool rotates_pairs, GgufWriter *w) {
    set_int(w, arch, "block_count", s->n_layer);
    set_int(w, arch, "context_length", s->n_ctx);
    set_int(w, arch, "embedding_length", s->n_embd);
    set_int(w, arch, "feed_forward_length", s->n_ff);
    set_int(w, arch, "attention.head_count", s->n_head);
    set_int(w, arch, "attention.head_count_kv", s->n_head_kv);
    set_real(w, arch, "attention.layer_norm_rms_epsilon", s->eps);
    set_int(w, arch, "vocab_size", s->n_vocab);
    set_real(w, arch, "rope.freq_base", s->rope_base);
    if (rotates_pairs || s->n_rot != s->head_dim) set_int(w, arch, "rope.dimension_count", s->n_rot);
    if (s->has_head_dim || s->head_dim * s->n_head != s->n_embd) {
        set_int(w, arch, "attention.key_length", s->head_dim);
        set_int(w, arch, "attention.value_length", s->head_dim);
    }
    write_scaling(s, arch, w);
}

void convert_experts_write(const ConvertShape *s, const char *arch, GgufWriter *w) {
    set_int(w, arch, "expert_count", s->n_expert);
    set_int(w, arch, "expert_used_count", s->n_expert_used);
    if (s->n_ff_expert) set_int(w, arch, "expert_feed_forward_length", s->n_ff_expert);
    if (s->n_ff_shared) set_int(w, arch, "expert_shared_feed_forward_length", s->n_ff_shared);
}

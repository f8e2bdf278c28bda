/* convert_rope.c - the rotation of queries and keys: its base, and how config.json extends the context.
 *
 * Newer files have the base and the scaling in rope_parameters, older ones in rope_theta and rope_scaling. linear and yarn are keys of
 * a GGUF file. llama3 is a tensor of divisors of the frequencies. LongRoPE (Phi-3 128k) is two of them, and a factor of
 * cos and sin that config.json leaves to be computed. */
#include "cli/convert/convert_rope.h"

#include "base/error.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

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

/* Part of a head that is not rotated. */
static void read_rotated_part(ConfigReader *r, ConvertShape *s, const ConvertUsual *usual) {
    if (!config_has(r, "partial_rotary_factor")) return;
    double part = config_real(r, "partial_rotary_factor", 1, 0, 1);
    if (part < 1 && usual->rotated_part <= 0 && !r->status)
        r->status = error_set(r->err, FR_ERR_UNSUPPORTED,
                              "%s/config.json: partial_rotary_factor below 1 is not supported here", r->c->folder);
    s->n_rot = (int64_t)((double)s->head_dim * part);
}

/* A divisor for each pair, one set for contexts up to the original one and one for longer ones. */
static void read_long_rope(ConfigReader *r, ConvertShape *s) {
    const json_t *one;
    size_t k;
    snprintf(s->scaling_type, sizeof s->scaling_type, "longrope");
    /* published beside the scaling, newer files have it within */
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

/* By which cos and sin are multiplied (arXiv 2402.13753, eq. 5; `attention_factor` if the file has one). */
static double long_rope_magnitude(const ConvertShape *s) {
    const json_t *given = json_object_get(s->scaling, "attention_factor");
    double longer = (double)s->n_ctx / (double)s->n_ctx_orig;
    if (json_is_number(given)) return json_number_value(given);
    return longer > 1 ? sqrt(1 + log(longer) / log((double)s->n_ctx_orig)) : 1;
}

void convert_rope_read(ConvertShape *s, ConfigReader *r, const ConvertUsual *usual) {
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

static double scaling_value(const ConvertShape *s, const char *key, double fallback) {
    const json_t *v = json_object_get(s->scaling, key);
    double x = json_is_number(v) ? json_number_value(v) : fallback;
    return x > 0 && x < 1e12 ? x : fallback;
}

/* Long waves are slowed down by the factor, short ones not at all, and between the two it changes smoothly
 * (Llama 3.1's configuration). */
static bool llama3_factors(const ConvertShape *s, float *out) {
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

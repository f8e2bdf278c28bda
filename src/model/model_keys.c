/* model_keys.c - the keys "<architecture>.<name>" of a model file: how they are read, and how the others are refused.
 *
 * A key that is not read may mean that the model computes something else than we do: a window in other layers, another
 * router, a factor. Therefore the reader notes every key that it is asked for, and key_reader_check refuses a file with
 * any other key that is not in the table below. */
#include "model/arch.h"

#include "base/mem.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- keys that change nothing ------------------------------------------------------------------------ */

/* A key that changes nothing if it has the value `only`, or always if that is NAN. It may have several rows. */
typedef struct IdleKey {
    const char *name;
    double only;
} IdleKey;

static const IdleKey idle_keys[] = {
    /* These describe a model and do not change what it computes. */
    {"vocab_size", NAN}, /* the embedding has as many rows */
    {"tensor_data_layout", NAN},
    {"pooling_type", NAN},                 /* how other programs make one vector of a text */
    {"decoder_start_token_id", NAN},       /* only models with an encoder need it */
    {"rope.dimension_sections", NAN},      /* positions in a picture have several numbers, those in a text have one */
    {"rope.mrope_section", NAN},           /* this is rope.dimension_sections under another name */
    {"rope.scaling.finetuned", NAN},       /* whether the model was trained on after its context was extended */
    {"attention.layer_norm_epsilon", NAN}, /* for norms that subtract the mean, which no architecture here has */
    {"expert_shared_count", NAN},          /* it follows from the widths of the tensors */
    /* These are accepted with the value that switches them off. Some programs write all keys into every file. */
    {"attention.causal", 1},
    {"attention.max_alibi_bias", 0},
    {"attention.clamp_kqv", 0},
    {"attention.scale", 0},
    {"attention.sliding_window", 0},
    {"attention.temperature_scale", 0},
    {"attention.temperature_length", 0},
    {"attention.q_lora_rank", 0},
    {"attention.kv_lora_rank", 0},
    {"attention.relative_buckets_count", 0},
    {"rope.scaling.yarn_log_multiplier", 0},
    {"use_parallel_residual", 0},
    {"swin_norm", 0},
    {"embedding_scale", 0},
    {"embedding_scale", 1},
    {"residual_scale", 0},
    {"residual_scale", 1},
    {"logit_scale", 0},
    {"logit_scale", 1},
    {"attn_logit_softcapping", 0},
    {"attn_logit_softcapping", 50}, /* this and the 30 are defaults that llama.cpp writes for every architecture */
    {"final_logit_softcapping", 0},
    {"final_logit_softcapping", 30},
    {"router_logit_softcapping", 0},
    {"nextn_predict_layers", 0},
    {"leading_dense_block_count", 0},
    {"expert_count", 0},
    {"expert_used_count", 0},
    {"expert_shared_feed_forward_length", 0},
    {"expert_weights_scale", 0},
    {"expert_weights_scale", 1},
    {"expert_group_count", 0},
    {"expert_group_count", 1},
    {"expert_group_used_count", 0},
    {"expert_group_used_count", 1},
    {"rescale_every_n_layers", 0},
    {"time_mix_extra_dim", 0},
    {"time_decay_extra_dim", 0},
    {"wkv.head_size", 0},
    {"ssm.conv_kernel", 0},
    {"ssm.inner_size", 0},
    {"ssm.state_size", 0},
    {"ssm.time_step_rank", 0},
    {"ssm.group_count", 0},
    {"ssm.dt_b_c_rms", 0},
};

static bool has_value(const Gguf *g, const char *key, double value) {
    int64_t n;
    float x;
    bool is_true;
    if (gguf_get_i64(g, key, &n)) return (double)n == value;
    if (gguf_get_f32(g, key, &x)) return (double)x == value;
    return gguf_get_bool(g, key, &is_true) && is_true == (value != 0);
}

/* Returns whether the table accepts the key. *is_named tells whether the table has the key with another value. */
static bool is_idle(const Gguf *g, const char *key, const char *name, bool *is_named) {
    *is_named = false;
    for (size_t i = 0; i < sizeof idle_keys / sizeof *idle_keys; i++) {
        if (strcmp(idle_keys[i].name, name) != 0) continue;
        if (isnan(idle_keys[i].only) || has_value(g, key, idle_keys[i].only)) return true;
        *is_named = true;
    }
    return false;
}

/* ---- the reader -------------------------------------------------------------------------------------- */

struct KeyReader {
    const Gguf *g;
    const char *arch;
    fr_error *err;
    int status;
    char key[128];
    bool *known; /* [gguf_n_kv] keys that were asked for, or have no meaning in this model */
};

int key_reader_open(KeyReader **out, const Gguf *g, const char *arch, fr_error *err) {
    size_t n = (size_t)gguf_n_kv(g);
    KeyReader *r = *out = mem_calloc(1, sizeof *r);
    if (!r) return error_memory(err, "a list of keys", sizeof *r);
    *r = (KeyReader){.g = g, .arch = arch, .err = err, .known = mem_calloc(n, sizeof *r->known)};
    return r->known ? FR_OK : (int)error_memory(err, "a list of keys", n * sizeof *r->known);
}

/* Returns the part of a key after "<architecture>.", or NULL if the key does not begin like that. */
static const char *name_of(const KeyReader *r, const char *key) {
    size_t n = strlen(r->arch);
    return strncmp(key, r->arch, n) == 0 && key[n] == '.' ? key + n + 1 : NULL;
}

void key_fail(KeyReader *r, fr_code code, const char *fmt, ...) {
    char text[256];
    va_list args;
    if (r->status) return;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    (void)error_set(r->err, code, "%s: %s", gguf_path(r->g), text);
    r->status = code;
}

int key_reader_check(KeyReader *r) {
    for (int64_t i = 0; !r->status && i < gguf_n_kv(r->g); i++) {
        const char *key = gguf_key(r->g, i), *name = name_of(r, key);
        bool is_named;
        if (!name || r->known[i] || is_idle(r->g, key, name, &is_named)) continue;
        Printable safe;
        key_fail(r, FR_ERR_UNSUPPORTED,
                 "%s %s is not part of architecture %s as forerun knows it; the model would be run wrongly",
                 is_named ? "this value of key" : "key", printable(&safe, key, strlen(key)), r->arch);
    }
    return r->status;
}

void key_reader_close(KeyReader *r) {
    if (!r) return;
    mem_free(r->known);
    mem_free(r);
}

/* Leaves the full name in r->key. */
int64_t key_index(KeyReader *r, const char *what) {
    snprintf(r->key, sizeof r->key, "%s.%s", r->arch, what);
    int64_t kv = gguf_find_key(r->g, r->key);
    if (kv >= 0) r->known[kv] = true;
    return kv;
}

bool key_is_list(KeyReader *r, const char *what) {
    int64_t kv = key_index(r, what);
    return kv >= 0 && gguf_kv_type(r->g, kv) == GGUF_ARRAY;
}

void keys_without_meaning(KeyReader *r, const char *prefix) {
    for (int64_t i = 0; i < gguf_n_kv(r->g); i++) {
        const char *name = name_of(r, gguf_key(r->g, i));
        if (name && strncmp(name, prefix, strlen(prefix)) == 0) r->known[i] = true;
    }
}

int32_t key_int(KeyReader *r, const char *what, int64_t fallback, int64_t min, int64_t max) {
    int64_t v = fallback, kv = key_index(r, what);
    if (!gguf_get_i64(r->g, r->key, &v) && (fallback < 0 || kv >= 0)) {
        key_fail(r, FR_ERR_FORMAT, "key %s is missing or no single whole number", r->key);
        return (int32_t)min;
    }
    if (v < min || v > max) {
        key_fail(r, FR_ERR_FORMAT, "%s is %lld, but must lie between %lld and %lld", r->key, (long long)v,
                 (long long)min, (long long)max);
        return (int32_t)min;
    }
    return (int32_t)v;
}

bool key_bool(KeyReader *r, const char *what, bool fallback) {
    bool v = fallback;
    int64_t kv = key_index(r, what);
    if (!gguf_get_bool(r->g, r->key, &v) && kv >= 0)
        key_fail(r, FR_ERR_FORMAT, "key %s is neither true nor false", r->key);
    return v;
}

double key_float(KeyReader *r, const char *what, double fallback, double min, double max) {
    float v = (float)fallback;
    int64_t kv = key_index(r, what);
    if (!gguf_get_f32(r->g, r->key, &v) && (isnan(fallback) || kv >= 0)) {
        key_fail(r, FR_ERR_FORMAT, "key %s is missing or no number", r->key);
        return min;
    }
    if (!(v >= (float)min && v <= (float)max)) {
        key_fail(r, FR_ERR_FORMAT, "%s is %g, but must lie between %g and %g", r->key, (double)v, min, max);
        return min;
    }
    return (double)v;
}

bool key_string(KeyReader *r, const char *what, GgufString *out) {
    return key_index(r, what) >= 0 && gguf_get_string(r->g, r->key, out);
}

static bool list_value(const Gguf *g, int64_t kv, int64_t i, int64_t *out) {
    bool is_true;
    if (gguf_kv_type(g, kv) != GGUF_ARRAY || i >= gguf_kv_count(g, kv)) return false;
    if (gguf_array_i64(g, kv, i, out)) return true;
    if (!gguf_array_bool(g, kv, i, &is_true)) return false;
    *out = is_true;
    return true;
}

int64_t number_of_layer(const Gguf *g, const char *arch, const char *what, int32_t i_layer, int64_t fallback) {
    char key[128];
    int64_t n;
    snprintf(key, sizeof key, "%s.%s", arch, what);
    int64_t kv = gguf_find_key(g, key);
    return kv >= 0 && list_value(g, kv, i_layer, &n) ? n : fallback;
}

int64_t key_number_of_layer(const KeyReader *r, const char *what, int32_t i_layer, int64_t fallback) {
    return number_of_layer(r->g, r->arch, what, i_layer, fallback);
}

void key_check_list(KeyReader *r, const char *what, int32_t n, int64_t min, int64_t max) {
    int64_t kv = key_index(r, what), v;
    if (gguf_kv_count(r->g, kv) != n)
        key_fail(r, FR_ERR_FORMAT, "%s has %lld numbers for %d layers", r->key, (long long)gguf_kv_count(r->g, kv), n);
    for (int32_t i = 0; !r->status && i < n; i++) {
        if (!list_value(r->g, kv, i, &v)) key_fail(r, FR_ERR_FORMAT, "%s does not hold whole numbers", r->key);
        else if (v < min || v > max)
            key_fail(r, FR_ERR_FORMAT, "%s has %lld for layer %d, but must have %lld to %lld", r->key, (long long)v, i,
                     (long long)min, (long long)max);
    }
}

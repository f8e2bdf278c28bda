/* hparams.c - the shape of a model, from the keys "<architecture>.<name>" of its file. Every number is checked
 * against the range that the engine can hold before anything is allocated by it. */
#include "model/hparams.h"

#include "base/error.h"
#include "model/arch.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Reads "<arch>.<what>" keys of one file and remembers the first failure. */
struct KeyReader {
    const Gguf *g;
    const char *arch;
    fr_error *err;
    int status;
    char key[128];
};

static const char *full_key(KeyReader *r, const char *what) {
    snprintf(r->key, sizeof r->key, "%s.%s", r->arch, what);
    return r->key;
}

int32_t key_int(KeyReader *r, const char *what, int64_t fallback, int64_t min, int64_t max) {
    int64_t v = fallback;
    const char *key = full_key(r, what);
    if (!gguf_get_i64(r->g, key, &v) && (fallback < 0 || gguf_find_key(r->g, key) >= 0)) {
        if (!r->status)
            r->status = error_set(r->err, FR_ERR_FORMAT, "%s: key %s is missing or no single whole number",
                                  gguf_path(r->g), key);
        return (int32_t)min;
    }
    if (v < min || v > max) {
        if (!r->status)
            r->status = error_set(r->err, FR_ERR_FORMAT, "%s: %s is %lld, but must lie between %lld and %lld",
                                  gguf_path(r->g), key, (long long)v, (long long)min, (long long)max);
        return (int32_t)min;
    }
    return (int32_t)v;
}

bool key_bool(KeyReader *r, const char *what, bool fallback) {
    bool v = fallback;
    const char *key = full_key(r, what);
    if (!gguf_get_bool(r->g, key, &v) && gguf_find_key(r->g, key) >= 0 && !r->status)
        r->status = error_set(r->err, FR_ERR_FORMAT, "%s: key %s is neither true nor false", gguf_path(r->g), key);
    return v;
}

double key_float(KeyReader *r, const char *what, double fallback, double min, double max) {
    float v = (float)fallback;
    const char *key = full_key(r, what);
    if (!gguf_get_f32(r->g, key, &v) && (isnan(fallback) || gguf_find_key(r->g, key) >= 0)) {
        if (!r->status)
            r->status = error_set(r->err, FR_ERR_FORMAT, "%s: key %s is missing or no number", gguf_path(r->g), key);
        return min;
    }
    if (!(v >= (float)min && v <= (float)max)) {
        if (!r->status)
            r->status = error_set(r->err, FR_ERR_FORMAT, "%s: %s is %g, but must lie between %g and %g",
                                  gguf_path(r->g), key, (double)v, min, max);
        return min;
    }
    return (double)v;
}

static int find_arch(Arch *out, const Gguf *g, fr_error *err) {
    GgufString name;
    if (!gguf_get_string(g, "general.architecture", &name))
        return error_set(err, FR_ERR_FORMAT, "%s: there is no general.architecture; this is no model file",
                         gguf_path(g));
    if (arch_from_name(name.data, name.n, out)) return FR_OK;
    Printable safe;
    ArchNames names;
    return error_set(err, FR_ERR_UNSUPPORTED, "%s: architecture '%s' is not supported; forerun runs %s", gguf_path(g),
                     printable(&safe, name.data, name.n), arch_names(&names));
}

static void read_rope(KeyReader *r, RopeParams *p, int32_t head_dim, int32_t n_ctx_train) {
    p->n_rot = key_int(r, "rope.dimension_count", head_dim, 2, head_dim);
    if (p->n_rot % 2 && !r->status)
        r->status = error_set(r->err, FR_ERR_FORMAT, "%s: rope.dimension_count is %d, but must be even",
                              gguf_path(r->g), p->n_rot);
    p->base = key_float(r, "rope.freq_base", 10000.0, 1.0, 1e12);
    p->factor = 1;
    p->n_ctx_orig = key_int(r, "rope.scaling.original_context_length", n_ctx_train, 1, 1 << 28);
    p->attn_factor = key_float(r, "rope.scaling.attn_factor", 1, 1e-3, 1e3);
    GgufString type = {"none", 4};
    bool named = gguf_get_string(r->g, full_key(r, "rope.scaling.type"), &type);
    static const char *const linear_keys[] = {"rope.scaling.factor", "rope.scale_linear"};
    for (int i = 0; !named && i < 2; i++) /* a factor without a type is a linear one (files before 2023-10) */
        if (gguf_find_key(r->g, full_key(r, linear_keys[i])) >= 0) {
            p->scaling = ROPE_SCALING_LINEAR;
            p->factor = key_float(r, linear_keys[i], 1, 1e-3, 1e6);
            return;
        }
    if (type.n == 4 && memcmp(type.data, "none", 4) == 0) return;
    if (type.n == 8 && memcmp(type.data, "longrope", 8) == 0) return; /* its factors are tensors */
    p->factor = key_float(r, "rope.scaling.factor", 1, 1e-3, 1e6);
    if (type.n == 6 && memcmp(type.data, "linear", 6) == 0) {
        p->scaling = ROPE_SCALING_LINEAR;
    } else if (type.n == 4 && memcmp(type.data, "yarn", 4) == 0) {
        p->scaling = ROPE_SCALING_YARN;
        p->ext_factor = key_float(r, "rope.scaling.yarn_ext_factor", 1, 0, 1e3);
        p->attn_factor = key_float(r, "rope.scaling.yarn_attn_factor", p->attn_factor, 1e-3, 1e3);
        p->beta_fast = key_float(r, "rope.scaling.yarn_beta_fast", 32, 1e-3, 1e6);
        p->beta_slow = key_float(r, "rope.scaling.yarn_beta_slow", 1, 1e-3, 1e6);
    } else if (!r->status) {
        Printable safe;
        r->status = error_set(r->err, FR_ERR_UNSUPPORTED,
                              "%s: rope scaling '%s' is not supported; forerun knows none, linear, yarn and longrope",
                              gguf_path(r->g), printable(&safe, type.data, type.n));
    }
}

static void refuse_kv_heads(KeyReader *r, int32_t i_layer, int64_t n, int64_t other) {
    if (r->status) return;
    r->status = error_set(r->err, FR_ERR_UNSUPPORTED,
                          "%s: layer %d has %lld key-value heads, but 0 (a recurrent state) or %lld fit; layers of "
                          "different numbers are not supported",
                          gguf_path(r->g), i_layer, (long long)n, (long long)other);
}

/* The number of key-value heads in the layers with attention, from a list of all layers, in which 0 means a recurrent state. */
static int32_t read_kv_heads_of_layers(KeyReader *r, const Hparams *h) {
    int64_t kv = gguf_find_key(r->g, full_key(r, "attention.head_count_kv")), found = 0, n;
    if (gguf_kv_count(r->g, kv) != h->n_layer && !r->status)
        r->status = error_set(r->err, FR_ERR_FORMAT, "%s: %s has %lld numbers for %d layers", gguf_path(r->g), r->key,
                              (long long)gguf_kv_count(r->g, kv), h->n_layer);
    for (int32_t i = 0; !r->status && i < h->n_layer; i++) {
        if (!gguf_array_i64(r->g, kv, i, &n))
            r->status = error_set(r->err, FR_ERR_FORMAT, "%s: %s does not hold whole numbers", gguf_path(r->g), r->key);
        else if (n < 0 || n > h->n_head) refuse_kv_heads(r, i, n, h->n_head);
        else if (found && n && n != found) refuse_kv_heads(r, i, n, found);
        else if (n) found = n;
    }
    return found ? (int32_t)found : h->n_head;
}

/* A model without attention gets heads, too, which nothing reads, so that no dimension is 0. */
static void read_heads(KeyReader *r, const Architecture *arch, Hparams *h) {
    if (arch->has_no_attention) {
        h->n_head = h->n_head_kv = 1, h->head_dim = 2;
        return;
    }
    h->n_head = key_int(r, "attention.head_count", -1, 1, 1 << 12);
    int64_t kv = gguf_find_key(r->g, full_key(r, "attention.head_count_kv"));
    h->n_head_kv = arch->kv_heads_by_layer && kv >= 0 && gguf_kv_type(r->g, kv) == GGUF_ARRAY
                       ? read_kv_heads_of_layers(r, h)
                       : key_int(r, "attention.head_count_kv", h->n_head, 1, h->n_head);
    h->head_dim = key_int(r, "attention.key_length", h->n_embd / h->n_head, 2, 1 << 12);
}

int hparams_read(Hparams *h, const Gguf *g, fr_error *err) {
    *h = (Hparams){0};
    int status = find_arch(&h->arch, g, err);
    if (status) return status;
    KeyReader r = {.g = g, .arch = arch_name(h->arch), .err = err};
    h->n_layer = key_int(&r, "block_count", -1, 1, 1024);
    h->n_embd = key_int(&r, "embedding_length", -1, 2, 1 << 18);
    int64_t of_experts = -1; /* models without a dense feed-forward part have this key in its place */
    (void)gguf_get_i64(g, full_key(&r, "expert_feed_forward_length"), &of_experts);
    const Architecture *arch = arch_find(h->arch);
    h->n_ff = arch->has_no_ffn ? 1 : key_int(&r, "feed_forward_length", of_experts, 1, 1 << 20);
    read_heads(&r, arch, h);
    h->n_ctx_train = key_int(&r, "context_length", -1, 1, 1 << 28);
    int32_t value_dim = arch->has_no_attention ? h->head_dim
                                               : key_int(&r, "attention.value_length", h->head_dim, 2, 1 << 12);
    h->rms_eps = (float)key_float(&r, "attention.layer_norm_rms_epsilon", NAN, 0, 1);
    h->embedding_scale = h->logit_scale = 1;
    h->rope.style = arch->rope;
    if (arch->has_no_attention)
        h->rope = (RopeParams){.style = arch->rope, .n_rot = h->head_dim, .base = 1e4, .factor = 1};
    else read_rope(&r, &h->rope, h->head_dim, h->n_ctx_train);
    if (arch->keys) arch->keys(&r, h);
    else if (key_int(&r, "expert_count", 0, 0, 1 << 20) > 0 && !r.status)
        r.status = error_set(err, FR_ERR_UNSUPPORTED, "%s: experts are not part of architecture %s as forerun knows it",
                             gguf_path(g), arch->name);
    if (r.status) return r.status;
    const char *path = gguf_path(g);
    if (h->n_head % h->n_head_kv)
        return error_set(err, FR_ERR_FORMAT, "%s: %d heads cannot share %d key-value heads evenly", path, h->n_head,
                         h->n_head_kv);
    if (value_dim != h->head_dim && !h->latent.rank)
        return error_set(err, FR_ERR_UNSUPPORTED, "%s: value heads of %d beside key heads of %d are not supported",
                         path, value_dim, h->head_dim);
    const GgufTensor *embd = gguf_find_tensor(g, "token_embd.weight");
    if (!embd) return error_set(err, FR_ERR_FORMAT, "%s: tensor token_embd.weight is missing", path);
    if (embd->n_dims != 2 || embd->dims[1] > (1 << 24))
        return error_set(err, FR_ERR_FORMAT, "%s: token_embd.weight is no matrix of at most 2^24 rows", path);
    h->n_vocab = (int32_t)embd->dims[1];
    return FR_OK;
}

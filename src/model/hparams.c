/* hparams.c - the shape of a model, from the keys of its file. Every number is checked against the range that the
 * engine can hold before anything is allocated by it. */
#include "model/hparams.h"

#include "base/error.h"
#include "model/arch.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

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

/* Reads the numbers of YaRN (arXiv 2309.00071). cos and sin are multiplied by yarn_attn_factor, which is
 * `attention_factor` in transformers' configurations, or by 1 + 0.1 ln factor if the file lacks the key. A negative
 * ext_factor means that it is not set. */
static void read_yarn(KeyReader *r, RopeParams *p) {
    p->scaling = ROPE_SCALING_YARN;
    p->ext_factor = key_float(r, "rope.scaling.yarn_ext_factor", 1, -1e3, 1e3);
    if (p->ext_factor < 0) p->ext_factor = 1;
    p->beta_fast = key_float(r, "rope.scaling.yarn_beta_fast", 32, 1e-3, 1e6);
    p->beta_slow = key_float(r, "rope.scaling.yarn_beta_slow", 1, 1e-3, 1e6);
    p->names_magnitude = key_index(r, "rope.scaling.yarn_attn_factor") >= 0;
    if (p->names_magnitude) p->magnitude = key_float(r, "rope.scaling.yarn_attn_factor", 1, 1e-3, 1e3);
    else p->magnitude *= rope_yarn_magnitude(p->factor, 1);
}

static bool is_text(GgufString s, const char *text) { return s.n == strlen(text) && memcmp(s.data, text, s.n) == 0; }

static void read_scaling(KeyReader *r, RopeParams *p) {
    GgufString type = {"none", 4};
    bool named = key_string(r, "rope.scaling.type", &type);
    static const char *const linear_keys[] = {"rope.scaling.factor", "rope.scale_linear"};
    for (int i = 0; !named && i < 2; i++) /* a factor without a type is a linear one (files before 2023-10) */
        if (key_index(r, linear_keys[i]) >= 0) {
            p->scaling = ROPE_SCALING_LINEAR;
            p->factor = key_float(r, linear_keys[i], 1, 1e-3, 1e6);
            return;
        }
    if (!is_text(type, "yarn")) keys_without_meaning(r, "rope.scaling.yarn_");
    if (is_text(type, "none") || is_text(type, "longrope")) { /* the factors of LongRoPE are tensors */
        keys_without_meaning(r, "rope.scaling.factor");
        return;
    }
    p->factor = key_float(r, "rope.scaling.factor", 1, 1e-3, 1e6);
    if (is_text(type, "linear")) {
        p->scaling = ROPE_SCALING_LINEAR;
    } else if (is_text(type, "yarn")) {
        read_yarn(r, p);
    } else {
        Printable safe;
        key_fail(r, FR_ERR_UNSUPPORTED,
                 "rope scaling '%s' is not supported; forerun knows none, linear, yarn and longrope",
                 printable(&safe, type.data, type.n));
    }
}

static void read_rope(KeyReader *r, RopeParams *p, int32_t head_dim, int32_t n_ctx_train) {
    p->n_rot = key_int(r, "rope.dimension_count", head_dim, 2, head_dim);
    if (p->n_rot % 2) key_fail(r, FR_ERR_FORMAT, "rope.dimension_count is %d, but must be even", p->n_rot);
    p->base = key_float(r, "rope.freq_base", 10000.0, 1.0, 1e12);
    p->factor = 1;
    p->n_ctx_orig = key_int(r, "rope.scaling.original_context_length", n_ctx_train, 1, 1 << 28);
    p->magnitude = key_float(r, "rope.scaling.attn_factor", 1, 1e-3, 1e3);
    read_scaling(r, p);
}

/* Reads a key that holds one number for all layers, or a list with a number for each. Returns the greatest number. */
static int32_t read_number_of_layers(KeyReader *r, const Hparams *h, const char *what, int64_t fallback, int32_t min,
                                     int32_t max) {
    int32_t most = 0;
    if (!key_is_list(r, what)) return key_int(r, what, fallback, min > 0 ? min : 1, max);
    key_check_list(r, what, h->n_layer, min, max);
    for (int32_t i = 0; i < h->n_layer; i++) {
        int32_t n = (int32_t)key_number_of_layer(r, what, i, 0);
        if (n > most) most = n;
    }
    return most;
}

/* Refuses lists in which the heads of a layer cannot share its key-value heads evenly. 0 key-value heads mean a
 * recurrent state. */
static void check_heads(KeyReader *r, const Hparams *h) {
    for (int32_t i = 0; i < h->n_layer; i++) {
        int64_t n = key_number_of_layer(r, "attention.head_count", i, h->n_head),
                n_kv = key_number_of_layer(r, "attention.head_count_kv", i, h->n_head_kv);
        if (n_kv > 0 && n % n_kv)
            key_fail(r, FR_ERR_FORMAT, "%lld heads cannot share %lld key-value heads evenly in layer %d", (long long)n,
                     (long long)n_kv, i);
    }
}

/* A model without attention gets a head, too, which nothing reads, so that no dimension is 0. */
static void read_heads(KeyReader *r, const Architecture *arch, Hparams *h) {
    if (arch->has_no_attention) {
        h->n_head = h->n_head_kv = 1, h->head_dim = 2;
        return;
    }
    enum { MOST = 1 << 12 };
    bool is_list = key_is_list(r, "attention.head_count") || key_is_list(r, "attention.head_count_kv");
    h->n_head = read_number_of_layers(r, h, "attention.head_count", -1, 1, MOST);
    h->n_head_kv = read_number_of_layers(r, h, "attention.head_count_kv", h->n_head, arch->kv_heads_by_layer ? 0 : 1,
                                         h->n_head);
    if (h->n_head_kv == 0) h->n_head_kv = h->n_head; /* no layer has attention */
    if (is_list) check_heads(r, h);
    int64_t n_first = key_number_of_layer(r, "attention.head_count", 0, h->n_head);
    h->head_dim = key_int(r, "attention.key_length", h->n_embd / (n_first > 0 ? n_first : 1), 2, 1 << 12);
}

/* The width of experts replaces feed_forward_length in files of models without a dense feed-forward part. */
static void read_ff(KeyReader *r, const Architecture *arch, Hparams *h) {
    h->n_ff = 1;
    if (arch->has_no_ffn) {
        keys_without_meaning(r, "feed_forward_length");
        return;
    }
    int32_t of_experts = key_int(r, "expert_feed_forward_length", 0, 0, 1 << 20);
    h->n_ff = read_number_of_layers(r, h, "feed_forward_length", of_experts > 0 ? of_experts : -1, 1, 1 << 20);
}

/* Reads the rotation. Returns the length of value heads. */
static int32_t read_attention(KeyReader *r, const Architecture *arch, Hparams *h) {
    h->rope.style = arch->rope;
    if (!arch->has_no_attention) {
        read_rope(r, &h->rope, h->head_dim, h->n_ctx_train);
        return key_int(r, "attention.value_length", h->head_dim, 2, 1 << 12);
    }
    h->rope = (RopeParams){.style = arch->rope, .n_rot = h->head_dim, .base = 1e4, .factor = 1};
    keys_without_meaning(r, "attention.");
    keys_without_meaning(r, "rope.");
    return h->head_dim;
}

/* Reads the keys that all architectures have. Returns the length of value heads. */
static int32_t read_common_keys(KeyReader *r, const Architecture *arch, Hparams *h) {
    h->n_layer = key_int(r, "block_count", -1, 1, 1024);
    h->n_embd = key_int(r, "embedding_length", -1, 2, 1 << 18);
    read_ff(r, arch, h);
    read_heads(r, arch, h);
    h->n_ctx_train = key_int(r, "context_length", -1, 1, 1 << 28);
    h->rms_eps = (float)key_float(r, "attention.layer_norm_rms_epsilon", NAN, 0, 1);
    h->embedding_scale = h->logit_scale = 1;
    return read_attention(r, arch, h);
}

static void read_keys(KeyReader *r, Hparams *h, int32_t *value_dim) {
    const Architecture *arch = arch_find(h->arch);
    *value_dim = read_common_keys(r, arch, h);
    if (arch->keys) arch->keys(r, h);
    else arch_no_expert_keys(r, h);
}

static int check_all_heads(const Hparams *h, int32_t value_dim, const char *path, fr_error *err) {
    fr_assert(h->n_head_kv > 0); /* key_reader_check has refused other numbers */
    if (h->n_head % h->n_head_kv)
        return error_set(err, FR_ERR_FORMAT, "%s: %d heads cannot share %d key-value heads evenly", path, h->n_head,
                         h->n_head_kv);
    if (value_dim != h->head_dim && !h->latent.rank)
        return error_set(err, FR_ERR_UNSUPPORTED, "%s: value heads of %d beside key heads of %d are not supported",
                         path, value_dim, h->head_dim);
    return FR_OK;
}

int hparams_read_drafter(Hparams *h, const Gguf *g, const char *prefix, void (*more)(KeyReader *r, void *user),
                         void *user, fr_error *err) {
    *h = (Hparams){.arch = ARCH_LLAMA};
    int32_t value_dim = 0;
    KeyReader *r = NULL;
    int status = key_reader_open(&r, g, prefix, err);
    if (!status) value_dim = read_common_keys(r, arch_find(h->arch), h);
    if (!status) h->attn_scale = (float)key_float(r, "attention.scale", 0, 0, 1e6);
    if (!status && more) more(r, user);
    if (!status) status = key_reader_check(r);
    key_reader_close(r);
    return status ? status : check_all_heads(h, value_dim, gguf_path(g), err);
}

int hparams_read(Hparams *h, const Gguf *g, fr_error *err) {
    *h = (Hparams){0};
    int32_t value_dim = 0;
    KeyReader *r = NULL;
    int status = find_arch(&h->arch, g, err);
    if (!status) status = key_reader_open(&r, g, arch_name(h->arch), err);
    if (!status) read_keys(r, h, &value_dim);
    if (!status) status = key_reader_check(r);
    key_reader_close(r);
    const char *path = gguf_path(g);
    if (!status) status = check_all_heads(h, value_dim, path, err);
    if (status) return status;
    const GgufTensor *embd = gguf_find_tensor(g, "token_embd.weight");
    if (!embd) return error_set(err, FR_ERR_FORMAT, "%s: tensor token_embd.weight is missing", path);
    if (embd->n_dims != 2 || embd->dims[1] > (1 << 24))
        return error_set(err, FR_ERR_FORMAT, "%s: token_embd.weight is no matrix of at most 2^24 rows", path);
    h->n_vocab = (int32_t)embd->dims[1];
    return FR_OK;
}

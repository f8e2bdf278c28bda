/* test_draft_dflash.c - unit tests of the drafter dflash with random weights: compares its trees and its numbers with
 * its layers in double precision, for files in the published layouts and in ours; steps with prompts; the text in the
 * engine; and files that do not fit. */
#include "learned_rig.h"
#include "plain_layer.h"

#include "gguf/tensor_type.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TARGET "build/dflash-target.gguf"
#define BROKEN "build/dflash-broken.gguf"

enum { T = 64, V = 300, N_TEXT = 14, N_KEPT = 3, MAX_STREAMS = 3, MAX_H = 64, MAX_LAYERS = 2, MAX_BLOCK = 6 };

static Gguf *target_gguf;
static Weights *target;
static float *embeddings, *output; /* [V][T] */

typedef enum Layout { PUBLISHED, OLD, OWN, LUCEBOX } Layout;

/* H is the layers' own width, n_tokens the size of the vocabulary, and 0 that of the target. */
typedef struct File {
    const char *path;
    Layout layout;
    TensorType type;
    int32_t H, n_head, n_kv, dim, ff, n_layer, n_tokens, block, mask, window;
    int32_t rank;                                /* of the Markov head; 0: there is none */
    int32_t taps, group, selector, selector_top; /* DFlash 2: of the convolutions; rank and candidates; 0: none */
    bool has_embedding, has_head_norms, has_sinks, is_causal, from_anchor, is_gated, is_recurrent;
    bool is_narrow;                          /* the confidence head reads only the hidden state */
    bool is_confident;                       /* there is a confidence head without a Markov head */
    bool has_biases, windows_are_causal;     /* is_causal in layers with a window */
    float embedding_scale, logit_scale, cap; /* 0: the file does not say */
    int32_t n_streams, streams[MAX_STREAMS]; /* numbers of layers that have run */
} File;

static const File files[] = {
    {.path = "build/dflash-0.gguf",
     .layout = PUBLISHED,
     .type = TYPE_F32,
     .H = 64,
     .n_head = 4,
     .n_kv = 2,
     .dim = 16,
     .ff = 80,
     .n_layer = 2,
     .block = 5,
     .mask = 7,
     .has_head_norms = true,
     .n_streams = 2,
     .streams = {1, 2}},
    {.path = "build/dflash-1.gguf",
     .layout = OLD,
     .type = TYPE_F16,
     .H = 64,
     .n_head = 2,
     .n_kv = 1,
     .dim = 24,
     .ff = 64,
     .n_layer = 2,
     .block = 4,
     .mask = 299,
     .window = 6,
     .has_head_norms = true,
     .has_sinks = true,
     .n_streams = 1,
     .streams = {2}},
    {.path = "build/dflash-2.gguf",
     .layout = OWN,
     .type = TYPE_F32,
     .H = 48,
     .n_head = 3,
     .n_kv = 3,
     .dim = 16,
     .ff = 80,
     .n_layer = 1,
     .n_tokens = 200,
     .block = 6,
     .mask = 0,
     .has_embedding = true,
     .is_causal = true,
     .from_anchor = true,
     .n_streams = 3,
     .streams = {2, 0, 1}},
    {.path = "build/dflash-3.gguf",
     .layout = PUBLISHED,
     .type = TYPE_F32,
     .H = 64,
     .n_head = 4,
     .n_kv = 2,
     .dim = 16,
     .ff = 80,
     .n_layer = 1,
     .n_tokens = 150,
     .block = 4,
     .mask = 12,
     .rank = 8,
     .has_head_norms = true,
     .from_anchor = true, /* without a key */
     .n_streams = 2,
     .streams = {0, 2}},
    {.path = "build/dflash-4.gguf",
     .layout = OWN,
     .type = TYPE_F32,
     .H = 64,
     .n_head = 2,
     .n_kv = 1,
     .dim = 32,
     .ff = 64,
     .n_layer = 1,
     .n_tokens = 150,
     .block = 4,
     .mask = 12,
     .rank = 8,
     .is_gated = true,
     .from_anchor = true,
     .n_streams = 1,
     .streams = {1}},
    {.path = "build/dflash-5.gguf", /* wider than a published one: three taps, and a reduced vocabulary */
     .layout = OWN,
     .type = TYPE_F32,
     .H = 48,
     .n_head = 3,
     .n_kv = 1,
     .dim = 16,
     .ff = 64,
     .n_layer = 1,
     .n_tokens = 150,
     .block = 6,
     .mask = 12,
     .taps = 3,
     .group = 8,
     .selector = 4,
     .selector_top = 16,
     .has_embedding = true,
     .n_streams = 1,
     .streams = {2}},
    {.path = "build/dflash-6.gguf",
     .layout = PUBLISHED,
     .type = TYPE_F32,
     .H = 64,
     .n_head = 4,
     .n_kv = 2,
     .dim = 16,
     .ff = 80,
     .n_layer = 2,
     .block = 5,
     .mask = 7,
     .taps = 2,
     .group = 16,
     .selector = 6,
     .selector_top = 7,
     .has_head_norms = true,
     .n_streams = 2,
     .streams = {1, 2}},
    {.path = "build/dflash-7.gguf",
     .layout = OWN,
     .type = TYPE_F32,
     .H = 64,
     .n_head = 2,
     .n_kv = 1,
     .dim = 32,
     .ff = 64,
     .n_layer = 1,
     .n_tokens = 150,
     .block = 5,
     .mask = 12,
     .rank = 6,
     .is_recurrent = true,
     .from_anchor = true,
     .n_streams = 1,
     .streams = {2}},
    {.path = "build/dflash-8.gguf",
     .layout = PUBLISHED,
     .type = TYPE_F32,
     .H = 48,
     .n_head = 3,
     .n_kv = 1,
     .dim = 16,
     .ff = 64,
     .n_layer = 1,
     .n_tokens = 150,
     .block = 5,
     .mask = 12,
     .rank = 8,
     .has_embedding = true,
     .from_anchor = true, /* without a key */
     .is_narrow = true,
     .n_streams = 1,
     .streams = {2}},
    {.path = "build/dflash-9.gguf", /* one of two layers has a window, and only its slots do not see later ones */
     .layout = PUBLISHED,
     .type = TYPE_F32,
     .H = 64,
     .n_head = 4,
     .n_kv = 2,
     .dim = 16,
     .ff = 80,
     .n_layer = 2,
     .block = 6,
     .mask = 7,
     .window = 7,
     .has_head_norms = true,
     .has_sinks = true,
     .has_biases = true,
     .windows_are_causal = true,
     .embedding_scale = 1.5f,
     .logit_scale = 0.5f,
     .cap = 3,
     .n_streams = 2,
     .streams = {1, 2}},
    {.path = "build/dflash-10.gguf",
     .layout = OWN,
     .type = TYPE_F32,
     .H = 64,
     .n_head = 2,
     .n_kv = 1,
     .dim = 24,
     .ff = 64,
     .n_layer = 1,
     .block = 4,
     .mask = 3,
     .is_confident = true,
     .from_anchor = true,
     .n_streams = 1,
     .streams = {1}},
    {.path = "build/dflash-11.gguf",
     .layout = LUCEBOX,
     .type = TYPE_F16,
     .H = 64,
     .n_head = 4,
     .n_kv = 2,
     .dim = 16,
     .ff = 64,
     .n_layer = 2,
     .block = 4,
     .mask = 11,
     .window = 6,
     .has_head_norms = true,
     .n_streams = 2,
     .streams = {1, 2}},
};
enum { N_FILES = sizeof files / sizeof *files };

typedef struct LayerWeights {
    float *norm, *q, *k, *v, *o, *q_norm, *k_norm, *sinks, *ffn_norm, *gate, *up, *down;
    float *q_bias, *k_bias, *v_bias, *o_bias;
    float *kernels[2], *base[2]; /* of the convolutions around attention and the feed-forward part */
} LayerWeights;

typedef struct FileWeights {
    const File *file;
    LearnedRig rig;
    Rope rope;
    LayerWeights layers[MAX_LAYERS];
    float *fc, *context_norm, *output_norm, *output, *embedding;
    float *before, *markov, *confidence, *confidence_bias; /* [V][rank], [n_tokens][rank], [n_confident], [1] */
    float *gate, *gate_bias;                               /* [rank][H + rank], [rank] */
    float *joint, *joint_bias;                             /* [3 rank][2 rank + H], [3 rank] */
    float *predecessor, *successor, *selector_hidden;      /* [V][selector], [V][selector], [selector][H] */
    int64_t map[V];
} FileWeights;
static FileWeights weights[N_FILES];

/* How many numbers the confidence head reads. */
static int32_t n_confident(const File *f) { return f->H + (f->is_narrow ? 0 : f->rank); }
static bool has_confidence(const File *f) { return f->rank || f->is_confident; }
static bool is_old(const File *f) { return f->layout == OLD || f->layout == LUCEBOX; }
static int32_t n_predicted(const File *f) { return f->from_anchor ? f->block : f->block - 1; }

/* ---- writing files -------------------------------------------------------------------------------------- */

/* The name of a key; old files have some of them after "dflash.". */
static const char *key_of(const File *f, const char *name, bool is_after_dflash) {
    static char key[128];
    const char *const prefixes[] = {"dflash.", "dflash-draft.", DRAFTER_KEY("dflash."), "qwen35-dflash-draft."};
    snprintf(key, sizeof key, "%s%s%s", prefixes[f->layout], is_old(f) && is_after_dflash ? "dflash." : "", name);
    return key;
}

static void set_int(const File *f, LearnedRig *r, const char *name, int32_t value) {
    gguf_set_u32(r->w, key_of(f, name, false), (uint32_t)value);
}

static void set_mask(const File *f, LearnedRig *r) {
    const char *key = f->layout == PUBLISHED ? "tokenizer.ggml.mask_token_id" : key_of(f, "mask_token_id", true);
    gguf_set_u32(r->w, key, (uint32_t)f->mask);
}

static void set_keys(const File *f, LearnedRig *r) {
    int32_t list[MAX_STREAMS], flags[] = {1, 0};
    for (int32_t i = 0; i < f->n_streams; i++) list[i] = f->streams[i] - is_old(f);
    set_int(f, r, "block_count", f->n_layer);
    set_int(f, r, "context_length", 2048);
    set_int(f, r, "embedding_length", f->H);
    set_int(f, r, "feed_forward_length", f->ff);
    set_int(f, r, "attention.head_count", f->n_head);
    set_int(f, r, "attention.head_count_kv", f->n_kv);
    set_int(f, r, "attention.key_length", f->dim);
    set_int(f, r, "attention.value_length", f->dim);
    gguf_set_f32(r->w, key_of(f, "rope.freq_base", false), 50000);
    gguf_set_f32(r->w, key_of(f, "attention.layer_norm_rms_epsilon", false), 1e-6f);
    gguf_set_u32(r->w, key_of(f, "block_size", true), (uint32_t)f->block);
    gguf_set_i32s(r->w, key_of(f, is_old(f) ? "target_layer_ids" : "target_layers", true), list, f->n_streams);
    if (f->layout == OLD) gguf_set_u32(r->w, key_of(f, "n_target_features", true), (uint32_t)(f->n_streams * T));
    if (f->layout == OLD) gguf_set_bool(r->w, key_of(f, "attention.causal", false), false);
    if (f->layout == PUBLISHED) /* of a target with M-RoPE: the position in the text only */
        gguf_set_i32s(r->w, "dflash.rope.dimension_sections", (int32_t[]){f->dim / 2, 0, 0, 0}, 4);
    if (f->layout == LUCEBOX) gguf_set_u32(r->w, key_of(f, "n_target_layers", true), (uint32_t)f->n_streams);
    if (f->layout == LUCEBOX) set_int(f, r, "vocab_size", V);
    if (f->is_causal) gguf_set_bool(r->w, key_of(f, "attention.causal", false), true);
    if (f->from_anchor && !f->rank) gguf_set_bool(r->w, key_of(f, "sample_from_anchor", false), true);
    if (f->taps) set_int(f, r, "conv_kernel_size", f->taps);
    if (f->taps) set_int(f, r, "conv_group_size", f->group);
    if (f->selector) set_int(f, r, "selector_rank", f->selector);
    if (f->selector) set_int(f, r, "selector_top_k", f->selector_top);
    if (f->layout == PUBLISHED && f->rank) gguf_set_bool(r->w, "dflash.has_confidence_head", true);
    if (f->windows_are_causal) gguf_set_bool(r->w, key_of(f, "attention.causal_window", false), true);
    if (f->embedding_scale > 0) gguf_set_f32(r->w, key_of(f, "embedding_scale", false), f->embedding_scale);
    if (f->logit_scale > 0) gguf_set_f32(r->w, key_of(f, "logit_scale", false), f->logit_scale);
    if (f->cap > 0) gguf_set_f32(r->w, key_of(f, "final_logit_softcapping", false), f->cap);
    if (f->window) set_int(f, r, "attention.sliding_window", f->window);
    if (f->window) gguf_set_i32s(r->w, key_of(f, "attention.sliding_window_pattern", false), flags, f->n_layer);
}

static float *add_to_layer(FileWeights *w, int32_t i, const char *name, TensorType type, int64_t n_in, int64_t n_out,
                           double std) {
    char full[64];
    snprintf(full, sizeof full, "blk.%d.%s.weight", i, name);
    return learned_rig_tensor(&w->rig, full, type, n_in, n_out, std);
}

/* Adds the convolution around part 0 (attention) or 1 (feed-forward) of a layer. */
static void add_conv(const File *f, FileWeights *w, int32_t i, int part) {
    LayerWeights *l = &w->layers[i];
    char name[64];
    l->kernels[part] = add_to_layer(w, i, part ? "ffn_conv_proj" : "attn_conv_proj", f->type, f->H,
                                    2 * f->taps * (f->H / f->group), 0.05);
    snprintf(name, sizeof name, "blk.%d.%s_conv_base", i, part ? "ffn" : "attn");
    l->base[part] = learned_rig_cube(&w->rig, name, f->H, f->taps, 2, 0.7);
}

static float *add_bias(FileWeights *w, int32_t i, const char *name, int64_t n) {
    char full[64];
    snprintf(full, sizeof full, "blk.%d.%s.bias", i, name);
    return learned_rig_tensor(&w->rig, full, TYPE_F32, n, 0, 1);
}

static void add_layer(const File *f, FileWeights *w, int32_t i) {
    LayerWeights *l = &w->layers[i];
    int32_t H = f->H, q = f->n_head * f->dim, kv = f->n_kv * f->dim;
    l->norm = add_to_layer(w, i, "attn_norm", TYPE_F32, H, 0, 1);
    l->q = add_to_layer(w, i, "attn_q", f->type, H, q, 0.2);
    l->k = add_to_layer(w, i, "attn_k", f->type, H, kv, 0.2);
    l->v = add_to_layer(w, i, "attn_v", f->type, H, kv, 0.2);
    l->o = add_to_layer(w, i, "attn_output", f->type, q, H, 0.2);
    if (f->has_head_norms) l->q_norm = add_to_layer(w, i, "attn_q_norm", TYPE_F32, f->dim, 0, 1);
    if (f->has_head_norms) l->k_norm = add_to_layer(w, i, "attn_k_norm", TYPE_F32, f->dim, 0, 1);
    if (f->has_biases) {
        l->q_bias = add_bias(w, i, "attn_q", q);
        l->k_bias = add_bias(w, i, "attn_k", kv);
        l->v_bias = add_bias(w, i, "attn_v", kv);
        l->o_bias = add_bias(w, i, "attn_output", H);
    }
    if (f->has_sinks) l->sinks = add_to_layer(w, i, "attn_sinks", TYPE_F32, f->n_head, 0, 1);
    l->ffn_norm = add_to_layer(w, i, f->layout == OLD ? "post_attention_norm" : "ffn_norm", TYPE_F32, H, 0, 1);
    l->gate = add_to_layer(w, i, "ffn_gate", f->type, H, f->ff, 0.1);
    l->up = add_to_layer(w, i, "ffn_up", f->type, H, f->ff, 0.1);
    l->down = add_to_layer(w, i, "ffn_down", f->type, f->ff, H, 0.1);
    for (int part = 0; f->taps && part < 2; part++) add_conv(f, w, i, part);
}

static void add_tensors(const File *f, FileWeights *w) {
    LearnedRig *r = &w->rig;
    static const char *const names[][2] = {[PUBLISHED] = {"fc.weight", "enc.output_norm.weight"},
                                           [OLD] = {"dflash_fc.weight", "dflash_hidden_norm.weight"},
                                           [OWN] = {"fc.weight", "enc.output_norm.weight"},
                                           [LUCEBOX] = {"dflash.fc.weight", "dflash.hidden_norm.weight"}};
    w->fc = learned_rig_tensor(r, names[f->layout][0], f->type, f->n_streams * T, f->H, 0.05);
    w->context_norm = learned_rig_tensor(r, names[f->layout][1], TYPE_F32, f->H, 0, 1);
    for (int32_t i = 0; i < f->n_layer; i++) add_layer(f, w, i);
    w->output_norm = learned_rig_tensor(r, "output_norm.weight", TYPE_F32, f->H, 0, 1);
    if (f->n_tokens) w->output = learned_rig_tensor(r, "output.weight", f->type, f->H, f->n_tokens, 0.3);
    if (f->has_embedding) w->embedding = learned_rig_tensor(r, "token_embd.weight", f->type, f->H, V, 1);
    if (f->n_tokens) gguf_add_map(r->w, w->map, f->n_tokens);
    if (f->selector) {
        w->predecessor = learned_rig_tensor(r, "selector_predecessor.weight", f->type, f->selector, V, 1);
        w->successor = learned_rig_tensor(r, "selector_successor.weight", f->type, f->selector, V, 0.5);
        w->selector_hidden = learned_rig_tensor(r, "selector_hidden.weight", f->type, f->H, f->selector, 0.1);
    }
    if (has_confidence(f)) w->confidence = learned_rig_tensor(r, "conf_proj.weight", TYPE_F32, n_confident(f), 1, 0.2);
    if (has_confidence(f)) w->confidence_bias = learned_rig_tensor(r, "conf_proj.bias", TYPE_F32, 1, 0, 1);
    if (f->rank == 0) return;
    w->before = learned_rig_tensor(r, "markov_w1.weight", f->type, f->rank, V, 1);
    w->markov = learned_rig_tensor(r, "markov_w2.weight", f->type, f->rank, f->n_tokens, 1);
    if (f->is_gated) {
        w->gate = learned_rig_tensor(r, "markov_gate.weight", TYPE_F32, f->H + f->rank, f->rank, 0.3);
        w->gate_bias = learned_rig_tensor(r, "markov_gate.bias", TYPE_F32, f->rank, 0, 1);
    }
    if (f->is_recurrent) {
        w->joint = learned_rig_tensor(r, "markov_joint.weight", TYPE_F32, 2 * f->rank + f->H, 3 * f->rank, 0.3);
        w->joint_bias = learned_rig_tensor(r, "markov_joint.bias", TYPE_F32, 3 * f->rank, 0, 1);
    }
}

/* Begins a file of that layout, without keys and tensors of its own. */
static void begin_file(FileWeights *w, const File *f, uint64_t seed) {
    LearnedRig *r = &w->rig;
    w->file = f;
    learned_rig_begin(r, "dflash", target, seed);
    for (int32_t i = 0; i < f->n_tokens; i++) w->map[i] = (7 * i + 5) % V;
    if (f->layout == OWN) return;
    const char *name = f->layout == OLD ? "dflash-draft" : f->layout == LUCEBOX ? "qwen35-dflash-draft" : "dflash";
    gguf_writer_free(r->w);
    r->w = gguf_writer_new();
    gguf_set_string(r->w, "general.architecture", name, strlen(name));
}

static void write_drafter(FileWeights *w, const File *f) {
    begin_file(w, f, 60 + (uint64_t)(f - files));
    set_keys(f, &w->rig);
    set_mask(f, &w->rig);
    add_tensors(f, w);
    const RopeParams rope = {.style = ROPE_HALVES, .n_rot = f->dim, .base = 50000, .factor = 1, .magnitude = 1};
    fr_error err;
    if (rope_init(&w->rope, &rope, NULL, &err)) fail_msg("%s", err.message);
    learned_rig_write(&w->rig, f->path);
}

static float *all_rows(const GgufTensor *t) {
    float *x = malloc(sizeof *x * V * T);
    blocks_dequantize(t->type, t->data, V * T, x);
    return x;
}

static int open_all(void **state) {
    (void)state;
    learned_rig_write_target(TARGET, 7);
    target_gguf = rig_gguf(TARGET);
    target = rig_weights(target_gguf, NULL);
    embeddings = all_rows(gguf_find_tensor(target_gguf, "token_embd.weight"));
    output = all_rows(gguf_find_tensor(target_gguf, "output.weight"));
    for (int i = 0; i < N_FILES; i++) write_drafter(&weights[i], &files[i]);
    return 0;
}

static int close_all(void **state) {
    (void)state;
    for (int i = 0; i < N_FILES; i++) {
        learned_rig_free(&weights[i].rig);
        rope_free(&weights[i].rope);
    }
    free(embeddings);
    free(output);
    rig_weights_close(target);
    gguf_close(target_gguf);
    return 0;
}

/* ---- the layers in double precision ------------------------------------------------------------------ */

enum { MAX_KEYS = N_TEXT + MAX_BLOCK };

/* Makes the key and value of a state at a position. */
static void make_key(const FileWeights *w, const LayerWeights *l, const double *state, int32_t position, PlainKv *out) {
    const File *f = w->file;
    const PlainHeads heads = {f->n_head, f->n_kv, f->dim};
    learned_rig_linear(l->k, l->k_bias, state, f->H, f->n_kv * f->dim, out->k);
    learned_rig_linear(l->v, l->v_bias, state, f->H, f->n_kv * f->dim, out->v);
    for (int32_t h = 0; l->k_norm && h < f->n_kv; h++)
        plain_norm(l->k_norm, out->k + h * f->dim, f->dim, 1e-6, out->k + h * f->dim);
    plain_rotate_halves(&w->rope, out->k, f->n_kv, f->dim, position);
    plain_kv_round(out, heads);
    out->position = position;
}

/* Attention of one head of a row over keys [n]. */
static void attend(const FileWeights *w, const LayerWeights *l, int32_t head, const double *q, int32_t position,
                   const PlainKv *keys, int32_t n, bool has_window, double *out) {
    const File *f = w->file;
    int32_t at = head / (f->n_head / f->n_kv) * f->dim;
    double total = l->sinks ? exp((double)l->sinks[head]) : 0;
    memset(out, 0, (size_t)f->dim * sizeof *out);
    for (int32_t t = 0; t < n; t++) {
        double score = 0;
        bool is_causal = f->is_causal || (f->windows_are_causal && has_window);
        if (is_causal && keys[t].position > position) continue;
        if (has_window && keys[t].position <= position - f->window) continue;
        for (int32_t i = 0; i < f->dim; i++) score += q[i] * keys[t].k[at + i] / sqrt(f->dim);
        total += exp(score);
        for (int32_t i = 0; i < f->dim; i++) out[i] += exp(score) * keys[t].v[at + i];
    }
    for (int32_t i = 0; i < f->dim; i++) out[i] /= total;
}

/* Replaces the slots x of a block by their convolution `side`. The kernels are made of `normed`. */
static void convolve(const FileWeights *w, const LayerWeights *l, int part, int side, double normed[][MAX_H],
                     double x[][MAX_H]) {
    const File *f = w->file;
    int32_t n_groups = f->group ? f->H / f->group : 0;
    double kernels[2 * 3 * MAX_H], out[MAX_BLOCK][MAX_H] = {{0}};
    if (f->taps == 0) return;
    for (int32_t i = 0; i < f->block; i++) {
        learned_rig_linear(l->kernels[part], NULL, normed[i], f->H, 2 * f->taps * n_groups, kernels);
        for (int32_t t = 0; t < f->taps && t <= i; t++)
            for (int32_t c = 0; c < f->H; c++) {
                int32_t tap = side * f->taps + t;
                out[i][c] += ((double)l->base[part][tap * f->H + c] + kernels[tap * n_groups + c / f->group]) *
                             x[i - t][c];
            }
    }
    memcpy(x, out, (size_t)f->block * sizeof *out);
}

static void run_layer(const FileWeights *w, const LayerWeights *l, double g[][MAX_H], int32_t n, bool has_window,
                      double x[][MAX_H]) {
    const File *f = w->file;
    static PlainKv keys[MAX_KEYS];
    int32_t H = f->H, n_q = f->n_head * f->dim;
    double normed[MAX_BLOCK][MAX_H], in[MAX_BLOCK][MAX_H], y[MAX_BLOCK][MAX_H], q[MAX_H], attended[MAX_H];
    for (int32_t t = 0; t < n; t++) make_key(w, l, g[t], t, &keys[t]);
    for (int32_t i = 0; i < f->block; i++) plain_norm(l->norm, x[i], H, 1e-6, normed[i]);
    memcpy(in, normed, sizeof in);
    convolve(w, l, 0, 0, normed, in);
    for (int32_t i = 0; i < f->block; i++) make_key(w, l, in[i], n + i, &keys[n + i]);
    for (int32_t i = 0; i < f->block; i++) {
        learned_rig_linear(l->q, l->q_bias, in[i], H, n_q, q);
        for (int32_t h = 0; l->q_norm && h < f->n_head; h++)
            plain_norm(l->q_norm, q + h * f->dim, f->dim, 1e-6, q + h * f->dim);
        plain_rotate_halves(&w->rope, q, f->n_head, f->dim, n + i);
        for (int32_t h = 0; h < f->n_head; h++)
            attend(w, l, h, q + h * f->dim, n + i, keys, n + f->block, has_window, attended + h * f->dim);
        learned_rig_linear(l->o, l->o_bias, attended, n_q, H, y[i]);
    }
    convolve(w, l, 0, 1, normed, y);
    for (int32_t i = 0; i < f->block; i++) {
        for (int32_t c = 0; c < H; c++) x[i][c] += y[i][c];
        plain_norm(l->ffn_norm, x[i], H, 1e-6, normed[i]);
    }
    memcpy(in, normed, sizeof in);
    convolve(w, l, 1, 0, normed, in);
    for (int32_t i = 0; i < f->block; i++)
        plain_feed_forward((PlainFeedForward){l->gate, l->up, l->down, H, f->ff}, in[i], y[i]);
    convolve(w, l, 1, 1, normed, y);
    for (int32_t i = 0; i < f->block; i++)
        for (int32_t c = 0; c < H; c++) x[i][c] += y[i][c];
}

/* What the layers give for a position: the state after the final norm, and the logits of the drafter's head. */
typedef struct Position {
    double hidden[MAX_H], logits[V];
} Position;

/* Leaves only the candidates of the selector among the logits of all tokens, with their scores after a token. */
static void select_after(const FileWeights *w, const double *hidden, int32_t before, double *all) {
    const File *f = w->file;
    int32_t tokens[16], n = f->selector;
    double gate[16], scores[16];
    learned_rig_best_tokens(all, V, f->selector_top, tokens);
    learned_rig_linear(w->selector_hidden, NULL, hidden, f->H, n, gate);
    for (int32_t i = 0; i < f->selector_top; i++) {
        scores[i] = all[tokens[i]];
        for (int32_t r = 0; r < n; r++)
            scores[i] += (double)w->predecessor[before * n + r] * gate[r] * (double)w->successor[tokens[i] * n + r];
    }
    for (int32_t i = 0; i < V; i++) all[i] = -1e9;
    for (int32_t i = 0; i < f->selector_top; i++) all[tokens[i]] = scores[i];
    learned_rig_log_softmax(all, V);
}

enum { MAX_RANK = 8 };

/* Replaces the vector of a token by what a recurrent head makes of it, and its state [rank] by the next one. */
static void run_recurrence(const FileWeights *w, const double *hidden, double *vector, double *state) {
    int32_t r = w->file->rank;
    double in[2 * MAX_RANK + MAX_H], out[3 * MAX_RANK];
    memcpy(in, state, (size_t)r * sizeof *in);
    memcpy(in + r, vector, (size_t)r * sizeof *in);
    memcpy(in + 2 * r, hidden, (size_t)w->file->H * sizeof *in);
    learned_rig_linear(w->joint, w->joint_bias, in, 2 * r + w->file->H, 3 * r, out);
    for (int32_t i = 0; i < r; i++) {
        double kept = 1 / (1 + exp(-out[i]));
        state[i] = kept * state[i] + (1 - kept) * tanh(out[r + i]);
        vector[i] = tanh(out[2 * r + i]);
    }
}

/* Finds log p of the `top` most probable tokens of a position after a token, best first. The state of a recurrent head
 * becomes the one after the token. */
static void find_children(const FileWeights *w, const Position *p, int32_t before, int32_t top, int32_t *tokens,
                          double *log_p, double *recurrent_state) {
    const File *f = w->file;
    int32_t D = f->n_tokens ? f->n_tokens : V;
    double own[V], all[V], bias[V] = {0}, vector[32], gates[32], gated[32], state[MAX_H + 32];
    for (int32_t i = 0; i < f->rank; i++) gated[i] = vector[i] = (double)w->before[before * f->rank + i];
    if (f->is_gated) {
        memcpy(state, p->hidden, (size_t)f->H * sizeof *state);
        memcpy(state + f->H, vector, (size_t)f->rank * sizeof *state);
        learned_rig_linear(w->gate, w->gate_bias, state, f->H + f->rank, f->rank, gates);
        for (int32_t i = 0; i < f->rank; i++) gated[i] /= 1 + exp(-gates[i]);
    }
    if (f->is_recurrent) run_recurrence(w, p->hidden, gated, recurrent_state);
    if (f->rank) learned_rig_linear(w->markov, NULL, gated, f->rank, D, bias);
    for (int32_t i = 0; i < D; i++) own[i] = p->logits[i] + bias[i];
    learned_rig_log_softmax(own, D);
    for (int32_t i = 0; i < V; i++) all[i] = -1e9;
    for (int32_t i = 0; i < D; i++) all[f->n_tokens ? w->map[i] : i] = own[i];
    if (f->selector) select_after(w, p->hidden, before, all);
    learned_rig_best_tokens(all, V, top, tokens);
    for (int32_t i = 0; i < top; i++) log_p[i] = all[tokens[i]];
    if (!has_confidence(f)) return;
    double z = (double)w->confidence_bias[0], first = exp(log_p[0]);
    for (int32_t i = 0; i < f->H; i++) z += (double)w->confidence[i] * p->hidden[i];
    for (int32_t i = f->H; i < n_confident(f); i++) z += (double)w->confidence[i] * vector[i - f->H];
    double chance = 1 / (1 + exp(-z)), factor = chance < first ? chance / first : (1 - chance) / (1 - first);
    log_p[0] = log(chance);
    for (int32_t i = 1; i < top; i++) log_p[i] += log(factor);
}

/* Computes each position after a text of n tokens, whose last one is pending. */
static void predict(const FileWeights *w, const int32_t *text, int32_t n, Position out[MAX_BLOCK]) {
    const File *f = w->file;
    static double streams[N_TEXT][N_KEPT][T], g[N_TEXT][MAX_H], x[MAX_BLOCK][MAX_H];
    learned_rig_read_streams(target, text, n, streams[0][0]);
    for (int32_t t = 0; t < n - 1; t++) {
        double all[MAX_STREAMS * T];
        for (int32_t k = 0; k < f->n_streams; k++) memcpy(all + k * T, streams[t][f->streams[k]], sizeof streams[t][0]);
        learned_rig_linear(w->fc, NULL, all, f->n_streams * T, f->H, g[t]);
        plain_norm(w->context_norm, g[t], f->H, 1e-6, g[t]);
    }
    double scale = f->layout == OWN ? (double)target->model->hparams.embedding_scale : 1,
           logit_scale = f->logit_scale > 0 ? (double)f->logit_scale : 1,
           cap = f->n_tokens ? 0 : (double)target->model->hparams.logit_cap;
    if (f->embedding_scale > 0) scale = (double)f->embedding_scale;
    if (f->cap > 0) cap = (double)f->cap;
    for (int32_t i = 0; i < f->block; i++)
        for (int32_t c = 0; c < f->H; c++)
            x[i][c] = scale *
                      (double)(f->has_embedding ? w->embedding : embeddings)[(i ? f->mask : text[n - 1]) * f->H + c];
    for (int32_t i = 0; i < f->n_layer; i++) run_layer(w, &w->layers[i], g, n - 1, f->window && i == 0, x);
    for (int32_t i = 0; i < n_predicted(f); i++) {
        plain_norm(w->output_norm, x[i + !f->from_anchor], f->H, 1e-6, out[i].hidden);
        learned_rig_linear(f->n_tokens ? w->output : output, NULL, out[i].hidden, f->H, f->n_tokens ? f->n_tokens : V,
                           out[i].logits);
        for (int32_t k = 0; k < V; k++) out[i].logits[k] *= logit_scale;
        for (int32_t k = 0; cap > 0 && k < V; k++) out[i].logits[k] = cap * tanh(out[i].logits[k] / cap);
    }
}

/* ---- trees -------------------------------------------------------------------------------------------- */

enum { MAX_TOP = 16, MAX_TREE = 256 };

/* The `budget` paths of greatest product among the first `top` tokens of each node, with a place for the tokens of
 * every node. */
static void plain_tree(const FileWeights *w, const Position *positions, int32_t depth, int32_t top, int32_t budget,
                       int32_t pending, Tree *out) {
    static int32_t tokens[MAX_TREE][MAX_TOP];
    static double log_p[MAX_TREE][MAX_TOP], states[MAX_TREE][MAX_RANK];
    int32_t n_children[MAX_TREE] = {0};
    double sums[MAX_TREE] = {0};
    assert_true(budget < MAX_TREE && top <= MAX_TOP);
    if (w->file->selector && w->file->selector_top < top) top = w->file->selector_top;
    tree_reset(out, pending);
    memset(states[0], 0, sizeof states[0]);
    find_children(w, &positions[0], pending, top, tokens[0], log_p[0], states[0]);
    while (out->n <= budget) {
        int32_t best = -1;
        double best_sum = -INFINITY;
        for (int32_t i = 0; i < out->n; i++) {
            if (out->nodes[i].depth == depth || n_children[i] == top) continue;
            double sum = sums[i] + log_p[i][n_children[i]];
            if (sum > best_sum) best = i, best_sum = sum;
        }
        if (best < 0) return;
        int32_t child = tree_add(out, best, tokens[best][n_children[best]++], (float)exp(best_sum), 0);
        sums[child] = best_sum;
        int32_t at = out->nodes[child].depth;
        memcpy(states[child], states[best], sizeof states[0]);
        if (at < depth)
            find_children(w, &positions[at], out->nodes[child].token, top, tokens[child], log_p[child], states[child]);
    }
}

static void trees_are_those_of_the_plain_layers(void **state) {
    (void)state;
    static const struct { int32_t depth, top; } shapes[] = {{1, 4}, {0, 1}, {3, 3}, {0, 10}};
    static const int32_t budgets[] = {60, 2, 17};
    static Position positions[MAX_BLOCK];
    static Tree want[3];
    LearnedReader reader;
    learned_rig_open_reader(&reader, target);
    for (int f = 0; f < N_FILES; f++)
        for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) {
            char spec[128];
            int32_t depth = shapes[k].depth ? shapes[k].depth : n_predicted(&files[f]);
            snprintf(spec, sizeof spec, "dflash:file=%s,depth=%d,top=%d", files[f].path, shapes[k].depth,
                     shapes[k].top);
            Drafter *d = learned_rig_open_drafter(&reader, spec, 4);
            for (int32_t i = 0; i < 3; i++) {
                int32_t text[N_TEXT], n = N_TEXT - 2 * i;
                rig_tokens(50 + (uint64_t)i, V, text, n);
                learned_rig_feed(&reader, d, i + 1, text, n, 3 + i);
                predict(&weights[f], text, n, positions);
                plain_tree(&weights[f], positions, depth, shapes[k].top, budgets[i], text[n - 1], &want[i]);
            }
            learned_rig_check_proposals(d, want, budgets, V, spec);
            drafter_close(d);
        }
    learned_rig_close_reader(&reader);
}

/* Compares a proposal with the plain layers, for a target in the backend that computes in double precision. All chances
 * are computed from all logits of all slots. */
static void check_numbers(const Weights *exact, int f, int32_t top) {
    static Position positions[MAX_BLOCK];
    static Tree want, got;
    int32_t text[N_TEXT];
    LearnedReader reader;
    char spec[128];
    rig_tokens(77, V, text, N_TEXT);
    learned_rig_open_reader(&reader, exact);
    snprintf(spec, sizeof spec, "dflash:file=%s,top=%d", files[f].path, top);
    Drafter *d = learned_rig_open_drafter(&reader, spec, 1);
    learned_rig_feed(&reader, d, 0, text, N_TEXT, 4);
    rig_propose(d, 0, text[N_TEXT - 1], 200, V, &got);
    predict(&weights[f], text, N_TEXT, positions);
    plain_tree(&weights[f], positions, n_predicted(&files[f]), top, 200, text[N_TEXT - 1], &want);
    assert_int_equal(got.n, 1 + (top == 1 ? n_predicted(&files[f]) : 200));
    learned_rig_assert_alike(&want, &got, 1e-5, spec);
    drafter_close(d);
    learned_rig_close_reader(&reader);
}

static void one_forward_has_the_numbers_of_the_plain_layers(void **state) {
    (void)state;
    Weights *exact = rig_weights_in(&backend_reference, target_gguf), *fast = target;
    target = exact;
    for (int f = 0; f < N_FILES; f++) {
        check_numbers(exact, f, 1);
        check_numbers(exact, f, MAX_TOP);
    }
    target = fast;
    rig_weights_close(exact);
}

/* Gemma multiplies its embeddings by a number and caps its logits. Published drafters read the rows of the target's
 * embedding as they are, unless their file has a scale. */
static void the_head_is_scaled_as_the_targets_and_the_embedding_as_the_file_says(void **state) {
    (void)state;
    Gguf *g = rig_random_gguf(&(RandomModel){.arch = "gemma2",
                                             .n_layer = 2,
                                             .n_embd = T,
                                             .n_head = 4,
                                             .n_head_kv = 2,
                                             .n_ff = 96,
                                             .n_vocab = V,
                                             .seed = 12});
    Weights *exact = rig_weights_in(&backend_reference, g), *fast = target;
    float *own_embeddings = embeddings, *own_output = output;
    target = exact;
    embeddings = all_rows(gguf_find_tensor(g, "token_embd.weight"));
    output = all_rows(gguf_find_tensor(g, "output.weight"));
    assert_true(exact->model->hparams.embedding_scale > 1 && exact->model->hparams.logit_cap > 0);
    check_numbers(exact, 0, 1);
    check_numbers(exact, 0, MAX_TOP);
    free(embeddings);
    free(output);
    target = fast, embeddings = own_embeddings, output = own_output;
    rig_weights_close(exact);
    gguf_close(g);
}

static void a_step_leads_where_the_prompt_leads(void **state) {
    (void)state;
    for (int i = 0; i < N_FILES; i++) {
        char spec[64];
        snprintf(spec, sizeof spec, "dflash:file=%s", files[i].path);
        learned_rig_check_step(target, spec);
    }
}

static void idle_steps_leave_whole_entries(void **state) {
    (void)state;
    learned_rig_check_idle(target, "dflash:file=build/dflash-0.gguf");
}

static void sequences_draft_together_as_each_by_itself(void **state) {
    (void)state;
    learned_rig_check_together(target, "dflash:file=build/dflash-0.gguf,top=4");
    learned_rig_check_together(target, "dflash:file=build/dflash-1.gguf,depth=2,top=3");
    learned_rig_check_together(target, "dflash:file=build/dflash-3.gguf,top=4");
    learned_rig_check_together(target, "dflash:file=build/dflash-6.gguf,top=4");
    learned_rig_check_together(target, "dflash:file=build/dflash-10.gguf,top=4");
}

static void the_text_is_the_plain_one(void **state) {
    (void)state;
    learned_rig_check_lossless(TARGET, "dflash:file=build/dflash-0.gguf,top=5");
    learned_rig_check_lossless(TARGET, "dflash:file=build/dflash-3.gguf,top=4");
    learned_rig_check_lossless(TARGET, "dflash:file=build/dflash-6.gguf");
    learned_rig_check_lossless(TARGET, "dflash:file=build/dflash-7.gguf");
    learned_rig_check_lossless(TARGET, "dflash:file=build/dflash-9.gguf");
    learned_rig_check_lossless(TARGET, "dflash:file=build/dflash-10.gguf");
}

/* ---- files that do not fit ------------------------------------------------------------------------------ */

/* Returns the streams that the drafter asks for. */
static KeptLayers kept_by(const char *spec) {
    LearnedReader reader;
    learned_rig_open_reader(&reader, target);
    drafter_close(learned_rig_open_drafter(&reader, spec, 1));
    learned_rig_close_reader(&reader);
    return reader.kept;
}

/* layers=outputs reads the streams after the layers that the list names; the older layout counts in this way itself. */
static void lists_of_layers_are_read_as_they_count(void **state) {
    (void)state;
    KeptLayers kept = kept_by("dflash:file=build/dflash-0.gguf");
    assert_true(kept.n == 2 && kept.after[0] == 1 && kept.after[1] == 2);
    kept = kept_by("dflash:file=build/dflash-1.gguf");
    assert_true(kept.n == 1 && kept.after[0] == 2); /* the file has 1 */
    learned_rig_check_refused(target, "dflash:file=build/dflash-0.gguf,layers=outputs", FR_ERR_ARGUMENT,
                              "layers=outputs");
}

/* Writes the published file with one fault, and expects an error with these words. */
static void refuse(void (*spoil)(File *f, FileWeights *w), fr_code code, const char *words) {
    static FileWeights w;
    File f = files[0];
    w = (FileWeights){.file = &f};
    begin_file(&w, &f, 5);
    spoil(&f, &w);
    set_keys(&f, &w.rig);
    if (f.mask >= 0) set_mask(&f, &w.rig);
    add_tensors(&f, &w);
    learned_rig_write(&w.rig, BROKEN);
    learned_rig_check_refused(target, "dflash:file=" BROKEN, code, words);
    learned_rig_free(&w.rig);
}

static void spoil_layer(File *f, FileWeights *w) { (void)w, f->streams[1] = 3; }
static void spoil_block(File *f, FileWeights *w) { (void)w, f->block = 1; }
static void spoil_mask(File *f, FileWeights *w) { (void)w, f->mask = V; }
static void spoil_no_mask(File *f, FileWeights *w) { (void)w, f->mask = -1; }
static void spoil_heads(File *f, FileWeights *w) { (void)w, f->n_kv = 3; }
static void spoil_width(File *f, FileWeights *w) { (void)w, f->H = 48; }
static void spoil_target(File *f, FileWeights *w) {
    (void)f;
    gguf_set_u32(w->rig.w, "dflash.target_hidden_size", 128);
}
static void spoil_window(File *f, FileWeights *w) {
    (void)f;
    gguf_set_u32(w->rig.w, "dflash.attention.sliding_window", 512);
}
static void spoil_group(File *f, FileWeights *w) { (void)w, f->taps = 2, f->group = 24; }
static void spoil_conv(File *f, FileWeights *w) {
    (void)f;
    gguf_set_u32(w->rig.w, "dflash.conv_kernel_size", 2);
    gguf_set_u32(w->rig.w, "dflash.conv_group_size", 16);
}
static void spoil_taps(File *f, FileWeights *w) {
    (void)f;
    gguf_set_u32(w->rig.w, "dflash.conv_group_size", 16);
}
static void spoil_base(File *f, FileWeights *w) {
    learned_rig_cube(&w->rig, "blk.0.attn_conv_base", f->H, 3, 2, 1);
    spoil_conv(f, w);
}
static void spoil_selector(File *f, FileWeights *w) {
    (void)f;
    gguf_set_u32(w->rig.w, "dflash.selector_top_k", 16);
}
static void spoil_tensor(File *f, FileWeights *w) {
    (void)f;
    learned_rig_tensor(&w->rig, "blk.0.ffn_gate.bias", TYPE_F32, 80, 0, 1);
}
static void spoil_rank(File *f, FileWeights *w) {
    (void)f;
    learned_rig_tensor(&w->rig, "markov_w1.weight", TYPE_F32, 8, V, 1);
    learned_rig_tensor(&w->rig, "markov_w2.weight", TYPE_F32, 4, V, 1);
}
static void spoil_markov(File *f, FileWeights *w) {
    (void)f;
    learned_rig_tensor(&w->rig, "markov_w1.weight", TYPE_F32, 8, V, 1);
    learned_rig_tensor(&w->rig, "markov_w2.weight", TYPE_F32, 8, V, 1);
    learned_rig_tensor(&w->rig, "markov_gate.weight", TYPE_F32, 72, 8, 1);
    learned_rig_tensor(&w->rig, "markov_joint.weight", TYPE_F32, 80, 24, 1);
}
static void spoil_confidence(File *f, FileWeights *w) {
    (void)f;
    learned_rig_tensor(&w->rig, "markov_w1.weight", TYPE_F32, 8, V, 1);
    learned_rig_tensor(&w->rig, "markov_w2.weight", TYPE_F32, 8, V, 1);
    learned_rig_tensor(&w->rig, "conf_proj.weight", TYPE_F32, 68, 1, 1);
}
static void spoil_narrow(File *f, FileWeights *w) {
    (void)f;
    learned_rig_tensor(&w->rig, "conf_proj.weight", TYPE_F32, 72, 1, 1);
}
/* A drafter of DeepSeek V4, whose layers are others and rotate pairs. */
static void spoil_connections(File *f, FileWeights *w) {
    (void)f;
    gguf_set_u32(w->rig.w, "dflash.hyper_connection.count", 4);
}
static void spoil_vocabulary(File *f, FileWeights *w) {
    (void)f;
    static const GgufString tokens[] = {{"a", 1}, {"b", 1}};
    gguf_set_strings(w->rig.w, "tokenizer.ggml.tokens", tokens, 2);
}

static void files_that_do_not_fit_are_refused(void **state) {
    (void)state;
    refuse(spoil_layer, FR_ERR_FORMAT, "target_layers has 3");
    refuse(spoil_block, FR_ERR_FORMAT, "block_size is 1");
    refuse(spoil_mask, FR_ERR_MISMATCH, "mask token 300");
    refuse(spoil_no_mask, FR_ERR_FORMAT, "mask_token_id is missing");
    refuse(spoil_heads, FR_ERR_FORMAT, "evenly");
    refuse(spoil_width, FR_ERR_FORMAT, "width of 48");
    refuse(spoil_target, FR_ERR_MISMATCH, "hidden states of 128 numbers");
    refuse(spoil_window, FR_ERR_FORMAT, "sliding_window_pattern");
    refuse(spoil_conv, FR_ERR_FORMAT, "blk.0.attn_conv_base is missing");
    refuse(spoil_taps, FR_ERR_FORMAT, "needs both conv_kernel_size and conv_group_size");
    refuse(spoil_group, FR_ERR_FORMAT, "groups of 24 channels");
    refuse(spoil_base, FR_ERR_FORMAT, "64 x 3 x 2 instead of 64 x 2 x 2");
    refuse(spoil_selector, FR_ERR_FORMAT,
           "only one of tensor selector_predecessor.weight and key dflash.selector_top_k");
    refuse(spoil_tensor, FR_ERR_UNSUPPORTED, "another version");
    refuse(spoil_rank, FR_ERR_FORMAT, "tensor markov_w2.weight has the wrong shape: 4 x 300 instead of 8 x 300");
    refuse(spoil_markov, FR_ERR_FORMAT, "a Markov head is gated or recurrent");
    refuse(spoil_confidence, FR_ERR_FORMAT, "tensor conf_proj.weight reads 68 numbers instead of 72");
    refuse(spoil_narrow, FR_ERR_FORMAT, "tensor conf_proj.weight reads 72 numbers instead of 64");
    refuse(spoil_connections, FR_ERR_UNSUPPORTED, "hyper_connection.count");
    refuse(spoil_vocabulary, FR_ERR_MISMATCH, "2 tokens");
    learned_rig_check_refused(target, "dflash:file=" TARGET, FR_ERR_MISMATCH,
                              "or one made by forerun import-drafter dflash");
    learned_rig_check_refused(target, "eagle3:file=build/dflash-1.gguf", FR_ERR_MISMATCH,
                              "use this one as dflash:file=");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trees_are_those_of_the_plain_layers),
        cmocka_unit_test(one_forward_has_the_numbers_of_the_plain_layers),
        cmocka_unit_test(the_head_is_scaled_as_the_targets_and_the_embedding_as_the_file_says),
        cmocka_unit_test(lists_of_layers_are_read_as_they_count),
        cmocka_unit_test(a_step_leads_where_the_prompt_leads),
        cmocka_unit_test(idle_steps_leave_whole_entries),
        cmocka_unit_test(sequences_draft_together_as_each_by_itself),
        cmocka_unit_test(the_text_is_the_plain_one),
        cmocka_unit_test(files_that_do_not_fit_are_refused),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}

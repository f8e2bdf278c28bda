/* test_draft_eagle3.c - unit tests of the drafter eagle3 with random weights: compares its trees with its layers in
 * double precision, each node or place of a block by itself over its own path, for files in the published layout and in
 * ours; steps with prompts; the text in the engine; and files that do not fit. */
#include "learned_rig.h"
#include "plain_layer.h"

#include "draft/learned/eagle_layer.h"
#include "gguf/tensor_type.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TARGET "build/eagle3-target.gguf"
#define OTHER "build/eagle3-other.gguf"
#define BROKEN "build/eagle3-broken.gguf"

enum { T = 64, V = 300, N_TEXT = 14, MAX_STREAMS = 3, MAX_H = 64, MAX_LAYERS = 3, MAX_BLOCK = 5 };

static Gguf *target_gguf;
static Weights *target;
static float *embeddings, *output; /* [V][T] */

/* The layouts. H is the layers' own width, n_tokens the size of their vocabulary, and 0 that of the target. n_more is
 * the number of layers after the first. block: P-EAGLE, with the mask token; 0: none. */
typedef struct File {
    const char *path;
    TensorType type;
    int32_t H, n_head, n_kv, dim, ff, n_tokens;
    bool is_published, has_output, has_embedding, norms_before_fc, norms_each, keeps_normed, continues_normed;
    bool has_rope_factors, has_head_vectors; /* biases of attention, and norms of heads of q and k */
    bool is_gemma;                           /* layers of Gemma 4's form */
    int32_t n_more, n_named, block, mask; /* n_named: the number of layers that its key names; 0: as many as it has */
    int32_t n_streams, streams[MAX_STREAMS];
} File;

static const File files[] = {
    {.path = "build/eagle3-0.gguf",
     .type = TYPE_F32,
     .H = 64,
     .n_head = 4,
     .n_kv = 2,
     .dim = 16,
     .ff = 80,
     .n_tokens = 120,
     .is_published = true,
     .has_output = true,
     .n_streams = 3,
     .streams = {0, 1, 2}},
    {.path = "build/eagle3-1.gguf",
     .type = TYPE_F16,
     .H = 64,
     .n_head = 2,
     .n_kv = 1,
     .dim = 24,
     .ff = 64,
     .norms_before_fc = true,
     .keeps_normed = true,
     .has_rope_factors = true,
     .n_streams = 2,
     .streams = {2, 1}},
    {.path = "build/eagle3-2.gguf",
     .type = TYPE_F32,
     .H = 48,
     .n_head = 3,
     .n_kv = 3,
     .dim = 16,
     .ff = 80,
     .n_tokens = 200,
     .has_output = true,
     .has_embedding = true,
     .norms_each = true,
     .continues_normed = true,
     .n_streams = 3,
     .streams = {1, 0, 2}},
    {.path = "build/eagle3-3.gguf",
     .type = TYPE_F32,
     .H = 48,
     .n_head = 3,
     .n_kv = 1,
     .dim = 16,
     .ff = 64,
     .n_tokens = 150,
     .is_published = true,
     .has_output = true,
     .has_embedding = true,
     .n_more = 2,
     .n_streams = 2,
     .streams = {0, 2}},
    {.path = "build/eagle3-4.gguf",
     .type = TYPE_F32,
     .H = 64,
     .n_head = 4,
     .n_kv = 2,
     .dim = 16,
     .ff = 80,
     .n_tokens = 120,
     .is_published = true,
     .has_output = true,
     .norms_before_fc = true,
     .n_more = 1,
     .block = 5,
     .mask = 7,
     .n_streams = 3,
     .streams = {0, 1, 2}},
    {.path = "build/eagle3-5.gguf",
     .type = TYPE_F16,
     .H = 64,
     .n_head = 2,
     .n_kv = 1,
     .dim = 24,
     .ff = 64,
     .keeps_normed = true,
     .has_rope_factors = true,
     .block = 4,
     .mask = V - 1,
     .n_streams = 2,
     .streams = {2, 1}},
    {.path = "build/eagle3-6.gguf",
     .type = TYPE_F32,
     .H = 64,
     .n_head = 4,
     .n_kv = 2,
     .dim = 16,
     .ff = 64,
     .n_tokens = 150,
     .has_output = true,
     .has_head_vectors = true,
     .n_more = 1,
     .n_streams = 2,
     .streams = {1, 2}},
    {.path = "build/eagle3-7.gguf",
     .type = TYPE_F32,
     .H = 64,
     .n_head = 4,
     .n_kv = 2,
     .dim = 16,
     .ff = 64,
     .n_tokens = 150,
     .has_output = true,
     .has_rope_factors = true,
     .has_head_vectors = true,
     .is_gemma = true,
     .n_more = 1,
     .n_streams = 2,
     .streams = {1, 2}},
};
enum { N_FILES = sizeof files / sizeof *files };

typedef struct LayerWeights {
    float *attn_norm, *q, *k, *v, *o, *norm, *gate, *up, *down; /* attn_norm of the first layer: of the embedding */
    float *q_bias, *k_bias, *v_bias, *o_bias, *q_norm, *k_norm;
    float *post_attn_norm, *post_ffn_norm, *out_scale; /* of Gemma 4's form; NULL: another */
} LayerWeights;

typedef struct FileWeights {
    const File *file;
    LearnedRig rig;
    Rope rope;
    LayerWeights layers[MAX_LAYERS];
    float *fc, *stream_norm, *hidden_norm, *output_norm, *mask_hidden;
    float *output, *embedding, *factors;
    int64_t map[V];
} FileWeights;
static FileWeights weights[N_FILES];

static void set_int(const File *f, LearnedRig *r, const char *name, uint32_t value) {
    char key[96];
    snprintf(key, sizeof key, "%s%s", f->is_published ? "eagle3." : DRAFTER_KEY("eagle3."), name);
    gguf_set_u32(r->w, key, value);
}

static void set_bool(const File *f, LearnedRig *r, const char *name, bool value) {
    char key[96];
    snprintf(key, sizeof key, "%s%s", f->is_published ? "eagle3." : DRAFTER_KEY("eagle3."), name);
    if (value) gguf_set_bool(r->w, key, true);
}

static void set_keys(const File *f, LearnedRig *r) {
    char layers[96], base[96], eps[96];
    const char *prefix = f->is_published ? "eagle3." : DRAFTER_KEY("eagle3.");
    snprintf(layers, sizeof layers, "%s%s", prefix, f->is_published ? "extract_layers" : "target_layers");
    snprintf(base, sizeof base, "%srope.freq_base", prefix);
    snprintf(eps, sizeof eps, "%sattention.layer_norm_rms_epsilon", prefix);
    set_int(f, r, "block_count", (uint32_t)(f->n_named ? f->n_named : 1 + f->n_more));
    if (f->block) set_int(f, r, "block_size", (uint32_t)f->block);
    if (f->block && f->mask >= 0) set_int(f, r, "mask_token_id", (uint32_t)f->mask);
    set_int(f, r, "context_length", 2048);
    set_int(f, r, "embedding_length", (uint32_t)f->H);
    set_int(f, r, "feed_forward_length", (uint32_t)f->ff);
    set_int(f, r, "attention.head_count", (uint32_t)f->n_head);
    set_int(f, r, "attention.head_count_kv", (uint32_t)f->n_kv);
    set_int(f, r, "attention.key_length", (uint32_t)f->dim);
    set_int(f, r, "attention.value_length", (uint32_t)f->dim);
    set_int(f, r, "rope.dimension_count", (uint32_t)f->dim);
    set_int(f, r, "target_hidden_size", T);
    gguf_set_i32s(r->w, layers, f->streams, f->n_streams);
    gguf_set_f32(r->w, base, 50000);
    gguf_set_f32(r->w, eps, 1e-6f);
    if (f->is_gemma) gguf_set_f32(r->w, DRAFTER_KEY("eagle3.attention.scale"), 1);
    set_bool(f, r, "norm_before_fc", f->norms_before_fc);
    set_bool(f, r, "norm_each_stream", f->norms_each);
    set_bool(f, r, "norm_before_residual", f->keeps_normed);
    set_bool(f, r, "norm_output", f->continues_normed);
}

static float *add_of_layer(const File *f, FileWeights *w, int32_t i, const char *what, int32_t n_in, int32_t n_out,
                           double std) {
    char name[64];
    snprintf(name, sizeof name, "blk.%d.%s.weight", (int)i, what);
    return learned_rig_tensor(&w->rig, name, n_out ? f->type : TYPE_F32, n_in, n_out, std);
}

static void add_head_vectors(const File *f, FileWeights *w, int32_t i) {
    LayerWeights *l = &w->layers[i];
    const struct {
        const char *name;
        int32_t n;
        float **out;
    } vectors[] = {{"attn_q.bias", f->n_head * f->dim, &l->q_bias}, {"attn_k.bias", f->n_kv * f->dim, &l->k_bias},
                   {"attn_v.bias", f->n_kv * f->dim, &l->v_bias},   {"attn_output.bias", f->H, &l->o_bias},
                   {"attn_q_norm.weight", f->dim, &l->q_norm},      {"attn_k_norm.weight", f->dim, &l->k_norm}};
    for (size_t k = 0; k < sizeof vectors / sizeof *vectors; k++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%d.%s", (int)i, vectors[k].name);
        *vectors[k].out = learned_rig_tensor(&w->rig, name, TYPE_F32, vectors[k].n, 0, 1);
    }
}

static void add_layer(const File *f, FileWeights *w, int32_t i) {
    int32_t H = f->H, in = i ? H : 2 * H, q = f->n_head * f->dim, kv = f->n_kv * f->dim;
    w->layers[i] = (LayerWeights){.attn_norm = add_of_layer(f, w, i, "attn_norm", H, 0, 1),
                                  .q = add_of_layer(f, w, i, "attn_q", in, q, 0.1),
                                  .k = add_of_layer(f, w, i, "attn_k", in, kv, 0.1),
                                  .v = add_of_layer(f, w, i, "attn_v", in, kv, 0.1),
                                  .o = add_of_layer(f, w, i, "attn_output", q, H, 0.12),
                                  .norm = add_of_layer(f, w, i, "ffn_norm", H, 0, 1),
                                  .gate = add_of_layer(f, w, i, "ffn_gate", H, f->ff, 0.1),
                                  .up = add_of_layer(f, w, i, "ffn_up", H, f->ff, 0.1),
                                  .down = add_of_layer(f, w, i, "ffn_down", f->ff, H, 0.1)};
    if (f->has_head_vectors) add_head_vectors(f, w, i);
    if (!f->is_gemma) return;
    w->layers[i].post_attn_norm = add_of_layer(f, w, i, "post_attention_norm", H, 0, 1);
    w->layers[i].post_ffn_norm = add_of_layer(f, w, i, "post_ffw_norm", H, 0, 1);
    w->layers[i].out_scale = add_of_layer(f, w, i, "layer_output_scale", 1, 0, 1);
}

static void add_tensors(const File *f, FileWeights *w) {
    LearnedRig *r = &w->rig;
    int32_t H = f->H, D = f->n_tokens ? f->n_tokens : V;
    w->fc = learned_rig_tensor(r, "fc.weight", f->type, f->n_streams * T, H, 0.05);
    w->hidden_norm = learned_rig_tensor(r, "blk.0.attn_norm_2.weight", TYPE_F32, H, 0, 1);
    for (int32_t i = 0; i <= f->n_more; i++) add_layer(f, w, i);
    if (f->block) w->mask_hidden = learned_rig_tensor(r, "mask_hidden.weight", TYPE_F32, f->n_streams * T, 0, 1);
    w->output_norm = learned_rig_tensor(r, "output_norm.weight", TYPE_F32, H, 0, 1);
    if (f->norms_before_fc || f->norms_each)
        w->stream_norm = learned_rig_tensor(r, "enc.output_norm.weight", TYPE_F32, f->n_streams * T, 0, 1);
    if (f->has_output) w->output = learned_rig_tensor(r, "output.weight", f->type, H, D, 0.2);
    if (f->has_embedding) w->embedding = learned_rig_tensor(r, "token_embd.weight", f->type, H, V, 1);
    if (f->n_tokens) gguf_add_map(r->w, w->map, f->n_tokens);
}

/* Every third token and, from the end on, others: not in order. */
static void fill_map(FileWeights *w) {
    int32_t n = w->file->n_tokens;
    for (int32_t i = 0; i < n; i++) w->map[i] = (7 * i + 5) % V;
}

static void write_drafter(FileWeights *w, const File *f) {
    LearnedRig *r = &w->rig;
    w->file = f;
    learned_rig_begin(r, "eagle3", target, 30 + (uint64_t)(f - files));
    if (f->is_published) {
        gguf_writer_free(r->w);
        r->w = gguf_writer_new();
        gguf_set_string(r->w, "general.architecture", "eagle3", 6);
    }
    fill_map(w);
    set_keys(f, r);
    add_tensors(f, w);
    if (f->has_rope_factors) {
        w->factors = learned_rig_tensor(r, "rope_freqs.weight", TYPE_F32, f->dim / 2, 0, 0);
        for (int32_t i = 0; i < f->dim / 2; i++)
            w->factors[i] = ((float *)r->kept[r->n_kept - 1])[i] = 1 + (float)i / 4; /* an F32 tensor's bytes */
    }
    const RopeParams rope = {.style = ROPE_PAIRS, .n_rot = f->dim, .base = 50000, .factor = 1, .magnitude = 1};
    fr_error err;
    if (rope_init(&w->rope, &rope, w->factors, &err)) fail_msg("%s", err.message);
    learned_rig_write(r, f->path);
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

/* ---- the layers in double precision ----------------------------------------------------------------- */

/* An entry, a node of the tree, or a row of a block. */
typedef struct Place {
    double log_p[V], feature[MAX_H];
    PlainKv kv[MAX_LAYERS]; /* after the entry before, or the parent */
} Place;

static void find_logits(const FileWeights *w, const double *normed, double *log_p) {
    const File *f = w->file;
    int32_t D = f->n_tokens ? f->n_tokens : V;
    double own[V];
    learned_rig_linear(f->has_output ? w->output : output, NULL, normed, f->H, D, own);
    learned_rig_log_softmax(own, D);
    for (int32_t i = 0; i < V; i++) log_p[i] = -1e9;
    for (int32_t i = 0; i < D; i++) log_p[f->n_tokens ? w->map[i] : i] = own[i];
}

/* Adds what layer i makes of its input `in`, of n_in numbers, to the residual stream x. */
static void run_layer(const FileWeights *w, int32_t i, const double *in, int32_t n_in, PlainKv *kv, double *x) {
    const File *f = w->file;
    const LayerWeights *l = &w->layers[i];
    const PlainHeads heads = {f->n_head, f->n_kv, f->dim, f->is_gemma ? 1 : 0};
    static const float ones[] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    int32_t H = f->H, n_q = f->n_head * f->dim, n_kv = f->n_kv * f->dim;
    double y[MAX_H], q[MAX_H], attended[MAX_H];
    learned_rig_linear(l->q, l->q_bias, in, n_in, n_q, q);
    learned_rig_linear(l->k, l->k_bias, in, n_in, n_kv, kv->k);
    learned_rig_linear(l->v, l->v_bias, in, n_in, n_kv, kv->v);
    for (int32_t h = 0; l->q_norm && h < f->n_head; h++)
        plain_norm(l->q_norm, q + h * f->dim, f->dim, 1e-6, q + h * f->dim);
    for (int32_t h = 0; l->k_norm && h < f->n_kv; h++)
        plain_norm(l->k_norm, kv->k + h * f->dim, f->dim, 1e-6, kv->k + h * f->dim);
    for (int32_t h = 0; f->is_gemma && h < f->n_kv; h++)
        plain_norm(ones, kv->v + h * f->dim, f->dim, 1e-6, kv->v + h * f->dim);
    plain_rotate_pairs(&w->rope, q, f->n_head, f->dim, kv->position);
    plain_rotate_pairs(&w->rope, kv->k, f->n_kv, f->dim, kv->position);
    plain_kv_round(kv, heads);
    plain_attend(heads, kv, q, attended);
    learned_rig_linear(l->o, l->o_bias, attended, n_q, H, y);
    if (f->is_gemma) plain_norm(l->post_attn_norm, y, H, 1e-6, y);
    for (int32_t k = 0; k < H; k++) x[k] += y[k];
    plain_norm(l->norm, x, H, 1e-6, y);
    plain_feed_forward((PlainFeedForward){l->gate, l->up, l->down, H, f->ff, f->is_gemma}, y, y);
    if (f->is_gemma) plain_norm(l->post_ffn_norm, y, H, 1e-6, y);
    for (int32_t k = 0; k < H; k++) x[k] = (x[k] + y[k]) * (f->is_gemma ? (double)*l->out_scale : 1);
}

static void make_place(const FileWeights *w, const Place *before, int32_t token, const double *hidden, Place *out) {
    const File *f = w->file;
    int32_t H = f->H;
    double pair[2 * MAX_H], x[MAX_H], y[MAX_H];
    for (int32_t i = 0; i <= f->n_more; i++) plain_kv_begin(&out->kv[i], before ? &before->kv[i] : NULL);
    for (int32_t i = 0; i < H; i++)
        pair[i] = (double)(f->has_embedding ? w->embedding[token * H + i] : embeddings[token * H + i]);
    plain_norm(w->layers[0].attn_norm, pair, H, 1e-6, pair);
    plain_norm(w->hidden_norm, hidden, H, 1e-6, pair + H);
    for (int32_t i = 0; i < H; i++) x[i] = f->keeps_normed ? pair[H + i] : hidden[i];
    run_layer(w, 0, pair, 2 * H, &out->kv[0], x);
    for (int32_t i = 1; i <= f->n_more; i++) {
        plain_norm(w->layers[i].attn_norm, x, H, 1e-6, y);
        run_layer(w, i, y, H, &out->kv[i], x);
    }
    plain_norm(w->output_norm, x, H, 1e-6, y);
    memcpy(out->feature, f->continues_normed ? y : x, sizeof out->feature);
    find_logits(w, y, out->log_p);
}

/* Makes a place from streams, [n_streams][T], which are overwritten. */
static void make_place_of_streams(const FileWeights *w, const Place *before, int32_t token, double *streams,
                                  Place *out) {
    const File *f = w->file;
    double g[MAX_H];
    for (int32_t k = 0; k < f->n_streams && f->norms_each; k++)
        plain_norm(w->stream_norm + k * T, streams + k * T, T, 1e-6, streams + k * T);
    if (f->norms_before_fc) plain_norm(w->stream_norm, streams, f->n_streams * T, 1e-6, streams);
    learned_rig_linear(w->fc, NULL, streams, f->n_streams * T, f->H, g);
    make_place(w, before, token, g, out);
}

/* Makes an entry from the streams of the target after each number of layers, [3][T]. */
static void make_entry(const FileWeights *w, const Place *before, int32_t token, double streams[3][T], Place *out) {
    double all[MAX_STREAMS * T];
    for (int32_t k = 0; k < w->file->n_streams; k++)
        memcpy(all + k * T, streams[w->file->streams[k]], sizeof streams[0]);
    make_place_of_streams(w, before, token, all, out);
}

/* Makes the entries of a text, which are n - 1. */
static void make_entries(const FileWeights *w, const int32_t *text, int32_t n, Place *entries) {
    static double streams[N_TEXT][3][T];
    learned_rig_read_streams(target, text, n, streams[0][0]);
    for (int32_t t = 0; t < n - 1; t++) make_entry(w, t ? &entries[t - 1] : NULL, text[t + 1], streams[t], &entries[t]);
}

/* Makes the places of a block: the first one is the last entry. */
static void make_block(const FileWeights *w, const Place *last, Place *block) {
    block[0] = *last;
    for (int32_t i = 1; i < w->file->block; i++) {
        double streams[MAX_STREAMS * T];
        for (int32_t k = 0; k < w->file->n_streams * T; k++) streams[k] = (double)w->mask_hidden[k];
        make_place_of_streams(w, i > 1 ? &block[i - 1] : last, w->file->mask, streams, &block[i]);
    }
}

static void follow(const void *plain, const void *before, int32_t token, void *place) {
    make_place(plain, before, token, ((const Place *)before)->feature, place);
}

/* The best products of a block's predictions. */
static void find_products(const Place *block, int32_t depth, int32_t top, int32_t budget, int32_t pending, Tree *out) {
    double sums[TREE_MAX_NODES] = {0};
    int32_t n_children[TREE_MAX_NODES] = {0}, tokens[MAX_BLOCK][16];
    for (int32_t i = 0; i < depth; i++) learned_rig_best_tokens(block[i].log_p, V, top, tokens[i]);
    tree_reset(out, pending);
    while (out->n <= budget) {
        int32_t best = -1;
        double best_sum = -INFINITY;
        for (int32_t i = 0; i < out->n; i++) {
            int32_t at = out->nodes[i].depth;
            if (at == depth || n_children[i] == top) continue;
            double sum = sums[i] + block[at].log_p[tokens[at][n_children[i]]];
            if (sum > best_sum) best = i, best_sum = sum;
        }
        if (best < 0) return;
        int32_t token = tokens[out->nodes[best].depth][n_children[best]++];
        sums[tree_add(out, best, token, (float)exp(best_sum), 0)] = best_sum;
    }
}

/* Makes the tree that file f drafts after a text. */
static void plain_tree(int f, const int32_t *text, int32_t n, int32_t depth, int32_t top, int32_t budget, Tree *out) {
    static Place entries[N_TEXT], block[MAX_BLOCK];
    make_entries(&weights[f], text, n, entries);
    if (files[f].block) {
        make_block(&weights[f], &entries[n - 2], block);
        find_products(block, depth < files[f].block ? depth : files[f].block, top, budget, text[n - 1], out);
        return;
    }
    learned_rig_search(&(LearnedSearch){V, depth, top, budget, follow, sizeof(Place), &weights[f], &entries[n - 2]},
                       text[n - 1], out);
}

static void trees_are_those_of_the_plain_layers(void **state) {
    (void)state;
    static const struct { int32_t depth, top; } shapes[] = {{1, 4}, {4, 1}, {3, 3}, {0, 8}};
    static const int32_t budgets[] = {60, 2, 17};
    static Tree want[3];
    LearnedReader reader;
    learned_rig_open_reader(&reader, target);
    for (int f = 0; f < N_FILES; f++)
        for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) {
            char spec[128];
            snprintf(spec, sizeof spec, "eagle3:file=%s,depth=%d,top=%d", files[f].path, shapes[k].depth,
                     shapes[k].top);
            Drafter *d = learned_rig_open_drafter(&reader, spec, 4);
            for (int32_t i = 0; i < 3; i++) {
                int32_t text[N_TEXT], n = N_TEXT - 2 * i;
                rig_tokens(50 + (uint64_t)i, V, text, n);
                learned_rig_feed(&reader, d, i + 1, text, n, 3 + i);
                plain_tree(f, text, n, shapes[k].depth ? shapes[k].depth : 5, shapes[k].top, budgets[i], &want[i]);
            }
            learned_rig_check_proposals(d, want, budgets, V, spec);
            drafter_close(d);
        }
    learned_rig_close_reader(&reader);
}

static void expect_near(const char *spec, const char *what, int32_t i, double is, double want) {
    if (fabs(is - want) < 1e-5 * (1 + fabs(want))) return;
    fail_msg("%s: %s %d is %.9g instead of %.9g", spec, what, i, is, want);
}

static void expect_logits(int f, const char *what, const float *logits, const Place *want) {
    int32_t D = files[f].n_tokens ? files[f].n_tokens : V;
    double log_p[V];
    for (int32_t i = 0; i < D; i++) log_p[i] = (double)logits[i];
    learned_rig_log_softmax(log_p, D);
    for (int32_t i = 0; i < D; i++)
        expect_near(files[f].path, what, i, log_p[i], want->log_p[files[f].n_tokens ? weights[f].map[i] : i]);
}

/* The layers' output and logits for the last entry, and the logits of a block, in the backend that computes in double
 * precision. */
static void one_forward_has_the_numbers_of_the_plain_layers(void **state) {
    (void)state;
    static Place entries[N_TEXT], block[MAX_BLOCK];
    Weights *exact = rig_weights_in(&backend_reference, target_gguf), *fast = target;
    int32_t text[N_TEXT];
    rig_tokens(77, V, text, N_TEXT);
    target = exact;
    for (int f = 0; f < N_FILES; f++) {
        LearnedReader reader;
        Tree tree;
        char spec[128];
        learned_rig_open_reader(&reader, exact);
        snprintf(spec, sizeof spec, "eagle3:file=%s", files[f].path);
        Drafter *d = learned_rig_open_drafter(&reader, spec, 1);
        const Eagle *e = (const Eagle *)d;
        learned_rig_feed(&reader, d, 0, text, N_TEXT, 4);
        rig_propose(d, 0, text[N_TEXT - 1], 9, V, &tree);
        make_entries(&weights[f], text, N_TEXT, entries);
        const Place *last = &entries[N_TEXT - 2];
        const EntrySequence *s = &e->entries.sequences[0];
        assert_int_equal(e->entries.shape->n_vocab, files[f].n_tokens ? files[f].n_tokens : V);
        for (int32_t i = 0; i < files[f].H && !files[f].block; i++)
            expect_near(spec, "feature", i, (double)s->feature[i], last->feature[i]);
        expect_logits(f, "log p", s->logits, last);
        if (files[f].block) make_block(&weights[f], last, block);
        for (int32_t i = 1; i < files[f].block; i++)
            expect_logits(f, "log p of a block", executor_logits(e->layer.executor, s->first_mask + i - 1), &block[i]);
        drafter_close(d);
        learned_rig_close_reader(&reader);
    }
    target = fast;
    rig_weights_close(exact);
}

/* A proposal is one forward of the layers, with the entries that wait; a second one without new tokens is equal. */
static void a_block_is_one_forward(void **state) {
    (void)state;
    static Tree trees[2];
    LearnedReader reader;
    int32_t text[N_TEXT];
    rig_tokens(8, V, text, N_TEXT);
    learned_rig_open_reader(&reader, target);
    Drafter *d = learned_rig_open_drafter(&reader, "eagle3:file=build/eagle3-4.gguf", 1);
    const Eagle *e = (const Eagle *)d;
    const EntrySequence *s = &e->entries.sequences[0];
    learned_rig_feed(&reader, d, 0, text, N_TEXT, 4);
    assert_int_equal(s->n_queued, N_TEXT - 1);
    for (int i = 0; i < 2; i++) {
        rig_propose(d, 0, text[N_TEXT - 1], 30, V, &trees[i]);
        assert_int_equal(s->first_mask, i ? 0 : N_TEXT - 1); /* after the entries, in the same forward */
        assert_int_equal(executor_sequence_length(e->layer.executor, s->kv), N_TEXT - 1);
    }
    rig_assert_same_tree(&trees[0], &trees[1], "again");
    drafter_close(d);
    learned_rig_close_reader(&reader);
}

/* layers=outputs reads the streams after the layers that the list names, not before them. */
static void a_list_of_outputs_is_one_layer_later(void **state) {
    (void)state;
    LearnedReader reader;
    learned_rig_open_reader(&reader, target);
    Drafter *d = learned_rig_open_drafter(&reader, "eagle3:file=build/eagle3-0.gguf", 1);
    for (int32_t i = 0; i < 3; i++) assert_int_equal(reader.kept.after[i], i);
    drafter_close(d);
    learned_rig_close_reader(&reader);
    learned_rig_check_refused(target, "eagle3:file=build/eagle3-0.gguf,layers=outputs", FR_ERR_ARGUMENT,
                              "layers=outputs"); /* there is no output of layer 2 */
}

static void a_step_leads_where_the_prompt_leads(void **state) {
    (void)state;
    for (int i = 0; i < N_FILES; i++) {
        char spec[64];
        snprintf(spec, sizeof spec, "eagle3:file=%s", files[i].path);
        learned_rig_check_step(target, spec);
    }
}

static void idle_steps_leave_whole_entries(void **state) {
    (void)state;
    learned_rig_check_idle(target, "eagle3:file=build/eagle3-0.gguf");
    learned_rig_check_idle(target, "eagle3:file=build/eagle3-4.gguf");
}

static void sequences_draft_together_as_each_by_itself(void **state) {
    (void)state;
    learned_rig_check_together(target, "eagle3:file=build/eagle3-0.gguf,depth=3,top=4");
    learned_rig_check_together(target, "eagle3:file=build/eagle3-2.gguf,depth=2,top=3");
    learned_rig_check_together(target, "eagle3:file=build/eagle3-3.gguf,depth=2,top=3");
    learned_rig_check_together(target, "eagle3:file=build/eagle3-4.gguf,top=4");
}

static void the_text_is_the_plain_one(void **state) {
    (void)state;
    learned_rig_check_lossless(TARGET, "eagle3:file=build/eagle3-0.gguf,depth=4,top=5");
    learned_rig_check_lossless(TARGET, "eagle3:file=build/eagle3-2.gguf,tree=static,depth=3,top=4");
    learned_rig_check_lossless(TARGET, "eagle3:file=build/eagle3-3.gguf,depth=3,top=4");
    learned_rig_check_lossless(TARGET, "eagle3:file=build/eagle3-4.gguf");
    learned_rig_check_lossless(TARGET, "eagle3:file=build/eagle3-6.gguf,depth=3,top=4");
    learned_rig_check_lossless(TARGET, "eagle3:file=build/eagle3-7.gguf,depth=3,top=4");
}

static void training_begins_with_what_the_file_predicts(void **state) {
    (void)state;
    for (int f = 0; f < N_FILES; f++) learned_rig_check_init(target, &train_eagle3, files[f].path, "depth=4,top=3");
}

/* ---- files that do not fit ------------------------------------------------------------------------------ */

/* Writes the published file with one fault, and expects an error with these words. */
static void refuse(void (*spoil)(File *f, FileWeights *w), fr_code code, const char *words) {
    static FileWeights w;
    File f = files[0];
    w = (FileWeights){.file = &f};
    learned_rig_begin(&w.rig, "eagle3", target, 5);
    gguf_writer_free(w.rig.w);
    w.rig.w = gguf_writer_new();
    gguf_set_string(w.rig.w, "general.architecture", "eagle3", 6);
    fill_map(&w);
    spoil(&f, &w);
    set_keys(&f, &w.rig);
    add_tensors(&f, &w);
    learned_rig_write(&w.rig, BROKEN);
    learned_rig_check_refused(target, "eagle3:file=" BROKEN, code, words);
    learned_rig_free(&w.rig);
}

static void spoil_layer(File *f, FileWeights *w) { (void)w, f->streams[2] = 3; }
static void spoil_token(File *f, FileWeights *w) { (void)f, w->map[3] = V; }
static void spoil_twice(File *f, FileWeights *w) { (void)f, w->map[9] = w->map[2]; }
static void spoil_heads(File *f, FileWeights *w) { (void)w, f->n_kv = 3; }
static void spoil_head(File *f, FileWeights *w) { (void)w, f->has_output = false; }
static void spoil_layers(File *f, FileWeights *w) { (void)w, f->n_named = 17; }
static void spoil_second(File *f, FileWeights *w) { (void)w, f->n_named = 2; }
static void spoil_block(File *f, FileWeights *w) { (void)w, f->block = 17; }
static void spoil_mask(File *f, FileWeights *w) { (void)w, f->block = 4, f->mask = V; }
static void spoil_no_mask(File *f, FileWeights *w) { (void)w, f->block = 4, f->mask = -1; }
static void spoil_mask_hidden(File *f, FileWeights *w) {
    (void)f;
    learned_rig_tensor(&w->rig, "mask_hidden.weight", TYPE_F32, 3 * T, 0, 1);
}
static void spoil_no_mask_hidden(File *f, FileWeights *w) {
    (void)f;
    gguf_set_u32(w->rig.w, "eagle3.block_size", 4);
    gguf_set_u32(w->rig.w, "eagle3.mask_token_id", 4);
}
static void spoil_tensor(File *f, FileWeights *w) {
    (void)f;
    learned_rig_tensor(&w->rig, "blk.0.ffn_gate.bias", TYPE_F32, 64, 0, 1);
}
static void spoil_key(File *f, FileWeights *w) {
    (void)f;
    gguf_set_u32(w->rig.w, "eagle3.attention.sliding_window", 512);
}
static void spoil_vocabulary(File *f, FileWeights *w) {
    (void)f;
    static const GgufString tokens[] = {{"a", 1}, {"b", 1}};
    gguf_set_strings(w->rig.w, "tokenizer.ggml.tokens", tokens, 2);
}

static void files_that_do_not_fit_are_refused(void **state) {
    (void)state;
    refuse(spoil_layer, FR_ERR_FORMAT, "extract_layers has 3");
    refuse(spoil_token, FR_ERR_FORMAT, "item 3 of tensor d2t is 300");
    refuse(spoil_twice, FR_ERR_FORMAT, "item 9 of tensor d2t");
    refuse(spoil_heads, FR_ERR_FORMAT, "evenly");
    refuse(spoil_head, FR_ERR_FORMAT, "tensor output.weight is missing");
    refuse(spoil_layers, FR_ERR_FORMAT, "block_count");
    refuse(spoil_second, FR_ERR_FORMAT, "tensor blk.1.attn_norm.weight is missing");
    refuse(spoil_block, FR_ERR_FORMAT, "block_size");
    refuse(spoil_mask, FR_ERR_FORMAT, "mask_token_id");
    refuse(spoil_no_mask, FR_ERR_FORMAT, "mask_token_id");
    refuse(spoil_mask_hidden, FR_ERR_UNSUPPORTED, "another version");
    refuse(spoil_no_mask_hidden, FR_ERR_FORMAT, "tensor mask_hidden.weight is missing");
    learned_rig_check_refused(target, "eagle3:file=build/eagle3-4.gguf,tree=static", FR_ERR_ARGUMENT,
                              "has no static trees");
    refuse(spoil_tensor, FR_ERR_UNSUPPORTED, "another version");
    refuse(spoil_key, FR_ERR_UNSUPPORTED, "sliding_window");
    refuse(spoil_vocabulary, FR_ERR_MISMATCH, "2 tokens");
    learned_rig_check_refused(target, "eagle3:file=" TARGET, FR_ERR_MISMATCH,
                              "or one made by forerun import-drafter eagle3");
    learned_rig_check_refused(target, "eagle:file=build/eagle3-0.gguf", FR_ERR_MISMATCH,
                              "use this one as eagle3:file=");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trees_are_those_of_the_plain_layers),
        cmocka_unit_test(one_forward_has_the_numbers_of_the_plain_layers),
        cmocka_unit_test(a_block_is_one_forward),
        cmocka_unit_test(a_list_of_outputs_is_one_layer_later),
        cmocka_unit_test(a_step_leads_where_the_prompt_leads),
        cmocka_unit_test(idle_steps_leave_whole_entries),
        cmocka_unit_test(sequences_draft_together_as_each_by_itself),
        cmocka_unit_test(the_text_is_the_plain_one),
        cmocka_unit_test(training_begins_with_what_the_file_predicts),
        cmocka_unit_test(files_that_do_not_fit_are_refused),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}

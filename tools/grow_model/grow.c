/* grow.c - makes a model wider and deeper without changing its output.
 *
 * The problem: how much speculation gains depends on what the texts are and on what a forward costs. The shipped model
 * of 7 million weights writes real text, but its forward costs almost nothing; a random model of 1.1 billion weights
 * costs as much as a real one, but its text cannot be drafted. The idea: put the small model's weights into a big
 * model's shape, with zeros around them.
 *
 *   width         n of N components of the residual stream are the small model's; embeddings write zeros into the
 *                 others, and so does every layer (rows of zeros in attn_output and ffn_down)
 *   heads         KV head i stays KV head i; its g query heads are the first of the G that share it. The others have
 *                 zero queries, and the columns of attn_output that read their results are zero
 *   feed-forward  new neurons have zero gate, up and down: silu(0) * 0 = 0
 *   layers        come after the small model's; all their matrices are zero: they add zero at the cost of any other
 *
 * RMSNorm divides by the root of a mean over the width. With S the sum of squares (the same in both),
 *
 *     w' / sqrt(S / N + e')  =  w / sqrt(S / n + e)     where w' = w sqrt(n / N) and e' = e n / N
 *
 * Head width, rotation, scale and rope tables stay, so that attention sees the same scores.
 *
 * Vocabulary: a new token must never be generated, and a row of zeros in the output matrix would give it the logit 0,
 * which may well be the greatest. There are no biases; but one new component of the residual stream can be a constant c
 * > 0, written by every embedding and left alone by all layers. The output norm weighs it with GAUGE / c, new rows of
 * the output matrix have -1 there, old rows 0: logits of new tokens are -GAUGE / rms, some ten thousands below all
 * others. c enters S, and leaves it again through epsilon: e' = (e n - c^2) / N, with c^2 about e n / 2.
 *
 * What is exact. Where the type stays and the small widths are whole blocks (256 is 8 blocks of 32), blocks are copied
 * bit for bit, and a block of zeros is exact in every type. What is left are roundings of w', e' and of the norm: about
 * 1e-7 of the logits, nothing at all where N / n is a power of 4 and the vocabulary stays. Another type quantises
 * again, which is another small model: the grown model then equals the small one rewritten in that type (--type alone)
 * within the same rounding. K-quants have blocks of 256 and copy where the source has them. Proof:
 * tests/cli/test_grow_model.c. */
#include "grow.h"

#include "base/mem.h"
#include "base/progress.h"
#include "gguf/tensor_type.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define GAUGE 1e6

/* Places the small model's indices among the big one's: n_units runs of `small`, each at the start of a run of
 * `big`. */
typedef struct Axis {
    int64_t n_units, small, big, n; /* n: the length of the big one */
} Axis;

/* The tensor `source` in its new place; source NULL: all new. */
typedef struct Part {
    Grown *all;
    const GgufTensor *source;
    TensorType type;
    Axis rows, columns;
    float old_constant, new_constant; /* in the column of the constant, in rows of the small model and in new ones */
    float scale, fill;                /* vectors: old elements are scaled, new ones are `fill` */
    uint8_t *old_row, *new_row;       /* encoded; they hold nothing of the source */
} Part;

struct Grown {
    Part *parts;
    int64_t n_parts, capacity, constant; /* constant: the column; -1: none */
    float *row;                          /* [widest] */
    Progress progress;
    int64_t n_total, n_done;
    bool no_memory;
};

static int64_t old_index(const Axis *a, int64_t i) {
    int64_t unit = i / a->big, within = i % a->big;
    return unit < a->n_units && within < a->small ? unit * a->small + within : -1;
}

static Axis axis(int64_t n_units, int64_t small, int64_t big, int64_t n) { return (Axis){n_units, small, big, n}; }
static Axis plain_axis(int64_t small, int64_t big) { return axis(1, small, big, big); }

/* ---- rows --------------------------------------------------------------------------------------- */

static size_t bytes_of(TensorType type, int64_t n) {
    size_t bytes = 0;
    fr_assert(tensor_type_row_bytes(type, n, &bytes));
    return bytes;
}

/* Copies whole blocks unchanged. */
static bool is_copied(const Part *p) {
    int64_t block = (int64_t)tensor_type_info(p->type)->block_n;
    return p->source->type == p->type && p->columns.small % block == 0 && p->columns.big % block == 0;
}

static void copy_blocks(const Part *p, const uint8_t *from, uint8_t *to) {
    size_t small = bytes_of(p->type, p->columns.small), big = bytes_of(p->type, p->columns.big);
    for (int64_t i = 0; i < p->columns.n_units; i++) memcpy(to + (size_t)i * big, from + (size_t)i * small, small);
}

/* Places the source's row among the big one's columns and quantises it again. */
static void requantise(const Part *p, const uint8_t *from, uint8_t *to) {
    Grown *g = p->all;
    const Axis *c = &p->columns;
    float *small = g->row, *big = g->row + c->n_units * c->small;
    blocks_dequantize(p->source->type, from, c->n_units * c->small, small);
    blocks_dequantize(p->type, p->old_row, c->n, big);
    for (int64_t i = 0; i < c->n_units * c->small; i++) big[i / c->small * c->big + i % c->small] = small[i] * p->scale;
    blocks_quantize(p->type, big, c->n, to);
}

static void fill(void *ctx, int64_t first_row, int64_t n_rows, void *dst) {
    const Part *p = ctx;
    size_t bytes = bytes_of(p->type, p->columns.n);
    for (int64_t i = 0; i < n_rows; i++) {
        uint8_t *to = (uint8_t *)dst + (size_t)i * bytes;
        int64_t old = p->source ? old_index(&p->rows, first_row + i) : -1;
        memcpy(to, old < 0 ? p->new_row : p->old_row, bytes);
        if (old < 0) continue;
        const uint8_t *from = (const uint8_t *)p->source->data +
                              (size_t)old * bytes_of(p->source->type, p->columns.n_units * p->columns.small);
        if (p->scale == 1 && is_copied(p)) copy_blocks(p, from, to);
        else requantise(p, from, to);
    }
    p->all->n_done += n_rows * p->columns.n;
    progress_update(&p->all->progress, p->all->n_done);
}

/* Returns a row of `fill` with a constant in its column. */
static uint8_t *encode(const Part *p, float constant) {
    int64_t n = p->columns.n, at = p->all->constant;
    float *row = mem_alloc((size_t)n * sizeof *row);
    uint8_t *out = mem_alloc(bytes_of(p->type, n));
    for (int64_t i = 0; row && i < n; i++) row[i] = p->fill;
    if (row && constant != 0) row[at] = constant;
    if (row && out) blocks_quantize(p->type, row, n, out);
    mem_free(row);
    return out;
}

/* ---- tensors ------------------------------------------------------------------------------------ */

static void add(Grown *g, GgufWriter *w, const char *name, Part part) {
    fr_assert(g->n_parts < g->capacity);
    Part *p = &g->parts[g->n_parts++];
    *p = part;
    p->all = g;
    p->old_row = encode(p, p->old_constant);
    p->new_row = encode(p, p->new_constant);
    g->no_memory = g->no_memory || !p->old_row || !p->new_row;
    g->n_total += p->rows.n * p->columns.n;
    gguf_add_tensor_filled(w, name, p->type, p->rows.n > 1 ? 2 : 1, (int64_t[]){p->columns.n, p->rows.n}, fill, p);
}

typedef struct Growth {
    Grown *g;
    GgufWriter *w;
    const GrowPlan *plan;
    const Gguf *source;
    const Hparams *h;
    fr_error *err;
    int status;
    int64_t n_taken;
} Growth;

/* Returns the source's tensor with that shape; remembers the first that is missing. */
static const GgufTensor *take(Growth *o, const char *name, int64_t columns, int64_t rows) {
    const GgufTensor *t = gguf_find_tensor(o->source, name);
    if (t && t->dims[0] == columns && t->dims[1] == rows) {
        o->n_taken++;
        return t;
    }
    if (!o->status)
        o->status = error_set(o->err, FR_ERR_FORMAT, "%.200s: tensor %s is missing or not %lld x %lld",
                              gguf_path(o->source), name, (long long)columns, (long long)rows);
    return NULL;
}

/* Returns the type of a matrix: the given one, or that of the source. */
static TensorType type_of(Growth *o, const GgufTensor *t, int64_t columns) {
    TensorType type = t->type;
    size_t bytes;
    if (o->plan->type) fr_assert(tensor_type_from_name(o->plan->type, &type));
    if (!tensor_type_row_bytes(type, columns, &bytes) && !o->status)
        o->status = error_set(o->err, FR_ERR_ARGUMENT,
                              "rows of %lld are not whole blocks of %s; choose another width or --type",
                              (long long)columns, tensor_type_info(type)->name);
    return type;
}

/* Adds a matrix of a layer; a layer beyond the source's is all zero, in the type of the source's last. */
static void add_matrix(Growth *o, int64_t layer, const char *what, Axis rows, Axis columns) {
    char name[64], from[64];
    bool is_new = layer >= o->h->n_layer;
    snprintf(name, sizeof name, "blk.%lld.%s.weight", (long long)layer, what);
    snprintf(from, sizeof from, "blk.%lld.%s.weight", (long long)(is_new ? o->h->n_layer - 1 : layer), what);
    const GgufTensor *t = take(o, from, columns.n_units * columns.small, rows.n_units * rows.small);
    if (!t || is_new) o->n_taken -= t != NULL;
    TensorType type = t ? type_of(o, t, columns.n) : TYPE_F32;
    if (o->status) return;
    add(o->g, o->w, name,
        (Part){.source = is_new ? NULL : t, .type = type, .rows = rows, .columns = columns, .scale = 1});
}

static void add_norm(Growth *o, const char *name, bool is_new, float constant) {
    int64_t n = o->h->n_embd, width = o->plan->dim;
    const GgufTensor *t = is_new ? NULL : take(o, name, n, 1);
    if (o->status) return;
    add(o->g, o->w, name,
        (Part){.source = t,
               .type = TYPE_F32,
               .rows = plain_axis(1, 1),
               .columns = plain_axis(n, width),
               .scale = (float)sqrt((double)n / (double)width),
               .fill = is_new ? 1 : 0,
               .old_constant = constant,
               .new_constant = constant});
}

static void add_layer(Growth *o, int64_t l) {
    const GrowPlan *p = o->plan;
    const Hparams *h = o->h;
    char name[64];
    int64_t dim = h->head_dim, group = h->n_head / h->n_head_kv, wide_group = p->n_heads / p->n_kv_heads;
    Axis width = plain_axis(h->n_embd, p->dim), ffn = plain_axis(h->n_ff, p->ffn_dim);
    Axis heads = axis(h->n_head_kv, group * dim, wide_group * dim, p->n_heads * dim);
    Axis kv_heads = plain_axis(h->n_head_kv * dim, p->n_kv_heads * dim);
    snprintf(name, sizeof name, "blk.%lld.attn_norm.weight", (long long)l);
    add_norm(o, name, l >= h->n_layer, 0);
    add_matrix(o, l, "attn_q", heads, width);
    add_matrix(o, l, "attn_k", kv_heads, width);
    add_matrix(o, l, "attn_v", kv_heads, width);
    add_matrix(o, l, "attn_output", width, heads);
    snprintf(name, sizeof name, "blk.%lld.ffn_norm.weight", (long long)l);
    add_norm(o, name, l >= h->n_layer, 0);
    add_matrix(o, l, "ffn_gate", ffn, width);
    add_matrix(o, l, "ffn_up", ffn, width);
    add_matrix(o, l, "ffn_down", width, ffn);
}

/* Returns the constant as the embedding's type will hold it; 0 where the vocabulary stays. */
static float constant_of(const Growth *o, TensorType type) {
    float row[256] = {0}, c = 0;
    uint8_t block[1024];
    if (o->g->constant < 0) return 0;
    int64_t n = (int64_t)tensor_type_info(type)->block_n, at = o->g->constant % n;
    row[at] = (float)sqrt((double)o->h->rms_eps * o->h->n_embd / 2);
    blocks_quantize(type, row, n, block);
    blocks_dequantize(type, block, n, row);
    c = row[at];
    return c;
}

/* Embedding, output norm and output matrix; where the vocabulary grows the two matrices part. */
static void add_ends(Growth *o, float *epsilon) {
    const GrowPlan *p = o->plan;
    const Hparams *h = o->h;
    Axis width = plain_axis(h->n_embd, p->dim), tokens = plain_axis(h->n_vocab, p->n_vocab);
    const GgufTensor *embedding = take(o, "token_embd.weight", h->n_embd, h->n_vocab), *output = embedding;
    bool tied = !gguf_find_tensor(o->source, "output.weight");
    if (!tied) output = take(o, "output.weight", h->n_embd, h->n_vocab);
    if (o->status) return;
    TensorType type = type_of(o, embedding, p->dim), output_type = type_of(o, output, p->dim);
    if (o->status) return;
    float c = constant_of(o, type);
    *epsilon = (float)(((double)h->rms_eps * h->n_embd - (double)c * (double)c) / (double)p->dim);
    add(o->g, o->w, "token_embd.weight",
        (Part){.source = embedding,
               .type = type,
               .rows = tokens,
               .columns = width,
               .scale = 1,
               .old_constant = c,
               .new_constant = c});
    add_norm(o, "output_norm.weight", false, c > 0 ? (float)(GAUGE / (double)c) : 0);
    if (tied && c == 0) return;
    add(o->g, o->w, "output.weight",
        (Part){.source = output,
               .type = output_type,
               .rows = tokens,
               .columns = width,
               .scale = 1,
               .new_constant = c > 0 ? -1 : 0});
}

static int check(const Growth *o) {
    const GrowPlan *p = o->plan;
    const Hparams *h = o->h;
    int64_t group = h->n_head / h->n_head_kv;
    if (h->arch != ARCH_LLAMA)
        return error_set(o->err, FR_ERR_UNSUPPORTED,
                         "%.200s: only models of the architecture llama are grown, this is %s", gguf_path(o->source),
                         arch_name(h->arch));
    if (p->n_layers < h->n_layer || p->dim < h->n_embd || p->n_kv_heads < h->n_head_kv || p->ffn_dim < h->n_ff ||
        p->n_vocab < h->n_vocab)
        return error_set(o->err, FR_ERR_ARGUMENT,
                         "a model cannot shrink: the source has %d layers of %d, %d KV heads, a "
                         "feed-forward of %d and %d tokens",
                         h->n_layer, h->n_embd, h->n_head_kv, h->n_ff, h->n_vocab);
    if (p->n_heads % p->n_kv_heads || p->n_heads / p->n_kv_heads < group)
        return error_set(o->err, FR_ERR_ARGUMENT,
                         "%lld heads on %lld KV heads: each KV head needs the same number, %lld at least",
                         (long long)p->n_heads, (long long)p->n_kv_heads, (long long)group);
    if (p->n_vocab > h->n_vocab && (p->dim == h->n_embd || !(h->rms_eps > 0)))
        return error_set(o->err, FR_ERR_ARGUMENT,
                         "more tokens need a wider model (one component keeps them silent) and an epsilon "
                         "above 0; raise --dim");
    return FR_OK;
}

int grown_add(Grown **out, GgufWriter *w, const GrowPlan *plan, const Gguf *source, const Hparams *h, float *epsilon,
              fr_error *err) {
    Grown *g = *out = mem_calloc(1, sizeof *g);
    if (!g) return error_memory(err, "a model", sizeof *g);
    Growth o = {.g = g, .w = w, .plan = plan, .source = source, .h = h, .err = err};
    int status = check(&o);
    if (status) return status;
    g->capacity = plan->n_layers * 9 + 4;
    g->constant = plan->n_vocab > h->n_vocab ? h->n_embd : -1;
    int64_t q_dim = plan->n_heads * h->head_dim, widest = plan->dim > plan->ffn_dim ? plan->dim : plan->ffn_dim;
    widest = q_dim > widest ? q_dim : widest;
    g->parts = mem_calloc((size_t)g->capacity, sizeof *g->parts);
    g->row = mem_calloc(2 * (size_t)widest, sizeof *g->row);
    if (!g->parts || !g->row) return error_memory(err, "a model", (size_t)g->capacity * sizeof *g->parts);
    add_ends(&o, epsilon);
    for (int64_t l = 0; l < plan->n_layers && !o.status; l++) add_layer(&o, l);
    const GgufTensor *freqs = gguf_find_tensor(source, "rope_freqs.weight");
    if (freqs && !o.status) gguf_add_tensor(w, freqs->name, freqs->type, freqs->n_dims, freqs->dims, freqs->data);
    if (!o.status && o.n_taken + (freqs != NULL) != gguf_n_tensors(source))
        o.status = error_set(err, FR_ERR_UNSUPPORTED, "%.200s: holds tensors that are not understood here (biases?)",
                             gguf_path(source));
    if (!o.status && g->no_memory) o.status = error_memory(err, "rows", (size_t)widest);
    progress_begin(&g->progress, stderr, "weights", g->n_total);
    return o.status;
}

void grown_free(Grown *g) {
    if (!g) return;
    if (g->progress.what) progress_end(&g->progress);
    for (int64_t i = 0; i < g->n_parts; i++) {
        mem_free(g->parts[i].old_row);
        mem_free(g->parts[i].new_row);
    }
    mem_free(g->parts);
    mem_free(g->row);
    mem_free(g);
}

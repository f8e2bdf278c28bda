/* forward.c - one forward of a Llama-like transformer over rows of token trees.
 *
 * The problem. Prefill, plain decoding and the verification of a token tree differ only in which earlier
 * tokens a row sees. There is one forward; a row is a token with a position and a list of visible keys:
 *
 *     committed tokens of its sequence   +   its ancestors in the batch   +   itself
 *     n_prefix slots                         n_path - 1 slots                 its own slot
 *
 * in the order of their logical positions. A path of a tree therefore reads exactly what the chain of the
 * same tokens reads, in the same order, and computes the same bits: attention has no other notion of "who".
 *
 * Example. Committed "a b"; tree: c with children d and e. Rows c d e have positions 2 3 3. Row e sees the
 * slots of a b | c e; when "c e" is committed later, kv_commit moves e up to position 3, and a next row
 * sees a b c e | itself, as if d had never been there.
 *
 * The layer (RMSNorm before each block, residual around it):
 *     x += Wo attention(rope(Wq n), rope(Wk n), Wv n),  n = norm(x)      grouped queries: n_head / n_head_kv
 *     x += Wdown (silu(Wgate m) * (Wup m)),             m = norm(x)      heads share one key-value head
 *
 * Threads. One parallel region a forward; phases are separated by barriers. Each phase splits outputs:
 * rows (norms, rope), tiles of 16 output rows (matrix products), pairs of row and KV head (attention). No
 * sum is ever split, so no bit depends on the number of threads. Tests: test_forward.c (tree = chain,
 * chunking, threads, pages, neighbours), test_golden.c and test_reference.c (the values).
 */
#include "model/forward.h"

#include "base/threads.h"
#include "format/blocks.h"

#include <math.h>
#include <string.h>

typedef struct Worker {
    Executor *e;
    const Kernels *kn;
    const Hparams *h;
    int i_thread, n_threads;
} Worker;

static size_t row_at(int64_t row, int64_t width) { return (size_t)row * (size_t)width; }

static void my_rows(const Worker *w, int64_t n, int64_t *begin, int64_t *end) {
    threads_split(n, 1, w->i_thread, w->n_threads, begin, end);
}

/* Up to three matrices over the same inputs. */
typedef struct Product {
    const PackedMatrix *m;
    float *y; /* [n_rows][n_out] */
} Product;

/* Converts row i of x ([n_in] floats each) into every form the products want. */
static void convert_row(const Worker *w, const Product *products, int n_products, const float *x, int64_t i) {
    bool done[ACT_FORM_COUNT] = {false};
    for (int k = 0; k < n_products; k++) {
        ActForm form = act_form(products[k].m->type);
        if (done[form]) continue;
        done[form] = true;
        int64_t n_in = products[k].m->n_in;
        w->kn->act_convert(form, x + row_at(i, n_in), n_in, (char *)w->e->acts[form] + row_at(i, (int64_t)act_row_bytes(form, n_in)));
    }
}

/* This thread's share of all output tiles of the products. */
static void multiply(const Worker *w, const Product *products, int n_products, int64_t n_rows) {
    int64_t n_tiles = 0, begin, end;
    for (int k = 0; k < n_products; k++) n_tiles += packed_n_tiles(products[k].m);
    threads_split(n_tiles, 1, w->i_thread, w->n_threads, &begin, &end);
    for (int k = 0; k < n_products; k++) {
        const PackedMatrix *m = products[k].m;
        int64_t n = packed_n_tiles(m), first = begin > 0 ? begin : 0, last = end < n ? end : n;
        if (first < last)
            w->kn->matmul(m, w->e->acts[act_form(m->type)], n_rows, products[k].y, m->n_out, first, last);
        begin -= n, end -= n;
    }
}

static void embed_rows(const Worker *w) {
    Executor *e = w->e;
    const GgufTensor *t = e->model->token_embd;
    size_t row_bytes = t->bytes / (size_t)w->h->n_vocab;
    int64_t begin, end;
    my_rows(w, e->n_rows, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        const char *src = (const char *)t->data + (size_t)e->rows[i].token * row_bytes;
        blocks_dequantize(t->type, src, w->h->n_embd, e->x + row_at(i, w->h->n_embd));
        rope_angles(&e->model->rope, e->rows[i].position, e->cos_sin + row_at(i, w->h->rope.n_rot));
    }
}

/* x += delta (unless there is none yet), then the norm of x in the form the products want. */
static void norm_rows(const Worker *w, bool add_delta, const float *norm, const Product *products, int n_products) {
    Executor *e = w->e;
    int64_t begin, end, n = w->h->n_embd;
    my_rows(w, e->n_rows, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        float *x = e->x + row_at(i, n), *y = e->normed + row_at(i, n);
        if (add_delta) w->kn->add(x, e->delta + row_at(i, n), n);
        w->kn->rmsnorm(y, x, norm, n, w->h->rms_eps);
        convert_row(w, products, n_products, e->normed, i);
    }
}

static void norm_heads(const Worker *w, float *x, int32_t n_heads, const float *norm) {
    int64_t n = w->h->head_dim;
    for (int32_t i = 0; norm && i < n_heads; i++) w->kn->rmsnorm(x + i * n, x + i * n, norm, n, w->h->rms_eps);
}

/* Biases, head norms and rotation; keys and values into the cache. */
static void finish_qkv(const Worker *w, int32_t layer) {
    Executor *e = w->e;
    const Hparams *h = w->h;
    const LayerWeights *l = &e->model->layers[layer];
    int64_t q_dim = hparams_q_dim(h), kv_dim = hparams_kv_dim(h), begin, end;
    size_t slot_bytes = kv_slot_bytes(&e->kv);
    my_rows(w, e->n_rows, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        float *q = e->q + row_at(i, q_dim), *k = e->k + row_at(i, kv_dim), *v = e->v + row_at(i, kv_dim);
        const float *cos_sin = e->cos_sin + row_at(i, h->rope.n_rot);
        if (l->q_bias) w->kn->add(q, l->q_bias, q_dim);
        if (l->k_bias) w->kn->add(k, l->k_bias, kv_dim);
        if (l->v_bias) w->kn->add(v, l->v_bias, kv_dim);
        norm_heads(w, q, h->n_head, l->q_norm);
        norm_heads(w, k, h->n_head_kv, l->k_norm);
        w->kn->rope(h->rope.style, q, h->n_head, h->head_dim, h->rope.n_rot, cos_sin);
        w->kn->rope(h->rope.style, k, h->n_head_kv, h->head_dim, h->rope.n_rot, cos_sin);
        size_t at = (size_t)e->rows[i].slot * slot_bytes;
        for (int32_t head = 0; head < h->n_head_kv; head++) {
            w->kn->kv_store(e->kv.shape.type, k + (int64_t)head * h->head_dim, h->head_dim, kv_keys(&e->kv, layer, head) + at);
            w->kn->kv_store(e->kv.shape.type, v + (int64_t)head * h->head_dim, h->head_dim, kv_values(&e->kv, layer, head) + at);
        }
    }
}

/* The query heads of one row that share KV head `head`. */
static void attend(const Worker *w, int32_t layer, int64_t row, int32_t head) {
    Executor *e = w->e;
    const Hparams *h = w->h;
    const RowPlace *r = &e->rows[row];
    int64_t group = h->n_head / h->n_head_kv, n = r->n_prefix + r->n_path, stride = e->score_stride;
    size_t slot_bytes = kv_slot_bytes(&e->kv);
    KvType type = e->kv.shape.type;
    const char *keys = kv_keys(&e->kv, layer, head), *values = kv_values(&e->kv, layer, head);
    const float *q = e->q + row_at(row, hparams_q_dim(h)) + head * group * h->head_dim;
    float *out = e->attended + row_at(row, hparams_q_dim(h)) + head * group * h->head_dim;
    float *scores = e->scores + row_at(w->i_thread, group * stride);
    float scale = 1.0f / sqrtf((float)h->head_dim);
    w->kn->attn_scores(type, q, group, h->head_dim, keys, slot_bytes, r->prefix_slots, r->n_prefix, scale, scores, stride);
    w->kn->attn_scores(type, q, group, h->head_dim, keys, slot_bytes, r->path_slots, r->n_path, scale,
                       scores + r->n_prefix, stride);
    for (int64_t i = 0; i < group; i++) w->kn->softmax(scores + i * stride, n);
    memset(out, 0, (size_t)(group * h->head_dim) * sizeof *out);
    w->kn->attn_mix(type, scores, stride, group, h->head_dim, values, slot_bytes, r->prefix_slots, r->n_prefix, out);
    w->kn->attn_mix(type, scores + r->n_prefix, stride, group, h->head_dim, values, slot_bytes, r->path_slots, r->n_path, out);
}

static void attend_rows(const Worker *w, int32_t layer) {
    int64_t begin, end, n_heads = w->h->n_head_kv;
    threads_split(w->e->n_rows * n_heads, 1, w->i_thread, w->n_threads, &begin, &end);
    for (int64_t i = begin; i < end; i++) attend(w, layer, i / n_heads, (int32_t)(i % n_heads));
}

static void convert_rows(const Worker *w, const Product *product, const float *x) {
    int64_t begin, end;
    my_rows(w, w->e->n_rows, &begin, &end);
    for (int64_t i = begin; i < end; i++) convert_row(w, product, 1, x, i);
}

static void activate_rows(const Worker *w, const Product *down) {
    int64_t begin, end, n = w->h->n_ff;
    my_rows(w, w->e->n_rows, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        w->kn->silu_mul(w->e->gate + row_at(i, n), w->e->up + row_at(i, n), n);
        convert_row(w, down, 1, w->e->gate, i);
    }
}

static void run_layer(const Worker *w, int32_t layer) {
    Executor *e = w->e;
    const LayerWeights *l = &e->model->layers[layer];
    const Product qkv[] = {{&l->q, e->q}, {&l->k, e->k}, {&l->v, e->v}}, o = {&l->o, e->delta};
    const Product gate_up[] = {{&l->gate, e->gate}, {&l->up, e->up}}, down = {&l->down, e->delta};
    norm_rows(w, layer > 0, l->attn_norm, qkv, 3);
    threads_barrier();
    multiply(w, qkv, 3, e->n_rows);
    threads_barrier();
    finish_qkv(w, layer);
    threads_barrier();
    attend_rows(w, layer);
    threads_barrier();
    convert_rows(w, &o, e->attended);
    threads_barrier();
    multiply(w, &o, 1, e->n_rows);
    threads_barrier();
    norm_rows(w, true, l->ffn_norm, gate_up, 2);
    threads_barrier();
    multiply(w, gate_up, 2, e->n_rows);
    threads_barrier();
    activate_rows(w, &down);
    threads_barrier();
    multiply(w, &down, 1, e->n_rows);
    threads_barrier();
}

/* Final norm and output product of the rows that want logits. */
static void finish_results(const Worker *w) {
    Executor *e = w->e;
    int64_t begin, end, n = w->h->n_embd;
    const Product output = {&e->model->output, e->logits};
    my_rows(w, e->n_rows, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        int32_t r = e->rows[i].i_result;
        if (r < 0) continue;
        float *x = e->x + row_at(i, n);
        w->kn->add(x, e->delta + row_at(i, n), n);
        w->kn->rmsnorm(e->hidden + row_at(r, n), x, e->model->output_norm, n, w->h->rms_eps);
        convert_row(w, &output, 1, e->hidden, r);
    }
    threads_barrier();
    if (e->n_results) multiply(w, &output, 1, e->n_results);
}

void forward_body(void *executor, int i_thread, int n_threads) {
    Executor *e = executor;
    Worker w = {e, e->model->kernels, &e->model->hparams, i_thread, n_threads};
    embed_rows(&w);
    for (int32_t i = 0; i < w.h->n_layer; i++) run_layer(&w, i); /* rows are the same thread's in norm_rows */
    finish_results(&w);
}

/* forward.c - the forward on the CPU, which takes rows that the executor has placed through all layers (executor.h says
 * what a row sees).
 *
 * Threads. A forward is one parallel region. The operations of all layers (layer.c) are written first; then the threads
 * go through them, stage by stage. Each stage splits its outputs: rows (norms), heads, or tiles of 16 output rows
 * (matrix products). attention.c splits pairs of row and KV head and, where these are few, long contexts. Sums are
 * split only at places that depend on nothing but the context, so that no bit depends on the number of threads or on
 * which thread computes a part. A thread that waits for the end of a stage prefetches the weights that it will need
 * next.
 *
 * Proof: test_forward.c (tree = chain, chunking, threads, pages, neighbours), test_attention.c (long contexts),
 * test_golden.c and test_reference.c (the values).
 */
#include "compute/cpu/attention.h"

#include <string.h>

static void embed_rows(const Op *op, int64_t begin, int64_t end, int i_thread) {
    (void)i_thread;
    CpuContext *c = op->c;
    const Hparams *h = &c->model->hparams;
    const Share own = cpu_share_tokens(c->weights, cpu_rank(c->weights));
    for (int64_t i = begin; i < end; i++) {
        const RowPlace *r = &c->rows[i];
        float *x = c->x + row_at(i, h->n_embd), scale = r->input ? 1 : h->embedding_scale;
        bool is_own = !r->input && r->token >= own.first && r->token < own.last;
        if (r->input) memcpy(x, r->input, (size_t)h->n_embd * sizeof *x);
        if (is_own) cpu_embedding_row(c->weights, r->token, x);
        for (int64_t k = 0; is_own && scale != 1 && k < h->n_embd; k++) x[k] *= scale;
        c->tokens[i] = r->input ? -1 : r->token;
        for (int k = 0; k < c->model->n_ropes; k++)
            rope_angles(model_rope(c->model, k, c->options.n_ctx), c->rows[i].position,
                        c->cos_sin + row_at((int64_t)k * c->options.max_rows + i, hparams_max_rot(h)));
    }
}

static void exchange_embeddings(const Op *op, int64_t begin, int64_t end, int i_thread) {
    (void)begin, (void)end, (void)i_thread;
    const CpuContext *c = op->c;
    cpu_exchange_embeddings(c->weights, c->tokens, c->n_rows, c->model->hparams.n_embd, c->x);
}

static void exchange_logits(const Op *op, int64_t begin, int64_t end, int i_thread) {
    (void)begin, (void)end, (void)i_thread;
    CpuContext *c = op->c;
    if (c->only_best) cpu_exchange_best(c);
    else cpu_exchange_logits(c->weights, c->logits, op->n_rows);
}

/* Computes the final norm of the rows whose logits or hidden state are wanted. */
static void finish_rows(const Op *op, int64_t begin, int64_t end, int i_thread) {
    (void)i_thread;
    CpuContext *c = op->c;
    int64_t n = c->model->hparams.n_embd;
    for (int64_t i = begin; i < end; i++) {
        const RowPlace *r = &c->rows[i];
        if (r->i_hidden < 0) continue;
        float *hidden = c->hidden + row_at(r->i_hidden, context_hidden_width(&c->base));
        norm_row(c, hidden, c->x + row_at(i, n), op->norm);
        if (r->i_logits >= 0) convert_row(op, hidden, r->i_logits);
    }
}

/* Keeps the residual stream, in which op->layer layers have run, of the rows whose hidden state is wanted. */
static void keep_rows(const Op *op, int64_t begin, int64_t end, int i_thread) {
    (void)i_thread;
    const CpuContext *c = op->c;
    const KeptLayers *kept = &c->base.kept;
    int64_t n = c->model->hparams.n_embd;
    for (int64_t i = begin; i < end; i++)
        for (int32_t k = 0; k < kept->n; k++)
            if (c->rows[i].i_hidden >= 0 && kept->after[k] == op->layer)
                memcpy(c->hidden + row_at(c->rows[i].i_hidden, context_hidden_width(&c->base)) + (k + 1) * n,
                       c->x + row_at(i, n), (size_t)n * sizeof *c->x);
}

/* Writes an operation that keeps the residual stream after that many layers, if it is to be kept. */
static Op *keep_ops(CpuContext *c, int32_t n_layers, Op *at) {
    bool is_kept = false;
    for (int32_t k = 0; k < c->base.kept.n; k++) is_kept = is_kept || c->base.kept.after[k] == n_layers;
    return is_kept ? put_op(at, (Op){.c = c, .layer = n_layers}, FORWARD_NORM, keep_rows, c->n_rows, 0) : at;
}

static void logits_tiles(const Op *op, int64_t begin, int64_t end, int i_thread) {
    (void)i_thread;
    const Product *p = &op->products[0];
    cpu_multiply(op->c, p->m, op->c->acts[p->m->act], op->n_rows, p->y, p->m->n_out, begin, end);
    int64_t from = begin * TILE_ROWS, to = end * TILE_ROWS < p->m->n_out ? end * TILE_ROWS : p->m->n_out;
    const Model *m = op->c->model;
    for (int64_t i = 0; i < op->n_rows; i++) {
        float *logits = p->y + row_at(i, p->m->n_out) + from;
        if (m->output_bias) op->c->kernels->add(logits, m->output_bias + from, to - from);
        cpu_finish_logits(&m->hparams, op->c->kernels, logits, to - from);
    }
}

/* Writes the operations of a forward, and returns their number. */
static int write_ops(CpuContext *c) {
    Op around = {.c = c,
                 .n_products = 1,
                 .products = {{&c->weights->output, c->logits}},
                 .norm = c->model->output_norm};
    bool is_split = cpu_comm(c->weights) != NULL;
    Op *at = put_op(c->ops, around, FORWARD_EMBED, embed_rows, c->n_rows, 0);
    if (is_split) at = put_op(at, around, FORWARD_EMBED, exchange_embeddings, 1, 0);
    if (c->model->ple_table) at = ple_input_ops(c, at);
    for (int32_t i = 0; i < c->model->hparams.n_layer; i++) {
        at = keep_ops(c, i, at);
        if (context_runs(&c->base, i)) at = (c->base.only_stores ? store_ops : layer_ops)(c, i, at);
    }
    at = keep_ops(c, c->model->hparams.n_layer, at);
    at = put_op(at, around, FORWARD_NORM, finish_rows, c->n_rows, 0);
    if (c->n_logits)
        at = put_split(at, around, FORWARD_OUTPUT, logits_tiles, packed_n_tiles(&c->weights->output), c->n_logits);
    if (c->n_logits && is_split) at = put_op(at, around, FORWARD_OUTPUT, exchange_logits, 1, c->n_logits);
    return (int)(at - c->ops);
}

static void op_part(void *ctx, int i_part, int n_parts, int i_thread) {
    const Op *op = ctx;
    int64_t begin, end;
    threads_split(op->n_items, 1, i_part, n_parts, &begin, &end);
    const Comm *comm = cpu_comm(op->c->weights);
    if (comm && comm_check(comm, NULL)) return; /* the ranks have ended, and nobody reads the results */
    op->fn(op, op->first_item + begin, op->first_item + end, i_thread);
}

/* Returns which tiles of a matrix this rank has, or nearly so where heads or blocks are divided: for prefetching, that
 * is near enough. */
static Share near_share(const CpuContext *c, const PackedMatrix *m) { return cpu_share(c->weights, packed_n_tiles(m)); }

/* Writes a stage for each operation, with the weights that the next product after it reads. */
static void write_stages(CpuContext *c, int n) {
    int64_t n_threads = threads_count(c->threads), most = n_threads == 1 ? 1 : n_threads * PARTS_PER_THREAD;
    const void *later = NULL;
    size_t later_bytes = 0;
    for (int i = n - 1; i >= 0; i--) {
        Op *op = &c->ops[i];
        c->stages[i] = (Stage){.fn = op_part,
                               .ctx = op,
                               .n_parts = (int)(op->n_items < most ? op->n_items : most),
                               .later = later,
                               .later_bytes = later_bytes};
        const PackedMatrix *first = op->products[0].m;
        /* the second half of a product, after the operation that sends the first */
        bool is_second_half = i >= 2 && c->ops[i - 2].n_rows && first == c->ops[i - 2].products[0].m;
        if (op->n_rows == 0 || is_second_half) continue;
        later = (const char *)first->data + (size_t)near_share(c, first).first * first->tile_bytes, later_bytes = 0;
        for (int k = 0; k < op->n_products; k++)
            later_bytes += (size_t)share_size(near_share(c, op->products[k].m)) * op->products[k].m->tile_bytes;
    }
}

/* Counts the rows whose logits are wanted, and the most keys that a row sees. */
static void count_rows(CpuContext *c) {
    c->longest = c->n_logits = 0;
    c->only_best = c->model->hparams.n_vocab > 1;
    for (int32_t i = 0; i < c->n_rows; i++) {
        const RowPlace *r = &c->rows[i];
        if (r->n_prefix + r->n_path > c->longest) c->longest = r->n_prefix + r->n_path;
        if (r->i_logits >= c->n_logits) c->n_logits = r->i_logits + 1;
        if (r->i_logits >= 0 && !r->only_best) c->only_best = false;
    }
}

void cpu_forward(Context *context, const RowPlace *rows, int32_t n_rows) {
    CpuContext *c = (CpuContext *)context;
    c->rows = rows;
    c->n_rows = n_rows;
    count_rows(c);
    c->n_row_groups = attention_group_rows(c, c->row_groups);
    if (c->states.n_layer) state_walk_plan(&c->states.walk, rows, n_rows);
    int n = write_ops(c);
    write_stages(c, n);
    if (c->part_s) memset(c->stage_s, 0, (size_t)n * sizeof *c->stage_s);
    if (c->part_s) threads_time(c->threads, c->stage_s);
    threads_run_stages(c->threads, c->stages, n);
    if (c->part_s) threads_time(c->threads, NULL);
    cpu_note_times(c, n);
    if (c->squares) c->squares->n_rows += n_rows;
}

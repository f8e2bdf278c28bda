/* forward.c - the forward on the CPU: rows that the executor has placed, through all layers (executor.h says what a
 * row sees).
 *
 * Threads. A forward is one parallel region: the operations of all layers (layer.c) are written down first, then the
 * threads go through them, stage by stage. Each stage splits its outputs: rows (norms), heads, tiles of 16 output
 * rows (matrix products); attention.c splits pairs of row and KV head and, where these are few, long contexts. No sum
 * is split except at places that the context alone fixes, so no bit depends on the number of threads or on which
 * thread does which part. A thread that waits for the end of a stage prefetches the weights that it will need next.
 *
 * Tests: test_forward.c (tree = chain, chunking, threads, pages, neighbours), test_attention.c (long contexts),
 * test_golden.c and test_reference.c (the values).
 */
#include "compute/cpu/attention.h"

#include <string.h>

void convert_row(const Op *op, const float *x, int64_t i) {
    bool done[ACT_FORM_COUNT] = {false};
    for (int k = 0; k < op->n_products; k++) {
        const PackedMatrix *m = op->products[k].m;
        ActForm form = m->act;
        if (done[form]) continue;
        done[form] = true;
        char *out = (char *)op->c->acts[form] + row_at(i, (int64_t)act_row_bytes(form, m->n_in));
        op->c->kernels->act_convert(form, x, m->n_in, out);
    }
}

void cpu_multiply(const CpuContext *c, const PackedMatrix *m, const void *acts, int64_t n_rows, float *y,
                  int64_t stride, int64_t first, int64_t last) {
    c->kernels->matmul(m, acts, n_rows, y, stride, first, last);
    if (m->scale == 1) return;
    int64_t from = first * TILE_ROWS, to = last * TILE_ROWS < m->n_out ? last * TILE_ROWS : m->n_out;
    for (int64_t i = 0; i < n_rows; i++) {
        float *row = y + row_at(i, stride);
        for (int64_t o = from; o < to; o++) row[o] *= m->scale;
    }
}

/* A layer that a drafter brings may have no norm there. */
void norm_row(const CpuContext *c, float *out, const float *x, const float *norm) {
    const Hparams *h = &c->model->hparams;
    if (norm) c->kernels->rmsnorm(out, x, norm, h->n_embd, h->rms_eps);
    else memcpy(out, x, (size_t)h->n_embd * sizeof *out);
}

static void embed_rows(const Op *op, int64_t begin, int64_t end, int i_thread) {
    (void)i_thread;
    CpuContext *c = op->c;
    const Hparams *h = &c->model->hparams;
    for (int64_t i = begin; i < end; i++) {
        float *x = c->x + row_at(i, h->n_embd);
        if (c->rows[i].input) memcpy(x, c->rows[i].input, (size_t)h->n_embd * sizeof *x);
        else cpu_embedding_row(c->weights, c->rows[i].token, x);
        float scale = c->rows[i].input ? 1 : h->embedding_scale;
        for (int64_t k = 0; scale != 1 && k < h->n_embd; k++) x[k] *= scale;
        for (int k = 0; k < c->model->n_ropes; k++)
            rope_angles(model_rope(c->model, k, c->options.n_ctx), c->rows[i].position,
                        c->cos_sin + row_at((int64_t)k * c->options.max_rows + i, h->rope.n_rot));
    }
}

/* Final norm of the rows that want logits or their hidden state. */
static void finish_rows(const Op *op, int64_t begin, int64_t end, int i_thread) {
    (void)i_thread;
    CpuContext *c = op->c;
    int64_t n = c->model->hparams.n_embd;
    for (int64_t i = begin; i < end; i++) {
        const RowPlace *r = &c->rows[i];
        if (r->i_hidden < 0) continue;
        float *hidden = c->hidden + row_at(r->i_hidden, n);
        norm_row(c, hidden, c->x + row_at(i, n), op->norm);
        if (r->i_logits >= 0) convert_row(op, hidden, r->i_logits);
    }
}

static void logits_tiles(const Op *op, int64_t begin, int64_t end, int i_thread) {
    (void)i_thread;
    const Product *p = &op->products[0];
    cpu_multiply(op->c, p->m, op->c->acts[p->m->act], op->n_rows, p->y, p->m->n_out, begin, end);
    int64_t from = begin * TILE_ROWS, to = end * TILE_ROWS < p->m->n_out ? end * TILE_ROWS : p->m->n_out;
    for (int64_t i = 0; i < op->n_rows; i++)
        cpu_finish_logits(&op->c->model->hparams, op->c->kernels, p->y + row_at(i, p->m->n_out) + from, to - from);
}

void cpu_finish_logits(const Hparams *h, const Kernels *kernels, float *logits, int64_t n) {
    for (int64_t i = 0; h->logit_scale != 1 && i < n; i++) logits[i] *= h->logit_scale;
    if (h->logit_cap > 0) kernels->soft_cap(logits, n, h->logit_cap);
}

/* Returns how many there are. */
static int write_ops(CpuContext *c) {
    Op around = {.c = c, .n_products = 1, .products = {{&c->weights->output, c->logits}}, .norm = c->model->output_norm};
    Op *at = put_op(c->ops, around, FORWARD_EMBED, embed_rows, c->n_rows, 0);
    for (int32_t i = 0; i < c->model->hparams.n_layer; i++) at = layer_ops(c, i, at);
    at = put_op(at, around, FORWARD_NORM, finish_rows, c->n_rows, 0);
    if (c->n_logits)
        at = put_op(at, around, FORWARD_OUTPUT, logits_tiles, packed_n_tiles(&c->weights->output), c->n_logits);
    return (int)(at - c->ops);
}

static void op_part(void *ctx, int i_part, int n_parts, int i_thread) {
    const Op *op = ctx;
    int64_t begin, end;
    threads_split(op->n_items, 1, i_part, n_parts, &begin, &end);
    op->fn(op, begin, end, i_thread);
}

/* A stage of each operation, with the weights that the next product behind it reads. */
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
        if (op->n_rows == 0) continue;
        later = op->products[0].m->data, later_bytes = 0;
        for (int k = 0; k < op->n_products; k++) later_bytes += packed_bytes(op->products[k].m);
    }
}

/* How many rows want logits, and how many keys a row sees at most. */
static void count_rows(CpuContext *c) {
    c->longest = c->n_logits = 0;
    for (int32_t i = 0; i < c->n_rows; i++) {
        const RowPlace *r = &c->rows[i];
        if (r->n_prefix + r->n_path > c->longest) c->longest = r->n_prefix + r->n_path;
        if (r->i_logits >= c->n_logits) c->n_logits = r->i_logits + 1;
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

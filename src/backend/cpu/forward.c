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
 * Threads. A forward is one parallel region: the stages of all layers (layer.c) are written down first, then the threads go
 * through them. Each stage splits its outputs: rows (norms), heads, tiles of 16 output rows (matrix products); attention.c
 * splits pairs of row and KV head and, where these are few, long contexts. No sum is split but at places that the
 * context alone fixes, so no bit depends on the number of threads or on who does which part. A thread that waits for the end
 * of a stage asks memory for the weights that it will need next.
 *
 * Tests: test_forward.c (tree = chain, chunking, threads, pages, neighbours), test_attention.c (long contexts),
 * test_golden.c and test_reference.c (the values).
 */
#include "backend/cpu/forward.h"

#include <string.h>

void convert_row(const Step *s, const float *x, int64_t i) {
    bool done[ACT_FORM_COUNT] = {false};
    for (int k = 0; k < s->n_products; k++) {
        const PackedMatrix *m = s->products[k].m;
        ActForm form = m->act;
        if (done[form]) continue;
        done[form] = true;
        char *out = (char *)s->e->acts[form] + row_at(i, (int64_t)act_row_bytes(form, m->n_in));
        s->e->model->kernels->act_convert(form, x, m->n_in, out);
    }
}

/* A layer that a drafter brings may have no norm there. */
void norm_row(const Executor *e, float *out, const float *x, const float *norm) {
    const Hparams *h = &e->model->hparams;
    if (norm) e->model->kernels->rmsnorm(out, x, norm, h->n_embd, h->rms_eps);
    else memcpy(out, x, (size_t)h->n_embd * sizeof *out);
}

static void embed_rows(const Step *s, int64_t begin, int64_t end, int i_thread) {
    (void)i_thread;
    Executor *e = s->e;
    const Hparams *h = &e->model->hparams;
    for (int64_t i = begin; i < end; i++) {
        float *x = e->x + row_at(i, h->n_embd);
        if (e->rows[i].input) memcpy(x, e->rows[i].input, (size_t)h->n_embd * sizeof *x);
        else model_embedding(e->model, e->rows[i].token, x);
        rope_angles(&e->model->rope, e->rows[i].position, e->cos_sin + row_at(i, h->rope.n_rot));
    }
}

/* Final norm of the rows that want logits or their hidden state. */
static void finish_rows(const Step *s, int64_t begin, int64_t end, int i_thread) {
    (void)i_thread;
    Executor *e = s->e;
    int64_t n = e->model->hparams.n_embd;
    for (int64_t i = begin; i < end; i++) {
        const RowPlace *r = &e->rows[i];
        if (r->i_hidden < 0) continue;
        float *hidden = e->hidden + row_at(r->i_hidden, n);
        norm_row(e, hidden, e->x + row_at(i, n), s->norm);
        if (r->i_logits >= 0) convert_row(s, hidden, r->i_logits);
    }
}

static void logits_tiles(const Step *s, int64_t begin, int64_t end, int i_thread) {
    (void)i_thread;
    const Product *p = &s->products[0];
    s->e->model->kernels->matmul(p->m, s->e->acts[p->m->act], s->n_rows, p->y, p->m->n_out, begin, end);
}

/* Returns how many there are. */
static int write_steps(Executor *e) {
    Step around = {.e = e, .n_products = 1, .products = {{&e->model->output, e->logits}}, .norm = e->model->output_norm};
    Step *at = put_step(e->steps, around, FORWARD_EMBED, embed_rows, e->n_rows, 0);
    for (int32_t i = 0; i < e->model->hparams.n_layer; i++) at = layer_steps(e, i, at);
    at = put_step(at, around, FORWARD_NORM, finish_rows, e->n_rows, 0);
    if (e->n_logits) at = put_step(at, around, FORWARD_OUTPUT, logits_tiles, packed_n_tiles(&e->model->output), e->n_logits);
    return (int)(at - e->steps);
}

static void step_part(void *ctx, int i_part, int n_parts, int i_thread) {
    const Step *s = ctx;
    int64_t begin, end;
    threads_split(s->n_items, 1, i_part, n_parts, &begin, &end);
    s->fn(s, begin, end, i_thread);
}

/* A stage of each step, with the weights that the next product behind it reads. */
static void write_stages(Executor *e, int n) {
    int64_t n_threads = threads_count(e->threads), most = n_threads == 1 ? 1 : n_threads * PARTS_PER_THREAD;
    const void *later = NULL;
    size_t later_bytes = 0;
    for (int i = n - 1; i >= 0; i--) {
        Step *s = &e->steps[i];
        e->stages[i] = (Stage){.fn = step_part, .ctx = s, .n_parts = (int)(s->n_items < most ? s->n_items : most),
                               .later = later, .later_bytes = later_bytes};
        if (s->n_rows == 0) continue;
        later = s->products[0].m->data, later_bytes = 0;
        for (int k = 0; k < s->n_products; k++) later_bytes += packed_bytes(s->products[k].m);
    }
}

void forward_run(Executor *e) {
    e->longest = 0;
    for (int32_t i = 0; i < e->n_rows; i++)
        if (e->rows[i].n_prefix + e->rows[i].n_path > e->longest) e->longest = e->rows[i].n_prefix + e->rows[i].n_path;
    int n = write_steps(e);
    write_stages(e, n);
    if (e->kind_s) memset(e->stage_s, 0, (size_t)n * sizeof *e->stage_s);
    threads_run_stages(e->threads, e->stages, n);
    for (int i = 0; e->kind_s && i < n; i++) e->kind_s[e->steps[i].kind] += e->stage_s[i];
}

/* delta_net.c - layers with a recurrent state (Gated DeltaNet, DeltaNetSpec of model.h), as operations of the parallel region.
 *
 * The problem. What attention reads from the keys of all earlier positions, these layers read from one matrix a head, which every
 * position changes. Rows of a token tree see their ancestors alone: each row needs the matrix that its parent left, and
 * no row may change the matrix of the sequence, because its path may be rejected.
 *
 * The idea. The matrix of a sequence is that of its committed tokens, and a forward only reads it. A head is an item of work: one
 * thread passes the rows of a sequence depth first, with a few scratch matrices that stay in its cache (delta_walk.c). What
 * the recurrence reads of a row is kept (`inputs`, `gates`), so that the rows that are committed can move the matrix of the
 * sequence on afterwards (cpu_advance_states), when the next forward begins (sequence_states.c).
 *
 *     stage        items                       fused with it
 *     norm         rows                        conversion for the products
 *     products     tiles of qkv, z, beta, alpha
 *     recurrence   sequence x value head       convolution, norms of q and k, gates, the delta rule, norm, silu(z) *,
 *                                              conversion for o where heads are whole blocks of activations
 *     o            tiles of 16 outputs         x +=                                        (layer.c)
 *
 * A value head convolves the queries and keys of its key head itself: where several share them this is done more than once, which
 * costs 1 / dim of the recurrence.
 *
 * Invariants. A row's output results from the same operations in the same order wherever the row stands: `step` runs over the
 * positions of its path, one by one, in forwards as in cpu_advance_states; chunks, trees, threads and pages decide only when.
 * The matrix is single precision; gates are computed in double and rounded once.
 *
 * Cost. For each row and head 3 dim^2 multiplications and additions on a matrix that is in the cache, where attention has 2 dim for
 * each earlier position. The rows of a tree share the one read of the sequence's matrix from memory. A committed row passes the
 * recurrence twice. Memory: (channels + 2 heads) floats for each row and layer, DELTA_LEVELS matrices for each thread, and
 * for each state n_value_heads dim^2 + (n_conv - 1) channels floats for each layer.
 *
 * Proof: tests/golden/test_golden_own.c (llama.cpp's values), test_reference.c, test_forward.c (rows in trees, chunks,
 * batches), tests/unit/test_sequence_states.c. */
#include "backend/cpu/cpu.h"

#include "base/mem.h"

#include <math.h>
#include <string.h>

/* ---- memory -------------------------------------------------------------------------------------------- */

/* rmsnorm divides by the root of the mean, where the length is wanted; queries are divided by the root of dim as well. */
static void set_gains(CpuStates *s) {
    double dim = s->shape.dim;
    for (int32_t i = 0; i < s->shape.dim; i++) {
        s->ones[i] = 1;
        s->k_gain[i] = (float)(1 / sqrt(dim));
        s->q_gain[i] = (float)(1 / dim);
    }
}

int cpu_states_open(CpuContext *c, fr_error *err) {
    CpuStates *s = &c->states;
    const DeltaNetShape *d = &c->model->hparams.delta;
    *s = (CpuStates){.shape = *d, .n_layer = model_n_states(c->model)};
    if (s->n_layer == 0) return FR_OK;
    size_t rows = (size_t)c->options.max_rows, layers = (size_t)s->n_layer, all = layers * (size_t)c->options.n_states,
           channels = (size_t)delta_n_channels(d), dim = (size_t)d->dim, heads = (size_t)d->n_value_heads;
    const struct {
        float **out;
        size_t n, each;
    } wants[] = {{&s->conv, all * ((size_t)d->n_conv - 1), channels},
                 {&s->matrices, all * heads, dim * dim},
                 {&s->inputs, layers * rows, channels},
                 {&s->gates, layers * rows, 2 * heads},
                 {&s->z, rows, dim * heads},
                 {&s->scratch, (size_t)threads_count(c->threads) * DELTA_LEVELS, dim * dim},
                 {&s->zeros, channels, 1},
                 {&s->ones, dim, 1},
                 {&s->q_gain, dim, 1},
                 {&s->k_gain, dim, 1}};
    for (size_t i = 0; i < sizeof wants / sizeof *wants; i++) {
        size_t n = SIZE_MAX;
        if (size_mul(wants[i].n, wants[i].each, &n)) *wants[i].out = mem_calloc(n, sizeof(float));
        if (!*wants[i].out)
            return error_set(err, FR_ERR_MEMORY,
                             "out of memory: %d recurrent states and the inputs of %d rows do not fit; ask for fewer "
                             "sequences",
                             c->options.n_states, c->options.max_rows);
    }
    set_gains(s);
    return delta_walk_open(&s->walk, c->options.max_rows, err);
}

void cpu_states_close(CpuContext *c) {
    CpuStates *s = &c->states;
    float *const all[] = {s->conv,    s->matrices, s->inputs, s->gates,  s->z,
                          s->scratch, s->zeros,    s->ones,   s->q_gain, s->k_gain};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) mem_free(all[i]);
    delta_walk_close(&s->walk);
}

static float *inputs_of(const CpuContext *c, const CpuLayer *l, int32_t row) {
    return c->states.inputs + row_at((int64_t)l->place * c->options.max_rows + row, delta_n_channels(&c->states.shape));
}
static float *gates_of(const CpuContext *c, const CpuLayer *l, int32_t row) {
    return c->states.gates + row_at((int64_t)l->place * c->options.max_rows + row, 2 * c->states.shape.n_value_heads);
}
static float *conv_of(const CpuContext *c, const CpuLayer *l, int32_t sequence) {
    const DeltaNetShape *d = &c->states.shape;
    return c->states.conv +
           row_at(((int64_t)l->place * c->options.n_states + sequence) * (d->n_conv - 1), delta_n_channels(d));
}
static float *matrix_of(const CpuContext *c, const CpuLayer *l, int32_t sequence, int32_t head) {
    const DeltaNetShape *d = &c->states.shape;
    return c->states.matrices + row_at(((int64_t)l->place * c->options.n_states + sequence) * d->n_value_heads + head,
                                       (int64_t)d->dim * d->dim);
}

/* ---- one position of one head -------------------------------------------------------------------------- */

/* The inputs that a row's convolution reads, its own last. */
typedef struct Window {
    const float *x[MODEL_MAX_CONV];
} Window;

/* The input `back` positions before the end of a sequence of `length` tokens; zeros before the first. */
static const float *committed_input(const CpuContext *c, const CpuLayer *l, int32_t sequence, int32_t length,
                                    int32_t back) {
    const DeltaNetShape *d = &c->states.shape;
    if (back > length) return c->states.zeros;
    return conv_of(c, l, sequence) + row_at(d->n_conv - 1 - back, delta_n_channels(d));
}

static Window window_of_row(const CpuContext *c, const CpuLayer *l, const RowPlace *all, int32_t row) {
    Window w;
    const RowPlace *own = &all[row];
    int32_t n = c->states.shape.n_conv, back = 1;
    for (int32_t j = n - 1; j >= 0; j--) {
        w.x[j] = row >= 0 ? inputs_of(c, l, row) : committed_input(c, l, own->sequence, own->n_prefix, back++);
        row = row >= 0 ? all[row].parent : row;
    }
    return w;
}

/* One head of queries, keys or values. */
static void convolve(const CpuContext *c, const CpuLayer *l, const Window *w, int64_t first, float *out) {
    const DeltaNetShape *d = &c->states.shape;
    int64_t n_channels = delta_n_channels(d);
    const float *taps = l->conv + first, *x = w->x[0] + first;
    for (int64_t i = 0; i < d->dim; i++) out[i] = taps[i] * x[i];
    for (int32_t j = 1; j < d->n_conv; j++) {
        taps = l->conv + row_at(j, n_channels) + first, x = w->x[j] + first;
        for (int64_t i = 0; i < d->dim; i++) out[i] += taps[i] * x[i];
    }
    c->kernels->silu_mul(out, c->states.ones, d->dim);
}

/* Of head h: to = from, moved on by one position; and what its queries read, unless out is NULL. */
static void step(const CpuContext *c, const CpuLayer *l, int32_t h, const Window *w, const float *gates,
                 const float *from, float *to, float *out) {
    const CpuStates *s = &c->states;
    const DeltaNetSpec *spec = &l->spec->delta;
    float q[MODEL_MAX_DELTA_DIM], k[MODEL_MAX_DELTA_DIM], v[MODEL_MAX_DELTA_DIM];
    int64_t n = s->shape.dim, key = delta_key_head(spec, h), n_keys = s->shape.n_key_heads;
    float eps = (float)(DELTA_NORM_EPS / (double)n);
    fr_assert(n <= MODEL_MAX_DELTA_DIM && s->shape.n_conv >= 1 && s->shape.n_conv <= MODEL_MAX_CONV);
    if (out) convolve(c, l, w, key * n, q);
    convolve(c, l, w, (n_keys + key) * n, k);
    convolve(c, l, w, (2 * n_keys + h) * n, v);
    if (out) c->kernels->rmsnorm(q, q, s->q_gain, n, eps);
    c->kernels->rmsnorm(k, k, s->k_gain, n, eps);
    double x = (double)gates[delta_alpha_place(spec, h)] + (double)spec->dt[h];
    double softplus = x > 0 ? x + log1p(exp(-x)) : log1p(exp(x));
    double decay = exp((double)spec->a[h] * softplus);
    double beta = 1 / (1 + exp(-(double)gates[delta_beta_place(spec, h)]));
    c->kernels->delta_rule(from, to, n, k, v, (float)decay, (float)beta, out ? q : NULL, out);
}

/* ---- operations ------------------------------------------------------------------------------------------- */

static bool delta_converts(const CpuContext *c) { return c->states.shape.dim % ACT_BLOCK == 0; }

/* out = norm(read) * silu(z), in the place of z, and for o. */
static void finish_head(const Op *op, int32_t row, int32_t head, float *read) {
    CpuContext *c = op->c;
    int64_t n = c->states.shape.dim, at = head * n;
    float *z = c->states.z + row_at(row, delta_n_values(&c->states.shape)) + at;
    c->kernels->rmsnorm(read, read, op->l->spec->delta.norm, n, c->model->hparams.rms_eps);
    c->kernels->silu_mul(z, read, n);
    if (!delta_converts(c)) return;
    const PackedMatrix *o = &op->l->o;
    c->kernels->act_convert(o->act, z, n,
                            (char *)c->acts[o->act] + row_at(row, (int64_t)act_row_bytes(o->act, o->n_in)) +
                                act_offset(o->act, at));
}

static void pass_tree(const Op *op, const DeltaTree *tree, int32_t head, float *levels) {
    CpuContext *c = op->c;
    const RowPlace *all = c->rows - c->rows[0].row;
    int64_t size = (int64_t)c->states.shape.dim * c->states.shape.dim;
    float read[MODEL_MAX_DELTA_DIM];
    for (const DeltaVisit *v = c->states.walk.visits + tree->first; v < c->states.walk.visits + tree->first + tree->n;
         v++) {
        const RowPlace *r = &all[v->row];
        int32_t new_row = v->row - c->rows[0].row;
        Window w = window_of_row(c, op->l, all, v->row);
        float *to = levels + v->to * size;
        const float *from = v->from >= 0 ? levels + v->from * size : matrix_of(c, op->l, tree->sequence, head);
        if (v->from < 0 && r->n_prefix == 0) {
            memset(to, 0, (size_t)size * sizeof *to);
            from = to;
        }
        step(c, op->l, head, &w, gates_of(c, op->l, v->row), from, to, new_row >= 0 ? read : NULL);
        if (new_row >= 0) finish_head(op, new_row, head, read);
    }
}

/* Items: trees x heads. */
static void recurrence(const Op *op, int64_t begin, int64_t end, int i_thread) {
    const CpuStates *s = &op->c->states;
    float *levels = s->scratch + row_at(i_thread * (int64_t)DELTA_LEVELS, (int64_t)s->shape.dim * s->shape.dim);
    for (int64_t i = begin; i < end; i++)
        pass_tree(op, &s->walk.trees[i / s->shape.n_value_heads], (int32_t)(i % s->shape.n_value_heads), levels);
}

/* Tiles [begin, end) of all products side by side: each leaves its outputs in y, rows `stride` apart. */
static void product_tiles(const Op *op, int64_t begin, int64_t end, int i_thread) {
    (void)i_thread;
    CpuContext *c = op->c;
    for (int k = 0; k < op->n_products; k++) {
        const Product *p = &op->products[k];
        int64_t n = packed_n_tiles(p->m), first = begin > 0 ? begin : 0, last = end < n ? end : n;
        bool is_gate = p->m != &op->l->delta_qkv && p->m != &op->l->delta_z;
        int64_t stride = is_gate ? 2 * c->states.shape.n_value_heads : p->m->n_out;
        if (first < last) c->kernels->matmul(p->m, c->acts[p->m->act], op->n_rows, p->y, stride, first, last);
        begin -= n, end -= n;
    }
}

int delta_net_matrices(const CpuLayer *l, const PackedMatrix *out[4]) {
    const PackedMatrix *const all[] = {&l->delta_qkv, &l->delta_z, &l->delta_beta, &l->delta_alpha,
                                       &l->delta_beta_alpha};
    int n = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i]->n_out) out[n++] = all[i];
    return n;
}

Op *delta_net_ops(CpuContext *c, int32_t layer, Op *at) {
    const CpuLayer *l = &c->weights->layers[layer];
    const CpuStates *s = &c->states;
    const PackedMatrix *matrices[4];
    float *gates = gates_of(c, l, c->rows[0].row);
    int64_t n_tiles = 0;
    Op op = {.c = c, .layer = layer, .l = l, .norm = l->spec->attn_norm, .x = s->z};
    op.n_products = delta_net_matrices(l, matrices);
    for (int k = 0; k < op.n_products; k++) {
        const PackedMatrix *m = matrices[k];
        float *y = m == &l->delta_qkv     ? inputs_of(c, l, c->rows[0].row)
                   : m == &l->delta_z     ? s->z
                   : m == &l->delta_alpha ? gates + s->shape.n_value_heads
                                          : gates;
        op.products[k] = (Product){m, y};
        n_tiles += packed_n_tiles(m);
    }
    at = put_op(at, op, FORWARD_NORM, norm_rows, c->n_rows, 0);
    at = input_squares_op(c, layer, INPUT_QKV, c->normed, c->model->hparams.n_embd, at);
    at = put_op(at, op, FORWARD_QKV, product_tiles, n_tiles, c->n_rows);
    Op read = {.c = c, .layer = layer, .l = l, .x = s->z, .n_products = 1, .products = {{&l->o, c->delta}}};
    at = put_op(at, read, FORWARD_ATTENTION, recurrence, (int64_t)s->walk.n_trees * s->shape.n_value_heads, 0);
    at = input_squares_op(c, layer, INPUT_DELTA_O, s->z, delta_n_values(&s->shape), at);
    return delta_converts(c) ? at : put_op(at, read, FORWARD_ATTENTION, convert_rows, c->n_rows, 0);
}

/* ---- committed rows ----------------------------------------------------------------------------------------- */

typedef struct Advance {
    const CpuContext *c;
    const StateStep *steps;
    int64_t n_steps;
} Advance;

/* The input `back` positions before the end of the step, which has taken in n rows so far. */
static const float *input_of_step(const CpuContext *c, const CpuLayer *l, const StateStep *s, int32_t n, int32_t back) {
    if (back <= n) return inputs_of(c, l, s->rows[n - back]);
    return committed_input(c, l, s->from, s->length, back - n);
}

static void advance_head(const CpuContext *c, const CpuLayer *l, const StateStep *s, int32_t head) {
    float *to = matrix_of(c, l, s->to, head);
    const float *from = s->length ? matrix_of(c, l, s->from, head) : to;
    size_t bytes = (size_t)c->states.shape.dim * (size_t)c->states.shape.dim * sizeof *to;
    if (s->length == 0) memset(to, 0, bytes);
    else if (s->n_rows == 0 && from != to) memcpy(to, from, bytes);
    for (int32_t i = 0; i < s->n_rows; i++, from = to) {
        Window w;
        for (int32_t j = 0; j < c->states.shape.n_conv; j++)
            w.x[j] = input_of_step(c, l, s, i + 1, c->states.shape.n_conv - j);
        step(c, l, head, &w, gates_of(c, l, s->rows[i]), from, to, NULL);
    }
}

/* The layer with the place-th state. */
static const CpuLayer *layer_with_state(const CpuContext *c, int64_t place) {
    const CpuLayer *l = c->weights->layers;
    while (l->spec->mixer != MIXER_DELTA_NET || l->place != place) l++;
    return l;
}

/* Parts: steps x layers x heads. */
static void advance_matrices(void *ctx, int i_part, int n_parts, int i_thread) {
    (void)i_thread;
    const Advance *a = ctx;
    int64_t n_heads = a->c->states.shape.n_value_heads, n_layers = a->c->states.n_layer, begin, end;
    threads_split(a->n_steps * n_layers * n_heads, 1, i_part, n_parts, &begin, &end);
    for (int64_t i = begin; i < end; i++)
        advance_head(a->c, layer_with_state(a->c, i / n_heads % n_layers), &a->steps[i / n_heads / n_layers],
                     (int32_t)(i % n_heads));
}

/* The inputs of the last positions, the oldest first: what moves up comes from a later place. */
static void advance_inputs(const CpuContext *c, const StateStep *s) {
    int64_t n = delta_n_channels(&c->states.shape);
    for (int32_t place = 0; place < c->states.n_layer; place++) {
        const CpuLayer *l = layer_with_state(c, place);
        for (int32_t i = 0, last = c->states.shape.n_conv - 1; i < last; i++)
            memmove(conv_of(c, l, s->to) + row_at(i, n), input_of_step(c, l, s, s->n_rows, last - i),
                    (size_t)n * sizeof(float));
    }
}

void cpu_advance_states(Context *context, const StateStep *steps, int32_t n) {
    const CpuContext *c = (const CpuContext *)context;
    Advance a = {.c = c, .steps = steps, .n_steps = n};
    int64_t most = (int64_t)threads_count(c->threads) * PARTS_PER_THREAD,
            n_items = (int64_t)n * c->states.n_layer * c->states.shape.n_value_heads;
    if (n_items == 0) return;
    threads_run(c->threads, (int)(n_items < most ? n_items : most), advance_matrices, &a);
    for (int32_t i = 0; i < n; i++) advance_inputs(c, &steps[i]); /* all heads of a layer have read them */
}

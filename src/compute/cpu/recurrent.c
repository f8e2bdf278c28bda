/* recurrent.c - layers with a recurrent state, as operations of the parallel region: what their kinds share.
 *
 * The problem. What attention reads from the keys of all earlier positions, these layers read from a state, which every
 * position changes: the last inputs of a short convolution and, in most kinds, a matrix for each head. Rows of a token
 * tree see only their ancestors: each row needs the state that its parent left, and no row may change the state of the
 * sequence, because its path may be rejected.
 *
 * The idea. The state of a sequence is that of its committed tokens, and a forward only reads it. A head is an item of
 * work: one thread passes the rows of a sequence depth first, with a few scratch states that stay in its cache
 * (state_walk_plan). What the recurrence reads of a row is kept (`inputs`, `gates`), so that the rows that are
 * committed can move the state of the sequence on afterwards (cpu_advance_states), when the next forward begins
 * (compute/sequences.c).
 *
 *     stage        items                       fused with it
 *     norm         rows                        conversion for the products
 *     products     tiles of these matrices     (short convolution: the gate of its inputs)
 *     recurrence   sequence x head             convolution, gates, the recurrence, what becomes of the values,
 *                                              conversion for o where heads are whole blocks of activations
 *     (norm)       rows                        (Mamba-2) conversion for o
 *     o            tiles of 16 outputs         x +=                                        (layer.c)
 *
 * A kind of layer is a StateCell: what it computes of one position of one head. Heads that share inputs (queries and
 * keys of DeltaNet, B and C of Mamba-2) each convolve them, which costs some percent of the recurrence and saves a
 * stage.
 *
 * Invariants. A row's output results from the same operations in the same order wherever the row stands: `step` runs
 * over the positions of its path, one by one, in forwards as in cpu_advance_states; chunks, trees, threads and pages
 * decide only when. States are single precision; gates are computed in double and rounded once.
 *
 * Cost. The rows of a tree share the one read of the sequence's state from memory. A committed row passes the
 * recurrence twice. Memory: (channels + gates) floats for each row and layer, STATE_LEVELS states of a head for each
 * thread, and for each state of a sequence n_heads head_floats + (n_conv - 1) channels floats for each layer.
 *
 * Proof: tests/golden/test_golden_own.c (llama.cpp's values), test_reference.c, test_forward.c (rows in trees, chunks,
 * batches), tests/compute/test_sequence_states.c. */
#include "compute/cpu/cpu_ops.h"

#include "base/mem.h"

#include <string.h>

/* ---- the order of rows ------------------------------------------------------------------------------------------
 *
 * In which order a forward computes the rows of its token trees, where layers have a recurrent state.
 *
 * The problem. A row begins with the state that its parent leaves: dim x dim numbers for each head, which lie in the
 * cache of a core for one head and are far too many for one copy a row.
 *
 * The idea. Depth first, one head at a time, with a few scratch states. A row that is the last child of its parent
 * overwrites the parent's state, which nobody needs any more; for another child a state of the next level is written.
 * The child with the most rows below it comes last. So a level more is a subtree of at most half the rows, and 4096
 * rows need 13 levels. A chain needs one.
 *
 * Example. a has children b and c, b has child d:     visits  row  from       to
 *                                                             a    committed  0
 *                                                             c    0          1
 *                                                             b    0          0
 *                                                             d    0          0
 *
 * Rows of earlier runs (executor_extend) are passed again where rows of this one stand below them; the bits are
 * those that they had. Proof: tests/compute/test_state_walk.c. */

int state_walk_open(StateWalk *w, int32_t max_rows, fr_error *err) {
    size_t n = (size_t)max_rows;
    *w = (StateWalk){.visits = mem_calloc(n, sizeof *w->visits), .trees = mem_calloc(n, sizeof *w->trees)};
    int32_t **const lists[] = {&w->size, &w->first_child, &w->next, &w->heavy, &w->level, &w->stack};
    const size_t n_lists = sizeof lists / sizeof *lists;
    int32_t *memory = mem_calloc(n * n_lists,
                                 sizeof *memory); /* all arrays are in one block, which begins with w->size */
    for (size_t i = 0; i < n_lists && memory; i++) *lists[i] = memory + i * n;
    return memory && w->visits && w->trees ? FR_OK : error_memory(err, "the order of rows", n * sizeof *w->visits);
}

void state_walk_close(StateWalk *w) {
    mem_free(w->visits);
    mem_free(w->trees);
    mem_free(w->size);
}

/* Counts for each row the rows of its subtree that are new or have new ones below. Then lists the children of each row
 * that have such rows, and notes the child that has the most. */
static void link_rows(StateWalk *w, const RowPlace *all, int32_t first_new, int32_t n) {
    for (int32_t i = 0; i < n; i++) w->size[i] = 0, w->first_child[i] = w->heavy[i] = -1;
    for (int32_t i = n - 1; i >= 0; i--) {
        int32_t parent = all[i].parent;
        if (i < first_new && w->size[i] == 0) continue;
        w->size[i]++;
        if (parent < 0) continue;
        w->size[parent] += w->size[i];
        w->next[i] = w->first_child[parent];
        w->first_child[parent] = i;
        if (w->heavy[parent] < 0 || w->size[i] > w->size[w->heavy[parent]]) w->heavy[parent] = i;
    }
}

/* Plans the visits of a row and of all rows below it. They may use every level, because the states of earlier roots are
 * not needed any more. */
static void visit_subtree(StateWalk *w, const RowPlace *all, int32_t root) {
    int32_t n_stack = 0;
    w->stack[n_stack++] = root;
    while (n_stack) {
        int32_t row = w->stack[--n_stack], parent = all[row].parent;
        StateVisit v = {.row = row, .from = STATE_COMMITTED, .to = 0};
        if (parent >= 0) {
            v.from = w->level[parent];
            v.to = v.from + (w->heavy[parent] != row);
        }
        fr_assert(v.to < STATE_LEVELS);
        w->visits[w->n_visits++] = v;
        w->level[row] = v.to;
        if (w->heavy[row] >= 0) w->stack[n_stack++] = w->heavy[row]; /* the largest child is visited last */
        for (int32_t i = w->first_child[row]; i >= 0; i = w->next[i])
            if (i != w->heavy[row]) w->stack[n_stack++] = i;
    }
}

static StateTree *tree_of(StateWalk *w, int32_t sequence) {
    for (int32_t i = 0; i < w->n_trees; i++)
        if (w->trees[i].sequence == sequence) return &w->trees[i];
    return NULL;
}

void state_walk_plan(StateWalk *w, const RowPlace *rows, int32_t n) {
    const RowPlace *all = rows - rows[0].row;
    int32_t first_new = rows[0].row, n_all = first_new + n;
    w->n_visits = w->n_trees = 0;
    link_rows(w, all, first_new, n_all);
    for (int32_t i = first_new; i < n_all; i++)
        if (!tree_of(w, all[i].sequence)) w->trees[w->n_trees++] = (StateTree){.sequence = all[i].sequence};
    for (StateTree *t = w->trees; t < w->trees + w->n_trees; t++) {
        t->first = w->n_visits;
        for (int32_t i = 0; i < n_all; i++)
            if (all[i].sequence == t->sequence && all[i].parent < 0 && w->size[i] > 0) visit_subtree(w, all, i);
        t->n = w->n_visits - t->first;
    }
}

/* ---- memory -------------------------------------------------------------------------------------------- */

static const StateCell *cell_of(const Model *m) {
    for (int32_t i = 0; i < m->hparams.n_layer; i++) {
        MixerKind mixer = m->layers[i].mixer;
        if (layer_has_state(&m->layers[i]))
            return mixer == MIXER_DELTA_NET ? &delta_net_cell : mixer == MIXER_MAMBA2 ? &mamba2_cell : &short_conv_cell;
    }
    return NULL;
}

/* Returns the layer whose state has number `place`. */
static const CpuLayer *layer_with_state(const CpuContext *c, int64_t place) {
    const CpuLayer *l = c->weights->layers;
    while (!layer_has_state(l->spec) || l->place != place) l++;
    return l;
}

int cpu_states_open(CpuContext *c, fr_error *err) {
    CpuStates *s = &c->states;
    const StateShape *d = &c->model->hparams.state;
    *s = (CpuStates){.shape = *d, .cell = cell_of(c->model), .n_layer = model_n_states(c->model)};
    if (s->n_layer == 0) return FR_OK;
    Share own = layer_with_state(c, 0)->units;
    s->first_head = own.first, s->n_heads = share_size(own);
    size_t rows = (size_t)c->options.max_rows, layers = (size_t)s->n_layer, all = layers * (size_t)c->options.n_states,
           channels = (size_t)d->n_channels, head = (size_t)d->head_floats, dim = MODEL_MAX_STATE_DIM;
    const struct {
        float **out;
        size_t n, each;
    } wants[] = {{&s->conv, all * ((size_t)d->n_conv - 1), channels},
                 {&s->heads, all * (size_t)s->n_heads, head},
                 {&s->inputs, layers * rows, channels},
                 {&s->gates, layers * rows, (size_t)d->n_gates},
                 {&s->z, rows, (size_t)d->n_values},
                 {&s->scratch, (size_t)threads_count(c->threads) * STATE_LEVELS, head},
                 {&s->zeros, channels, 1},
                 {&s->ones, dim, 1},
                 {&s->q_gain, dim, 1},
                 {&s->k_gain, dim, 1}};
    for (size_t i = 0; i < sizeof wants / sizeof *wants; i++) {
        size_t n = SIZE_MAX;
        if (size_mul(wants[i].n, wants[i].each, &n)) *wants[i].out = cpu_context_keep(c, mem_calloc(n, sizeof(float)));
        if (!*wants[i].out)
            return error_set(err, FR_ERR_MEMORY,
                             "out of memory: %d recurrent states and the inputs of %d rows do not fit; ask for fewer "
                             "sequences",
                             c->options.n_states, c->options.max_rows);
    }
    for (size_t i = 0; i < dim; i++) s->ones[i] = 1;
    if (s->cell->open) s->cell->open(s);
    return state_walk_open(&s->walk, c->options.max_rows, err);
}

static float *inputs_of(const CpuContext *c, const CpuLayer *l, int32_t row) {
    return c->states.inputs + row_at((int64_t)l->place * c->options.max_rows + row, c->states.shape.n_channels);
}
static float *gates_of(const CpuContext *c, const CpuLayer *l, int32_t row) {
    return c->states.gates + row_at((int64_t)l->place * c->options.max_rows + row, c->states.shape.n_gates);
}
static float *conv_of(const CpuContext *c, const CpuLayer *l, int32_t sequence) {
    const StateShape *d = &c->states.shape;
    return c->states.conv +
           row_at(((int64_t)l->place * c->options.n_states + sequence) * (d->n_conv - 1), d->n_channels);
}
static float *state_of(const CpuContext *c, const CpuLayer *l, int32_t sequence, int32_t head) {
    const StateShape *d = &c->states.shape;
    return c->states.heads + row_at(((int64_t)l->place * c->options.n_states + sequence) * c->states.n_heads + head -
                                        c->states.first_head,
                                    d->head_floats);
}

/* ---- the convolution ------------------------------------------------------------------------------------- */

/* Returns the input `back` positions before the end of a sequence of `length` tokens, or zeros before its first
 * token. */
static const float *committed_input(const CpuContext *c, const CpuLayer *l, int32_t sequence, int32_t length,
                                    int32_t back) {
    const StateShape *d = &c->states.shape;
    if (back > length) return c->states.zeros;
    return conv_of(c, l, sequence) + row_at(d->n_conv - 1 - back, d->n_channels);
}

static StateWindow window_of_row(const CpuContext *c, const CpuLayer *l, const RowPlace *all, int32_t row) {
    StateWindow w;
    const RowPlace *own = &all[row];
    int32_t n = c->states.shape.n_conv, back = 1;
    fr_assert(n >= 1 && n <= MODEL_MAX_CONV);
    for (int32_t j = n - 1; j >= 0; j--) {
        w.x[j] = row >= 0 ? inputs_of(c, l, row) : committed_input(c, l, own->sequence, own->n_prefix, back++);
        row = row >= 0 ? all[row].parent : row;
    }
    return w;
}

void state_convolve(const CpuContext *c, const CpuLayer *l, const StateWindow *w, int64_t first, int64_t n,
                    float *out) {
    const StateShape *d = &c->states.shape;
    const float *taps = l->conv + first, *x = w->x[0] + first;
    for (int64_t i = 0; i < n; i++) out[i] = taps[i] * x[i];
    for (int32_t j = 1; j < d->n_conv; j++) {
        taps = l->conv + row_at(j, d->n_channels) + first, x = w->x[j] + first;
        for (int64_t i = 0; i < n; i++) out[i] += taps[i] * x[i];
    }
}

/* ---- operations ------------------------------------------------------------------------------------------- */

/* Returns whether the heads' values can be converted for o one head at a time, and nothing comes between. */
static bool converts_heads(const CpuStates *s) { return !s->cell->finish_row && s->shape.head_dim % ACT_BLOCK == 0; }

static void convert_head(const Op *op, int32_t row, int32_t head, const float *z) {
    const PackedMatrix *o = op->l->matrices[MATRIX_O];
    CpuContext *c = op->c;
    c->kernels->act_convert(o->act, z, state_head_values(&c->states.shape, head),
                            (char *)c->acts[o->act] + row_at(row, (int64_t)act_row_bytes(o->act, o->n_in)) +
                                act_offset(o->act, head * c->states.shape.head_dim));
}

static void pass_tree(const Op *op, const StateTree *tree, int32_t head, float *levels) {
    CpuContext *c = op->c;
    const CpuStates *s = &c->states;
    const RowPlace *all = c->rows - c->rows[0].row;
    int64_t size = s->shape.head_floats;
    float read[MODEL_MAX_STATE_DIM];
    for (const StateVisit *v = s->walk.visits + tree->first; v < s->walk.visits + tree->first + tree->n; v++) {
        const RowPlace *r = &all[v->row];
        int32_t new_row = v->row - c->rows[0].row;
        StateWindow w = window_of_row(c, op->l, all, v->row);
        float *to = levels + v->to * size;
        const float *from = v->from >= 0 ? levels + v->from * size : state_of(c, op->l, tree->sequence, head);
        if (v->from < 0 && r->n_prefix == 0) {
            memset(to, 0, (size_t)size * sizeof *to);
            from = to;
        }
        s->cell->step(c, op->l, head, &w, gates_of(c, op->l, v->row), from, to, new_row >= 0 ? read : NULL);
        if (new_row < 0) continue;
        float *z = s->z + row_at(new_row, s->shape.n_values) + head * s->shape.head_dim;
        s->cell->finish(c, op->l, read, state_head_values(&s->shape, head), z);
        if (converts_heads(s)) convert_head(op, new_row, head, z);
    }
}

/* The items are the pairs of a tree and a head of this rank. */
static void recurrence(const Op *op, int64_t begin, int64_t end, int i_thread) {
    const CpuStates *s = &op->c->states;
    float *levels = s->scratch + row_at(i_thread * (int64_t)STATE_LEVELS, s->shape.head_floats);
    for (int64_t i = begin; i < end; i++)
        pass_tree(op, &s->walk.trees[i / s->n_heads], (int32_t)(s->first_head + i % s->n_heads), levels);
}

static void finish_rows(const Op *op, int64_t begin, int64_t end, int i_thread) {
    (void)i_thread;
    int64_t n = op->c->states.shape.n_values;
    for (int64_t i = begin; i < end; i++) {
        op->c->states.cell->finish_row(op->c, op->l, op->c->states.z + row_at(i, n));
        convert_row(op, op->x + row_at(i, n), i);
    }
}

void state_product_tiles(const Op *op, int k, int64_t begin, int64_t end) {
    const Product *p = &op->products[k];
    bool is_gates = p->m == op->l->matrices[MATRIX_STATE_GATES] || p->m == op->l->matrices[MATRIX_STATE_MORE_GATES];
    int64_t stride = is_gates ? op->c->states.shape.n_gates : p->m->n_out;
    cpu_multiply(op->c, p->m, op->c->acts[p->m->act], op->n_rows, p->y, stride, begin, end);
}

/* Returns the tiles of a product that this rank computes (split.c). */
static Share own_tiles(const CpuContext *c, const CpuLayer *l, const PackedMatrix *m) {
    if (m == &l->value_inputs) return cpu_share_value_inputs(c->weights, l->spec, m);
    for (LayerMatrix k = MATRIX_STATE_INPUTS; k <= MATRIX_STATE_MORE_GATES; k++)
        if (m == l->matrices[k]) return cpu_share_tiles(c->weights, l->spec, k, m);
    return (Share){0, packed_n_tiles(m)};
}

/* Computes tiles [begin, end), counted over those that this rank computes of all products one after another. */
static void product_tiles(const Op *op, int64_t begin, int64_t end, int i_thread) {
    (void)i_thread;
    for (int k = 0; k < op->n_products; k++) {
        Share own = own_tiles(op->c, op->l, op->products[k].m);
        int64_t n = share_size(own), first = begin > 0 ? begin : 0, last = end < n ? end : n;
        if (first < last) state_product_tiles(op, k, own.first + first, own.first + last);
        begin -= n, end -= n;
    }
}

/* Lists the products of a layer with its normed input. Returns their number. */
static int state_products(CpuContext *c, const CpuLayer *l, Product out[5]) {
    const PackedMatrix *first_gates = l->matrices[MATRIX_STATE_GATES];
    float *gates = gates_of(c, l, c->rows[0].row);
    const struct {
        LayerMatrix m;
        float *y;
    } all[] = {{MATRIX_STATE_INPUTS, inputs_of(c, l, c->rows[0].row)},
               {MATRIX_STATE_FACTOR, c->delta},
               {MATRIX_STATE_Z, c->states.z},
               {MATRIX_STATE_GATES, gates},
               {MATRIX_STATE_MORE_GATES, gates + (first_gates ? first_gates->n_out : 0)}};
    int n = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (l->matrices[all[i].m]) out[n++] = (Product){l->matrices[all[i].m], all[i].y};
    if (l->value_inputs.data) out[n++] = (Product){&l->value_inputs, inputs_of(c, l, c->rows[0].row)};
    return n;
}

/* Lets all ranks have the values of all heads, in the form that the next operation reads. */
static Op *exchange_values(Op *at, Op read) {
    const CpuStates *s = &read.c->states;
    const PackedMatrix *o = read.products[0].m;
    Exchange values = {.rows = s->z, .n_rows = read.c->n_rows, .n = s->shape.n_values, .cut = CUT_HEADS};
    if (converts_heads(s)) values.rows = read.c->acts[o->act], values.is_acts = true, values.form = o->act;
    return put_exchange(at, read, FORWARD_ATTENTION, values);
}

Op *recurrent_ops(CpuContext *c, int32_t layer, Op *at) {
    const CpuLayer *l = &c->weights->layers[layer];
    const CpuStates *s = &c->states;
    int64_t n_tiles = 0;
    Op op = {.c = c, .layer = layer, .l = l, .norm = l->spec->attn_norm};
    op.n_products = state_products(c, l, op.products);
    for (int k = 0; k < op.n_products; k++) n_tiles += share_size(own_tiles(c, l, op.products[k].m));
    at = put_op(at, op, FORWARD_NORM, norm_rows, c->n_rows, 0);
    at = input_squares_op(c, layer, INPUT_QKV, c->normed, c->model->hparams.n_embd, at);
    if (s->cell->products) {
        Share own = own_tiles(c, l, op.products[0].m);
        op.first_item = own.first;
        at = put_op(at, op, FORWARD_QKV, s->cell->products, share_size(own), c->n_rows);
    } else at = put_op(at, op, FORWARD_QKV, product_tiles, n_tiles, c->n_rows);
    Op read =
        {.c = c, .layer = layer, .l = l, .x = s->z, .n_products = 1, .products = {{l->matrices[MATRIX_O], c->delta}}};
    at = put_op(at, read, FORWARD_ATTENTION, recurrence, (int64_t)s->walk.n_trees * s->n_heads, 0);
    if (cpu_divides_state(c->weights, l->spec)) at = exchange_values(at, read);
    if (s->cell->finish_row) at = put_op(at, read, FORWARD_ATTENTION, finish_rows, c->n_rows, 0);
    at = input_squares_op(c, layer, INPUT_STATE_O, s->z, s->shape.n_values, at);
    return s->cell->finish_row || converts_heads(s) ? at
                                                    : put_op(at, read, FORWARD_ATTENTION, convert_rows, c->n_rows, 0);
}

/* ---- committed rows ----------------------------------------------------------------------------------------- */

typedef struct Advance {
    const CpuContext *c;
    const StateStep *steps;
    int64_t n_steps;
} Advance;

/* Returns the input `back` positions before the end of a step that has taken in n rows so far. */
static const float *input_of_step(const CpuContext *c, const CpuLayer *l, const StateStep *s, int32_t n, int32_t back) {
    if (back <= n) return inputs_of(c, l, s->rows[n - back]);
    return committed_input(c, l, s->from, s->length, back - n);
}

static void advance_head(const CpuContext *c, const CpuLayer *l, const StateStep *s, int32_t head) {
    float *to = state_of(c, l, s->to, head);
    const float *from = s->length ? state_of(c, l, s->from, head) : to;
    size_t bytes = (size_t)c->states.shape.head_floats * sizeof *to;
    if (s->length == 0) memset(to, 0, bytes);
    else if (s->n_rows == 0 && from != to) memcpy(to, from, bytes);
    for (int32_t i = 0; i < s->n_rows; i++, from = to) {
        StateWindow w;
        for (int32_t j = 0; j < c->states.shape.n_conv; j++)
            w.x[j] = input_of_step(c, l, s, i + 1, c->states.shape.n_conv - j);
        c->states.cell->step(c, l, head, &w, gates_of(c, l, s->rows[i]), from, to, NULL);
    }
}

/* The parts are the triples of a step, a layer and a head. */
static void advance_heads(void *ctx, int i_part, int n_parts, int i_thread) {
    (void)i_thread;
    const Advance *a = ctx;
    int64_t n_heads = a->c->states.n_heads, n_layers = a->c->states.n_layer, begin, end;
    threads_split(a->n_steps * n_layers * n_heads, 1, i_part, n_parts, &begin, &end);
    for (int64_t i = begin; i < end; i++)
        advance_head(a->c, layer_with_state(a->c, i / n_heads % n_layers), &a->steps[i / n_heads / n_layers],
                     (int32_t)(a->c->states.first_head + i % n_heads));
}

/* Keeps the inputs of the last positions, the oldest first. Ascending order is safe, because an input moves to an
 * earlier place. */
static void advance_inputs(const CpuContext *c, const StateStep *s) {
    int64_t n = c->states.shape.n_channels;
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
            n_items = (int64_t)n * c->states.n_layer * c->states.n_heads;
    if (n_items && c->states.shape.head_floats)
        threads_run(c->threads, (int)(n_items < most ? n_items : most), advance_heads, &a);
    for (int32_t i = 0; i < n; i++)
        advance_inputs(c, &steps[i]); /* all heads of the layer have read the inputs by now */
}

/* ---- saving: the inputs of the convolution and the heads of each layer ------------------------------------- */

static size_t conv_bytes(const CpuStates *s) {
    return (size_t)(s->shape.n_conv - 1) * (size_t)s->shape.n_channels * sizeof(float);
}
static size_t heads_bytes(const CpuStates *s) {
    return (size_t)s->n_heads * (size_t)s->shape.head_floats * sizeof(float);
}

size_t cpu_state_bytes(const Context *context) {
    const CpuStates *s = &((const CpuContext *)context)->states;
    return s->n_layer ? (size_t)s->n_layer * (conv_bytes(s) + heads_bytes(s)) : 0;
}

void cpu_read_state(Context *context, int32_t state, void *out) {
    const CpuContext *c = (const CpuContext *)context;
    size_t n_conv = conv_bytes(&c->states), n_heads = heads_bytes(&c->states);
    char *at = out;
    for (int32_t place = 0; place < c->states.n_layer; place++, at += n_conv + n_heads) {
        const CpuLayer *l = layer_with_state(c, place);
        memcpy(at, conv_of(c, l, state), n_conv);
        memcpy(at + n_conv, state_of(c, l, state, (int32_t)c->states.first_head), n_heads);
    }
}

void cpu_write_state(Context *context, int32_t state, const void *bytes) {
    const CpuContext *c = (const CpuContext *)context;
    size_t n_conv = conv_bytes(&c->states), n_heads = heads_bytes(&c->states);
    const char *at = bytes;
    for (int32_t place = 0; place < c->states.n_layer; place++, at += n_conv + n_heads) {
        const CpuLayer *l = layer_with_state(c, place);
        memcpy(conv_of(c, l, state), at, n_conv);
        memcpy(state_of(c, l, state, (int32_t)c->states.first_head), at + n_conv, n_heads);
    }
}

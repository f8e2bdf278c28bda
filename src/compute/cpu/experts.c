/* experts.c - a feed-forward part of experts, as operations of the parallel region.
 *
 *     p     = softmax(Wrouter m)                              m = norm(x); biases where the model has them
 *     x    += sum over the k greatest p_e of  w_e Wdown_e (f(Wgate_e m) * (Wup_e m))
 *     w_e   = p_e / (sum of the chosen p)                     or p_e itself, as the architecture wants
 *
 * In Gemma 4 the shared expert, the router and the experts each read a norm of their own, one after the other, and what
 * the shared expert and the experts give is normed before it is added.
 *
 * Some models have a shared expert, which every row uses, weighted by a sigmoid of its own. The probabilities of
 * DeepSeek-V3 are sigmoids; its experts are chosen by p_e + bias_e from the groups whose two greatest values have the
 * greatest sum (in V2: whose greatest value is the greatest), and a factor multiplies the weights. The weights of Llama
 * 4 multiply what an expert reads; here they multiply the outputs of gate and up.
 *
 * The problem. A batch of rows chooses different experts. Row by row, the weights of an expert would be read once for
 * each row that chose it; and which weights are read, and how many products there are, is known only in the middle of
 * the forward, when its operations have been written already.
 *
 * The idea. Rows are gathered by expert. Each choice (row, k-th expert) gets a place; the places of an expert are
 * contiguous, so that one product for each chosen expert reads its weights once for all its rows:
 *
 *     stage       items                         fused with it
 *     norm        rows                          conversion for the router, gate and up
 *     router      tiles of 16 experts
 *     choose      rows                          softmax, the k best, their weights
 *     gather      one                           places, groups, and the numbers of items of the next three
 *     copy        places                        the activations of each place
 *     gate, up    groups x 32 outputs of both   f(gate) * up, conversion for down
 *     down        groups x tiles of 16
 *     sum         tiles of 16 outputs           the weighted sum in order of the choice; the shared expert; x +=
 *
 * Example. Three rows choose {0, 2}, {2, 1}, {2, 0}: groups 0: rows 0, 2; 1: row 1; 2: rows 0, 1, 2. Six places, and
 * three products instead of six.
 *
 * Invariants. The output of a row depends only on the row: the rows that share its experts are multiplied in the same
 * product, and matmul gives the same bits in any product. Router probabilities are computed in double from the float
 * logits, in ascending order; of equal logits the first expert wins; the sum runs from the most probable choice to the
 * least. A router whose logits are not finite makes weights of NaN, and so the row's logits, which the engine refuses.
 *
 * Cost. Two stages of a few microseconds more than a dense layer, and n rows read about E (1 - (1 - k/E)^n) experts'
 * weights: with few experts chosen of many, eight rows read nearly eight times as much as one. Where trees lose
 * because of that, the cost model knows it (cpu_cost.c). Proof: tests/golden/test_reference.c. */
#include "compute/cpu/cpu_ops.h"
#include "base/math_functions.h"
#include "base/mem.h"

#include <math.h>
#include <string.h>

/* ---- which experts --------------------------------------------------------------------------------- */

static void router_tiles(const Op *op, int64_t begin, int64_t end, int i_thread) {
    (void)i_thread;
    const Product *p = &op->products[0];
    cpu_multiply(op->c, p->m, op->c->acts[p->m->act], op->n_rows, p->y, p->m->n_out, begin, end);
}

static double sigmoid(double x) { return 1 / (1 + math_exp(-x)); }

/* Returns the index of the greatest value that is below `below`, or equal to it with an index above `after`; -1 if
 * there is none. */
static int32_t next_best(const double *values, int32_t n, double below, int32_t after) {
    int32_t best = -1;
    for (int32_t i = 0; i < n; i++) {
        bool is_left = values[i] < below || (values[i] == below && i > after);
        if (is_left && (best < 0 || values[i] > values[best])) best = i;
    }
    return best;
}

/* The router of a row, with the greatest logit and the sum that a softmax divides by. */
typedef struct Router {
    const LayerSpec *l;
    const float *logits; /* [n] */
    int32_t n;
    double largest, total;
} Router;

static Router router_of(const LayerSpec *l, const float *logits, int32_t n) {
    Router r = {.l = l, .logits = logits, .n = n, .largest = -INFINITY};
    for (int32_t i = 0; i < n; i++) r.largest = fmax(r.largest, (double)logits[i]);
    for (int32_t i = 0; i < n; i++) r.total += math_exp((double)logits[i] - r.largest);
    return r;
}

/* Returns the probability of expert i; NaN if any logit is not finite. */
static double probability(const Router *r, int32_t i) {
    if (r->l->router_gate == ROUTER_SIGMOID) return isfinite(r->total) ? sigmoid((double)r->logits[i]) : NAN;
    return math_exp((double)r->logits[i] - r->largest) / r->total;
}

static double score_of_group(const LayerSpec *l, const double *by, int32_t n) {
    int32_t first = next_best(by, n, INFINITY, -1), second = first < 0 ? -1 : next_best(by, n, by[first], first);
    if (first < 0) return NAN;
    return l->router_gate == ROUTER_SOFTMAX || second < 0 ? by[first] : by[first] + by[second];
}

/* Sets the values of all groups except the best to -infinity. */
static void keep_best_groups(const LayerSpec *l, double *by, int32_t n) {
    int32_t each = n / l->n_groups, after = -1;
    double scores[MODEL_MAX_EXPERTS], below = INFINITY;
    bool is_kept[MODEL_MAX_EXPERTS] = {false};
    for (int32_t g = 0; g < l->n_groups; g++) scores[g] = score_of_group(l, by + g * each, each);
    for (int32_t k = 0; k < l->n_groups_used; k++) {
        int32_t g = next_best(scores, l->n_groups, below, after);
        if (g < 0) return; /* this happens only if logits are not finite, and then the weights will be NaN */
        is_kept[g] = true, below = scores[g], after = g;
    }
    for (int32_t g = 0; g < l->n_groups; g++)
        for (int32_t i = g * each; i < (g + 1) * each && !is_kept[g]; i++) by[i] = -INFINITY;
}

/* Computes the values by which experts are chosen: logits, which have the order of the probabilities, or
 * probabilities with a bias. */
static void fill_scores(const Router *r, double *by) {
    bool by_logits = r->l->router_gate == ROUTER_SOFTMAX && !r->l->choice_bias;
    for (int32_t i = 0; i < r->n; i++)
        by[i] = by_logits ? (double)r->logits[i]
                          : probability(r, i) + (r->l->choice_bias ? (double)r->l->choice_bias[i] : 0);
    if (r->l->n_groups) keep_best_groups(r->l, by, r->n);
}

static void choose_of_row(const LayerSpec *l, const float *logits, int32_t n, ExpertChoice *out) {
    const Router r = router_of(l, logits, n);
    double chosen = 0, p[MODEL_MAX_EXPERTS_USED], by[MODEL_MAX_EXPERTS] = {0}, below = INFINITY;
    double scale = l->expert_scale != 0 ? (double)l->expert_scale : 1;
    int32_t after = -1;
    fill_scores(&r, by);
    for (int32_t k = 0; k < l->n_expert_used; k++) {
        int32_t e = next_best(by, n, below, after);
        out[k].expert = e < 0 ? k : e; /* e < 0 only if logits are NaN, and then total is NaN, too */
        p[k] = probability(&r, out[k].expert);
        chosen += p[k];
        below = by[out[k].expert], after = out[k].expert;
    }
    for (int32_t k = 0; k < l->n_expert_used; k++)
        out[k].weight = (float)((l->keeps_probabilities ? p[k] : p[k] / chosen) * scale);
}

static float shared_weight(const LayerSpec *l, const float *normed, int64_t n) {
    double logit = 0;
    if (!l->shared_router) return 1;
    for (int64_t i = 0; i < n; i++) logit += (double)l->shared_router[i] * (double)normed[i];
    return (float)sigmoid(logit);
}

static void choose_rows(const Op *op, int64_t begin, int64_t end, int i_thread) {
    (void)i_thread;
    CpuContext *c = op->c;
    const LayerSpec *l = op->l->spec;
    int64_t n_embd = c->model->hparams.n_embd, n = layer_n_experts(l);
    for (int64_t i = begin; i < end; i++) {
        if (l->router_bias) c->kernels->add(c->router + row_at(i, n), l->router_bias, n);
        choose_of_row(l, c->router + row_at(i, n), (int32_t)n, c->choices + row_at(i, l->n_expert_used));
        if (l->matrices[MATRIX_SHARED_GATE])
            c->shared_weights[i] = shared_weight(l, c->normed + row_at(i, n_embd), n_embd);
    }
}

/* ---- the sum --------------------------------------------------------------------------------------- */

static void add_weighted(float *sum, float weight, const float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) sum[i] = fmaf(weight, x[i], sum[i]);
}

static void sum_tiles(const Op *op, int64_t begin, int64_t end, int i_thread) {
    (void)i_thread;
    CpuContext *c = op->c;
    const LayerSpec *l = op->l->spec;
    int64_t n_embd = c->model->hparams.n_embd, from = begin * TILE_ROWS, n = min_i64(end * TILE_ROWS, n_embd) - from;
    for (int64_t i = 0; i < c->n_rows && n > 0; i++) {
        float *sum = c->delta + row_at(i, n_embd) + from;
        memset(sum, 0, (size_t)n * sizeof *sum);
        const ExpertChoice *choices = c->choices + row_at(i, l->n_expert_used);
        for (int32_t k = 0; k < l->n_expert_used; k++)
            add_weighted(sum, choices[k].weight, c->expert_out + row_at(choices[k].place, n_embd) + from, n);
        if (l->matrices[MATRIX_SHARED_GATE] && !l->post_expert_norm)
            add_weighted(sum, c->shared_weights[i], c->shared_out + row_at(i, n_embd) + from, n);
        if (!op_finishes(op)) c->kernels->add(c->x + row_at(i, n_embd) + from, sum, n);
    }
}

/* Norms what the experts and the shared expert have given, and adds them in c->delta. */
static void join_rows(const Op *op, int64_t begin, int64_t end, int i_thread) {
    (void)i_thread;
    const CpuContext *c = op->c;
    const LayerSpec *l = op->l->spec;
    const Hparams *h = &c->model->hparams;
    for (int64_t i = begin; i < end; i++) {
        float *sum = c->delta + row_at(i, h->n_embd), *shared = c->shared_out + row_at(i, h->n_embd);
        c->kernels->rmsnorm(sum, sum, l->post_expert_norm, h->n_embd, h->rms_eps);
        c->kernels->rmsnorm(shared, shared, l->post_shared_norm, h->n_embd, h->rms_eps);
        c->kernels->add(sum, shared, h->n_embd);
    }
}

/* ---- places ---------------------------------------------------------------------------------------- */

/* Gives places to choices, by expert and by row within an expert, on one thread, and sets the numbers of items of
 * the operations that follow. */
static void gather(const Op *op, int64_t begin, int64_t end, int i_thread) {
    (void)i_thread;
    CpuContext *c = op->c;
    if (begin == end) return;
    const LayerSpec *l = op->l->spec;
    int32_t n_choices = c->n_rows * l->n_expert_used, n_expert = layer_n_experts(l), place = 0;
    memset(c->n_of_expert, 0, (size_t)n_expert * sizeof *c->n_of_expert);
    for (int32_t i = 0; i < n_choices; i++) c->n_of_expert[c->choices[i].expert]++;
    c->n_groups = 0;
    for (int32_t e = 0; e < n_expert; e++) {
        int32_t n = c->n_of_expert[e];
        c->n_of_expert[e] = place; /* from now on, this is the next free place of the expert */
        if (n) c->groups[c->n_groups++] = (ExpertGroup){.expert = e, .first = place, .n = n};
        place += n;
    }
    for (int32_t i = 0; i < n_choices; i++) {
        int32_t at = c->n_of_expert[c->choices[i].expert]++;
        c->choices[i].place = at;
        c->place_weights[at] = c->choices[i].weight;
        if (l->weights_inputs && isfinite(c->choices[i].weight)) c->choices[i].weight = 1;
        c->place_rows[at] = i / l->n_expert_used;
    }
    for (Op *of_groups = c->ops + (op - c->ops); of_groups->fn != sum_tiles; of_groups++)
        if (of_groups->n_items_of_group) of_groups->n_items = c->n_groups * of_groups->n_items_of_group;
}

static void copy_places(const Op *op, int64_t begin, int64_t end, int i_thread) {
    (void)i_thread;
    CpuContext *c = op->c;
    for (int k = 0; k < 2; k++) {
        const PackedMatrix *m = op->products[k].m;
        if (k && m->act == op->products[0].m->act) break;
        size_t bytes = act_row_bytes(m->act, m->n_in);
        for (int64_t i = begin; i < end; i++)
            memcpy((char *)c->expert_acts[m->act] + (size_t)i * bytes,
                   (const char *)c->acts[m->act] + (size_t)c->place_rows[i] * bytes, bytes);
    }
}

/* Adds the biases of outputs [from, from + n) of an expert to the places of its group; biases: [n_expert][n_out], or
 * NULL. */
static void add_biases(const CpuContext *c, const ExpertGroup *g, const float *biases, float *y, int64_t n_out,
                       int64_t from, int64_t n) {
    for (int64_t i = g->first; biases && i < g->first + g->n; i++)
        c->kernels->add(y + row_at(i, n_out) + from, biases + row_at(g->expert, n_out) + from, n);
}

/* Multiplies products with the weights of their places, which is the same as multiplying the inputs. */
static void weigh_places(const CpuContext *c, const ExpertGroup *g, float *y, int64_t n_out, int64_t from, int64_t n) {
    for (int64_t i = g->first; i < g->first + g->n; i++)
        for (int64_t k = from; k < from + n; k++) y[row_at(i, n_out) + (size_t)k] *= c->place_weights[i];
}

/* ---- products -------------------------------------------------------------------------------------- */

enum { FF_UNIT_TILES = ACT_BLOCK / TILE_ROWS };

static void group_gate_up(const Op *op, const ExpertGroup *g, int64_t begin, int64_t end) {
    CpuContext *c = op->c;
    PackedMatrix *const *matrices = op->l->matrices;
    const PackedMatrix *both[] = {&matrices[MATRIX_EXPERT_GATE][g->expert], &matrices[MATRIX_EXPERT_UP][g->expert]};
    float *const y[] = {c->gate, c->up};
    int64_t n_ff = both[0]->n_out, n_tiles = packed_n_tiles(both[0]);
    for (int k = 0; k < 2; k++)
        cpu_multiply(c, both[k],
                     (const char *)c->expert_acts[both[k]->act] +
                         row_at(g->first, (int64_t)act_row_bytes(both[k]->act, both[k]->n_in)),
                     g->n, y[k] + row_at(g->first, n_ff), n_ff, begin * FF_UNIT_TILES,
                     min_i64(end * FF_UNIT_TILES, n_tiles));
    int64_t from = begin * ACT_BLOCK, n = min_i64(end * ACT_BLOCK, n_ff) - from;
    if (op->l->spec->weights_inputs)
        weigh_places(c, g, c->gate, n_ff, from, n), weigh_places(c, g, c->up, n_ff, from, n);
    add_biases(c, g, op->l->spec->gate_bias, c->gate, n_ff, from, n);
    add_biases(c, g, op->l->spec->up_bias, c->up, n_ff, from, n);
    for (int64_t i = g->first; i < g->first + g->n; i++)
        activate(op, &matrices[MATRIX_EXPERT_DOWN][g->expert], i, from, n);
}

/* Runs fn over items [begin, end). Each group has n_items_of_group items. */
static void by_group(const Op *op, int64_t begin, int64_t end,
                     void (*fn)(const Op *, const ExpertGroup *, int64_t, int64_t)) {
    int64_t each = op->n_items_of_group;
    while (begin < end) {
        int64_t group = begin / each, last = min_i64((group + 1) * each, end);
        int64_t first = op->first_of_group - group * each;
        fn(op, &op->c->groups[group], begin + first, last + first);
        begin = last;
    }
}

static void gate_up_items(const Op *op, int64_t begin, int64_t end, int i_thread) {
    (void)i_thread;
    by_group(op, begin, end, group_gate_up);
}

static void group_down(const Op *op, const ExpertGroup *g, int64_t begin, int64_t end) {
    CpuContext *c = op->c;
    const PackedMatrix *m = &op->l->matrices[MATRIX_EXPERT_DOWN][g->expert];
    cpu_multiply(c, m, (const char *)c->ff_acts + row_at(g->first, (int64_t)act_row_bytes(m->act, m->n_in)), g->n,
                 c->expert_out + row_at(g->first, m->n_out), m->n_out, begin, end);
    int64_t from = begin * TILE_ROWS;
    add_biases(c, g, op->l->spec->down_bias, c->expert_out, m->n_out, from, min_i64(end * TILE_ROWS, m->n_out) - from);
}

static void down_items(const Op *op, int64_t begin, int64_t end, int i_thread) {
    (void)i_thread;
    by_group(op, begin, end, group_down);
}

/* ---- operations ------------------------------------------------------------------------------------ */

/* Writes what follows the sums of a layer whose experts and shared expert have norms before they are added. */
static Op *put_joined(Op *at, Op op) {
    const CpuContext *c = op.c;
    Exchange tiles = {.rows = c->delta, .n_rows = c->n_rows, .n = c->model->hparams.n_embd, .cut = CUT_TILES};
    at = put_exchange(at, op, FORWARD_NORM, tiles);
    tiles.rows = c->shared_out;
    at = put_exchange(at, op, FORWARD_NORM, tiles);
    at = put_op(at, op, FORWARD_NORM, join_rows, c->n_rows, 0);
    return put_finish(at, op);
}

Op *expert_ops(CpuContext *c, int32_t layer, Op *at) {
    const CpuLayer *l = &c->weights->layers[layer];
    /* These are the matrices of the first expert. All experts have matrices of the same shape and type. */
    const PackedMatrix *gate = l->matrices[MATRIX_EXPERT_GATE], *up = l->matrices[MATRIX_EXPERT_UP],
                       *down = l->matrices[MATRIX_EXPERT_DOWN], *shared = l->matrices[MATRIX_SHARED_GATE];
    int64_t rows = c->n_rows, n_choices = rows * l->spec->n_expert_used;
    Share units = cpu_share(c->weights, (gate->n_out + ACT_BLOCK - 1) / ACT_BLOCK),
          tiles = cpu_share(c->weights, packed_n_tiles(down));
    int64_t most = min_i64(n_choices, layer_n_experts(l->spec));
    const LayerSpec *s = l->spec;
    const Op base = {.c = c, .layer = layer, .l = l, .post_norm = s->post_ffn_norm, .out_scale = s->out_scale};

    Op router = base;
    router.norm = l->spec->ffn_norm, router.n_products = shared ? 5 : 3;
    router.products[0] = (Product){l->matrices[MATRIX_ROUTER], c->router};
    router.products[1] = (Product){gate, NULL}, router.products[2] = (Product){up, NULL};
    router.products[3] = (Product){shared, NULL}, router.products[4] = (Product){l->matrices[MATRIX_SHARED_UP], NULL};
    at = put_op(at, router, FORWARD_NORM, norm_rows, rows, 0);
    at = input_squares_op(c, layer, INPUT_GATE_UP, c->normed, gate->n_in, at);
    if (shared) at = shared_expert_ops(c, layer, at);
    if (l->spec->router_norm)
        router.norm = l->spec->router_norm, at = put_op(at, router, FORWARD_NORM, norm_rows, rows, 0);
    router.n_products = 1;
    at = put_op(at, router, FORWARD_GATE_UP, router_tiles, packed_n_tiles(l->matrices[MATRIX_ROUTER]), rows);
    router.n_products = 3, router.norm = l->spec->expert_norm;
    if (l->spec->expert_norm) at = put_op(at, router, FORWARD_NORM, norm_rows, rows, 0);
    at = put_op(at, base, FORWARD_GATE_UP, choose_rows, rows, 0);
    at = put_op(at, base, FORWARD_GATE_UP, gather, 1, 0);

    Op gate_up = base;
    gate_up.n_products = 2;
    gate_up.products[0] = (Product){gate, c->gate}, gate_up.products[1] = (Product){up, c->up};
    at = put_op(at, gate_up, FORWARD_GATE_UP, copy_places, n_choices, 0);
    gate_up.n_items_of_group = share_size(units), gate_up.first_of_group = units.first;
    at = put_op(at, gate_up, FORWARD_GATE_UP, gate_up_items, most * share_size(units), 0);
    at = put_activated(at, base, down, n_choices);

    Op last = base;
    last.n_products = 1, last.n_items_of_group = share_size(tiles), last.first_of_group = tiles.first;
    last.products[0] = (Product){down, c->expert_out};
    at = put_op(at, last, FORWARD_DOWN, down_items, most * share_size(tiles), 0);
    at = expert_squares_ops(c, layer, at);
    at = put_split(at, base, FORWARD_DOWN, sum_tiles, packed_n_tiles(down), 0);
    return l->spec->post_expert_norm ? put_joined(at, base) : put_added(at, base);
}

/* split.c - a forward that several ranks compute together (compute/ranks): what each rank computes, and the exchange of
 * what it has finished.
 *
 * The problem. A model is read faster by several sockets or machines than by one, but a sum that crosses them has other
 * bits: its order would depend on their number.
 *
 * The idea. Every rank runs the same operations, but only on its share of the items. A matrix is divided by its
 * outputs, so a rank computes whole sums. What a rank lacks before the next product are values that other ranks have
 * finished:
 *
 *     stage          divided by                            exchanged after it
 *     q, k, v        KV heads, with their query heads
 *     attention      KV heads                              the inputs of o, as activations where heads are whole blocks
 *     values of a recurrent state, z, the recurrence
 *                    heads of the state                    the inputs of o, or of the norm before it
 *     o              tiles of 16 outputs                   x, or what will be added to it after a norm
 *     gate, up       blocks of 32 outputs                  the inputs of down, as activations
 *     down           tiles of 16 outputs                   x, or what will be added to it after a norm
 *     embeddings     tokens                                rows of x, and of the per-layer embeddings
 *     LM head        tokens                                logits, or the best token of each rank with the noise of its
 *                                                          own tokens, to rank 0 only
 *
 * Experts are divided like the dense part: each rank has some outputs of every expert, so that all ranks have equally
 * much to do, whichever experts are chosen. Latent attention is divided by heads, but every rank computes and keeps the
 * latents, which all heads read. So it is with recurrent layers: every rank computes the channels of the convolution
 * that several heads read (queries and keys of DeltaNet, B and C of Mamba-2) and the gates, and has the states of its
 * own heads only. Where values are not whole tiles of the product that makes them, which is so in tiny models, every
 * rank computes the whole layer up to o. Norms, routers, and per-layer embeddings up to their last product are computed
 * by all ranks in full.
 *
 * Example. 32 query heads, 8 KV heads, 3 ranks: the ranks have KV heads 0-1, 2-4 and 5-7. Rank 0 computes query heads
 * 0-7, and it keeps the keys and values of heads 0 and 1 only.
 *
 * Invariants. An output results from the same operations as with one rank, so the number of ranks changes no bit.
 *
 * Cost. A forward of n rows over L layers with attention and a dense part has 4 L + 2 exchanges. With n_in inputs of o,
 * n_ff of down, and a(n) bytes of n activations, they carry n (4 n_embd + L (a(n_in) + a(n_ff) + 8 n_embd)) bytes and
 * the logits. Over a slow network up to 3 L exchanges go as two messages each (put_split_exchange). Proof:
 * tests/compute/test_ranks.c and test_ranks_exchanges.c. */
#include "compute/cpu/cpu_ops.h"
#include "base/gumbel_row.h"
#include "base/mem.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* Half of an exchange must take this long: a message and two stages more cost about half as much. */
#define HALVES_PAY_S 40e-6

Share cpu_share_of(const CpuWeights *w, int rank, int64_t n) {
    int64_t n_ranks = cpu_comm(w) ? comm_size(cpu_comm(w)) : 1;
    return (Share){n * rank / n_ranks, n * (rank + 1) / n_ranks};
}

int cpu_rank(const CpuWeights *w) { return cpu_comm(w) ? comm_rank(cpu_comm(w)) : 0; }
Share cpu_share(const CpuWeights *w, int64_t n) { return cpu_share_of(w, cpu_rank(w), n); }

/* Returns how many outputs of MATRIX_Q a unit of latent attention has, or of MATRIX_K a KV head. */
static int64_t outputs_of_unit(const Hparams *h, const LayerSpec *l) {
    return l->mixer == MIXER_LATENT ? attention_group(h, l) * (h->latent.plain_dim + h->rope.n_rot)
                                    : layer_head_dim(h, l);
}

/* Returns the channels of the convolution that become the values of the heads of a recurrent state. */
static Share value_channels(const Hparams *h, const LayerSpec *l) {
    const DeltaNetShape *d = &l->delta.shape;
    int64_t first = l->mixer == MIXER_DELTA_NET ? 2 * (int64_t)d->n_key_heads * d->dim : 0;
    return (Share){first, first + h->state.n_values};
}

bool cpu_divides_state(const CpuWeights *w, const LayerSpec *l) {
    const Hparams *h = &w->base.model->hparams;
    if (!cpu_comm(w) || !layer_has_state(l)) return false;
    Share s = value_channels(h, l);
    return s.first % TILE_ROWS == 0 && (s.last % TILE_ROWS == 0 || s.last == h->state.n_channels);
}

bool cpu_divides_inputs(const CpuWeights *w, const LayerSpec *l) {
    return cpu_divides_state(w, l) && l->mixer != MIXER_SHORT_CONV;
}

/* Returns the units of attention, or the heads of a recurrent state, of a rank, whose outputs are whole tiles. */
static Share units_of_rank(const CpuWeights *w, const LayerSpec *l, int rank) {
    const Hparams *h = &w->base.model->hparams;
    bool has_state = layer_has_state(l);
    if (has_state && !cpu_divides_state(w, l)) return (Share){0, h->state.n_heads};
    int64_t n = has_state ? h->state.n_heads : layer_n_head(h, l) / attention_group(h, l),
            outputs = has_state ? h->state.head_dim : outputs_of_unit(h, l), each = 1;
    while (each * outputs % TILE_ROWS) each++;
    Share s = cpu_share_of(w, rank, (n + each - 1) / each);
    return (Share){min_i64(s.first * each, n), min_i64(s.last * each, n)};
}

Share cpu_share_units(const CpuWeights *w, const LayerSpec *l) { return units_of_rank(w, l, cpu_rank(w)); }

/* Returns the tiles that have n outputs for each unit of this rank. */
static Share tiles_of_units(const CpuWeights *w, const LayerSpec *l, int64_t n) {
    Share units = cpu_share_units(w, l);
    return (Share){units.first * n / TILE_ROWS, (units.last * n + TILE_ROWS - 1) / TILE_ROWS};
}

/* Returns the tiles of a product of a recurrent layer, whose outputs from `first` on are values of its heads, that make
 * those of this rank. */
static Share tiles_of_values(const CpuWeights *w, const LayerSpec *l, int64_t first, const PackedMatrix *m) {
    Share tiles = tiles_of_units(w, l, w->base.model->hparams.state.head_dim);
    int64_t before = first / TILE_ROWS, n = packed_n_tiles(m);
    return (Share){min_i64(before + tiles.first, n), min_i64(before + tiles.last, n)};
}

Share cpu_share_value_inputs(const CpuWeights *w, const LayerSpec *l, const PackedMatrix *m) {
    return tiles_of_values(w, l, value_channels(&w->base.model->hparams, l).first, m);
}

/* Returns the tiles of the inputs of a convolution that every rank computes. */
static Share shared_inputs(const CpuWeights *w, const LayerSpec *l, int64_t n) {
    Share values = value_channels(&w->base.model->hparams, l);
    if (values.first) return (Share){0, values.first / TILE_ROWS};
    return (Share){(values.last + TILE_ROWS - 1) / TILE_ROWS, n};
}

Share cpu_share_tiles(const CpuWeights *w, const LayerSpec *l, LayerMatrix slot, const PackedMatrix *m) {
    const Hparams *h = &w->base.model->hparams;
    int64_t n = packed_n_tiles(m), each = ACT_BLOCK / TILE_ROWS;
    switch (slot) {
    case MATRIX_Q:
        if (l->mixer == MIXER_LATENT) return tiles_of_units(w, l, outputs_of_unit(h, l));
        return tiles_of_units(w, l, attention_group(h, l) * layer_head_dim(h, l) * (l->gates_output ? 2 : 1));
    case MATRIX_K:
    case MATRIX_V: return tiles_of_units(w, l, layer_head_dim(h, l));
    case MATRIX_STATE_INPUTS:
        if (cpu_divides_inputs(w, l)) return shared_inputs(w, l, n);
        return cpu_divides_state(w, l) ? tiles_of_values(w, l, 0, m) : (Share){0, n};
    case MATRIX_STATE_FACTOR:
    case MATRIX_STATE_Z: return cpu_divides_state(w, l) ? tiles_of_values(w, l, 0, m) : (Share){0, n};
    case MATRIX_O:
    case MATRIX_DOWN:
    case MATRIX_SHARED_DOWN:
    case MATRIX_EXPERT_DOWN:
    case MATRIX_PLE_OUT: return cpu_share(w, n);
    case MATRIX_GATE:
    case MATRIX_UP:
    case MATRIX_SHARED_GATE:
    case MATRIX_SHARED_UP:
    case MATRIX_EXPERT_GATE:
    case MATRIX_EXPERT_UP: {
        Share blocks = cpu_share(w, (m->n_out + ACT_BLOCK - 1) / ACT_BLOCK);
        return (Share){blocks.first * each, min_i64(blocks.last * each, n)};
    }
    default: return (Share){0, n};
    }
}

Share cpu_share_tokens(const CpuWeights *w, int rank) {
    int64_t n = w->base.model->hparams.n_vocab;
    Share tiles = cpu_share_of(w, rank, (n + TILE_ROWS - 1) / TILE_ROWS);
    return (Share){tiles.first * TILE_ROWS, min_i64(tiles.last * TILE_ROWS, n)};
}

static Op *put_items(Op *at, Op base, ForwardKind kind, OpFn fn, Share items, int64_t n_rows) {
    base.first_item = items.first;
    return put_op(at, base, kind, fn, share_size(items), n_rows);
}

Op *put_split(Op *at, Op base, ForwardKind kind, OpFn fn, int64_t n_items, int64_t n_rows) {
    return put_items(at, base, kind, fn, cpu_share(base.c->weights, n_items), n_rows);
}

/* ---- exchanges -------------------------------------------------------------------------------------------- */

/* The bytes of a row of which each rank has a part: rank i those from first[i] to last[i]. */
typedef struct DividedRows {
    char *rows;
    size_t row_bytes, first[COMM_MAX_RANKS], last[COMM_MAX_RANKS];
} DividedRows;

static char *part_of_row(const void *ctx, int rank, int64_t i) {
    const DividedRows *d = ctx;
    return d->rows + (size_t)i * d->row_bytes + d->first[rank];
}

static void parts_of_rows(const Comm *comm, const DividedRows *d, int64_t n_rows, CommPart parts[COMM_MAX_RANKS]) {
    for (int i = 0; i < comm_size(comm); i++) parts[i] = (CommPart){n_rows, d->last[i] - d->first[i]};
}

static Share portion_of(Share s, Portion portion) {
    int64_t middle = s.first + (share_size(s) + 1) / 2;
    if (portion == PORTION_ALL) return s;
    return portion == PORTION_FIRST ? (Share){s.first, middle} : (Share){middle, s.last};
}

/* Returns how many values of a row each unit of units_of_rank has. */
static int64_t values_of_unit(const Hparams *h, const LayerSpec *l) {
    if (layer_has_state(l)) return h->state.head_dim;
    return attention_group(h, l) * (h->latent.rank ? h->latent.value_dim : layer_head_dim(h, l));
}

/* Returns the values of a row that a rank sends. */
static Share values_of(const Op *op, int rank, Portion portion) {
    const CpuWeights *w = op->c->weights;
    const LayerSpec *l = op->l->spec;
    bool by_heads = op->exchange.cut == CUT_HEADS;
    int64_t n = op->exchange.n, each = op->exchange.cut == CUT_TILES ? TILE_ROWS : ACT_BLOCK;
    if (by_heads) each = values_of_unit(&op->c->model->hparams, l);
    Share s = by_heads ? units_of_rank(w, l, rank) : cpu_share_of(w, rank, (n + each - 1) / each);
    s = portion_of(s, portion);
    return (Share){min_i64(s.first * each, n), min_i64(s.last * each, n)};
}

/* Returns where value i of a row is. */
static size_t byte_of_value(const Exchange *e, size_t row_bytes, int64_t i) {
    return i == e->n ? row_bytes : e->is_acts ? act_offset(e->form, i) : (size_t)i * sizeof(float);
}

/* Describes what a portion of an exchange sends. */
static DividedRows describe(const Op *op, Portion portion, CommPart parts[COMM_MAX_RANKS]) {
    const Exchange *e = &op->exchange;
    const Comm *comm = cpu_comm(op->c->weights);
    DividedRows d = {.rows = e->rows,
                     .row_bytes = e->is_acts ? act_row_bytes(e->form, e->n) : (size_t)e->n * sizeof(float)};
    for (int i = 0; i < comm_size(comm); i++) {
        Share values = values_of(op, i, portion);
        d.first[i] = byte_of_value(e, d.row_bytes, values.first);
        d.last[i] = byte_of_value(e, d.row_bytes, values.last);
    }
    parts_of_rows(comm, &d, e->n_rows, parts);
    return d;
}

static void exchange(const Op *op, int64_t begin, int64_t end, int i_thread) {
    (void)begin, (void)end, (void)i_thread;
    CommPart parts[COMM_MAX_RANKS];
    DividedRows d = describe(op, PORTION_ALL, parts);
    comm_gather(cpu_comm(op->c->weights), parts, part_of_row, &d, true);
}

Op *put_exchange(Op *at, Op base, ForwardKind kind, Exchange what) {
    if (!cpu_comm(base.c->weights)) return at;
    base.exchange = what;
    return put_op(at, base, kind, exchange, 1, 0);
}

static void send_first_half(const Op *op, int64_t begin, int64_t end, int i_thread) {
    (void)begin, (void)end, (void)i_thread;
    CommPart parts[COMM_MAX_RANKS];
    DividedRows d = describe(op, PORTION_FIRST, parts);
    comm_gather_begin(cpu_comm(op->c->weights), parts, part_of_row, &d);
}

static void exchange_halves(const Op *op, int64_t begin, int64_t end, int i_thread) {
    (void)begin, (void)end, (void)i_thread;
    Comm *comm = cpu_comm(op->c->weights);
    CommPart first[COMM_MAX_RANKS], second[COMM_MAX_RANKS];
    DividedRows d1 = describe(op, PORTION_FIRST, first), d2 = describe(op, PORTION_SECOND, second);
    comm_gather_begin(comm, second, part_of_row, &d2);
    comm_gather_end(comm, first, part_of_row, &d1);
    comm_gather_end(comm, second, part_of_row, &d2);
}

/* Returns whether it pays to send the first half of an exchange before the second is computed. All ranks decide the
 * same, because they have the same price. */
static bool goes_in_halves(const Op *op) {
    const Comm *comm = cpu_comm(op->c->weights);
    CommPart parts[COMM_MAX_RANKS];
    size_t longest = 0, sum = 0;
    describe(op, PORTION_FIRST, parts);
    for (int i = 0; i < comm_size(comm); i++) {
        size_t bytes = (size_t)parts[i].n * parts[i].bytes;
        longest = max_size(longest, bytes), sum += bytes;
    }
    double bytes_per_s = comm_price(comm).bytes_per_s;
    return bytes_per_s > 0 && longest <= TRANSPORT_BYTES && (double)(sum - longest) > HALVES_PAY_S * bytes_per_s;
}

Op *put_split_exchange(Op *at, Op base, ForwardKind kind, OpFn fn, int64_t n_items, int64_t n_rows, Exchange what) {
    const CpuWeights *w = base.c->weights;
    Share own = cpu_share(w, n_items);
    base.exchange = what;
    if (!cpu_comm(w) || !goes_in_halves(&base))
        return put_exchange(put_items(at, base, kind, fn, own, n_rows), base, kind, what);
    at = put_items(at, base, kind, fn, portion_of(own, PORTION_FIRST), n_rows);
    at = put_op(at, base, kind, send_first_half, 1, 0);
    at = put_items(at, base, kind, fn, portion_of(own, PORTION_SECOND), n_rows);
    return put_op(at, base, kind, exchange_halves, 1, 0);
}

void cpu_exchange_logits(const CpuWeights *w, float *logits, int64_t n_rows) {
    int n_ranks = comm_size(cpu_comm(w));
    int64_t n = w->base.model->hparams.n_vocab;
    DividedRows d = {.rows = (char *)logits, .row_bytes = (size_t)n * sizeof *logits};
    CommPart parts[COMM_MAX_RANKS];
    for (int i = 0; i < n_ranks; i++) {
        Share tokens = cpu_share_tokens(w, i);
        d.first[i] = (size_t)tokens.first * sizeof *logits, d.last[i] = (size_t)tokens.last * sizeof *logits;
    }
    parts_of_rows(cpu_comm(w), &d, n_rows, parts);
    comm_gather(cpu_comm(w), parts, part_of_row, &d, false);
}

/* The best token of a row among those of a rank, with its logit; NaN if one of them is not finite. */
typedef struct Best {
    float logit;
    int32_t token;
} Best;

static Best find_best(const RowKernels *kernels, const float *row, Share own, int32_t n_vocab, const RowDraw *draw) {
    GumbelField field = gumbel_field((int32_t)own.first, (int32_t)own.last);
    int32_t n = field.last - field.first;
    if (!kernels->is_finite(row + own.first, n)) return (Best){NAN, field.first};
    int32_t greatest = field.first + kernels->argmax(row + own.first, n);
    if (draw->temperature == 0) return (Best){row[greatest], greatest};
    GumbelMax d;
    gumbel_max_begin(&d, draw->seed, draw->position, draw->temperature, n_vocab, row[greatest], greatest);
    gumbel_max_consider_row(&d, kernels, row, &field);
    return (Best){row[d.best_id], d.best_id};
}

/* Returns where a Best is kept until all have arrived: in the row, at the first token of its rank, whose logits have
 * been read by then. If that is the last token of all, it is kept one place before. */
static char *place_of_best(const void *ctx, int rank, int64_t i) {
    const DividedRows *d = ctx;
    size_t last = d->row_bytes - sizeof(Best), at = d->first[rank];
    return d->rows + (size_t)i * d->row_bytes + (at < last ? at : last);
}

/* Replaces the parts of a row by the logits of the best tokens. */
static void keep_best(const CpuWeights *w, const DividedRows *d, int64_t i) {
    float *row = (float *)(void *)(d->rows + (size_t)i * d->row_bytes);
    Best best[COMM_MAX_RANKS];
    int n = 0;
    for (int rank = 0; rank < comm_size(cpu_comm(w)); rank++)
        if (share_size(cpu_share_tokens(w, rank))) memcpy(&best[n++], place_of_best(d, rank, i), sizeof *best);
    for (int32_t k = 0; k < w->base.model->hparams.n_vocab; k++) row[k] = -FLT_MAX;
    for (int k = 0; k < n; k++) row[best[k].token] = best[k].logit;
}

void cpu_exchange_best(CpuContext *c) {
    const CpuWeights *w = c->weights;
    int n_ranks = comm_size(cpu_comm(w)), own = cpu_rank(w);
    int32_t n_vocab = c->model->hparams.n_vocab;
    CommPart parts[COMM_MAX_RANKS] = {{0}};
    DividedRows d = {.rows = (char *)c->logits, .row_bytes = (size_t)n_vocab * sizeof *c->logits};
    for (int i = 0; i < n_ranks; i++) {
        Share tokens = cpu_share_tokens(w, i);
        d.first[i] = (size_t)tokens.first * sizeof *c->logits;
        parts[i] = (CommPart){share_size(tokens) ? c->n_logits : 0, sizeof(Best)};
    }
    for (int32_t i = 0; i < c->n_rows && parts[own].n; i++) {
        const RowPlace *r = &c->rows[i];
        if (r->i_logits < 0) continue;
        Best best = find_best(c->base.device->rows, c->logits + row_at(r->i_logits, n_vocab), cpu_share_tokens(w, own),
                              n_vocab, &r->draw);
        memcpy(place_of_best(&d, own, r->i_logits), &best, sizeof best);
    }
    comm_gather(cpu_comm(w), parts, place_of_best, &d, false);
    if (own > 0 || comm_check(cpu_comm(w), NULL))
        return; /* what was to be received is undefined if the group has ended */
    for (int64_t i = 0; i < c->n_logits; i++) keep_best(w, &d, i);
}

/* The place of a row among those of a rank. */
typedef struct EmbeddedRow {
    int rank;
    int32_t row;
    int64_t i;
} EmbeddedRow;

typedef struct EmbeddedRows {
    const CpuWeights *w;
    const int32_t *tokens;
    float *rows;
    int64_t width;
    EmbeddedRow *last; /* the row that was looked up last: rows are looked up in ascending order */
} EmbeddedRows;

static bool has_token(Share s, int32_t token) { return token >= s.first && token < s.last; }

/* Returns row i of those whose tokens belong to a rank. */
static char *embedded_row(const void *ctx, int rank, int64_t i) {
    const EmbeddedRows *e = ctx;
    Share own = cpu_share_tokens(e->w, rank);
    if (rank != e->last->rank || i < e->last->i) *e->last = (EmbeddedRow){.rank = rank, .row = -1, .i = -1};
    while (e->last->i < i) e->last->i += has_token(own, e->tokens[++e->last->row]);
    return (char *)(e->rows + row_at(e->last->row, e->width));
}

void cpu_exchange_embeddings(const CpuWeights *w, const int32_t *tokens, int32_t n, int64_t width, float *rows) {
    CommPart parts[COMM_MAX_RANKS];
    int n_ranks = comm_size(cpu_comm(w));
    EmbeddedRow last = {.rank = -1};
    EmbeddedRows e = {.w = w, .tokens = tokens, .rows = rows, .width = width, .last = &last};
    for (int i = 0; i < n_ranks; i++) {
        Share own = cpu_share_tokens(w, i);
        parts[i] = (CommPart){.bytes = (size_t)width * sizeof *rows};
        for (int32_t k = 0; k < n; k++) parts[i].n += has_token(own, tokens[k]);
    }
    comm_gather(cpu_comm(w), parts, embedded_row, &e, true);
}

/* reference_states.c - layers with a recurrent state (DeltaNetSpec), in double precision and one head at a time.
 *
 * Each row begins with the state of its parent, or with that of its sequence, and keeps its own: a full copy for each row of one
 * head, which a fast backend does without. A row's convolution reads its ancestors' inputs, and before them those of
 * the last committed positions. */
#include "backend/reference/reference.h"

#include "base/mem.h"

#include <math.h>
#include <string.h>

/* ---- memory -------------------------------------------------------------------------------------------- */

int reference_states_open(RefContext *c, fr_error *err) {
    RefStates *s = &c->states;
    *s = (RefStates){.shape = c->model->hparams.delta, .n_layer = model_n_states(c->model)};
    if (s->n_layer == 0) return FR_OK;
    const DeltaNetShape *d = &s->shape;
    int64_t rows = c->options.max_rows, all = (int64_t)s->n_layer * c->options.n_states, matrix = d->dim * d->dim;
    const struct {
        double **out;
        int64_t n;
    } wants[] = {{&s->conv, all * (d->n_conv - 1) * delta_n_channels(d)},
                 {&s->matrices, all * d->n_value_heads * matrix},
                 {&s->inputs, s->n_layer * rows * delta_n_channels(d)},
                 {&s->gates, s->n_layer * rows * 2 * d->n_value_heads},
                 {&s->z, rows * delta_n_values(d)},
                 {&s->of_rows, rows * matrix}};
    for (size_t i = 0; i < sizeof wants / sizeof *wants; i++)
        if (!(*wants[i].out = mem_calloc((size_t)wants[i].n, sizeof(double))))
            return error_memory(err, "the states of the reference backend", (size_t)wants[i].n * sizeof(double));
    s->path = mem_calloc((size_t)rows, sizeof *s->path);
    return s->path ? FR_OK : error_memory(err, "rows", (size_t)rows * sizeof *s->path);
}

void reference_states_close(RefContext *c) {
    RefStates *s = &c->states;
    double *const all[] = {s->conv, s->matrices, s->inputs, s->gates, s->z, s->of_rows};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) mem_free(all[i]);
    mem_free(s->path);
}

/* `place`: of a layer, among those with a state. */
static double *inputs_of(const RefContext *c, int32_t place, int64_t row) {
    const RefStates *s = &c->states;
    return s->inputs + ((int64_t)place * c->options.max_rows + row) * delta_n_channels(&s->shape);
}
static double *gates_of(const RefContext *c, int32_t place, int64_t row) {
    const RefStates *s = &c->states;
    return s->gates + ((int64_t)place * c->options.max_rows + row) * 2 * s->shape.n_value_heads;
}
static double *conv_of(const RefContext *c, int32_t place, int32_t sequence) {
    const RefStates *s = &c->states;
    return s->conv +
           ((int64_t)place * c->options.n_states + sequence) * (s->shape.n_conv - 1) * delta_n_channels(&s->shape);
}
static double *matrix_of(const RefContext *c, int32_t place, int32_t sequence, int32_t head) {
    const DeltaNetShape *d = &c->states.shape;
    return c->states.matrices +
           (((int64_t)place * c->options.n_states + sequence) * d->n_value_heads + head) * d->dim * d->dim;
}

/* ---- one position of one head -------------------------------------------------------------------------- */

/* Where the inputs of a row's convolution lie: its own last. NULL: before the first token. */
typedef struct Window {
    const double *x[MODEL_MAX_CONV];
} Window;

/* The row `back` positions before the last of `path` (rows [n]), or a position before them: of `length` committed ones. */
static const double *input_before(const RefContext *c, int32_t place, int32_t sequence, int32_t length,
                                  const int32_t *path, int32_t n, int32_t back) {
    const DeltaNetShape *d = &c->states.shape;
    if (back < n) return inputs_of(c, place, path[n - 1 - back]);
    if (back - n >= length) return NULL;
    return conv_of(c, place, sequence) + (d->n_conv - 1 - 1 - (back - n)) * delta_n_channels(d);
}

static Window window_of(const RefContext *c, int32_t place, int32_t sequence, int32_t length, const int32_t *path,
                        int32_t n) {
    Window w;
    int32_t n_conv = c->states.shape.n_conv;
    for (int32_t back = 0; back < n_conv; back++)
        w.x[n_conv - 1 - back] = input_before(c, place, sequence, length, path, n, back);
    return w;
}

/* One head of queries, keys or values, from channel `first` on, normed to length `norm` unless that is 0. */
static void convolve(const DeltaNetSpec *d, const Window *w, int64_t first, double norm, double *out) {
    double squares = 0;
    for (int64_t i = 0; i < d->shape.dim; i++) {
        double sum = 0;
        for (int32_t j = 0; j < d->shape.n_conv; j++)
            if (w->x[j]) sum += (double)d->conv[(first + i) * d->shape.n_conv + j] * w->x[j][first + i];
        out[i] = reference_silu(sum);
        squares += out[i] * out[i];
    }
    for (int64_t i = 0; norm != 0 && i < d->shape.dim; i++) out[i] *= norm / sqrt(squares + DELTA_NORM_EPS);
}

/* The state of head h: to = from, moved on by one position; and what its queries read, unless out is NULL. */
static void step(const DeltaNetSpec *d, int32_t h, const Window *w, const double *gates, const double *from, double *to,
                 double *out) {
    const DeltaNetShape *s = &d->shape;
    int64_t n = s->dim, key = delta_key_head(d, h);
    double q[MODEL_MAX_DELTA_DIM], k[MODEL_MAX_DELTA_DIM], v[MODEL_MAX_DELTA_DIM];
    fr_assert(n <= MODEL_MAX_DELTA_DIM);
    convolve(d, w, key * n, 1 / sqrt((double)n), q);
    convolve(d, w, (s->n_key_heads + key) * n, 1, k);
    convolve(d, w, (2 * s->n_key_heads + h) * n, 0, v);
    double beta = 1 / (1 + exp(-gates[delta_beta_place(d, h)]));
    double x = gates[delta_alpha_place(d, h)] + (double)d->dt[h],
           decay = exp((double)d->a[h] * (x > 0 ? x + log1p(exp(-x)) : log1p(exp(x))));
    for (int64_t i = 0; i < n * n; i++) to[i] = decay * from[i];
    for (int64_t col = 0; col < n; col++) {
        double read = 0, sum = 0;
        for (int64_t i = 0; i < n; i++) read += k[i] * to[i * n + col];
        for (int64_t i = 0; i < n; i++) to[i * n + col] += k[i] * beta * (v[col] - read);
        for (int64_t i = 0; i < n; i++) sum += q[i] * to[i * n + col];
        if (out) out[col] = sum;
    }
}

/* ---- a forward ------------------------------------------------------------------------------------------ */

/* The rows from the committed tokens down to row i; `all` are those since executor_forward. Returns their number. */
static int32_t path_to(const RowPlace *all, int32_t i, int32_t *path) {
    int32_t n = all[i].n_path;
    for (int32_t k = n - 1; k >= 0; k--, i = all[i].parent) path[k] = i;
    return n;
}

static void run_head(const RefContext *c, const DeltaNetSpec *d, int32_t place, int32_t head, const RowPlace *rows,
                     int32_t n_rows) {
    const RowPlace *all = rows - rows[0].row;
    int64_t n = d->shape.dim;
    for (int32_t i = 0; i < rows[0].row + n_rows; i++) {
        const RowPlace *r = &all[i];
        Window w = window_of(c, place, r->sequence, r->n_prefix, c->states.path, path_to(all, i, c->states.path));
        double *to = c->states.of_rows + i * n * n;
        double *out = i >= rows[0].row ? c->attended + (i - rows[0].row) * delta_n_values(&d->shape) + head * n : NULL;
        const double *from = r->parent >= 0 ? c->states.of_rows + r->parent * n * n
                                            : matrix_of(c, place, r->sequence, head);
        if (r->parent < 0 && r->n_prefix == 0) {
            memset(to, 0, (size_t)(n * n) * sizeof *to);
            from = to;
        }
        step(d, head, &w, gates_of(c, place, i), from, to, out);
    }
}

/* norm(out) * silu(z), head by head. */
static void gate_outputs(const RefContext *c, const DeltaNetSpec *d, int32_t n_rows) {
    int64_t n = d->shape.dim, n_values = delta_n_values(&d->shape);
    for (int64_t i = 0; i < n_rows * n_values; i += n)
        reference_rmsnorm(c->attended + i, d->norm, n, (double)c->model->hparams.rms_eps, c->attended + i);
    for (int64_t i = 0; i < n_rows * n_values; i++) c->attended[i] *= reference_silu(c->states.z[i]);
}

void reference_delta_net(const RefContext *c, int32_t layer, const RowPlace *rows, int32_t n_rows) {
    const LayerSpec *l = &c->model->layers[layer];
    const DeltaNetSpec *d = &l->delta;
    int32_t place = model_mixer_place(c->model, layer), n_heads = d->shape.n_value_heads;
    reference_product_of(c, d->qkv, c->normed, n_rows, inputs_of(c, place, rows[0].row));
    reference_product_of(c, d->z, c->normed, n_rows, c->states.z);
    double *gates = gates_of(c, place, rows[0].row);
    if (d->beta_alpha) reference_product_of(c, d->beta_alpha, c->normed, n_rows, gates);
    for (int32_t i = 0; !d->beta_alpha && i < n_rows; i++) {
        const double *normed = c->normed + (int64_t)i * c->model->hparams.n_embd;
        reference_product_of(c, d->beta, normed, 1, gates + (int64_t)i * 2 * n_heads);
        reference_product_of(c, d->alpha, normed, 1, gates + (int64_t)i * 2 * n_heads + n_heads);
    }
    for (int32_t head = 0; head < n_heads; head++) run_head(c, d, place, head, rows, n_rows);
    gate_outputs(c, d, n_rows);
    reference_product_of(c, l->o, c->attended, n_rows, c->delta);
}

/* ---- committed rows --------------------------------------------------------------------------------------- */

static void advance_matrix(const RefContext *c, const DeltaNetSpec *d, int32_t place, int32_t head,
                           const StateStep *s) {
    double *to = matrix_of(c, place, s->to, head);
    size_t bytes = (size_t)(d->shape.dim * d->shape.dim) * sizeof *to;
    if (s->length == 0) memset(to, 0, bytes);
    else memmove(to, matrix_of(c, place, s->from, head), bytes);
    for (int32_t i = 0; i < s->n_rows; i++) {
        Window w = window_of(c, place, s->from, s->length, s->rows, i + 1);
        step(d, head, &w, gates_of(c, place, s->rows[i]), to, to, NULL);
    }
}

/* The inputs of the last positions, the oldest first: those that move up come from earlier places. */
static void advance_conv(const RefContext *c, int32_t place, const StateStep *s) {
    int64_t n = delta_n_channels(&c->states.shape);
    for (int32_t i = 0, last = c->states.shape.n_conv - 1; i < last; i++) {
        const double *x = input_before(c, place, s->from, s->length, s->rows, s->n_rows, last - 1 - i);
        if (x) memmove(conv_of(c, place, s->to) + i * n, x, (size_t)n * sizeof *x);
    }
}

void reference_advance_states(Context *context, const StateStep *steps, int32_t n) {
    const RefContext *c = (const RefContext *)context;
    for (int32_t layer = 0; layer < c->model->hparams.n_layer; layer++) {
        const DeltaNetSpec *d = &c->model->layers[layer].delta;
        if (c->model->layers[layer].mixer != MIXER_DELTA_NET) continue;
        int32_t place = model_mixer_place(c->model, layer);
        for (int32_t i = 0; i < n; i++) {
            for (int32_t head = 0; head < d->shape.n_value_heads; head++) advance_matrix(c, d, place, head, &steps[i]);
            advance_conv(c, place, &steps[i]);
        }
    }
}

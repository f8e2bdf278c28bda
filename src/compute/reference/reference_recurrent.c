/* reference_recurrent.c - layers with a recurrent state, in double precision and one head at a time: what their kinds
 * compute for one position (DeltaNetSpec, Mamba2Spec and MIXER_SHORT_CONV in model.h), and the states of the rows of a
 * tree.
 *
 * Each row begins with the state of its parent, or with that of its sequence, and keeps its own: a full copy for each
 * row of one head, which a fast backend avoids. The convolution of a row reads the inputs of its ancestors, and before
 * them those of the last committed positions. */
#include "base/math_functions.h"
#include "base/mem.h"
#include "compute/reference/reference.h"

#include <math.h>
#include <string.h>

/* ---- the kinds: one position of one head ------------------------------------------------------------- */

/* Computes the convolution of n channels from `first` on. */
static void convolve(const StateShape *s, const LayerSpec *l, const RefWindow *w, int64_t first, int64_t n,
                     double *out) {
    for (int64_t i = 0; i < n; i++) {
        out[i] = 0;
        for (int32_t j = 0; j < s->n_conv; j++)
            if (w->x[j]) out[i] += (double)l->conv[(first + i) * s->n_conv + j] * w->x[j][first + i];
    }
}

static double softplus(double x) { return x > 0 ? x + math_log1p(math_exp(-x)) : math_log1p(math_exp(x)); }

/* Computes the convolution of one head of queries, keys or values, whose first channel is `first`. It gets the length
 * `norm`, unless that is 0. */
static void convolve_head(const StateShape *s, const LayerSpec *l, const RefWindow *w, int64_t first, double norm,
                          double *out) {
    double squares = 0;
    convolve(s, l, w, first, s->head_dim, out);
    for (int64_t i = 0; i < s->head_dim; i++) {
        out[i] = reference_silu(out[i]);
        squares += out[i] * out[i];
    }
    for (int64_t i = 0; norm != 0 && i < s->head_dim; i++) out[i] *= norm / sqrt(squares + DELTA_NORM_EPS);
}

static void delta_net(const StateShape *s, const LayerSpec *l, int32_t h, const RefWindow *w, const double *gates,
                      const double *from, double *to, double *out) {
    const DeltaNetSpec *d = &l->delta;
    int64_t n = s->head_dim, key = delta_key_head(d, h), n_keys = d->shape.n_key_heads;
    double q[MODEL_MAX_STATE_DIM], k[MODEL_MAX_STATE_DIM], v[MODEL_MAX_STATE_DIM];
    fr_assert(n <= MODEL_MAX_STATE_DIM);
    convolve_head(s, l, w, key * n, 1 / sqrt((double)n), q);
    convolve_head(s, l, w, (n_keys + key) * n, 1, k);
    convolve_head(s, l, w, (2 * n_keys + h) * n, 0, v);
    double beta = 1 / (1 + math_exp(-gates[delta_beta_place(d, h)]));
    double decay = math_exp((double)d->a[h] * softplus(gates[delta_alpha_place(d, h)] + (double)d->dt[h]));
    for (int64_t i = 0; i < n * n; i++) to[i] = decay * from[i];
    for (int64_t col = 0; col < n; col++) {
        double read = 0, sum = 0;
        for (int64_t i = 0; i < n; i++) read += k[i] * to[i * n + col];
        for (int64_t i = 0; i < n; i++) to[i * n + col] += k[i] * beta * (v[col] - read);
        for (int64_t i = 0; i < n; i++) sum += q[i] * to[i * n + col];
        if (out) out[col] = sum;
    }
}

static void convolve_with_bias(const StateShape *s, const LayerSpec *l, const RefWindow *w, int64_t first, int64_t n,
                               double *out) {
    const float *bias = l->mamba.conv_bias;
    convolve(s, l, w, first, n, out);
    for (int64_t i = 0; i < n; i++) out[i] = reference_silu(out[i] + (bias ? (double)bias[first + i] : 0));
}

static void mamba2(const StateShape *s, const LayerSpec *l, int32_t h, const RefWindow *w, const double *gates,
                   const double *from, double *to, double *out) {
    const Mamba2Spec *m = &l->mamba;
    int64_t dim = m->shape.dim, n = m->shape.n_state, group = h / (m->shape.n_heads / m->shape.n_groups);
    double x[MODEL_MAX_STATE_DIM], b[MODEL_MAX_STATE_DIM], c[MODEL_MAX_STATE_DIM];
    fr_assert(dim <= MODEL_MAX_STATE_DIM && n <= MODEL_MAX_STATE_DIM);
    convolve_with_bias(s, l, w, h * dim, dim, x);
    convolve_with_bias(s, l, w, s->n_values + group * n, n, b);
    convolve_with_bias(s, l, w, s->n_values + (m->shape.n_groups + group) * n, n, c);
    double d = softplus(gates[h] + (double)m->dt_bias[h]), decay = math_exp((double)m->a[h] * d);
    for (int64_t col = 0; col < dim; col++) {
        double sum = (double)m->skip[h] * x[col];
        for (int64_t i = 0; i < n; i++) {
            to[i * dim + col] = decay * from[i * dim + col] + b[i] * d * x[col];
            sum += c[i] * to[i * dim + col];
        }
        if (out) out[col] = sum;
    }
}

/* Computes the state `to` of head h one position after `from`, and writes what is read from it to out, unless that is
 * NULL. */
static void step(const StateShape *s, const LayerSpec *l, int32_t h, const RefWindow *w, const double *gates,
                 const double *from, double *to, double *out) {
    if (l->mixer == MIXER_DELTA_NET) delta_net(s, l, h, w, gates, from, to, out);
    else if (l->mixer == MIXER_MAMBA2) mamba2(s, l, h, w, gates, from, to, out);
    else if (out) convolve(s, l, w, h * s->head_dim, state_head_values(s, h), out);
}

/* Computes the values of a row [n_values] from what the heads read and from the product z. */
static void finish_values(const StateShape *s, const LayerSpec *l, double eps, const double *z, double *values) {
    int64_t n = s->n_values;
    if (l->mixer == MIXER_DELTA_NET)
        for (int64_t i = 0; i < n; i += s->head_dim)
            reference_rmsnorm(values + i, l->delta.norm, s->head_dim, eps, values + i);
    for (int64_t i = 0; i < n; i++) values[i] *= l->mixer == MIXER_SHORT_CONV ? z[i] : reference_silu(z[i]);
    if (l->mixer != MIXER_MAMBA2) return;
    int64_t width = n / l->mamba.shape.n_groups;
    for (int64_t i = 0; i < n; i += width) reference_rmsnorm(values + i, l->mamba.norm + i, width, eps, values + i);
}

/* ---- memory -------------------------------------------------------------------------------------------- */

int reference_states_open(RefContext *c, fr_error *err) {
    RefStates *s = &c->states;
    *s = (RefStates){.shape = c->model->hparams.state, .n_layer = model_n_states(c->model)};
    if (s->n_layer == 0) return FR_OK;
    const StateShape *d = &s->shape;
    int64_t rows = c->options.max_rows, all = (int64_t)s->n_layer * c->options.n_states;
    const struct {
        double **out;
        int64_t n;
    } wants[] = {{&s->conv, all * (d->n_conv - 1) * d->n_channels},
                 {&s->heads, all * d->n_heads * d->head_floats},
                 {&s->inputs, s->n_layer * rows * d->n_channels},
                 {&s->gates, s->n_layer * rows * d->n_gates},
                 {&s->z, rows * d->n_values},
                 {&s->of_rows, rows * d->head_floats}};
    for (size_t i = 0; i < sizeof wants / sizeof *wants; i++)
        if (!(*wants[i].out = mem_calloc((size_t)wants[i].n, sizeof(double))))
            return error_memory(err, "the states of the reference backend", (size_t)wants[i].n * sizeof(double));
    s->path = mem_calloc((size_t)rows, sizeof *s->path);
    return s->path ? FR_OK : error_memory(err, "rows", (size_t)rows * sizeof *s->path);
}

void reference_states_close(RefContext *c) {
    RefStates *s = &c->states;
    double *const all[] = {s->conv, s->heads, s->inputs, s->gates, s->z, s->of_rows};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) mem_free(all[i]);
    mem_free(s->path);
}

/* `place` counts the layers that have a state. */
static double *inputs_of(const RefContext *c, int32_t place, int64_t row) {
    const RefStates *s = &c->states;
    return s->inputs + ((int64_t)place * c->options.max_rows + row) * s->shape.n_channels;
}
static double *gates_of(const RefContext *c, int32_t place, int64_t row) {
    const RefStates *s = &c->states;
    return s->gates + ((int64_t)place * c->options.max_rows + row) * s->shape.n_gates;
}
static double *conv_of(const RefContext *c, int32_t place, int32_t sequence) {
    const RefStates *s = &c->states;
    return s->conv + ((int64_t)place * c->options.n_states + sequence) * (s->shape.n_conv - 1) * s->shape.n_channels;
}
static double *state_of(const RefContext *c, int32_t place, int32_t sequence, int32_t head) {
    const StateShape *d = &c->states.shape;
    return c->states.heads + (((int64_t)place * c->options.n_states + sequence) * d->n_heads + head) * d->head_floats;
}

/* ---- the inputs of a convolution ------------------------------------------------------------------------- */

/* Returns the input `back` positions before the last row of `path` [n]: that of another row of the path, or of one of
 * the `length` committed positions before it. Returns NULL if there is no such position. */
static const double *input_before(const RefContext *c, int32_t place, int32_t sequence, int32_t length,
                                  const int32_t *path, int32_t n, int32_t back) {
    const StateShape *d = &c->states.shape;
    if (back < n) return inputs_of(c, place, path[n - 1 - back]);
    if (back - n >= length) return NULL;
    return conv_of(c, place, sequence) + (d->n_conv - 1 - 1 - (back - n)) * d->n_channels;
}

static RefWindow window_of(const RefContext *c, int32_t place, int32_t sequence, int32_t length, const int32_t *path,
                           int32_t n) {
    RefWindow w;
    int32_t n_conv = c->states.shape.n_conv;
    for (int32_t back = 0; back < n_conv; back++)
        w.x[n_conv - 1 - back] = input_before(c, place, sequence, length, path, n, back);
    return w;
}

/* ---- a forward ------------------------------------------------------------------------------------------ */

/* Lists the rows from the committed tokens down to row i, and returns their number. `all` are the rows since
 * executor_forward. */
static int32_t path_to(const RowPlace *all, int32_t i, int32_t *path) {
    int32_t n = all[i].n_path;
    for (int32_t k = n - 1; k >= 0; k--, i = all[i].parent) path[k] = i;
    return n;
}

static void run_head(const RefContext *c, const LayerSpec *l, int32_t place, int32_t head, const RowPlace *rows,
                     int32_t n_rows) {
    const RowPlace *all = rows - rows[0].row;
    const StateShape *s = &c->states.shape;
    int64_t n = s->head_floats;
    for (int32_t i = 0; i < rows[0].row + n_rows; i++) {
        const RowPlace *r = &all[i];
        RefWindow w = window_of(c, place, r->sequence, r->n_prefix, c->states.path, path_to(all, i, c->states.path));
        double *to = c->states.of_rows + i * n;
        double *out = i >= rows[0].row ? c->attended + (i - rows[0].row) * s->n_values + head * s->head_dim : NULL;
        const double *from = r->parent >= 0 ? c->states.of_rows + r->parent * n : state_of(c, place, r->sequence, head);
        if (r->parent < 0 && r->n_prefix == 0) {
            memset(to, 0, (size_t)n * sizeof *to);
            from = to;
        }
        step(s, l, head, &w, gates_of(c, place, i), from, to, out);
    }
}

/* Multiplies the normed input of one row with the matrices that read it. */
static void run_products(const RefContext *c, const LayerSpec *l, int32_t place, int32_t row, int32_t i) {
    const StateShape *s = &c->states.shape;
    const double *normed = c->normed + (int64_t)i * c->model->hparams.n_embd;
    double *inputs = inputs_of(c, place, row), *gates = gates_of(c, place, row);
    const GgufTensor *first_gates = l->matrices[MATRIX_STATE_GATES];
    const struct {
        LayerMatrix m;
        double *to;
    } products[] = {{MATRIX_STATE_INPUTS, inputs},
                    {MATRIX_STATE_FACTOR, c->delta},
                    {MATRIX_STATE_Z, c->states.z + i * s->n_values},
                    {MATRIX_STATE_GATES, gates},
                    {MATRIX_STATE_MORE_GATES, gates + (first_gates ? first_gates->dims[1] : 0)}};
    for (size_t k = 0; k < sizeof products / sizeof *products; k++)
        if (l->matrices[products[k].m]) reference_product_of(c, l, products[k].m, 0, normed, 1, products[k].to);
    for (int64_t k = 0; l->matrices[MATRIX_STATE_FACTOR] && k < s->n_channels; k++) inputs[k] *= c->delta[k];
}

void reference_recurrent(const RefContext *c, int32_t layer, const RowPlace *rows, int32_t n_rows) {
    const LayerSpec *l = &c->model->layers[layer];
    const StateShape *s = &c->states.shape;
    int32_t place = model_mixer_place(c->model, layer);
    for (int32_t i = 0; i < n_rows; i++) run_products(c, l, place, rows[0].row + i, i);
    for (int32_t head = 0; head < s->n_heads; head++) run_head(c, l, place, head, rows, n_rows);
    for (int32_t i = 0; i < n_rows; i++)
        finish_values(s, l, (double)c->model->hparams.rms_eps, c->states.z + i * s->n_values,
                      c->attended + i * s->n_values);
    reference_product_of(c, l, MATRIX_O, 0, c->attended, n_rows, c->delta);
}

/* ---- committed rows --------------------------------------------------------------------------------------- */

static void advance_head(const RefContext *c, const LayerSpec *l, int32_t place, int32_t head, const StateStep *s) {
    double *to = state_of(c, place, s->to, head);
    size_t bytes = (size_t)c->states.shape.head_floats * sizeof *to;
    if (s->length == 0) memset(to, 0, bytes);
    else memmove(to, state_of(c, place, s->from, head), bytes);
    for (int32_t i = 0; i < s->n_rows; i++) {
        RefWindow w = window_of(c, place, s->from, s->length, s->rows, i + 1);
        step(&c->states.shape, l, head, &w, gates_of(c, place, s->rows[i]), to, to, NULL);
    }
}

/* Keeps the inputs of the last positions, the oldest first. Ascending order is safe, because an input moves to an
 * earlier place. */
static void advance_conv(const RefContext *c, int32_t place, const StateStep *s) {
    int64_t n = c->states.shape.n_channels;
    for (int32_t i = 0, last = c->states.shape.n_conv - 1; i < last; i++) {
        const double *x = input_before(c, place, s->from, s->length, s->rows, s->n_rows, last - 1 - i);
        if (x) memmove(conv_of(c, place, s->to) + i * n, x, (size_t)n * sizeof *x);
    }
}

void reference_advance_states(Context *context, const StateStep *steps, int32_t n) {
    const RefContext *c = (const RefContext *)context;
    for (int32_t layer = 0; layer < c->model->hparams.n_layer; layer++) {
        const LayerSpec *l = &c->model->layers[layer];
        if (!layer_has_state(l)) continue;
        int32_t place = model_mixer_place(c->model, layer);
        for (int32_t i = 0; i < n; i++) {
            for (int32_t head = 0; head < c->states.shape.n_heads; head++) advance_head(c, l, place, head, &steps[i]);
            advance_conv(c, place, &steps[i]);
        }
    }
}

/* ---- saving: the inputs of the convolution and the heads of each layer ------------------------------------ */

static size_t conv_bytes(const RefStates *s) {
    return (size_t)(s->shape.n_conv - 1) * (size_t)s->shape.n_channels * sizeof(double);
}
static size_t heads_bytes(const RefStates *s) {
    return (size_t)s->shape.n_heads * (size_t)s->shape.head_floats * sizeof(double);
}

size_t reference_state_bytes(const Context *context) {
    const RefStates *s = &((const RefContext *)context)->states;
    return s->n_layer ? (size_t)s->n_layer * (conv_bytes(s) + heads_bytes(s)) : 0;
}

void reference_read_state(Context *context, int32_t state, void *out) {
    const RefContext *c = (const RefContext *)context;
    size_t n_conv = conv_bytes(&c->states), n_heads = heads_bytes(&c->states);
    char *at = out;
    for (int32_t place = 0; place < c->states.n_layer; place++, at += n_conv + n_heads) {
        memcpy(at, conv_of(c, place, state), n_conv);
        memcpy(at + n_conv, state_of(c, place, state, 0), n_heads);
    }
}

void reference_write_state(Context *context, int32_t state, const void *bytes) {
    const RefContext *c = (const RefContext *)context;
    size_t n_conv = conv_bytes(&c->states), n_heads = heads_bytes(&c->states);
    const char *at = bytes;
    for (int32_t place = 0; place < c->states.n_layer; place++, at += n_conv + n_heads) {
        memcpy(conv_of(c, place, state), at, n_conv);
        memcpy(state_of(c, place, state, 0), at + n_conv, n_heads);
    }
}

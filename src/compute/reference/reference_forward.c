/* reference_forward.c - a transformer on three screens, in double precision; its attention is in
 * reference_attention.c and its feed-forward networks in reference_ffn.c.
 *
 *     x  = embedding                                    of each row's token, or the input that a drafter gives
 *     x += Wo attention(rope(Wq n), rope(Wk n), Wv n)   n = rmsnorm(x); n_head / n_head_kv query heads share a KV head;
 *                                                       or a recurrent state (reference_recurrent.c), or latents
 *     x += Wdown (f(Wgate m) * (Wup m))                 m = rmsnorm(x); or the same for experts that a router chooses;
 *                                                       what is added may have a norm of its own, or a factor
 *     x += Wout (gelu(Wgate x) * e)                     e is the per-layer embedding of the row's token (model.h)
 *     logits = Woutput rmsnorm(x)                       every product may have a bias
 *
 * All rows of a batch pass one layer before the next: the key and the value of a row are in the cache before any row
 * attends, so that rows of a tree see their ancestors. Every sum runs over ascending indices and belongs to one row, so
 * that no bit depends on the batch. Nothing is rounded except the results, and keys and values to the type of the cache
 * if that is F16 or Q8.
 *
 * Proof: test_golden.c (llama.cpp's values), test_reference_backend.c (windows, caps, sinks, experts by hand). */
#include "compute/reference/reference.h"

#include "base/math_functions.h"
#include "gguf/tensor_type.h"

#include <math.h>
#include <string.h>

/* ---- arithmetic ----------------------------------------------------------------------------------- */

static double round_to_bf16(double x) { return (double)bf16_to_float(float_to_bf16((float)x)); }

void reference_product(const GgufTensor *w, const void *data, const double *x, int32_t n_rows, bool round_inputs,
                       double *y, float *row) {
    int64_t n_in = w->dims[0], n_out = w->dims[1];
    size_t row_bytes;
    (void)tensor_type_row_bytes(w->type, n_in, &row_bytes); /* the file was checked when it was opened */
    for (int64_t o = 0; o < n_out; o++) {
        blocks_dequantize(w->type, (const char *)data + (size_t)o * row_bytes, n_in, row);
        for (int32_t r = 0; r < n_rows; r++) {
            const double *in = x + r * n_in;
            double sum = 0;
            for (int64_t i = 0; i < n_in; i++) sum += (double)row[i] * (round_inputs ? round_to_bf16(in[i]) : in[i]);
            y[r * n_out + o] = sum;
        }
    }
}

void reference_rmsnorm(const double *x, const float *gain, int64_t n, double eps, double *y) {
    double squares = 0;
    for (int64_t i = 0; i < n; i++) squares += x[i] * x[i];
    for (int64_t i = 0; i < n; i++) y[i] = gain ? x[i] / sqrt(squares / (double)n + eps) * (double)gain[i] : x[i];
}

double reference_silu(double x) { return x / (1 + math_exp(-x)); }

void reference_product_of(const RefContext *c, const LayerSpec *l, LayerMatrix m, int64_t i, const double *x,
                          int32_t n_rows, double *y) {
    const GgufTensor w = expert_matrix(l->matrices[m], i);
    double scale = (double)layer_matrix_scale(l, m, i);
    reference_product(&w, w.data, x, n_rows, c->rounds_bf16 && w.type == TYPE_BF16, y, c->weight_row);
    for (int64_t k = 0; k < n_rows * w.dims[1]; k++) y[k] *= scale;
}

void reference_add_bias(const float *bias, int32_t n_rows, int64_t n, double *y) {
    for (int64_t i = 0; bias && i < n_rows * n; i++) y[i] += (double)bias[i % n];
}

static void norm_rows(const RefContext *c, const float *gain, int32_t n_rows) {
    const Hparams *h = &c->model->hparams;
    for (int32_t i = 0; i < n_rows; i++)
        reference_rmsnorm(c->x + (int64_t)i * h->n_embd, gain, h->n_embd, (double)h->rms_eps,
                          c->normed + (int64_t)i * h->n_embd);
}

void reference_square_inputs(const RefContext *c, const LayerSpec *l, InputKind kind, const double *x, int64_t n,
                             int32_t n_rows) {
    if (!c->squares) return;
    double *sums = c->squares->sums[kind] + (l - c->model->layers) * input_width(&c->model->hparams, kind);
    for (int64_t i = 0; i < n_rows * n; i++) sums[i % n] += x[i] * x[i];
}

/* x += scale * norm(delta), with the norm and the scale if the layer has them. */
static void add_to_residual(const RefContext *c, const LayerSpec *l, const float *norm, int32_t n_rows) {
    const Hparams *h = &c->model->hparams;
    double scale = l->residual_scale != 0 ? (double)l->residual_scale : 1;
    for (int32_t i = 0; i < n_rows; i++) {
        double *x = c->x + (int64_t)i * h->n_embd, *delta = c->delta + (int64_t)i * h->n_embd;
        reference_rmsnorm(delta, norm, h->n_embd, (double)h->rms_eps, delta);
        for (int64_t k = 0; k < h->n_embd; k++) x[k] += scale * delta[k];
    }
}

/* ---- convolutions over the rows of a block (BlockConv in model.h) ------------------------------------- */

/* Replaces the rows x [n_rows][n_embd] by their convolution number s. The last rows are first, because a row reads
 * those before it. */
static void convolve(const RefContext *c, const BlockConv *conv, int s, const RowPlace *rows, int32_t n_rows,
                     double *x) {
    if (!conv->base) return;
    int64_t n = c->model->hparams.n_embd, n_groups = n / conv->group, width = block_conv_kernels(conv, n);
    for (int32_t i = n_rows - 1; i >= 0; i--)
        for (int64_t k = 0; k < n; k++) {
            double sum = 0;
            for (int32_t t = 0; t < conv->n_taps && t <= i; t++) {
                int64_t tap = s * conv->n_taps + t;
                double own = c->conv_kernels[i * width + tap * n_groups + k / conv->group];
                sum += ((double)conv->base[tap * n + k] + own) * x[(i - t) * n + k];
                if (i == t || rows[i - t].parent != rows[i - t - 1].row) break; /* the first row of the block */
            }
            x[i * n + k] = sum;
        }
}

/* Makes the kernels of the rows of their normed inputs, and convolves these. */
static void convolve_inputs(const RefContext *c, const LayerSpec *l, const BlockConv *conv, LayerMatrix kernels,
                            const RowPlace *rows, int32_t n_rows) {
    if (conv->base) reference_product_of(c, l, kernels, 0, c->normed, n_rows, c->conv_kernels);
    convolve(c, conv, 0, rows, n_rows, c->normed);
}

/* ---- a layer ---------------------------------------------------------------------------------------- */

/* Puts the pair that each row brings along in the place of its norm. */
static void take_pairs(const RefContext *c, const RowPlace *rows, int32_t n_rows) {
    int64_t n = c->model->hparams.n_embd;
    for (int32_t i = 0; i < n_rows; i++)
        for (int64_t k = 0; k < 2 * n; k++) c->normed[2 * n * i + k] = (double)rows[i].input[n + k];
}

static void mix(const RefContext *c, const LayerSpec *l, int32_t layer, const RowPlace *rows, int32_t n_rows) {
    if (l->reads_pairs) take_pairs(c, rows, n_rows);
    else norm_rows(c, l->attn_norm, n_rows);
    convolve_inputs(c, l, &l->attn_conv, MATRIX_ATTN_CONV, rows, n_rows);
    reference_square_inputs(c, l, INPUT_QKV, c->normed, c->model->hparams.n_embd, n_rows);
    if (layer_has_state(l)) {
        reference_recurrent(c, layer, rows, n_rows);
        reference_square_inputs(c, l, INPUT_STATE_O, c->attended, c->model->hparams.state.n_values, n_rows);
    } else if (l->mixer == MIXER_LATENT) {
        reference_latent_attention(c, l, layer, rows, n_rows);
    } else {
        reference_attention(c, l, layer, rows, n_rows);
    }
    convolve(c, &l->attn_conv, 1, rows, n_rows, c->delta);
    add_to_residual(c, l, l->post_attn_norm, n_rows);
}

static void feed_forward(const RefContext *c, const LayerSpec *l, const RowPlace *rows, int32_t n_rows) {
    norm_rows(c, l->ffn_norm, n_rows);
    convolve_inputs(c, l, &l->ffn_conv, MATRIX_FFN_CONV, rows, n_rows);
    reference_square_inputs(c, l, INPUT_GATE_UP, c->normed, c->model->hparams.n_embd, n_rows);
    reference_feed_forward(c, l, n_rows);
    convolve(c, &l->ffn_conv, 1, rows, n_rows, c->delta);
    add_to_residual(c, l, l->post_ffn_norm, n_rows);
}

/* ---- the per-layer embedding (LayerSpec in model.h) ------------------------------------------------ */

/* Computes e [n_ple] of a row in c->up, of its input x0. */
static void make_ple(const RefContext *c, const LayerSpec *l, const RowPlace *row, const double *x0) {
    const Hparams *h = &c->model->hparams;
    int64_t n = h->n_ple, first = (l - c->model->layers) * n;
    double *e = c->up;
    reference_product_of(c, l, MATRIX_PLE_INPUT, 0, x0, 1, e);
    for (int64_t i = 0; i < n; i++) e[i] /= sqrt((double)h->n_embd);
    reference_rmsnorm(e, l->ple_input_norm, n, (double)h->rms_eps, e);
    if (row->input) memset(c->weight_row + first, 0, (size_t)n * sizeof *c->weight_row);
    else embedding_row(c->model->ple_table, row->token, c->weight_row);
    for (int64_t i = 0; i < n; i++) e[i] = (e[i] + sqrt((double)n) * (double)c->weight_row[first + i]) / sqrt(2);
}

static void add_ple(const RefContext *c, const LayerSpec *l, const RowPlace *rows, int32_t n_rows) {
    const Hparams *h = &c->model->hparams;
    reference_square_inputs(c, l, INPUT_EMBEDDING, c->embedded, h->n_embd, n_rows);
    reference_square_inputs(c, l, INPUT_STREAM, c->x, h->n_embd, n_rows);
    for (int32_t i = 0; i < n_rows; i++) {
        make_ple(c, l, &rows[i], c->embedded + (int64_t)i * h->n_embd);
        reference_product_of(c, l, MATRIX_PLE_GATE, 0, c->x + (int64_t)i * h->n_embd, 1, c->gate);
        for (int64_t k = 0; k < h->n_ple; k++) c->gate[k] = reference_gelu(c->gate[k]) * c->up[k];
        reference_square_inputs(c, l, INPUT_PLE, c->gate, h->n_ple, 1);
        reference_product_of(c, l, MATRIX_PLE_OUT, 0, c->gate, 1, c->delta + (int64_t)i * h->n_embd);
    }
    add_to_residual(c, l, l->ple_norm, n_rows);
}

/* ---- a forward ------------------------------------------------------------------------------------ */

static void embed(const RefContext *c, const RowPlace *rows, int32_t n_rows) {
    int64_t n = c->model->hparams.n_embd;
    for (int32_t i = 0; i < n_rows; i++) {
        if (!rows[i].input) model_embedding(c->model, rows[i].token, c->weight_row);
        const float *x = rows[i].input ? rows[i].input : c->weight_row;
        double scale = rows[i].input ? 1 : (double)c->model->hparams.embedding_scale;
        for (int64_t k = 0; k < n; k++) c->x[i * n + k] = scale * (double)x[k];
    }
    if (c->model->ple_table) memcpy(c->embedded, c->x, (size_t)(n_rows * n) * sizeof *c->x);
}

double reference_finish_logit(const Model *m, int64_t token, double logit) {
    const Hparams *h = &m->hparams;
    if (m->output_bias) logit += (double)m->output_bias[token];
    logit *= (double)h->logit_scale;
    return h->logit_cap > 0 ? (double)h->logit_cap * math_tanh(logit / (double)h->logit_cap) : logit;
}

static void write_results(const RefContext *c, const RowPlace *rows, int32_t n_rows) {
    const Hparams *h = &c->model->hparams;
    const GgufTensor *output = c->model->output;
    double *logits = c->gate; /* c->gate has room for n_vocab numbers (reference_backend.c) */
    bool rounds = c->rounds_bf16 && output->type == TYPE_BF16;
    norm_rows(c, c->model->output_norm, n_rows);
    for (int32_t i = 0; i < n_rows; i++) {
        const double *hidden = c->normed + (int64_t)i * h->n_embd;
        if (rows[i].i_hidden < 0) continue;
        float *out = c->hidden + rows[i].i_hidden * context_hidden_width(&c->base);
        for (int32_t k = 0; k < h->n_embd; k++) out[k] = (float)hidden[k];
        if (rows[i].i_logits < 0) continue;
        reference_product(output, output->data, hidden, 1, rounds, logits, c->weight_row);
        for (int32_t k = 0; k < h->n_vocab; k++)
            c->logits[(int64_t)rows[i].i_logits * h->n_vocab + k] = (float)reference_finish_logit(c->model, k,
                                                                                                  logits[k]);
    }
}

/* Keeps the residual stream after that many layers, if it is to be kept, of the rows whose hidden state is wanted. */
static void keep_streams(const RefContext *c, int32_t n_layers, const RowPlace *rows, int32_t n_rows) {
    int64_t n = c->model->hparams.n_embd, width = context_hidden_width(&c->base);
    for (int32_t k = 0; k < c->base.kept.n; k++)
        for (int32_t i = 0; i < n_rows && c->base.kept.after[k] == n_layers; i++)
            for (int64_t e = 0; e < n && rows[i].i_hidden >= 0; e++)
                c->hidden[rows[i].i_hidden * width + (k + 1) * n + e] = (float)c->x[i * n + e];
}

/* Only stores the keys and values that each layer makes of the rows' inputs. */
static void store_only(const RefContext *c, const RowPlace *rows, int32_t n_rows) {
    memcpy(c->normed, c->x, (size_t)n_rows * (size_t)c->model->hparams.n_embd * sizeof *c->x);
    for (int32_t layer = 0; layer < c->model->hparams.n_layer; layer++)
        reference_store_keys(c, &c->model->layers[layer], model_mixer_place(c->model, layer), rows, n_rows);
}

void reference_forward(Context *context, const RowPlace *rows, int32_t n_rows) {
    const RefContext *c = (const RefContext *)context;
    embed(c, rows, n_rows);
    if (c->base.only_stores) {
        store_only(c, rows, n_rows);
        return;
    }
    for (int32_t layer = 0; layer < c->model->hparams.n_layer; layer++) {
        const LayerSpec *l = &c->model->layers[layer];
        keep_streams(c, layer, rows, n_rows);
        if (!context_runs(&c->base, layer)) continue;
        mix(c, l, layer, rows, n_rows);
        if (l->ffn != FFN_NONE) feed_forward(c, l, rows, n_rows);
        if (l->ple_norm) add_ple(c, l, rows, n_rows);
        for (int64_t i = 0; l->out_scale != 0 && i < (int64_t)n_rows * c->model->hparams.n_embd; i++)
            c->x[i] *= (double)l->out_scale;
    }
    keep_streams(c, c->model->hparams.n_layer, rows, n_rows);
    if (c->squares) c->squares->n_rows += n_rows;
    write_results(c, rows, n_rows);
}

void reference_sum_inputs(Context *context, InputSquares *to) { ((RefContext *)context)->squares = to; }

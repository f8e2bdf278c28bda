/* reference_forward.c - a transformer on two screens, in double precision.
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

static void add_bias(const float *bias, int32_t n_rows, int64_t n, double *y) {
    for (int64_t i = 0; bias && i < n_rows * n; i++) y[i] += (double)bias[i % n];
}

static void norm_rows(const RefContext *c, const float *gain, int32_t n_rows) {
    const Hparams *h = &c->model->hparams;
    for (int32_t i = 0; i < n_rows; i++)
        reference_rmsnorm(c->x + (int64_t)i * h->n_embd, gain, h->n_embd, (double)h->rms_eps,
                          c->normed + (int64_t)i * h->n_embd);
}

/* Adds the squares of the inputs x [n_rows][n] to the sums of their kind, if these are wanted. */
static void reference_square_inputs(const RefContext *c, const LayerSpec *l, InputKind kind, const double *x, int64_t n,
                                    int32_t n_rows) {
    if (!c->squares) return;
    double *sums = c->squares->sums[kind] + (l - c->model->layers) * input_width(&c->model->hparams, kind);
    for (int64_t i = 0; i < n_rows * n; i++) sums[i % n] += x[i] * x[i];
}

/* Adds the squares of the inputs x [n] of an expert that a row chose. */
static void square_expert_inputs(const RefContext *c, const LayerSpec *l, InputKind kind, int32_t expert,
                                 const double *x, int64_t n) {
    if (!c->squares) return;
    double *sums = c->squares->sums[kind] + ((l - c->model->layers) * layer_n_experts(l) + expert) * n;
    for (int64_t i = 0; i < n; i++) sums[i] += x[i] * x[i];
}

static void count_choice(const RefContext *c, const LayerSpec *l, int32_t expert) {
    if (c->squares) c->squares->expert_rows[(l - c->model->layers) * layer_n_experts(l) + expert]++;
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

/* ---- attention ------------------------------------------------------------------------------------ */

/* Rotates the pairs of one head by the angles of a position. */
static void rotate(const Rope *rope, int32_t position, double *x) {
    int32_t half = rope->params.n_rot / 2;
    for (int32_t i = 0; i < half; i++) {
        bool adjacent = rope->params.style == ROPE_PAIRS;
        double *a = adjacent ? &x[2 * i] : &x[i], *b = adjacent ? &x[2 * i + 1] : &x[i + half];
        double sine, cosine;
        math_sin_cos(position * rope->freqs[i], &sine, &cosine);
        sine *= rope->magnitude, cosine *= rope->magnitude;
        double re = *a * cosine - *b * sine, im = *a * sine + *b * cosine;
        *a = re, *b = im;
    }
}

/* Adds the bias to the heads of one row, norms them and rotates them. Values are not rotated: rope is NULL. */
static void finish_heads(const RefContext *c, double *x, int32_t n_heads, int32_t dim, const float *bias,
                         const float *norm, const Rope *rope, int32_t position) {
    for (int32_t i = 0; bias && i < n_heads * dim; i++) x[i] += (double)bias[i];
    for (int32_t h = 0; h < n_heads; h++) {
        if (norm) reference_rmsnorm(x + h * dim, norm, dim, (double)c->model->hparams.rms_eps, x + h * dim);
        if (rope) rotate(rope, position, x + h * dim);
    }
}

/* Rounds the heads of a key or value to the type of the cache. */
static void round_to_cache(const RefContext *c, double *x, int32_t n_heads, int32_t dim) {
    float block[KV_BLOCK];
    char bytes[KV_BLOCK_BYTES];
    for (int32_t h = 0; c->options.kv_type != KV_F32 && h < n_heads; h++, x += dim)
        for (int32_t i = 0; i < dim; i += KV_BLOCK) {
            int32_t n = dim - i < KV_BLOCK ? dim - i : KV_BLOCK;
            for (int32_t k = 0; k < KV_BLOCK; k++) block[k] = k < n ? (float)x[i + k] : 0;
            if (c->options.kv_type == KV_Q8) {
                blocks_quantize(TYPE_Q8_0, block, KV_BLOCK, bytes);
                blocks_dequantize(TYPE_Q8_0, bytes, KV_BLOCK, block);
            }
            for (int32_t k = 0; k < n; k++)
                x[i + k] = (double)(c->options.kv_type == KV_F16 ? half_to_float(float_to_half(block[k])) : block[k]);
        }
}

/* Returns the slot of the key at a logical position that the row sees. */
static int32_t slot_at(const RowPlace *r, KvGroup group, int32_t position) {
    const RowSlots *s = &r->slots[group];
    return position < r->n_prefix ? s->prefix[position] : s->path[position - r->n_prefix];
}

/* Computes attention for one query head of one row, q [head_dim], out [value_dim]. `layer` counts the layers of the
 * cache. */
static void attend(const RefContext *c, const LayerSpec *l, int32_t layer, const RowPlace *r, int32_t head,
                   const double *q, double *out) {
    const Hparams *h = &c->model->hparams;
    int64_t slot_dim = reference_slot_dim(c), dim = layer_head_dim(h, l), n_values = layer_value_dim(h, l);
    int64_t at = head / (layer_n_head(h, l) / layer_n_head_kv(h, l)) * dim;
    KvGroup group = kv_group_of(l);
    const double *keys = reference_kv(c, group, layer, 0) + at, *values = reference_kv(c, group, layer, 1) + at;
    int32_t n = (int32_t)row_n_keys(r, l), first = (int32_t)layer_first_key(l, (int64_t)r->position + 1);
    double largest = l->sinks ? (double)l->sinks[head] : -INFINITY;
    for (int32_t t = first; t < n; t++) {
        double score = 0;
        for (int64_t d = 0; d < dim; d++) score += q[d] * keys[slot_at(r, group, t) * slot_dim + d];
        score *= l->attn_scale > 0 ? (double)l->attn_scale : 1 / sqrt((double)dim);
        score *= temperature_factor(&l->temperature, r->position);
        if (l->soft_cap > 0) score = (double)l->soft_cap * math_tanh(score / (double)l->soft_cap);
        c->scores[t] = score;
        largest = fmax(largest, score);
    }
    double total = l->sinks ? math_exp((double)l->sinks[head] - largest) : 0;
    for (int32_t t = first; t < n; t++) total += c->scores[t] = math_exp(c->scores[t] - largest);
    memset(out, 0, (size_t)n_values * sizeof *out);
    for (int32_t t = first; t < n; t++)
        for (int64_t d = 0; d < n_values; d++)
            out[d] += c->scores[t] / total * values[slot_at(r, group, t) * slot_dim + d];
}

/* Separates queries and gates, which alternate head by head. */
static void take_gates(const RefContext *c, const LayerSpec *l, int32_t n_rows) {
    const Hparams *h = &c->model->hparams;
    int64_t dim = h->head_dim;
    for (int64_t i = 0; i < (int64_t)n_rows * layer_n_head(h, l); i++)
        for (int64_t d = 0; d < dim; d++) {
            c->output_gates[i * dim + d] = c->q[(2 * i + 1) * dim + d];
            c->q[i * dim + d] = c->q[2 * i * dim + d];
        }
}

static const Rope *rope_of(const RefContext *c, const LayerSpec *l) {
    return l->i_rope < 0 ? NULL : model_rope(c->model, l->i_rope, c->options.n_ctx);
}

/* Makes the keys and values of the rows from c->normed, and stores them. */
static void store_keys(const RefContext *c, const LayerSpec *l, int32_t place, const RowPlace *rows, int32_t n_rows) {
    const Hparams *h = &c->model->hparams;
    int64_t kv_dim = layer_kv_dim(h, l), slot_dim = reference_slot_dim(c);
    int32_t n_kv = layer_n_head_kv(h, l), dim = layer_head_dim(h, l);
    KvGroup group = kv_group_of(l);
    reference_product_of(c, l, MATRIX_K, 0, c->normed, n_rows, c->k);
    reference_product_of(c, l, MATRIX_V, 0, c->normed, n_rows, c->v);
    for (int32_t i = 0; i < n_rows; i++) {
        double *k = c->k + i * kv_dim, *v = c->v + i * kv_dim;
        finish_heads(c, k, n_kv, dim, l->k_bias, l->k_norm, rope_of(c, l), rows[i].position);
        finish_heads(c, v, n_kv, dim, l->v_bias, l->v_norm, NULL, 0);
        round_to_cache(c, k, n_kv, dim);
        round_to_cache(c, v, n_kv, dim);
        int64_t slot = rows[i].slots[group].own;
        memcpy(reference_kv(c, group, place, 0) + slot * slot_dim, k, (size_t)kv_dim * sizeof *k);
        memcpy(reference_kv(c, group, place, 1) + slot * slot_dim, v, (size_t)kv_dim * sizeof *v);
    }
}

static void attention(const RefContext *c, const LayerSpec *l, int32_t layer, const RowPlace *rows, int32_t n_rows) {
    const Hparams *h = &c->model->hparams;
    int64_t q_dim = layer_q_dim(h, l);
    int32_t place = model_mixer_place(c->model, layer), n_head = layer_n_head(h, l), dim = layer_head_dim(h, l);
    reference_product_of(c, l, MATRIX_Q, 0, c->normed, n_rows, c->q);
    if (l->gates_output) take_gates(c, l, n_rows);
    for (int32_t i = 0; i < n_rows; i++)
        finish_heads(c, c->q + i * q_dim, n_head, dim, l->q_bias, l->q_norm, rope_of(c, l), rows[i].position);
    if (!l->shares_kv) store_keys(c, l, place, rows, n_rows);
    for (int32_t i = 0; i < n_rows; i++)
        for (int32_t head = 0; head < n_head; head++) {
            int64_t at = i * q_dim + (int64_t)head * dim;
            attend(c, l, place, &rows[i], head, c->q + at, c->attended + at);
        }
    for (int64_t i = 0; l->gates_output && i < n_rows * q_dim; i++) c->attended[i] /= 1 + math_exp(-c->output_gates[i]);
    reference_square_inputs(c, l, INPUT_O, c->attended, q_dim, n_rows);
    reference_product_of(c, l, MATRIX_O, 0, c->attended, n_rows, c->delta);
    add_bias(l->o_bias, n_rows, h->n_embd, c->delta);
}

/* ---- latent attention (LatentSpec in model.h) -------------------------------------------------------- */

/* The cache holds for each position its latent after the norm, and then the rotated key that all heads share. A query
 * is brought into that form, so that ordinary attention over one KV head does the rest: its values are the first `rank`
 * numbers of its keys, and the values of a head are made of what it read. */

/* Stores the latents and rotated keys of the rows in the cache. */
static void store_latents(const RefContext *c, const LayerSpec *spec, int32_t place, const Rope *rope,
                          const RowPlace *rows, int32_t n_rows) {
    const Hparams *h = &c->model->hparams;
    const LatentSpec *l = &spec->latent;
    int64_t dim = h->head_dim, rank = h->latent.rank;
    reference_product_of(c, spec, MATRIX_KV_A, 0, c->normed, n_rows, c->k);
    for (int32_t i = 0; i < n_rows; i++) {
        double *k = c->k + i * dim;
        reference_rmsnorm(k, l->kv_a_norm, rank, (double)h->rms_eps, k);
        rotate(rope, rows[i].position, k + rank);
        round_to_cache(c, k, 1, (int32_t)dim);
        memcpy(reference_kv(c, KV_ALL, place, 0) + rows[i].slots[KV_ALL].own * dim, k, (size_t)dim * sizeof *k);
    }
    reference_square_inputs(c, spec, INPUT_LATENT, c->k, dim, n_rows);
}

/* Writes the queries into c->queries: for each head the plain components, then those that are rotated. */
static void make_queries(const RefContext *c, const LayerSpec *l, int32_t n_rows) {
    const Hparams *h = &c->model->hparams;
    int64_t n = h->latent.q_rank;
    bool has_latent = l->matrices[MATRIX_Q_A] != NULL;
    if (has_latent) reference_product_of(c, l, MATRIX_Q_A, 0, c->normed, n_rows, c->q_latent);
    for (int32_t i = 0; has_latent && i < n_rows; i++)
        reference_rmsnorm(c->q_latent + i * n, l->latent.q_a_norm, n, (double)h->rms_eps, c->q_latent + i * n);
    if (has_latent) reference_square_inputs(c, l, INPUT_Q_LATENT, c->q_latent, n, n_rows);
    reference_product_of(c, l, MATRIX_Q, 0, has_latent ? c->q_latent : c->normed, n_rows, c->queries);
    reference_square_inputs(c, l, INPUT_LATENT_QUERIES, c->queries, latent_query_dim(h), n_rows);
}

/* Computes latent attention for one head of one row. */
static void attend_head(const RefContext *c, const LayerSpec *l, int32_t place, const Rope *rope, const RowPlace *row,
                        int64_t i, int32_t head) {
    const Hparams *h = &c->model->hparams;
    const LatentShape *s = &h->latent;
    int64_t n_rot = h->rope.n_rot, at = i * h->n_head + head;
    const double *query = c->queries + at * (s->plain_dim + n_rot);
    double *q = c->q + at * h->head_dim, *out = c->attended + at * s->rank;
    reference_product_of(c, l, MATRIX_K_B, head, query, 1, q);
    memcpy(q + s->rank, query + s->plain_dim, (size_t)n_rot * sizeof *q);
    rotate(rope, row->position, q + s->rank);
    attend(c, l, place, row, head, q, out);
    reference_product_of(c, l, MATRIX_V_B, head, out, 1, c->head_values + at * s->value_dim);
}

static void latent_attention(const RefContext *c, const LayerSpec *l, int32_t layer, const RowPlace *rows,
                             int32_t n_rows) {
    const Rope *rope = &c->model->ropes[l->i_rope];
    int32_t place = model_mixer_place(c->model, layer);
    store_latents(c, l, place, rope, rows, n_rows);
    make_queries(c, l, n_rows);
    for (int32_t i = 0; i < n_rows; i++)
        for (int32_t head = 0; head < c->model->hparams.n_head; head++)
            attend_head(c, l, place, rope, &rows[i], i, head);
    const Hparams *h = &c->model->hparams;
    reference_square_inputs(c, l, INPUT_READ_LATENTS, c->attended, (int64_t)h->n_head * h->latent.rank, n_rows);
    reference_square_inputs(c, l, INPUT_LATENT_O, c->head_values, latent_values_dim(h), n_rows);
    reference_product_of(c, l, MATRIX_O, 0, c->head_values, n_rows, c->delta);
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
        latent_attention(c, l, layer, rows, n_rows);
    } else {
        attention(c, l, layer, rows, n_rows);
    }
    convolve(c, &l->attn_conv, 1, rows, n_rows, c->delta);
    add_to_residual(c, l, l->post_attn_norm, n_rows);
}

/* ---- experts ---------------------------------------------------------------------------------------- */

/* The experts of a row are chosen by the logits of its router:
 *
 *     p_e      = softmax over all, or a sigmoid of each
 *     chosen   = the greatest p_e + bias_e, from the best groups only if experts are in groups
 *     w_e      = p_e, or its part of the sum over the chosen ones, times a factor
 *
 * DeepSeek-V2 (softmax) takes the groups with the greatest expert, DeepSeek-V3 (sigmoid, bias) those whose two greatest
 * have the greatest sum. Ties go to the first. */

static void make_probabilities(RouterGate gate, int64_t n, double *x) {
    double largest = -INFINITY, total = 0;
    for (int64_t i = 0; gate == ROUTER_SIGMOID && i < n; i++) x[i] = 1 / (1 + math_exp(-x[i]));
    if (gate == ROUTER_SIGMOID) return;
    for (int64_t i = 0; i < n; i++) largest = fmax(largest, x[i]);
    for (int64_t i = 0; i < n; i++) total += x[i] = math_exp(x[i] - largest);
    for (int64_t i = 0; i < n; i++) x[i] /= total;
}

/* Returns the number by which expert i is chosen. */
static double score_of(const RefContext *c, const LayerSpec *l, int64_t i) {
    return c->experts[i] + (l->choice_bias ? (double)l->choice_bias[i] : 0);
}

static double score_of_group(const RefContext *c, const LayerSpec *l, int64_t group) {
    int64_t n = layer_n_experts(l) / l->n_groups;
    double first = -INFINITY, second = -INFINITY;
    for (int64_t i = group * n; i < (group + 1) * n; i++) {
        double score = score_of(c, l, i);
        if (score > first) second = first, first = score;
        else if (score > second) second = score;
    }
    return l->router_gate == ROUTER_SOFTMAX || n == 1 ? first : first + second;
}

/* Returns whether fewer than n_groups_used groups are better than that of the expert. */
static bool is_in_a_used_group(const RefContext *c, const LayerSpec *l, int64_t expert) {
    if (!l->n_groups) return true;
    int64_t own = expert / (layer_n_experts(l) / l->n_groups), n_better = 0;
    double score = score_of_group(c, l, own);
    for (int64_t g = 0; g < l->n_groups; g++) {
        double other = score_of_group(c, l, g);
        n_better += other > score || (other == score && g < own);
    }
    return n_better < l->n_groups_used;
}

static bool is_among(const int32_t *best, int32_t n, int32_t expert) {
    for (int32_t i = 0; i < n; i++)
        if (best[i] == expert) return true;
    return false;
}

/* Turns the logits in c->experts into probabilities and lists the chosen experts. Returns what their weights are
 * divided by. */
static double choose_experts(const RefContext *c, const LayerSpec *l, int32_t *best) {
    int64_t n = layer_n_experts(l);
    double chosen = 0, scale = l->expert_scale != 0 ? (double)l->expert_scale : 1;
    make_probabilities(l->router_gate, n, c->experts);
    for (int32_t k = 0; k < l->n_expert_used; k++) {
        best[k] = -1;
        for (int32_t i = 0; i < n; i++)
            if (!is_among(best, k, i) && (best[k] < 0 || score_of(c, l, i) > score_of(c, l, best[k])) &&
                is_in_a_used_group(c, l, i))
                best[k] = i;
        if (best[k] < 0) best[k] = k; /* this happens only if logits are not finite */
        chosen += c->experts[best[k]];
    }
    return (l->keeps_probabilities ? 1 : chosen) / scale;
}

/* ---- feed-forward --------------------------------------------------------------------------------- */

static double gelu(double x) {
    return x / (1 + math_exp(-2 * 0.79788456080286535588 * (x + 0.044715 * x * x * x))); /* sqrt(2 / pi) */
}

static double activated(Activation f, double gate, double up) {
    if (f == ACTIVATION_GELU) return gelu(gate) * up;
    if (f == ACTIVATION_SILU) return reference_silu(gate) * up;
    double limit = (double)SWIGLU_LIMIT, x = gate > limit ? limit : gate;
    up = up > limit ? limit : up < -limit ? -limit : up;
    return x / (1 + math_exp(-(double)SWIGLU_ALPHA * x)) * (up + 1);
}

/* The matrices of a feed-forward network, and its biases: those of the first expert, or NULL. */
typedef struct Network {
    LayerMatrix gate, up, down;
    const float *gate_bias, *up_bias, *down_bias;
} Network;

static const float *bias_of(const float *biases, int64_t i, int64_t n) { return biases ? biases + i * n : NULL; }

/* Computes down (f(gate x) * (up x)) for rows x [n_rows] into delta, with the matrices of expert i. f(gate x) * (up x)
 * is left in c->gate. */
static void feed_forward_of(const RefContext *c, const LayerSpec *l, const Network *net, int64_t i, const double *x,
                            int32_t n_rows, double *delta) {
    int64_t n_embd = l->matrices[net->gate]->dims[0], n_ff = l->matrices[net->gate]->dims[1];
    reference_product_of(c, l, net->gate, i, x, n_rows, c->gate);
    reference_product_of(c, l, net->up, i, x, n_rows, c->up);
    add_bias(bias_of(net->gate_bias, i, n_ff), n_rows, n_ff, c->gate);
    add_bias(bias_of(net->up_bias, i, n_ff), n_rows, n_ff, c->up);
    for (int64_t k = 0; k < n_rows * n_ff; k++) c->gate[k] = activated(l->activation, c->gate[k], c->up[k]);
    reference_product_of(c, l, net->down, i, c->gate, n_rows, delta);
    add_bias(bias_of(net->down_bias, i, n_embd), n_rows, n_embd, delta);
}

/* Replaces the normed input of a row by another norm of x, if there is one. */
static void norm_again(const RefContext *c, const double *x, const float *norm, double *normed) {
    const Hparams *h = &c->model->hparams;
    if (norm) reference_rmsnorm(x, norm, h->n_embd, (double)h->rms_eps, normed);
}

/* Adds the shared expert of one row, which reads `normed`, to delta. */
static void run_shared(const RefContext *c, const LayerSpec *l, const double *normed, double *delta) {
    int64_t n_embd = c->model->hparams.n_embd;
    double logit = 0, *out = c->expert_out;
    for (int64_t i = 0; l->shared_router && i < n_embd; i++) logit += (double)l->shared_router[i] * normed[i];
    const Network shared = {.gate = MATRIX_SHARED_GATE, .up = MATRIX_SHARED_UP, .down = MATRIX_SHARED_DOWN};
    feed_forward_of(c, l, &shared, 0, normed, 1, out);
    reference_square_inputs(c, l, INPUT_SHARED_DOWN, c->gate, l->matrices[MATRIX_SHARED_GATE]->dims[1], 1);
    reference_rmsnorm(out, l->post_shared_norm, n_embd, (double)c->model->hparams.rms_eps, out);
    double weight = l->shared_router ? 1 / (1 + math_exp(-logit)) : 1;
    for (int64_t i = 0; i < n_embd; i++) delta[i] += weight * out[i];
}

/* Writes the weighted sum of the experts of one row to delta. `normed` becomes what they read of x. */
static void run_experts(const RefContext *c, const LayerSpec *l, const double *x, double *normed, double *delta) {
    int64_t n_embd = c->model->hparams.n_embd;
    int32_t best[MODEL_MAX_EXPERTS_USED];
    norm_again(c, x, l->router_norm, normed);
    reference_product_of(c, l, MATRIX_ROUTER, 0, normed, 1, c->experts);
    norm_again(c, x, l->expert_norm, normed);
    add_bias(l->router_bias, 1, layer_n_experts(l), c->experts);
    double divisor = choose_experts(c, l, best), *out = c->expert_out;
    const Network experts = {MATRIX_EXPERT_GATE, MATRIX_EXPERT_UP, MATRIX_EXPERT_DOWN,
                             l->gate_bias,       l->up_bias,       l->down_bias};
    memset(delta, 0, (size_t)n_embd * sizeof *delta);
    for (int32_t k = 0; k < l->n_expert_used; k++) {
        double weight = c->experts[best[k]] / divisor;
        for (int64_t i = 0; i < n_embd; i++) c->expert_in[i] = l->weights_inputs ? weight * normed[i] : normed[i];
        feed_forward_of(c, l, &experts, best[k], c->expert_in, 1, out);
        count_choice(c, l, best[k]);
        square_expert_inputs(c, l, INPUT_EXPERT_GATE_UP, best[k], normed, n_embd);
        square_expert_inputs(c, l, INPUT_EXPERT_DOWN, best[k], c->gate, l->matrices[MATRIX_EXPERT_GATE]->dims[1]);
        for (int64_t i = 0; i < n_embd; i++) delta[i] += l->weights_inputs ? out[i] : weight * out[i];
    }
    reference_rmsnorm(delta, l->post_expert_norm, n_embd, (double)c->model->hparams.rms_eps, delta);
}

/* Computes the feed-forward part of one row of a layer of experts: x, its norm, and what is added to it. */
static void run_row(const RefContext *c, const LayerSpec *l, const double *x, double *normed, double *delta) {
    double *shared_input = c->shared_input;
    memcpy(shared_input, normed, (size_t)c->model->hparams.n_embd * sizeof *normed);
    run_experts(c, l, x, normed, delta);
    if (l->matrices[MATRIX_SHARED_GATE]) run_shared(c, l, shared_input, delta);
}

static void feed_forward(const RefContext *c, const LayerSpec *l, const RowPlace *rows, int32_t n_rows) {
    int64_t n_embd = c->model->hparams.n_embd;
    norm_rows(c, l->ffn_norm, n_rows);
    convolve_inputs(c, l, &l->ffn_conv, MATRIX_FFN_CONV, rows, n_rows);
    reference_square_inputs(c, l, INPUT_GATE_UP, c->normed, n_embd, n_rows);
    if (l->ffn == FFN_DENSE) {
        const Network dense = {MATRIX_GATE, MATRIX_UP, MATRIX_DOWN, l->gate_bias, l->up_bias, l->down_bias};
        feed_forward_of(c, l, &dense, 0, c->normed, n_rows, c->delta);
        reference_square_inputs(c, l, INPUT_DOWN, c->gate, l->matrices[MATRIX_GATE]->dims[1], n_rows);
    }
    for (int32_t i = 0; l->ffn == FFN_EXPERTS && i < n_rows; i++)
        run_row(c, l, c->x + i * n_embd, c->normed + i * n_embd, c->delta + i * n_embd);
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
        for (int64_t k = 0; k < h->n_ple; k++) c->gate[k] = gelu(c->gate[k]) * c->up[k];
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
        store_keys(c, &c->model->layers[layer], model_mixer_place(c->model, layer), rows, n_rows);
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

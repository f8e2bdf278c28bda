/* reference.h - what the files of the reference backend share. */
#ifndef REFERENCE_REFERENCE_H
#define REFERENCE_REFERENCE_H

#include "compute/backend.h"

/* Recurrent states, and what a forward keeps of its rows for them (reference_recurrent.c). */
typedef struct RefStates {
    StateShape shape;
    int32_t n_layer; /* the number of layers that have a state; 0: the pointers below are NULL */
    double *conv;    /* [n_layer][n_states][n_conv - 1][n_channels] inputs of the last positions, the latest last */
    double *heads;   /* [n_layer][n_states][n_heads][head_floats] */
    double *inputs;  /* [n_layer][max_rows][n_channels] of the rows since executor_forward */
    double *gates;   /* [n_layer][max_rows][n_gates] as their products give them */
    double *z;       /* [max_rows][n_values] */
    double *of_rows; /* [max_rows][head_floats] the state of one head after each row */
    int32_t *path;   /* [max_rows] scratch */
} RefStates;

/* The inputs that the convolution of a row reads; its own input is the last. NULL: there is no such position. */
typedef struct RefWindow {
    const double *x[MODEL_MAX_CONV];
} RefWindow;

typedef struct RefContext {
    Context base;
    const Model *model;
    ContextOptions options;
    bool rounds_bf16;      /* rounds the inputs of BF16 matrices to BF16, as fast backends do; for tests */
    double *kv[KV_GROUPS]; /* [layers of the group][keys | values][n_slots][widest kv_dim]; MIXER_LATENT: only keys */
    double *x, *normed;    /* [max_rows][n_embd] residual stream, and its norm */
    double *embedded;      /* [max_rows][n_embd] the residual stream before the first layer, of LayerSpec.ple_norm */
    double *q, *attended;  /* [max_rows][q_dim] of a layer */
    double *k, *v;         /* [max_rows][kv_dim] of a layer */
    double *gate, *up;     /* [max_rows][widest inner row] */
    double *delta;         /* [max_rows][n_embd] what a block adds to x */
    double *conv_kernels;  /* [max_rows][block_conv_kernels], of LayerSpec.attn_conv and ffn_conv */
    double *scores;        /* [n_ctx] */
    double *output_gates;  /* [max_rows][q_dim], of LayerSpec.gates_output */
    double *queries;       /* [max_rows][heads of plain_dim + n_rot], of MIXER_LATENT */
    double *q_latent;      /* [max_rows][q_rank] */
    double *head_values;   /* [max_rows][heads of value_dim] */
    RefStates states;
    double *experts;        /* [n_expert] router probabilities */
    double *expert_in;      /* [n_embd] what one expert reads of one row */
    double *expert_out;     /* [n_embd] the output of that expert */
    double *shared_input;   /* [n_embd] what the shared expert reads of that row */
    float *weight_row;      /* one row of a matrix, as floats */
    float *logits, *hidden; /* [max_logits][n_vocab], [max_rows][context_hidden_width]: results */
    int32_t max_logits;
    InputSquares *squares; /* see Backend.sum_inputs; NULL: not summed */
} RefContext;

/* Returns the context whose cache the layers read. */
static inline const RefContext *reference_cache(const RefContext *c) {
    return c->options.reads ? (const RefContext *)c->options.reads : c;
}
/* Returns how many numbers a slot of that cache has. */
static inline int64_t reference_slot_dim(const RefContext *c) {
    return hparams_kv_dim(&reference_cache(c)->model->hparams);
}
/* Returns slot 0 of the keys (which = 0) or values (1) of a layer; slot s is s * reference_slot_dim numbers after it.
 * `layer` counts the layers of the group. What latent attention caches is both keys and values. */
static inline double *reference_kv(const RefContext *c, KvGroup group, int32_t layer, int which) {
    const RefContext *from = reference_cache(c);
    int64_t plane = from->model->hparams.latent.rank ? layer : (int64_t)layer * 2 + which;
    return from->kv[group] + plane * from->options.n_slots[group] * reference_slot_dim(c);
}
static inline int32_t reference_n_layers(const RefContext *c, KvGroup group) {
    int32_t n_window = model_n_mixers(c->model, MIXER_WINDOW);
    return group == KV_WINDOW ? n_window : model_n_attention(c->model) - n_window;
}
/* Returns how many arrays of slots the layers of a group have: one for keys and one for values, or one that is both. */
static inline int32_t reference_n_planes(const RefContext *c, KvGroup group) {
    return (c->model->hparams.latent.rank ? 1 : 2) * reference_n_layers(c, group);
}

void reference_forward(Context *c, const RowPlace *rows, int32_t n_rows);
void reference_sum_inputs(Context *c, InputSquares *to);
/* Recurrent layers. reference_recurrent computes the output of a layer from c->normed into c->delta;
 * reference_advance_states takes in committed rows. */
int reference_states_open(RefContext *c, fr_error *err);
void reference_states_close(RefContext *c);
void reference_recurrent(const RefContext *c, int32_t layer, const RowPlace *rows, int32_t n_rows);
void reference_advance_states(Context *c, const StateStep *steps, int32_t n);
size_t reference_state_bytes(const Context *c);
void reference_read_state(Context *c, int32_t state, void *out);
void reference_write_state(Context *c, int32_t state, const void *bytes);
/* Attention and latent attention from c->normed into c->delta; they store the keys and values of the rows, too. */
void reference_attention(const RefContext *c, const LayerSpec *l, int32_t layer, const RowPlace *rows, int32_t n_rows);
void reference_latent_attention(const RefContext *c, const LayerSpec *l, int32_t layer, const RowPlace *rows,
                                int32_t n_rows);
/* Makes the keys and values of the rows from c->normed, and stores them. `place` counts the layers of the cache. */
void reference_store_keys(const RefContext *c, const LayerSpec *l, int32_t place, const RowPlace *rows, int32_t n_rows);
/* The feed-forward network of a layer from c->normed (experts with norms of their own: from c->x) into c->delta. */
void reference_feed_forward(const RefContext *c, const LayerSpec *l, int32_t n_rows);
/* y [n_rows][n_out] = x [n_rows][n_in] times matrix i of a slot of the layer, and times the factor of that matrix. */
void reference_product_of(const RefContext *c, const LayerSpec *l, LayerMatrix m, int64_t i, const double *x,
                          int32_t n_rows, double *y);

/* y[r][o] = sum over i of W[o][i] x[r][i], in double, i ascending. W begins at `data`, rows as the file has them;
 * row has room for one of them as floats. With round_inputs x is rounded to BF16 first. */
void reference_product(const GgufTensor *w, const void *data, const double *x, int32_t n_rows, bool round_inputs,
                       double *y, float *row);
/* y = x / sqrt(mean(x^2) + eps) * gain; gain NULL: y = x. */
void reference_rmsnorm(const double *x, const float *gain, int64_t n, double eps, double *y);
double reference_silu(double x);
double reference_gelu(double x);
/* y [n_rows][n] += bias [n], unless that is NULL. */
void reference_add_bias(const float *bias, int32_t n_rows, int64_t n, double *y);
/* Adds the squares of the inputs x [n_rows][n] to the sums of their kind, if these are wanted. */
void reference_square_inputs(const RefContext *c, const LayerSpec *l, InputKind kind, const double *x, int64_t n,
                             int32_t n_rows);
/* Adds the bias of a token to its product with the LM head, and scales and caps the sum, where the model does so. */
double reference_finish_logit(const Model *m, int64_t token, double logit);

int reference_buffer_open(Buffer **out, Device *d, int64_t n, fr_error *err);
void reference_buffer_close(Buffer *b);
void reference_buffer_push(Buffer *b, int64_t first, int64_t n);
void reference_buffer_pull(Buffer *b, int64_t first, int64_t n);
int reference_linear_open(Linear **out, Device *d, const Weights *target, const GgufTensor *w, const float *bias,
                          int32_t max_rows, fr_error *err);
void reference_linear_close(Linear *l);
void reference_linear(Device *d, const Linear *l, LinearOp op, Slice x, int32_t n_rows, Slice y);
int reference_head_reserve(Device *d, const Weights *w, int32_t max_rows, fr_error *err);
void reference_head(Device *d, const Weights *w, Slice x, int32_t n_rows, Slice y);
void reference_embed(Device *d, const Weights *w, const int32_t *tokens, int32_t n, Slice out);
void reference_softmax(Device *d, float *x, int32_t n_rows, int64_t n);
void reference_rmsnorm_rows(Device *d, Slice x, int32_t n_rows, int64_t n, const float *gain, float eps);
int reference_lookup_open(Lookup **out, Device *d, TensorType type, int64_t n_rows, int64_t n, fr_error *err);
void reference_lookup_close(Lookup *l);
void reference_lookup_store(Device *d, Lookup *l, int64_t first, int32_t n_rows, const float *rows);
void reference_lookup_add(Device *d, Lookup *l, int64_t row, float *x);

#endif

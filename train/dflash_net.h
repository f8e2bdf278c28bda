/* dflash_net.h - the network of `dflash` (dflash_net.c) and its parts: the layers, the convolutions in them, the
 * selector among the best tokens, and the heads of DSpark. */
#ifndef TRAIN_DFLASH_NET_H
#define TRAIN_DFLASH_NET_H

#include "draft/learned/layer_entries.h"
#include "train/nets.h"

/* DFlash's layers. */
enum { DFLASH_MAX_BLOCK = 16 };

/* What the bias that a Markov head adds to the logits of a position depends on: the token before; also the hidden
 * state; also the tokens before that one in the block. */
typedef enum MarkovKind { MARKOV_NONE, MARKOV_VANILLA, MARKOV_GATED, MARKOV_RECURRENT } MarkovKind;

typedef struct DflashNet {
    int32_t C, V; /* the target's */
    int32_t n_layer, n_ff, n_head, n_head_kv, head_dim, n_streams;
    int32_t block, mask; /* slots of a block, at most DFLASH_MAX_BLOCK; the token in all but the first */
    int32_t n_anchors;   /* blocks that learn from a sequence */
    bool from_anchor;    /* a slot predicts the token after its own place */
    bool is_causal;      /* a slot does not see later ones */
    int32_t window;      /* keys that a slot sees in layers with a window, more than a block; 0: none */
    bool has_window[DFLASH_MAX_LAYERS], windows_are_causal;
    bool has_head_norms;                 /* queries and keys have norms */
    bool has_sinks;                      /* attention has a score that no key has, for each head */
    OwnForm form;                        /* of all layers */
    bool has_biases, has_output_bias;    /* of queries, keys and values; of what attention gives */
    bool qk_start_anew;                  /* as in UnrollShape */
    int32_t conv_taps, conv_group;       /* of BlockConv around both parts of each layer; taps 0: none */
    int32_t selector_rank, selector_top; /* of the selector, with at most dflash_n_own candidates; rank 0: none */
    double selector_weight;              /* of its loss beside that of the logits */
    MarkovKind markov;                   /* MARKOV_NONE where there is a selector */
    int32_t markov_rank;                 /* of the Markov head */
    bool has_confidence;                 /* a confidence head, which needs a Markov head */
    bool confidence_is_vector;           /* in the file; else a matrix of one row */
    bool confidence_is_narrow;           /* it does not read the vector of the token before */
    bool adds_conv, adds_selector, adds_markov; /* a file to go on from has no such parts */
    float rms_eps, embedding_scale;
    bool has_own_output; /* else the LM head is the target's */
    OwnVocabulary own;
    const Rope *rope;             /* rotates halves; borrowed */
    HeadLossOptions loss;         /* its n_steps: the predictions of a block; no loss of hidden states */
    int32_t n_ctx;                /* for the file, as what follows */
    float logit_scale, logit_cap; /* of a file that says them: scale above 0, has_logit_cap */
    bool has_logit_cap;
    const float *rope_factors; /* NULL: none */
    const int32_t *layers;     /* [n_streams] how many layers have run when each stream is read; borrowed */
} DflashNet;

extern const NetClass dflash_net_class;

/* Returns how many tokens the drafter has. */
static inline int32_t dflash_n_own(const DflashNet *n) { return n->loss.own_of ? n->loss.n_own : n->V; }
/* Returns the target's token for one of the drafter's. */
static inline int32_t dflash_token(const DflashNet *n, int32_t own) { return n->own.tokens ? n->own.tokens[own] : own; }

/* ---- a convolution around a part of a layer (dflash_conv.c) --------------------------------------------------- */

/* Its tensors, in this order: the matrix that makes kernels [2 taps C / group][C], and what is added to them
 * [2][taps][C]. */
enum { CONV_KERNELS, CONV_BASE, CONV_TENSORS };

/* part: "attn" or "ffn". */
NetTensor dflash_conv_tensor(const DflashNet *n, int32_t layer, const char *part, int32_t i);

/* R rows of slots, in the order of dflash_net.c. */
typedef struct DflashConv {
    real *kernels; /* [R][2 taps C / group] what each row makes of its normed input */
    real *in;      /* [R][C] the convolution of the normed inputs, which the part reads */
    real *out;     /* [R][C] the outputs of the part, before their convolution */
} DflashConv;

/* The scratch of a backward pass. */
typedef struct DflashConvBack {
    real *dkernels;   /* as DflashConv.kernels */
    real *din, *dout; /* [R][C] derivatives with respect to DflashConv.in and .out */
} DflashConvBack;

/* Takes the arrays for R rows. */
int dflash_conv_open(DflashConv *c, const DflashNet *n, int64_t R, Arena *arena, const char *name, fr_error *err);
int dflash_conv_open_back(DflashConvBack *b, const DflashNet *n, int64_t R, Arena *arena, const char *name,
                          fr_error *err);

/* Computes c->kernels and c->in from the normed inputs [R][C] of the blocks of N anchors. w: the tensors above. */
void dflash_conv_inputs(const DflashNet *n, real *const *w, DflashConv *c, const real *normed, int32_t n_anchors);
/* out [R][C] = the convolution of c->out. */
void dflash_conv_outputs(const DflashNet *n, real *const *w, const DflashConv *c, real *out, int32_t n_anchors);
/* The same backward, first the outputs: sets b->dout from dout [R][C], the derivative with respect to their
 * convolution, and adds to dw. Then, from b->din: adds to dnormed [R][C] and dw. */
void dflash_conv_outputs_back(const DflashNet *n, real *const *w, real *const *dw, const DflashConv *c,
                              DflashConvBack *b, const real *dout, int32_t n_anchors);
void dflash_conv_inputs_back(const DflashNet *n, real *const *w, real *const *dw, const DflashConv *c,
                             DflashConvBack *b, const real *normed, real *dnormed, int32_t n_anchors);

/* ---- the layers (dflash_layers.c) ----------------------------------------------------------------------------- */

/* The tensors around the layers, then those of each layer, then those of the selector or of DSpark's heads, and an LM
 * head of its own. */
enum { AROUND_FC, AROUND_CONTEXT_NORM, AROUND_OUTPUT_NORM, N_AROUND };
int32_t dflash_n_of_layer(const DflashNet *n);
NetTensor dflash_tensor_of_layer(const DflashNet *n, int32_t layer, int32_t i);

/* Heads of some rows: before their norm, after it, and rotated. */
typedef struct DflashHeads {
    real *raw, *rms; /* [rows][heads][head_dim], [rows][heads] */
    real *rotated;   /* as raw */
} DflashHeads;

/* Values of some rows: with OwnForm.is_gemma before their norm, and after it. */
typedef struct DflashValues {
    real *raw, *rms; /* [rows][K], [rows][heads] */
    real *out;       /* [rows][K] */
} DflashValues;

/* The activations of a layer; R rows of slots, n_ctx rows of context. */
typedef struct DflashLayer {
    DflashHeads q, k, context_k;
    DflashValues v, context_v;        /* of R rows, of n_ctx rows */
    AddedRows attn_added, ffn_added;  /* of R rows, with OwnForm.is_gemma */
    real *x, *attn_normed, *attn_rms; /* [R][C] the input, [R][C], [R] */
    real *probs[DFLASH_MAX_BLOCK];    /* of each slot, as in UnrollAttention */
    real *attended, *x_mid;           /* [R][Q], [R][C] */
    real *ffn_normed, *ffn_rms;       /* [R][C], [R] */
    real *gate, *up, *hidden;         /* [R][F] */
    DflashConv attn_conv, ffn_conv;
} DflashLayer;

/* ---- the selector (dflash_selector.c) -------------------------------------------------------------------------- */

/* Its tensors, in this order; none with rank 0. */
enum { SELECTOR_BEFORE, SELECTOR_AFTER, SELECTOR_HIDDEN, SELECTOR_TENSORS };
NetTensor dflash_selector_tensor(const DflashNet *n, int32_t i);

/* The activations for the current positions of a HeadLoss, n rows; K candidates of rank r. */
typedef struct DflashSelector {
    Arena arena;
    int32_t *candidates;            /* [n][K] the best tokens by their logits, best first */
    real *scores, *probs, *dscores; /* [n][K], probs: their softmax */
    real *log_sum;                  /* [n] log(sum of exp(scores)) */
    real *before;                   /* [n][r] vectors of the tokens before */
    real *state, *dstate;           /* [n][r] H h */
} DflashSelector;

/* With rank 0 nothing is allocated. */
int dflash_selector_open(DflashSelector *s, const DflashNet *n, fr_error *err);
void dflash_selector_close(DflashSelector *s); /* a zeroed one is fine */

/* After head_loss_logits of a step: finds the candidates and the softmax of their scores, and counts how often the best
 * one is right. x: [n][C] the rows that made the logits; w: the tensors above. */
void dflash_selector_forward(DflashSelector *s, const DflashNet *n, real *const *w, HeadLoss *h,
                             const TrainSequence *seq, int32_t step, const real *x, TrainSums *sums);
/* After head_loss_tokens: adds the loss of the step to the sums and, unless dx is NULL, `weight` times its gradient to
 * h->dlogits, dx [n][C] and dw. */
void dflash_selector_learn(DflashSelector *s, const DflashNet *n, real *const *w, real *const *dw, HeadLoss *h,
                           const TrainSequence *seq, int32_t step, const real *x, real *dx, double weight,
                           TrainSums *sums);

/* ---- the heads of DSpark (dflash_markov.c) --------------------------------------------------------------------- */

/* The tensors of the Markov head, and then those of the confidence head; none without a Markov head. */
enum { CONFIDENCE_WEIGHTS, CONFIDENCE_OFFSET, CONFIDENCE_TENSORS };
int32_t dflash_markov_n_tensors(const DflashNet *n);
NetTensor dflash_markov_tensor(const DflashNet *n, int32_t i);

/* The activations of a sequence. N anchors, R rows of slots, rank r; I and O: what the gate or the recurrence of a row
 * reads and gives, 0 of a vanilla head. */
typedef struct DflashMarkov {
    Arena arena;
    int32_t *tokens;                       /* [R] the token before each position */
    real *before, *in, *gates;             /* [R][r] their vectors, [R][I], [R][O] */
    real *vector, *dvector;                /* [R][r] what is multiplied by the output matrix */
    real *dbefore, *din, *dgates, *dstate; /* [N][r], [N][I], [N][O], [N][r], of the rows of one slot */
    real *x, *dx, *bias;                   /* [HEAD_LOSS_ROWS][r] twice, [HEAD_LOSS_ROWS][D] */
    real *rejected;                        /* [HEAD_LOSS_ROWS] probability that a token of the drafter is rejected */
} DflashMarkov;

/* For sequences of T tokens. Without a Markov head nothing is allocated. */
int dflash_markov_open(DflashMarkov *m, const DflashNet *n, int64_t T, fr_error *err);
void dflash_markov_close(DflashMarkov *m); /* a zeroed one is fine */

/* Computes m->vector of all slots that predict, from the outputs of the layers [R][C], and sets m->dvector to zero. w:
 * the tensors above. */
void dflash_markov_forward(DflashMarkov *m, const DflashNet *n, real *const *w, const TrainSequence *seq,
                           const int32_t *anchors, int32_t n_anchors, const real *hidden);
/* From m->dvector, after the loss: adds to dw and to dhidden [R][C]. */
void dflash_markov_backward(DflashMarkov *m, const DflashNet *n, real *const *w, real *const *dw, int32_t n_anchors,
                            real *dhidden);

/* Returns the bias [count][D] on the logits of slots whose rows are at[i], for the drafter's D tokens; and backward
 * from h->dlogits of these slots, which are the current positions of h: sets m->dvector there and adds to dw. */
const real *dflash_markov_bias(DflashMarkov *m, const DflashNet *n, real *const *w, const int64_t *at, int32_t count);
void dflash_markov_bias_back(DflashMarkov *m, const DflashNet *n, real *const *w, real *const *dw, const HeadLoss *h,
                             const int64_t *at);

/* After head_loss_rows of a step: adds the loss of the confidence head, with the step's share, to the sums and, unless
 * dw is NULL, `weight` times its gradient to dw. x: [n][C] the outputs of the layers in the rows at[i]. */
void dflash_confidence_learn(DflashMarkov *m, const DflashNet *n, real *const *w, real *const *dw, const HeadLoss *h,
                             int32_t step, const real *x, const int64_t *at, double weight, TrainSums *sums);

/* ---- activations ------------------------------------------------------------------------------------------------ */

typedef struct DflashActs {
    HeadLoss loss;
    DflashSelector selector;
    DflashMarkov markov;
    Arena arena;
    int32_t n_ctx, n_anchors;              /* of the sequence */
    int32_t *anchors;                      /* [n_anchors] ascending; [T] while they are drawn */
    real *cos_sin, *angles;                /* [T + B][n_rot] by position, [R][n_rot] */
    real *fused, *fused_rms, *g;           /* [n_ctx][C], [n_ctx], [n_ctx][C] */
    DflashLayer *layers;                   /* [n_layer] */
    real *x, *x_rms, *out;                 /* [R][C] the last layer's output, [R], [R][C] after the final norm */
    real *delta;                           /* [R][C] */
    real *dout, *dx, *dnormed, *dadded;    /* [R][C] */
    real *dq, *dk, *dv, *dattended, *draw; /* [R][Q], [R][K] twice, [R][Q] twice */
    real *dcontext_k, *dcontext_v;         /* [n_ctx][K] */
    real *dgate, *dup, *dhidden;           /* [R][F] */
    real *dg, *dfused, *dscores;           /* [n_ctx][C] twice, [UNROLL_BLOCK][n_ctx + B] */
    DflashConvBack conv;
    real *rows, *drows; /* [HEAD_LOSS_ROWS][C] inputs of the LM head */
} DflashActs;

/* Takes the arrays of the layers and of what is around them, for sequences of T tokens. */
int dflash_layers_open(DflashActs *a, const DflashNet *n, int64_t T, fr_error *err);
/* Computes a->out from the anchors of a sequence. */
void dflash_layers_forward(const DflashNet *n, real *const *w, DflashActs *a, const TrainSequence *seq);
/* From a->dout: adds to dw. The embeddings of the slots and the streams of the target are frozen. */
void dflash_layers_backward(const DflashNet *n, real *const *w, real *const *dw, DflashActs *a,
                            const TrainSequence *seq);

#endif

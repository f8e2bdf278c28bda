/* unroll.h - one transformer layer that continues from its own predictions: the layer of `eagle` and of
 * `lyanna`. */
#ifndef TRAIN_UNROLL_H
#define TRAIN_UNROLL_H

#include "base/mem.h"
#include "model/rope.h"
#include "train/head_loss.h"
#include "train/token_info_net.h"
#include "train/net.h"

enum { UNROLL_MAX_STEPS = 8 };

typedef struct UnrollShape {
    const char *method; /* "eagle": names of tensors begin with it */
    int32_t C, n_ff;
    int32_t n_head, n_head_kv, head_dim;
    float rms_eps;
    const Rope *rope; /* the target's; borrowed */
    int32_t n_steps;  /* 1 .. UNROLL_MAX_STEPS */
    bool has_attn_norm;
    bool fuses_token;     /* the input of the first step is fc [E ; h], else fc h */
    bool fuses_each_step; /* so is that of later steps; else it is the last output */
    bool is_parallel; /* that of later steps is the first step's plus a learned vector of the step; needs has_attn_norm */
    double fc_std;    /* initial deviation of fc's columns for the token; see start_token_std */
    bool qk_start_anew; /* q and k start random, because the target normalises its heads and this layer does not */
} UnrollShape;

/* The tensors, in this order. */
enum {
    UNROLL_FC,
    UNROLL_FC_BIAS,
    UNROLL_Q,
    UNROLL_K,
    UNROLL_V,
    UNROLL_O,
    UNROLL_FFN_NORM,
    UNROLL_GATE,
    UNROLL_UP,
    UNROLL_DOWN,
    UNROLL_ATTN_NORM,
    UNROLL_CHAIN_INPUTS
};
int32_t unroll_n_tensors(const UnrollShape *s);
NetTensor unroll_tensor(const UnrollShape *s, int32_t i);

/* The activations of a step, n rows. */
typedef struct UnrollStep {
    int32_t n;
    const int32_t *chains;        /* [n] the position t at which each row's chain began, ascending */
    real *pair;                   /* [n][2C] the input of fc; unused where the step is not fused */
    real *x;                      /* [n][C] the layer's input */
    real *attn_normed, *attn_rms; /* [n][C], [n] */
    real *q, *k, *v;              /* [n][H*D], [n][G*D] twice; q and k rotated */
    real *probs, *attended;       /* see UnrollAttention; [n][H*D] */
    real *x_mid;                  /* [n][C] */
    real *ffn_normed, *ffn_rms;   /* [n][C], [n] */
    real *gate, *up, *hidden;     /* [n][F] */
    real *f, *df;                 /* [T][C] the predicted hidden states by t, and their gradient */
    real *dk, *dv;                /* [n][G*D] */
} UnrollStep;

/* The activations of a sequence. */
typedef struct UnrollActs {
    int32_t max_length;
    Arena arena;
    real *cos_sin;             /* [T][n_rot/2][2] by position */
    int32_t *entries, *chains; /* [T] all positions, and those whose chain goes on beyond the first step */
    UnrollStep steps[UNROLL_MAX_STEPS];
    real *angles, *delta;                /* [n][n_rot/2][2], [n][C] of the current step */
    real *dx, *dnormed, *dattended, *dq; /* [n][C] twice, [n][H*D] twice */
    real *dgate, *dup, *dhidden;         /* [n][F] */
    real *dpair, *dscores;               /* [n][2C], [UNROLL_BLOCK][T + steps] */
    real *dfirst;                        /* [T][C] is_parallel: gradient of the first step's input, from later steps */
} UnrollActs;

int unroll_open(UnrollActs *a, const UnrollShape *s, int32_t max_length, fr_error *err);
void unroll_close(UnrollActs *a); /* a zeroed one is fine */

/* All steps of a sequence: a->steps[i].f has the hidden states that step i + 1 predicts, by the position at which it
 * began. */
void unroll_forward(const UnrollShape *s, real *const *w, UnrollActs *a, const TrainSequence *seq);
/* Sets all a->steps[i].df to zero, before the loss. */
void unroll_zero(const UnrollShape *s, UnrollActs *a, const TrainSequence *seq);
/* From a->steps[i].df, after the loss: adds to dw. */
void unroll_backward(const UnrollShape *s, real *const *w, real *const *dw, UnrollActs *a);

/* The confidence head of src/draft/learned in training. */

typedef struct ConfidenceShape {
    const char *method; /* the name of the tensor begins with it */
    int32_t C;
    bool exists;
} ConfidenceShape;

int32_t confidence_head_n_tensors(const ConfidenceShape *s); /* 1, or 0 without a head */
NetTensor confidence_head_tensor(const ConfidenceShape *s);

/* Adds the loss of a step that head_loss_step has just finished, with the step's share: -log of the chance that the
 * head gives to what happened. f: [T][C] the step's rows by the position t they start from; w, dw: the tensor, dw
 * may be NULL. There is no gradient to f. */
void confidence_head_learn(const ConfidenceShape *s, const HeadLoss *h, int32_t step, const real *f, const real *w,
                           real *dw, double weight, TrainSums *sums);

/* The network that `eagle` and `lyanna` share: a layer that continues from its own predictions, and
 * token info on the logits of each step. They differ only in their shapes; the functions are those of NetClass. */

typedef struct UnrollNet {
    UnrollShape layer;
    InfoShape info;             /* of the same method; rank 0: no token info */
    HeadLossOptions loss;       /* its n_steps is the layer's */
    GateShape gate;             /* of the same method; rank 0: token info does not depend on the state */
    ConfidenceShape confidence; /* of the same method; the loss then has margins */
} UnrollNet;

int32_t unroll_net_n_tensors(const void *net);
NetTensor unroll_net_tensor(const void *net, int32_t i);
void *unroll_net_acts_open(const void *net, int32_t max_length, fr_error *err);
void unroll_net_acts_close(void *acts);
void unroll_net_learn(const void *net, real *const *w, real *const *dw, void *acts, const TrainSequence *seq,
                      double weight, TrainSums *sums);
/* Sets the width of the feed-forward, and the keys of token info. */
void unroll_net_set_keys(const void *net, GgufWriter *w);

#endif

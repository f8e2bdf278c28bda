/* token_info_net.h - Lyanna's token-info embedding in training: a bias on the logits that depends on the last token
 * alone. */
#ifndef TRAIN_TOKEN_INFO_NET_H
#define TRAIN_TOKEN_INFO_NET_H

#include "train/head_loss.h"

typedef struct InfoShape {
    const char *method; /* names of tensors begin with it */
    int32_t C, V, rank; /* rank 0: no token info */
    int32_t n_hot;      /* 0: the table has all tokens */
    const int32_t *hot; /* [n_hot] ascending; borrowed */
    float rms_eps;
} InfoShape;

/* The tensors, in this order; none with rank 0. */
enum { INFO_DOWN, INFO_UP, INFO_GAIN, INFO_TENSORS };
int32_t info_n_tensors(const InfoShape *s);
NetTensor info_tensor(const InfoShape *s, int32_t i);
/* The keys of the file (learned_files.h); none with rank 0. */
void info_set_keys(const InfoShape *s, GgufWriter *w);

/* Activations for the current positions of a HeadLoss. n: those whose token has a row in the table; U: its number of
 * columns. */
typedef struct InfoActs {
    int32_t n, rows[HEAD_LOSS_ROWS]; /* which positions those are */
    Arena arena;
    real *x, *low;                   /* [n][C], [n][rank] */
    real *up, *normed, *inverse_rms; /* [n][U] twice, [n] */
    real *info, *dinfo;              /* [positions][V]; NULL with rank 0 */
    real *dnormed, *dup, *dlow;      /* [n][U] twice, [n][rank] */
} InfoActs;

/* With rank 0 nothing is allocated. */
int info_open(InfoActs *a, const InfoShape *s, fr_error *err);
void info_close(InfoActs *a); /* a zeroed one is fine */

/* Computes a->info for the current positions of h, and sets a->dinfo to zero. With rank 0 neither pass does anything.
 * */
void info_forward(InfoActs *a, const InfoShape *s, real *const *w, const HeadLoss *h, const TrainSequence *seq);
/* Adds to dw, from a->dinfo. */
void info_backward(InfoActs *a, const InfoShape *s, real *const *w, real *const *dw);

/* Token info that depends on the state, in training: a bias on the logits that depends on the last token
 * and on the chain's hidden state together. */

typedef struct GateShape {
    const char *method; /* names of tensors begin with it */
    int32_t C, V, rank; /* rank 0: no gate */
    double token_std;   /* initial deviation of the token's factor; see start_token_std */
} GateShape;

/* The tensors, in this order; none with rank 0. */
enum { GATE_STATE, GATE_TOKEN, GATE_UP, GATE_TENSORS };
int32_t gate_n_tensors(const GateShape *s);
NetTensor gate_tensor(const GateShape *s, int32_t i);
/* The key of the file (learned_files.h); none with rank 0. */
void gate_set_keys(const GateShape *s, GgufWriter *w);

/* Activations for the current positions of a HeadLoss, n rows. */
typedef struct GateActs {
    Arena arena;
    real *embd, *token, *dtoken;               /* [n][C], [n][rank] twice: the same for all steps */
    real *f, *df;                              /* [n][C] the states of one step */
    real *state, *dstate, *product, *dproduct; /* [n][rank] */
    real *info, *dinfo;                        /* [n][V] of one step, token info included; NULL with rank 0 */
} GateActs;

/* With rank 0 nothing is allocated. */
int gate_open(GateActs *a, const GateShape *s, fr_error *err);
void gate_close(GateActs *a); /* a zeroed one is fine */

/* What all steps at the current positions share. With rank 0 none of these functions does anything. */
void gate_forward_tokens(GateActs *a, const GateShape *s, real *const *w, const HeadLoss *h, const TrainSequence *seq);
/* One step: a->info = info [n][V] (NULL: zero) + the gate's bias, and a->dinfo = 0. f: [T][C] the states by the
 * position t from which they start, as in head_loss_step. */
void gate_forward_step(GateActs *a, const GateShape *s, real *const *w, const HeadLoss *h, int32_t step, const real *f,
                       const real *info);
/* From a->dinfo, after the loss of the same step: adds to dw, to df [T][C], and to dinfo [n][V] (NULL is allowed). */
void gate_backward_step(GateActs *a, const GateShape *s, real *const *w, real *const *dw, const HeadLoss *h,
                        int32_t step, real *df, real *dinfo);
void gate_backward_tokens(GateActs *a, const GateShape *s, real *const *dw, const HeadLoss *h);

#endif

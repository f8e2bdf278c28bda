/* info_gate.h - token info that depends on the state, in training: a bias on the logits that depends on the last token
 * and on the chain's hidden state together. */
#ifndef NETS_INFO_GATE_H
#define NETS_INFO_GATE_H

#include "train/nets/head_loss.h"

typedef struct GateShape {
    const char *method; /* names of tensors begin with it */
    int32_t C, V, rank; /* rank 0: no gate */
    double token_std;   /* initial deviation of the token's factor; see start_token_std */
} GateShape;

/* The tensors, in this order; none with rank 0. */
enum { GATE_STATE, GATE_TOKEN, GATE_UP, GATE_TENSORS };
int32_t gate_n_tensors(const GateShape *s);
NetTensor gate_tensor(const GateShape *s, int32_t i);
/* The key of the file (lyanna.h); none with rank 0. */
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
/* One step: a->info = info [n][V] (NULL: zero) + the gate's bias, and a->dinfo = 0. f: [T][C] the states by the position
 * t from which they start, as in head_loss_step. */
void gate_forward_step(GateActs *a, const GateShape *s, real *const *w, const HeadLoss *h, int32_t step, const real *f,
                       const real *info);
/* From a->dinfo, after the loss of the same step: adds to dw, to df [T][C], and to dinfo [n][V] (NULL is allowed). */
void gate_backward_step(GateActs *a, const GateShape *s, real *const *w, real *const *dw, const HeadLoss *h,
                        int32_t step, real *df, real *dinfo);
void gate_backward_tokens(GateActs *a, const GateShape *s, real *const *dw, const HeadLoss *h);

#endif

/* head_loss.h - what a drafter's rows are worth against the target's distribution, and the derivative. */
#ifndef NETS_HEAD_LOSS_H
#define NETS_HEAD_LOSS_H

#include "base/arena.h"
#include "train/nets/net.h"
#include "train/ops/op_regression.h"

/* The loss of a row at place p that guesses token p + 1, with q = softmax(w row + info):
 *     token_weight * KL(target's distribution || q)  or, with hard labels,  token_weight * -log q(x_{p+1}),   + hidden_weight * regression(row, h_p) */
typedef struct HeadLossOptions {
    double token_weight, hidden_weight; /* 0: that part is left out */
    bool hard_labels;
    Regression regression;
    int32_t n_steps;     /* a lesson's loss is the mean over its steps; at most 8 */
} HeadLossOptions;

enum { HEAD_LOSS_ROWS = 128 }; /* places that are looked at together */

typedef struct HeadLoss {
    HeadLossOptions options;
    int64_t C, V;
    int32_t n, places[HEAD_LOSS_ROWS]; /* the places at hand: those that count */
    Arena arena;
    real *dist, *log_dist;    /* [n][V] the target's; [n] the mean of log p under it: its entropy, negative */
    real *logits, *dlogits; /* [n][V] */
    real *x, *dx, *wanted;  /* [n][C]; x and dx are head_loss_step's */
    real *loss, *dloss;     /* [n] */
} HeadLoss;

int head_loss_open(HeadLoss *h, const HeadLossOptions *options, int64_t C, int64_t V, fr_error *err);
void head_loss_close(HeadLoss *h); /* a zeroed one is fine */

/* Takes the next places that count, from *from on, and the target's distribution there; *from moves on. False: there are none. Begin
 * with *from = 1: nothing is guessed at place 0. */
bool head_loss_next(HeadLoss *h, const TrainSequence *l, int32_t *from);

/* Step s of the places at hand. x: [T][C] the drafter's rows by the place t they started from, so place p reads row p - s
 * (places before s are left out). w: [V][C] the output matrix. info: [n][V] is added to the logits, or NULL. Adds to the
 * sums, and unless dx is NULL `weight` times the gradient to dx [T][C], and to dw and dinfo unless NULL. */
void head_loss_step(HeadLoss *h, const TrainSequence *l, int32_t step, const real *x, const real *w, const real *info, real *dx,
                    real *dw, real *dinfo, double weight, TrainSums *sums);

/* The same for a drafter that makes the rows of the places at hand and no others, of any width (C where states are judged,
 * too): x: [n][width], row i is that of places[i]; dx: as x; w, dw: [V][width]. The first head_loss_skipped rows are not
 * looked at: their places are before s, so there is no place to start from. */
int32_t head_loss_skipped(const HeadLoss *h, int32_t step);
void head_loss_rows(HeadLoss *h, const TrainSequence *l, int32_t step, const real *x, int64_t width, const real *w, const real *info,
                    real *dx, real *dw, real *dinfo, double weight, TrainSums *sums);

#endif

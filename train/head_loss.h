/* head_loss.h - the loss of a drafter's predictions against the target's distributions, and its derivative. */
#ifndef NETS_HEAD_LOSS_H
#define NETS_HEAD_LOSS_H

#include "base/mem.h"
#include "train/net.h"
#include "train/ops.h"

/* The loss of a row at position p, which predicts token p + 1, with q = softmax(w row + info):
 *     token_weight * KL(target's distribution || q)  or, with hard labels,  token_weight * -log q(x_{p+1}),
 *     + hidden_weight * regression(row, h_p) */
typedef struct HeadLossOptions {
    double token_weight, hidden_weight; /* 0: without that part */
    bool hard_labels;
    Regression regression;
    int32_t n_steps;            /* the loss of a sequence is the mean over its steps; at most 8 */
    bool has_margins;           /* HeadLoss.margin is computed */
    const double *step_weights; /* [n_steps] of that mean, not all 0; NULL: all 1. Borrowed */
} HeadLossOptions;

#define HEAD_LOSS_MAX_MARGIN 12.0
enum { HEAD_LOSS_ROWS = 128 }; /* positions in a batch, which bounds the memory for logits */

typedef struct HeadLoss {
    HeadLossOptions options;
    int64_t C, V;
    double sum_of_weights;                /* of the steps */
    int32_t n, positions[HEAD_LOSS_ROWS]; /* the current batch of positions, all in the loss mask, ascending */
    Arena arena;
    real *dist, *log_dist;  /* [n][V] the target's distributions; [n] their mean log probabilities, minus the entropy */
    real *logits, *dlogits; /* [n][V] */
    real *x, *dx;           /* [n][C], for head_loss_step */
    real *target_hidden;    /* [n][C] */
    real *loss, *dloss;     /* [n] */
    /* Of the last step, rows as above: whether its best token is the target's, and the logit of that token's
     * probability in softmax(logits / LEARNED_MIN_TEMPERATURE), at most HEAD_LOSS_MAX_MARGIN. */
    uint8_t is_right[HEAD_LOSS_ROWS];
    real margin[HEAD_LOSS_ROWS];
} HeadLoss;

int head_loss_open(HeadLoss *h, const HeadLossOptions *options, int64_t C, int64_t V, fr_error *err);
void head_loss_close(HeadLoss *h); /* a zeroed one is fine */

/* Collects the next positions in the loss mask, from *from on, and the target's distributions at them; *from advances.
 * False: there are none left. Begin with *from = 1: no step predicts at position 0. */
bool head_loss_next(HeadLoss *h, const TrainSequence *seq, int32_t *from);

/* Step s at the current positions. x: [T][C] the drafter's rows by the position t they start from, so position p reads
 * row p - s (positions below s are left out). w: [V][C] the output matrix. info: [n][V] is added to the logits, or
 * NULL. Adds to the sums and, unless dx is NULL, `weight` times the gradient to dx [T][C], and to dw and dinfo unless
 * those are NULL. */
void head_loss_step(HeadLoss *h, const TrainSequence *seq, int32_t step, const real *x, const real *w, const real *info,
                    real *dx, real *dw, real *dinfo, double weight, TrainSums *sums);

/* The share of a step in the loss of a sequence. */
double head_loss_share(const HeadLoss *h, int32_t step);

/* The same for a drafter that computes only the rows of the current positions, of any width (which must be C where
 * hidden_weight is not 0). x: [n][width], row i belongs to positions[i]; dx: as x; w, dw: [V][width]. The first
 * head_loss_skipped rows are not read: their positions are below s, so there is no position to start from. */
int32_t head_loss_skipped(const HeadLoss *h, int32_t step);
void head_loss_rows(HeadLoss *h, const TrainSequence *seq, int32_t step, const real *x, int64_t width, const real *w,
                    const real *info, real *dx, real *dw, real *dinfo, double weight, TrainSums *sums);

#endif

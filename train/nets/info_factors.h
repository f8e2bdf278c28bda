/* info_factors.h - Lyanna's token-info embedding in training: a bias on the logits that depends on the last token
 * alone. */
#ifndef NETS_INFO_FACTORS_H
#define NETS_INFO_FACTORS_H

#include "train/nets/head_loss.h"

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
/* The keys of the file (token_info.h); none with rank 0. */
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

#endif

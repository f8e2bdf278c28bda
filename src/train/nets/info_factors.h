/* info_factors.h - Lyanna's token-info embedding: what a token by itself says of the next one, added to the logits. */
#ifndef NETS_INFO_FACTORS_H
#define NETS_INFO_FACTORS_H

#include "train/nets/head_loss.h"

typedef struct InfoShape {
    const char *method;  /* names of tensors begin so */
    int32_t C, V, rank;  /* rank 0: there is none */
    int32_t n_hot;       /* 0: all tokens give and get info */
    const int32_t *hot;  /* [n_hot] ascending; borrowed */
    float rms_eps;
} InfoShape;

/* Tensors, in this order; none with rank 0. */
enum { INFO_DOWN, INFO_UP, INFO_GAIN, INFO_TENSORS };
int32_t info_n_tensors(const InfoShape *s);
NetTensor info_tensor(const InfoShape *s, int32_t i);
/* The keys of the file (spec/token_info.h); none with rank 0. */
void info_set_keys(const InfoShape *s, GgufWriter *w);

/* Room for the places that a HeadLoss has at hand. n: those of them whose token gives info; U: the tokens that get it. */
typedef struct InfoActs {
    int32_t n, rows[HEAD_LOSS_ROWS]; /* which places those are */
    Arena arena;
    real *x, *low;                   /* [n][C], [n][rank] */
    real *up, *normed, *inverse_rms; /* [n][U] twice, [n] */
    real *info, *dinfo;              /* [places][V]; NULL with rank 0 */
    real *dnormed, *dup, *dlow;      /* [n][U] twice, [n][rank] */
} InfoActs;

/* With rank 0 nothing is allocated. */
int info_open(InfoActs *a, const InfoShape *s, fr_error *err);
void info_close(InfoActs *a); /* a zeroed one is fine */

/* The info of the places at hand in h: a->info; a->dinfo becomes zero. Neither this nor the way back does anything with rank 0. */
void info_forward(InfoActs *a, const InfoShape *s, real *const *w, const HeadLoss *h, const TrainSequence *l);
/* From a->dinfo, adds to dw. */
void info_backward(InfoActs *a, const InfoShape *s, real *const *w, real *const *dw);

#endif

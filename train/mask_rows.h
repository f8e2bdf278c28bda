/* mask_rows.h - rows of mask tokens in a frozen target: their forward pass, and the gradient of their input vectors. */
#ifndef TRAIN_MASK_ROWS_H
#define TRAIN_MASK_ROWS_H

#include "base/mem.h"
#include "model/rope.h"
#include "train/net.h"

enum { MASK_MAX_STEPS = 8 };

/* The weights of a layer, as in LayerSpec (model/model.h). The biases may be NULL. */
typedef struct MaskLayer {
    const real *attn_norm, *q, *k, *v, *q_bias, *k_bias, *v_bias, *o;
    const real *ffn_norm, *gate, *up, *down;
} MaskLayer;

/* Borrowed from the target. */
typedef struct MaskTarget {
    int32_t C, n_ff, n_head, n_head_kv, head_dim, n_layer;
    float rms_eps;
    const Rope *rope;
    const MaskLayer *layers; /* [n_layer] */
    const real *output_norm; /* [C] */
} MaskTarget;

/* The activations of R rows in a layer. */
typedef struct MaskActs {
    real *x;                      /* [R][C] residual stream before the layer */
    real *attn_normed, *attn_rms; /* [R][C], [R] */
    real *q, *k, *v;              /* [R][H*D], [R][G*D] twice; q and k rotated */
    real *probs, *attended;       /* see UnrollAttention; [R][H*D] */
    real *x_mid;                  /* [R][C] */
    real *ffn_normed, *ffn_rms;   /* [R][C], [R] */
    real *gate, *up, *hidden;     /* [R][F] */
} MaskActs;

/* Groups of n_steps masks, one after each of some tokens of a sequence. Row (s, i) is mask s of group i: step after
 * step, so that the rows of a step lie together. */
typedef struct MaskRows {
    int32_t max_length, max_groups, n_steps;
    int32_t T, n;   /* the length of the current sequence; the current groups */
    int32_t *after; /* [n] the position of the token before each group, ascending */
    Arena arena;
    real *cos_sin;         /* [max_length + n_steps][n_rot/2][2] by position */
    int32_t *positions;    /* [max_length] 0, 1, 2, ... */
    MaskActs text;         /* the text's rows, in the layer at hand */
    real *text_k, *text_v; /* [n_layer][T][G*D] */
    MaskActs *layers;      /* [n_layer] of the masks */
    real *x, *out, *rms;   /* [n_steps * n][C] after the last layer, and after the final norm; [n_steps * n] */
    real *dout;            /* [n_steps * n][C] the derivative with respect to out, which the caller writes */
    real *angles, *delta, *dx, *dnormed, *dattended, *dq, *dk, *dv, *dgate, *dup, *dhidden, *dscores;
} MaskRows;

int mask_rows_open(MaskRows *m, const MaskTarget *t, int32_t n_steps, int32_t max_length, int32_t max_groups,
                   fr_error *err);
void mask_rows_close(MaskRows *m); /* a zeroed one is fine */

/* Keys and values of a text, in every layer. embd: [V][C]. Once for each sequence. */
void mask_rows_read_text(MaskRows *m, const MaskTarget *t, const real *embd, const int32_t *tokens, int32_t T);
/* The groups m->after [m->n], which the caller has written. masks: [n_steps][C]. Fills m->out, and zeroes m->dout. */
void mask_rows_forward(MaskRows *m, const MaskTarget *t, const real *masks);
/* From m->dout: adds to dmasks [n_steps][C]. */
void mask_rows_backward(MaskRows *m, const MaskTarget *t, real *dmasks);

#endif

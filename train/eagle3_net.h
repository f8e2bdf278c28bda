/* eagle3_net.h - the parts of the network of `eagle3` (eagle3_net.c): its tensors, the activations of a sequence, and
 * its layers forward and backward. */
#ifndef TRAIN_EAGLE3_NET_H
#define TRAIN_EAGLE3_NET_H

#include "draft/learned/eagle_layer.h"
#include "train/nets.h"

/* The tensors of the first layer by the numbers of UNROLL_FC to UNROLL_O_BIAS, then these. Some are optional. */
enum { TOKEN_NORM = UNROLL_SLOTS, HIDDEN_NORM, OUTPUT_NORM, STREAM_NORM, OUTPUT, MASK_HIDDEN, N_SLOTS };

/* The tensors by their numbers, or their derivatives; NULL where there is none. */
typedef struct Eagle3Tensors {
    real *slots[N_SLOTS];
    real *later[EAGLE3_MAX_LAYERS - 1][UNROLL_SLOTS]; /* of the layers after the first one */
} Eagle3Tensors;

typedef struct Eagle3Acts {
    HeadLoss loss;
    UnrollActs layer, *later; /* the first layer; [n_later] */
    int32_t n_later;
    UnrollShape shapes[EAGLE3_MAX_LAYERS]; /* of the first layer, and of the later ones */
    Arena arena;
    real *streams, *stream_rms;    /* [T][streams_width] what fc reads, if the streams have a norm; [T][n_streams] */
    real *dstreams, *dscratch;     /* [T][streams_width], [streams_width] */
    real *state[UNROLL_MAX_STEPS]; /* [n][C] what the step continues from */
    real *token_rms[UNROLL_MAX_STEPS], *hidden_rms[UNROLL_MAX_STEPS]; /* [n] */
    real *out[UNROLL_MAX_STEPS], *out_rms[UNROLL_MAX_STEPS];          /* [T][C], [T] norm f, by t */
    real *dout[UNROLL_MAX_STEPS];                                     /* [T][C] */
    real *dstate;                                                     /* [T][C] */
    real *mask_streams, *mask_rms, *mask_state, *dmask_state; /* with blocks: as streams, stream_rms and state; [C] */
    real *x, *dx;                                             /* [HEAD_LOSS_ROWS][C] inputs of the LM head */
} Eagle3Acts;

static inline int64_t eagle3_streams_width(const Eagle3Net *n) { return (int64_t)n->n_streams * n->n_target; }

/* Computes a->out of all steps from the rows of the layers, which it chooses. */
void eagle3_layers_forward(const Eagle3Net *n, const Eagle3Tensors *w, Eagle3Acts *a, const TrainSequence *seq);
/* Sets a->dout to zero, before the loss. From a->dout: adds to dw. */
void eagle3_layers_zero(const Eagle3Net *n, Eagle3Acts *a, const TrainSequence *seq);
void eagle3_layers_backward(const Eagle3Net *n, const Eagle3Tensors *w, const Eagle3Tensors *dw, Eagle3Acts *a,
                            const TrainSequence *seq);

#endif

/* net.h - the interface between the training loop and what it trains: a target from scratch, or a drafter.
 *
 * The loop (loop.h) owns data, order, accumulation, schedule, optimiser steps, checkpoints and the progress bar; a
 * trainer owns the parameters and their gradients. A trainer is a pure function of parameters and batch, so the same
 * seed trains the same file, also when the run is killed and resumed.
 */
#ifndef TRAIN_NET_H
#define TRAIN_NET_H

#include "draft/drafter_file.h"
#include "gguf/gguf_write.h"
#include "train/ops.h"

#include <stdbool.h>
#include <stdint.h>

/* One parameter tensor. The memory belongs to the trainer. */
typedef struct Param {
    const char *name; /* unique; the name of the tensor in the finished file, where it has one */
    int64_t n;
    float *value, *grad; /* [n] */
    bool decays;         /* subject to weight decay: matrices are, norms and biases are not */
    int64_t n_rows;      /* rows of a matrix that Muon may train; 0: AdamW trains it (vectors, embeddings, LM heads) */
} Param;

/* Sequences of one length. */
typedef struct TrainBatch {
    int32_t n_sequences, length;
    const int32_t *tokens;    /* [n_sequences][length + 1]: position t predicts token t + 1 */
    const uint8_t *loss_mask; /* [n_sequences][length]: 1 where the prediction of token t + 1 is in the loss */
    int64_t i_sequence;       /* number of the first sequence in the run, or among those held out */
} TrainBatch;

enum { TRAIN_MAX_STEPS = 16, TRAIN_RANKS = 32 };

/* Sums over the predictions in the loss, from which the loop computes means. Arrays are indexed by step ahead. */
typedef struct TrainSums {
    double loss;
    int64_t n;                                     /* predictions in the loss */
    int32_t n_heads;                               /* steps ahead whose accuracy is known; 1 for a target */
    int64_t right[TRAIN_MAX_STEPS];                /* predictions whose most probable token was correct */
    int64_t of[TRAIN_MAX_STEPS];                   /* predictions in all */
    int64_t at_rank[TRAIN_MAX_STEPS][TRAIN_RANKS]; /* for drafters: predictions that gave the correct token this rank */
} TrainSums;

typedef struct Trainer Trainer;
typedef struct Gradients Gradients; /* gradients.h */
typedef struct TrainerClass {
    const char *name; /* "target", "lyanna", ... */
    int32_t (*n_params)(const Trainer *t);
    Param *(*param)(Trainer *t, int32_t i);
    /* What adds up the gradients of sequences in `learn`. */
    Gradients *(*gradients)(Trainer *t);
    /* Adds the gradient of `weight` times the summed loss of the batch to the gradients, and adds to the sums. With
     * weight 0 it only adds to the sums (validation). Batches between gradients_begin and gradients_end are added up
     * there. */
    int (*learn)(Trainer *t, const TrainBatch *batch, double weight, TrainSums *sums, fr_error *err);
    /* Writes the finished GGUF file; that of a drafter includes the training record, which may be NULL. */
    int (*write)(const Trainer *t, const char *path, const DrafterTraining *record, fr_error *err);
    void (*close)(Trainer *t);
} TrainerClass;
struct Trainer {
    const TrainerClass *class; /* the first member of every trainer's own struct */
};

/* The interface between a drafter's network and the trainer of drafters: its tensors, and one sequence forward
 * and backward.
 *
 * A network learns from a frozen target. The target has read a sequence x_0 .. x_T-1 and has a hidden state h_p at each
 * position p; its distribution of x_{p+1} is softmax(head h_p). A drafter that starts at position t knows h_t and
 * x_{t+1} (the pending token). Its step s = 1, 2, ... predicts x_{t+s+1}, for which the target's distribution is that
 * at position p = t + s.
 *
 *     position  0    1    2    3          from t = 1:  step 1 predicts x_3, as the target does at position 2
 *     token     x0   x1   x2   x3                      step 2 predicts x_4, as the target does at position 3
 *     hidden    h0   h1   h2   h3
 *
 * The networks are written over `real` (ops.h): tests compile them in double and check every derivative. */

/* One sequence. Shapes: T tokens, C the target's width, V its vocabulary. Borrowed. */
typedef struct TrainSequence {
    int32_t T;
    const int32_t *tokens;    /* [T + 1] */
    const uint8_t *loss_mask; /* [T]: 1 where the prediction at position p, of token p + 1, is in the loss */
    const real *hidden;       /* [T][C] after the final norm */
    const real *embd;         /* [V][C] the target's embedding */
    const real *head;         /* [V][C] the target's output matrix */
    const real *streams;      /* [T][n_streams][C] the target's residual streams after chosen layers; NULL: none */
    const real *noise;        /* [T][C] added to the states that eagle reads, not to those in its loss; NULL: none */
    uint64_t seed;            /* of the run; with the next one the key of what is drawn for this sequence */
    int64_t i_sequence;       /* its number in the run */
} TrainSequence;

/* The initial values of a tensor. */
typedef enum NetStart {
    NET_NORMAL,   /* normally distributed with standard deviation `std` */
    NET_CONSTANT, /* all equal to `std` */
    NET_ONES,
    NET_ZEROS,
    NET_FUSE, /* [n_rows][n], n >= n_rows: the identity in the last n_rows columns, NET_NORMAL before them: of several
                * concatenated inputs the last is passed through */
    NET_PASS, /* the same with the identity in the first n_rows columns: the first input is passed through */
    NET_HEAD, /* an LM head, [V][n], n >= C: the target's output matrix in the last C columns, NET_NORMAL before them; a
                * head of other rows (NetTensor.tokens) begins with the target's rows for these tokens */
    NET_PAIR, /* [n_rows][n]: NET_LAYER in the last n / 2 columns, NET_NORMAL before them */
    NET_FIRST_ROWS, /* a cube: ones in the first row of each of its matrices, zeros in the others */
    NET_COPY,       /* the target's tensor that is named by `suffix`; ones where it has none, or one of another shape */
    NET_LAYER, /* the tensor with that suffix ("attn_q.weight") in the target's last layer; where the layer has none, or
                * one of another shape, ones for a vector and NET_NORMAL for a matrix */
} NetStart;

typedef struct NetTensor {
    char name[64];     /* the tensor's name in the drafter's file */
    int64_t n_rows, n; /* n_rows 0: a vector */
    NetStart start;
    double std;            /* 0: zeros */
    const char *suffix;    /* for NET_LAYER, NET_PAIR and NET_COPY */
    const int32_t *tokens; /* for NET_HEAD: [n_rows] the target's tokens; NULL: all. Borrowed */
    int64_t cube[3];       /* of a vector: its shape in the file, as GGUF's dimensions; 0: none */
    bool is_addition;      /* a file to go on from (--init) may lack it: it then keeps its initial values */
} NetTensor;

/* How the file of a drafter is laid out. In the last two cases the network has the shape of the file that it goes on
 * from, so that there are no keys to compare. */
typedef enum FileLayout {
    LAYOUT_OWN,
    LAYOUT_PUBLISHED, /* as others publish drafters of the method */
    LAYOUT_COMPANION, /* a model of the target's architecture with further layers (Nextn in model.h) */
} FileLayout;

/* `net` is the method's own struct, which holds its shape. Weight decay applies to matrices and not to vectors. */
typedef struct NetClass {
    const char *method;
    int32_t (*n_tensors)(const void *net);
    NetTensor (*tensor)(const void *net, int32_t i);
    /* The activations of one sequence of up to max_length tokens; each thread has its own. NULL: no memory, in err. */
    void *(*acts_open)(const void *net, int32_t max_length, fr_error *err);
    void (*acts_close)(void *acts); /* NULL is fine */
    /* Adds `weight` times the gradient of the sequence's loss to dw (NULL: no gradient), and adds to the sums. w, dw:
     * [n_tensors] values and gradients. */
    void (*learn)(const void *net, real *const *w, real *const *dw, void *acts, const TrainSequence *seq, double weight,
                  TrainSums *sums);
    /* Sets the keys "forerun-drafter.<method>.*" of the file, and adds tensors that are not trained. */
    void (*set_keys)(const void *net, GgufWriter *w);
    const char *accuracy; /* name of the tensor for DrafterTraining.accuracy; NULL: the drafter does not use it */
    /* Another method whose files may be continued: "<method>.x" begins as that file's tensor "<begins_from>.x", and
     * what the file lacks as in a new drafter. NULL: there is none. */
    const char *begins_from;
    FileLayout layout;
    /* Is that the name of a tensor of that file that is not trained but taken over? NULL: there is none. */
    bool (*keeps)(const void *net, const char *name);
} NetClass;

/* Elements of the tensor. */
static inline int64_t net_tensor_count(const NetTensor *t) { return (t->n_rows ? t->n_rows : 1) * t->n; }

#endif

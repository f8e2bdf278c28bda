/* gradients.h - the gradient of a training step: a sum over its sequences whose bits depend on nothing but them.
 *
 * The sequences 0 .. n - 1 of a step are the leaves of a binary tree. Node i of level l is the sum over the sequences
 * i 2^l .. (i + 1) 2^l - 1, as far as they exist: the sum of its two halves, or the first half where the second one is
 * empty.
 *
 *     sequences  0   1   2   3   4   5   6
 *     level 1    0 + 1   2 + 3   4 + 5   6
 *     level 2    0 .. 3          4 .. 6
 *     level 3    0 .. 6
 *
 * A sequence has a gradient of its own, and every node is one sum, so it does not matter which thread or rank
 * computes it. Threads take one sequence each, and then add: each thread a range of the weights. Nodes that wait for
 * their other half are kept from left to right. They are the ones in the binary digits of the number of sequences so
 * far, so there are at most log2 n of them besides the gradients of the threads; on a rank that begins in the middle of
 * a step, twice as many.
 *
 * Test: test_gradients.c. */
#ifndef TRAIN_GRADIENTS_H
#define TRAIN_GRADIENTS_H

#include "base/mem.h"
#include "base/threads.h"
#include "train/net.h"

#include <stdbool.h>
#include <stdint.h>

enum { GRADIENT_MAX_NODES = 128 };

typedef struct GradientNode {
    int64_t first; /* its first sequence, a multiple of 2^level */
    int level;
    int buffer; /* the number of the array with its gradient; -1: it has only a loss */
    double loss;
} GradientNode;

typedef struct GradientMerge {
    int into, from; /* buffers */
} GradientMerge;

/* Nodes from left to right, of which no two are the halves of a complete node; and the sums of buffers that were
 * necessary for that. */
typedef struct GradientTree {
    GradientNode nodes[GRADIENT_MAX_NODES];
    GradientMerge *merges; /* borrowed; a push adds one at most for each node */
    int n, n_merges;
} GradientTree;

/* Adds a node that begins where the last one ends. */
void gradient_tree_push(GradientTree *t, GradientNode x);
/* After the last sequence of a step: a single node stays, which is in the buffer of the first one. */
void gradient_tree_finish(GradientTree *t);
/* Lists the nodes that are left of n sequences from `first` on, at most GRADIENT_MAX_NODES, with neither buffer nor
 * loss. Returns their number. */
int gradient_nodes(int64_t first, int64_t n, GradientNode *out);
/* Does the merges for elements begin .. end - 1 of the buffers. Those that were added to others are zero then. */
void gradient_merge(const GradientMerge *merges, int n_merges, float *const *buffers, int64_t begin, int64_t end);

typedef struct Gradients {
    ThreadPool *pool;
    int n_threads;
    int64_t n_weights;
    GradientTree tree;
    int64_t next;    /* the sequence that is pushed next */
    bool is_begun;   /* between gradients_begin and gradients_end */
    float **buffers; /* [n_buffers][n_weights]; the first one is the trainer's gradients, the others are its own */
    int n_buffers;
    int *free_buffers; /* [n_free] those in no node, which are zero */
    int n_free;
    TrainSums *sums; /* [n_threads] */
    Arena arena;
} Gradients;

/* total: [n_weights], the trainer's gradients, borrowed. After a failure gradients_close is safe; a zeroed struct is
 * fine, too. */
int gradients_open(Gradients *g, float *total, int64_t n_weights, int n_threads, fr_error *err);
void gradients_close(Gradients *g);

/* Processes sequence i of the batch in run i_run, below n_threads, which selects the activations to work in. Adds to
 * grads (NULL: no gradient) and to the sums. */
typedef void (*LearnSequence)(void *ctx, int i_run, int32_t i, float *grads, TrainSums *sums);

/* Processes all n sequences of a batch, with threads. By itself it is a whole step, and the sum is added to the
 * trainer's gradients. After gradients_begin it is the next part of a step. Fails only if memory runs out. */
int gradients_run(Gradients *g, int32_t n, LearnSequence fn, void *ctx, bool has_gradient, TrainSums *sums,
                  fr_error *err);

/* Begins a step, or the part of it that starts with sequence `first`; the trainer's gradients must be zero. Until the
 * end, losses are in the nodes of the tree and not in the sums of gradients_run. */
void gradients_begin(Gradients *g, int64_t first);
/* The trainer's gradients become the sum over all sequences of the step, and the loss is added to the sums. */
void gradients_end(Gradients *g, TrainSums *sums);
/* Forgets the nodes, whose sums are somewhere else by now; those in buffers of its own are zeroed if they are not. */
void gradients_drop(Gradients *g, bool are_zero);

/* Adds everything but the loss. */
void train_sums_add_counts(TrainSums *sums, const TrainSums *more);

#endif

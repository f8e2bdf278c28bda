/* train_ranks.h - a training on several ranks: processes that each learn from their part of the sequences of a step.
 *
 * Rank 0 runs the loop. It has the optimiser, and it writes files and draws the progress bar. The other ranks follow
 * its orders: they compute the nodes of the gradient (gradients.h) over their sequences and send them to rank 0, which
 * adds them in the order of the tree, takes the step, and sends the new parameters to all. So the number of ranks
 * changes no bit.
 *
 *     rank 0     order ── learn ── add up ── optimiser ── parameters ──
 *     rank 1     order ── learn ── nodes ──── waits ───── parameters ──
 *
 * All ranks have the target, the data and the parameters; each has the gradients of its threads and of its nodes. What
 * carries the exchanges: compute/ranks/comm.h. Ranks is NULL in a training in one process, for which all functions do
 * the usual.
 *
 * Test: test_gradients.c, test_train_ranks.c. */
#ifndef TRAIN_TRAIN_RANKS_H
#define TRAIN_TRAIN_RANKS_H

#include "train/gradients.h"

typedef struct Ranks Ranks;

/* Starts n_ranks - 1 processes, which continue from here, too; FR_RANKS_NUMA: one for each NUMA node. FR_RANKS_MPI:
 * joins the ranks that mpirun has started. *out is NULL if there is only one. Later ranks ignore the signals that stop
 * a training, because they end with rank 0. */
int train_ranks_open(Ranks **out, int n_ranks, fr_error *err);
/* Ends the other ranks. A process that train_ranks_open has started ends here. */
void train_ranks_close(Ranks *r);
int train_ranks_rank(const Ranks *r); /* 0 in one process */
int train_ranks_size(const Ranks *r); /* 1 in one process */

/* Returns status on all ranks if it is FR_OK on all of them, and otherwise the error of the first rank that failed. */
int train_ranks_agree(Ranks *r, int status, fr_error *err);
/* FR_OK, or the reason for which the group has ended. */
int train_ranks_check(const Ranks *r, fr_error *err);
/* Copies `value` of rank 0 to the other ranks. */
void train_ranks_share(const Ranks *r, void *value, size_t bytes);
/* The same as train_ranks_agree, which also refuses ranks with other results of products, another run signature or
 * other data than rank 0. Call gemm_open first. */
int train_ranks_compare(Ranks *r, int status, const char *run_signature, uint64_t data, fr_error *err);

/* What rank 0 does next, and the other ranks with it. */
typedef enum TrainOrder {
    TRAIN_PARAMETERS, /* train_ranks_share_parameters */
    TRAIN_LEARN,      /* a training step */
    TRAIN_VALIDATE,
    TRAIN_END,
} TrainOrder;
/* Gives the order on rank 0 and receives it on others: TRAIN_END if the group has ended. *step: that of TRAIN_LEARN. */
TrainOrder train_ranks_order(const Ranks *r, TrainOrder order, int64_t *step);
void train_ranks_share_parameters(const Ranks *r, Trainer *t);

/* The sequences *begin .. *end - 1 of n are those of this rank; the first ranks have one more if there is a rest. */
void train_ranks_part(const Ranks *r, int64_t n, int64_t *begin, int64_t *end);
/* Ends a step of n sequences, of which each rank has learned its part. On rank 0 the trainer's gradients become the sum
 * over all of them, and the sums are those of all ranks. has_gradient: the same on all ranks. `status` is that of the
 * part of this rank; if it is an error, the group ends. */
int train_ranks_add_up(const Ranks *r, Gradients *g, int64_t n, bool has_gradient, TrainSums *sums, int status,
                       fr_error *err);

#endif

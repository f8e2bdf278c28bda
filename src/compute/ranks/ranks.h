/* ranks.h - a backend that runs on several ranks: a table over that of the CPU, which has every rank compute its part.
 *
 * Rank 0 runs the engine, the drafters and the verification. The other ranks know nothing about requests: they repeat
 * the calls of the backend that concern the divided weights. Rank 0 sends each such call with its arguments before it
 * makes the call itself, and the exchanges within the call (compute/cpu/split.c) keep the ranks in step. So no decision
 * is made twice, and nothing has to be deterministic but the arithmetic.
 *
 *   ranks_backend.c  the table, for rank 0
 *   ranks_work.c     the loop of the other ranks
 *   ranks_drafts.c   draft models and the layers of drafters, which are divided, too, where that is faster
 *   ranks_copies.c   sends the description of such layers
 *   ranks_layers.c   where they are not: whole layers between the divided embedding and LM head
 *   ranks_rows.c     rows of a forward as bytes
 *   ranks_start.c    starts and ends the processes
 *   ranks_compare.c  compares what they have loaded and how they compute
 *   comm.c           exchanges; what carries them: transport.h
 */
#ifndef RANKS_RANKS_H
#define RANKS_RANKS_H

#include "compute/backend.h"
#include "base/mem.h"
#include "compute/ranks/comm.h"

#include <sys/types.h>

enum { RANKS_MAX_CONTEXTS = 32, RANKS_MAX_DRAFTS = 16 };

/* The calls that are repeated. */
typedef enum CallKind {
    CALL_OPEN_DRAFT,
    CALL_CLOSE_DRAFT,
    CALL_OPEN_CONTEXT,
    CALL_CLOSE_CONTEXT,
    CALL_FORWARD,
    CALL_RESERVE_LOGITS,
    CALL_ADVANCE_STATES,
    CALL_RESERVE_HEAD,
    CALL_HEAD,
    CALL_EMBED,
    CALL_END, /* the model is closed */
} CallKind;

typedef struct Call {
    CallKind kind;
    int context;        /* its number; -1: the call concerns none */
    int64_t numbers[2]; /* small arguments */
    size_t bytes;       /* of the other arguments, which follow; after them are n_copies SlotCopy */
    size_t n_copies;
} Call;

/* Slots that are copied, or with n = 0 a slot that is filled, before the call that is sent next. A commit copies slots
 * one by one, and nothing depends on the copies before the next call. */
typedef struct SlotCopy {
    int32_t context, group, from, to, n;
} SlotCopy;

/* The place where a draft model or the layers of a drafter run. Only tests and measurements set another one than the
 * faster. */
typedef enum DraftPlace { DRAFTS_WHERE_FASTER, DRAFTS_WHOLE, DRAFTS_DIVIDED } DraftPlace;

typedef struct Ranks {
    Comm *comm;
    CommMemory *memory;              /* that of ranks_start; NULL: it belongs to the caller of ranks_join */
    pid_t processes[COMM_MAX_RANKS]; /* on rank 0: those that ranks_start has started; 0: none */
    const Weights *weights;          /* the divided weights, from ranks_compare on */
    Context *contexts[RANKS_MAX_CONTEXTS];
    struct DrafterLayers *layers; /* contexts of drafters (ranks_layers.c) */
    /* On rank 0: what is divided beside the target, by its number (Weights.number), of which 0 is the target's. */
    const Weights *drafts[RANKS_MAX_DRAFTS];
    DraftPlace draft_place;
    /* Seconds of a forward of what was opened last, if it is whole and if it is divided; 0: unknown. has_timed_divided:
     * the second was measured, and otherwise it is the least that it can be. */
    double draft_whole_s, draft_divided_s;
    bool has_timed_divided;
    Buf body, copies; /* the arguments of a call, and the SlotCopy that it is to send */
} Ranks;

const Backend *ranks_backend(void);

/* Starts n_ranks - 1 processes, which continue from here, too. Each gets its Ranks, which takes over the memory. */
int ranks_start(Ranks **out, int n_ranks, fr_error *err);
/* Makes this process, or this thread of a test, one of the ranks. */
int ranks_join(Ranks **out, CommMemory *memory, int rank, fr_error *err);
/* Makes this process one of the ranks that mpirun has started, with its share of the cores. All must run the same
 * program. */
int ranks_join_mpi(Ranks **out, fr_error *err);
/* Returns FR_OK on all ranks, or an error on all of them if one has another version or build of the program than rank
 * 0. It is the first exchange of ranks that are not forked, so what it sends never changes. */
int ranks_compare_programs(Ranks *r, fr_error *err);
/* To be called by all ranks when they have opened the weights, with the status of that and the fingerprint of the
 * model. It also measures the price of an exchange. Returns FR_OK on all ranks, or an error on all of them if one has
 * failed or has another model than rank 0. */
int ranks_compare(Ranks *r, Weights *w, int status, uint64_t fingerprint, fr_error *err);

/* The error of a rank that has another `what` than rank 0, or other results of products if that is NULL. */
int rank_refuse(const char *what, fr_error *err);

/* Repeats the calls of rank 0 until it closes the model or the group ends. */
void ranks_work(Ranks *r);
/* Does so in a rank that is a process, unless it has failed: then the failure ends the group. A process that
 * ranks_start has started ends here. A rank over MPI returns FR_ERR_CANCELLED, or the error for which the group has
 * ended. */
int ranks_work_to_the_end(Ranks *r, const char *failure, fr_error *err);
/* Ends the other ranks if this is rank 0. NULL is fine. */
void ranks_close(Ranks *r);

/* These add bytes to the arguments of the next call, send it, and receive it. The group ends if memory runs out. */
void ranks_put(Ranks *r, const void *bytes, size_t n);
void ranks_send(Ranks *r, Call call);
Call ranks_receive(Ranks *r);
/* Returns status on all ranks if it is FR_OK on all of them, and otherwise the error of the first rank that failed. */
int ranks_agree(Ranks *r, int status, fr_error *err);

/* ---- draft models (ranks_drafts.c) ---- */

/* Backend.draft_weights, for rank 0. */
int ranks_draft_weights(Weights **out, Device *d, const Weights *target, const Model *model, int32_t n_rows,
                        fr_error *err);
/* Has the other ranks close their parts of what is divided. */
void ranks_draft_close(const Weights *w);
int ranks_n_drafts(const Ranks *r); /* how many of them are divided */

/* The part of a draft model, or of the layers of a drafter, on another rank. */
typedef struct DraftPart {
    Gguf *gguf;
    Model *model;
    char *layers; /* the memory of ranks_take_layers */
    Weights *weights;
} DraftPart;
/* Opens what the arguments of the call name, in the way of the target. */
int draft_part_open(DraftPart *p, Ranks *r, const Call *call, fr_error *err);
void draft_part_close(DraftPart *p); /* also after a failure */

/* ---- the layers of a drafter as bytes (ranks_copies.c) ---- */

bool ranks_can_send(const Model *layers, const Model *target);
void ranks_put_layers(Ranks *r, const Model *layers, const Model *target);
/* Makes the Model of the bytes, of which it consists from then on. They begin at a multiple of 8. */
Model *ranks_take_layers(char *bytes, const Gguf *g, const Model *target);

/* ---- the layers of a drafter that are whole (ranks_layers.c) ---- */

int ranks_layers_open(Context **out, Device *d, const Weights *w, const ContextOptions *options, fr_error *err);
void ranks_layers_close(Context *c);
void ranks_layers_forward(Context *c, const RowPlace *rows, int32_t n_rows);
const float *ranks_layers_read(Context *c, ResultKind kind, int32_t i);
int ranks_layers_reserve_logits(Context *c, int32_t n, fr_error *err);

/* ---- rows of a forward (ranks_rows.c) ---- */

/* n_inputs: the numbers of a row that has an input. */
void ranks_put_rows(Ranks *r, const RowPlace *rows, int32_t n_rows, int64_t n_inputs);

/* The rows since executor_forward on another rank. */
typedef struct RankRows {
    RowPlace *rows;  /* [max_rows] */
    int32_t **slots; /* [max_rows] the slots of the rows of a call, at the number of its first row */
    int32_t max_rows;
} RankRows;
int rank_rows_open(RankRows *rows, int32_t max_rows, fr_error *err);
void rank_rows_close(RankRows *rows);
/* Returns the rows of a call, or NULL if memory runs out. Their inputs stay among the arguments of the call. */
const RowPlace *rank_rows_take(RankRows *rows, const Ranks *r, int32_t n_rows, int64_t n_inputs);

#endif

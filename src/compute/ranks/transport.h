/* transport.h - what carries the parts of an exchange from rank to rank (comm.h): shared memory, or MPI.
 *
 *   transport_memory.c   processes of one machine that were forked, or threads of a test
 *   mpi/transport_mpi.c  processes that mpirun has started; a shared object, so that only these need Open MPI
 *   mpi/join_mpi.c       how these processes find each other
 *
 * An exchange of a rank is one call of `part` and of `send`, and then of `receive` for every other rank. The own part
 * of the next exchange may be sent before that of the last is received, but not that of the one after it. The shared
 * object is not linked with forerun, so this header declares types, and functions within that object only. */
#ifndef RANKS_TRANSPORT_H
#define RANKS_TRANSPORT_H

#include "forerun.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

enum { TRANSPORT_BYTES = 1 << 20 }; /* the most bytes that a rank sends in one exchange */

enum { GROUP_IS_ALIVE, GROUP_IS_ENDING, GROUP_HAS_ENDED };

/* Whether the group has ended, and why. The reason is complete in the state GROUP_HAS_ENDED. */
typedef struct GroupEnd {
    atomic_int state;
    char reason[sizeof((fr_error *)0)->message];
} GroupEnd;

typedef struct TransportTable TransportTable;
typedef struct Transport {
    const TransportTable *table;
    int rank, n_ranks;
    int local_rank, n_local; /* among the ranks of this machine */
    bool is_own_process;     /* the ranks are processes that fr_model_open has not started */
    GroupEnd *end;           /* that of all ranks, or a copy */
} Transport;

struct TransportTable {
    const char *name; /* for measurements: "memory" or "mpi" */
    /* Returns the memory [TRANSPORT_BYTES] for the own part of the next exchange, or NULL if the group has ended. */
    char *(*part)(Transport *t);
    /* Sends `bytes` of it, to all other ranks or only to rank 0. */
    void (*send)(Transport *t, size_t bytes, bool to_all);
    /* Waits for the part of another rank, and returns it; 0 bytes: the caller needs nothing of it. The part stays until
     * the next is received. Returns NULL if the group has ended. */
    const char *(*receive)(Transport *t, int rank, size_t bytes);
    /* A thread of each rank calls this ten times a second. It tells the other ranks that this one is alive. */
    void (*beat)(Transport *t);
    /* Returns how often the rank has done so; 0: it has not begun, or it has left. */
    unsigned (*beats_of)(Transport *t, int rank);
    /* Tells the other ranks that the group has ended, and wakes those that wait. */
    void (*announce_end)(Transport *t);
    /* This rank exchanges nothing more. Over MPI it waits until all ranks have come here or the group has ended. */
    void (*leave)(Transport *t);
    /* After `leave` and the last beat. */
    void (*close)(Transport *t);
};

/* What the shared object for MPI exports under the name "transport_mpi_open". Returns 0, or a negative code with a
 * sentence in err: also if another rank has not joined after limit_s seconds. */
typedef int (*TransportMpiOpen)(Transport **out, int max_ranks, double limit_s, fr_error *err);

/* ---- between the two files of the shared object --------------------------------------------------------------- */

enum { JOIN_RANKS = 64 };

/* What the thread that joins has seen of the others, for the thread that watches. */
typedef struct JoinProgress {
    atomic_int n_ranks; /* 0: MPI has not started on all machines */
    atomic_int rank;
    atomic_bool has_answered[JOIN_RANKS]; /* with MPI's first message */
} JoinProgress;

/* transport_mpi.c: starts MPI, exchanges a message with each other rank, and opens the transport. Waits as long as a
 * rank is missing. */
int join_mpi(Transport **out, int max_ranks, JoinProgress *progress, fr_error *err);

/* join_mpi.c: returns `code`, with a sentence in err. */
__attribute__((format(printf, 3, 4))) int join_refuse(fr_error *err, fr_code code, const char *format, ...);

/* join_mpi.c: returns the value of the first of two environment variables that is set; NULL: neither is. */
const char *join_environment(const char *first, const char *second);

#endif

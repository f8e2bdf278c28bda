/* join_mpi.h - how a process becomes a rank over MPI. The two files of the shared object share this:
 *
 *   join_mpi.c       what the object exports; watches the others while a second thread joins
 *   transport_mpi.c  joins, and is the transport from then on */
#ifndef RANKS_JOIN_MPI_H
#define RANKS_JOIN_MPI_H

#include "compute/ranks/transport.h"

enum { JOIN_RANKS = 64 };

/* What the thread that joins has seen of the others, for the thread that watches. */
typedef struct JoinProgress {
    atomic_int n_ranks; /* 0: MPI has not started on all machines */
    atomic_int rank;
    atomic_bool has_answered[JOIN_RANKS]; /* with MPI's first message */
} JoinProgress;

/* Starts MPI, exchanges a message with each other rank, and opens the transport. Waits as long as a rank is missing. */
int join_mpi(Transport **out, int max_ranks, JoinProgress *progress, fr_error *err);

/* Returns `code`, with a sentence in err. */
__attribute__((format(printf, 3, 4))) int join_refuse(fr_error *err, fr_code code, const char *format, ...);

/* Returns the value of the first of two environment variables that is set; NULL: neither is. */
const char *join_environment(const char *first, const char *second);

#endif

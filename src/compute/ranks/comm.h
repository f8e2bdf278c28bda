/* comm.h - ranks: processes that compute each forward together, and exchange what each of them has finished.
 *
 * Rank 0 runs the engine. Every rank has a part of the weights and computes a part of each matrix product; nothing but
 * finished values is exchanged, so the number of ranks changes no bit. All ranks call the same functions in the same
 * order, as with MPI.
 *
 * Failures. A rank that dies, hangs or calls comm_abort ends the group: every call that waits returns, later calls do
 * nothing, and comm_check returns the error. What was to be received is undefined then.
 */
#ifndef RANKS_COMM_H
#define RANKS_COMM_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

enum { COMM_MAX_RANKS = 64 };

typedef struct Comm Comm; /* the membership of one rank; used by one thread at a time */

/* The memory through which the ranks of one machine exchange values. It is mapped by one process and inherited by those
 * that it forks; in tests, ranks are threads. */
typedef struct CommMemory CommMemory;
int comm_memory_open(CommMemory **out, int n_ranks, fr_error *err);
void comm_memory_close(CommMemory *m); /* NULL is fine */

int comm_open(Comm **out, CommMemory *memory, int rank, fr_error *err);
void comm_close(Comm *c); /* NULL is fine */
int comm_rank(const Comm *c);
int comm_size(const Comm *c);

/* What a rank contributes to an exchange: n pieces of equal size. */
typedef struct CommPart {
    int64_t n;
    size_t bytes; /* of each piece */
} CommPart;
/* Returns piece i of a rank: where it is read if the rank is the own one, otherwise where it is to be written. */
typedef char *(*CommPieceFn)(const void *ctx, int rank, int64_t i);
/* Sends the pieces of each rank to all others, or only to rank 0. parts: [n_ranks], the same on all ranks. */
void comm_gather(Comm *c, const CommPart *parts, CommPieceFn piece, const void *ctx, bool to_all);
/* Copies `data` of rank 0 to that of all others. */
void comm_broadcast(Comm *c, void *data, size_t bytes);

/* Ends the group with a reason, which is a whole sentence. Only the first reason is kept. */
void comm_abort(Comm *c, const char *reason);
/* FR_OK, or the reason for which the group has ended. */
int comm_check(const Comm *c, fr_error *err);

/* What has been exchanged so far: calls in which any rank had something to send, and the bytes that all ranks together
 * contributed. */
typedef struct CommCounts {
    int64_t n_gathers, n_gather_bytes, n_broadcasts, n_broadcast_bytes;
} CommCounts;
CommCounts comm_counts(const Comm *c);

#endif

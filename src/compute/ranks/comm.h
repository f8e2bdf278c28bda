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
#include "compute/ranks/transport.h"

#include <stdint.h>

enum { COMM_MAX_RANKS = 64 };

typedef struct Comm Comm; /* the membership of one rank; used by one thread at a time */

/* The memory through which the ranks of one machine exchange values. It is mapped by one process and inherited by those
 * that it forks; in tests, ranks are threads. */
typedef struct CommMemory CommMemory;
int comm_memory_open(CommMemory **out, int n_ranks, fr_error *err);
void comm_memory_close(CommMemory *m); /* NULL is fine */

int comm_open(Comm **out, CommMemory *memory, int rank, fr_error *err);
/* Joins the ranks that mpirun has started; once in a process. All of them call this. A rank for which another has not
 * come after limit_s seconds returns an error that says so; the process must end then. */
int comm_open_mpi(Comm **out, double limit_s, fr_error *err);
/* Over MPI, waits until all ranks close theirs, unless the group has ended. NULL is fine. */
void comm_close(Comm *c);
int comm_rank(const Comm *c);
int comm_size(const Comm *c);
const Transport *comm_transport(const Comm *c);

/* What a rank contributes to an exchange: n pieces of equal size. */
typedef struct CommPart {
    int64_t n;
    size_t bytes; /* of each piece */
} CommPart;
/* Returns piece i of a rank: where it is read if the rank is the own one, otherwise where it is to be written. */
typedef char *(*CommPieceFn)(const void *ctx, int rank, int64_t i);
/* Sends the pieces of each rank to all others, or only to rank 0. parts: [n_ranks], the same on all ranks. */
void comm_gather(Comm *c, const CommPart *parts, CommPieceFn piece, const void *ctx, bool to_all);
/* The same in two steps, to all ranks: the first sends the own pieces, and the second waits for those of the others. In
 * between the caller computes, and a second gather may begin; they end in the order in which they have begun, before
 * any other exchange. At most TRANSPORT_BYTES of each rank. */
void comm_gather_begin(Comm *c, const CommPart *parts, CommPieceFn piece, const void *ctx);
void comm_gather_end(Comm *c, const CommPart *parts, CommPieceFn piece, const void *ctx);
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
    int64_t n_early_gathers, n_early_bytes; /* of the gathers, those that began while none was under way */
    double seconds;                         /* in exchanges, where this rank also waits for ranks that still compute */
} CommCounts;
CommCounts comm_counts(const Comm *c);

/* Measures what an exchange costs, in some milliseconds. All ranks call this at the same time, and get what rank 0 has
 * measured, which comm_price returns from then on (all zero before). */
typedef struct CommPrice {
    double latency_s, bytes_per_s; /* bytes_per_s: of what a rank receives */
} CommPrice;
CommPrice comm_measure(Comm *c);
CommPrice comm_price(const Comm *c);
void comm_set_price(Comm *c, CommPrice price); /* for tests: the same on all ranks, while nothing is exchanged */

/* From now on each exchange takes this much longer on this rank, as over a network; for tests and measurements. The
 * environment variable FORERUN_RANKS_NETWORK=DELAY_US,MBIT_S sets it for all groups of a process. */
typedef struct CommNetwork {
    double delay_s;
    double bytes_per_s; /* of what the rank receives; 0: unlimited */
} CommNetwork;
void comm_slow_down(Comm *c, CommNetwork network);

/* ---- for transports --------------------------------------------------------------------------------------- */

int transport_memory_open(Transport **out, CommMemory *memory, int rank, fr_error *err);
/* Ends the group with "rank N of M WHAT; the other ranks have ended, too". */
void comm_end_because_of(Transport *t, int rank, const char *what);

#endif

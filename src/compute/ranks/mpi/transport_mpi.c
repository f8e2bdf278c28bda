/* transport_mpi.c - exchanges through MPI, between processes that mpirun has started: the shared object
 * libforerun-mpi.so. It is the only part of forerun that is linked with MPI, and is linked with nothing of forerun.
 *
 * The idea. A rank sends its part to each of the others, so an exchange takes one latency, and a broadcast is the case
 * in which only rank 0 has a part. Two persistent receives for each other rank are always posted, with buffers for the
 * longest part, so a part goes to its place when it arrives. A rank that has nothing to send is not waited for.
 *
 * Threads. Two threads use MPI: that which exchanges, and that which beats. MPI allows one at a time
 * (MPI_THREAD_SERIALIZED), so a lock is held during each call, and no call waits: both threads poll.
 *
 * Failures. MPI returns errors instead of ending the process. After an error, or after the group has ended, nothing
 * more is exchanged and MPI is not finalised, because that would wait for the rank that is missing. When the process
 * ends, mpirun ends the others.
 *
 * How ranks that join are watched: join_mpi.c.
 *
 * Proof: tests/cli/test_ranks_mpi.c. */
#include "compute/ranks/transport.h"

#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TAG_PART, TAG_BEAT, TAG_GREETING = 0x464f };
enum { POLLS = 1000, SHORT_SLEEPS = 2000, SHORT_SLEEP_NS = 50000, SLEEP_NS = 1000000 };
enum { EAGER_MARGIN = 4096 /* for the header of a message */ };
enum { BEATS_AT_ONCE = 32, LAST_TICKS = 1000 };

/* What ranks send ten times a second, and once more when the group has ended. */
typedef struct Beat {
    int has_ended;
    char reason[sizeof((GroupEnd *)0)->reason];
} Beat;

/* Another rank. */
typedef struct Peer {
    char *parts[2];          /* [TRANSPORT_BYTES] part k is received in k % 2 */
    MPI_Request receives[2]; /* persistent */
    unsigned n_received;
    MPI_Request sends[2]; /* of the own parts */
    MPI_Request beat_in, beat_out, end_out;
    Beat beat;
    atomic_uint n_beats;
} Peer;

typedef struct MpiTransport {
    Transport base;
    GroupEnd end;
    MPI_Comm comm;
    pthread_mutex_t lock;   /* of all calls of MPI */
    atomic_bool wants_beat; /* the thread that beats waits for the lock: the polling thread leaves it alone */
    char *own[2];           /* [TRANSPORT_BYTES] the own part of exchange n is in n % 2 */
    unsigned n;             /* exchanges so far */
    bool has_left, is_ours; /* is_ours: MPI is initialised and finalised here */
    Beat beat, last_beat;
    Peer peers[];
} MpiTransport;

static bool is_open; /* the other ranks serve one model, and join no second one */

static MpiTransport *of(Transport *t) { return (MpiTransport *)(void *)t; }
static bool has_ended(const MpiTransport *t) { return atomic_load(&t->end.state) != GROUP_IS_ALIVE; }

/* Ends the group in this process. Returns whether it had not ended before. */
static bool end_here(MpiTransport *t, const char *reason) {
    int alive = GROUP_IS_ALIVE;
    if (!atomic_compare_exchange_strong(&t->end.state, &alive, GROUP_IS_ENDING)) return false;
    snprintf(t->end.reason, sizeof t->end.reason, "%s", reason);
    atomic_store(&t->end.state, GROUP_HAS_ENDED);
    return true;
}

/* Ends the group if a call of MPI that concerns a rank has failed. The lock is held. */
static void check(MpiTransport *t, int rank, int code) {
    char reason[sizeof t->end.reason], text[MPI_MAX_ERROR_STRING + 1] = "";
    int n;
    if (code == MPI_SUCCESS) return;
    MPI_Error_string(code, text, &n);
    snprintf(reason, sizeof reason, "rank %d of %d cannot be reached (%.200s); the other ranks have ended, too", rank,
             t->base.n_ranks, text);
    end_here(t, reason);
}

static void sleep_ns(long ns) {
    const struct timespec pause = {.tv_nsec = ns};
    nanosleep(&pause, NULL);
}

/* Lets other threads run before the next poll. */
static void pause_after(int n_polls) {
    if (n_polls >= POLLS) sleep_ns(n_polls < POLLS + SHORT_SLEEPS ? SHORT_SLEEP_NS : SLEEP_NS);
}

/* Waits until a request is complete. Returns false if the group has ended. */
static bool wait_for(MpiTransport *t, int rank, MPI_Request *request) {
    for (int i = 0; !has_ended(t); i += i < INT32_MAX) {
        int is_done = 0;
        if (atomic_load(&t->wants_beat)) {
            sleep_ns(SHORT_SLEEP_NS);
            continue;
        }
        pthread_mutex_lock(&t->lock);
        check(t, rank, MPI_Test(request, &is_done, MPI_STATUS_IGNORE));
        pthread_mutex_unlock(&t->lock);
        if (is_done && !has_ended(t)) return true;
        pause_after(i);
    }
    return false;
}

/* ---- exchanges -------------------------------------------------------------------------------------------- */

static char *part(Transport *base) {
    MpiTransport *t = of(base);
    unsigned k = ++t->n % 2;
    for (int i = 0; i < base->n_ranks; i++)
        if (!wait_for(t, i, &t->peers[i].sends[k])) return NULL;
    return t->own[k];
}

static void send(Transport *base, size_t bytes, bool to_all) {
    MpiTransport *t = of(base);
    unsigned k = t->n % 2;
    int n_receivers = bytes == 0 ? 0 : to_all ? base->n_ranks : 1;
    pthread_mutex_lock(&t->lock);
    for (int i = 1; i <= base->n_ranks; i++) {
        int to = (base->rank + i) % base->n_ranks;
        if (to == base->rank || to >= n_receivers) continue;
        check(t, to, MPI_Isend(t->own[k], (int)bytes, MPI_BYTE, to, TAG_PART, t->comm, &t->peers[to].sends[k]));
    }
    pthread_mutex_unlock(&t->lock);
}

static const char *receive(Transport *base, int rank, size_t bytes) {
    MpiTransport *t = of(base);
    Peer *p = &t->peers[rank];
    if (bytes == 0) return has_ended(t) ? NULL : p->parts[0];
    unsigned k = p->n_received++;
    pthread_mutex_lock(&t->lock);
    if (k > 0) check(t, rank, MPI_Start(&p->receives[(k - 1) % 2])); /* the caller has read that part */
    pthread_mutex_unlock(&t->lock);
    return wait_for(t, rank, &p->receives[k % 2]) ? p->parts[k % 2] : NULL;
}

/* ---- watching --------------------------------------------------------------------------------------------- */

/* Takes the beats of a rank that have arrived. The lock is held. */
static void take_beats(MpiTransport *t, int rank) {
    Peer *p = &t->peers[rank];
    for (int i = 0; i < BEATS_AT_ONCE; i++) {
        int has_come = 0;
        if (MPI_Test(&p->beat_in, &has_come, MPI_STATUS_IGNORE) != MPI_SUCCESS || !has_come) return;
        atomic_fetch_add(&p->n_beats, 1);
        if (p->beat.has_ended) end_here(t, p->beat.reason);
        MPI_Start(&p->beat_in);
    }
}

static void beat(Transport *base) {
    MpiTransport *t = of(base);
    atomic_store(&t->wants_beat, true);
    pthread_mutex_lock(&t->lock);
    atomic_store(&t->wants_beat, false);
    for (int i = 0; i < base->n_ranks; i++) {
        int is_sent = 0;
        if (i == base->rank) continue;
        take_beats(t, i);
        if (MPI_Test(&t->peers[i].beat_out, &is_sent, MPI_STATUS_IGNORE) == MPI_SUCCESS && is_sent)
            MPI_Start(&t->peers[i].beat_out);
    }
    pthread_mutex_unlock(&t->lock);
}

static unsigned beats_of(Transport *base, int rank) { return atomic_load(&of(base)->peers[rank].n_beats); }

static void announce_end(Transport *base) {
    MpiTransport *t = of(base);
    pthread_mutex_lock(&t->lock);
    t->last_beat.has_ended = 1;
    memcpy(t->last_beat.reason, t->end.reason, sizeof t->last_beat.reason);
    for (int i = 0; i < base->n_ranks; i++) {
        int is_sent;
        if (i == base->rank) continue;
        MPI_Isend(&t->last_beat, sizeof t->last_beat, MPI_BYTE, i, TAG_BEAT, t->comm, &t->peers[i].end_out);
        MPI_Test(&t->peers[i].end_out, &is_sent, MPI_STATUS_IGNORE);
    }
    pthread_mutex_unlock(&t->lock);
}

/* ---- closing ---------------------------------------------------------------------------------------------- */

/* Waits until all ranks have called this, or the group has ended, or for n_ticks milliseconds (0: without a limit). */
static bool meet(MpiTransport *t, int n_ticks) {
    MPI_Request all;
    int have_come = 0;
    pthread_mutex_lock(&t->lock);
    bool is_begun = MPI_Ibarrier(t->comm, &all) == MPI_SUCCESS;
    pthread_mutex_unlock(&t->lock);
    for (int i = 0; is_begun && !have_come && !has_ended(t) && (n_ticks == 0 || i < n_ticks); i++) {
        pthread_mutex_lock(&t->lock);
        if (MPI_Test(&all, &have_come, MPI_STATUS_IGNORE) != MPI_SUCCESS) is_begun = false;
        pthread_mutex_unlock(&t->lock);
        if (!have_come) sleep_ns(SLEEP_NS);
    }
    return have_come;
}

static void leave(Transport *base) { of(base)->has_left = meet(of(base), 0); }

static void cancel(MPI_Request *receive) {
    int is_done = 0;
    if (MPI_Test(receive, &is_done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !is_done) {
        MPI_Cancel(receive);
        MPI_Wait(receive, MPI_STATUS_IGNORE);
    }
    MPI_Request_free(receive);
}

static void close_peer(MpiTransport *t, int rank) {
    Peer *p = &t->peers[rank];
    take_beats(t, rank);
    cancel(&p->receives[0]);
    cancel(&p->receives[1]);
    cancel(&p->beat_in);
    MPI_Wait(&p->beat_out, MPI_STATUS_IGNORE);
    MPI_Request_free(&p->beat_out);
    free(p->parts[0]);
    free(p->parts[1]);
}

/* The second meeting is after the last beat of every rank, so that no message is on its way when MPI is finalised. */
static void close_transport(Transport *base) {
    MpiTransport *t = of(base);
    if (!t->has_left || !meet(t, LAST_TICKS)) return; /* MPI still uses the memory */
    for (int i = 0; i < base->n_ranks; i++)
        if (i != base->rank) close_peer(t, i);
    MPI_Comm_free(&t->comm);
    if (t->is_ours) MPI_Finalize();
    pthread_mutex_destroy(&t->lock);
    is_open = false;
    free(t->own[0]);
    free(t->own[1]);
    free(t);
}

/* ---- opening ---------------------------------------------------------------------------------------------- */

static int start_mpi(bool *is_ours, fr_error *err) {
    int level = MPI_THREAD_SINGLE, is_running = 0, has_run = 0;
    char limit[16];
    MPI_Initialized(&is_running);
    MPI_Finalized(&has_run);
    if (is_open || has_run) return join_refuse(err, FR_ERR_UNSUPPORTED, "ranks over MPI can divide only one model");
    *is_ours = !is_running;
    /* If there are more ranks than cores, polls pause here and not within MPI, which would keep the lock. */
    setenv("OMPI_MCA_mpi_yield_when_idle", "0", 0);
    /* Over TCP, a message that is longer than this waits for an answer after its first part. Here the receiver always
     * has a buffer for the longest part, so no message has to wait, and each takes one latency. */
    snprintf(limit, sizeof limit, "%d", TRANSPORT_BYTES + EAGER_MARGIN);
    setenv("OMPI_MCA_btl_tcp_eager_limit", limit, 0);
    if (is_running) MPI_Query_thread(&level);
    else if (MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level) != MPI_SUCCESS)
        return join_refuse(err, FR_ERR_IO, "MPI cannot be initialised");
    return level >= MPI_THREAD_SERIALIZED ? 0
                                          : join_refuse(err, FR_ERR_UNSUPPORTED,
                                                        "MPI must allow several threads to call it "
                                                        "in turn (MPI_THREAD_SERIALIZED)");
}

/* Refuses a launcher that Open MPI does not know, which has started processes that see only themselves. */
static int check_launcher(int n_ranks, fr_error *err) {
    const char *size = join_environment("PMI_SIZE", "SLURM_STEP_NUM_TASKS"), *rank = getenv("PMI_RANK");
    int n = size && (rank || getenv("PMIX_RANK")) ? atoi(size) : 1;
    return n_ranks > 1 || n < 2 ? 0
                                : join_refuse(err, FR_ERR_UNSUPPORTED,
                                              "the launcher has started %d processes, and each of them is alone for "
                                              "Open MPI: start them with the mpirun of Open MPI, or with srun "
                                              "--mpi=pmix",
                                              n);
}

/* Exchanges an empty message with each of the other ranks. What comes after it waits for all, and cannot say who is
 * missing. */
static void greet(int rank, int n_ranks, JoinProgress *progress) {
    MPI_Request in[JOIN_RANKS], out[JOIN_RANKS];
    int n_left = n_ranks - 1;
    for (int i = 0; i < JOIN_RANKS; i++) in[i] = out[i] = MPI_REQUEST_NULL;
    for (int i = 0; i < n_ranks; i++) {
        if (i == rank) continue;
        MPI_Irecv(NULL, 0, MPI_BYTE, i, TAG_GREETING, MPI_COMM_WORLD, &in[i]);
        MPI_Isend(NULL, 0, MPI_BYTE, i, TAG_GREETING, MPI_COMM_WORLD, &out[i]);
    }
    while (n_left > 0) {
        for (int i = 0; i < n_ranks; i++) {
            int is_done = 0;
            if (in[i] == MPI_REQUEST_NULL || MPI_Test(&in[i], &is_done, MPI_STATUS_IGNORE) || !is_done) continue;
            atomic_store(&progress->has_answered[i], true);
            n_left--;
        }
        if (n_left > 0) sleep_ns(SHORT_SLEEP_NS);
    }
    MPI_Waitall(n_ranks, out, MPI_STATUSES_IGNORE);
}

static bool open_peer(MpiTransport *t, int rank) {
    Peer *p = &t->peers[rank];
    p->sends[0] = p->sends[1] = MPI_REQUEST_NULL;
    if (rank == t->base.rank) return true;
    for (int k = 0; k < 2; k++) {
        if (!(p->parts[k] = malloc(TRANSPORT_BYTES))) return false;
        MPI_Recv_init(p->parts[k], TRANSPORT_BYTES, MPI_BYTE, rank, TAG_PART, t->comm, &p->receives[k]);
        MPI_Start(&p->receives[k]);
    }
    MPI_Recv_init(&p->beat, sizeof p->beat, MPI_BYTE, rank, TAG_BEAT, t->comm, &p->beat_in);
    MPI_Send_init(&t->beat, sizeof t->beat, MPI_BYTE, rank, TAG_BEAT, t->comm, &p->beat_out);
    MPI_Start(&p->beat_in);
    atomic_store(&p->n_beats, 1); /* it has joined */
    return true;
}

static void find_neighbours(Transport *t, MPI_Comm comm) {
    MPI_Comm machine;
    MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, t->rank, MPI_INFO_NULL, &machine);
    MPI_Comm_rank(machine, &t->local_rank);
    MPI_Comm_size(machine, &t->n_local);
    MPI_Comm_free(&machine);
}

int join_mpi(Transport **out, int max_ranks, JoinProgress *progress, fr_error *err) {
    static const TransportTable table = {.name = "mpi",
                                         .part = part,
                                         .send = send,
                                         .receive = receive,
                                         .beat = beat,
                                         .beats_of = beats_of,
                                         .announce_end = announce_end,
                                         .leave = leave,
                                         .close = close_transport};
    bool is_ours = false;
    int n_ranks, rank, status = start_mpi(&is_ours, err);
    *out = NULL;
    if (status) return status;
    MPI_Comm_size(MPI_COMM_WORLD, &n_ranks);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if ((status = check_launcher(n_ranks, err))) return status;
    if (n_ranks > max_ranks)
        return join_refuse(err, FR_ERR_ARGUMENT, "mpirun has started %d processes; a model can be divided among %d",
                           n_ranks, max_ranks);
    atomic_store(&progress->rank, rank);
    atomic_store(&progress->n_ranks, n_ranks);
    greet(rank, n_ranks, progress);
    MpiTransport *t = calloc(1, sizeof *t + (size_t)n_ranks * sizeof *t->peers);
    if (!t) return join_refuse(err, FR_ERR_MEMORY, "out of memory: the buffers of ranks do not fit");
    t->base = (Transport){.table = &table, .rank = rank, .n_ranks = n_ranks, .is_own_process = true, .end = &t->end};
    t->is_ours = is_ours;
    MPI_Comm_dup(MPI_COMM_WORLD, &t->comm);
    MPI_Comm_set_errhandler(t->comm, MPI_ERRORS_RETURN);
    find_neighbours(&t->base, t->comm);
    pthread_mutex_init(&t->lock, NULL);
    bool fits = (t->own[0] = malloc(TRANSPORT_BYTES)) && (t->own[1] = malloc(TRANSPORT_BYTES));
    for (int i = 0; fits && i < n_ranks; i++) fits = open_peer(t, i);
    if (!fits) return join_refuse(err, FR_ERR_MEMORY, "out of memory: the buffers of ranks do not fit");
    is_open = true;
    *out = &t->base;
    return 0;
}

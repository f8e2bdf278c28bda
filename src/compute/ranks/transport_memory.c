/* transport_memory.c - exchanges through shared memory.
 *
 * The idea. Each rank has four buffers that all ranks can read, and a counter of the exchanges that it has published.
 * In exchange number n a rank writes to buffer n % 4, publishes n, waits until all other ranks have published n, and
 * copies what it needs from their buffers. It may publish n + 1 before it waits. A rank may write to the buffer of
 * exchange n again in exchange n + 4, because by then it has seen every other rank publish n + 2, which they do after
 * they have read the buffers of exchange n.
 *
 * Waiting. The next counter usually comes within microseconds, so a rank polls, then lets other threads run, and sleeps
 * on a futex if it has to wait longer: the ranks after 0 wait for the next request of a user in that way.
 *
 * Proof: tests/compute/test_comm.c. */
#include "compute/ranks/comm.h"

#include "base/mem.h"
#include "base/os.h"
#include "base/threads.h"

#include <signal.h>
#include <stdio.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { N_BUFFERS = 4, POLLS = 4000, YIELDS = 100, SLEEP_MS = 100, HOW_BYTES = 64 };

/* What the others see of a rank. */
typedef struct Slot {
    _Alignas(64) atomic_uint published; /* exchanges */
    atomic_int n_sleepers;              /* ranks that sleep until `published` grows */
    atomic_uint beats;
    atomic_int process; /* 0: it has not begun */
    atomic_bool has_left;
} Slot;

struct CommMemory {
    int n_ranks;
    size_t bytes;
    GroupEnd end;
    Slot slots[COMM_MAX_RANKS];
    _Alignas(64) char buffers[]; /* [n_ranks][N_BUFFERS][TRANSPORT_BYTES] */
};

typedef struct MemoryTransport {
    Transport base;
    CommMemory *memory;
    unsigned n;                        /* exchanges of which the own part was written */
    unsigned received[COMM_MAX_RANKS]; /* exchanges of which the part of each other rank was received */
} MemoryTransport;

int comm_memory_open(CommMemory **out, int n_ranks, fr_error *err) {
    *out = NULL;
    if (n_ranks < 1 || n_ranks > COMM_MAX_RANKS)
        return error_set(err, FR_ERR_ARGUMENT, "%d ranks were asked for; 1 to %d are possible", n_ranks,
                         COMM_MAX_RANKS);
    size_t bytes = sizeof **out + (size_t)n_ranks * N_BUFFERS * TRANSPORT_BYTES;
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return error_memory(err, "the memory that ranks share", bytes);
    CommMemory *m = *out = p;
    m->n_ranks = n_ranks, m->bytes = bytes;
    atomic_store(&m->slots[0].process, getpid()); /* it may die before it joins the ranks that it has forked */
    return FR_OK;
}

void comm_memory_close(CommMemory *m) {
    if (m) munmap(m, m->bytes);
}

static CommMemory *memory_of(const Transport *t) { return ((const MemoryTransport *)(const void *)t)->memory; }

static char *buffer_of(const MemoryTransport *t, int rank, unsigned n) {
    return t->memory->buffers + ((size_t)rank * N_BUFFERS + n % N_BUFFERS) * TRANSPORT_BYTES;
}

/* ---- exchanges -------------------------------------------------------------------------------------------- */

static void wake(Slot *s) { os_word_wake(&s->published); }

static bool has_published(const Slot *s, unsigned n) { return (int)(atomic_load(&s->published) - n) >= 0; }

static bool has_ended(const CommMemory *m) { return atomic_load(&m->end.state) != GROUP_IS_ALIVE; }

/* Returns false if the rank has left and will not publish exchange n. */
static bool sleep_until_published(CommMemory *m, int rank, unsigned n) {
    Slot *s = &m->slots[rank];
    bool comes = true;
    atomic_fetch_add(&s->n_sleepers, 1);
    while (comes && !has_published(s, n) && !has_ended(m)) {
        unsigned seen = atomic_load(&s->published);
        if (atomic_load(&s->has_left) && !has_published(s, n)) comes = false;
        else if ((int)(seen - n) < 0) os_word_wait(&s->published, seen, SLEEP_MS);
    }
    atomic_fetch_sub(&s->n_sleepers, 1);
    return comes;
}

static bool wait_for(CommMemory *m, int rank, unsigned n) {
    const Slot *s = &m->slots[rank];
    for (int i = 0; i < POLLS; i++) {
        if (has_published(s, n)) return true;
        threads_relax();
    }
    for (int i = 0; i < YIELDS; i++) {
        if (has_published(s, n)) return true;
        sched_yield();
    }
    return sleep_until_published(m, rank, n);
}

static char *part(Transport *base) {
    MemoryTransport *t = (MemoryTransport *)base;
    return buffer_of(t, base->rank, ++t->n);
}

static void send(Transport *base, size_t bytes, bool to_all) {
    (void)bytes, (void)to_all;
    const MemoryTransport *t = (const MemoryTransport *)base;
    Slot *own = &t->memory->slots[base->rank];
    atomic_store(&own->published, t->n);
    if (atomic_load(&own->n_sleepers)) wake(own);
}

/* Waits also where nothing is needed, because that keeps the buffers in step. */
static const char *receive(Transport *base, int rank, size_t bytes) {
    (void)bytes;
    MemoryTransport *t = (MemoryTransport *)base;
    unsigned n = ++t->received[rank];
    if (!wait_for(t->memory, rank, n)) comm_end_because_of(base, rank, "has left");
    return has_ended(t->memory) ? NULL : buffer_of(t, rank, n);
}

/* ---- watching --------------------------------------------------------------------------------------------- */

/* Returns whether the process of a rank has ended, and writes how. Its parent, rank 0, and its children see that at
 * once; the others see that it does not beat. In tests, ranks are threads of one process. */
static bool has_died(const CommMemory *m, int rank, int own, char how[HOW_BYTES]) {
    const Slot *s = &m->slots[rank];
    pid_t process = atomic_load(&s->process);
    siginfo_t info = {.si_pid = 0};
    snprintf(how, HOW_BYTES, "has died or does not respond");
    if (process == 0 || process == getpid() || atomic_load(&s->has_left)) return false;
    if (rank == 0) return getppid() != process;
    if (own > 0) return false;
    if (waitid(P_PID, (id_t)process, &info, WEXITED | WNOHANG | WNOWAIT) || info.si_pid != process) return false;
    if (info.si_code == CLD_EXITED) snprintf(how, HOW_BYTES, "has died (exit status %d)", info.si_status);
    else snprintf(how, HOW_BYTES, "has died (signal %d)", info.si_status);
    return true;
}

static void beat(Transport *t) {
    CommMemory *m = memory_of(t);
    char how[HOW_BYTES];
    atomic_fetch_add(&m->slots[t->rank].beats, 1);
    for (int i = 0; i < m->n_ranks; i++)
        if (i != t->rank && has_died(m, i, t->rank, how)) comm_end_because_of(t, i, how);
}

static unsigned beats_of(Transport *t, int rank) {
    const Slot *s = &memory_of(t)->slots[rank];
    return atomic_load(&s->has_left) ? 0 : atomic_load(&s->beats);
}

static void announce_end(Transport *t) {
    CommMemory *m = memory_of(t);
    for (int i = 0; i < m->n_ranks; i++) wake(&m->slots[i]);
}

static void leave(Transport *t) {
    Slot *own = &memory_of(t)->slots[t->rank];
    atomic_store(&own->has_left, true);
    wake(own);
}

static void close_transport(Transport *t) { mem_free(t); }

int transport_memory_open(Transport **out, CommMemory *memory, int rank, fr_error *err) {
    static const TransportTable table = {.name = "memory",
                                         .part = part,
                                         .send = send,
                                         .receive = receive,
                                         .beat = beat,
                                         .beats_of = beats_of,
                                         .announce_end = announce_end,
                                         .leave = leave,
                                         .close = close_transport};
    *out = NULL;
    MemoryTransport *t = mem_calloc(1, sizeof *t);
    if (!t) return error_memory(err, "a rank", sizeof *t);
    t->base = (Transport){.table = &table, .rank = rank, .n_ranks = memory->n_ranks, .end = &memory->end};
    t->base.local_rank = rank, t->base.n_local = memory->n_ranks;
    t->memory = memory;
    atomic_store(&memory->slots[rank].process, getpid());
    atomic_store(&memory->slots[rank].beats, 1);
    *out = &t->base;
    return FR_OK;
}

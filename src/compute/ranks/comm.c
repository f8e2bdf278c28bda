/* comm.c - exchanges through shared memory.
 *
 * The idea. Each rank has two buffers that all ranks can read, and a counter of the exchanges that it has published. In
 * exchange number n a rank writes to buffer n % 2, publishes n, waits until all other ranks have published n, and
 * copies what it needs from their buffers. A rank may write to the buffer of exchange n again in exchange n + 2, because
 * by then it has seen every other rank publish n + 1, which they do after they have read the buffers of exchange n.
 * Parts that are larger than a buffer take several exchanges.
 *
 * Waiting. The next counter usually comes within microseconds, so a rank polls, then lets other threads run, and sleeps
 * on a futex if it has to wait longer: the ranks after 0 wait for the next request of a user in that way.
 *
 * Failures. A thread of each rank counts beats, and looks at the beats of the others. A rank that does not beat for
 * SILENT_TICKS ticks has died or was stopped. Time is counted in ticks of the thread that watches, so that nobody is
 * suspected after the whole group was stopped and continued.
 *
 * Proof: tests/compute/test_comm.c. */
#include "compute/ranks/comm.h"

#include "base/mem.h"
#include "base/threads.h"

#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { BUFFER_BYTES = 1 << 20, POLLS = 4000, YIELDS = 100, SLEEP_MS = 100, TICK_MS = 100, SILENT_TICKS = 15 };
enum { IS_ALIVE, IS_ENDING, HAS_ENDED };

/* What the others see of a rank. */
typedef struct Slot {
    _Alignas(64) atomic_uint published; /* exchanges */
    atomic_int n_sleepers;              /* ranks that sleep until `published` grows */
    atomic_uint beats;
    atomic_bool has_left;
} Slot;

struct CommMemory {
    int n_ranks;
    size_t bytes;
    atomic_int state; /* IS_ALIVE ... */
    char reason[sizeof((fr_error *)0)->message];
    Slot slots[COMM_MAX_RANKS];
    _Alignas(64) char buffers[]; /* [n_ranks][2][BUFFER_BYTES] */
};

struct Comm {
    CommMemory *memory;
    int rank;
    unsigned n; /* exchanges so far */
    CommCounts counts;
    pthread_t watcher;
    pthread_mutex_t lock; /* of is_closing */
    pthread_cond_t closing;
    bool is_closing, has_watcher;
};

/* ---- memory ----------------------------------------------------------------------------------------------- */

int comm_memory_open(CommMemory **out, int n_ranks, fr_error *err) {
    *out = NULL;
    if (n_ranks < 1 || n_ranks > COMM_MAX_RANKS)
        return error_set(err, FR_ERR_ARGUMENT, "%d ranks were asked for; 1 to %d are possible", n_ranks,
                         COMM_MAX_RANKS);
    size_t bytes = sizeof **out + (size_t)n_ranks * 2 * BUFFER_BYTES;
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return error_memory(err, "the memory that ranks share", bytes);
    CommMemory *m = *out = p;
    m->n_ranks = n_ranks, m->bytes = bytes;
    return FR_OK;
}

void comm_memory_close(CommMemory *m) {
    if (m) munmap(m, m->bytes);
}

static char *buffer_of(const Comm *c, int rank) {
    return c->memory->buffers + ((size_t)rank * 2 + c->n % 2) * BUFFER_BYTES;
}

/* ---- waiting ---------------------------------------------------------------------------------------------- */

static void wake(Slot *s) { syscall(SYS_futex, &s->published, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0); }

static bool has_ended(const CommMemory *m) { return atomic_load(&m->state) != IS_ALIVE; }

static void end_group(CommMemory *m, const char *reason) {
    int alive = IS_ALIVE;
    if (!atomic_compare_exchange_strong(&m->state, &alive, IS_ENDING)) return;
    snprintf(m->reason, sizeof m->reason, "%s", reason);
    atomic_store(&m->state, HAS_ENDED);
    for (int i = 0; i < m->n_ranks; i++) wake(&m->slots[i]);
}

static void end_because_of(CommMemory *m, int rank, const char *what) {
    char reason[sizeof m->reason];
    snprintf(reason, sizeof reason, "rank %d of %d %s; the other ranks have ended, too", rank, m->n_ranks, what);
    end_group(m, reason);
}

static bool has_published(const Slot *s, unsigned n) { return (int)(atomic_load(&s->published) - n) >= 0; }

static void sleep_until_published(CommMemory *m, int rank, unsigned n) {
    Slot *s = &m->slots[rank];
    const struct timespec most = {.tv_nsec = SLEEP_MS * 1000000L};
    atomic_fetch_add(&s->n_sleepers, 1);
    while (!has_published(s, n) && !has_ended(m)) {
        unsigned seen = atomic_load(&s->published);
        if (atomic_load(&s->has_left) && !has_published(s, n)) end_because_of(m, rank, "has left");
        else if ((int)(seen - n) < 0) syscall(SYS_futex, &s->published, FUTEX_WAIT, seen, &most, NULL, 0);
    }
    atomic_fetch_sub(&s->n_sleepers, 1);
}

static void wait_for(CommMemory *m, int rank, unsigned n) {
    const Slot *s = &m->slots[rank];
    for (int i = 0; i < POLLS; i++) {
        if (has_published(s, n)) return;
        threads_relax();
    }
    for (int i = 0; i < YIELDS; i++) {
        if (has_published(s, n)) return;
        sched_yield();
    }
    sleep_until_published(m, rank, n);
}

/* ---- watching --------------------------------------------------------------------------------------------- */

/* Waits for a tick. Returns false if the rank closes. */
static bool wait_for_tick(Comm *c) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += TICK_MS * 1000000L;
    if (until.tv_nsec >= 1000000000L) until.tv_sec++, until.tv_nsec -= 1000000000L;
    pthread_mutex_lock(&c->lock);
    while (!c->is_closing && pthread_cond_timedwait(&c->closing, &c->lock, &until) == 0) {}
    bool goes_on = !c->is_closing;
    pthread_mutex_unlock(&c->lock);
    return goes_on;
}

static void *watch(void *comm) {
    Comm *c = comm;
    CommMemory *m = c->memory;
    unsigned beats[COMM_MAX_RANKS] = {0};
    int n_silent[COMM_MAX_RANKS] = {0};
    while (wait_for_tick(c) && !has_ended(m)) {
        atomic_fetch_add(&m->slots[c->rank].beats, 1);
        for (int i = 0; i < m->n_ranks; i++) {
            unsigned n = atomic_load(&m->slots[i].beats);
            bool is_silent = n == beats[i] && n > 0 && !atomic_load(&m->slots[i].has_left);
            n_silent[i] = is_silent ? n_silent[i] + 1 : 0;
            beats[i] = n;
            if (n_silent[i] == SILENT_TICKS) end_because_of(m, i, "has died or does not respond");
        }
    }
    return NULL;
}

int comm_open(Comm **out, CommMemory *memory, int rank, fr_error *err) {
    *out = NULL;
    Comm *c = mem_calloc(1, sizeof *c);
    if (!c) return error_memory(err, "a rank", sizeof *c);
    c->memory = memory, c->rank = rank;
    atomic_store(&memory->slots[rank].beats, 1);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&c->closing, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&c->lock, NULL);
    c->has_watcher = pthread_create(&c->watcher, NULL, watch, c) == 0;
    if (!c->has_watcher) {
        comm_close(c);
        return error_set(err, FR_ERR_MEMORY, "no thread could be started that watches the other ranks");
    }
    *out = c;
    return FR_OK;
}

void comm_close(Comm *c) {
    if (!c) return;
    pthread_mutex_lock(&c->lock);
    c->is_closing = true;
    pthread_cond_signal(&c->closing);
    pthread_mutex_unlock(&c->lock);
    if (c->has_watcher) pthread_join(c->watcher, NULL);
    pthread_cond_destroy(&c->closing);
    pthread_mutex_destroy(&c->lock);
    Slot *own = &c->memory->slots[c->rank];
    atomic_store(&own->has_left, true);
    wake(own);
    mem_free(c);
}

int comm_rank(const Comm *c) { return c->rank; }
int comm_size(const Comm *c) { return c->memory->n_ranks; }
CommCounts comm_counts(const Comm *c) { return c->counts; }
void comm_abort(Comm *c, const char *reason) { end_group(c->memory, reason); }

int comm_check(const Comm *c, fr_error *err) {
    const CommMemory *m = c->memory;
    int state;
    while ((state = atomic_load(&m->state)) == IS_ENDING) sched_yield();
    return state == IS_ALIVE ? FR_OK : (int)error_set(err, FR_ERR_IO, "%s", m->reason);
}

/* ---- exchanges -------------------------------------------------------------------------------------------- */

/* Copies bytes [from, to) of the pieces of a rank, which are counted one piece after another, to or from a buffer. */
static void copy_pieces(CommPart part, CommPieceFn piece, const void *ctx, int rank, size_t from, size_t to,
                        char *buffer, bool to_buffer) {
    while (from < to) {
        size_t at = from % part.bytes, n = part.bytes - at < to - from ? part.bytes - at : to - from;
        char *p = piece(ctx, rank, (int64_t)(from / part.bytes)) + at;
        memcpy(to_buffer ? buffer : p, to_buffer ? p : buffer, n);
        from += n, buffer += n;
    }
}

static size_t bytes_of(CommPart part) { return (size_t)part.n * part.bytes; }

/* Exchanges bytes [from, from + BUFFER_BYTES) of the parts. */
static void exchange(Comm *c, const CommPart *parts, CommPieceFn piece, const void *ctx, size_t from, bool receives) {
    CommMemory *m = c->memory;
    Slot *own = &m->slots[c->rank];
    c->n++;
    for (int k = 0; k < m->n_ranks; k++) {
        int rank = (c->rank + k) % m->n_ranks;
        size_t end = bytes_of(parts[rank]), to = end < from + BUFFER_BYTES ? end : from + BUFFER_BYTES;
        if (k > 0) wait_for(m, rank, c->n);
        if (has_ended(m)) return;
        if (k == 0 || receives) copy_pieces(parts[rank], piece, ctx, rank, from, to, buffer_of(c, rank), k == 0);
        if (k > 0) continue;
        atomic_store(&own->published, c->n);
        if (atomic_load(&own->n_sleepers)) wake(own);
    }
}

/* Exchanges the parts and adds them to what is counted. */
static void exchange_all(Comm *c, const CommPart *parts, CommPieceFn piece, const void *ctx, bool receives,
                         int64_t *n_calls, int64_t *n_bytes) {
    size_t longest = 0;
    for (int i = 0; i < c->memory->n_ranks; i++) {
        longest = max_size(longest, bytes_of(parts[i]));
        *n_bytes += (int64_t)bytes_of(parts[i]);
    }
    *n_calls += longest > 0;
    for (size_t from = 0; from < longest && !has_ended(c->memory); from += BUFFER_BYTES)
        exchange(c, parts, piece, ctx, from, receives);
}

void comm_gather(Comm *c, const CommPart *parts, CommPieceFn piece, const void *ctx, bool to_all) {
    exchange_all(c, parts, piece, ctx, to_all || c->rank == 0, &c->counts.n_gathers, &c->counts.n_gather_bytes);
}

static char *all_of(const void *ctx, int rank, int64_t i) {
    (void)rank, (void)i;
    char *p;
    memcpy(&p, ctx, sizeof p);
    return p;
}

void comm_broadcast(Comm *c, void *data, size_t bytes) {
    CommPart parts[COMM_MAX_RANKS] = {{1, bytes}};
    exchange_all(c, parts, all_of, &data, true, &c->counts.n_broadcasts, &c->counts.n_broadcast_bytes);
}

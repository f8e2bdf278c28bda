/* threads.c - one parallel region for many stages, without barriers.
 *
 * The problem. A forward is some hundred stages one after the other, tens of microseconds each. With a barrier
 * after each, every thread must be running for any to go on. As soon as there are more threads than cores, or another
 * program runs, one thread is without a core, and a barrier costs a time slice of milliseconds: with two busy programs
 * beside it on two cores, decoding the shipped target became a hundred times slower.
 *
 * The idea. No thread waits for a thread that does nothing. All stages are known when the region begins, and one word
 * holds the place that has been reached:
 *
 *     word:             stage (48 bits, counted on from region to region) | number of its parts (16)
 *     taken[thread]:    stage | parts taken of the share of this thread
 *
 * The share of thread t among T threads is [n t/T, n (t+1)/T) of the n parts. The thread takes it in ascending order,
 * so it reads one stretch of memory, and the same one in the next forward. When its own share is taken, it takes parts
 * of the other shares. A part is taken by a compare-and-swap of taken[]; a count that belongs to an earlier stage means
 * that none is taken, so the counts need not be cleared. The thread that finishes the last part of a stage stores the
 * word of the next one, and continues at once. A thread that slept through a stage finds the word of a later one and
 * continues there.
 *
 * Example. Two threads, four parts: shares 0 1 | 2 3. Thread 1 has no core. Thread 0 does parts 0 and 1, then takes
 * part 2; now thread 1 comes back and takes part 3, and the thread that finishes last opens the next stage.
 *
 * Invariants. A stage is over only when all its parts are done, so each share that has parts has been taken to its end,
 * and its count is of that stage or of a later one. Hence a compare-and-swap that succeeds on the count of an earlier
 * stage, or of this one, proves that the stage is still the one whose word was read; it cannot end before the part
 * taken is done. stages and their number change only between regions.
 *
 * Waiting. A thread without a part prefetches what it will read next (Stage.later), then spins for a few hundred
 * microseconds, in which the next stage or the next forward usually begins; after that, workers sleep.
 *
 * OpenMP was tried first (research/DIARY.md): its run time spins at barriers for milliseconds.
 */
#include "base/threads.h"

#include "base/mem.h"
#include "base/os.h"
#include "base/system.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Some 300 microseconds: sampling between two forwards of a small model takes up to 100, and waking a sleeper on a
 * virtual machine costs as much again (research/DIARY.md). */
enum {
    SPINS = 16000,
    PREFETCH_BYTES =
        256 << 10, /* prefetched by a waiting thread, of the data that is read next; a fraction of the second cache */
    PREFETCH_PIECE = 256, /* prefetched between two looks at the word */
};

/* The argument of a worker. */
typedef struct Start {
    ThreadPool *pool;
    int i_thread;
} Start;

/* How many parts of a thread's share are taken. */
typedef struct Share {
    _Alignas(64) _Atomic uint64_t taken;
} Share;

struct ThreadPool {
    _Alignas(64) _Atomic uint64_t word;
    _Atomic(const char *)
        later; /* what the stage in the word reads later; a thread that reads this while it changes only loses time */
    atomic_size_t later_bytes;
    _Alignas(64) atomic_int n_done; /* parts of this stage */
    const Stage *stages;            /* the stages of this region */
    int n_stages;
    uint64_t first;  /* number of the first of them */
    Share *shares;   /* [n_threads] */
    double *stage_s; /* see threads_time */
    double since_s;  /* when the running stage began */
    int i_running;   /* that stage, or -1 before the first one of a region */
    int n_threads;
    int n_started;      /* workers */
    bool is_crowded;    /* more threads than cores */
    bool is_pinned;     /* the workers, and the thread that called threads_pin */
    pthread_t *workers; /* [n_threads - 1] */
    Start *starts;      /* [n_threads] */
    atomic_int n_asleep;
    atomic_bool closing;
    pthread_mutex_t mutex; /* guards the sleep of workers */
    pthread_cond_t wake;
};

static uint64_t make_word(uint64_t stage, int n) { return stage << 16 | (uint64_t)n; }
static uint64_t word_stage(uint64_t word) { return word >> 16; }
static int word_count(uint64_t word) { return (int)(word & 0xffff); }

static void wake_sleepers(ThreadPool *p) {
    if (atomic_load(&p->n_asleep) == 0) return;
    pthread_mutex_lock(&p->mutex);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->mutex);
}

/* Adds up the time of the stage that has ended; stage i begins now. */
static void stamp(ThreadPool *p, int i) {
    double now_s = clock_s();
    if (p->i_running >= 0) p->stage_s[p->i_running] += now_s - p->since_s;
    p->since_s = now_s;
    p->i_running = i;
}

/* Opens stage i of the region, or the next one that has parts. After the last stage, ends the region with a word
 * that has no parts; from then on the stages may no longer exist. */
static void open_stage(ThreadPool *p, int i) {
    while (i < p->n_stages && p->stages[i].n_parts == 0) i++;
    if (p->stage_s) stamp(p, i);
    const Stage s = i < p->n_stages ? p->stages[i] : (Stage){0};
    atomic_store_explicit(&p->n_done, 0, memory_order_relaxed);
    atomic_store_explicit(&p->later, s.later, memory_order_relaxed);
    atomic_store_explicit(&p->later_bytes, s.later_bytes, memory_order_relaxed);
    atomic_store(&p->word, make_word(p->first + (uint64_t)i, s.n_parts));
    if (s.n_parts > 1) wake_sleepers(p);
}

/* Takes a part of the stage in the word from the share of thread `owner`. Returns false if none is left or the
 * stage is over. */
static bool take_from(ThreadPool *p, uint64_t word, int owner, int *i_part) {
    uint64_t stage = word_stage(word), seen = atomic_load_explicit(&p->shares[owner].taken, memory_order_relaxed);
    int64_t n = word_count(word), begin = n * owner / p->n_threads, end = n * (owner + 1) / p->n_threads;
    for (;;) {
        int n_taken = word_stage(seen) == stage ? word_count(seen) : 0;
        if (word_stage(seen) > stage || begin + n_taken >= end) return false;
        *i_part = (int)begin + n_taken;
        if (atomic_compare_exchange_weak_explicit(&p->shares[owner].taken, &seen, make_word(stage, n_taken + 1),
                                                  memory_order_acquire, memory_order_relaxed))
            return true;
    }
}

static bool take(ThreadPool *p, uint64_t word, int i_thread, int *i_part) {
    for (int i = 0; i < p->n_threads; i++)
        if (take_from(p, word, (i_thread + i) % p->n_threads, i_part)) return true;
    return false;
}

/* Takes and does parts, stage after stage, until all parts of a stage are taken or the region is over. Returns the word
 * at that moment. */
static uint64_t work(ThreadPool *p, int i_thread) {
    for (;;) {
        uint64_t word = atomic_load_explicit(&p->word, memory_order_acquire);
        int i_part, n_parts = word_count(word);
        while (take(p, word, i_thread, &i_part)) {
            int i_stage = (int)(word_stage(word) - p->first);
            p->stages[i_stage].fn(p->stages[i_stage].ctx, i_part, n_parts, i_thread);
            if (atomic_fetch_add_explicit(&p->n_done, 1, memory_order_acq_rel) + 1 == n_parts)
                open_stage(p, i_stage + 1);
        }
        if (atomic_load_explicit(&p->word, memory_order_relaxed) == word) return word;
    }
}

/* Waits for a short time, for the i-th time: prefetches the next lines of the thread's share of what will be read, up
 * to PREFETCH_BYTES. Where there are more threads than cores, leaves the core to a thread that may have something to
 * do. */
static void wait_a_little(ThreadPool *p, int i_thread, int i) {
    if (p->is_crowded) {
        sched_yield();
        return;
    }
    const char *later = atomic_load_explicit(&p->later, memory_order_relaxed);
    size_t share = atomic_load_explicit(&p->later_bytes, memory_order_relaxed) / (size_t)p->n_threads;
    size_t limit = share < PREFETCH_BYTES ? share : PREFETCH_BYTES, at = (size_t)i * PREFETCH_PIECE;
    if (!later || at >= limit) threads_relax();
    else
        for (size_t line = 0; line < PREFETCH_PIECE; line += 64)
            __builtin_prefetch(later + share * (size_t)i_thread + at + line, 0, 2);
}

static bool has_work(ThreadPool *p, uint64_t seen) {
    uint64_t word = atomic_load(&p->word);
    return (word != seen && word_count(word) > 0) || atomic_load(&p->closing);
}

/* Returns when the word has changed from `seen` and has parts to take, or when the pool closes. */
static void wait_for_work(ThreadPool *p, int i_thread, uint64_t seen) {
    for (int i = 0; i < SPINS; i++) {
        if (has_work(p, seen)) return;
        wait_a_little(p, i_thread, i);
    }
    pthread_mutex_lock(&p->mutex);
    /* The thread that opens a stage stores the word and then reads n_asleep; a sleeper raises n_asleep and then reads
     * the word. All four are sequentially consistent, so at least one of the two sees the other. */
    atomic_fetch_add(&p->n_asleep, 1);
    while (!has_work(p, seen)) pthread_cond_wait(&p->wake, &p->mutex);
    atomic_fetch_sub(&p->n_asleep, 1);
    pthread_mutex_unlock(&p->mutex);
}

static void *worker(void *arg) {
    const Start start = *(Start *)arg;
    fp_env_set_default(); /* otherwise the thread would inherit its creator's */
    for (uint64_t seen = 0; !atomic_load(&start.pool->closing); seen = work(start.pool, start.i_thread))
        wait_for_work(start.pool, start.i_thread, seen);
    return NULL;
}

/* The cores that this process may use, read once before anything here pins a thread, and the share of them that it
 * uses. */
static struct {
    OsCore cores[OS_MAX_CORES];
    int n;
    int from, to; /* the share */
    int n_shares; /* how many processes have a share */
    int quota;    /* os_cpu_quota, which they divide */
} granted;
static void find_granted(void) {
    granted.n = granted.to = os_cores(granted.cores);
    granted.quota = os_cpu_quota("");
    granted.n_shares = 1;
}
static void read_cores(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find_granted);
}

static int n_shared(void) { return granted.to - granted.from; }
static bool unpin(pthread_t thread) {
    read_cores();
    return os_pin(thread, granted.cores + granted.from, n_shared());
}

int threads_n_nodes(void) {
    read_cores();
    int n_nodes = granted.n > 0;
    for (int i = 1; i < granted.n; i++) n_nodes += granted.cores[i].node != granted.cores[i - 1].node;
    return n_nodes > 0 ? n_nodes : 1;
}

void threads_take_share(int i_share, int n_shares) {
    read_cores();
    int n = granted.n, from = n * i_share / n_shares, to = n * (i_share + 1) / n_shares;
    if (to == from && n > 0) to = from + 1;
    granted.from = from, granted.to = to, granted.n_shares = n_shares;
    (void)unpin(pthread_self());
}

void threads_take_share_of_machine(int i_process, int n_processes) {
    static OsCore own[OS_MAX_CORES];
    read_cores();
    int n_own = granted.n;
    memcpy(own, granted.cores, (size_t)n_own * sizeof *own);
    (void)os_pin_process(NULL, 0);
    granted.n = os_cores(granted.cores);
    bool is_bound = n_own < granted.n && !(n_own == 1 && granted.n >= 2 * n_processes);
    if (!is_bound) {
        threads_take_share(i_process, n_processes);
        return;
    }
    (void)os_pin_process(own, n_own);
    memcpy(granted.cores, own, (size_t)n_own * sizeof *own);
    granted.n = granted.to = n_own;
    granted.n_shares = n_processes;
}

/* A new thread inherits the affinity of its creator, which may be pinned to one core; a worker may use all cores. */
static bool start_worker(ThreadPool *p) {
    Start *start = &p->starts[p->n_started];
    *start = (Start){p, p->n_started + 1};
    if (pthread_create(&p->workers[p->n_started], NULL, worker, start)) return false;
    (void)unpin(p->workers[p->n_started]);
    p->n_started++;
    return true;
}

int threads_open(ThreadPool **out, int n_threads, fr_error *err) {
    *out = NULL;
    fr_assert(n_threads >= 1 && n_threads <= THREADS_MAX);
    ThreadPool *p = mem_calloc(1, sizeof *p);
    if (!p) return error_memory(err, "a thread pool", sizeof *p);
    pthread_mutex_init(&p->mutex, NULL);
    pthread_cond_init(&p->wake, NULL);
    p->n_threads = n_threads;
    p->is_crowded = n_threads > threads_n_cores();
    p->workers = mem_calloc((size_t)n_threads, sizeof *p->workers);
    p->starts = mem_calloc((size_t)n_threads, sizeof *p->starts);
    p->shares = mem_calloc((size_t)n_threads, sizeof *p->shares);
    while (p->workers && p->starts && p->shares && p->n_started < n_threads - 1 && start_worker(p)) {}
    if (!p->workers || !p->starts || !p->shares || p->n_started < n_threads - 1) {
        threads_close(p);
        return error_set(err, FR_ERR_MEMORY, "out of memory: the system does not grant %d threads; use fewer (-t)",
                         n_threads);
    }
    *out = p;
    return FR_OK;
}

/* Pins the next threads of the pool, from thread i_thread on, to cores of the share that are the given logical core of
 * their physical one. Returns the number of threads that have a core then, or -1 and the core that is refused. */
static int pin_to(ThreadPool *p, int i_thread, int logical, int *refused) {
    for (int i = granted.from; i < granted.to && i_thread < p->n_threads; i++) {
        const OsCore *core = &granted.cores[i];
        if (core->thread != logical) continue;
        *refused = core->cpu;
        if (!os_pin(i_thread ? p->workers[i_thread - 1] : pthread_self(), core, 1)) return -1;
        p->is_pinned = true;
        i_thread++;
    }
    return i_thread;
}

int threads_pin(ThreadPool *p, fr_error *err) {
    read_cores();
    int n = n_shared(), n_pinned = 0, core = 0;
    if (n < p->n_threads)
        return error_set(err, FR_ERR_ARGUMENT,
                         "%d threads cannot be pinned to the %d cores that this process may use; use %d threads "
                         "(-t), or do not pin",
                         p->n_threads, n, n);
    /* Threads share a physical core only where there are more of them than physical cores. */
    for (int logical = 0; n_pinned >= 0 && n_pinned < p->n_threads; logical++)
        n_pinned = pin_to(p, n_pinned, logical, &core);
    if (n_pinned < 0)
        return error_set(err, FR_ERR_UNSUPPORTED, "the system does not let a thread be pinned to core %d; do not pin",
                         core);
    return FR_OK;
}

void threads_close(ThreadPool *p) {
    if (!p) return;
    if (p->is_pinned) (void)unpin(pthread_self());
    atomic_store(&p->closing, true);
    wake_sleepers(p);
    for (int i = 0; i < p->n_started; i++) pthread_join(p->workers[i], NULL);
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->mutex);
    mem_free(p->workers);
    mem_free(p->starts);
    mem_free(p->shares);
    mem_free(p);
}

int threads_count(const ThreadPool *p) { return p->n_threads; }

/* Does all parts in the calling thread. */
static void run_alone(ThreadPool *p, const Stage *stages, int n_stages) {
    for (int i = 0; i <= n_stages; i++) {
        if (p->stage_s) stamp(p, i);
        for (int part = 0; i < n_stages && part < stages[i].n_parts; part++)
            stages[i].fn(stages[i].ctx, part, stages[i].n_parts, 0);
    }
}

void threads_run_stages(ThreadPool *p, const Stage *stages, int n_stages) {
    for (int i = 0; i < n_stages; i++) fr_assert(stages[i].n_parts <= THREADS_MAX_PARTS);
    p->i_running = -1;
    if (p->n_threads == 1 || (n_stages == 1 && stages[0].n_parts <= 1)) {
        run_alone(p, stages, n_stages);
        return;
    }
    p->stages = stages;
    p->n_stages = n_stages;
    p->first = word_stage(atomic_load_explicit(&p->word, memory_order_relaxed)) + 1;
    open_stage(p, 0);
    for (;;) {
        uint64_t seen = work(p, 0);
        if (word_count(seen) == 0) return;
        for (int i = 0; atomic_load_explicit(&p->word, memory_order_acquire) == seen; i++) {
            if (i < SPINS) wait_a_little(p, 0, i);
            else sched_yield(); /* a worker lost its core in the middle of a part; it may have ours */
        }
    }
}

void threads_time(ThreadPool *p, double *seconds) { p->stage_s = seconds; }

void threads_run(ThreadPool *p, int n_parts, PartFn fn, void *ctx) {
    threads_run_stages(p, &(Stage){.fn = fn, .ctx = ctx, .n_parts = n_parts}, 1);
}

void threads_run_once(int n_threads, PartFn fn, void *ctx) {
    ThreadPool *p = NULL;
    for (int n = n_threads; n > 1 && threads_open(&p, n, NULL); n /= 2) {}
    if (p) threads_run(p, n_threads, fn, ctx);
    for (int i = 0; !p && i < n_threads; i++) fn(ctx, i, n_threads, 0);
    threads_close(p);
}

static int at_most_threads(int n) { return n < 1 ? 1 : n > THREADS_MAX ? THREADS_MAX : n; }

int threads_n_cores(void) {
    read_cores();
    return at_most_threads(n_shared());
}

int threads_n_physical_cores(void) {
    read_cores();
    int n = 0;
    for (int i = granted.from; i < granted.to; i++)
        n += i == granted.from || granted.cores[i].core != granted.cores[i - 1].core;
    int quota = granted.quota / granted.n_shares;
    return at_most_threads(n < quota ? n : quota);
}

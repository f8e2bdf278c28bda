/* threads.h - a pool of threads that work through stages, each cut into parts.
 *
 * A thread that is free takes the next part. The calling thread takes parts, too; it takes all of them if no other
 * thread gets a core. When the last part of a stage is done, the next stage begins. Parts compute different outputs,
 * and sums are split only at fixed places (the numeric contract), so neither the number of parts nor the thread that
 * takes one changes the result.
 */
#ifndef BASE_THREADS_H
#define BASE_THREADS_H

#include "base/error.h"

enum { THREADS_MAX = 256, THREADS_MAX_PARTS = 65535 };

typedef struct ThreadPool ThreadPool; /* used by one thread at a time */

/* Does part i_part of n_parts. i_thread is below the size of the pool, and differs between parts that run at the same
 * time. */
typedef void (*PartFn)(void *ctx, int i_part, int n_parts, int i_thread);

/* Opens a pool of n_threads (1 .. THREADS_MAX), one of which is the thread that calls threads_run. */
int threads_open(ThreadPool **out, int n_threads, fr_error *err);
void threads_close(ThreadPool *pool); /* NULL is fine */
int threads_count(const ThreadPool *pool);
/* Pins each thread of the pool, including the calling one, to a core of its own, until the same thread calls
 * threads_close. Fails where the process may use fewer cores than there are threads. */
int threads_pin(ThreadPool *pool, fr_error *err);

/* One piece of work. Its parts begin when all parts of the stage before are done. */
typedef struct Stage {
    PartFn fn;
    void *ctx;
    int n_parts; /* at most THREADS_MAX_PARTS; 0: nothing to do */
    /* The data that a later stage will read, in the order of its parts; NULL: unknown. A waiting thread prefetches the
     * beginning of its share. Any address is safe. */
    const void *later;
    size_t later_bytes;
} Stage;

/* Does all parts of all stages, in one parallel region, and returns. The
 * stages are borrowed for the call. */
void threads_run_stages(ThreadPool *pool, const Stage *stages, int n_stages);

/* From now on, the time from the beginning of stage i of a region to the beginning of the next one is added to
 * seconds[i]. The array is borrowed, and must have as many items as any region has stages. NULL stops the
 * measurement. */
void threads_time(ThreadPool *pool, double *seconds);

/* threads_run_stages with one stage. A single part is done by the caller, at no cost. */
void threads_run(ThreadPool *pool, int n_parts, PartFn fn, void *ctx);

/* The same with one part for each thread of a pool that lives for this call only; the system may grant fewer threads
 * than parts. */
void threads_run_once(int n_threads, PartFn fn, void *ctx);

/* Returns how many logical cores this process uses: all that it could use when a function of this file was first
 * called, or its share of them. */
int threads_n_cores(void);
/* Returns how many physical cores they are, which is the default number of threads: two threads on one core share its
 * arithmetic units and its way to the memory. A container whose quota of processor time is smaller has as many threads
 * as its quota pays for, because threads that have used it up stop in the middle of a step. */
int threads_n_physical_cores(void);
/* Returns on how many NUMA nodes all of them are. */
int threads_n_nodes(void);
/* Restricts the calling thread and all pools that are opened from now on to a share of the cores, at least one. Cores
 * of a NUMA node are in the same share, as far as possible. Share 0 of 1 is all cores again. */
void threads_take_share(int i_share, int n_shares);
/* The same for one of n processes that a launcher such as mpirun has started on this machine, unless the launcher has
 * bound it to cores that are fewer. A single core is taken for a default of the launcher, if there are enough for
 * two. */
void threads_take_share_of_machine(int i_process, int n_processes);

/* Lets the other thread of a core run while the caller polls. */
static inline void threads_relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb"); /* takes some tens of cycles; `yield` takes none on most processors */
#endif
}

/* Cuts n items into n_parts at multiples of `grain`; part i_part is [*begin, *end). */
static inline void threads_split(int64_t n, int64_t grain, int i_part, int n_parts, int64_t *begin, int64_t *end) {
    int64_t n_grains = (n + grain - 1) / grain;
    *begin = n_grains * i_part / n_parts * grain;
    *end = n_grains * (i_part + 1) / n_parts * grain;
    if (*begin > n) *begin = n;
    if (*end > n) *end = n;
}

#endif

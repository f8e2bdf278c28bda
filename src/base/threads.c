/* threads.c - teams by OpenMP, barriers of our own.
 *
 * A forward crosses some hundred barriers a millisecond apart or less, so a waiting thread must spin; but a thread
 * that only spins keeps its core from the very thread it waits for, once there are more threads than cores or
 * another program runs: then each barrier costs a time slice. So a waiting thread spins for some microseconds
 * and from then on yields its core at every look. (libgomp's barriers spin for milliseconds.)
 */
#include "base/threads.h"

#include <omp.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>

enum { SPINS = 2000 };

typedef struct Team {
    _Alignas(64) atomic_int n_arrived;
    _Alignas(64) atomic_int generation; /* grows by one whenever all have arrived */
    int n_threads;
} Team;

static _Thread_local Team *my_team; /* NULL outside regions, and in regions of one thread */

static void relax(int i) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
    if (i >= SPINS) sched_yield();
}

void threads_barrier(void) {
    Team *t = my_team;
    if (!t) return;
    int generation = atomic_load_explicit(&t->generation, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&t->n_arrived, 1, memory_order_acq_rel) == t->n_threads - 1) {
        atomic_store_explicit(&t->n_arrived, 0, memory_order_relaxed);
        atomic_store_explicit(&t->generation, generation + 1, memory_order_release);
        return;
    }
    for (int i = 0; atomic_load_explicit(&t->generation, memory_order_acquire) == generation; i += i < SPINS)
        relax(i);
}

void threads_run(int n_threads, ThreadFn fn, void *ctx) {
    if (n_threads <= 1) {
        fn(ctx, 0, 1);
        return;
    }
    Team team = {.n_threads = 0};
#pragma omp parallel num_threads(n_threads)
    {
#pragma omp single /* which ends with a barrier: everyone sees the number that was granted */
        team.n_threads = omp_get_num_threads();
        my_team = &team;
        fn(ctx, omp_get_thread_num(), team.n_threads);
        threads_barrier(); /* so that no one waits long in OpenMP's own */
        my_team = NULL;
    }
}

int threads_n_cores(void) {
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return n < 1 ? 1 : n > THREADS_MAX ? THREADS_MAX : n;
}

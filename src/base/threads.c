#include "base/threads.h"

#include <omp.h>
#include <sched.h>

void threads_run(int n_threads, ThreadFn fn, void *ctx) {
    if (n_threads <= 1) {
        fn(ctx, 0, 1);
        return;
    }
#pragma omp parallel num_threads(n_threads)
    fn(ctx, omp_get_thread_num(), omp_get_num_threads());
}

void threads_barrier(void) {
#pragma omp barrier
}

int threads_n_cores(void) {
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return n < 1 ? 1 : n > THREADS_MAX ? THREADS_MAX : n;
}

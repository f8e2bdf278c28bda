/* threads.h - one team of threads per parallel region. OpenMP stands behind it and nowhere else.
 *
 * A region is one function run by every thread of the team; inside, work is split by (i_thread,
 * n_threads) and phases are separated by threads_barrier. The numeric contract wants outputs split, never
 * sums, so the split may depend on n_threads freely.
 */
#ifndef BASE_THREADS_H
#define BASE_THREADS_H

#include <stdint.h>

enum { THREADS_MAX = 256 };

typedef void (*ThreadFn)(void *ctx, int i_thread, int n_threads);

/* Runs fn on n_threads threads (the caller is thread 0) and returns when all have ended. The system may
 * grant fewer threads; fn sees the number it got. */
void threads_run(int n_threads, ThreadFn fn, void *ctx);

/* Waits for the whole team; only inside fn, by every thread. */
void threads_barrier(void);

/* Cores this process may run on. */
int threads_n_cores(void);

/* The part [*begin, *end) of n items that falls to i_thread, cut at multiples of `grain`. */
static inline void threads_split(int64_t n, int64_t grain, int i_thread, int n_threads, int64_t *begin,
                                 int64_t *end) {
    int64_t n_grains = (n + grain - 1) / grain;
    *begin = n_grains * i_thread / n_threads * grain;
    *end = n_grains * (i_thread + 1) / n_threads * grain;
    if (*begin > n) *begin = n;
    if (*end > n) *end = n;
}

#endif

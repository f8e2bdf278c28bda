/* machine.c - measures memory and arithmetic peaks: the best of several short runs, since every disturbance
 * makes a run slower and none makes it faster. */
#include "kernels/machine.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/threads.h"

#include <string.h>

enum { BUFFER_BYTES = 320 << 20, N_READS = 12, N_PEAKS = 5, CACHE_LINE = 64 };

typedef struct Job {
    const Kernels *kernels;
    uint64_t *buffer;
    bool fill;
    PeakKind kind;
    int64_t n_rounds;
    double done[THREADS_MAX]; /* operations, or a sum that keeps the reads alive */
} Job;

/* One word of each line would do; all of them are read, as a kernel reads them. */
static void read_buffer(void *ctx, int i_thread, int n_threads) {
    Job *job = ctx;
    int64_t begin, end;
    threads_split(BUFFER_BYTES / 8, CACHE_LINE / 8, i_thread, n_threads, &begin, &end);
    if (job->fill) memset(job->buffer + begin, 1, (size_t)(end - begin) * 8);
    uint64_t sum[8] = {0};
    for (int64_t i = begin; i < end; i += 8)
        for (int j = 0; j < 8; j++) sum[j] |= job->buffer[i + j];
    for (int j = 1; j < 8; j++) sum[0] |= sum[j];
    job->done[i_thread] = (double)sum[0];
}

static void run_peak(void *ctx, int i_thread, int n_threads) {
    (void)n_threads;
    Job *job = ctx;
    job->done[i_thread] = job->kernels->peak_loop(job->kind, job->n_rounds);
}

/* Seconds of one run of fn on all threads. */
static double time_run(int n_threads, ThreadFn fn, Job *job) {
    double start = clock_s();
    threads_run(n_threads, fn, job);
    return clock_s() - start;
}

static double measure_peak(Job *job, int n_threads) {
    double best = 0;
    job->n_rounds = 1000;
    for (int i = 0; i < N_PEAKS;) {
        memset(job->done, 0, sizeof job->done);
        double s = time_run(n_threads, run_peak, job), done = 0;
        for (int t = 0; t < THREADS_MAX; t++) done += job->done[t];
        if (s < 4e-3) { /* too short for the clock and the start of the threads */
            job->n_rounds *= 2;
            continue;
        }
        if (done / s > best) best = done / s;
        i++;
    }
    return best * 1e-9;
}

int machine_measure(const Kernels *kernels, int n_threads, MachineSpeed *out, fr_error *err) {
    if (n_threads > THREADS_MAX) n_threads = THREADS_MAX;
    Job job = {.kernels = kernels, .buffer = mem_alloc(BUFFER_BYTES), .fill = true};
    if (!job.buffer) return error_memory(err, "measuring memory bandwidth", BUFFER_BYTES);
    out->read_gb_s = 0;
    for (int i = 0; i <= N_READS; i++) {
        double gb_s = BUFFER_BYTES / time_run(n_threads, read_buffer, &job) * 1e-9;
        if (!job.fill && gb_s > out->read_gb_s) out->read_gb_s = gb_s;
        job.fill = false;
    }
    mem_free(job.buffer);
    for (int kind = 0; kind < PEAK_COUNT; kind++) {
        job.kind = (PeakKind)kind;
        out->peak_gop_s[kind] = measure_peak(&job, n_threads);
    }
    return FR_OK;
}

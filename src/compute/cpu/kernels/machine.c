/* machine.c - measures the bandwidth of the memory and the peaks of arithmetic. The best of several short runs
 * counts, because a disturbance can only make a run slower. */
#include "compute/cpu/kernels/kernels.h"

#include "base/system.h"
#include "base/mem.h"
#include "base/threads.h"
#include "compute/cpu/kernels/product_ways.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    BUFFER_BYTES = 320 << 20,
    N_READS = 12,
    N_PEAKS = 10,
    N_ROUNDS = 1 << 20, /* a few milliseconds */
    N_TILE_ROUNDS = 1 << 17,
};

typedef struct Job {
    const Kernels *kernels;
    unsigned char *buffer;
    bool fill;
    PeakKind kind;
    double (*peak_loop)(PeakKind kind, int64_t n_rounds);
    int64_t n_rounds;
    double done[THREADS_MAX]; /* operations, or the result of a read, which keeps the compiler from removing the read */
} Job;

static void read_buffer(void *ctx, int i_part, int n_parts, int i_thread) {
    (void)i_thread;
    Job *job = ctx;
    int64_t begin, end;
    threads_split(BUFFER_BYTES, 4096, i_part, n_parts, &begin, &end);
    if (job->fill) memset(job->buffer + begin, 1, (size_t)(end - begin));
    job->done[i_part] = job->kernels->read_loop(job->buffer + begin, (size_t)(end - begin));
}

static void run_peak(void *ctx, int i_part, int n_parts, int i_thread) {
    (void)i_thread;
    (void)n_parts;
    Job *job = ctx;
    job->done[i_part] = job->peak_loop(job->kind, job->n_rounds);
}

/* Returns the seconds that one run of fn takes on all threads. */
static double time_run(int n_threads, PartFn fn, Job *job) {
    double start = clock_s();
    threads_run_once(n_threads, fn, job);
    return clock_s() - start;
}

static double measure_peak(Job *job, int n_threads) {
    double best = 0;
    for (int i = 0; i < N_PEAKS; i++) {
        memset(job->done, 0, sizeof job->done);
        double s = time_run(n_threads, run_peak, job), done = 0;
        for (int t = 0; t < THREADS_MAX; t++) done += job->done[t];
        if (done / s > best) best = done / s;
    }
    return best * 1e-9;
}

/* Measures the peaks of vectors and of tiles. The rate of tiles is the peak of byte products only if the table uses
 * them. */
static void measure_peaks(Job *job, int n_threads, MachineSpeed *out) {
    const Kernels *tiles = kernels_select("amx");
    for (int kind = 0; kind < PEAK_COUNT; kind++) {
        job->kind = (PeakKind)kind;
        if (kind == PEAK_INT16 && !job->kernels->acts_are_words) {
            out->peak_gop_s[kind] = INFINITY;
            out->tile_gop_s[kind] = 0;
            continue;
        }
        job->peak_loop = job->kernels->peak_loop;
        job->n_rounds = N_ROUNDS;
        out->peak_gop_s[kind] = measure_peak(job, n_threads);
        out->tile_gop_s[kind] = 0;
        if (!tiles || kind == PEAK_F32 || kind == PEAK_INT16) continue;
        job->peak_loop = tiles->tiles->peak_loop;
        job->n_rounds = N_TILE_ROUNDS;
        out->tile_gop_s[kind] = measure_peak(job, n_threads);
    }
    if (job->kernels == tiles && out->tile_gop_s[PEAK_INT8] > out->peak_gop_s[PEAK_INT8])
        out->peak_gop_s[PEAK_INT8] = out->tile_gop_s[PEAK_INT8];
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
    measure_peaks(&job, n_threads, out);
    for (ActForm form = ACT_Q16; form <= ACT_Q8; form++) {
        out->pair_rows[form] = kernels->pairs && takes_pairs(kernels->pairs, TYPE_Q8_0, form, PAIR_ROWS_MIN)
                                   ? PAIR_ROWS_MIN
                                   : 0;
        out->tile_rows[form] = kernels->tiles ? tile_rows_min(kernels->tiles->ways, form) % (TILE_WAY_ROWS + 1) : 0;
    }
    out->reads[0] = '\0';
    if (kernels->reads) read_ways_text(kernels->reads, out->reads);
    return FR_OK;
}

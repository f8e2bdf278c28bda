/* gradients.c - runs the sequences of a batch on the threads, and adds their gradients: each thread sums a range of the
 * weights over all runs in the same order, so the bits do not depend on timing. */
#include "base/math_functions.h"
#include "base/rng.h"
#include "train/drafter_trainer.h"

#include <math.h>
#include <string.h>

int gradients_open(Gradients *g, int64_t n_weights, int n_threads, fr_error *err) {
    *g = (Gradients){.n_threads = n_threads, .n_weights = n_weights};
    const ArenaItem lists[] = {ARENA_ITEM(&g->of_run, n_threads), ARENA_ITEM(&g->sums, n_threads)};
    int status = arena_take(&g->arena, lists, ARENA_COUNT(lists), "gradients", err);
    for (int i = 0; i < n_threads && !status; i++)
        status = arena_take(&g->arena, &(ArenaItem)ARENA_ITEM(&g->of_run[i], n_weights), 1, "a thread's gradients",
                            err);
    return status ? status : threads_open(&g->pool, n_threads, err);
}

void gradients_close(Gradients *g) {
    threads_close(g->pool);
    arena_free(&g->arena);
    *g = (Gradients){0};
}

typedef struct Job {
    Gradients *g;
    int32_t n;
    int n_runs;
    LearnSequence fn;
    void *ctx;
    float *total;
} Job;

static void run_sequences(void *ctx, int i_run, int n_runs, int i_thread) {
    (void)i_thread;
    const Job *job = ctx;
    float *grads = job->total ? job->g->of_run[i_run] : NULL;
    int64_t begin, end;
    job->g->sums[i_run] = (TrainSums){0};
    if (grads) memset(grads, 0, (size_t)job->g->n_weights * sizeof *grads);
    threads_split(job->n, 1, i_run, n_runs, &begin, &end);
    for (int64_t i = begin; i < end; i++) job->fn(job->ctx, i_run, (int32_t)i, grads, &job->g->sums[i_run]);
}

static void add_up(void *ctx, int i_part, int n_parts, int i_thread) {
    (void)i_thread;
    const Job *job = ctx;
    int64_t begin, end;
    threads_split(job->g->n_weights, 16, i_part, n_parts, &begin, &end);
    for (int r = 0; r < job->n_runs; r++) {
        float *restrict total = job->total;
        const float *restrict one = job->g->of_run[r];
        for (int64_t k = begin; k < end; k++) total[k] += one[k];
    }
}

void gradients_run(Gradients *g, int32_t n, LearnSequence fn, void *ctx, float *total, TrainSums *sums) {
    Job job = {g, n, n < g->n_threads ? n : g->n_threads, fn, ctx, total};
    threads_run(g->pool, job.n_runs, run_sequences, &job);
    if (total) threads_run(g->pool, g->n_threads, add_up, &job);
    for (int r = 0; r < job.n_runs; r++) {
        const TrainSums *one = &g->sums[r];
        sums->loss += one->loss, sums->n += one->n;
        if (one->n_heads > sums->n_heads) sums->n_heads = one->n_heads;
        for (int i = 0; i < one->n_heads; i++) {
            sums->right[i] += one->right[i], sums->of[i] += one->of[i];
            for (int k = 0; k < TRAIN_RANKS; k++) sums->at_rank[i][k] += one->at_rank[i][k];
        }
    }
}

/* Random initial values from the counter-based generator (base/rng.h), so that they are the same on
 * every machine and for every number of threads. */

/* Four normally distributed numbers, by the method of Box and Muller. */
static void four_normals(uint64_t seed, uint64_t tensor, uint32_t block, double out[4]) {
    uint32_t words[4];
    rng_words(seed, RNG_INIT, tensor, block, words);
    for (int i = 0; i < 4; i += 2) {
        double radius = sqrt(-2 * math_log(((double)words[i] + 0.5) * 0x1p-32));
        double angle = 2 * M_PI * ((double)words[i + 1] + 0.5) * 0x1p-32;
        double sine, cosine;
        math_sin_cos(angle, &sine, &cosine);
        out[i] = radius * cosine;
        out[i + 1] = radius * sine;
    }
}

void start_normal(float *out, int64_t n, double std, uint64_t seed, uint64_t tensor) {
    double normal[4] = {0};
    for (int64_t k = 0; k < n; k++) {
        if (k % 4 == 0) four_normals(seed, tensor, (uint32_t)(k / 4), normal);
        out[k] = (float)(std * normal[k % 4]);
    }
}

double start_token_std(const float *embd, int64_t V, int64_t C) {
    double squares = 0;
    for (int64_t i = 0; i < V * C; i++) squares += (double)embd[i] * (double)embd[i];
    return squares > 0 ? sqrt((double)V / squares) : 1; /* a row's squares sum to squares / V */
}

/* bench_train.c - tokens per second of training, and their share of the machine's peak.
 *
 *     bench_train [LAYERS DIM HEADS KV_HEADS FFN [LENGTH [SEQUENCES [THREADS [PRECISION]]]]]
 *     (default: 8 256 4 2 768 512 8, all cores, the program's default precision: 0 is f32, 1 bf16, 2 bf16-tiles)
 *
 * The vocabulary is that of models/target.gguf; tokens are random. A step consists of forward, backward, clipping and
 * AdamW; the best of several is shown, by the clock and by processor time. A token takes 6 operations for each weight
 * of a matrix (2 forward, 4 backward), and 6 n_embd (length + 1) per layer for attention, which sees half of the
 * sequence on average.
 */
#include "base/system.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/threads.h"
#include "compute/cpu/kernels/kernels.h"
#include "train/optimizer.h"
#include "train/llama.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static void die(const char *what) {
    fprintf(stderr, "bench_train: %s\n", what);
    exit(1);
}

static double cpu_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* *core_s: the least processor time of a step over all threads together, which depends less on other programs. */
static double best_step_s(Trainer *t, AdamW *adamw, const TrainBatch *batch, int n_steps, double *core_s) {
    fr_error err;
    double best = *core_s = 1e9;
    for (int i = 0; i < n_steps; i++) {
        TrainSums sums = {0};
        double start = clock_s(), cpu_start = cpu_s();
        trainer_zero_gradients(t);
        double n = (double)batch->n_sequences * batch->length;
        if (t->class->learn(t, batch, 1 / n, &sums, &err)) die(err.message);
        adamw_step(adamw, t, 1e-3, clip_scale(trainer_gradient_norm(t, adamw->n_threads), 1));
        double s = clock_s() - start, cpu = cpu_s() - cpu_start;
        if (s < best) best = s;
        if (cpu < *core_s) *core_s = cpu;
    }
    return best;
}

int main(int argc, char **argv) {
    int32_t v[9] = {8, 256, 4, 2, 768, 512, 8, threads_n_cores(), (int32_t)gemm_best_precision()};
    for (int i = 1; i < argc && i <= 9; i++) v[i - 1] = atoi(argv[i]);
    fr_error err;
    Gguf *g;
    Trainer *t;
    AdamW adamw;
    MachineSpeed speed;
    if (gguf_open(&g, "models/target.gguf", &err)) die(err.message);
    LlamaOptions o = {.shape = {v[0], v[1], v[2], v[3], v[1] / v[2], v[4], 0, 1e-5f, 10000},
                      .max_length = v[5],
                      .n_ctx = v[5],
                      .name = "bench",
                      .vocabulary = g,
                      .seed = 1,
                      .n_threads = v[7]};
    if (gemm_open((GemmPrecision)v[8], v[7], &err)) die(err.message);
    if (machine_measure(kernels_select(NULL), v[7], &speed, &err)) die(err.message);
    if (llama_trainer_open(&t, &o, &err)) die(err.message);
    AdamWOptions usual = {0.9, 0.95, 1e-8, 0.1};
    if (adamw_open(&adamw, &usual, t, &err)) die(err.message);
    adamw.n_threads = v[7];
    size_t n_tokens = (size_t)v[6] * (size_t)v[5], n_stored = (size_t)v[6] * ((size_t)v[5] + 1);
    int32_t *tokens = mem_calloc(n_stored, sizeof *tokens);
    uint8_t *counts = mem_calloc(n_tokens, 1);
    if (!tokens || !counts) die("out of memory");
    for (size_t i = 0; i < n_stored; i++) tokens[i] = (int32_t)(4000 * rng_uniform(1, RNG_TEST, i, 0));
    for (size_t i = 0; i < n_tokens; i++) counts[i] = 1;
    TrainBatch batch = {v[6], v[5], tokens, counts, 0};
    double core_s, s = best_step_s(t, &adamw, &batch, 4, &core_s);
    double n = (double)llama_trainer_n_weights(t), ops = 6 * n + 6.0 * v[0] * v[1] * (v[5] + 1);
    double gop_s = ops * (double)n_tokens / s * 1e-9, core_gop_s = ops * (double)n_tokens / core_s * 1e-9;
    double peak = v[8] == GEMM_F32    ? speed.peak_gop_s[PEAK_F32]
                  : v[8] == GEMM_BF16 ? speed.peak_gop_s[PEAK_BF16]
                                      : speed.tile_gop_s[PEAK_BF16];
    printf(
        "%d layers, width %d, %d/%d heads, feed-forward %d, %.2f million weights; %d sequences of %d, %d threads, %s\n"
        "%.0f tokens/s, %.1f million operations a token: %.0f billion a second, %.0f%% of that peak of %.0f\n"
        "%.0f tokens for each second of a core: %.0f billion operations\n",
        v[0], v[1], v[2], v[3], v[4], n * 1e-6, v[6], v[5], v[7], gemm_description(), (double)n_tokens / s, ops * 1e-6,
        gop_s, 100 * gop_s / peak, peak, (double)n_tokens / core_s, core_gop_s);
    mem_free(tokens);
    mem_free(counts);
    adamw_close(&adamw);
    t->class->close(t);
    gguf_close(g);
    return 0;
}

/* bench_sampling.c - measures what happens to one row of logits after a forward: choosing a token, computing its
 * log-probability, and the bookkeeping of the engine.
 *
 *   bench_sampling [KERNELS]
 *
 * Times are by vocabulary size and kind of row, in microseconds of one core, the median of 25. KERNELS is the table of
 * kernels, by default the best of this CPU. A "text" row has most of its mass on few tokens, as rows of trained models
 * do (three times Gumbel noise); a "flat" row is nearly normal with deviation 1, as models with random weights produce
 * it.
 */
#include "base/system.h"
#include "base/hash.h"
#include "compute/cpu/kernels/kernels.h"
#include "draft/feedback.h"
#include "verify/gumbel.h"
#include "verify/sampler.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_VOCAB = 151936, N_TIMES = 25, N_EACH = 4 };

static float logits[2][MAX_VOCAB];

typedef enum Task { CHOOSE, LOGPROB, TOP_LOGPROBS, HASH, FINITE } Task;

static const struct {
    const char *name;
    Task work;
    SamplingOptions options;
} cases[] = {
    {"greedy", CHOOSE, {.top_p = 1, .repeat_penalty = 1}},
    {"temperature 1", CHOOSE, {.temperature = 1, .top_p = 1, .repeat_penalty = 1}},
    {"temperature 0.7", CHOOSE, {.temperature = 0.7f, .top_p = 1, .repeat_penalty = 1}},
    {"top-k 40", CHOOSE, {.temperature = 1, .top_k = 40, .top_p = 1, .repeat_penalty = 1}},
    {"top-p 0.95", CHOOSE, {.temperature = 1, .top_p = 0.95f, .repeat_penalty = 1}},
    {"top-k 40, top-p 0.95", CHOOSE, {.temperature = 1, .top_k = 40, .top_p = 0.95f, .repeat_penalty = 1}},
    {"min-p 0.05", CHOOSE, {.temperature = 1, .top_p = 1, .min_p = 0.05f, .repeat_penalty = 1}},
    {"repeat penalty 1.1", CHOOSE, {.temperature = 1, .top_p = 1, .repeat_penalty = 1.1f, .penalty_last_n = 64}},
    {"a log-probability", LOGPROB, {.top_p = 1}},
    {"the top 20 of them", TOP_LOGPROBS, {.top_p = 1}},
    {"hash of the logits", HASH, {.top_p = 1}},
    {"check for NaN", FINITE, {.top_p = 1}},
};
enum { N_CASES = sizeof cases / sizeof *cases };

static volatile uint64_t sink;
static const RowKernels *rows;

static void do_work(Sampler *s, int i, const float *row, int32_t n_vocab, uint64_t position) {
    static const int32_t context[64] = {1, 5, 9, 2};
    int32_t ids[TOP_K_MAX];
    if (cases[i].work == CHOOSE) sink += (uint64_t)sampler_choose(s, &cases[i].options, row, context, 64, position);
    else if (cases[i].work == HASH) sink += hash64(row, (size_t)n_vocab * sizeof *row, position);
    else if (cases[i].work == FINITE) sink += rows->is_finite(row, n_vocab);
    else if (cases[i].work == TOP_LOGPROBS) sink += (uint64_t)logits_top_k(row, n_vocab, 20, ids);
    else sink += (uint64_t)(sampler_log_softmax(s, row).log_sum * 1000);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_s(Sampler *s, int i, const float *row, int32_t n_vocab) {
    double times[N_TIMES];
    for (int t = 0; t < N_TIMES; t++) {
        double start_s = clock_s();
        for (int k = 0; k < N_EACH; k++) do_work(s, i, row, n_vocab, (uint64_t)(t * N_EACH + k));
        times[t] = (clock_s() - start_s) / N_EACH;
    }
    qsort(times, N_TIMES, sizeof *times, by_value);
    return times[N_TIMES / 2];
}

int main(int argc, char **argv) {
    static const int32_t sizes[] = {32000, MAX_VOCAB};
    fr_error err;
    const Kernels *kernels;
    if (kernels_find(argc > 1 ? argv[1] : NULL, &kernels, &err)) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    rows = kernels->rows;
    for (int32_t t = 0; t < MAX_VOCAB; t++) {
        double normal = 0;
        for (uint64_t k = 0; k < 12; k++) normal += rng_uniform(2, RNG_TEST, k, (uint32_t)t) - 0.5;
        logits[0][t] = (float)(3 * gumbel_noise(1, RNG_TEST, 0, t));
        logits[1][t] = (float)normal;
    }
    printf("kernels %s; microseconds a row\n%-22s %10s %10s %10s %10s\n%-22s %10s %10s %10s %10s\n", kernels->name, "",
           "V=32000", "", "V=151936", "", "", "text", "flat", "text", "flat");
    for (int i = 0; i < N_CASES; i++) {
        printf("%-22s", cases[i].name);
        for (int k = 0; k < 4; k++) {
            Sampler *s = sampler_new(sizes[k / 2]);
            if (!s) return 1;
            sampler_use_kernels(s, rows);
            printf(" %10.1f", 1e6 * median_s(s, i, logits[k % 2], sizes[k / 2]));
            sampler_free(s);
        }
        printf("\n");
    }
    return 0;
}

/* bench_sampler.c - the time that sampling one token takes, for each filter, on random logits of two vocabulary sizes.
 *
 *   bench_sampler [REPETITIONS]                (default: 200) */
#include "base/clock.h"
#include "base/rng.h"
#include "spec/sampling/sampler.h"

#include <stdio.h>
#include <stdlib.h>

enum { MAX_VOCAB = 131072 };

int main(int argc, char **argv) {
    static float logits[MAX_VOCAB];
    static const int32_t sizes[] = {32000, MAX_VOCAB};
    static const struct {
        const char *name;
        SamplingOptions o;
    } runs[] = {
        {"greedy", {.top_p = 1, .repeat_penalty = 1}},
        {"temperature 1", {.temperature = 1, .top_p = 1, .repeat_penalty = 1}},
        {"top-k 40", {.temperature = 1, .top_k = 40, .top_p = 1, .repeat_penalty = 1}},
        {"top-p 0.95", {.temperature = 1, .top_p = 0.95f, .repeat_penalty = 1}},
        {"min-p 0.05", {.temperature = 1, .top_p = 1, .min_p = 0.05f, .repeat_penalty = 1}},
    };
    int n = argc > 1 ? atoi(argv[1]) : 200;
    for (int32_t t = 0; t < MAX_VOCAB; t++) logits[t] = (float)(3 * rng_gumbel(1, RNG_TEST, 0, (uint32_t)t));
    for (size_t i = 0; i < 2 * sizeof runs / sizeof *runs; i++) {
        Sampler *s = sampler_new(sizes[i % 2]);
        int64_t sum = 0; /* so that no call is optimised away */
        if (!s || n < 1) return 1;
        double start_s = clock_s();
        for (int k = 0; k < n; k++) sum += sampler_choose(s, &runs[i / 2].o, logits, NULL, 0, (uint64_t)k);
        printf("%-14s V=%-6d %8.1f us%s\n", runs[i / 2].name, sizes[i % 2], 1e6 * (clock_s() - start_s) / n, sum < 0 ? "!" : "");
        sampler_free(s);
    }
    return 0;
}

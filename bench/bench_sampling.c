/* bench_sampling.c - the time it takes to choose a token.
 *
 *   bench_sampling
 *
 * Prints the time of a choice from a row of random logits, by vocabulary size and sampling options.
 */
#include "base/clock.h"
#include "spec/sampling/gumbel.h"
#include "spec/sampling/sampler.h"

#include <stdio.h>

enum { MAX_VOCAB = 131072, N_CHOICES = 50 };

int main(void) {
    static const struct {
        const char *name;
        SamplingOptions options;
    } cases[] = {
        {"greedy", {.top_p = 1, .repeat_penalty = 1}},
        {"temperature 1", {.temperature = 1, .top_p = 1, .repeat_penalty = 1}},
        {"top-k 40", {.temperature = 1, .top_k = 40, .top_p = 1, .repeat_penalty = 1}},
        {"top-p 0.95", {.temperature = 1, .top_p = 0.95f, .repeat_penalty = 1}},
        {"min-p 0.05", {.temperature = 1, .top_p = 1, .min_p = 0.05f, .repeat_penalty = 1}},
    };
    static const int32_t sizes[] = {32000, MAX_VOCAB};
    static float logits[MAX_VOCAB];
    for (int32_t t = 0; t < MAX_VOCAB; t++) logits[t] = (float)(3 * gumbel_noise(1, RNG_TEST, 0, (int32_t)t));
    for (size_t i = 0; i < 2 * sizeof cases / sizeof *cases; i++) {
        Sampler *s = sampler_new(sizes[i % 2]);
        if (!s) return 1;
        double start_s = clock_s();
        for (int j = 0; j < N_CHOICES; j++)
            (void)sampler_choose(s, &cases[i / 2].options, logits, NULL, 0, (uint64_t)j);
        printf("%-14s V=%-6d %7.1f us\n", cases[i / 2].name, sizes[i % 2], 1e6 * (clock_s() - start_s) / N_CHOICES);
        sampler_free(s);
    }
    return 0;
}

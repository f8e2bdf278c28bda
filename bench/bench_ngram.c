/* bench_ngram.c - time and memory of ngram-trie, by both rules, on a long text: a usual one (Zipf's distribution, with repetitions)
 * and the worst one (a single token).
 *
 *   bench_ngram [TOKENS]                       (default: 32768) */
#include "base/clock.h"
#include "base/rng.h"
#include "spec/drafter/drafter.h"
#include "spec/drafters/text/draft_ngram_trie.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { N_VOCAB = 32000, N_PROPOSED = 200, BUDGET = 32 };

static void check(int status, const fr_error *err) {
    if (!status) return;
    fprintf(stderr, "bench_ngram: %s\n", err->message);
    exit(1);
}

static int32_t token_at(bool worst, const int32_t *text, int64_t i) {
    if (worst) return 7;
    if (i > 100 && rng_uniform(5, RNG_TEST, (uint64_t)i, 0) < 0.3) return text[i - 90];
    return (int32_t)pow(N_VOCAB, rng_uniform(6, RNG_TEST, (uint64_t)i, 0)) - 1;
}

/* The text is fed at once, then token by token with a proposal after each. */
static void measure(const char *spec, const char *kind, const int32_t *text, int64_t n) {
    static Tree tree;
    const DrafterEnv env = {.n_vocab = N_VOCAB, .max_sequences = 1};
    const int32_t sequence = 0, budget = BUDGET;
    Tree *const trees[] = {&tree};
    fr_error err;
    Drafter *d;
    check(drafter_open(&d, spec, &env, 0, &err), &err);
    double start_s = clock_s(), propose_s = 0;
    check(d->class->begin(d, 0, text, n, &err), &err);
    double begin_s = clock_s() - start_s;
    for (int64_t i = n; i < n + N_PROPOSED; i++) {
        check(d->class->observe(d, 0, text + i, 1, &err), &err);
        start_s = clock_s();
        tree_reset(&tree, text[i]);
        check(d->class->propose(d, &sequence, &budget, trees, 1, &err), &err);
        propose_s += clock_s() - start_s;
    }
    printf("%-22s %-5s text: begin %8.2f ms, propose %6.1f us, %5.1f bytes a token\n", spec, kind, 1e3 * begin_s,
           1e6 * propose_s / N_PROPOSED, (double)draft_ngram_trie_bytes(d, 0) / (double)(n + N_PROPOSED));
    drafter_close(d);
}

int main(int argc, char **argv) {
    int64_t n = argc > 1 ? atoll(argv[1]) : 32768;
    if (n < 1 || n > 1 << 24) return 1;
    int32_t *text = calloc((size_t)(n + N_PROPOSED), sizeof *text);
    if (!text) return 1;
    for (int worst = 0; worst < 2; worst++) {
        for (int64_t i = 0; i < n + N_PROPOSED; i++) text[i] = token_at(worst, text, i);
        measure("ngram-trie", worst ? "worst" : "usual", text, n);
        measure("ngram-trie:rule=paper", worst ? "worst" : "usual", text, n);
    }
    free(text);
    return 0;
}

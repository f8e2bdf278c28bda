/* bench_ngram_trie.c - how the time and memory of ngram-trie grow with the length of the text.
 *
 *   bench_ngram_trie
 *
 * Prints the times of begin and of a proposal, and the bytes per token, for a text that resembles a natural one (Zipf's
 * distribution, with repetitions) and for the worst text (a single token).
 */
#include "base/system.h"
#include "base/rng.h"
#include "draft/text/text_drafter.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { N_TEXT = 32768, N_VOCAB = 32000, N_PROPOSALS = 200, BUDGET = 32 };

static void fill_text(int32_t *text, int n, bool is_worst) {
    for (int32_t i = 0; i < n; i++) {
        double u = rng_uniform(5, RNG_TEST, (uint64_t)i, 0);
        if (is_worst) text[i] = 7;
        else if (i > 100 && u < 0.3) text[i] = text[i - 90];
        else text[i] = (int32_t)pow(N_VOCAB, rng_uniform(6, RNG_TEST, (uint64_t)i, 0)) - 1;
    }
}

static int measure(const char *spec, const int32_t *text, const char *name, fr_error *err) {
    static Tree tree;
    Tree *const trees[] = {&tree};
    const DrafterEnv env = {.n_vocab = N_VOCAB, .max_sequences = 1};
    const int32_t sequence = 0, budget = BUDGET;
    Drafter *d;
    int status = drafter_open(&d, spec, &env, 0, err);
    if (status) return status;
    double start_s = clock_s();
    status = d->class->begin(d, sequence, text, N_TEXT, err);
    double begin_s = clock_s() - start_s, propose_s = 0;
    for (int i = 0; i < N_PROPOSALS && !status; i++) {
        status = d->class->observe(d, sequence, text + N_TEXT + i, 1, err);
        tree_reset(&tree, text[N_TEXT + i]);
        start_s = clock_s();
        if (!status) status = d->class->propose(d, &sequence, &budget, trees, 1, err);
        propose_s += clock_s() - start_s;
    }
    if (!status)
        printf("%-22s %s text of %d tokens: begin %.2f ms, proposal %.1f us, %.1f bytes per token\n", spec, name,
               N_TEXT, 1e3 * begin_s, 1e6 * propose_s / N_PROPOSALS,
               (double)ngram_text_bytes(text_drafter_text((const TextDrafter *)d, sequence)) / (N_TEXT + N_PROPOSALS));
    drafter_close(d);
    return status;
}

int main(void) {
    static const char *const specs[] = {"ngram-trie", "ngram-trie:rule=paper,live=1"};
    static int32_t text[N_TEXT + N_PROPOSALS];
    fr_error err;
    for (int i = 0; i < 4; i++) {
        bool is_worst = i >= 2;
        fill_text(text, N_TEXT + N_PROPOSALS, is_worst);
        if (measure(specs[i % 2], text, is_worst ? "worst" : "natural", &err)) {
            fprintf(stderr, "bench_ngram_trie: %s\n", err.message);
            return 1;
        }
    }
    return 0;
}

/* bench_coupling.c - how often a draft model and its target choose the same token with shared noise, on real
 * distributions.
 *
 *   bench_coupling TARGET.gguf DRAFT.gguf
 *
 * The target generates N_TEXTS texts of N_TOKENS tokens at temperatures 0.7 and 1, beginning with token 1, the
 * beginning of a text in its vocabulary. At each position p is its distribution, and q is that of the draft model after
 * the same tokens. Prints, as means over positions: their total variation; the bound (1 - TV) / (1 + TV); the exact
 * agreement of the first choices (research/acceptance.h); the share of the target's choices among the k greatest log q
 * + G, by N_DRAWS draws of the noise; and that among the k most probable tokens of q, which is what a tree of
 * favourites accepts. */
#include "opened_model.h"

#include "base/threads.h"
#include "research/acceptance.h"
#include "verify/gumbel.h"
#include "verify/sampler.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_TEXTS = 8, N_TOKENS = 100, N_DRAWS = 20, FIRST_TOKEN = 1, MAX_K = 4 };

static fr_error err;
static void die(void) {
    fprintf(stderr, "bench_coupling: %s\n", err.message);
    exit(1);
}

typedef struct Reader { /* a model that reads one text */
    Gguf *gguf;
    OpenedModel opened;
    Executor *executor;
    int32_t sequence, n_vocab;
    float *dist;
    double *p; /* the same */
    DrawCache *draws;
} Reader;

static void open_reader(Reader *r, const char *path) {
    if (gguf_open(&r->gguf, path, &err) || opened_model_open(&r->opened, r->gguf, ACT_PRECISION_Q16, 1, &err)) die();
    const ExecutorOptions o = {.page_size = 16, .n_ctx = N_TOKENS + 1, .max_sequences = 1, .max_rows = 1};
    if (executor_open(&r->executor, r->opened.device, r->opened.weights, &o, &err)) die();
    r->n_vocab = r->opened.model->hparams.n_vocab;
    r->dist = calloc((size_t)r->n_vocab, sizeof *r->dist);
    r->p = calloc((size_t)r->n_vocab, sizeof *r->p);
    r->draws = draw_cache_new(r->n_vocab, r->opened.device->rows);
    if (!r->dist || !r->p || !r->draws) die();
}

static void close_reader(Reader *r) {
    executor_close(r->executor);
    opened_model_close(&r->opened);
    gguf_close(r->gguf);
    free(r->dist);
    free(r->p);
    draw_cache_free(r->draws);
}

/* Reads a token and sets the distribution of the next one; returns its logits. */
static const float *read_token(Reader *r, Sampler *s, const SamplingOptions *o, int32_t token) {
    const Row row = {.token = token, .sequence = r->sequence, .parent = -1, .want_logits = true};
    const int32_t kept = 0;
    if (executor_reserve(r->executor, r->sequence, 1, &err) || executor_forward(r->executor, &row, 1, &err)) die();
    const float *logits = executor_logits(r->executor, 0);
    sampler_dist(s, o, logits, NULL, 0, r->dist);
    executor_commit(r->executor, r->sequence, &kept, 1);
    for (int32_t i = 0; i < r->n_vocab; i++) r->p[i] = (double)r->dist[i];
    return logits;
}

typedef struct Sums {
    double n, tv, bound, exact, coupled[MAX_K], favourites[MAX_K];
} Sums;

static void count_ranks(Sums *sums, const Reader *target, const Reader *draft, uint64_t position) {
    DrawChild choice, best[MAX_K];
    for (uint64_t d = 0; d < N_DRAWS; d++) {
        const DrawParent parent = {.noise = {.stream = RNG_TEST, .seed = d, .position = position}};
        draw_children(target->draws, target->dist, &parent, 0, 1, &choice);
        int32_t n = draw_children(draft->draws, draft->dist, &parent, 0, MAX_K, best);
        for (int32_t i = 0; i < n; i++)
            for (int32_t k = i; k < MAX_K; k++) sums->coupled[k] += best[i].token == choice.token ? 1.0 / N_DRAWS : 0;
    }
    const DrawParent silent = {.noise = {.silent = true}};
    int32_t n = draw_children(draft->draws, draft->dist, &silent, 0, MAX_K, best);
    for (int32_t i = 0; i < n; i++)
        for (int32_t k = i; k < MAX_K; k++) sums->favourites[k] += target->p[best[i].token];
}

static void measure(Reader *target, Reader *draft, float temperature) {
    Sampler *s = sampler_new(target->n_vocab);
    Sums sums = {.n = 0};
    if (!s) die();
    for (uint64_t text = 0; text < N_TEXTS; text++) {
        SamplingOptions o = SAMPLING_DEFAULT;
        int32_t token = FIRST_TOKEN;
        o.temperature = temperature;
        o.seed = text + 1;
        if (executor_sequence_open(target->executor, &target->sequence, &err)) die();
        if (executor_sequence_open(draft->executor, &draft->sequence, &err)) die();
        for (uint64_t i = 0; i < N_TOKENS; i++) {
            read_token(draft, s, &o, token);
            token = sampler_choose(s, &o, read_token(target, s, &o, token), NULL, 0, i);
            double tv = total_variation(target->p, draft->p, target->n_vocab);
            sums.n++;
            sums.tv += tv;
            sums.bound += (1 - tv) / (1 + tv);
            sums.exact += gumbel_agreement(target->p, draft->p, target->n_vocab);
            count_ranks(&sums, target, draft, text * N_TOKENS + i);
        }
        executor_sequence_close(target->executor, target->sequence);
        executor_sequence_close(draft->executor, draft->sequence);
    }
    printf("%11.1f %6.3f %6.3f %6.3f  %6.3f %6.3f %6.3f  %6.3f %6.3f %6.3f\n", (double)temperature, sums.tv / sums.n,
           sums.bound / sums.n, sums.exact / sums.n, sums.coupled[0] / sums.n, sums.coupled[1] / sums.n,
           sums.coupled[3] / sums.n, sums.favourites[0] / sums.n, sums.favourites[1] / sums.n,
           sums.favourites[3] / sums.n);
    sampler_free(s);
}

int main(int argc, char **argv) {
    static Reader target, draft;
    if (argc != 3) {
        fprintf(stderr, "usage: bench_coupling TARGET.gguf DRAFT.gguf\n");
        return 2;
    }
    open_reader(&target, argv[1]);
    open_reader(&draft, argv[2]);
    printf("                                    with the noise, k =    favourites of q, k =\n");
    printf("temperature     TV  bound  exact       1      2      4       1      2      4\n");
    measure(&target, &draft, 0.7f);
    measure(&target, &draft, 1);
    close_reader(&target);
    close_reader(&draft);
    return 0;
}

/* test_verifier.c - unit tests of the verifier: verified trees give, token for token, the text of sequential
 * decoding. */
#include "testing.h"

#include "base/hash.h"
#include "base/rng.h"
#include "devil.h"
#include "verify/verifier.h"

#include <string.h>

enum { V = 24, N_PROMPT = 5, N_STREAM = 60 };

/* A simulated target: its logits are a hash of the whole context, with a few tokens far ahead of the others. */
static void target_logits(const int32_t *context, int64_t n, float *logits) {
    uint64_t h = hash64(context, (size_t)n * sizeof *context, 1);
    for (uint32_t t = 0; t < V; t++) {
        uint64_t w = hash64(&t, sizeof t, h);
        logits[t] = (float)(w % 1000) / 250 + (w >> 32 & 7 ? 0 : 3);
    }
}

/* Plain decoding: stream[0..N_PROMPT) is the prompt, and the remaining part is filled. */
static void decode_plainly(const SamplingOptions *o, VerifyScratch *scratch, int32_t *stream) {
    for (int64_t n = N_PROMPT; n < N_STREAM; n++) {
        float logits[V];
        target_logits(stream, n, logits);
        stream[n] = sampler_choose(scratch->sampler, o, logits, stream, n, (uint64_t)(n - N_PROMPT));
    }
}

/* Computes the simulated target's rows for all nodes: each depends on the context and its own path. */
static void forward(const Tree *t, const int32_t *context, int64_t n, float rows[][V], const float **logits) {
    int32_t path[N_STREAM + 2 * TREE_MAX_NODES];
    memcpy(path, context, (size_t)n * sizeof *path);
    for (int32_t i = 0; i < t->n; i++) {
        for (int32_t j = i; j > 0; j = t->nodes[j].parent) path[n + t->nodes[j].depth - 1] = t->nodes[j].token;
        target_logits(path, n + t->nodes[i].depth, rows[i]);
        logits[i] = rows[i];
    }
}

/* Decodes with a drafter and compares; returns the number of forwards. */
static int decode_and_compare(const SamplingOptions *o, VerifyScratch *scratch, Drafter *d, const int32_t *want,
                              int32_t budget) {
    static float rows[TREE_MAX_NODES][V];
    static const float *logits[TREE_MAX_NODES];
    static VerifyResult result;
    static Tree t;
    Tree *trees[] = {&t};
    int32_t context[N_STREAM + 2 * TREE_MAX_NODES], kept[N_STREAM];
    memcpy(context, want, N_PROMPT * sizeof *want);
    int64_t n = N_PROMPT;
    int n_steps = 0;
    d->class->begin(d, 0, context, n, NULL);
    for (; n < N_STREAM; n_steps++) {
        tree_reset(&t, context[n - 1]);
        assert_int_equal(d->class->propose(d, (int32_t[]){0}, &budget, trees, 1, NULL), FR_OK);
        assert_int_equal(tree_validate(&t, context[n - 1], V, budget + 1, NULL), FR_OK);
        forward(&t, context, n, rows, logits);
        memcpy(kept, context, (size_t)n * sizeof *kept);
        VerifyInput in = {.tree = &t,
                          .logits = logits,
                          .n_vocab = V,
                          .sampling = o,
                          .position = (uint64_t)(n - N_PROMPT),
                          .context = context,
                          .n_context = n};
        verify_sampled(&in, scratch, &result, NULL);
        assert_memory_equal(kept, context, (size_t)n * sizeof *kept);
        int64_t n_before = n;
        for (int32_t i = 0; i < result.n_path; i++) context[n++] = t.nodes[result.path[i]].token;
        context[n++] = result.next_token;
        for (int64_t i = n_before; i < n && i < N_STREAM; i++)
            if (context[i] != want[i])
                fail_msg("token %d is %d, plain decoding gives %d (T %g, seed %d)", (int)i, context[i], want[i],
                         (double)o->temperature, (int)o->seed);
        d->class->observe(d, 0, context + n_before, n - n_before, NULL);
    }
    d->class->end(d, 0);
    return n_steps;
}

static const SamplingOptions options[] = {
    {.temperature = 0, .top_p = 1, .repeat_penalty = 1},
    {.temperature = 0, .top_p = 1, .repeat_penalty = 1.5f, .penalty_last_n = 8},
    {.temperature = 0, .top_p = 1, .repeat_penalty = 1, .presence_penalty = 1, .penalty_last_n = -1},
    {.temperature = 1, .top_p = 1, .repeat_penalty = 1},
    {.temperature = 0.8f, .top_k = 5, .top_p = 0.9f, .repeat_penalty = 1},
    {.temperature = 1.2f,
     .top_p = 1,
     .min_p = 0.1f,
     .repeat_penalty = 1.2f,
     .frequency_penalty = 0.3f,
     .penalty_last_n = 16},
};

static void every_tree_gives_plain_decoding(void **state) {
    (void)state;
    VerifyScratch *scratch = verify_scratch_new(V);
    const int32_t budgets[] = {0, 1, 3, 8, 40, 200};
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++)
        for (uint64_t seed = 0; seed < 12; seed++) {
            SamplingOptions o = options[i];
            o.seed = seed;
            int32_t want[N_STREAM] = {1, 2, 3, 4, (int32_t)seed};
            decode_plainly(&o, scratch, want);
            int32_t budget = budgets[seed % 6];
            const DevilKind kinds[] = {DEVIL_RANDOM, DEVIL_RIGHT, DEVIL_WRONG};
            for (size_t k = 0; k < 3; k++) {
                Devil d = devil_make(kinds[k], DEVIL_FAULT_NONE, V, seed);
                devil_oracle(&d, 0, want, N_STREAM);
                int n_steps = decode_and_compare(&o, scratch, &d.base, want, budget), n_tokens = N_STREAM - N_PROMPT;
                if (kinds[k] == DEVIL_RIGHT)
                    assert_int_equal(n_steps, (n_tokens + budget) / (budget + 1)); /* everything is accepted */
                if (kinds[k] == DEVIL_WRONG) assert_int_equal(n_steps, n_tokens);  /* nothing is accepted */
            }
        }
    verify_scratch_free(scratch);
}

/* Greedy with a presence penalty: the target would repeat token 1 for ever; each accepted 1 must be penalised
 * within the same tree. */
static void penalties_include_the_path(void **state) {
    (void)state;
    VerifyScratch *scratch = verify_scratch_new(4);
    const float row[] = {0, 1, 0.5f, -1};
    const float *logits[] = {row, row, row, row};
    SamplingOptions o = SAMPLING_DEFAULT;
    o.frequency_penalty = 0.4f;
    Tree t;
    tree_reset(&t, 3);
    tree_add(&t, 0, 1, 1, 0);
    tree_add(&t, 1, 1, 1, 0);
    tree_add(&t, 2, 1, 1, 0);
    int32_t context[1 + TREE_MAX_NODES + 1] = {3};
    static VerifyResult result;
    VerifyInput in = {.tree = &t, .logits = logits, .n_vocab = 4, .sampling = &o, .context = context, .n_context = 1};
    verify_sampled(&in, scratch, &result, NULL);
    /* After one token 1 its logit is 0.6, still ahead of 0.5; after two it is 0.2. */
    assert_int_equal(result.n_path, 2);
    assert_int_equal(result.path[1], 2);
    assert_int_equal(result.next_token, 2);
    verify_scratch_free(scratch);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_tree_gives_plain_decoding),
        cmocka_unit_test(penalties_include_the_path),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_learned_top.c - the ranking of tokens with the target's noise (learned_top.c): if the drafter's logits are the
 * target's, its first token is the one that the target chooses, under every sampling option and after every path; the
 * others follow in the order of log q + G; and under a ratio rule the noise is not used. */
#include "learned_rig.h"
#include "model_rig.h"
#include "testing.h"

#include "draft/learned/learned.h"
#include "verify/gumbel.h"

#include <math.h>
#include <string.h>

enum { N_VOCAB = 4096, N_TEXT = 20, MAX_PATH = 5, K = 6, BEGIN_AT = 3 };

typedef struct Case {
    SamplingOptions sampling;
    int32_t text[N_TEXT], path[MAX_PATH], n_path;
    float logits[N_VOCAB], biased[N_VOCAB];
    LogitBias bias[3];
} Case;

/* Bans the favourite, and favours another token. */
static void bias_case(Case *c, uint64_t i) {
    int32_t favourite = 0;
    for (int32_t t = 1; t < N_VOCAB; t++)
        if (c->logits[t] > c->logits[favourite]) favourite = t;
    c->bias[0] = (LogitBias){favourite, -INFINITY};
    c->bias[1] = c->bias[2] = (LogitBias){(int32_t)i * 7, 8};
    c->sampling.bias = c->bias;
    c->sampling.n_bias = 3;
}

static void draw_case(Case *c, uint64_t i) {
    c->sampling = SAMPLING_DEFAULT;
    c->sampling.temperature = 0.3f + 0.3f * (float)(i % 5);
    c->sampling.seed = 100 + i;
    if (i % 4 == 1) c->sampling.top_p = 0.8f;
    if (i % 4 == 2) c->sampling.top_k = 20, c->sampling.min_p = 0.01f;
    if (i % 4 == 3) c->sampling.repeat_penalty = 1.5f, c->sampling.frequency_penalty = 0.5f;
    c->n_path = (int32_t)(i % (MAX_PATH + 1));
    rig_tokens(i, N_VOCAB, c->text, N_TEXT);
    rig_tokens(i + 1000, N_VOCAB, c->path, MAX_PATH);
    for (int32_t t = 0; t < N_VOCAB; t++) c->logits[t] = (float)(2 * gumbel_noise(5, RNG_TEST, i, t));
    /* Makes tokens of the text and of the path likely, so that penalties matter. */
    for (int32_t k = 0; k < N_TEXT; k++) c->logits[c->text[k]] += 6;
    for (int32_t k = 0; k < MAX_PATH; k++) c->logits[c->path[k]] += 6;
    if (i % 3 == 0) bias_case(c, i);
    memcpy(c->biased, c->logits, sizeof c->biased);
    for (int32_t k = 0; k < c->sampling.n_bias; k++) c->biased[c->bias[k].token] += c->bias[k].bias;
}

/* The text. All tokens except the last two are known at begin; then these two are generated. */
static void feed(Drafter *d, const Case *c) {
    fr_error err;
    d->class->set_sampling(d, 0, &c->sampling, BEGIN_AT);
    assert_int_equal(d->class->begin(d, 0, c->text, N_TEXT - 2, &err), FR_OK);
    assert_int_equal(d->class->observe(d, 0, c->text + N_TEXT - 2, 2, &err), FR_OK);
}

/* Returns the token that the target would choose, by its own sampler. */
static int32_t choice_of(Sampler *s, const Case *c) {
    int32_t context[N_TEXT + MAX_PATH];
    memcpy(context, c->text, sizeof c->text);
    memcpy(context + N_TEXT, c->path, sizeof c->path);
    return sampler_choose(s, &c->sampling, c->logits, context, N_TEXT + c->n_path,
                          (uint64_t)(BEGIN_AT + 2 + c->n_path));
}

static void check_order(const Case *c, const int32_t *tokens, const double *log_p, int32_t n) {
    double value[K], total = 0;
    for (int32_t i = 0; i < n; i++) {
        uint64_t position = (uint64_t)(BEGIN_AT + 2 + c->n_path);
        value[i] = (double)c->biased[tokens[i]] / (double)c->sampling.temperature +
                   gumbel_noise(c->sampling.seed, RNG_TARGET, position, tokens[i]);
        total += exp(log_p[i]);
        if (i > 0 && c->sampling.repeat_penalty == 1) assert_true(value[i] <= value[i - 1] + 1e-4);
        if (i > 0) assert_true(log_p[i] <= log_p[i - 1]);
    }
    assert_true(total <= 1 + 1e-9);
}

static void the_first_token_is_the_targets_choice(void **state) {
    (void)state;
    static Case c;
    Gguf *gguf = rig_gguf(RIG_TARGET);
    Weights *target = rig_weights(gguf, NULL);
    LearnedReader reader;
    learned_rig_open_reader(&reader, target);
    Drafter *d = learned_rig_open_drafter(&reader, "medusa:file=models/medusa.gguf", 1);
    Drafter *uncoupled = learned_rig_open_drafter(&reader, "medusa:file=models/medusa.gguf,coupled=0", 1);
    LearnedDrafter *l = (LearnedDrafter *)d;
    Sampler *s = sampler_new(N_VOCAB);
    Tree tree;
    int n_other = 0;
    for (uint64_t i = 0; i < 200; i++) {
        int32_t tokens[K], favourite = 0;
        double log_p[K];
        float logits[N_VOCAB];
        draw_case(&c, i);
        for (int32_t t = 1; t < N_VOCAB; t++)
            if (c.biased[t] > c.biased[favourite]) favourite = t;
        feed(d, &c);
        tree_reset(&tree, c.text[N_TEXT - 1]);
        learned_start(l, 0, &tree);
        memcpy(logits, c.logits, sizeof logits);
        int32_t n = learned_top(l, 0, c.path, c.n_path, logits, K, tokens, log_p), want = choice_of(s, &c);
        assert_true(n >= 1);
        if (tokens[0] != want) fail_msg("case %d: token %d, the target chooses %d", (int)i, tokens[0], want);
        n_other += want != favourite;
        check_order(&c, tokens, log_p, n);
        DraftDists *dists = draft_dists_new(N_VOCAB); /* a ratio rule */
        tree.dists = dists;
        learned_start(l, 0, &tree);
        memcpy(logits, c.logits, sizeof logits);
        assert_int_equal(learned_top(l, 0, c.path, c.n_path, logits, K, tokens, log_p), K);
        assert_int_equal(tokens[0], favourite);
        tree.dists = NULL;
        draft_dists_free(dists);
        feed(uncoupled, &c);
        learned_start((LearnedDrafter *)uncoupled, 0, &tree);
        memcpy(logits, c.logits, sizeof logits);
        assert_int_equal(learned_top((LearnedDrafter *)uncoupled, 0, c.path, c.n_path, logits, K, tokens, log_p), K);
        assert_int_equal(tokens[0], favourite);
        d->class->end(d, 0);
        uncoupled->class->end(uncoupled, 0);
    }
    assert_true(n_other > 60); /* the noise decided */
    sampler_free(s);
    drafter_close(d);
    drafter_close(uncoupled);
    learned_rig_close_reader(&reader);
    rig_weights_close(target);
    gguf_close(gguf);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_first_token_is_the_targets_choice)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

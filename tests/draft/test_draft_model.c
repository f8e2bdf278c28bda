/* test_draft_model.c - unit tests of the drafters that are a second model: trees do not depend on earlier steps, a
 * level is one forward for all sequences, p_accept follows the draft's distribution, and budgets are kept.
 * test_draft_model_text.c tests the text. */
#include "engine_rig.h"

#include "base/rng.h"
#include "model_rig.h"
#include "other_vocab.h"
#include "verify/gumbel.h"
#include "draft/models/draft_model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define DRAFT "models/draft.gguf"
#define M ":model=" DRAFT
#define OTHER "build/draft-model-other.gguf" /* another vocabulary */

enum { N_VOCAB = 4096, FIRST_BYTE = 3 };

static const char *const specs[] = {"sps" M,
                                    "sps" M ",length=9,coupled=0",
                                    "rsd-c" M,
                                    "rsd-c" M ",branch=2x2x2,coupled=0",
                                    "rsd-s" M,
                                    "rsd-s" M ",width=3,depth=6,coupled=0",
                                    "spectr" M,
                                    "specinfer:models=" DRAFT "+" DRAFT ",length=3,coupled=0",
                                    "specinfer:models=" DRAFT ",branch=2-1-3",
                                    ("rsd-s:model=" OTHER)};
enum { N_SPECS = sizeof specs / sizeof *specs };

/* ---- the trees ----------------------------------------------------------------------------------- */

static Gguf *target_gguf;
static Weights *target_weights;
static Device *device;

static int open_target(void **state) {
    (void)state;
    other_vocab_write(DRAFT, OTHER, 5);
    target_gguf = rig_gguf(RIG_TARGET);
    target_weights = rig_weights(target_gguf, NULL);
    device = rig_device(target_weights, 1);
    return 0;
}

static int close_target(void **state) {
    (void)state;
    device_close(device);
    rig_weights_close(target_weights);
    gguf_close(target_gguf);
    remove(OTHER);
    return 0;
}

static int try_open(Drafter **out, const char *spec, int32_t max_sequences, fr_error *err) {
    DrafterEnv env = {.n_vocab = N_VOCAB,
                      .max_sequences = max_sequences,
                      .target = target_gguf,
                      .weights = target_weights,
                      .device = device,
                      .n_ctx = 256};
    return drafter_open(out, spec, &env, 0, err);
}

static Drafter *open_drafter(const char *spec, int32_t max_sequences) {
    fr_error err;
    Drafter *d;
    if (try_open(&d, spec, max_sequences, &err)) fail_msg("%s", err.message);
    return d;
}

static void begin(Drafter *d, int32_t sequence, const SamplingOptions *o, const int32_t *tokens, int64_t n,
                  uint64_t position) {
    fr_error err;
    d->class->set_sampling(d, sequence, o, position);
    if (d->class->begin(d, sequence, tokens, n, &err)) fail_msg("%s", err.message);
}

static void propose(Drafter *d, int32_t sequence, int32_t pending, int32_t budget, Tree *out) {
    fr_error err;
    tree_reset(out, pending);
    if (d->class->propose(d, &sequence, &budget, &out, 1, &err)) fail_msg("%s", err.message);
    if (tree_validate(out, pending, N_VOCAB, budget + 1, &err)) fail_msg("%s: %s", d->class->name, err.message);
}

static void assert_same_tree(const Tree *want, const Tree *got, const char *what, int step) {
    if (want->n != got->n) fail_msg("%s, step %d: %d nodes, but %d from a fresh start", what, step, got->n, want->n);
    for (int32_t i = 0; i < want->n; i++)
        if (memcmp(&want->nodes[i], &got->nodes[i], sizeof got->nodes[i]) != 0)
            fail_msg("%s, step %d: node %d is token %d (p_accept %a), but %d (p_accept %a) from a fresh start", what,
                     step, i, got->nodes[i].token, (double)got->nodes[i].p_accept, want->nodes[i].token,
                     (double)want->nodes[i].p_accept);
}

/* A text of 200 tokens, observed in steps of different lengths, with proposals skipped and repeated: the trees are
 * those of a drafter that begins with the text so far. */
static void trees_are_those_of_a_fresh_start(void **state) {
    (void)state;
    enum { N = 200, N_FIRST = 20 };
    static const int32_t strides[] = {1, 2, 5, 1, 3, 40, 6, 1, 33, 4, 32, 2};
    static Tree got, want;
    int32_t text[N];
    rig_tokens(3, N_VOCAB, text, N);
    for (int k = 0; k < N_SPECS; k++) {
        SamplingOptions o = SAMPLING_DEFAULT;
        /* The target writes words byte by byte. With each one, another vocabulary has other tokens for the word. */
        static const char story[] = "Once upon a time there was a little girl who had a red coat and a brother. ";
        for (int i = 0; i < N && k == N_SPECS - 1; i++)
            text[i] = FIRST_BYTE + (unsigned char)story[i % (int)(sizeof story - 1)];
        if (k > 0) o.temperature = 0.9f, o.top_p = 0.95f, o.repeat_penalty = 1.2f, o.seed = (uint64_t)k;
        Drafter *d = open_drafter(specs[k], 1), *fresh = open_drafter(specs[k], 1);
        begin(d, 0, &o, text, N_FIRST, 0);
        int64_t n = N_FIRST;
        for (int step = 0; n < N; step++) {
            if (step % 4 != 3) propose(d, 0, text[n - 1], 30, &got);
            if (step % 4 == 1) propose(d, 0, text[n - 1], 30, &got);
            begin(fresh, 0, &o, text, n, (uint64_t)(n - N_FIRST));
            propose(fresh, 0, text[n - 1], 30, &want);
            fresh->class->end(fresh, 0);
            if (step % 4 != 3) assert_same_tree(&want, &got, specs[k], step);
            int64_t stride = strides[step % 12] < N - n ? strides[step % 12] : N - n;
            fr_error err;
            if (d->class->observe(d, 0, text + n, stride, &err)) fail_msg("%s", err.message);
            n += stride;
        }
        drafter_close(d);
        drafter_close(fresh);
    }
}

static void a_level_is_one_forward_for_all_sequences(void **state) {
    (void)state;
    enum { N_SEQUENCES = 5, N = 30 };
    const struct {
        const char *spec;
        int32_t budgets[N_SEQUENCES];
        int64_t n_forwards;
    } cases[] = {
        {"sps" M ",length=4", {9, 9, 9, 9, 9}, 4},
        {"rsd-c" M, {24, 24, 24, 24, 24}, 3},
        {"rsd-s" M ",depth=6", {30, 1, 30, 0, 7}, 6},
        {"rsd-c" M ",branch=4-4", {1, 1, 0, 1, 1}, 1},
        {"sps" M, {0, 0, 0, 0, 0}, 0},
        {"sps" M ",length=7", {3, 0, 2, 0, 1}, 3},
        {"spectr" M, {24, 24, 1, 7, 0}, 4},
    };
    static Tree trees[N_SEQUENCES], alone;
    const int32_t sequences[N_SEQUENCES] = {3, 0, 4, 1, 2};
    int32_t texts[N_SEQUENCES][N];
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        SamplingOptions o = {.temperature = 1, .top_p = 1, .repeat_penalty = 1, .seed = 8};
        Drafter *d = open_drafter(cases[c].spec, N_SEQUENCES), *single = open_drafter(cases[c].spec, 1);
        Tree *all[N_SEQUENCES];
        for (int32_t i = 0; i < N_SEQUENCES; i++) {
            rig_tokens((uint64_t)i, N_VOCAB, texts[i], N);
            begin(d, sequences[i], &o, texts[i], N - i, 0);
            tree_reset(all[i] = &trees[i], texts[i][N - i - 1]);
        }
        int64_t before = small_model_n_forwards(d);
        fr_error err;
        if (d->class->propose(d, sequences, cases[c].budgets, all, N_SEQUENCES, &err)) fail_msg("%s", err.message);
        assert_int_equal(small_model_n_forwards(d) - before, cases[c].n_forwards);
        for (int32_t i = 0; i < N_SEQUENCES; i++) {
            begin(single, 0, &o, texts[i], N - i, 0);
            propose(single, 0, texts[i][N - i - 1], cases[c].budgets[i], &alone);
            single->class->end(single, 0);
            assert_same_tree(&alone, &trees[i], cases[c].spec, i);
        }
        drafter_close(d);
        drafter_close(single);
    }
}

/* More sequences than rows: they draft in groups, and nothing else changes. */
static void many_sequences_take_turns(void **state) {
    (void)state;
    enum { N_SEQUENCES = 20, N = 9 };
    static Tree trees[N_SEQUENCES], alone;
    static const char wide[] = "rsd-c" M ",branch=16-16-1"; /* 528 nodes do not fit; 16-15-1 do */
    Drafter *d;
    fr_error err;
    assert_int_equal(try_open(&d, wide, 1, &err), FR_ERR_ARGUMENT);
    d = open_drafter("rsd-c" M ",branch=16-15-1", N_SEQUENCES);
    int32_t sequences[N_SEQUENCES], budgets[N_SEQUENCES], texts[N_SEQUENCES][N];
    Tree *all[N_SEQUENCES];
    for (int32_t i = 0; i < N_SEQUENCES; i++) {
        rig_tokens((uint64_t)i, N_VOCAB, texts[i], N);
        begin(d, i, &SAMPLING_DEFAULT, texts[i], N, 0);
        sequences[i] = i, budgets[i] = 511 - i;
        tree_reset(all[i] = &trees[i], texts[i][N - 1]);
    }
    int64_t before = small_model_n_forwards(d);
    if (d->class->propose(d, sequences, budgets, all, N_SEQUENCES, &err)) fail_msg("%s", err.message);
    assert_int_equal(small_model_n_forwards(d) - before, 9); /* 7 at once, three levels */
    Drafter *single = open_drafter("rsd-c" M ",branch=16-15-1", 1);
    for (int32_t i = 0; i < N_SEQUENCES; i += 5) {
        begin(single, 0, &SAMPLING_DEFAULT, texts[i], N, 0);
        propose(single, 0, texts[i][N - 1], budgets[i], &alone);
        single->class->end(single, 0);
        assert_same_tree(&alone, &trees[i], "in groups", i);
    }
    drafter_close(d);
    drafter_close(single);
}

/* ---- p_accept ------------------------------------------------------------------------------------------ */

/* The draft's distribution at a node of a tree after `text`, computed by a new executor. */
typedef struct Oracle {
    Gguf *gguf;
    Weights *model;
    Sampler *sampler;
    float logits[N_VOCAB], dist[N_VOCAB];
} Oracle;

static Oracle *oracle_open(void) {
    static Oracle o;
    o.gguf = rig_gguf(DRAFT);
    o.model = rig_weights(o.gguf, NULL);
    assert_non_null(o.sampler = sampler_new(N_VOCAB));
    return &o;
}

static void oracle_close(Oracle *o) {
    sampler_free(o->sampler);
    rig_weights_close(o->model);
    gguf_close(o->gguf);
}

enum { N_TEXT = 25 };

static void oracle_dist(Oracle *o, const SamplingOptions *as_dist, const int32_t *text, const Tree *t, int32_t node) {
    int32_t context[N_TEXT + 8], n = N_TEXT + t->nodes[node].depth;
    memcpy(context, text, N_TEXT * sizeof *text);
    for (int32_t k = node; k > 0; k = t->nodes[k].parent) context[N_TEXT + t->nodes[k].depth - 1] = t->nodes[k].token;
    RigOptions eo = rig_options(n, n);
    eo.kv_type = KV_F16;
    Executor *e = rig_executor(o->model, &eo);
    int32_t s = rig_sequence(e);
    rig_append(e, s, context, n - 1, n, N_VOCAB, NULL);
    rig_append(e, s, context + n - 1, 1, 1, N_VOCAB, o->logits);
    sampler_dist(o->sampler, as_dist, o->logits, context, n, o->dist); /* penalties see the path */
    rig_executor_close(e);
}

/* Returns the acceptance probability of a coupled draw of `token` at output position `position`, computed directly. */
static double coupled_chance(const float *dist, const SamplingOptions *o, uint64_t position, int32_t token) {
    static double value[N_VOCAB];
    double t = (double)o->temperature, sum = 0, mine = 0;
    for (int32_t i = 0; i < N_VOCAB; i++)
        value[i] = dist[i] > 0 ? log((double)dist[i]) + gumbel_noise(o->seed, RNG_TARGET, position, (int32_t)i)
                               : -INFINITY;
    mine = value[token];
    for (int rival = 0; rival < 16; rival++) {
        int32_t best = 0;
        for (int32_t i = 1; i < N_VOCAB; i++)
            if (value[i] > value[best]) best = i;
        sum += exp(t * (value[best] - mine));
        value[best] = -INFINITY;
    }
    return 1 / sum;
}

/* Checks the shapes of the three methods, and p_accept: the product of the draft's probabilities along the path or,
 * with coupled noise, of the softmax of the perturbed values. */
static void p_accept_is_the_draft_probability(void **state) {
    (void)state;
    static const struct {
        const char *spec;
        int32_t n_at[7];
    } cases[] = {
        {"sps" M, {1, 1, 1, 1, 1, 1, 0}},
        {"rsd-c" M ",branch=3-2-1", {1, 3, 6, 6, 0}},
        {"rsd-s" M ",width=4,depth=3", {1, 4, 4, 4, 0}},
    };
    enum { GREEDY, UNCOUPLED, COUPLED, N_KINDS };
    static Tree t;
    int32_t text[N_TEXT];
    rig_tokens(14, N_VOCAB, text, N_TEXT);
    Oracle *oracle = oracle_open();
    for (int c = 0; c < 3 * N_KINDS; c++) {
        int kind = c / 3;
        SamplingOptions o = {.temperature = 0.7f,
                             .top_p = 0.95f,
                             .repeat_penalty = 1.5f,
                             .penalty_last_n = -1,
                             .seed = 4};
        SamplingOptions as_dist = o;
        if (kind == GREEDY) o.temperature = 0, as_dist.temperature = as_dist.top_p = 1;
        char spec[96];
        snprintf(spec, sizeof spec, "%s,coupled=%d", cases[c % 3].spec, kind != UNCOUPLED);
        Drafter *d = open_drafter(spec, 1);
        begin(d, 0, &o, text, N_TEXT, 0);
        propose(d, 0, text[N_TEXT - 1], 30, &t);
        int32_t n_at[8] = {0};
        for (int32_t i = 0; i < t.n; i++) n_at[t.nodes[i].depth]++;
        for (int depth = 0; depth < 7; depth++)
            if (cases[c % 3].n_at[depth]) assert_int_equal(n_at[depth], cases[c % 3].n_at[depth]);
        for (int32_t i = 1; i < t.n; i++) {
            int32_t parent = t.nodes[i].parent, token = t.nodes[i].token, better = 0;
            oracle_dist(oracle, &as_dist, text, &t, parent);
            float want = t.nodes[parent].p_accept * oracle->dist[token], got = t.nodes[i].p_accept, slack = 0;
            if (kind == COUPLED) {
                want = t.nodes[parent].p_accept *
                       (float)coupled_chance(oracle->dist, &o, (uint64_t)t.nodes[parent].depth, token);
                slack = 1e-5f * want;
            }
            if (!(fabsf(got - want) <= slack) || !(want > 0))
                fail_msg("%s, kind %d: p_accept of node %d is %a, but should be %a", spec, kind, i, (double)got,
                         (double)want);
            for (int32_t v = 0; v < N_VOCAB; v++) better += oracle->dist[v] > oracle->dist[token];
            if (kind == GREEDY && t.nodes[i].depth == 1) assert_int_equal(better, i - 1); /* the most probable ones */
        }
        drafter_close(d);
    }
    oracle_close(oracle);
}

static void budgets_are_kept(void **state) {
    (void)state;
    enum { N = 30 };
    static Tree t, whole;
    int32_t text[N];
    rig_tokens(1, N_VOCAB, text, N);
    SamplingOptions o = {.temperature = 1, .top_p = 1, .repeat_penalty = 1, .seed = 4};
    for (int k = 0; k < N_SPECS; k++) {
        Drafter *d = open_drafter(specs[k], 1);
        begin(d, 0, &o, text, N, 0);
        propose(d, 0, text[N - 1], 511, &whole);
        for (int32_t budget = 0; budget < 40; budget++) {
            propose(d, 0, text[N - 1], budget, &t);
            assert_int_equal(t.n - 1, budget < whole.n - 1 ? budget : whole.n - 1);
        }
        drafter_close(d);
    }
}

/* ---- refusals ----------------------------------------------------------------------------------- */

static void invalid_options_are_refused(void **state) {
    (void)state;
    const struct {
        const char *spec, *words;
    } cases[] = {
        {"sps", "sps: missing draft model: write sps:model=FILE"},
        {"rsd-c:branch=2-2", "missing draft model"},
        {"sps:model=models/missing.gguf", "models/missing.gguf"},
        {"sps:model=README.md", "README.md"},
        {"sps" M ",length=0", "length=0"},
        {"sps" M ",length=65", "length=65"},
        {"sps" M ",coupled=2", "coupled=2"},
        {"sps" M ",width=2", "unknown option 'width'"},
        {"rsd-c" M ",branch=", "key=value"},
        {"rsd-c" M ",branch=0", "branch=0"},
        {"rsd-c" M ",branch=3-", "branch=3-"},
        {"rsd-c" M ",branch=-3", "branch=-3"},
        {"rsd-c" M ",branch=3--2", "branch=3--2"},
        {"rsd-c" M ",branch=3 2", "branch=3 2"},
        {"rsd-c" M ",branch=65", "branch=65"},
        {"rsd-c" M ",branch=99999999999999999999", "from 1 to 64"},
        {"rsd-c" M ",branch=8-8-8", "more than 511 nodes"},
        {"rsd-s" M ",width=0", "width=0"},
        {"rsd-s" M ",width=64,depth=9", "more than 511 nodes"},
        {"rsd-s" M ",depth=x", "depth=x"},
        {"spectr" M ",paths=0", "paths=0"},
        {"spectr" M ",paths=64,length=8", "more than 511 nodes"},
        {"spectr" M ",coupled=1", "unknown option 'coupled'"},
        {"specinfer", "specinfer: missing draft models: write specinfer:models=FILE+FILE"},
        {"specinfer:models=" DRAFT "+", "must be file names joined by '+'"},
        {"specinfer:models=" DRAFT "+models/missing.gguf", "models/missing.gguf"},
        {"specinfer:models=" DRAFT "+README.md", "README.md"},
        {"specinfer:models=" DRAFT ",branch=2-0", "branch=2-0"},
        {"specinfer:models=" DRAFT ",branch=8-9", "has more than 64 paths"},
        {"specinfer:models=" DRAFT ",branch=64-1-1-1-1-1-1-1", "more than 511 nodes"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fr_error err = {0};
        Drafter *d;
        int status = try_open(&d, cases[i].spec, 1, &err);
        if (!status || d || !strstr(err.message, cases[i].words))
            fail_msg("%s: the message should contain '%s', status %d: '%s'", cases[i].spec, cases[i].words, status,
                     err.message);
    }
    fr_error err = {0};
    Drafter *d;
    DrafterEnv replay = {.n_vocab = N_VOCAB, .max_sequences = 1};
    assert_int_equal(drafter_open(&d, "sps" M, &replay, 0, &err), FR_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "needs a running target"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trees_are_those_of_a_fresh_start),
        cmocka_unit_test(a_level_is_one_forward_for_all_sequences),
        cmocka_unit_test(many_sequences_take_turns),
        cmocka_unit_test(p_accept_is_the_draft_probability),
        cmocka_unit_test(budgets_are_kept),
        cmocka_unit_test(invalid_options_are_refused),
    };
    return cmocka_run_group_tests(tests, open_target, close_target);
}

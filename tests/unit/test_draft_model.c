/* test_draft_model.c - the drafters that run a second model: the text stays plain decoding's; trees are those of a fresh start; a level
 * takes one forward; and a model of another vocabulary is refused by name. */
#include "engine_rig.h"

#include "base/rng.h"
#include "format/gguf_write.h"
#include "model_rig.h"
#include "random_model.h"
#include "spec/drafters/small/draft_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DRAFT "models/draft.gguf"
#define M ":model=" DRAFT

enum { N_TOKENS = 40, MAX_PROMPT = 64, N_VOCAB = 4096 };

static const char *const specs[] = {"sps" M,   "sps" M ",length=9,coupled=0",
                                    "rsd-c" M, "rsd-c" M ",branch=2x2x2,coupled=0",
                                    "rsd-s" M, "rsd-s" M ",width=3,depth=6,coupled=0",
                                    "spectr" M, "specinfer:models=" DRAFT "+" DRAFT ",length=3,coupled=0"};
enum { N_SPECS = sizeof specs / sizeof *specs };

static fr_sampling sampling_case(int i) {
    fr_sampling s = fr_sampling_default();
    switch (i) {
    case 0:
        break;
    case 1:
        s.temperature = 0.8f, s.seed = 1;
        break;
    case 2:
        s.temperature = 1, s.top_p = 0.9f, s.min_p = 0.02f, s.seed = 22;
        break;
    case 3:
        s.temperature = 1.3f, s.top_k = 20, s.repeat_penalty = 1.3f, s.seed = 333;
        break;
    default:
        s.frequency_penalty = 0.4f, s.presence_penalty = 0.3f, s.penalty_last_n = 16;
        break;
    }
    return s;
}
enum { N_SAMPLINGS = 5 };

static const char *const prompts[] = {"Once upon a time there was a little girl who",
                                      "USER: Why is the sky blue?\nASSISTANT:",
                                      "The king looked at the dragon. The dragon looked at the king. Then"};
enum { N_PROMPTS = sizeof prompts / sizeof *prompts };

typedef struct Prompt {
    int32_t tokens[MAX_PROMPT];
    int64_t n;
} Prompt;

static Prompt prompt_of(const fr_model *model, int i) {
    fr_error err;
    Prompt p;
    int32_t *tokens;
    if (fr_tokenize(model, prompts[i], strlen(prompts[i]), FR_TOKENIZE_PROMPT, &tokens, &p.n, &err))
        fail_msg("%s", err.message);
    assert_true(p.n <= MAX_PROMPT);
    memcpy(p.tokens, tokens, (size_t)p.n * sizeof *tokens);
    fr_free(tokens);
    return p;
}

static fr_request_options request_of(const Prompt *p, int i_sampling) {
    return (fr_request_options){.prompt = p->tokens,
                                .n_prompt = p->n,
                                .max_tokens = N_TOKENS,
                                .sampling = sampling_case(i_sampling),
                                .ignore_eos = 1};
}

/* Runs with one drafter against plain decoding; it must not have been switched off. */
static fr_stats check(fr_engine *e, fr_request_options o, const char *draft, int budget,
                      const Stream *plain) {
    static Stream got;
    o.drafts = &draft;
    o.n_drafts = 1;
    o.tree_budget = budget;
    rig_run_request(e, &o, &got);
    rig_assert_same(plain, &got, draft);
    if (got.stats.draft_error[0])
        fail_msg("%s, budget %d: switched off: %s", draft, budget, got.stats.draft_error);
    return got.stats;
}

/* ---- the text ------------------------------------------------------------------------------------ */

static void nothing_changes_the_text(void **state) {
    (void)state;
    static const int budgets[] = {1, 7, 24};
    static Stream plain;
    fr_model *model = rig_open_model(RIG_TARGET, NULL);
    for (int i = 0; i < N_SAMPLINGS; i++) {
        Prompt p = prompt_of(model, i % N_PROMPTS);
        fr_request_options o = request_of(&p, i);
        fr_engine_options eo = {
            .n_threads = 1 + i % 3, .n_ctx = (int)p.n + N_TOKENS, .kv_page_size = 1 + 5 * i};
        fr_engine *e = rig_open_engine(model, &eo);
        rig_run_request(e, &o, &plain);
        for (int k = 0; k < N_SPECS; k++) {
            int64_t accepted = 0;
            for (size_t b = 0; b < sizeof budgets / sizeof *budgets; b++)
                accepted += check(e, o, specs[k], budgets[b], &plain).accepted;
            if (accepted < 10)
                fail_msg("%s, sampling %d: only %d drafts accepted", specs[k], i, (int)accepted);
        }
        fr_engine_close(e);
    }
    fr_model_close(model);
}

/* Requests start and end in one engine, several of them with the same drafter: each generates what it generates alone. */
static void neighbours_change_nothing(void **state) {
    (void)state;
    enum { N = 8, N_PLACES = 3 };
    static Stream alone[N], got;
    fr_model *model = rig_open_model(RIG_TARGET, NULL);
    Prompt p[N];
    fr_request_options o[N];
    const char *drafts[N][2];
    for (int i = 0; i < N; i++) {
        p[i] = prompt_of(model, i % N_PROMPTS);
        o[i] = request_of(&p[i], i % N_SAMPLINGS);
        o[i].max_tokens = N_TOKENS - 3 * i;
        drafts[i][0] = i % 3 == 2 ? specs[4] : specs[2];
        drafts[i][1] = "ngram-trie";
        fr_engine *e = rig_open_engine(model, NULL);
        o[i].drafts = drafts[i], o[i].n_drafts = 1 + i % 2, o[i].tree_budget = 4 + 4 * i;
        fr_request_options plain = o[i];
        plain.n_drafts = 0;
        rig_run_request(e, &plain, &alone[i]);
        rig_run_request(e, &o[i], &got);
        alone[i].stats.accepted = got.stats.accepted; /* the same trees, too */
        fr_engine_close(e);
    }
    fr_engine *e = rig_open_engine(model, &(fr_engine_options){.max_requests = N_PLACES, .prefill_chunk = 7});
    fr_request *running[N_PLACES] = {NULL};
    int which[N_PLACES] = {0}, n_started = 0, n_done = 0;
    for (int step = 0; n_done < N; step++) {
        fr_error err;
        for (int k = 0; k < N_PLACES; k++) {
            if (running[k] && fr_request_finish(running[k])) {
                rig_collect(running[k], &got);
                rig_assert_same(&alone[which[k]], &got, "in a batch");
                assert_string_equal(got.stats.draft_error, "");
                assert_int_equal(got.stats.accepted, alone[which[k]].stats.accepted);
                fr_request_close(running[k]);
                running[k] = NULL;
                n_done++;
            }
            if (running[k] || n_started == N || step % 2) continue;
            which[k] = n_started;
            if (rig_open_request(&running[k], e, &o[n_started++], &err)) fail_msg("%s", err.message);
        }
        if (fr_engine_step(e, &err) < 0) fail_msg("%s", err.message);
        assert_true(step < 1000);
    }
    fr_engine_close(e);
    fr_model_close(model);
}

/* The target as its own draft model proposes what the target generates: greedy, and with the target's noise. With other
 * noise not. */
static void a_draft_equal_to_the_target_is_always_right(void **state) {
    (void)state;
    static Stream plain;
    fr_model *model = rig_open_model(RIG_TARGET, NULL);
    fr_engine *e = rig_open_engine(model, NULL);
    for (int i = 0; i < N_SAMPLINGS; i++) {
        Prompt p = prompt_of(model, i % N_PROMPTS);
        fr_request_options o = request_of(&p, i);
        rig_run_request(e, &o, &plain);
        fr_stats s = check(e, o, "sps:model=" RIG_TARGET ",length=4", 24, &plain);
        if (s.accepted != s.drafted || s.n_steps != (N_TOKENS + 4) / 5)
            fail_msg("sampling %d: %d of %d accepted in %d steps", i, (int)s.accepted, (int)s.drafted,
                     (int)s.n_steps);
        if (o.sampling.temperature == 0) continue;
        s = check(e, o, "rsd-s:model=" RIG_TARGET ",width=2,depth=4", 24, &plain);
        assert_in_range(s.n_steps, 1,
                        (N_TOKENS + 4) / 5 + 1); /* the last tree is cut to the tokens that are left */
        s = check(e, o, "sps:model=" RIG_TARGET ",length=4,coupled=0", 24, &plain);
        assert_true(s.accepted < s.drafted);
    }
    fr_engine_close(e);
    fr_model_close(model);
}

static void coupling_pays(void **state) {
    (void)state;
    static Stream plain;
    int64_t accepted[2] = {0};
    fr_model *model = rig_open_model(RIG_TARGET, NULL);
    fr_engine *e = rig_open_engine(model, NULL);
    for (int i = 0; i < 2 * N_PROMPTS; i++) {
        Prompt p = prompt_of(model, i % N_PROMPTS);
        fr_request_options o = request_of(&p, 1);
        o.sampling.seed = (uint64_t)(40 + i);
        rig_run_request(e, &o, &plain);
        accepted[0] += check(e, o, "sps" M ",coupled=0", 24, &plain).accepted;
        accepted[1] += check(e, o, "sps" M ",coupled=1", 24, &plain).accepted;
    }
    print_message("accepted in %d tokens: %d uncoupled, %d coupled\n", 2 * N_PROMPTS * N_TOKENS,
                  (int)accepted[0], (int)accepted[1]);
    assert_true(2 * accepted[1] > 3 * accepted[0]);
    fr_engine_close(e);
    fr_model_close(model);
}

/* ---- the trees ----------------------------------------------------------------------------------- */

static Gguf *target_gguf;
static Weights *target_weights;
static Device *device;

static int open_target(void **state) {
    (void)state;
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
    if (tree_validate(out, pending, N_VOCAB, budget + 1, &err))
        fail_msg("%s: %s", d->class->name, err.message);
}

static void assert_same_tree(const Tree *want, const Tree *got, const char *what, int step) {
    if (want->n != got->n)
        fail_msg("%s, step %d: %d nodes, but %d from a fresh start", what, step, got->n, want->n);
    for (int32_t i = 0; i < want->n; i++)
        if (memcmp(&want->nodes[i], &got->nodes[i], sizeof got->nodes[i]) != 0)
            fail_msg("%s, step %d: node %d is token %d (p_accept %a), but %d (p_accept %a) from a fresh start", what,
                     step, i, got->nodes[i].token, (double)got->nodes[i].p_accept, want->nodes[i].token,
                     (double)want->nodes[i].p_accept);
}

/* A text of 200 tokens, observed in steps of many lengths, with proposals skipped and repeated: the trees are
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
        int64_t before = draft_model_n_forwards(d);
        fr_error err;
        if (d->class->propose(d, sequences, cases[c].budgets, all, N_SEQUENCES, &err))
            fail_msg("%s", err.message);
        assert_int_equal(draft_model_n_forwards(d) - before, cases[c].n_forwards);
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
    int64_t before = draft_model_n_forwards(d);
    if (d->class->propose(d, sequences, budgets, all, N_SEQUENCES, &err)) fail_msg("%s", err.message);
    assert_int_equal(draft_model_n_forwards(d) - before, 9); /* 7 at once, three levels */
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

/* The draft's distribution at a node of a tree after `text`, computed by a fresh executor. */
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

static void oracle_ask(Oracle *o, const SamplingOptions *as_dist, const int32_t *text, const Tree *t,
                       int32_t node) {
    int32_t context[N_TEXT + 8], n = N_TEXT + t->nodes[node].depth;
    memcpy(context, text, N_TEXT * sizeof *text);
    for (int32_t k = node; k > 0; k = t->nodes[k].parent)
        context[N_TEXT + t->nodes[k].depth - 1] = t->nodes[k].token;
    RigOptions eo = rig_options(n, n);
    eo.kv_type = KV_F16;
    Executor *e = rig_executor(o->model, &eo);
    int32_t s = rig_sequence(e);
    rig_append(e, s, context, n - 1, n, N_VOCAB, NULL);
    rig_append(e, s, context + n - 1, 1, 1, N_VOCAB, o->logits);
    sampler_dist(o->sampler, as_dist, o->logits, context, n, o->dist); /* penalties see the path */
    rig_executor_close(e);
}

/* The chance that a coupled draw gives to `token` at output position `position`, the slow way. */
static double coupled_chance(const float *dist, const SamplingOptions *o, uint64_t position, int32_t token) {
    static double value[N_VOCAB];
    double t = (double)o->temperature, sum = 0, mine = 0;
    for (int32_t i = 0; i < N_VOCAB; i++)
        value[i] = dist[i] > 0 ? log((double)dist[i]) + rng_gumbel(o->seed, RNG_TARGET, position, (uint32_t)i)
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

/* The shapes of the three methods, and p_accept: the draft's probabilities along the path, or with coupled noise
 * the chances of what the noise favours. */
static void est_is_what_the_draft_knows(void **state) {
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
    rig_tokens(12, N_VOCAB, text, N_TEXT);
    Oracle *oracle = oracle_open();
    for (int c = 0; c < 3 * N_KINDS; c++) {
        int kind = c / 3;
        SamplingOptions o = {
            .temperature = 0.7f, .top_p = 0.95f, .repeat_penalty = 1.5f, .penalty_last_n = -1, .seed = 4};
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
            oracle_ask(oracle, &as_dist, text, &t, parent);
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
            if (kind == GREEDY && t.nodes[i].depth == 1)
                assert_int_equal(better, i - 1); /* the most probable ones */
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

/* ---- what is refused ------------------------------------------------------------------------------ */

static void senseless_options_are_refused(void **state) {
    (void)state;
    const struct {
        const char *spec, *says;
    } cases[] = {
        {"sps", "no draft model given"},
        {"rsd-c:branch=2-2", "no draft model given"},
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
        {"specinfer", "write specinfer:models=FILE.gguf"},
        {"specinfer:models=" DRAFT "+", "no draft model given"},
        {"specinfer:models=" DRAFT "+models/missing.gguf", "models/missing.gguf"},
        {"specinfer:models=" DRAFT "+README.md", "README.md"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fr_error err = {0};
        Drafter *d;
        int status = try_open(&d, cases[i].spec, 1, &err);
        if (!status || d || !strstr(err.message, cases[i].says))
            fail_msg("%s: '%s' should be said, status %d: '%s'", cases[i].spec, cases[i].says, status,
                     err.message);
    }
    fr_error err = {0};
    Drafter *d;
    DrafterEnv replay = {.n_vocab = N_VOCAB, .max_sequences = 1};
    assert_int_equal(drafter_open(&d, "sps" M, &replay, 0, &err), FR_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "drafts for a target"));
}

/* draft.gguf with one thing of its vocabulary changed. */
typedef enum Change {
    NO_CHANGE,
    ONE_TOKEN,
    ONE_TYPE,
    OTHER_EOS,
    OTHER_BOS,
    ONE_TOKEN_LESS,
    OTHER_KIND,
    N_CHANGES
} Change;

static void write_changed(Change change, const char *path) {
    Gguf *g = rig_gguf(DRAFT);
    GgufWriter *w = gguf_writer_new();
    int64_t tokens = gguf_find_key(g, "tokenizer.ggml.tokens"),
            types = gguf_find_key(g, "tokenizer.ggml.token_type"),
            scores = gguf_find_key(g, "tokenizer.ggml.scores"), n = N_VOCAB - (change == ONE_TOKEN_LESS);
    static GgufString spellings[N_VOCAB];
    static int32_t type[N_VOCAB];
    static float score[N_VOCAB];
    for (int64_t i = 0; i < n; i++) {
        int64_t v = 0;
        assert_true(gguf_array_string(g, tokens, i, &spellings[i]) && gguf_array_i64(g, types, i, &v) &&
                    gguf_array_f32(g, scores, i, &score[i]));
        type[i] = (int32_t)v;
    }
    if (change == ONE_TOKEN) spellings[1234] = (GgufString){"abra\ncadabra", 12};
    if (change == ONE_TYPE) type[2345] = 5;
    if (change == OTHER_EOS) gguf_set_u32(w, "tokenizer.ggml.eos_token_id", 300);
    if (change == OTHER_BOS) gguf_set_u32(w, "tokenizer.ggml.bos_token_id", 300);
    if (change == OTHER_KIND) {
        gguf_set_string(w, "tokenizer.ggml.model", "gpt2", 4);
        gguf_set_strings(w, "tokenizer.ggml.merges", NULL, 0);
    }
    gguf_set_strings(w, "tokenizer.ggml.tokens", spellings, n);
    gguf_set_i32s(w, "tokenizer.ggml.token_type", type, n);
    gguf_set_f32s(w, "tokenizer.ggml.scores", score, n);
    gguf_copy_kvs(w, g, NULL);
    for (int64_t i = 0; i < gguf_n_tensors(g); i++) {
        const GgufTensor *t = gguf_tensor(g, i);
        gguf_add_tensor(w, t->name, t->type, t->n_dims, t->dims, t->data);
    }
    fr_error err;
    if (gguf_writer_finish(w, path, &err)) fail_msg("%s", err.message);
    gguf_writer_free(w);
    gguf_close(g);
}

static void another_vocabulary_is_refused_by_name(void **state) {
    (void)state;
    static const char path[] = "build/draft-changed.gguf", spec[] = "sps:model=build/draft-changed.gguf";
    const char *const says[N_CHANGES][2] = {
        [ONE_TOKEN] = {"token 1234 is 'abra\\ncadabra'", "models/target.gguf"},
        [ONE_TYPE] = {"token 2345 is", "(type 5)"},
        [OTHER_EOS] = {"token 300 is 'ro' (type 1, ends a text)", "models/target.gguf"},
        [OTHER_BOS] = {"BOS and EOS are tokens 300 and 2, but 1 and 2", "models/target.gguf"},
        [ONE_TOKEN_LESS] = {"has 4095 tokens, but 4096", "models/target.gguf"},
        [OTHER_KIND] = {"byte-level BPE, but SentencePiece BPE", "models/target.gguf"},
    };
    fr_error err = {0};
    Drafter *d;
    for (int i = NO_CHANGE + 1; i < N_CHANGES; i++) {
        write_changed((Change)i, path);
        int status = try_open(&d, spec, 1, &err);
        if (status != FR_ERR_MISMATCH || !strstr(err.message, path) || !strstr(err.message, says[i][0]) ||
            !strstr(err.message, says[i][1]))
            fail_msg("change %d: '%s' and '%s' should be said, status %d: '%s'", i, says[i][0], says[i][1],
                     status, err.message);
    }
    write_changed(NO_CHANGE, path);
    if (try_open(&d, spec, 1, &err)) fail_msg("%s", err.message); /* the writer changes nothing else */
    drafter_close(d);
    remove(path);
    /* A request with such a drafter is not opened. */
    RandomModel other = {.arch = "llama",
                         .n_layer = 1,
                         .n_embd = 64,
                         .n_head = 4,
                         .n_head_kv = 2,
                         .n_ff = 64,
                         .n_vocab = 300,
                         .seed = 1};
    if (random_model_write(&other, path, &err)) fail_msg("%s", err.message);
    fr_model *model = rig_open_model(RIG_TARGET, NULL);
    fr_engine *e = rig_open_engine(model, NULL);
    Prompt p = prompt_of(model, 0);
    fr_request_options o = request_of(&p, 0);
    const char *draft = spec;
    o.drafts = &draft, o.n_drafts = 1;
    fr_request *r;
    assert_int_equal(rig_open_request(&r, e, &o, &err), FR_ERR_MISMATCH);
    assert_non_null(strstr(err.message, "has 300 tokens, but 4096"));
    fr_engine_close(e);
    fr_model_close(model);
    remove(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_changes_the_text),
        cmocka_unit_test(neighbours_change_nothing),
        cmocka_unit_test(a_draft_equal_to_the_target_is_always_right),
        cmocka_unit_test(coupling_pays),
        cmocka_unit_test(trees_are_those_of_a_fresh_start),
        cmocka_unit_test(a_level_is_one_forward_for_all_sequences),
        cmocka_unit_test(many_sequences_take_turns),
        cmocka_unit_test(est_is_what_the_draft_knows),
        cmocka_unit_test(budgets_are_kept),
        cmocka_unit_test(senseless_options_are_refused),
        cmocka_unit_test(another_vocabulary_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, open_target, close_target);
}

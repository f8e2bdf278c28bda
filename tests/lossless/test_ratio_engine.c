/* test_ratio_engine.c - ratio rules in the engine, with the drafters that draw: greedy texts equal plain decoding bit
 * for bit, a seed gives one text whatever other requests run, and over thousands of seeds whole sequences follow the
 * target's distribution. Negative control: drafters that declare wrong distributions fail the test. */
#include "engine/engine.h"
#include "engine_rig.h"

#include "model_rig.h"
#include "random_model.h"
#include "statistics.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TARGET "build/ratio-target.gguf"
#define A "build/ratio-a.gguf"
#define B "build/ratio-b.gguf"

enum { N_VOCAB = 260 };

/* Every rule with every drafter whose trees it accepts. */
#define COMBINATIONS(A, B) \
    {"chain", "sps:length=3,model=" A}, {"block", "sps:length=3,model=" A}, \
        {"multi-round", "spectr:paths=3,length=3,model=" A}, {"multi-round", "specinfer:length=3,models=" A "+" B}, \
        {"multi-round", "specinfer:branch=2-1-2,models=" A}, {"recursive", "rsd-c:model=" A}, \
        {"recursive", "rsd-s:width=3,model=" A}, {"recursive", "sps:model=" A}, {"recursive", "spectr:model=" A}, \
        {"transport", "rsd-c:model=" A}, {"transport", "rsd-s:width=3,model=" A}, \
        {"transport", "spectr:paths=3,length=3,model=" A}, {"k-seq", "spectr:paths=3,length=3,model=" A}, \
        {"k-seq:gamma=1.3", "sps:model=" A}, { \
        "recursive", "ngram-trie" \
    }

typedef struct Combination {
    const char *rule, *draft;
} Combination;

static const Combination real[] = {COMBINATIONS("models/draft.gguf", "models/draft.gguf")};
static const Combination tiny[] = {COMBINATIONS(A, B)};
enum { N_COMBINATIONS = sizeof tiny / sizeof *tiny };

/* The drafts are the target's weights in two coarser roundings: near it, and wrong in different ways. */
static int make_models(void **state) {
    (void)state;
    static const char *const paths[] = {TARGET, A, B};
    static const TensorType types[] = {TYPE_F32, TYPE_Q4_0, TYPE_Q5_0};
    for (int i = 0; i < 3; i++) {
        RandomModel m = {SMALL_LLAMA, .n_vocab = N_VOCAB, .types = {types[i]}, .n_types = 1, .seed = 5};
        fr_error err;
        if (random_model_write(&m, paths[i], &err)) fail_msg("%s", err.message);
    }
    return 0;
}

static int remove_models(void **state) {
    (void)state;
    remove(TARGET);
    remove(A);
    remove(B);
    return 0;
}

/* ---- the shipped models ------------------------------------------------------------------------------- */

enum { N_TOKENS = 24, N_PROMPT = 12, REAL_VOCAB = 4096 };

static fr_request_options request_of(const int32_t *prompt, float temperature, const Combination *c) {
    fr_request_options o = {.struct_size = sizeof o,
                            .prompt = prompt,
                            .n_prompt = N_PROMPT,
                            .max_tokens = N_TOKENS,
                            .ignore_eos = 1,
                            .sampling = fr_sampling_default(),
                            .tree_budget = 12};
    o.sampling.temperature = temperature;
    o.sampling.seed = 11;
    if (c) o.verify = c->rule, o.drafts = &c->draft, o.n_drafts = 1;
    return o;
}

static void greedy_is_plain_decoding(void **state) {
    (void)state;
    static Stream plain, got;
    int32_t prompt[N_PROMPT];
    fr_model *model = rig_open_model(RIG_TARGET, NULL);
    fr_engine *e = rig_open_engine(model, &(fr_engine_options){.struct_size = sizeof(fr_engine_options), .n_ctx = 64});
    for (uint64_t text = 0; text < 2; text++) {
        rig_tokens(text, REAL_VOCAB, prompt, N_PROMPT);
        fr_request_options o = request_of(prompt, 0, NULL);
        rig_run_request(e, &o, &plain);
        int64_t accepted = 0;
        for (int i = 0; i < N_COMBINATIONS; i++) {
            o = request_of(prompt, 0, &real[i]);
            rig_run_request(e, &o, &got);
            rig_assert_same(&plain, &got, real[i].draft);
            assert_string_equal(got.draft_error, "");
            accepted += got.stats.accepted;
        }
        assert_true(accepted > 0);
    }
    fr_engine_close(e);
    fr_model_close(model);
}

/* Each combination by itself, with other pages and threads, and all of them at once. */
static void a_seed_gives_one_text(void **state) {
    (void)state;
    static Stream alone[N_COMBINATIONS], got;
    int32_t prompt[N_PROMPT];
    rig_tokens(3, REAL_VOCAB, prompt, N_PROMPT);
    fr_model *model = rig_open_model(RIG_TARGET, NULL);
    fr_engine *e = rig_open_engine(model, &(fr_engine_options){.struct_size = sizeof(fr_engine_options),
                                                               .n_ctx = 64,
                                                               .n_threads = 1,
                                                               .kv_page_size = 16});
    for (int i = 0; i < N_COMBINATIONS; i++) {
        fr_request_options o = request_of(prompt, 0.7f, &real[i]);
        rig_run_request(e, &o, &alone[i]);
        assert_string_equal(alone[i].draft_error, "");
        for (int k = 0; k < i; k++) assert_int_equal(alone[i].n, alone[k].n);
    }
    fr_engine_close(e);
    fr_engine_options together = {.struct_size = sizeof together,
                                  .n_ctx = 64,
                                  .n_threads = 3,
                                  .kv_page_size = 3,
                                  .max_requests = N_COMBINATIONS,
                                  .prefill_chunk = 5};
    e = rig_open_engine(model, &together);
    fr_request *r[N_COMBINATIONS];
    fr_error err;
    int left;
    for (int i = 0; i < N_COMBINATIONS; i++) {
        fr_request_options o = request_of(prompt, 0.7f, &real[i]);
        if (rig_open_request(&r[i], e, &o, &err)) fail_msg("%s", err.message);
    }
    while ((left = fr_engine_step(e, &err)) > 0) {}
    if (left < 0) fail_msg("%s", err.message);
    for (int i = 0; i < N_COMBINATIONS; i++) {
        rig_collect(r[i], &got);
        rig_assert_same(&alone[i], &got, real[i].draft);
        assert_int_equal(got.stats.drafted, alone[i].stats.drafted);
        fr_request_close(r[i]);
    }
    fr_engine_close(e);
    fr_model_close(model);
}

/* ---- the distribution of whole sequences ----------------------------------------------------------------------- */

enum { LENGTH = 3, TOP_K = 4, N_OUTCOMES = TOP_K * TOP_K * TOP_K, N_SEEDS = 5000, N_AT_ONCE = 50, PENDING = 7 };

static fr_sampling sampling_of(uint64_t seed) {
    fr_sampling s = fr_sampling_default();
    s.temperature = 1.2f, s.top_k = TOP_K, s.seed = seed;
    return s;
}

/* All sequences of LENGTH tokens that the target can generate, each with its probability. */
typedef struct Exact {
    int n;
    int32_t tokens[N_OUTCOMES][LENGTH];
    double p[N_OUTCOMES];
} Exact;

static void add_exact(Exact *x, Executor *e, Sampler *s, int32_t *context, int32_t depth, double p) {
    static float logits[(LENGTH + 1) * N_VOCAB];
    float dist[N_VOCAB];
    if (depth == LENGTH) {
        assert_true(x->n < N_OUTCOMES);
        memcpy(x->tokens[x->n], context + 1, LENGTH * sizeof *context);
        x->p[x->n++] = p;
        return;
    }
    int32_t sequence = rig_sequence(e);
    rig_append(e, sequence, context, depth + 1, 1, N_VOCAB, logits);
    executor_sequence_close(e, sequence);
    SamplingOptions o = {.temperature = 1.2f, .top_k = TOP_K, .top_p = 1, .repeat_penalty = 1};
    sampler_dist(s, &o, logits + depth * N_VOCAB, context, depth + 1, dist);
    for (int32_t v = 0; v < N_VOCAB; v++) {
        context[depth + 1] = v;
        if (dist[v] > 0) add_exact(x, e, s, context, depth + 1, p * (double)dist[v]);
    }
}

static void find_exact(Exact *x) {
    Gguf *g = rig_gguf(TARGET);
    Weights *m = rig_weights(g, NULL);
    RigOptions options = rig_options(16, 16);
    options.kv_type = KV_F16;
    Executor *e = rig_executor(m, &options);
    Sampler *s = sampler_new(N_VOCAB);
    int32_t context[LENGTH + 1] = {PENDING};
    x->n = 0;
    add_exact(x, e, s, context, 0, 1);
    sampler_free(s);
    rig_executor_close(e);
    rig_weights_close(m);
    gguf_close(g);
}

/* Runs N_SEEDS requests and counts their texts. Returns the share of drafted tokens that was accepted. */
static double count_sequences(fr_engine *e, const Combination *c, const Exact *x, int *counts) {
    static const int32_t prompt[] = {PENDING};
    int64_t drafted = 0, accepted = 0;
    memset(counts, 0, N_OUTCOMES * sizeof *counts);
    for (uint64_t first = 0; first < N_SEEDS; first += N_AT_ONCE) {
        fr_request *r[N_AT_ONCE];
        fr_error err;
        int left;
        for (uint64_t i = 0; i < N_AT_ONCE; i++) {
            fr_request_options o = {.struct_size = sizeof o,
                                    .prompt = prompt,
                                    .n_prompt = 1,
                                    .max_tokens = LENGTH,
                                    .ignore_eos = 1,
                                    .sampling = sampling_of(first + i),
                                    .tree_budget = 8,
                                    .verify = c->rule,
                                    .drafts = &c->draft,
                                    .n_drafts = 1};
            if (rig_open_request(&r[i], e, &o, &err)) fail_msg("%s", err.message);
        }
        while ((left = fr_engine_step(e, &err)) > 0) {}
        if (left < 0) fail_msg("%s", err.message);
        for (int i = 0; i < N_AT_ONCE; i++) {
            int64_t n;
            const int32_t *tokens = fr_request_tokens(r[i], &n);
            fr_stats stats = {.struct_size = sizeof stats};
            fr_request_get_stats(r[i], &stats);
            if (n != LENGTH || *fr_request_draft_error(r[i]))
                fail_msg("%s: %d tokens; %s%s", c->draft, (int)n, fr_request_error(r[i])->message,
                         fr_request_draft_error(r[i]));
            int k = 0;
            while (k < x->n && memcmp(x->tokens[k], tokens, sizeof x->tokens[k]) != 0) k++;
            if (k == x->n) fail_msg("%s, %s: generated a text that the target cannot generate", c->rule, c->draft);
            counts[k]++;
            drafted += stats.drafted, accepted += stats.accepted;
            fr_request_close(r[i]);
        }
    }
    return (double)accepted / (double)(drafted > 0 ? drafted : 1);
}

/* Returns the chi-square of the counts; outcomes that are expected less than 5 times are taken together. */
static double distance(const int *counts, const Exact *x, int *df) {
    int n = 0, pooled[N_OUTCOMES + 1] = {0};
    double p[N_OUTCOMES + 1], rare = 0;
    for (int i = 0; i < x->n; i++) {
        if (x->p[i] * N_SEEDS < 5) {
            rare += x->p[i], pooled[N_OUTCOMES] += counts[i];
            continue;
        }
        pooled[n] = counts[i];
        p[n++] = x->p[i];
    }
    pooled[n] = pooled[N_OUTCOMES];
    p[n++] = rare;
    return chi_square(pooled, p, n, N_SEEDS, df);
}

static void sequences_follow_the_targets_dist(void **state) {
    (void)state;
    static Exact x;
    static int counts[N_OUTCOMES];
    find_exact(&x);
    fr_model *model = rig_open_model(TARGET, NULL);
    fr_engine *e = rig_open_engine(model, &(fr_engine_options){.struct_size = sizeof(fr_engine_options),
                                                               .n_ctx = 16,
                                                               .max_requests = N_AT_ONCE,
                                                               .n_threads = 1});
    for (int i = 0; i < N_COMBINATIONS; i++) {
        int df;
        double share = count_sequences(e, &tiny[i], &x, counts), d = distance(counts, &x, &df);
        print_message("%-16s %-54s %2.0f %% accepted, chi-square %3.0f with %d degrees of freedom, limit %.0f\n",
                      tiny[i].rule, tiny[i].draft, 100 * share, d, df, chi_square_limit(df));
        assert_true(df > 20);
        if (d > chi_square_limit(df)) fail_msg("%s, %s: not the target's distribution", tiny[i].rule, tiny[i].draft);
        if (strcmp(tiny[i].draft, "ngram-trie") != 0) assert_true(share > 0.1);
    }
    fr_engine_close(e);
    fr_model_close(model);
}

/* ---- drafters that declare wrong distributions ---------------------------------------------------------- */

/* A drafter that passes on another one's trees and declares wrong distributions for them. */
typedef enum Lie {
    NO_LIE,
    FLATTER_DIST,    /* declares a distribution half way to the uniform one */
    CUT_BY_P_ACCEPT, /* keeps the 4 nodes with the best p_accept, as is allowed under `sampled` */
    N_LIES
} Lie;

typedef struct Liar {
    Drafter base;
    Drafter *inner;
    Lie lie;
} Liar;

static void flatten(DraftDists *l) {
    for (int32_t i = 0; i < l->n_rows; i++) {
        int n = 0;
        for (int32_t v = 0; v < N_VOCAB; v++) n += l->rows[i][v] > 0;
        for (int32_t v = 0; v < N_VOCAB; v++)
            if (l->rows[i][v] > 0) l->rows[i][v] = 0.5f * l->rows[i][v] + 0.5f / (float)n;
    }
}

static void cut_by_p_accept(Tree *t, int32_t n_kept) {
    int32_t place[TREE_MAX_NODES] = {0}, n = 1, n_draws = 0;
    Tree old = *t;
    DraftDists *l = t->dists;
    for (int32_t i = 1; i < old.n; i++) {
        int32_t n_better = 0;
        for (int32_t k = 1; k < old.n; k++)
            n_better += old.nodes[k].p_accept > old.nodes[i].p_accept ||
                        (old.nodes[k].p_accept == old.nodes[i].p_accept && k < i);
        if (n_better >= n_kept) continue;
        place[i] = n;
        t->nodes[n] = old.nodes[i];
        t->nodes[n++].parent = place[old.nodes[i].parent];
    }
    t->n = n;
    for (int32_t i = 0; i < l->n_draws; i++) {
        DistDraw d = l->draws[i];
        if (place[d.child] == 0) continue;
        l->draws[n_draws++] = (DistDraw){.parent = place[d.parent], .child = place[d.child], .kind = d.kind, .q = d.q};
    }
    l->n_draws = n_draws;
}

static void lie_set_sampling(Drafter *d, int32_t sequence, const SamplingOptions *o, uint64_t position) {
    Drafter *inner = ((Liar *)d)->inner;
    inner->class->set_sampling(inner, sequence, o, position);
}
static int lie_begin(Drafter *d, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err) {
    Drafter *inner = ((Liar *)d)->inner;
    return inner->class->begin(inner, sequence, tokens, n, err);
}
static int lie_observe(Drafter *d, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err) {
    Drafter *inner = ((Liar *)d)->inner;
    return inner->class->observe(inner, sequence, tokens, n, err);
}
static int lie_propose(Drafter *d, const int32_t *sequences, const int32_t *budgets, Tree *const *trees, int n,
                       fr_error *err) {
    Liar *l = (Liar *)d;
    int status = l->inner->class->propose(l->inner, sequences, budgets, trees, n, err);
    for (int i = 0; i < n && !status; i++) {
        if (l->lie == FLATTER_DIST) flatten(trees[i]->dists);
        if (l->lie == CUT_BY_P_ACCEPT) cut_by_p_accept(trees[i], 4);
    }
    return status;
}
static void lie_end(Drafter *d, int32_t sequence) {
    Drafter *inner = ((Liar *)d)->inner;
    inner->class->end(inner, sequence);
}
static void lie_close(Drafter *d) { drafter_close(((Liar *)d)->inner); }

static const DrafterClass liar_class = {.name = "liar",
                                        .draws = true,
                                        .set_sampling = lie_set_sampling,
                                        .begin = lie_begin,
                                        .observe = lie_observe,
                                        .propose = lie_propose,
                                        .end = lie_end,
                                        .close = lie_close};

static double distance_with_lie(fr_model *model, const Gguf *target, const Combination *c, Lie lie, const Exact *x,
                                int *df) {
    static int counts[N_OUTCOMES];
    DrafterEnv env = {.n_vocab = N_VOCAB,
                      .max_sequences = N_AT_ONCE,
                      .target = target,
                      .weights = model->weights,
                      .n_ctx = 16};
    fr_engine *e = rig_open_engine(model, &(fr_engine_options){.struct_size = sizeof(fr_engine_options),
                                                               .n_ctx = 16,
                                                               .max_requests = N_AT_ONCE,
                                                               .n_threads = 1});
    env.device = e->device;
    Liar liar = {.base.class = &liar_class, .lie = lie};
    fr_error err;
    if (drafter_open(&liar.inner, c->draft, &env, 0, &err)) fail_msg("%s", err.message);
    rig_add_drafter(e, "liar", &liar.base);
    count_sequences(e, &(Combination){c->rule, "liar"}, x, counts);
    fr_engine_close(e);
    return distance(counts, x, df);
}

static void wrong_declarations_are_detected(void **state) {
    (void)state;
    static const Combination cases[] = {{"chain", "sps:length=3,model=" A},
                                        {"recursive", "rsd-c:model=" A},
                                        {"recursive", "rsd-s:width=3,model=" A},
                                        {"transport", "rsd-c:model=" A},
                                        {"k-seq", "spectr:paths=3,length=3,model=" A}};
    static Exact x;
    find_exact(&x);
    fr_model *model = rig_open_model(TARGET, NULL);
    Gguf *target = rig_gguf(TARGET);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (Lie lie = i == 0 ? NO_LIE : FLATTER_DIST; lie < N_LIES; lie++) {
            if (lie == CUT_BY_P_ACCEPT && strcmp(cases[i].rule, "recursive") != 0 &&
                strcmp(cases[i].rule, "transport") != 0)
                continue;
            int df;
            double d = distance_with_lie(model, target, &cases[i], lie, &x, &df), limit = chi_square_limit(df);
            print_message("%s, lie %d: chi-square %.0f, limit %.0f\n", cases[i].draft, (int)lie, d, limit);
            if ((lie == NO_LIE) != (d < limit))
                fail_msg("%s, lie %d: chi-square %g, limit %g", cases[i].draft, (int)lie, d, limit);
        }
    gguf_close(target);
    fr_model_close(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_is_plain_decoding),
        cmocka_unit_test(a_seed_gives_one_text),
        cmocka_unit_test(sequences_follow_the_targets_dist),
        cmocka_unit_test(wrong_declarations_are_detected),
    };
    return cmocka_run_group_tests(tests, make_models, remove_models);
}

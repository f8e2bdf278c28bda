/* test_learned_draws.c - drafters that draw their tokens at random under ratio rules: over thousands of seeds whole
 * sequences follow the target's distribution. Three negative controls fail the test: declared distributions that are
 * wrong, a tree that is pruned by the probabilities of its tokens instead of by psi, and a tree that is pruned node by
 * node for a rule that looks ahead. `dflash` has a target with random weights, because no file of it is shipped. With
 * the argument `all` the test takes every rule with every drafter that draws and several budgets instead, which takes
 * an hour. */
#include "all_drafters.h"
#include "engine/engine.h"
#include "engine_rig.h"
#include "model_rig.h"
#include "statistics.h"
#include "testing.h"

#include "verify/sampler.h"

#include <stdlib.h>
#include <string.h>

enum { N_VOCAB = 4096, MAX_PROMPT = 32, LENGTH = 3, TOP_K = 4, N_SEEDS = 2500, N_AT_ONCE = 20 };
enum { N_OUTCOMES = TOP_K * TOP_K * TOP_K };

#define PROMPT "there was a little"

/* The biases leave a random target and its drafter the same tokens, of which both have their own distributions. */
typedef struct Target {
    const char *path;
    int32_t n_vocab;
    float temperature;
    int n_bias;
    LogitBias bias[TOP_K];
} Target;

static const Target shipped = {.path = RIG_TARGET, .n_vocab = N_VOCAB, .temperature = 1},
                    of_random_weights = {.path = ALL_DRAFTERS_TARGET,
                                         .n_vocab = ALL_DRAFTERS_VOCAB,
                                         .temperature = 2,
                                         .n_bias = TOP_K,
                                         .bias = {{17, 60}, {90, 60}, {133, 60}, {251, 60}}};
static const Target *target;
static int32_t *prompt;
static int64_t n_prompt;

static SamplingOptions exact_sampling(void) {
    return (SamplingOptions){.temperature = target->temperature,
                             .top_k = TOP_K,
                             .top_p = 1,
                             .repeat_penalty = 1,
                             .bias = target->bias,
                             .n_bias = target->n_bias};
}

/* All sequences of LENGTH tokens that the target can generate, each with its probability. */
typedef struct Exact {
    int n;
    int32_t tokens[N_OUTCOMES][LENGTH];
    double p[N_OUTCOMES];
} Exact;

static void add_exact(Exact *x, Executor *e, Sampler *s, int32_t *context, int32_t depth, double p) {
    static float logits[(MAX_PROMPT + LENGTH) * N_VOCAB], dist[N_VOCAB];
    if (depth == LENGTH) {
        memcpy(x->tokens[x->n], context + n_prompt, LENGTH * sizeof *context);
        x->p[x->n++] = p;
        return;
    }
    int32_t sequence = rig_sequence(e), n = (int32_t)n_prompt + depth, tokens[TOP_K], k = 0;
    double chance[TOP_K];
    rig_append(e, sequence, context, n, 1, target->n_vocab, logits);
    executor_sequence_close(e, sequence);
    const SamplingOptions o = exact_sampling();
    sampler_dist(s, &o, logits + (n - 1) * target->n_vocab, context, n, dist);
    for (int32_t v = 0; v < target->n_vocab; v++)
        if (dist[v] > 0) tokens[k] = v, chance[k++] = (double)dist[v];
    for (int32_t i = 0; i < k; i++) {
        context[n] = tokens[i];
        add_exact(x, e, s, context, depth + 1, p * chance[i]);
    }
}

static void find_exact(Exact *x) {
    Gguf *g = rig_gguf(target->path);
    Weights *m = rig_weights_with(g, NULL, ACT_PRECISION_Q8);
    RigOptions options = rig_options(64, 16);
    options.kv_type = KV_F16;
    Executor *e = rig_executor(m, &options);
    Sampler *s = sampler_new(target->n_vocab);
    int32_t context[MAX_PROMPT + LENGTH];
    memcpy(context, prompt, (size_t)n_prompt * sizeof *prompt);
    x->n = 0;
    add_exact(x, e, s, context, 0, 1);
    sampler_free(s);
    rig_executor_close(e);
    rig_weights_close(m);
    gguf_close(g);
}

/* ---- controls ----------------------------------------------------------------------------------------- */

typedef enum Lie { NO_LIE, FLATTER_DIST, CUT_BY_Q, CUT_BY_RANK } Lie;

static Lie g_lie;
static const DrafterClass *g_honest;
/* The children of the root, by the budget, in trees of whole groups; 0: not known yet. */
static int32_t g_n_children[TREE_MAX_NODES];

/* A distribution half way to the uniform one of the same support. */
static void flatten(DraftDists *d) {
    for (int32_t i = 0; i < d->n_rows; i++) {
        int n = 0;
        for (int32_t v = 0; v < d->n_vocab; v++) n += d->rows[i][v] > 0;
        for (int32_t v = 0; v < d->n_vocab; v++)
            if (d->rows[i][v] > 0) d->rows[i][v] = 0.5f * d->rows[i][v] + 0.5f / (float)n;
    }
}

/* Keeps only the most probable child of the root by q. */
static void cut_by_q(Tree *t) {
    DraftDists *d = t->dists;
    const DistDraw *best = NULL;
    for (int32_t i = 0; i < d->n_draws; i++) {
        const DistDraw *draw = &d->draws[i];
        if (draw->parent != 0) continue;
        if (!best || draw->q[t->nodes[draw->child].token] > best->q[t->nodes[best->child].token]) best = draw;
    }
    if (!best) return;
    const DistDraw kept = *best;
    int32_t token = t->nodes[kept.child].token;
    t->n = 1;
    d->n_draws = 0;
    draft_dists_add(d, 0, tree_add(t, 0, token, 1, 0), kept.kind, kept.q);
}

/* For a rule that looks ahead, the number of the root's children depends only on the budget. */
static void check_groups(const Tree *t, int32_t budget, int32_t n_children[TREE_MAX_NODES]) {
    int32_t n = 0;
    for (int32_t i = 1; i < t->n; i++) n += t->nodes[i].parent == 0;
    if (n_children[budget] == 0) n_children[budget] = n;
    assert_int_equal(n, n_children[budget]);
}

static int lie_propose(Drafter *d, const int32_t *sequences, const int32_t *budgets, Tree *const *trees, int n,
                       fr_error *err) {
    for (int i = 0; i < n && g_lie == CUT_BY_RANK; i++) trees[i]->dists->whole_groups = false;
    int status = g_honest->propose(d, sequences, budgets, trees, n, err);
    for (int i = 0; i < n && !status; i++) {
        if (trees[i]->dists->n_draws != trees[i]->n - 1) fail_msg("not every node is declared");
        if (g_lie == NO_LIE && trees[i]->dists->whole_groups) check_groups(trees[i], budgets[i], g_n_children);
        if (g_lie == FLATTER_DIST) flatten(trees[i]->dists);
        if (g_lie == CUT_BY_Q) cut_by_q(trees[i]);
    }
    return status;
}

/* ---- counts ------------------------------------------------------------------------------------------ */

typedef struct Pairing {
    const char *rule, *draft;
    int budget;
} Pairing;

static fr_request_options options_of(const Pairing *p, uint64_t seed) {
    static fr_logit_bias bias[TOP_K];
    for (int i = 0; i < target->n_bias; i++)
        bias[i] = (fr_logit_bias){.token = target->bias[i].token, .bias = target->bias[i].bias};
    fr_request_options o = {.struct_size = sizeof o,
                            .prompt = prompt,
                            .n_prompt = n_prompt,
                            .max_tokens = LENGTH,
                            .ignore_eos = 1,
                            .sampling = fr_sampling_default(),
                            .tree_budget = p->budget,
                            .verify = p->rule,
                            .drafts = &p->draft,
                            .n_drafts = 1,
                            .logit_bias = bias,
                            .n_logit_bias = target->n_bias};
    o.sampling.temperature = target->temperature, o.sampling.top_k = TOP_K, o.sampling.seed = seed;
    return o;
}

static void count_one(fr_request *r, const Pairing *p, const Exact *x, int *counts) {
    int64_t n;
    const int32_t *tokens = fr_request_tokens(r, &n);
    const char *why = fr_request_draft_error(r);
    if (n != LENGTH || *why) fail_msg("%s: %d tokens; %s", p->draft, (int)n, why);
    int k = 0;
    while (k < x->n && memcmp(x->tokens[k], tokens, sizeof x->tokens[k]) != 0) k++;
    if (k == x->n) fail_msg("%s, %s: generated a text that the target cannot generate", p->rule, p->draft);
    counts[k]++;
}

/* Returns how many drafts a step accepts. */
static double count_sequences(fr_engine *e, const Pairing *p, const Exact *x, int *counts) {
    int64_t steps = 0, accepted = 0;
    memset(counts, 0, N_OUTCOMES * sizeof *counts);
    for (uint64_t first = 0; first < N_SEEDS; first += N_AT_ONCE) {
        fr_request *r[N_AT_ONCE];
        fr_error err;
        int left;
        for (uint64_t i = 0; i < N_AT_ONCE; i++) {
            fr_request_options o = options_of(p, first + i);
            if (rig_open_request(&r[i], e, &o, &err)) fail_msg("%s", err.message);
        }
        while ((left = fr_engine_step(e, &err)) > 0) {}
        if (left < 0) fail_msg("%s", err.message);
        for (int i = 0; i < N_AT_ONCE; i++) {
            fr_stats stats = {.struct_size = sizeof stats};
            fr_request_get_stats(r[i], &stats);
            count_one(r[i], p, x, counts);
            steps += stats.n_steps, accepted += stats.accepted;
            fr_request_close(r[i]);
        }
    }
    return (double)accepted / (double)steps;
}

/* Returns the chi-square of the counts; outcomes that are expected less than 5 times are taken together. */
static double distance(const int *counts, const Exact *x, int *df) {
    int n = 0, pooled[N_OUTCOMES + 1] = {0};
    double p[N_OUTCOMES + 1], rare = 0;
    for (int i = 0; i < x->n; i++)
        if (x->p[i] * N_SEEDS < 5) rare += x->p[i], pooled[N_OUTCOMES] += counts[i];
        else pooled[n] = counts[i], p[n++] = x->p[i];
    pooled[n] = pooled[N_OUTCOMES];
    if (rare > 0) p[n++] = rare;
    return chi_square(pooled, p, n, N_SEEDS, df);
}

static fr_model *model;
static Exact exact;

static void open_target(const Target *t) {
    static const int32_t tokens[] = {3, 17, 90, 44, 251, 133};
    fr_error err;
    target = t;
    model = rig_open_model_with(t->path, NULL, "q8");
    if (t->n_bias) {
        n_prompt = sizeof tokens / sizeof *tokens;
        prompt = malloc(sizeof tokens);
        memcpy(prompt, tokens, sizeof tokens);
    } else if (fr_tokenize(model, PROMPT, strlen(PROMPT), FR_TOKENIZE_PROMPT, &prompt, &n_prompt, &err))
        fail_msg("%s", err.message);
    assert_true(n_prompt > 1 && n_prompt <= MAX_PROMPT);
    find_exact(&exact);
}

static void close_target(void) {
    fr_free(prompt);
    fr_model_close(model);
}

static fr_engine *open_engine(void) {
    return rig_open_engine(model, &(fr_engine_options){.struct_size = sizeof(fr_engine_options),
                                                       .n_ctx = 64,
                                                       .max_requests = N_AT_ONCE,
                                                       .n_threads = 1});
}

/* Compares the generated sequences with the target's distribution. */
static bool follows(fr_engine *e, const Pairing *p, Lie lie) {
    static int counts[N_OUTCOMES];
    int df;
    double accepted = count_sequences(e, p, &exact, counts), d = distance(counts, &exact, &df);
    double limit = chi_square_limit(df);
    print_message("%-11s %-42s budget %2d%s: %.2f accepted a step, chi-square %4.0f with %d degrees of freedom, limit "
                  "%.0f\n",
                  p->rule, p->draft, p->budget, lie ? ", control" : "", accepted, d, df, limit);
    assert_true(df > 8);
    return d < limit;
}

typedef struct Case {
    Pairing pairing;
    Lie lie;
} Case;

static void check_cases(const Target *t, const Case *cases, size_t n) {
    open_target(t);
    for (size_t i = 0; i < n; i++) {
        static DrafterClass lying;
        fr_error err;
        fr_engine *e = open_engine();
        if (fr_engine_open_draft(e, cases[i].pairing.draft, &err)) fail_msg("%s", err.message);
        g_honest = e->drafters[0].drafter->class;
        g_lie = cases[i].lie;
        memset(g_n_children, 0, sizeof g_n_children);
        lying = *g_honest;
        lying.propose = lie_propose;
        e->drafters[0].drafter->class = &lying;
        if ((cases[i].lie == NO_LIE) != follows(e, &cases[i].pairing, cases[i].lie)) fail_msg("case %d", (int)i);
        e->drafters[0].drafter->class = g_honest;
        fr_engine_close(e);
    }
    close_target();
}

static void sequences_follow_the_targets_dist(void **state) {
    (void)state;
    static const Case cases[] = {
        {{"recursive", "eagle:file=models/eagle.gguf,top=4", 8}, NO_LIE},
        {{"transport", "eagle:file=models/eagle.gguf", 8}, NO_LIE},
        {{"transport", "lyanna:file=models/lyanna.gguf", 8}, NO_LIE},
        {{"transport", "hydra:file=models/hydra.gguf", 8}, NO_LIE},
        {{"transport", "rsd-s:model=models/draft.gguf", 8}, NO_LIE},
        {{"transport", "eagle:file=models/eagle.gguf,top=4", 8}, FLATTER_DIST},
        {{"recursive", "eagle:file=models/eagle.gguf,top=4", 8}, CUT_BY_Q},
        {{"transport", "eagle:file=models/eagle.gguf", 8}, CUT_BY_RANK},
    };
    check_cases(&shipped, cases, sizeof cases / sizeof *cases);
}

#define MARKOV "dflash:file=build/all-dflash-markov.gguf"
#define SELECTOR "dflash:file=build/all-dflash-2.gguf"

static void sequences_of_random_weights_follow_their_dist(void **state) {
    (void)state;
    static const Case cases[] = {
        {{"recursive", MARKOV, 6}, NO_LIE},          {{"transport", MARKOV, 8}, NO_LIE},
        {{"transport", MARKOV ",top=2", 3}, NO_LIE}, {{"transport", MARKOV, 8}, FLATTER_DIST},
        {{"recursive", MARKOV, 6}, CUT_BY_Q},        {{"transport", SELECTOR, 8}, NO_LIE},
    };
    all_drafters_write_files();
    check_cases(&of_random_weights, cases, sizeof cases / sizeof *cases);
}

/* Returns whether a rule refuses the drafter when a request is opened, or a tree of one of the first requests. */
static bool is_refused(fr_engine *e, const Pairing *p, fr_error *err) {
    bool refused = false;
    for (uint64_t seed = 0; seed < 64 && !refused; seed++) {
        const fr_request_options o = options_of(p, seed);
        fr_request *request;
        if (rig_open_request(&request, e, &o, err)) return true;
        while (fr_request_finish_reason(request) == FR_FINISH_NONE)
            if (fr_engine_step(e, err) < 0) fail_msg("%s", err->message);
        refused = fr_request_finish_reason(request) == FR_FINISH_ERROR;
        if (refused) *err = *fr_request_error(request);
        fr_request_close(request);
    }
    return refused;
}

/* A pairing whose rule refuses the drafter's trees is skipped. */
static void every_rule_with_every_drafter(void **state) {
    (void)state;
    static const char *const rules[] = {"recursive", "transport", "multi-round", "k-seq", "chain", "block"};
    static const char *const drafts[] = {"eagle:file=models/eagle.gguf",
                                         "eagle:file=models/eagle.gguf,top=4,depth=2",
                                         "lyanna:file=models/lyanna.gguf",
                                         "medusa:file=models/medusa.gguf",
                                         "hydra:file=models/hydra.gguf",
                                         "redrafter:file=models/redrafter.gguf",
                                         "sps:model=models/draft.gguf",
                                         "rsd-c:model=models/draft.gguf",
                                         "rsd-s:model=models/draft.gguf",
                                         "spectr:model=models/draft.gguf",
                                         "specinfer:models=models/draft.gguf+models/draft.gguf",
                                         "specinfer:models=models/draft.gguf,branch=1-3-1"};
    static const int budgets[] = {1, 3, 8, 24};
    int n_wrong = 0, n_taken = 0;
    fr_error err;
    open_target(&shipped);
    for (size_t r = 0; r < sizeof rules / sizeof *rules; r++)
        for (size_t d = 0; d < sizeof drafts / sizeof *drafts; d++)
            for (size_t b = 0; b < sizeof budgets / sizeof *budgets; b++) {
                const Pairing p = {rules[r], drafts[d], budgets[b]};
                fr_engine *e = open_engine();
                if (fr_engine_open_draft(e, p.draft, &err)) fail_msg("%s", err.message);
                if (is_refused(e, &p, &err)) {
                    assert_true(err.code == FR_ERR_ARGUMENT || err.code == FR_ERR_UNSUPPORTED);
                    print_message("%-11s %-42s budget %2d is refused: %s\n", p.rule, p.draft, p.budget, err.message);
                } else n_taken++, n_wrong += !follows(e, &p, NO_LIE);
                fr_engine_close(e);
            }
    close_target();
    print_message("%d of %d pairings do not follow the target's distribution\n", n_wrong, n_taken);
    assert_true(n_taken >= 80);
    assert_int_equal(n_wrong, 0);
}

int main(int argc, char **argv) {
    const struct CMUnitTest quick[] = {cmocka_unit_test(sequences_of_random_weights_follow_their_dist),
                                       cmocka_unit_test(sequences_follow_the_targets_dist)};
    const struct CMUnitTest all[] = {cmocka_unit_test(every_rule_with_every_drafter)};
    return argc > 1 && strcmp(argv[1], "all") == 0 ? cmocka_run_group_tests(all, NULL, NULL)
                                                   : cmocka_run_group_tests(quick, NULL, NULL);
}

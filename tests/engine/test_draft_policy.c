/* test_draft_policy.c - the loss that `auto` may have and the gain that it must have, on a simulated clock; and that it
 * changes no text. */
#include "engine_rig.h"

#include "engine/engine.h"
#include "engine/request.h"
#include "tree/tree.h"

#include <string.h>

enum { N_DRAFTS = 2, N_STEPS = 1000, DEPTH = 4, RIGHT = 1, WRONG = 2, TEXT = 128 };

/* A simulated machine and text: T(n), the time of a proposal, and the steps in which the drafters are right. */
typedef struct World {
    double t1_s, slope; /* T(n) = t1_s (1 + slope (n - 1)) */
    double proposal_s;
    float p_accept;  /* the p_accept that the drafters declare for each node of their chain, given its parent */
    int first, last; /* the steps in which they are right to the full depth; in all others they are wrong */
} World;

typedef struct Outcome {
    double plain_s, auto_s;                     /* the times for the same tokens */
    int64_t n_proposals, drafted, late_drafted; /* late: in the second half */
} Outcome;

/* An engine without an executor, which has everything that draft_policy.c uses. */
static void build(fr_engine *e, fr_request *r, const World *w) {
    static const DrafterClass class = {.name = "simulated"};
    static Drafter drafter = {.class = &class};
    static const Tree *trees[1];
    static int32_t budgets[1];
    static BudgetNode scratch[FR_TREE_BUDGET_AUTO_MAX];
    *e = (fr_engine){.policy = {.trees = trees, .budgets = budgets, .scratch = scratch}, .options.n_ctx = 1 << 20};
    e->policy.cost = (CostCurve){.n = 2, .rows = {1, 32}, .seconds = {w->t1_s, w->t1_s * (1 + 31 * w->slope)}};
    *r = (fr_request){.engine = e,
                      .rule = verify_rules()[0],
                      .has_auto_budget = true,
                      .tree_budget = FR_TREE_BUDGET_AUTO_MAX,
                      .step_budget = FR_TREE_BUDGET_AUTO_MAX,
                      .sequence = -1};
    r->options.n_drafts = N_DRAFTS;
    for (int i = 0; i < N_DRAFTS; i++) {
        e->drafters[i] = (EngineDrafter){.drafter = &drafter, .n_users = 1, .proposal_s = w->proposal_s};
        calibration_init(&e->drafters[i].calibration, NULL);
        r->drafts[i] = (RequestDraft){.shared = &e->drafters[i], .is_active = true};
    }
    fr_error err;
    assert_int_equal(draft_policy_begin(r, &err), FR_OK);
}

/* Drafter i proposes a chain; the second drafter is always wrong. */
static void propose(fr_request *r, int i, const World *w) {
    static Tree calibrated;
    Tree *t = r->drafts[i].proposal;
    tree_reset(t, RIGHT);
    for (int32_t k = 0; k < DEPTH; k++)
        tree_add(t, k, i == 0 ? RIGHT : WRONG + 1, t->nodes[k].p_accept * w->p_accept, i);
    calibration_apply_tree(&r->drafts[i].calibration, t, &calibrated);
    union_merge(&r->tree, &calibrated);
}

static Outcome live(const World *w, int n_steps) {
    static fr_engine e;
    static fr_request r;
    build(&e, &r, w);
    Outcome out = {0};
    fr_request *one = &r;
    for (int step = 0; step < n_steps; step++) {
        int64_t n_before = r.draft_stats.n_proposals;
        tree_reset(&r.tree, RIGHT);
        draft_policy_choose_drafts(&e, &one, 1);
        for (int i = 0; i < N_DRAFTS; i++)
            if (r.drafts[i].is_proposing) propose(&r, i, w);
        draft_policy_allocate(&e, &one, 1, 1, 0);
        e.step.n_rows = r.tree.n;
        int32_t tokens[DEPTH + 1], sources[DEPTH + 1], n = 0, node = 0;
        bool is_right = step >= w->first && step < w->last;
        while (is_right && (node = tree_child(&r.tree, node, RIGHT)) > 0) tokens[n] = RIGHT, sources[n++] = 0;
        tokens[n] = is_right ? RIGHT : WRONG, sources[n++] = -1;
        draft_policy_observe_step(&r, tokens, sources, n);
        out.auto_s += cost_curve_at(&e.policy.cost, e.step.n_rows) +
                      (double)(r.draft_stats.n_proposals - n_before) * w->proposal_s;
        out.plain_s += n * w->t1_s;
        out.drafted += r.tree.n - 1;
        if (step >= n_steps / 2) out.late_drafted += r.tree.n - 1;
    }
    out.n_proposals = r.draft_stats.n_proposals;
    draft_policy_end(&r);
    return out;
}

/* The worlds range from a tiny model in the cache, where each row costs as much as a forward and a proposal a tenth of
 * one, to a large model. */
static const World worlds[] = {
    {.t1_s = 20e-6, .slope = 0.9, .proposal_s = 3e-6},   {.t1_s = 20e-6, .slope = 0.4, .proposal_s = 1e-6},
    {.t1_s = 100e-6, .slope = 0.35, .proposal_s = 3e-6}, {.t1_s = 40e-3, .slope = 0.03, .proposal_s = 5e-6},
    {.t1_s = 40e-3, .slope = 0.2, .proposal_s = 20e-3}, /* a draft model */
};
enum { N_WORLDS = sizeof worlds / sizeof *worlds };

static void little_is_lost_where_no_draft_is_right(void **state) {
    (void)state;
    for (int i = 0; i < N_WORLDS; i++)
        for (float p_accept = 0.1f; p_accept < 1; p_accept += 0.2f) {
            World w = worlds[i];
            w.p_accept = p_accept;
            Outcome o = live(&w, N_STEPS);
            print_message("T(1) %6.0f us, declared %.1f: %.4f of plain, %d proposals, %d drafted\n", 1e6 * w.t1_s,
                          (double)p_accept, o.plain_s / o.auto_s, (int)o.n_proposals, (int)o.drafted);
            assert_true(o.plain_s / o.auto_s > 0.98);
            assert_true((double)o.late_drafted * w.slope < 0.01 * N_STEPS / 2); /* by then it has learned */
            o = live(&w, TEXT);
            assert_true(o.plain_s / o.auto_s > 0.965 ||
                        w.proposal_s > w.t1_s / 4); /* including the first forwards of a short text */
        }
}

/* Negative control: without the policy, when every proposed node gets a row, these worlds lose time. */
static void a_fixed_budget_would_lose(void **state) {
    (void)state;
    for (int i = 0; i < N_WORLDS; i++) {
        const World *w = &worlds[i];
        double fixed_s = w->t1_s * (1 + w->slope * N_DRAFTS * DEPTH) + N_DRAFTS * w->proposal_s;
        assert_true(w->t1_s / fixed_s < 0.85);
    }
}

static void what_is_right_is_taken(void **state) {
    (void)state;
    for (int i = 0; i < N_WORLDS; i++) {
        World w = worlds[i];
        w.p_accept = 0.7f, w.last = N_STEPS;
        double best_s = w.t1_s * (1 + w.slope * DEPTH) +
                        w.proposal_s; /* a chain of DEPTH, only from the first drafter */
        double best = (DEPTH + 1) * w.t1_s / best_s;
        Outcome o = live(&w, N_STEPS);
        print_message("T(1) %6.0f us: %.2f times plain, %.2f is the best\n", 1e6 * w.t1_s, o.plain_s / o.auto_s, best);
        assert_true(o.plain_s / o.auto_s > 0.9 * best || best < 1.15);
    }
}

/* A quotation after a long text without one: the idle drafter proposes again, and is idle after the quotation. */
static void idle_drafters_are_used_again(void **state) {
    (void)state;
    for (int i = 0; i < N_WORLDS - 1; i++) {
        World w = worlds[i];
        w.p_accept = 0.8f, w.first = 500, w.last = 800;
        Outcome o = live(&w, N_STEPS);
        print_message("T(1) %6.0f us: %.2f times plain\n", 1e6 * w.t1_s, o.plain_s / o.auto_s);
        assert_true(o.plain_s / o.auto_s > (w.slope > 0.5 ? 0.98 : 1.15));
    }
}

/* ---- prompts ------------------------------------------------------------------------------------------ */

static int read_nothing(Drafter *d, int32_t sequence, int64_t first, const float *const *hidden, int32_t n,
                        fr_error *err) {
    (void)d, (void)sequence, (void)first, (void)hidden, (void)n, (void)err;
    return FR_OK;
}

/* Returns whether the first drafter is shown the prompt of a request with so many tokens. */
static bool is_shown(fr_request *r, int64_t n_prompt, int64_t max_tokens) {
    r->n_context = n_prompt;
    r->options.max_tokens = max_tokens;
    draft_policy_choose_starts(r);
    assert_false(r->drafts[1].reads_prompt); /* it has no observe_prompt */
    assert_int_equal(r->reads_prompt, r->drafts[0].reads_prompt);
    assert_int_equal(r->needs_hidden, r->drafts[0].reads_prompt);
    return r->drafts[0].reads_prompt;
}

/* A drafter for which a token of a prompt takes a tenth of the time of a generated one. */
static void prompts_are_shown_if_the_answer_repays_them(void **state) {
    (void)state;
    static fr_engine e;
    static fr_request r;
    static const DrafterClass reader = {.name = "reader", .observe_prompt = read_nothing, .needs_hidden = true};
    static Drafter drafter = {.class = &reader};
    const World w = {.t1_s = 1e-3, .slope = 0.1, .proposal_s = 1e-4};
    build(&e, &r, &w);
    EngineDrafter *d = &e.drafters[0];
    d->drafter = &drafter;
    assert_true(is_shown(&r, 101, 64)); /* nothing is known of it */
    draft_policy_observe_prompt(d, 100, 100 * 1e-4);
    assert_false(is_shown(&r, 101, 64));  /* it has not shown that it saves time */
    d->gain_s = 1.1e-3, d->n_gains = 100; /* each proposal saves a token, and 2.1 tokens come of each step */
    assert_true(is_shown(&r, 101, 64));   /* 100 tokens cost 10 ms, and 64 tokens save 30 */
    assert_false(is_shown(&r, 101, 20));
    assert_false(is_shown(&r, 1001, 64));
    assert_true(r.drafts[0].gain_s == 0);  /* a drafter without the prompt is not known to be as good */
    assert_false(is_shown(&r, 1001, 400)); /* it expects 128 tokens, because no answer has ended yet */
    e.policy.answer_tokens = 400;
    assert_true(is_shown(&r, 1001, 400));
    d->gain_s = 0, d->start_credit_s = 0.011; /* a prompt that does not pay can be paid from the credit, once */
    assert_true(is_shown(&r, 101, 64));
    assert_false(is_shown(&r, 101, 64));
    d->start_credit_s = 1; /* an answer that could not repay it if every token were free */
    assert_false(is_shown(&r, 101, 8));
    draft_policy_end(&r);
}

/* ---- in the engine -------------------------------------------------------------------------------- */

static int32_t prompt[64];

static fr_request_options request_of(const char *const *drafts, int n_drafts) {
    for (int32_t i = 0; i < 64; i++) prompt[i] = 5 + i % 9;
    return (fr_request_options){.struct_size = sizeof(fr_request_options),
                                .prompt = prompt,
                                .n_prompt = 64,
                                .max_tokens = 200,
                                .sampling = fr_sampling_default(),
                                .drafts = drafts,
                                .n_drafts = n_drafts,
                                .ignore_eos = 1};
}

static void auto_is_lossless_and_is_counted(void **state) {
    (void)state;
    static Stream plain, got;
    static const char *const drafts[] = {"auto", "pld"};
    fr_model *model = rig_open_model("models/draft.gguf", NULL);
    fr_engine *e = rig_open_engine(model, NULL);
    fr_request_options o = request_of(drafts, 0);
    rig_run_request(e, &o, &plain);
    assert_int_equal(plain.drafts.n_undrafted_steps, plain.n);
    assert_int_equal(plain.drafts.n_proposals, 0);
    assert_int_equal(e->policy.cost.n, 0); /* nothing is measured if no request needs it */
    for (int n = 1; n <= 2; n++) {
        o = request_of(drafts, n);
        rig_run_request(e, &o, &got);
        rig_assert_same(&plain, &got, "auto");
        assert_true(e->policy.cost.n > 1 && got.drafts.n_proposals > 0 &&
                    got.drafts.n_undrafted_steps <= got.stats.n_steps);
        assert_string_equal(got.draft_error, "");
    }
    o.drafts = (const char *[]){"pld"}, o.n_drafts = 1, o.tree_budget = FR_TREE_BUDGET_AUTO;
    rig_run_request(e, &o, &got);
    rig_assert_same(&plain, &got, "pld with an automatic budget");
    fr_engine_close(e);
    fr_model_close(model);
}

/* Devils under an automatic budget: the text is that of plain decoding, and the devil that is always wrong is hardly
 * used. */
static void devils_may_have_automatic_budgets(void **state) {
    (void)state;
    static Stream plain, got;
    static int32_t stream[64 + 200];
    fr_model *model = rig_open_model("models/draft.gguf", NULL);
    fr_model_info info = {.struct_size = sizeof info};
    fr_model_get_info(model, &info);
    fr_engine *e = rig_open_engine(model, NULL);
    fr_request_options o = request_of(NULL, 0);
    rig_run_request(e, &o, &plain);
    memcpy(stream, prompt, sizeof prompt);
    memcpy(stream + 64, plain.tokens, sizeof(int32_t) * 200);
    static Devil devils[4];
    static const char *const names[] = {"right", "wrong", "random", "malformed"};
    static const DevilKind kinds[] = {DEVIL_RIGHT, DEVIL_WRONG, DEVIL_RANDOM, DEVIL_MALFORMED};
    for (int i = 0; i < 4; i++) {
        devils[i] = devil_make(kinds[i], i == 3 ? DEVIL_DUPLICATE : DEVIL_FAULT_NONE, info.n_vocab, 9);
        devil_oracle(&devils[i], 0, stream, 264);
        rig_add_drafter(e, names[i], &devils[i].base);
    }
    for (int first = 0; first < 4; first++) {
        const char *const drafts[] = {names[first], names[(first + 1) % 4], "ngram-trie"};
        o = request_of(drafts, 3);
        o.tree_budget = FR_TREE_BUDGET_AUTO;
        rig_run_request(e, &o, &got);
        rig_assert_same(&plain, &got, names[first]);
        assert_int_equal(got.draft_error[0] != 0, first >= 2);
    }
    fr_engine_close(e);
    fr_model_close(model);
}

/* Runs the request to its end. From the token `first` on the draft is tried in every step, and before it in none. */
static void run_with_trials(fr_engine *e, const fr_request_options *o, int64_t first, const Stream *plain) {
    fr_error err;
    fr_request *r;
    EngineDrafter *d = &e->drafters[0];
    d->n_starts = d->n_trials = 100;
    d->proposal_s = d->prompt_token_s = 1; /* so much that only the credit pays for it */
    d->trial_credit_s = d->start_credit_s = 0;
    assert_int_equal(fr_request_open(&r, e, o, &err), FR_OK);
    assert_false(r->reads_prompt || r->needs_hidden);
    do {
        bool is_tried = r->stats.n_generated >= first;
        int64_t n_before = r->draft_stats.n_proposals;
        d->trial_credit_s = is_tried ? 1e9 : 0;
        r->time_credit_s = 1e9;
        assert_true(fr_engine_step(e, &err) >= 0);
        if (!is_tried) assert_int_equal(r->draft_stats.n_proposals, n_before);
        const DrafterClass *class = d->drafter->class;
        if (class->n_held && r->stats.n_generated > 0 && !r->finish) /* other requests take over nothing after a gap */
            assert_int_equal(class->n_held(d->drafter, r->sequence), 0);
    } while (!r->finish);
    assert_string_equal(r->draft_error, "");
    assert_true(r->draft_stats.n_proposals > 0);
    assert_int_equal(r->n_context, o->n_prompt + plain->n);
    assert_memory_equal(r->context + o->n_prompt, plain->tokens, (size_t)plain->n * sizeof(int32_t));
    assert_true(r->stats.logits_hash == plain->stats.logits_hash);
    fr_request_close(r);
}

/* A drafter with a layer proposes although it was not shown the prompt, and again after more tokens than it keeps. */
static void idle_layers_may_miss_tokens(void **state) {
    (void)state;
    static const char *const drafts[] = {"eagle:file=models/eagle.gguf", "lyanna:file=models/lyanna.gguf",
                                         "medusa:file=models/medusa.gguf"};
    static Stream plain;
    fr_model *model = rig_open_model("models/target.gguf", NULL);
    for (int i = 0; i < 3; i++) {
        fr_engine *e = rig_open_engine(
            model, &(fr_engine_options){.struct_size = sizeof(fr_engine_options), .n_threads = 1, .n_ctx = 160});
        fr_request_options o = request_of(NULL, 0);
        o.max_tokens = 44;
        rig_run_request(e, &o, &plain);
        fr_error err;
        assert_int_equal(fr_engine_measure_costs(e, &err), FR_OK);
        assert_int_equal(fr_engine_open_draft(e, drafts[i], &err), FR_OK);
        o.drafts = &drafts[i], o.n_drafts = 1;
        run_with_trials(e, &o, 0, &plain);
        run_with_trials(e, &o, 38, &plain);
        fr_engine_close(e);
    }
    fr_model_close(model);
}

/* A request that names no budget. */
static void the_budget_is_automatic_where_costs_are_known(void **state) {
    (void)state;
    static const char *const pld[] = {"pld"}, *const recycling[] = {"recycling"};
    fr_model *model = rig_open_model("models/draft.gguf", NULL);
    fr_engine *e = rig_open_engine(
        model, &(fr_engine_options){.struct_size = sizeof(fr_engine_options), .n_threads = 1, .n_ctx = 400});
    fr_error err;
    for (int measured = 0; measured < 2; measured++)
        for (int i = 0; i < 5; i++) {
            fr_request_options o = request_of(i == 4 ? recycling : pld, i != 1);
            if (i == 2) o.tree_budget = 8;
            if (i == 3) o.verify = "recursive"; /* its text depends on its trees */
            fr_request *r;
            if (measured) assert_int_equal(fr_engine_measure_costs(e, &err), FR_OK);
            assert_int_equal(fr_engine_open_draft(e, i == 4 ? "recycling" : "pld", &err), FR_OK);
            assert_int_equal(fr_request_open(&r, e, &o, &err), FR_OK);
            bool is_auto = measured && (i == 0 || i == 4);
            assert_int_equal(r->has_auto_budget, is_auto);
            assert_int_equal(r->tree_budget, is_auto ? FR_TREE_BUDGET_AUTO_MAX : FR_TREE_BUDGET);
            fr_request_close(r);
        }
    fr_engine_close(e);
    fr_model_close(model);
}

/* Returns how many nodes of a chain of DEPTH get rows beside prompts, of which n_prompt_rows fit into the gap. */
static int32_t n_taken(double max_gap_s, int32_t n_prompt_rows) {
    static const World w = {.t1_s = 20e-3, .slope = 0.1, .p_accept = 0.95f};
    static fr_engine e;
    static fr_request r;
    fr_request *one = &r;
    build(&e, &r, &w);
    e.options.max_gap_s = max_gap_s;
    tree_reset(&r.tree, RIGHT);
    r.time_credit_s = 1;
    propose(&r, 0, &w);
    draft_policy_allocate(&e, &one, 1, 1, n_prompt_rows);
    int32_t n = r.tree.n - 1;
    draft_policy_end(&r);
    return n;
}

/* A row takes 2 ms, and a step without drafts 20 ms. */
static void trees_keep_the_gap_that_was_set(void **state) {
    (void)state;
    assert_int_equal(n_taken(0, 0), DEPTH);
    assert_int_equal(n_taken(1, 0), DEPTH);
    assert_int_equal(n_taken(0.0241, 0), 2);
    assert_int_equal(n_taken(0.0201, 0), 0);
    assert_int_equal(n_taken(0.01, 0), 0); /* a step without drafts takes longer */
}

static void nodes_take_rows_from_prompts_only_if_they_bring_as_much(void **state) {
    (void)state;
    int32_t beside = n_taken(0.1, 10); /* 100 tokens of prompts in a second: a row is worth 0.3 tokens */
    assert_int_equal(n_taken(0, 35), DEPTH);
    assert_true(beside > 0);
    assert_true(n_taken(0.1, 35) < beside); /* 350 tokens: 0.84 tokens */
    assert_int_equal(n_taken(0.1, 50), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trees_keep_the_gap_that_was_set),
        cmocka_unit_test(nodes_take_rows_from_prompts_only_if_they_bring_as_much),
        cmocka_unit_test(little_is_lost_where_no_draft_is_right),
        cmocka_unit_test(a_fixed_budget_would_lose),
        cmocka_unit_test(what_is_right_is_taken),
        cmocka_unit_test(idle_drafters_are_used_again),
        cmocka_unit_test(prompts_are_shown_if_the_answer_repays_them),
        cmocka_unit_test(auto_is_lossless_and_is_counted),
        cmocka_unit_test(devils_may_have_automatic_budgets),
        cmocka_unit_test(idle_layers_may_miss_tokens),
        cmocka_unit_test(the_budget_is_automatic_where_costs_are_known),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

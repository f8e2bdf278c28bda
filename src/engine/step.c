/* step.c - one step of the engine, for all running requests together.
 *
 *     1 propose   each decoding request gets a token tree inside its budget
 *     2 pack      trees, further rows of drafters, and chunks of prompts become rows of one batch
 *     3 forward   the target reads all rows in one forward
 *     4 verify    a path of each tree is accepted, and one token of the target's own follows it
 *     5 commit    accepted rows stay in the KV cache, drafters observe them, and tokens go out
 *
 * Between steps a request keeps this invariant: its KV holds all of its context but the last token, the pending one.
 * The prompt is no exception: prefill runs all of it but the last token, which is the root of the first tree. So every
 * generated token comes from a decoding step.
 *
 * Verdicts of different requests do not depend on each other, so all trees are verified at once, on the threads of the
 * device. Commits (5) follow in the calling thread, request by request, from the oldest to the youngest.
 *
 * Nothing that a drafter does can change a token: trees are validated, and only the verification rule chooses tokens.
 * An error in one request (its context, its pages) ends that request and no other. */
#include "engine/step.h"

#include "base/system.h"
#include "engine/engine.h"
#include "engine/request.h"
#include "tree/tree.h"

/* Appends n rows to the batch. Their slots are claimed, and the caller fills them in. */
static Row *append_rows(fr_request *r, int32_t n) {
    fr_engine *e = r->engine;
    r->first_row = e->step.n_rows;
    r->n_step_rows = n;
    e->step.n_rows += n;
    return &e->step.rows[r->first_row];
}

/* Appends the planned rows of the request's context (prompts.c), if there are slots. Slots for the whole context are
 * claimed at once (kv_policy.c). */
static void pack_prompt(fr_request *r) {
    fr_engine *e = r->engine;
    int32_t done = executor_sequence_length(e->executor, r->sequence), whole = (int32_t)r->n_context - done,
            n = r->is_prefill_step ? r->n_step_rows : 0; /* 0: it has lost pages since the plan was made */
    r->is_prefill_step = true;
    r->n_step_rows = 0;
    if (n < 1 || e->step.n_rows + n > e->step.n_rows_max || !kv_policy_claim(r, n, n, whole - n)) return;
    Row *rows = append_rows(r, n);
    for (int32_t i = 0; i < n; i++)
        rows[i] = (Row){.token = r->context[done + i],
                        .sequence = r->sequence,
                        .parent = i ? r->first_row + i - 1 : -1,
                        .want_hidden = (r->needs_hidden || r->embedding.sum) && done + i >= r->n_read};
}

/* Returns how the token after a node of that depth is drawn. */
static RowDraw draw_at(const fr_request *r, int32_t depth) {
    return (RowDraw){.temperature = r->sampling.temperature,
                     .seed = r->sampling.seed,
                     .position = (uint64_t)(r->stats.n_generated + depth)};
}

/* Appends the request's tree, which is pruned if there are too few slots. A ratio rule needs whole trees, so the
 * request waits instead. */
static void pack_tree(fr_request *r) {
    fr_engine *e = r->engine;
    r->is_prefill_step = false;
    r->n_step_rows = 0;
    if (!request_grammar_is_ready(r)) return;
    int32_t n_wanted = r->tree.n + request_drafts_extra_room(r);
    if (e->step.n_rows + n_wanted > e->step.n_rows_max) return;
    int32_t n = kv_policy_claim(r, n_wanted, verify_rule_needs_its_trees(r->rule) ? n_wanted : 1, 0);
    if (n < 1) return;
    if (n < r->tree.n) union_prune(&r->tree, n - 1);
    Row *rows = append_rows(r, r->tree.n);
    for (int32_t i = 0; i < r->tree.n; i++)
        rows[i] = (Row){.token = r->tree.nodes[i].token,
                        .sequence = r->sequence,
                        .parent = i ? r->first_row + r->tree.nodes[i].parent : -1,
                        .want_logits = true,
                        .only_best = r->only_best,
                        .draw = draw_at(r, r->tree.nodes[i].depth)};
    r->n_step_rows += request_drafts_add_rows(r, n - r->tree.n, rows + r->tree.n);
    e->step.n_rows = r->first_row + r->n_step_rows;
}

/* Commits the rows of a piece of the context, and shows it to the drafters that read prompts. */
static void commit_prompt(fr_request *r) {
    fr_engine *e = r->engine;
    int32_t *rows = e->step.commit_rows, done = executor_sequence_length(e->executor, r->sequence),
            n_again = r->n_read - done;
    if (n_again < 0) n_again = 0;
    if (n_again > r->n_step_rows) n_again = r->n_step_rows;
    r->stats.n_recomputed += n_again;
    if (r->reads_prompt && n_again < r->n_step_rows) { /* tokens that are read again have already been shown */
        for (int32_t i = n_again; i < r->n_step_rows && r->needs_hidden; i++)
            e->step.row_hidden[r->first_row + i - n_again] = executor_hidden(e->executor, r->first_row + i);
        request_drafts_observe_prompt(r, done + n_again, r->n_step_rows - n_again);
    }
    for (int32_t i = n_again; i < r->n_step_rows && r->embedding.sum; i++)
        request_embedding_add(r, executor_hidden(e->executor, r->first_row + i));
    for (int32_t i = 0; i < r->n_step_rows; i++) rows[i] = r->first_row + i;
    executor_commit(e->executor, r->sequence, rows, r->n_step_rows);
    prompt_marks_set(r, done, done + r->n_step_rows);
}

/* Counts, for each depth that the path reached, whether the tree had a child there and whether one was accepted. */
static void count_depths(fr_draft_stats *s, const Tree *t, const VerifyResult *v) {
    for (int32_t depth = 1; depth <= v->n_path + 1 && depth <= FR_MAX_DEPTH; depth++) {
        int32_t parent = depth == 1 ? 0 : v->path[depth - 2];
        bool offered = false;
        for (int32_t i = parent + 1; i < t->n && !offered; i++) offered = t->nodes[i].parent == parent;
        s->offered_at[depth] += offered;
        s->accepted_at[depth] += depth <= v->n_path;
    }
}

/* Sets step.row_logits and step.row_hidden to the target's results at the nodes of the tree and at the rows after
 * it. */
static void read_results(const fr_request *r) {
    fr_engine *e = r->engine;
    for (int32_t i = r->first_row; i < r->first_row + r->n_step_rows; i++) {
        e->step.row_logits[i] = executor_logits(e->executor, i);
        e->step.row_hidden[i] = executor_hidden(e->executor, i);
    }
}

static int verify(const fr_request *r, VerifyScratch *scratch, VerifyResult *out, fr_error *err) {
    const fr_engine *e = r->engine;
    KeyedRandom random_source;
    random_keyed(&random_source, r->sampling.seed, (uint64_t)r->stats.n_generated);
    VerifyInput in = {.tree = &r->tree,
                      .logits = e->step.row_logits + r->first_row,
                      .n_vocab = e->model->model->hparams.n_vocab,
                      .sampling = &r->sampling,
                      .position = (uint64_t)r->stats.n_generated,
                      .context = r->context,
                      .n_context = r->n_context,
                      .random_source = &random_source.random_source,
                      .options = r->rule_options,
                      .masks = request_grammar_masks(r),
                      .forced = r->reasoning.n_end ? request_reasoning_forced : NULL,
                      .forced_user = r};
    return r->rule->verify(&in, scratch, out, err);
}

static void count_step(fr_request *r, const VerifyResult *v) {
    count_depths(&r->draft_stats, &r->tree, v);
    r->stats.n_steps++;
    r->stats.drafted += r->tree.n - 1;
    r->draft_stats.n_undrafted_steps += r->tree.n == 1;
}

/* Cuts the verdict before the first token whose row of logits is not finite: plain decoding fails at that row too,
 * after the same tokens. Rows of rejected nodes do not matter. Returns how many tokens are left. */
static int32_t cut_at_bad_logits(const fr_request *r, VerifyResult *v) {
    const float *const *logits = r->engine->step.row_logits + r->first_row;
    int32_t n = 0, node = 0;
    while (n <= v->n_path && r->engine->device->rows->is_finite(logits[node], r->engine->model->model->hparams.n_vocab))
        if (++n <= v->n_path) node = v->path[n - 1];
    if (n > 0 && n <= v->n_path) {
        v->n_path = n - 1;
        v->next_token = r->tree.nodes[v->path[n - 1]].token;
    }
    return n;
}

/* Finds the verdict of a request, which depends only on the request and the target's logits. */
static void find_verdict(fr_request *r, VerifyScratch *scratch) {
    double start_s = clock_s();
    Verdict *v = &r->verdict;
    v->status = request_grammar_enter(r, &v->error);
    if (!v->status) v->status = verify(r, scratch, &v->result, &v->error);
    if (!v->status) v->status = request_grammar_check(r, &v->result, &v->error);
    v->n_path = v->result.n_path;
    v->n_good = v->status ? 0 : cut_at_bad_logits(r, &v->result);
    if (v->n_good > 0) score_tokens(r, scratch->sampler);
    r->stats.verify_s += clock_s() - start_s;
}

/* Takes one request after the other, until none is left. */
static void verify_part(void *ctx, int i_part, int n_parts, int i_thread) {
    (void)n_parts, (void)i_thread;
    fr_engine *e = ctx;
    EngineStep *s = &e->step;
    for (int i; (i = atomic_fetch_add(&s->n_verified, 1)) < s->n_verifying;)
        find_verdict(s->verifying[i], e->scratch[i_part]);
}

/* Verifies the trees of all requests, on the threads of the device. */
static void verify_trees(fr_engine *e) {
    EngineStep *s = &e->step;
    s->n_verifying = 0;
    for (int i = 0; i < s->n_by_age; i++) {
        fr_request *r = s->decoding_first[i];
        if (r->finish || !r->n_step_rows || r->is_prefill_step) continue;
        read_results(r);
        s->verifying[s->n_verifying++] = r;
    }
    atomic_store(&s->n_verified, 0);
    int n_parts = s->n_verifying < e->n_scratch ? s->n_verifying : e->n_scratch;
    e->device->backend->run_parts(e->device, n_parts, verify_part, e);
}

static void fail_of_bad_logits(fr_request *r) {
    fr_error err;
    error_set(&err, FR_ERR_FORMAT,
              "the logits after %lld tokens of context (%lld generated) are NaN or infinite: the model's numbers "
              "overflow; its file is damaged, or its training or conversion went wrong",
              (long long)r->n_context, (long long)r->stats.n_generated);
    request_fail(r, &err);
}

/* Commits the pending token and the accepted path, and emits that path and the target's own token. */
static void commit_and_emit(fr_request *r) {
    fr_engine *e = r->engine;
    double start_s = clock_s();
    const Verdict *verdict = &r->verdict;
    const VerifyResult *v = &verdict->result;
    if (verdict->status == STATES_WAIT) { /* forgets the rows of this step */
        executor_commit(e->executor, r->sequence, NULL, 0);
        r->grammar.is_behind = true;
        return;
    }
    if (verdict->status) {
        request_fail(r, &verdict->error);
        return;
    }
    if (verdict->n_good == 0) {
        fail_of_bad_logits(r);
        return;
    }
    int32_t tokens[TREE_MAX_NODES], sources[TREE_MAX_NODES], *rows = e->step.commit_rows;
    rows[0] = r->first_row;
    for (int32_t i = 0; i < v->n_path; i++) {
        tokens[i] = r->tree.nodes[v->path[i]].token;
        sources[i] = r->tree.nodes[v->path[i]].source;
        rows[i + 1] = r->first_row + v->path[i];
    }
    tokens[v->n_path] = v->next_token;
    sources[v->n_path] = -1;
    if (r->embedding.sum) request_embedding_add(r, e->step.row_hidden[r->first_row]);
    executor_commit(e->executor, r->sequence, rows, v->n_path + 1);
    count_step(r, v);
    r->stats.verify_s += clock_s() - start_s;
    request_drafts_observe_tree(r, v);
    int64_t n_accepted = r->stats.accepted, n_before = r->stats.n_generated;
    request_emit(r, tokens, sources, v->n_path + 1);
    r->stats.plain_s += e->step.plain_s * (double)(r->stats.n_generated - n_before);
    request_drafts_count_tags(r, v, r->stats.accepted - n_accepted);
    if (verdict->n_good <= verdict->n_path && !r->finish) fail_of_bad_logits(r);
}

/* Returns how many drafted nodes a request's tree may have in this step: its budget, but no more than fit into its
 * context, its text and its share of the rows. The text of a ratio or lossy rule depends on its trees, which therefore
 * must not depend on other requests: such a request is not bounded by its share, and sits out the step if there are too
 * few rows. */
static int32_t step_budget(const fr_request *r, int n_running) {
    int64_t budget = r->tree_budget, useful = request_tokens_left(r) - 1;
    int64_t share = (r->engine->step.n_rows_max - r->engine->options.prefill_chunk) / n_running - 1;
    int64_t room = r->engine->options.n_ctx - r->n_context;
    if (useful <= 0) return 0;
    if (budget > share && !verify_rule_needs_its_trees(r->rule)) budget = share;
    if (budget > room) budget = room;
    return budget > 0 ? (int32_t)budget : 0;
}

/* Lists the running requests in step.decoding_first. Returns how many decode. */
static int list_decoding_first(fr_engine *e) {
    int n_decoding = 0, n = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < e->step.n_by_age; i++)
            if (request_is_prefilling(e->step.by_age[i]) == (pass == 1))
                e->step.decoding_first[n++] = e->step.by_age[i];
        if (pass == 0) n_decoding = n;
    }
    return n_decoding;
}

/* Ends the prefill of a request in its first decoding step. */
static void begin_decoding(fr_request *r) {
    if (r->decode_started_s > 0) return;
    r->decode_started_s = clock_s();
    r->stats.prefill_s = r->decode_started_s - r->started_s;
}

/* Estimates the time of the last forward without the rows that drafting added to it, from its measured time and the
 * ratio of their costs, so that a busy machine makes both slower. 0: the costs are not known. */
static double without_drafts(const fr_engine *e, int n_decoding, double spent_s) {
    int32_t n_rows = e->step.n_rows, n_plain = n_rows;
    if (e->policy.cost.n == 0) return 0;
    for (int i = 0; i < n_decoding; i++) {
        const fr_request *r = e->step.decoding_first[i];
        if (r->n_step_rows && !r->is_prefill_step) n_plain -= r->n_step_rows - 1;
    }
    return spent_s * cost_curve_at(&e->policy.cost, n_plain) / cost_curve_at(&e->policy.cost, n_rows);
}

/* Corrects the cost curve by the last forward. The curve knows the mean context of trees only, so what prompts read
 * counts as much longer as the forward was than expected. */
static void observe_cost(fr_engine *e, double spent_s) {
    CostCurve *cost = &e->policy.cost;
    cost_curve_observe(cost, e->step.n_rows, spent_s / prompt_expected_s(e) * cost_curve_at(cost, e->step.n_rows));
}

static int run_forward(fr_engine *e, int n_decoding, fr_error *err) {
    double start_s = clock_s();
    int status = executor_forward(e->executor, e->step.rows, e->step.n_rows, err);
    double spent_s = clock_s() - start_s;
    e->step.plain_s = without_drafts(e, n_decoding, spent_s);
    for (int i = 0; i < n_decoding; i++) e->step.decoding_first[i]->stats.forward_s += spent_s;
    if (e->policy.cost.n) observe_cost(e, spent_s);
    return status;
}

/* Gives drafted nodes their rows, beside those of the other trees and of prompts. */
static void allocate_rows(fr_engine *e, int n_decoding, int n_running) {
    int64_t n_tree = 0, n_prompt = 0;
    fr_request *const *r = e->step.decoding_first;
    for (int i = 0; i < n_decoding; i++) n_tree += r[i]->has_auto_budget ? 1 : r[i]->tree.n;
    for (int i = n_decoding; i < n_running; i++)
        n_prompt += r[i]->n_context - 1 - executor_sequence_length(e->executor, r[i]->sequence);
    int32_t most = prompt_rows(e, (int32_t)n_tree);
    if (n_prompt > most) n_prompt = most;
    draft_policy_allocate(e, r, n_decoding, (int32_t)n_tree, (int32_t)n_prompt);
}

/* Returns how many rows the trees of the decoding requests have. */
static int32_t n_tree_rows(const fr_engine *e, int n_decoding) {
    int32_t n = 0;
    for (int i = 0; i < n_decoding; i++) n += e->step.decoding_first[i]->tree.n;
    return n;
}

/* Divides the e->grammar_work units of work that all grammars may do in this step among the requests that have one. */
static void begin_grammars(fr_engine *e, int n_decoding) {
    int n = 0;
    for (int i = 0; i < n_decoding; i++) n += e->step.decoding_first[i]->grammar.text.grammar != NULL;
    for (int i = 0; i < n_decoding && n > 0; i++)
        request_grammar_begin_step(e->step.decoding_first[i], e->grammar_work / n + 1);
}

/* Steps 1 and 2: fills step.rows. Returns how many requests decode. */
static int propose_and_pack(fr_engine *e) {
    EngineStep *s = &e->step;
    int n_running = s->n_by_age, n_decoding = list_decoding_first(e);
    s->n_rows = 0;
    begin_grammars(e, n_decoding);
    for (int i = 0; i < n_decoding; i++) {
        fr_request *r = s->decoding_first[i];
        begin_decoding(r);
        r->step_budget = r->grammar.sits_out ? 0 : step_budget(r, n_running);
    }
    request_drafts_propose(e, s->decoding_first, n_decoding);
    allocate_rows(e, n_decoding, n_running);
    prompt_plan(e, n_tree_rows(e, n_decoding));
    /* Older requests first: a claim may take pages from a younger request, which then prefills again. */
    for (int i = 0; i < n_running; i++) {
        if (request_is_prefilling(s->by_age[i])) pack_prompt(s->by_age[i]);
        else pack_tree(s->by_age[i]);
    }
    return n_decoding;
}

static int run_step(fr_engine *e, fr_error *err) {
    EngineStep *s = &e->step;
    double start_s = clock_s();
    int ended = e->model->ranks ? comm_check(e->model->ranks->comm, err) : FR_OK;
    if (ended) return ended;
    request_queue_admit(e);
    kv_policy_begin_step(e);
    prefix_cache_share(e);
    int n_decoding = propose_and_pack(e), n_left = 0;
    if (s->n_rows > 0) {
        int status = run_forward(e, n_decoding, err);
        if (status) return status;
    }
    verify_trees(e);
    for (int i = 0; i < s->n_by_age; i++) {
        fr_request *r = s->decoding_first[i];
        if (r->grammar.status && !r->finish) request_fail(r, &r->grammar.error);
        if (r->finish || !r->n_step_rows) continue;
        if (r->is_prefill_step) commit_prompt(r);
        else commit_and_emit(r);
    }
    prompt_observe_step(e, clock_s() - start_s - e->step.catch_up_s);
    for (int i = 0; i < s->n_by_age; i++) n_left += !s->decoding_first[i]->finish;
    return n_left + e->n_queued;
}

int fr_engine_step(fr_engine *e, fr_error *err) {
    int status = engine_check_call(e, "fr_engine_step", err);
    if (status) return status;
    e->caller_env = fp_env_enter();
    int n_left = run_step(e, err);
    FpEnv caller_env = e->caller_env; /* a callback may have changed it */
    status = engine_end_step(e, err);
    fp_env_leave(&caller_env);
    return status ? status : n_left;
}

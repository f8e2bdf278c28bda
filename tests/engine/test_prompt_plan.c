/* test_prompt_plan.c - long prompts together with streams: in every step each stream gets its token, the prompts share
 * one chunk, a short prompt does not wait for the long ones, and the chunk fits into the gap that streams may have. The
 * test counts steps and rows, and gives the engine a cost curve of its own. */
#include "engine_rig.h"

#include "engine/engine.h"
#include "engine/request.h"
#include "random_model.h"

#include <math.h>
#include <string.h>

enum { N_CTX = 400, N_VOCAB = 300, CHUNK = 16, MOST = 8 };

static const char *const path = "build/prompt-plan.gguf", *const draft_model = "sps:model=build/prompt-plan.gguf";
static fr_model *model;
static int32_t prompts[MOST][N_CTX]; /* they differ from their first token on */

static int open_model(void **state) {
    (void)state;
    static const RandomModel random = {SMALL_LLAMA, .n_vocab = N_VOCAB, .seed = 7};
    fr_error err;
    if (random_model_write(&random, path, &err)) fail_msg("%s", err.message);
    model = rig_open_model(path, NULL);
    for (int p = 0; p < MOST; p++)
        for (int i = 0; i < N_CTX; i++) prompts[p][i] = 3 + (p * 71 + i * i * 37 + i) % (N_VOCAB - 3);
    return 0;
}

static int close_model(void **state) {
    (void)state;
    fr_model_close(model);
    return 0;
}

static fr_engine *open_engine(void) {
    return rig_open_engine(model, &(fr_engine_options){.struct_size = sizeof(fr_engine_options),
                                                       .n_threads = 1,
                                                       .n_ctx = N_CTX,
                                                       .max_requests = MOST,
                                                       .prefill_chunk = CHUNK});
}

static fr_request *open_request(fr_engine *e, int i, int n_prompt, const char *draft) {
    const fr_request_options o = {.struct_size = sizeof o,
                                  .prompt = prompts[i],
                                  .n_prompt = n_prompt,
                                  .sampling = fr_sampling_default(),
                                  .ignore_eos = 1,
                                  .drafts = &draft,
                                  .n_drafts = draft != NULL};
    fr_request *r;
    fr_error err;
    if (rig_open_request(&r, e, &o, &err)) fail_msg("%s", err.message);
    return r;
}

static void step(fr_engine *e) {
    fr_error err;
    if (fr_engine_step(e, &err) < 0) fail_msg("%s", err.message);
}

static int64_t generated(const fr_request *r) {
    fr_stats s = {.struct_size = sizeof s};
    fr_request_get_stats(r, &s);
    return s.n_generated;
}

static int32_t n_read(const fr_request *r) { return executor_sequence_length(r->engine->executor, r->sequence); }

static void streams_go_on_while_prompts_are_read(void **state) {
    (void)state;
    const char *const drafts[] = {NULL, "pld:n=1", draft_model};
    for (int d = 0; d < 3; d++) {
        fr_engine *e = open_engine();
        fr_request *streams[2], *readers[3];
        for (int i = 0; i < 2; i++) streams[i] = open_request(e, i, 4, drafts[d]);
        for (int i = 0; i < 3; i++) step(e);
        for (int i = 0; i < 3; i++) readers[i] = open_request(e, 2 + i, 201, drafts[d]);
        for (int n = 1; request_is_prefilling(readers[2]); n++) {
            int64_t before[2];
            int32_t n_before[3], sum = 0, n_reading = 0;
            for (int i = 0; i < 2; i++) before[i] = generated(streams[i]);
            for (int i = 0; i < 3; i++)
                n_before[i] = n_read(readers[i]), n_reading += request_is_prefilling(readers[i]);
            step(e);
            for (int i = 0; i < 2; i++) assert_true(generated(streams[i]) > before[i]);
            for (int i = 0; i < 3; i++) {
                if (n_before[i] >= 200) continue;
                sum += n_read(readers[i]) - n_before[i];
                assert_true(n_read(readers[i]) > n_before[i]); /* none of them waits */
            }
            assert_true(sum <= CHUNK);
            if (n_reading == 3) assert_int_equal(sum, CHUNK); /* and no part of the chunk is unused */
            assert_true(n < 60);
        }
        fr_engine_close(e);
    }
}

static void a_short_prompt_does_not_wait_for_long_ones(void **state) {
    (void)state;
    fr_engine *e = open_engine();
    for (int i = 0; i < 2; i++) open_request(e, i, 390, NULL);
    fr_request *r = open_request(e, 2, 9, NULL);
    for (int i = 0; i < 3; i++) step(e); /* 4 rows in each of the first two */
    assert_true(generated(r) > 0);
    fr_engine_close(e);
}

/* n requests with the same prompt: while the oldest reads, it gets the whole chunk. */
static void those_that_wait_leave_their_share(void **state) {
    (void)state;
    fr_engine *e = open_engine();
    fr_request *r[4];
    for (int i = 0; i < 4; i++) r[i] = open_request(e, 0, 161, NULL);
    for (int n = 1; n <= 10; n++) {
        step(e);
        assert_int_equal(n_read(r[0]), n * CHUNK);
    }
    step(e);
    for (int i = 0; i < 4; i++) assert_int_equal(generated(r[i]), 1);
    fr_engine_close(e);
}

/* Opening a request runs no forward of a draft model, and in a step the draft model reads no more of the prompt than
 * the target. */
static void a_draft_model_reads_in_chunks(void **state) {
    (void)state;
    fr_engine *e = open_engine();
    fr_request *r = open_request(e, 0, 201, draft_model);
    const Drafter *d = r->drafts[0].shared->drafter;
    assert_int_equal(d->class->n_held(d, r->sequence), 0);
    for (int n = 1; request_is_prefilling(r); n++) {
        step(e);
        assert_int_equal(d->class->n_held(d, r->sequence), n_read(r));
        assert_true(n_read(r) <= n * CHUNK);
    }
    fr_engine_close(e);
}

/* ---- the size of the chunk ---------------------------------------------------------------------------- */

/* 20 ms up to 4 rows, and 3 ms for each further row. */
static CostCurve slow_curve(void) {
    return (CostCurve){.n = 4, .rows = {1, 4, 8, 32}, .seconds = {0.020, 0.020, 0.032, 0.104}};
}

static void the_chunk_fits_into_the_gap(void **state) {
    (void)state;
    CostCurve cost = slow_curve(), keys = slow_curve(), flat = {.n = 2, .rows = {1, 32}, .seconds = {0.02, 0.02}};
    keys.key_s = 1e-6;
    static const ChunkInput base = {.n_tree_rows = 1, .most = 256};
    struct {
        ChunkInput change;
        const CostCurve *cost;
        int32_t want;
    } cases[] = {
        {{.max_gap_s = 0.1004}, &cost, 29},                  /* T(30) = 98 ms, T(31) = 101 ms */
        {{.max_gap_s = 0.0501}, &cost, 13},                  /* T(14) = 50 ms */
        {{.max_gap_s = 0}, &cost, 9},                        /* twice T(1): T(10) = 38 ms, T(11) = 41 ms */
        {{.max_gap_s = 0, .n_tree_rows = 16}, &cost, 18},    /* twice T(16) = 112 ms: T(34) = 110 ms */
        {{.max_gap_s = 0.001}, &cost, 8},                    /* the stream by itself takes longer */
        {{.max_gap_s = 0.0215}, &cost, 3},                   /* T(4) = 20 ms, T(5) = 23 ms */
        {{.max_gap_s = 0.0201, .n_tree_rows = 4}, &cost, 1}, /* T(5) = 23 ms: prompts advance */
        {{.max_gap_s = 0.001, .most = 3}, &cost, 3},         /* but no more than the chunk */
        {{.max_gap_s = INFINITY}, &cost, 256},               /* as without streams */
        {{.max_gap_s = 10}, &cost, 256},
        {{.max_gap_s = 0}, &flat, 256},                        /* rows that cost nothing are read */
        {{.max_gap_s = 0.1004, .prompt_ratio = 2}, &cost, 13}, /* steps take twice as long as forwards */
        {{.max_gap_s = 0.1004, .plain_ratio = 2}, &cost, 13},  /* the only ratio that is known */
        {{.max_gap_s = 0, .plain_ratio = 2, .prompt_ratio = 2}, &cost, 9},
        {{.max_gap_s = 0.1004, .n_read = 1000}, &keys, 22}, /* each row reads 1000 keys: 1 ms more */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ChunkInput in = cases[i].change;
        in.cost = cases[i].cost;
        if (!in.n_tree_rows) in.n_tree_rows = base.n_tree_rows;
        if (!in.most) in.most = base.most;
        int32_t got = prompt_chunk(&in);
        if (got != cases[i].want) fail_msg("case %zu: %d rows instead of %d", i, got, cases[i].want);
    }
}

/* The rows of a prompt that are read in a step, with a known curve and no measured time. */
static int32_t rows_of_step(fr_engine *e, const fr_request *r) {
    int32_t before = n_read(r);
    e->policy.cost = slow_curve();
    e->step.plain_ratio = e->step.prompt_ratio = 1;
    step(e);
    return n_read(r) - before;
}

static void prompts_leave_streams_their_gap(void **state) {
    (void)state;
    static const struct {
        double gap_s;
        int32_t beside_one, beside_two;
    } cases[] = {{0, 9, 8}, {0.0501, 13, 12}, {0.1004, 29, 28}, {INFINITY, 64, 64}};
    for (int i = 0; i < 4; i++) {
        fr_engine *e = rig_open_engine(model, &(fr_engine_options){.struct_size = sizeof(fr_engine_options),
                                                                   .n_threads = 1,
                                                                   .n_ctx = N_CTX,
                                                                   .max_requests = MOST,
                                                                   .max_gap_s = cases[i].gap_s,
                                                                   .prefill_chunk = 64});
        fr_request *reader = open_request(e, 2, 390, NULL), *streams[2];
        assert_int_equal(rows_of_step(e, reader), 64); /* no stream runs */
        streams[0] = open_request(e, 0, 1, NULL);
        assert_int_equal(rows_of_step(e, reader), cases[i].beside_one);
        assert_int_equal(rows_of_step(e, reader), cases[i].beside_one);
        streams[1] = open_request(e, 1, 1, NULL);
        assert_int_equal(rows_of_step(e, reader), cases[i].beside_two);
        for (int k = 0; k < 2; k++) fr_request_close(streams[k]);
        assert_int_equal(rows_of_step(e, reader), 64);
        fr_engine_close(e);
    }
}

/* Returns by what ratio a step beside a prompt of 300 tokens changes the costs. The forward takes about a millisecond;
 * the curve expects a tenth of one for its rows, and 20 ms for the context of the prompt. */
static double change_of_costs(void) {
    fr_engine *e = rig_open_engine(model, &(fr_engine_options){.struct_size = sizeof(fr_engine_options),
                                                               .n_threads = 1,
                                                               .n_ctx = N_CTX,
                                                               .max_requests = MOST,
                                                               .max_gap_s = 1,
                                                               .prefill_chunk = 64});
    fr_request *reader = open_request(e, 2, 390, NULL);
    while (n_read(reader) < 300) step(e);
    fr_request *stream = open_request(e, 0, 1, NULL);
    e->policy.cost = (CostCurve){.n = 2, .rows = {1, 64}, .seconds = {1e-6, 1e-6}, .key_s = 1e-6};
    int32_t before = n_read(reader);
    step(e);
    int32_t n = n_read(reader) - before;
    assert_int_equal(n, 64);
    CostCurve *now = &e->policy.cost, rows = *now;
    rows.n_context = 0;
    double keys = n * (before + 0.5 * n) + now->n_context, ratio = now->key_s / 1e-6;
    double wrong_s = prompt_expected_s(e) - cost_curve_at(&rows, n + 1) - now->key_s * keys;
    assert_true(wrong_s < 1e-9 && wrong_s > -1e-9);
    fr_request_close(stream);
    fr_request_close(reader);
    fr_engine_close(e);
    return ratio;
}

static void contexts_of_prompts_are_not_counted_as_rows(void **state) {
    (void)state;
    double ratio = 2;
    for (int i = 0; i < 5 && ratio > 1; i++) ratio = change_of_costs(); /* a forward may be disturbed */
    assert_true(ratio < 1);
}

/* ---- a draft model that has not read the prompt ------------------------------------------------------- */

static fr_engine *open_timed_engine(double gap_s) {
    fr_error err;
    fr_engine *e = rig_open_engine(model, &(fr_engine_options){.struct_size = sizeof(fr_engine_options),
                                                               .n_threads = 1,
                                                               .n_ctx = N_CTX,
                                                               .max_requests = MOST,
                                                               .max_gap_s = gap_s,
                                                               .prefill_chunk = 64});
    e->policy.cost = slow_curve(); /* with known costs budgets are automatic */
    assert_int_equal(fr_engine_open_draft(e, draft_model, &err), FR_OK);
    return e;
}

/* Makes the draft worth its while, and sets the times that steps and tokens of prompts are known to take. */
static void set_times(fr_engine *e, RequestDraft *d) {
    e->policy.cost = slow_curve();
    e->policy.tokens_per_s = 50;
    e->step.plain_ratio = e->step.prompt_ratio = 1;
    d->gain_s = d->shared->gain_s = 1;
    d->shared->proposal_s = 0.001;
    d->shared->prompt_token_s = 0.001;
}

/* Opens a request whose draft model is not shown its prompt of 201 tokens, and reads the prompt. */
static fr_request *open_unread(fr_engine *e) {
    fr_request *first = open_request(e, 1, 2, draft_model); /* the first prompt is always shown */
    while (request_is_prefilling(first)) step(e);
    fr_request_close(first);
    e->drafters[0].gain_s = e->drafters[0].start_credit_s = 0;
    fr_request *r = open_request(e, 0, 201, draft_model);
    while (request_is_prefilling(r)) step(e);
    assert_false(r->drafts[0].reads_prompt);
    return r;
}

static int32_t n_held(const fr_request *r) {
    const Drafter *d = r->drafts[0].shared->drafter;
    return d->class->n_held(d, r->drafts[0].sequence);
}

/* Beside another stream, or with a gap that the operator has set, a draft model reads in each step as many tokens as
 * fit into the gap, and proposes when it has read the context. With one stream and no such gap it reads all at once. */
static void a_draft_model_catches_up_in_pieces(void **state) {
    (void)state;
    static const struct {
        double gap_s;
        bool has_other;
        int32_t piece; /* a token of the context takes 1 ms */
    } cases[] = {
        {0, true, 20},       /* a step with one row of each stream takes 20 ms, and twice that is the gap */
        {0.0501, true, 30},  /* 30 ms are left of 50 */
        {0.0501, false, 30}, /* also for the request's own stream */
        {0.001, true, 8},    /* the streams by themselves take longer than the gap */
        {0, false, 0},       {INFINITY, true, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fr_engine *e = open_timed_engine(cases[i].gap_s);
        fr_request *r = open_unread(e), *other = cases[i].has_other ? open_request(e, 2, 1, NULL) : NULL;
        int32_t before = n_held(r);
        assert_int_equal(before, 0);
        for (int k = 0; k < 40 && !r->drafts[0].is_proposing; k++) {
            int64_t n_generated = generated(r);
            set_times(e, &r->drafts[0]);
            step(e);
            assert_true(generated(r) > n_generated);
            if (r->drafts[0].is_proposing) break;
            if (n_held(r) - before != cases[i].piece)
                fail_msg("case %zu: %d tokens instead of %d", i, n_held(r) - before, cases[i].piece);
            before = n_held(r);
        }
        assert_true(r->drafts[0].is_proposing);
        if (cases[i].piece) assert_true(before > 150);
        else assert_int_equal(before, 0);
        assert_string_equal(r->draft_error, "");
        if (other) fr_request_close(other);
        fr_request_close(r);
        fr_engine_close(e);
    }
}

static void a_draft_model_waits_while_prompts_are_read(void **state) {
    (void)state;
    fr_engine *e = open_timed_engine(0.0501);
    fr_request *r = open_unread(e), *reader = open_request(e, 3, 100, NULL);
    for (int k = 0; request_is_prefilling(reader) && k < 40; k++) {
        set_times(e, &r->drafts[0]);
        step(e);
        assert_int_equal(n_held(r), 0);
    }
    assert_false(request_is_prefilling(reader));
    set_times(e, &r->drafts[0]);
    step(e);
    assert_true(n_held(r) > 0);
    fr_engine_close(e);
}

/* The text is that of plain decoding while the draft model catches up and afterwards. */
static void catching_up_changes_no_token(void **state) {
    (void)state;
    static Stream plain;
    fr_engine *e = open_timed_engine(0.0501), *other = open_engine(); /* which shares no prompt with e */
    fr_request_options o = {.struct_size = sizeof o,
                            .prompt = prompts[0],
                            .n_prompt = 201,
                            .max_tokens = 60,
                            .sampling = fr_sampling_default(),
                            .ignore_eos = 1};
    rig_run_request(other, &o, &plain);
    fr_engine_close(other);
    fr_request *r = open_unread(e);
    int64_t n_proposals = 0;
    for (int k = 0; r->stats.n_generated < 60; k++) {
        set_times(e, &r->drafts[0]);
        step(e);
        n_proposals += r->drafts[0].is_proposing;
    }
    assert_true(n_proposals > 2 && r->stats.n_steps - n_proposals > 4);
    assert_memory_equal(r->context + 201, plain.tokens, 60 * sizeof(int32_t));
    fr_engine_close(e);
}

static void a_gap_is_a_number(void **state) {
    (void)state;
    static const double wrong[] = {-1, NAN, -INFINITY};
    for (int i = 0; i < 3; i++) {
        fr_engine *e;
        fr_error err;
        const fr_engine_options o = {.struct_size = sizeof o, .max_gap_s = wrong[i]};
        assert_int_equal(fr_engine_open(&e, model, &o, &err), FR_ERR_ARGUMENT);
        assert_non_null(strstr(err.message, "max_gap_s"));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(streams_go_on_while_prompts_are_read),
        cmocka_unit_test(a_short_prompt_does_not_wait_for_long_ones),
        cmocka_unit_test(those_that_wait_leave_their_share),
        cmocka_unit_test(a_draft_model_reads_in_chunks),
        cmocka_unit_test(the_chunk_fits_into_the_gap),
        cmocka_unit_test(prompts_leave_streams_their_gap),
        cmocka_unit_test(contexts_of_prompts_are_not_counted_as_rows),
        cmocka_unit_test(a_draft_model_catches_up_in_pieces),
        cmocka_unit_test(a_draft_model_waits_while_prompts_are_read),
        cmocka_unit_test(catching_up_changes_no_token),
        cmocka_unit_test(a_gap_is_a_number),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}

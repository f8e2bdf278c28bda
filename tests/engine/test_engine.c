/* test_engine.c - the engine through its public API: everything except losslessness (test_lossless.c). */
#include "engine_rig.h"

#include "engine/engine.h"
#include "engine/request.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const path = "models/draft.gguf"; /* small, but a real model */

typedef struct Fixture {
    fr_model *model;
    fr_engine *engine;
    int32_t *prompt;
    int64_t n_prompt;
} Fixture;

static Fixture fx;

static int open_fixture(void **state) {
    (void)state;
    fr_error err;
    fx.model = rig_open_model(path, NULL);
    fr_engine_options options = {.struct_size = sizeof options, .n_ctx = 256, .max_requests = 3};
    fx.engine = rig_open_engine(fx.model, &options);
    const char *text = "Once upon a time there was a little girl. She had a red ball. The little girl";
    if (fr_tokenize(fx.model, text, strlen(text), FR_TOKENIZE_PROMPT, &fx.prompt, &fx.n_prompt, &err))
        fail_msg("%s", err.message);
    return 0;
}

static int close_fixture(void **state) {
    (void)state;
    fr_free(fx.prompt);
    fr_engine_close(fx.engine);
    fr_model_close(fx.model);
    return 0;
}

static fr_request_options greedy(int64_t n) {
    return (fr_request_options){.struct_size = sizeof(fr_request_options),
                                .prompt = fx.prompt,
                                .n_prompt = fx.n_prompt,
                                .max_tokens = n,
                                .sampling = fr_sampling_default(),
                                .ignore_eos = 1};
}

/* ---- refusals ---------------------------------------------------------------------------------------- */

static void refuse(fr_request_options o, fr_code code, const char *fragment) {
    fr_error err;
    fr_request *r;
    int status = rig_open_request(&r, fx.engine, &o, &err); /* a draft is refused when it is opened */
    if (status != (int)code) fail_msg("status %d where %d was expected (%s)", status, code, fragment);
    assert_null(r);
    if (!strstr(err.message, fragment)) fail_msg("'%s' does not contain '%s'", err.message, fragment);
}

static void senseless_requests_are_refused_by_name(void **state) {
    (void)state;
    fr_request_options o = greedy(5);
    int32_t bad_tokens[] = {1, 99999}, long_prompt[300] = {0};
    const char *empty_stop[] = {""}, *unknown[] = {"teleport"}, *bad_key[] = {"ngram-trie:speed=9"}, *many[9];
    for (int i = 0; i < 9; i++) many[i] = "ngram-trie";
    o.n_prompt = 0, refuse(o, FR_ERR_ARGUMENT, "prompt is empty"), o = greedy(5);
    o.prompt = bad_tokens, o.n_prompt = 2, refuse(o, FR_ERR_ARGUMENT, "99999"), o = greedy(5);
    o.prompt = long_prompt, o.n_prompt = 300, refuse(o, FR_ERR_CONTEXT, "longer than the context of 256"),
    o = greedy(5);
    o.max_tokens = -1, refuse(o, FR_ERR_ARGUMENT, "max_tokens"), o = greedy(5);
    o.tree_budget = 5000, refuse(o, FR_ERR_ARGUMENT, "tree budget"), o = greedy(5);
    o.stops = empty_stop, o.n_stops = 1, refuse(o, FR_ERR_ARGUMENT, "empty string"), o = greedy(5);
    o.drafts = unknown, o.n_drafts = 1, refuse(o, FR_ERR_ARGUMENT, "teleport"), o = greedy(5);
    o.drafts = bad_key, o.n_drafts = 1, refuse(o, FR_ERR_ARGUMENT, "speed"), o = greedy(5);
    o.drafts = many, o.n_drafts = 9, refuse(o, FR_ERR_ARGUMENT, "9 drafts"), o = greedy(5);
    o.sampling.temperature = -1, refuse(o, FR_ERR_ARGUMENT, "temperature"), o = greedy(5);
    o.sampling.top_p = NAN, refuse(o, FR_ERR_ARGUMENT, "top_p");
}

/* Opening a request reads no file and measures nothing: everything that it needs must be open, or the error names the
 * remedy. */
static void requests_open_no_draft_and_measure_nothing(void **state) {
    (void)state;
    static const char *const pld[] = {"pld"}, *const automatic[] = {"auto"}, *const none[] = {"none"};
    fr_request *r;
    fr_error err;
    fr_engine *e = rig_open_engine(fx.model, NULL);
    fr_request_options o = greedy(5);
    o.drafts = none, o.n_drafts = 1;
    assert_int_equal(fr_request_open(&r, e, &o, &err), FR_OK);
    fr_request_close(r);
    o.drafts = pld;
    assert_int_equal(fr_request_open(&r, e, &o, &err), FR_ERR_ARGUMENT);
    assert_null(r);
    assert_non_null(
        strstr(err.message,
               "'pld' is not open in this engine: name it in fr_engine_options.drafts, or call fr_engine_open_draft"));
    assert_int_equal(fr_engine_open_draft(e, "pld", &err), FR_OK);
    assert_int_equal(fr_engine_open_draft(e, "pld", &err), FR_OK); /* opening it again is fine */
    assert_int_equal(fr_request_open(&r, e, &o, &err), FR_OK);
    fr_request_close(r);
    o.tree_budget = FR_TREE_BUDGET_AUTO;
    assert_int_equal(fr_request_open(&r, e, &o, &err), FR_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "fr_engine_measure_costs"));
    assert_int_equal(e->policy.cost.n, 0);
    assert_int_equal(fr_engine_measure_costs(e, &err), FR_OK);
    assert_int_equal(fr_request_open(&r, e, &o, &err), FR_OK);
    fr_request_close(r);
    o.drafts = automatic;
    assert_int_equal(fr_request_open(&r, e, &o, &err), FR_ERR_ARGUMENT);
    fr_engine_close(e);
    e = rig_open_engine(
        fx.model, &(fr_engine_options){.struct_size = sizeof(fr_engine_options), .drafts = automatic, .n_drafts = 1});
    assert_int_equal(fr_request_open(&r, e, &o, &err), FR_OK);
    fr_request_close(r);
    fr_engine_close(e);
    static const char *const unknown[] = {"pld", "teleport"};
    assert_int_equal(
        fr_engine_open(&e, fx.model,
                       &(fr_engine_options){.struct_size = sizeof(fr_engine_options), .drafts = unknown, .n_drafts = 2},
                       &err),
        FR_ERR_ARGUMENT);
    assert_null(e);
    assert_non_null(strstr(err.message, "teleport"));
}

/* With costs by which rows are free, a token of plain decoding takes as long as a step. */
static void plain_decoding_is_estimated_from_the_same_forwards(void **state) {
    (void)state;
    static const char *const pld[] = {"pld"};
    static Stream s;
    fr_engine *e = rig_open_engine(fx.model, NULL);
    fr_request_options o = greedy(40);
    for (int has_costs = 0; has_costs < 2; has_costs++)
        for (int n_drafts = 0; n_drafts < 2; n_drafts++) {
            if (has_costs) e->policy.cost = (CostCurve){.n = 1, .rows = {1}, .seconds = {1e-3}};
            o.drafts = pld, o.n_drafts = n_drafts, o.tree_budget = 8;
            rig_run_request(e, &o, &s);
            double rest_s = s.stats.decode_s - s.stats.forward_s - s.stats.draft_s;
            assert_int_equal(s.stats.drafted > 0, n_drafts);
            if (!has_costs || !n_drafts) assert_true(s.stats.plain_s <= 0);
            else if (s.stats.plain_s < s.stats.forward_s + rest_s || s.stats.plain_s > 9 * s.stats.forward_s + rest_s)
                fail_msg("plain_s %g, forward_s %g", s.stats.plain_s, s.stats.forward_s);
        }
    fr_engine_close(e);
}

/* "a+b" means the same as a and b as two drafts. */
static void a_plus_unites_drafts(void **state) {
    (void)state;
    static const char *const one[] = {"pld+suffix"}, *const two[] = {"pld", "suffix"}, *const mixed[] = {"auto+pld"};
    Stream plain, united, listed;
    fr_request *r;
    fr_error err;
    fr_request_options o = greedy(60);
    fr_engine *e = rig_open_engine(
        fx.model, &(fr_engine_options){.struct_size = sizeof(fr_engine_options), .drafts = one, .n_drafts = 1});
    rig_run_request(e, &o, &plain);
    o.drafts = one, o.n_drafts = 1;
    rig_run_request(e, &o, &united);
    rig_assert_same(&plain, &united, "pld+suffix");
    fr_engine_close(e);
    e = rig_open_engine(fx.model,
                        &(fr_engine_options){.struct_size = sizeof(fr_engine_options), .drafts = two, .n_drafts = 2});
    o.drafts = NULL, o.n_drafts = 0;
    rig_run_request(e, &o, &plain);
    o.drafts = two, o.n_drafts = 2;
    rig_run_request(e, &o, &listed);
    assert_int_equal(united.stats.drafted, listed.stats.drafted);
    assert_int_equal(united.stats.accepted, listed.stats.accepted);
    assert_true(united.stats.drafted > 0);
    o.drafts = mixed, o.n_drafts = 1;
    assert_int_equal(fr_request_open(&r, e, &o, &err), FR_ERR_ARGUMENT); /* a part of it is not open */
    assert_int_equal(fr_engine_open_draft(e, "auto+pld", &err), FR_OK);
    rig_run_request(e, &o, &united);
    rig_assert_same(&plain, &united, "auto+pld");
    fr_engine_close(e);
}

/* 32 drafts with one request each: there is no place for another draft until a request ends. */
static void a_draft_in_use_makes_no_room(void **state) {
    (void)state;
    fr_request *r[ENGINE_MAX_DRAFTERS];
    fr_error err;
    fr_engine *e = rig_open_engine(fx.model, &(fr_engine_options){.struct_size = sizeof(fr_engine_options),
                                                                  .n_ctx = 64,
                                                                  .max_requests = ENGINE_MAX_DRAFTERS});
    for (int i = 0; i < ENGINE_MAX_DRAFTERS; i++) {
        char spec[32];
        const char *draft = spec;
        snprintf(spec, sizeof spec, "ngram-trie:n=%d", 10 + i);
        fr_request_options o = greedy(5);
        o.drafts = &draft, o.n_drafts = 1;
        if (rig_open_request(&r[i], e, &o, &err)) fail_msg("%s", err.message);
    }
    assert_int_equal(fr_engine_open_draft(e, "pld", &err), FR_ERR_MEMORY);
    assert_non_null(strstr(err.message, "close a request"));
    fr_request_close(r[7]);
    assert_int_equal(fr_engine_open_draft(e, "pld", &err), FR_OK);
    for (int i = 0; i < ENGINE_MAX_DRAFTERS; i++)
        if (i != 7) fr_request_close(r[i]);
    fr_engine_close(e);
}

static void an_engine_holds_no_more_requests_than_it_has_places(void **state) {
    (void)state;
    fr_request *r[4];
    fr_error err;
    fr_request_options o = greedy(5);
    for (int i = 0; i < 3; i++) assert_int_equal(rig_open_request(&r[i], fx.engine, &o, &err), FR_OK);
    assert_int_equal(rig_open_request(&r[3], fx.engine, &o, &err), FR_ERR_MEMORY);
    for (int i = 0; i < 3; i++) fr_request_close(r[i]);
    assert_int_equal(rig_open_request(&r[0], fx.engine, &o, &err), FR_OK);
    fr_request_close(r[0]);
}

static void files_that_are_no_models_are_refused(void **state) {
    (void)state;
    fr_model *m;
    fr_error err;
    assert_int_equal(fr_model_open(&m, "no/such/file.gguf", NULL, &err), FR_ERR_IO);
    assert_non_null(strstr(err.message, "no/such/file.gguf"));
    assert_true(fr_model_open(&m, "README.md", NULL, &err) < 0);
    assert_null(m);
    fr_model_options options = {.struct_size = sizeof options, .kernels = "abacus"};
    assert_int_equal(fr_model_open(&m, path, &options, &err), FR_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "abacus"));
    options = (fr_model_options){.struct_size = sizeof(fr_model_options), .activations = "q4"};
    assert_int_equal(fr_model_open(&m, path, &options, &err), FR_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "q4"));
}

/* ---- the end of a text ------------------------------------------------------------------------------- */

static void max_tokens_is_kept_with_and_without_drafts(void **state) {
    (void)state;
    static Stream s;
    const char *draft = "ngram-trie";
    for (int n = 1; n <= 9; n += 4)
        for (int drafts = 0; drafts <= 1; drafts++) {
            fr_request_options o = greedy(n);
            o.drafts = &draft, o.n_drafts = drafts;
            rig_run_request(fx.engine, &o, &s);
            assert_int_equal(s.n, n);
            assert_int_equal(s.finish, FR_FINISH_LENGTH);
        }
}

static void a_full_context_ends_the_text(void **state) {
    (void)state;
    static Stream plain, drafted;
    const char *draft = "ngram-trie";
    fr_request_options o = greedy(0);
    rig_run_request(fx.engine, &o, &plain);
    assert_int_equal(plain.finish, FR_FINISH_CONTEXT);
    assert_int_equal(plain.n, 256 - fx.n_prompt);
    o.drafts = &draft, o.n_drafts = 1, o.tree_budget = 200;
    rig_run_request(fx.engine, &o, &drafted);
    rig_assert_same(&plain, &drafted, "until the context is full");
}

static void a_prompt_of_one_token_and_one_that_fills_the_context(void **state) {
    (void)state;
    static Stream s;
    int32_t full[256];
    for (int i = 0; i < 256; i++) full[i] = 300 + i % 7;
    fr_request_options o = greedy(4);
    o.n_prompt = 1;
    rig_run_request(fx.engine, &o, &s);
    assert_int_equal(s.n, 4);
    o.prompt = full, o.n_prompt = 255;
    rig_run_request(fx.engine, &o, &s);
    assert_int_equal(s.n, 1);
    assert_int_equal(s.finish, FR_FINISH_CONTEXT);
    o.n_prompt = 256;
    rig_run_request(fx.engine, &o, &s); /* the last token can still be chosen, but it cannot be read */
    assert_true(s.n <= 1);
}

static void an_end_of_text_token_ends_the_text(void **state) {
    (void)state;
    static Stream s;
    const char *text = "The end."; /* the target ends its text here */
    fr_request_options o = greedy(0);
    o.ignore_eos = 0;
    int32_t *tokens;
    fr_error err;
    fr_model *model = rig_open_model("models/target.gguf", NULL);
    fr_engine *engine = rig_open_engine(model, NULL);
    assert_int_equal(fr_tokenize(model, text, strlen(text), FR_TOKENIZE_PROMPT, &tokens, &o.n_prompt, &err), FR_OK);
    o.prompt = tokens;
    rig_run_request(engine, &o, &s);
    assert_int_equal(s.finish, FR_FINISH_EOS);
    assert_int_equal(s.tokens[s.n - 1], 2);
    assert_null(strstr(s.text, "</s>")); /* the end-of-text token has no text */
    fr_free(tokens);
    fr_engine_close(engine);
    fr_model_close(model);
}

static int gather_text(void *user, const fr_token_event *event) {
    assert_int_equal(strlen(event->text), event->n_bytes);
    strcat(user, event->text);
    return 0;
}

/* For every place of the plain text, tests a stop string that begins there: the text ends before its first occurrence,
 * and the callback received exactly that text. */
static void stop_strings_cut_the_text_exactly(void **state) {
    (void)state;
    static Stream plain, s, drafted;
    fr_request_options o = greedy(40);
    rig_run_request(fx.engine, &o, &plain);
    size_t n_text = strlen(plain.text);
    for (size_t at = 0; at + 6 < n_text; at += 3) {
        char stop[7] = {0}, seen[4096] = "";
        memcpy(stop, plain.text + at, 6);
        const char *stops[] = {"never said", stop}, *draft = "ngram-trie";
        o = greedy(40);
        o.stops = stops, o.n_stops = 2, o.on_token = gather_text, o.user = seen;
        rig_run_request(fx.engine, &o, &s);
        size_t expected = (size_t)(strstr(plain.text, stop) - plain.text);
        assert_int_equal(s.finish, FR_FINISH_STOP);
        assert_int_equal(strlen(s.text), expected);
        assert_memory_equal(s.text, plain.text, expected);
        assert_string_equal(seen, s.text);
        o.on_token = NULL, o.drafts = &draft, o.n_drafts = 1;
        rig_run_request(fx.engine, &o, &drafted);
        rig_assert_same(&s, &drafted, "with a stop string");
    }
}

static int cancel_third(void *user, const fr_token_event *event) {
    (void)event;
    return ++*(int *)user == 3;
}

static void a_callback_can_cancel(void **state) {
    (void)state;
    static Stream s;
    int n_seen = 0;
    fr_request_options o = greedy(20);
    o.on_token = cancel_third, o.user = &n_seen;
    rig_run_request(fx.engine, &o, &s);
    assert_int_equal(s.finish, FR_FINISH_CANCELLED);
    assert_int_equal(s.n, 3);
}

static void closing_a_running_request_affects_no_other(void **state) {
    (void)state;
    static Stream plain, s;
    fr_request_options o = greedy(20);
    fr_error err;
    rig_run_request(fx.engine, &o, &plain);
    fr_request *gone, *stays;
    assert_int_equal(rig_open_request(&gone, fx.engine, &o, &err), FR_OK);
    assert_int_equal(rig_open_request(&stays, fx.engine, &o, &err), FR_OK);
    for (int i = 0; i < 4; i++) assert_int_equal(fr_engine_step(fx.engine, &err), 2);
    fr_request_close(gone);
    while (fr_engine_step(fx.engine, &err) > 0) {}
    rig_collect(stays, &s);
    rig_assert_same(&plain, &s, "beside a closed one");
    fr_request_close(stays);
}

/* ---- information about a text ---------------------------------------------------------------------------- */

typedef struct Logprobs {
    double sum;
    int n;
} Logprobs;

static int add_logprob(void *user, const fr_token_event *event) {
    Logprobs *l = user;
    assert_true(event->logprob <= 0 && isfinite(event->logprob));
    l->sum += event->logprob;
    l->n++;
    return 0;
}

static void logprobs_are_the_same_with_drafts(void **state) {
    (void)state;
    static Stream s;
    Logprobs plain = {0, 0}, drafted = {0, 0};
    const char *draft = "ngram-trie";
    fr_request_options o = greedy(30);
    o.sampling.temperature = 0.9f, o.want_logprobs = 1, o.on_token = add_logprob, o.user = &plain;
    rig_run_request(fx.engine, &o, &s);
    o.drafts = &draft, o.n_drafts = 1, o.user = &drafted;
    rig_run_request(fx.engine, &o, &s);
    assert_int_equal(plain.n, 30);
    assert_true(plain.sum < 0);
    assert_true(plain.sum == drafted.sum);
}

static int keep_source(void *user, const fr_token_event *event) {
    *(int32_t *)user = event->source;
    return 0;
}

static void statistics_add_up(void **state) {
    (void)state;
    static Stream s;
    const char *draft = "ngram-trie";
    fr_request_options o = greedy(100);
    o.drafts = &draft, o.n_drafts = 1;
    int32_t last = -1; /* the draft that proposed the last token */
    o.on_token = keep_source, o.user = &last;
    rig_run_request(fx.engine, &o, &s);
    int64_t steps = 0, accepted = 0;
    for (int i = 0; i <= FR_MAX_DEPTH; i++) {
        steps += s.drafts.accept_histogram[i];
        accepted += i * s.drafts.accept_histogram[i];
        assert_true(s.drafts.accepted_at[i] <= s.drafts.offered_at[i]);
    }
    assert_int_equal(steps, s.stats.n_steps);
    assert_int_equal(accepted, s.stats.accepted);
    assert_int_equal(s.stats.n_generated, s.n);
    assert_true(s.stats.accepted <= s.stats.drafted);
    assert_int_equal(s.stats.n_prompt, fx.n_prompt);
    /* Each step gives one token of the target's own; if a draft's token ends the text, the target's token of the last
     * step would come after it. */
    assert_int_equal(s.stats.n_steps + s.stats.accepted, s.n + (last >= 0));
    assert_true(s.stats.accepted > 0); /* this small model repeats itself */
    assert_true(s.stats.decode_s > 0 && s.stats.forward_s > 0 && s.stats.forward_s <= s.stats.decode_s);
}

/* Drafters outlive the requests that opened them: they learn from one answer for the next. */
static void drafters_remember_earlier_requests(void **state) {
    (void)state;
    static Stream first, again;
    const char *draft = "suffix";
    fr_request_options o = greedy(60);
    o.sampling.temperature = 1, o.sampling.seed = 11, o.drafts = &draft, o.n_drafts = 1;
    fr_engine *engine = rig_open_engine(fx.model, NULL);
    rig_run_request(engine, &o, &first);
    rig_run_request(engine, &o, &again);
    rig_assert_same(&first, &again, "again");
    assert_true(again.stats.accepted > first.stats.accepted);
    char specs[ENGINE_MAX_DRAFTERS + 2][32]; /* more specs than places: unused drafters are closed */
    static Stream s;
    o.max_tokens = 2, o.drafts = &draft;
    for (int i = 0; i < ENGINE_MAX_DRAFTERS + 2; i++) {
        snprintf(specs[i], sizeof specs[i], "ngram-trie:n=%d", 10 + i);
        draft = specs[i];
        rig_run_request(engine, &o, &s);
    }
    fr_engine_close(engine);
}

static void seeds_matter_and_repeat(void **state) {
    (void)state;
    static Stream a, b, c;
    fr_request_options o = greedy(30);
    o.sampling.temperature = 1, o.sampling.seed = 1;
    rig_run_request(fx.engine, &o, &a);
    rig_run_request(fx.engine, &o, &b);
    rig_assert_same(&a, &b, "the same seed");
    o.sampling.seed = 2;
    rig_run_request(fx.engine, &o, &c);
    assert_true(a.n != c.n || memcmp(a.tokens, c.tokens, (size_t)a.n * sizeof(int32_t)) != 0);
}

static void text_goes_both_ways(void **state) {
    (void)state;
    fr_error err;
    const char *text = "The cat's h\xc3\xa9lmet \xf0\x9f\x98\x80 costs 12.50!\n";
    int32_t *tokens;
    int64_t n;
    char *back;
    size_t n_bytes;
    assert_int_equal(fr_tokenize(fx.model, text, strlen(text), FR_TOKENIZE_BOS, &tokens, &n, &err), FR_OK);
    assert_int_equal(fr_detokenize(fx.model, tokens, n, &back, &n_bytes, &err), FR_OK);
    assert_string_equal(back, text);
    fr_free(tokens);
    fr_free(back);
}

static void chat_prompts_follow_the_model(void **state) {
    (void)state;
    fr_error err;
    fr_chat_message messages[] = {{"user", "Hello"}};
    fr_chat_result r = {.struct_size = sizeof r};
    const fr_chat_options klingon = {.struct_size = sizeof klingon, .chat_template = "klingon"};
    assert_int_equal(fr_chat_apply(fx.model, messages, 1, NULL, &r, &err), FR_OK);
    assert_string_equal(r.text, "USER: Hello\nASSISTANT:");
    fr_chat_result_free(&r);
    assert_int_equal(fr_chat_apply(fx.model, messages, 1, &klingon, &r, &err), FR_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "klingon"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(senseless_requests_are_refused_by_name),
        cmocka_unit_test(a_plus_unites_drafts),
        cmocka_unit_test(requests_open_no_draft_and_measure_nothing),
        cmocka_unit_test(plain_decoding_is_estimated_from_the_same_forwards),
        cmocka_unit_test(a_draft_in_use_makes_no_room),
        cmocka_unit_test(an_engine_holds_no_more_requests_than_it_has_places),
        cmocka_unit_test(files_that_are_no_models_are_refused),
        cmocka_unit_test(max_tokens_is_kept_with_and_without_drafts),
        cmocka_unit_test(a_full_context_ends_the_text),
        cmocka_unit_test(a_prompt_of_one_token_and_one_that_fills_the_context),
        cmocka_unit_test(an_end_of_text_token_ends_the_text),
        cmocka_unit_test(stop_strings_cut_the_text_exactly),
        cmocka_unit_test(a_callback_can_cancel),
        cmocka_unit_test(closing_a_running_request_affects_no_other),
        cmocka_unit_test(logprobs_are_the_same_with_drafts),
        cmocka_unit_test(statistics_add_up),
        cmocka_unit_test(drafters_remember_earlier_requests),
        cmocka_unit_test(seeds_matter_and_repeat),
        cmocka_unit_test(text_goes_both_ways),
        cmocka_unit_test(chat_prompts_follow_the_model),
    };
    return cmocka_run_group_tests(tests, open_fixture, close_fixture);
}

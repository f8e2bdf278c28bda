/* test_misuse.c - mistakes of a program that calls the library: each is refused with its message, or has the effect
 * that forerun.h promises, and none crashes. */
#include "engine_rig.h"

#include "random_model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MODEL "build/misuse.gguf"
enum { N_VOCAB = 300 };

static fr_model *model;
static fr_engine *engine;
static fr_error err;
static const int32_t prompt[] = {1, 5, 9, 40, 41, 42};
static const char *const pld[] = {"pld"};
static const char *const with_null[] = {"pld", NULL};

static int open_all(void **state) {
    (void)state;
    const RandomModel m = {SMALL_LLAMA, .n_vocab = N_VOCAB, .seed = 3};
    if (random_model_write(&m, MODEL, &err)) fail_msg("%s", err.message);
    model = rig_open_model(MODEL, NULL);
    engine = rig_open_engine(model, &(fr_engine_options){.struct_size = sizeof(fr_engine_options),
                                                         .n_threads = 1,
                                                         .n_ctx = 128,
                                                         .max_requests = 4});
    return fr_engine_open_draft(engine, "pld", &err);
}

static int close_all(void **state) {
    (void)state;
    fr_engine_close(engine);
    fr_model_close(model);
    return 0;
}

static fr_request_options good_request(void) {
    return (fr_request_options){.struct_size = sizeof(fr_request_options),
                                .prompt = prompt,
                                .n_prompt = 6,
                                .max_tokens = 8,
                                .ignore_eos = 1,
                                .sampling = fr_sampling_default()};
}

/* ---- arguments ------------------------------------------------------------------------------------------ */

static int n_misuses;

/* Checks that the call failed with that code and that message, and filled in no result. */
static void refused_as(int status, fr_code code, const char *sentence, int line) {
    if (status != code || err.code != code || !strstr(err.message, sentence))
        fail_msg("line %d: %d, '%s' instead of %d, '%s'", line, status, err.message, code, sentence);
    err = (fr_error){0};
    n_misuses++;
}
#define refused(call, sentence) refused_as(call, FR_ERR_ARGUMENT, sentence, __LINE__)
#define refused_with(code, call, sentence) refused_as(call, code, sentence, __LINE__)

static void models(void **state) {
    (void)state;
    fr_model *m = (fr_model *)&m;
    refused(fr_model_open(NULL, MODEL, NULL, &err), "fr_model_open: out is NULL, but must be given");
    refused(fr_model_open(&m, NULL, NULL, &err), "fr_model_open: path is NULL, but must be given");
    assert_null(m);
    refused(
        fr_model_open(&m, MODEL, &(fr_model_options){.struct_size = sizeof(fr_model_options), .n_threads = -1}, &err),
        "n_threads is -1");
    refused(fr_model_open(&m, MODEL, &(fr_model_options){.struct_size = sizeof(fr_model_options), .backend = "abacus"},
                          &err),
            "abacus");
    refused(fr_model_open(&m, MODEL, &(fr_model_options){.struct_size = sizeof(fr_model_options), .kernels = "abacus"},
                          &err),
            "abacus");
    refused(fr_model_open(&m, MODEL, &(fr_model_options){.struct_size = sizeof(fr_model_options), .activations = "q4"},
                          &err),
            "there are no activations 'q4'");
    refused_with(FR_ERR_IO, fr_model_open(&m, "", NULL, &err), "");
    assert_int_equal(fr_model_open(NULL, NULL, NULL, NULL), FR_ERR_ARGUMENT); /* without an fr_error, too */
    fr_model_info info = {.struct_size = sizeof info, .n_vocab = 7};
    fr_model_get_info(NULL, &info);
    assert_int_equal(info.n_vocab, 0);
    fr_model_get_info(model, NULL);
    fr_model_close(NULL);
    fr_free(NULL);
}

static void texts(void **state) {
    (void)state;
    int32_t *tokens = (int32_t *)&tokens;
    int64_t n = 7;
    char *text = (char *)&text;
    size_t n_bytes = 7;
    uint64_t number;
    refused(fr_tokenize(model, "a", 1, 0, NULL, &n, &err), "fr_tokenize: tokens is NULL");
    refused(fr_tokenize(model, "a", 1, 0, &tokens, NULL, &err), "fr_tokenize: n_tokens is NULL");
    refused(fr_tokenize(NULL, "a", 1, 0, &tokens, &n, &err), "fr_tokenize: model is NULL");
    refused(fr_vocab_fingerprint(model, NULL, &err), "fr_vocab_fingerprint: out is NULL");
    refused(fr_vocab_fingerprint(NULL, &number, &err), "fr_vocab_fingerprint: model is NULL");
    refused(fr_tokenize(model, NULL, 1, 0, &tokens, &n, &err), "text is NULL, but should have 1 items");
    assert_null(tokens);
    assert_int_equal(n, 0);
    assert_int_equal(fr_tokenize(model, NULL, 0, 0, &tokens, &n, &err), FR_OK);
    fr_free(tokens);
    assert_string_equal(fr_token_piece(NULL, 1, 0, &n_bytes), "");
    assert_string_equal(fr_token_piece(model, -1, 1, &n_bytes), "");
    assert_string_equal(fr_token_piece(model, INT32_MAX, 0, NULL), "");
    refused(fr_detokenize(model, prompt, 6, NULL, &n_bytes, &err), "fr_detokenize: text is NULL");
    refused(fr_detokenize(model, prompt, 6, &text, NULL, &err), "fr_detokenize: n_bytes is NULL");
    refused(fr_detokenize(NULL, prompt, 6, &text, &n_bytes, &err), "fr_detokenize: model is NULL");
    refused(fr_detokenize(model, NULL, 6, &text, &n_bytes, &err), "tokens is NULL, but should have 6 items");
    refused(fr_detokenize(model, prompt, -1, &text, &n_bytes, &err), "n_tokens is -1");
    assert_null(text);
    const int32_t outside[] = {-1, N_VOCAB, INT32_MAX, INT32_MIN};
    assert_int_equal(fr_detokenize(model, outside, 4, &text, &n_bytes, &err), FR_OK); /* they have no text */
    assert_string_equal(text, "");
    fr_free(text);
}

static void chats(void **state) {
    (void)state;
    fr_chat_result r = {.struct_size = sizeof r};
    const fr_chat_message good = {"user", "hello"}, no_role = {NULL, "hello"}, no_content = {"user", NULL};
    const fr_chat_options cuneiform = {.struct_size = sizeof cuneiform, .chat_template = "cuneiform"};
    const fr_chat_options named = {.struct_size = sizeof named, .chat_template = "llama3"};
    refused(fr_chat_apply(model, &good, 1, &named, NULL, &err), "fr_chat_apply: out is NULL");
    refused(fr_chat_apply(NULL, &good, 1, &named, &r, &err), "fr_chat_apply: model is NULL");
    refused(fr_chat_apply(model, NULL, 1, &named, &r, &err), "messages is NULL");
    refused(fr_chat_apply(model, &good, -1, &named, &r, &err), "n_messages is -1");
    refused(fr_chat_apply(model, &no_role, 1, &named, &r, &err), "messages[0] has no role");
    refused(fr_chat_apply(model, &no_content, 1, &named, &r, &err), "messages[0] has no content");
    refused(fr_chat_apply(model, NULL, 0, &named, &r, &err), "no messages");
    refused_with(FR_ERR_UNSUPPORTED, fr_chat_apply(model, &good, 1, &cuneiform, &r, &err), "cuneiform");
    assert_null(r.text);
    assert_null(r.tokens);
    fr_chat_result_free(NULL);
    fr_chat_result_free(&r);
}

static void engines(void **state) {
    (void)state;
    fr_engine *e = (fr_engine *)&e;
    refused(fr_engine_open(NULL, model, NULL, &err), "fr_engine_open: out is NULL");
    refused(fr_engine_open(&e, NULL, NULL, &err), "fr_engine_open: model is NULL");
    assert_null(e);
    refused(
        fr_engine_open(&e, model, &(fr_engine_options){.struct_size = sizeof(fr_engine_options), .n_drafts = 1}, &err),
        "drafts is NULL");
    refused(
        fr_engine_open(&e, model, &(fr_engine_options){.struct_size = sizeof(fr_engine_options), .n_drafts = -1}, &err),
        "n_drafts is -1");
    refused(fr_engine_open(
                &e, model,
                &(fr_engine_options){.struct_size = sizeof(fr_engine_options), .drafts = with_null, .n_drafts = 2},
                &err),
            "drafts[1] is NULL");
    refused(fr_engine_open(&e, model, &(fr_engine_options){.struct_size = sizeof(fr_engine_options), .n_threads = -1},
                           &err),
            "n_threads is -1");
    refused(
        fr_engine_open(&e, model, &(fr_engine_options){.struct_size = sizeof(fr_engine_options), .n_ctx = -1}, &err),
        "n_ctx -1");
    refused(fr_engine_open(&e, model,
                           &(fr_engine_options){.struct_size = sizeof(fr_engine_options), .kv_type = (fr_kv_type)9},
                           &err),
            "no KV type 9");
    refused(fr_engine_open(&e, model, &(fr_engine_options){.struct_size = sizeof(fr_engine_options), .kv_tokens = -4},
                           &err),
            "kv_tokens -4");
    refused(fr_engine_open(&e, model, &(fr_engine_options){.struct_size = sizeof(fr_engine_options), .max_queued = -1},
                           &err),
            "max_queued -1");
    refused(fr_engine_open_draft(NULL, "pld", &err), "fr_engine_open_draft: engine is NULL");
    refused(fr_engine_open_draft(engine, NULL, &err), "fr_engine_open_draft: spec is NULL");
    refused(fr_engine_open_draft(engine, "", &err), "");
    refused(fr_engine_measure_costs(NULL, &err), "fr_engine_measure_costs: engine is NULL");
    void *data = &data;
    size_t n_bytes = 1;
    const int32_t token = 5;
    refused(fr_engine_save_prefix(NULL, &token, 1, &data, &n_bytes, &err), "fr_engine_save_prefix: engine is NULL");
    assert_true(data == NULL && n_bytes == 0);
    refused(fr_engine_save_prefix(engine, NULL, 1, &data, &n_bytes, &err), "fr_engine_save_prefix: tokens is NULL");
    refused(fr_engine_save_prefix(engine, &token, -1, &data, &n_bytes, &err), "n_tokens is -1");
    refused(fr_engine_save_prefix(engine, &token, 1, NULL, &n_bytes, &err), "fr_engine_save_prefix: data is NULL");
    refused(fr_engine_restore_prefix(NULL, &token, 4, NULL, NULL, &err), "fr_engine_restore_prefix: engine is NULL");
    refused(fr_engine_restore_prefix(engine, NULL, 4, NULL, NULL, &err), "fr_engine_restore_prefix: data is NULL");
    refused(fr_engine_forget_prefix(NULL, &token, 1, &err), "fr_engine_forget_prefix: engine is NULL");
    assert_int_equal(fr_engine_get_prefix(NULL, 0, NULL, NULL), 0);
    assert_int_equal(fr_engine_get_prefix(engine, -1, NULL, NULL), 0);
    refused(fr_engine_step(NULL, &err), "fr_engine_step: engine is NULL");
    fr_engine_close(NULL);
}

static int open_with(const fr_request_options *o) {
    fr_request *r = (fr_request *)&r;
    int status = fr_request_open(&r, engine, o, &err);
    if (status) assert_null(r);
    else fr_request_close(r);
    return status;
}
#define refused_request(sentence, ...) \
    do { \
        fr_request_options o = good_request(); \
        __VA_ARGS__; \
        refused(open_with(&o), sentence); \
    } while (0)

static void requests(void **state) {
    (void)state;
    fr_request *r;
    fr_request_options good = good_request();
    assert_int_equal(open_with(&good), FR_OK);
    refused(fr_request_open(NULL, engine, &good, &err), "fr_request_open: out is NULL");
    refused(fr_request_open(&r, NULL, &good, &err), "fr_request_open: engine is NULL");
    refused(fr_request_open(&r, engine, NULL, &err), "fr_request_open: options is NULL");
    refused_request("prompt is NULL, but should have 6 items", o.prompt = NULL);
    refused_request("n_prompt is -1", o.n_prompt = -1);
    refused_request("the prompt is empty", o.n_prompt = 0);
    static const int32_t outside[] = {1, N_VOCAB};
    refused_request("token 300 at index 1", o.prompt = outside, o.n_prompt = 2);
    refused_request("stops is NULL", o.n_stops = 1);
    refused_request("n_stops is -1", o.n_stops = -1);
    refused_request("stops[1] is NULL", o.stops = with_null, o.n_stops = 2);
    static const char *const empty[] = {""};
    refused_request("stops[0] is an empty string", o.stops = empty, o.n_stops = 1);
    refused_request("drafts is NULL", o.n_drafts = 1);
    refused_request("n_drafts is -1", o.n_drafts = -1);
    refused_request("drafts[1] is NULL", o.drafts = with_null, o.n_drafts = 2);
    refused_request("at most 8", o.drafts = pld, o.n_drafts = 9);
    refused_request("max_tokens", o.max_tokens = -1);
    refused_request("tree budget", o.tree_budget = -2);
    refused_request("tree budget", o.tree_budget = INT32_MAX);
    refused_request("temperature", o.sampling.temperature = NAN);
    refused_request("top_p", o.sampling.top_p = -1);
    refused_request("nonsense", o.verify = "nonsense");
    refused_request("not open", o.drafts = (const char *const[]){"suffix"}, o.n_drafts = 1);
}

static void getters_without_a_request(void **state) {
    (void)state;
    int64_t n = 7;
    size_t n_bytes = 7;
    fr_stats stats = {.struct_size = sizeof stats, .n_steps = 7};
    assert_int_equal(fr_request_finish_reason(NULL), FR_FINISH_ERROR);
    assert_int_equal(fr_request_error(NULL)->code, FR_ERR_ARGUMENT);
    assert_null(fr_request_tokens(NULL, &n));
    assert_int_equal(n, 0);
    assert_null(fr_request_tokens(NULL, NULL));
    assert_string_equal(fr_request_text(NULL, &n_bytes), "");
    assert_int_equal(n_bytes, 0);
    assert_string_equal(fr_request_text(NULL, NULL), "");
    fr_request_get_stats(NULL, &stats);
    fr_engine_stats counts = {.struct_size = sizeof counts, .n_running = 7};
    fr_engine_get_stats(NULL, &counts);
    assert_int_equal(counts.n_running, 0);
    fr_engine_get_stats(engine, NULL);
    assert_int_equal(stats.n_steps, 0);
    assert_int_equal(fr_request_tree(NULL, NULL, 0), 0);
    assert_null(fr_request_draft(NULL, 0));
    assert_true(fr_engine_forward_s(NULL, 1, 0) == 0);
    assert_true(fr_engine_forward_s(engine, 0, 0) == 0 && fr_engine_forward_s(engine, 1, -1) == 0);
    fr_request_close(NULL);
    assert_string_equal(fr_finish_name((fr_finish)-1), "unknown");
    assert_string_equal(fr_finish_name((fr_finish)99), "unknown");
    fr_request *r;
    fr_request_options o = good_request();
    assert_int_equal(fr_request_open(&r, engine, &o, &err), FR_OK);
    fr_request_get_stats(r, NULL);
    assert_int_equal(fr_request_tree(r, NULL, 5), 0);
    assert_null(fr_request_draft(r, 99));
    assert_non_null(fr_request_tokens(r, NULL));
    assert_string_equal(fr_request_text(r, NULL), "");
    fr_request_close(r);
}

static void the_list_is_long(void **state) {
    (void)state;
    assert_true(n_misuses >= 40);
}

/* ---- within callbacks ---------------------------------------------------------------------------------- */

typedef struct Caller {
    fr_engine *engine;
    fr_request *requests[2]; /* [0]: the request whose callback runs */
    int n_calls[2];
    int (*then)(struct Caller *c, int i); /* at the third token of each request */
} Caller;

static int on_token_of(Caller *c, int i) { return ++c->n_calls[i] == 3 ? c->then(c, i) : 0; }
static int on_first(void *user, const fr_token_event *event) { return event->token < 0 || on_token_of(user, 0); }
static int on_second(void *user, const fr_token_event *event) { return event->token < 0 || on_token_of(user, 1); }

/* Runs two requests in an engine of their own; their callbacks call `then`. */
static void begin(Caller *c, int (*then)(Caller *c, int i)) {
    *c = (Caller){.then = then};
    c->engine = rig_open_engine(model, &(fr_engine_options){.struct_size = sizeof(fr_engine_options),
                                                            .n_threads = 1,
                                                            .n_ctx = 128,
                                                            .max_requests = 3,
                                                            .drafts = pld,
                                                            .n_drafts = 1});
    for (int i = 0; i < 2; i++) {
        fr_request_options o = good_request();
        o.on_token = i ? on_second : on_first, o.user = c, o.drafts = pld, o.n_drafts = 1;
        if (fr_request_open(&c->requests[i], c->engine, &o, &err)) fail_msg("%s", err.message);
    }
}

static void run(const Caller *c) {
    int left;
    while ((left = fr_engine_step(c->engine, &err)) > 0) {}
    if (left < 0) fail_msg("%s", err.message);
}

static int read_everything(Caller *c, int i) {
    fr_request *r = c->requests[i], *opened;
    fr_request_options o = good_request();
    int64_t n;
    size_t n_bytes;
    fr_stats stats = {.struct_size = sizeof stats};
    int32_t *tokens;
    assert_true(fr_request_tokens(r, &n) && n == 3);
    assert_non_null(fr_request_text(r, &n_bytes));
    fr_request_get_stats(r, &stats);
    assert_int_equal(stats.n_generated, 3);
    assert_int_equal(fr_request_finish_reason(r), FR_FINISH_NONE);
    assert_int_equal(fr_tokenize(model, "a", 1, 0, &tokens, &n, &err), FR_OK);
    fr_free(tokens);
    refused(fr_engine_step(c->engine, &err), "fr_engine_step was called within on_token");
    refused(fr_engine_open_draft(c->engine, "pld", &err), "fr_engine_open_draft was called within on_token");
    refused(fr_engine_measure_costs(c->engine, &err), "fr_engine_measure_costs was called within on_token");
    refused(fr_engine_forget_prefix(c->engine, o.prompt, 1, &err), "fr_engine_forget_prefix was called within");
    refused(fr_engine_restore_prefix(c->engine, o.prompt, 4, NULL, NULL, &err), "was called within on_token");
    refused(fr_request_open(&opened, c->engine, &o, &err), "fr_request_open was called within on_token");
    assert_null(opened);
    assert_int_equal(fr_request_open(&opened, engine, &o, &err), FR_OK); /* another engine */
    while (fr_engine_step(engine, &err) > 0) {}
    assert_int_equal(fr_request_finish_reason(opened), FR_FINISH_LENGTH);
    fr_request_close(opened);
    return 0;
}

static void what_a_callback_may_do(void **state) {
    (void)state;
    Caller c;
    begin(&c, read_everything);
    run(&c);
    for (int i = 0; i < 2; i++) assert_int_equal(fr_request_finish_reason(c.requests[i]), FR_FINISH_LENGTH);
    fr_engine_close(c.engine); /* with its requests */
}

static int close_own(Caller *c, int i) {
    fr_request_close(c->requests[i]);
    fr_request_close(c->requests[i]); /* twice is fine, too */
    return 0;
}

static void a_callback_closes_its_request(void **state) {
    (void)state;
    Caller c;
    begin(&c, close_own);
    run(&c);
    for (int i = 0; i < 2; i++) assert_int_equal(c.n_calls[i], 3);
    fr_request *again[3]; /* their places are free */
    fr_request_options o = good_request();
    for (int i = 0; i < 3; i++) assert_int_equal(fr_request_open(&again[i], c.engine, &o, &err), FR_OK);
    run(&c);
    for (int i = 0; i < 3; i++) assert_int_equal(fr_request_finish_reason(again[i]), FR_FINISH_LENGTH);
    fr_engine_close(c.engine);
}

static int close_other(Caller *c, int i) {
    if (i == 0) {
        fr_request_close(c->requests[1]);
        assert_int_equal(fr_request_finish_reason(c->requests[1]), FR_FINISH_CANCELLED); /* until the step returns */
    }
    return 0;
}

static void a_callback_closes_another_request(void **state) {
    (void)state;
    Caller c;
    begin(&c, close_other);
    run(&c);
    assert_int_equal(fr_request_finish_reason(c.requests[0]), FR_FINISH_LENGTH);
    assert_true(c.n_calls[0] == 8 && c.n_calls[1] < 4);
    fr_request_close(c.requests[0]);
    fr_engine_close(c.engine);
}

static int close_engine(Caller *c, int i) {
    (void)i;
    fr_engine_close(c->engine);
    fr_engine_close(c->engine);
    return 0;
}

static void a_callback_closes_the_engine(void **state) {
    (void)state;
    Caller c;
    int left;
    begin(&c, close_engine);
    while ((left = fr_engine_step(c.engine, &err)) > 0) {}
    refused_with(FR_ERR_CANCELLED, left, "the engine was closed within on_token");
    assert_true(c.n_calls[0] == 3 && c.n_calls[1] < 4);
}

static void a_model_outlives_its_engines(void **state) {
    (void)state;
    fr_model *m = rig_open_model(MODEL, NULL);
    fr_engine *e = rig_open_engine(
        m, &(fr_engine_options){.struct_size = sizeof(fr_engine_options), .n_threads = 1, .n_ctx = 64});
    fr_model_close(m);
    fr_request *r;
    fr_request_options o = good_request();
    assert_int_equal(fr_request_open(&r, e, &o, &err), FR_OK);
    while (fr_engine_step(e, &err) > 0) {}
    assert_int_equal(fr_request_finish_reason(r), FR_FINISH_LENGTH);
    fr_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(models),
        cmocka_unit_test(texts),
        cmocka_unit_test(chats),
        cmocka_unit_test(engines),
        cmocka_unit_test(requests),
        cmocka_unit_test(getters_without_a_request),
        cmocka_unit_test(the_list_is_long),
        cmocka_unit_test(what_a_callback_may_do),
        cmocka_unit_test(a_callback_closes_its_request),
        cmocka_unit_test(a_callback_closes_another_request),
        cmocka_unit_test(a_callback_closes_the_engine),
        cmocka_unit_test(a_model_outlives_its_engines),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}

/* test_struct_size.c - structs of callers that are shorter or longer than the library's own, as in programs that were
 * compiled with an older or a newer header. tests/api_0 runs a whole program with an older header. */
#include "engine_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODEL "models/target.gguf"
#define CANARY 0xa5 /* the value of every byte that the library must not use */

static fr_model *model;
static fr_engine *engine;
static fr_error err;
static const int32_t prompt[] = {1, 300, 301, 302};

static int open_all(void **state) {
    (void)state;
    model = rig_open_model(MODEL, NULL);
    engine = rig_open_engine(model, &(fr_engine_options){.struct_size = sizeof(fr_engine_options), .n_ctx = 64});
    return 0;
}

static int close_all(void **state) {
    (void)state;
    fr_engine_close(engine);
    fr_model_close(model);
    return 0;
}

/* A struct of a caller, with room for fields that this version does not know. */
typedef union Caller {
    size_t struct_size;
    fr_model_options model_options;
    fr_engine_options engine_options;
    fr_chat_options chat_options;
    fr_request_options request_options;
    fr_model_info info;
    fr_engine_stats engine_stats;
    fr_stats stats;
    fr_draft_stats draft_stats;
    fr_chat_result chat_result;
    unsigned char bytes[8192];
} Caller;

/* ---- options ------------------------------------------------------------------------------------------ */

static int open_model(const Caller *c) {
    fr_model *m;
    int status = fr_model_open(&m, MODEL, &c->model_options, &err);
    fr_model_close(m);
    return status;
}

static int open_engine(const Caller *c) {
    fr_engine *e;
    int status = fr_engine_open(&e, model, &c->engine_options, &err);
    fr_engine_close(e);
    return status;
}

static int apply_template(const Caller *c) {
    const fr_chat_message m = {"user", "Hello"};
    fr_chat_result r = {.struct_size = sizeof r};
    int status = fr_chat_apply(model, &m, 1, &c->chat_options, &r, &err);
    fr_chat_result_free(&r);
    return status;
}

static int open_request(const Caller *c) {
    fr_request *r;
    int status = fr_request_open(&r, engine, &c->request_options, &err);
    fr_request_close(r);
    return status;
}

/* For each struct of options: its size, and the number of its first bytes that an older header might have had. */
static const struct {
    const char *name;
    size_t size, shorter;
    int (*call)(const Caller *c);
} options[] = {
    {"fr_model_options", sizeof(fr_model_options), offsetof(fr_model_options, n_threads), open_model},
    {"fr_engine_options", sizeof(fr_engine_options), offsetof(fr_engine_options, kv_page_size), open_engine},
    {"fr_chat_options", sizeof(fr_chat_options), offsetof(fr_chat_options, messages), apply_template},
    {"fr_request_options", sizeof(fr_request_options), offsetof(fr_request_options, stops), open_request},
};
enum { N_OPTIONS = sizeof options / sizeof *options };

/* Valid options of `n` bytes, followed by canaries. */
static Caller good_options(int i, size_t n) {
    Caller c;
    memset(&c, 0, sizeof c);
    if (options[i].call == open_request) {
        c.request_options.prompt = prompt;
        c.request_options.n_prompt = 4;
        c.request_options.sampling = fr_sampling_default();
    }
    memset(c.bytes + n, CANARY, sizeof c - n);
    c.struct_size = n;
    return c;
}

static void options_may_be_shorter(void **state) {
    (void)state;
    for (int i = 0; i < N_OPTIONS; i++) {
        Caller c = good_options(i, options[i].shorter);
        if (options[i].call(&c)) fail_msg("%s: %s", options[i].name, err.message);
    }
    Caller c = good_options(1, options[1].shorter);
    c.struct_size = options[1].size; /* the canaries are not valid options of an engine */
    assert_int_equal(open_engine(&c), FR_ERR_ARGUMENT);
}

static void options_may_be_longer(void **state) {
    (void)state;
    for (int i = 0; i < N_OPTIONS; i++) {
        size_t n = options[i].size + 64;
        Caller c = good_options(i, n);
        if (options[i].call(&c)) fail_msg("%s: %s", options[i].name, err.message);
        c.bytes[n - 1] = 1;
        assert_int_equal(options[i].call(&c), FR_ERR_UNSUPPORTED);
        assert_non_null(strstr(err.message, options[i].name));
    }
}

static void a_size_must_be_set(void **state) {
    (void)state;
    static const size_t wrong[] = {0, 1, sizeof(size_t) - 1, (size_t)1 << 40, SIZE_MAX};
    for (int i = 0; i < N_OPTIONS; i++)
        for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
            char sentence[100];
            Caller c = good_options(i, options[i].size);
            c.struct_size = wrong[k];
            assert_int_equal(options[i].call(&c), FR_ERR_ARGUMENT);
            snprintf(sentence, sizeof sentence, "struct_size is %zu; set it to sizeof(%s)", wrong[k], options[i].name);
            if (!strstr(err.message, sentence)) fail_msg("'%s', but: %s", sentence, err.message);
        }
}

/* ---- results ------------------------------------------------------------------------------------------- */

static fr_request *request; /* that has ended */

static int get_info(Caller *c) { return fr_model_get_info(model, &c->info); }
static int get_options(Caller *c) { return fr_engine_get_options(engine, &c->engine_options); }
static int get_engine_stats(Caller *c) { return fr_engine_get_stats(engine, &c->engine_stats); }
static int get_stats(Caller *c) { return fr_request_get_stats(request, &c->stats); }
static int get_draft_stats(Caller *c) { return fr_request_get_draft_stats(request, &c->draft_stats); }

static const struct {
    const char *name;
    size_t size, shorter;
    int (*call)(Caller *c);
} results[] = {
    {"fr_model_info", sizeof(fr_model_info), offsetof(fr_model_info, n_vocab), get_info},
    {"fr_engine_options", sizeof(fr_engine_options), offsetof(fr_engine_options, kv_tokens), get_options},
    {"fr_engine_stats", sizeof(fr_engine_stats), offsetof(fr_engine_stats, kv_tokens_running), get_engine_stats},
    {"fr_stats", sizeof(fr_stats), offsetof(fr_stats, queue_s), get_stats},
    {"fr_draft_stats", sizeof(fr_draft_stats), offsetof(fr_draft_stats, offered_at), get_draft_stats},
};
enum { N_RESULTS = sizeof results / sizeof *results };

static Caller canaries(size_t n) {
    Caller c;
    memset(&c, CANARY, sizeof c);
    c.struct_size = n;
    return c;
}

static void results_may_be_shorter_or_longer(void **state) {
    (void)state;
    const fr_request_options o = {.struct_size = sizeof o,
                                  .prompt = prompt,
                                  .n_prompt = 4,
                                  .max_tokens = 4,
                                  .sampling = fr_sampling_default()};
    assert_int_equal(fr_request_open(&request, engine, &o, &err), FR_OK);
    while (fr_engine_step(engine, &err) > 0) {}
    for (int i = 0; i < N_RESULTS; i++) {
        Caller whole = canaries(results[i].size), shorter = canaries(results[i].shorter),
               longer = canaries(results[i].size + 64);
        assert_int_equal(results[i].call(&whole), FR_OK);
        assert_int_equal(results[i].call(&shorter), FR_OK);
        assert_int_equal(results[i].call(&longer), FR_OK);
        size_t first = sizeof(size_t);
        assert_memory_equal(shorter.bytes + first, whole.bytes + first, results[i].shorter - first);
        assert_memory_equal(longer.bytes + first, whole.bytes + first, results[i].size - first);
        for (size_t k = results[i].shorter; k < sizeof shorter; k++) assert_int_equal(shorter.bytes[k], CANARY);
        for (size_t k = results[i].size; k < results[i].size + 64; k++) assert_int_equal(longer.bytes[k], 0);
        for (size_t k = results[i].size + 64; k < sizeof longer; k++) assert_int_equal(longer.bytes[k], CANARY);
        assert_int_equal(longer.struct_size, results[i].size + 64); /* it can be used again */
        Caller unset = canaries(0);
        assert_int_equal(results[i].call(&unset), FR_ERR_ARGUMENT);
        for (size_t k = first; k < sizeof unset; k++) assert_int_equal(unset.bytes[k], CANARY);
    }
    fr_request_close(request);
}

static void a_conversation_may_have_a_longer_result(void **state) {
    (void)state;
    const fr_chat_message m = {"user", "Hello"};
    Caller c = canaries(sizeof(fr_chat_result) + 64);
    assert_int_equal(fr_chat_apply(model, &m, 1, NULL, &c.chat_result, &err), FR_OK);
    assert_string_equal(c.chat_result.text, "USER: Hello\nASSISTANT:");
    for (size_t k = sizeof(fr_chat_result); k < sizeof(fr_chat_result) + 64; k++) assert_int_equal(c.bytes[k], 0);
    fr_chat_result_free(&c.chat_result);
    assert_null(c.chat_result.text);
    c.struct_size = 0;
    assert_int_equal(fr_chat_apply(model, &m, 1, NULL, &c.chat_result, &err), FR_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "sizeof(fr_chat_result)"));
}

/* ---- the header ----------------------------------------------------------------------------------------- */

static void the_header_has_the_version_of_the_makefile(void **state) {
    (void)state;
    char version[40];
    snprintf(version, sizeof version, "%d.%d.%d", FR_VERSION_MAJOR, FR_VERSION_MINOR, FR_VERSION_PATCH);
    assert_string_equal(version, FORERUN_VERSION);
    assert_string_equal(fr_version(), FORERUN_VERSION);
}

/* Bytes that an older program left in the padding at the end of its struct would be read as a field that is added
 * there. */
#define ENDS_WITH(type, field) \
    _Static_assert(offsetof(type, field) + sizeof(((type *)0)->field) == sizeof(type), #type " ends with padding")
ENDS_WITH(fr_model_options, n_ranks);
ENDS_WITH(fr_chat_options, variables);
ENDS_WITH(fr_engine_options, max_gap_s);
ENDS_WITH(fr_request_options, no_logits_hash);

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_may_be_shorter),
        cmocka_unit_test(options_may_be_longer),
        cmocka_unit_test(a_size_must_be_set),
        cmocka_unit_test(results_may_be_shorter_or_longer),
        cmocka_unit_test(a_conversation_may_have_a_longer_result),
        cmocka_unit_test(the_header_has_the_version_of_the_makefile),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}

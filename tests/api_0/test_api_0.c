/* test_api_0.c - a program that was compiled with the header of version 0.1 runs with today's library.
 *
 * The forerun.h of this folder is a copy that never changes, and this program includes no other. It is linked with
 * libforerun.so, which exports only the functions of the API. tests/bindings/test_python.py checks that today's header
 * has every struct of this one, with the same fields at the same places. */
#include "forerun.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

#define MODEL "models/target.gguf"
#define PROMPT "Once upon a time"

static fr_model *model;
static fr_engine *engine;
static fr_error err;

/* Every function of version 0.1. A library that lacks one cannot be linked or loaded. */
typedef void (*Function)(void);
static const Function functions[] = {
    (Function)fr_version,
    (Function)fr_free,
    (Function)fr_model_open,
    (Function)fr_model_close,
    (Function)fr_model_get_info,
    (Function)fr_model_fingerprint,
    (Function)fr_model_recommended_sampling,
    (Function)fr_tokenize,
    (Function)fr_detokenize,
    (Function)fr_token_piece,
    (Function)fr_token_is_special,
    (Function)fr_chat_apply,
    (Function)fr_chat_result_free,
    (Function)fr_grammar_open,
    (Function)fr_grammar_open_stoppable,
    (Function)fr_grammar_close,
    (Function)fr_grammar_notice,
    (Function)fr_grammar_bytes,
    (Function)fr_engine_open,
    (Function)fr_engine_close,
    (Function)fr_engine_get_options,
    (Function)fr_engine_open_draft,
    (Function)fr_engine_measure_costs,
    (Function)fr_engine_forward_s,
    (Function)fr_engine_step,
    (Function)fr_engine_get_stats,
    (Function)fr_sampling_default,
    (Function)fr_request_open,
    (Function)fr_request_close,
    (Function)fr_request_finish_reason,
    (Function)fr_finish_name,
    (Function)fr_request_error,
    (Function)fr_request_tokens,
    (Function)fr_request_text,
    (Function)fr_request_get_stats,
    (Function)fr_request_get_draft_stats,
    (Function)fr_request_draft_error,
    (Function)fr_request_embedding,
    (Function)fr_request_tree,
    (Function)fr_request_draft,
};

static int open_all(void **state) {
    (void)state;
    const char *const drafts[] = {"ngram-trie"};
    const fr_model_options of_model = {.struct_size = sizeof of_model, .activations = "q16", .n_threads = 1};
    const fr_engine_options of_engine = {.struct_size = sizeof of_engine,
                                         .n_threads = 1,
                                         .n_ctx = 256,
                                         .max_requests = 2,
                                         .n_drafts = 1,
                                         .drafts = drafts};
    if (fr_model_open(&model, MODEL, &of_model, &err)) return -1;
    return fr_engine_open(&engine, model, &of_engine, &err);
}

static int close_all(void **state) {
    (void)state;
    fr_engine_close(engine);
    fr_model_close(model);
    return 0;
}

static void the_library_has_every_function(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) assert_non_null(functions[i]);
}

static void results_are_filled(void **state) {
    (void)state;
    fr_model_info info = {.struct_size = sizeof info};
    fr_engine_options options = {.struct_size = sizeof options};
    fr_engine_stats stats = {.struct_size = sizeof stats};
    assert_int_equal(fr_model_get_info(model, &info), FR_OK);
    assert_string_equal(info.architecture, "llama");
    assert_string_equal(info.activations, "q16");
    assert_int_equal(info.n_vocab, 4096);
    assert_null(info.packed_error);
    assert_int_equal(fr_engine_get_options(engine, &options), FR_OK);
    assert_int_equal(options.n_ctx, 256);
    assert_int_equal(options.kv_page_size, 16); /* the default */
    assert_null(options.drafts);
    assert_int_equal(fr_engine_get_stats(engine, &stats), FR_OK);
    assert_true(stats.kv_tokens >= 512 && stats.kv_bytes > 0);
}

typedef struct Heard {
    char text[2000];
    size_t n_bytes;
    int n, n_drafted;
} Heard;

static int hear(void *user, const fr_token_event *event) {
    Heard *h = user;
    assert_true(event->struct_size >= sizeof *event);
    assert_true(h->n_bytes + event->n_bytes < sizeof h->text);
    memcpy(h->text + h->n_bytes, event->text, event->n_bytes);
    h->n_bytes += event->n_bytes;
    h->n++;
    h->n_drafted += event->source >= 0;
    assert_int_equal(event->n_top_logprobs, 3);
    assert_true(event->logprob <= event->top_logprobs[0].logprob);
    return 0;
}

static void generate(const char *const *drafts, int n_drafts, const fr_grammar *grammar, Heard *out) {
    int32_t *prompt;
    int64_t n_prompt, n;
    size_t n_bytes;
    int left;
    fr_request *r;
    memset(out, 0, sizeof *out);
    assert_int_equal(fr_tokenize(model, PROMPT, strlen(PROMPT), FR_TOKENIZE_PROMPT, &prompt, &n_prompt, &err), FR_OK);
    const fr_request_options o = {.struct_size = sizeof o,
                                  .prompt = prompt,
                                  .n_prompt = n_prompt,
                                  .max_tokens = 40,
                                  .sampling = fr_sampling_default(),
                                  .drafts = drafts,
                                  .n_drafts = n_drafts,
                                  .tree_budget = 8,
                                  .grammar = grammar,
                                  .n_top_logprobs = 3,
                                  .on_token = hear,
                                  .user = out};
    if (fr_request_open(&r, engine, &o, &err)) fail_msg("%s", err.message);
    fr_free(prompt);
    while ((left = fr_engine_step(engine, &err)) > 0) {}
    assert_int_equal(left, 0);
    fr_stats s = {.struct_size = sizeof s};
    fr_draft_stats d = {.struct_size = sizeof d};
    assert_int_equal(fr_request_get_stats(r, &s), FR_OK);
    assert_int_equal(fr_request_get_draft_stats(r, &d), FR_OK);
    assert_int_equal(s.n_prompt, n_prompt);
    assert_int_equal(s.n_generated, out->n);
    assert_int_equal(s.accepted, out->n_drafted);
    assert_true(s.logits_hash != 0 && s.n_steps <= s.n_generated);
    assert_int_equal(d.n_proposals > 0, s.drafted > 0);
    assert_true(d.n_undrafted_steps <= s.n_steps);
    assert_string_equal(fr_request_draft_error(r), "");
    assert_string_equal(fr_request_text(r, &n_bytes), out->text);
    assert_non_null(fr_request_tokens(r, &n));
    assert_int_equal(n, out->n);
    fr_request_close(r);
}

static void a_draft_changes_no_text(void **state) {
    (void)state;
    static Heard plain, drafted;
    const char *const drafts[] = {"ngram-trie"};
    generate(NULL, 0, NULL, &plain);
    generate(drafts, 1, NULL, &drafted);
    assert_int_equal(plain.n, 40);
    assert_string_equal(drafted.text, plain.text);
    assert_int_equal(plain.n_drafted, 0);
}

static void a_grammar_holds(void **state) {
    (void)state;
    static Heard heard;
    const char *const none[] = {"none"};
    fr_grammar *g;
    if (fr_grammar_open(&g, model, FR_GRAMMAR_REGEX, " yes| no", 8, &err)) fail_msg("%s", err.message);
    generate(none, 1, g, &heard);
    assert_true(strcmp(heard.text, " yes") == 0 || strcmp(heard.text, " no") == 0);
    fr_grammar_close(g);
}

static void a_conversation_becomes_a_prompt(void **state) {
    (void)state;
    const fr_chat_message hello = {"user", "Hello"};
    const fr_chat_options o = {.struct_size = sizeof o, .no_generation_prompt = 1};
    fr_chat_result r = {.struct_size = sizeof r};
    if (fr_chat_apply(model, &hello, 1, &o, &r, &err)) fail_msg("%s", err.message);
    assert_non_null(strstr(r.text, "Hello"));
    assert_null(strstr(r.text, "ASSISTANT"));
    assert_true(r.n_tokens > 0 && r.tokens);
    fr_chat_result_free(&r);
    assert_null(r.text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_library_has_every_function),  cmocka_unit_test(results_are_filled),
        cmocka_unit_test(a_draft_changes_no_text),         cmocka_unit_test(a_grammar_holds),
        cmocka_unit_test(a_conversation_becomes_a_prompt),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}

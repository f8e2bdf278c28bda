/* test_chat_template.c - conversations by the template of a model: their tokens, protection against special tokens in
 * messages, and when a built-in format replaces the template. */
#include "testing.h"

#include "engine/engine.h"
#include "gguf/gguf.h"
#include "text/chat.h"

#include <stdlib.h>
#include <string.h>

typedef struct Fixture {
    Gguf *gguf;
    Tokenizer *tokenizer;
    fr_model *model;
} Fixture;

static Fixture fx;

static int open_model(void **state) {
    (void)state;
    return gguf_open(&fx.gguf, "models/target.gguf", NULL) || tokenizer_open(&fx.tokenizer, fx.gguf, NULL) ||
           fr_model_open(&fx.model, "models/target.gguf", NULL, NULL);
}

static int close_model(void **state) {
    (void)state;
    fr_model_close(fx.model);
    tokenizer_close(fx.tokenizer);
    gguf_close(fx.gguf);
    return 0;
}

static void check_text(const fr_chat_message *messages, int n, const fr_chat_options *options, const char *want) {
    fr_chat_result r = {.struct_size = sizeof r};
    fr_error err;
    if (fr_chat_apply(fx.model, messages, n, options, &r, &err)) fail_msg("%s: %s", want, err.message);
    if (strcmp(r.text, want) != 0) fail_msg("want \"%s\"\ngot  \"%s\"", want, r.text);
    assert_int_equal(r.n_bytes, strlen(want));
    fr_chat_result_free(&r);
}

/* If messages contain no special token, the tokens are those of the whole text. */
static void check_tokens(const fr_chat_message *messages, int n, const char *text) {
    fr_chat_result r = {.struct_size = sizeof r};
    fr_error err;
    int32_t *want;
    int64_t n_want;
    assert_int_equal(fr_chat_apply(fx.model, messages, n, NULL, &r, &err), FR_OK);
    assert_string_equal(r.text, text);
    assert_string_equal(r.warning, "");
    assert_int_equal(
        fr_tokenize(fx.model, text, strlen(text), FR_TOKENIZE_PROMPT | FR_TOKENIZE_SPECIAL, &want, &n_want, &err),
        FR_OK);
    assert_int_equal(r.n_tokens, n_want);
    assert_memory_equal(r.tokens, want, (size_t)n_want * sizeof *want);
    fr_free(want);
    fr_chat_result_free(&r);
}

static void the_shipped_model_gets_the_tokens_it_was_trained_with(void **state) {
    (void)state;
    const fr_chat_message m[] = {{"system", "Be kind."},
                                 {"user", "Why is the sky blue?"},
                                 {"assistant", "Because."},
                                 {"user", "\nBye? "}};
    check_tokens(m + 1, 1, "USER: Why is the sky blue?\nASSISTANT:");
    check_tokens(m + 1, 3, "USER: Why is the sky blue?\nASSISTANT: Because.</s>\nUSER: \nBye? \nASSISTANT:");
    check_tokens(m, 4, "Be kind.\nUSER: Why is the sky blue?\nASSISTANT: Because.</s>\nUSER: \nBye? \nASSISTANT:");
}

static int count(const int32_t *tokens, int64_t n, int32_t token) {
    int k = 0;
    for (int64_t i = 0; i < n; i++) k += tokens[i] == token;
    return k;
}

static void special_tokens_in_messages_stay_text(void **state) {
    (void)state;
    const fr_chat_message m[] = {{"user", "hi</s>"},
                                 {"assistant", "<s>a</s>"},
                                 {"user", "</s"},
                                 {"assistant", ">"},
                                 {"user", "<s>"}};
    const char *const formats[] = {NULL,
                                   "vicuna",
                                   "llama2",
                                   "mistral",
                                   "zephyr",
                                   "chatml",
                                   "{% for m in messages %}{{ m.content ~ '</s>' }}{% endfor %}"};
    const int n_eos[] = {2, 2, 2, 2, 5, 0, 5};
    int32_t bos = tokenizer_bos(fx.tokenizer), eos = tokenizer_eos(fx.tokenizer);
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        fr_chat_options o = {.struct_size = sizeof o, .chat_template = formats[i]};
        fr_chat_result r = {.struct_size = sizeof r};
        fr_error err;
        if (fr_chat_apply(fx.model, m, 5, &o, &r, &err)) fail_msg("%s", err.message);
        if (count(r.tokens, r.n_tokens, eos) != n_eos[i])
            fail_msg("%s: %d tokens </s> in \"%s\"", formats[i], count(r.tokens, r.n_tokens, eos), r.text);
        int n_bos = i == 2 ? 3 : 1; /* llama2 writes one between turns, too */
        if (count(r.tokens, r.n_tokens, bos) != n_bos)
            fail_msg("%s: %d tokens <s>", formats[i], count(r.tokens, r.n_tokens, bos));
        assert_int_equal(r.tokens[0], bos);
        fr_chat_result_free(&r);
    }
}

static void a_bos_of_the_template_is_not_doubled(void **state) {
    (void)state;
    const fr_chat_message m = {"user", "a"};
    check_text(&m, 1,
               &(fr_chat_options){.struct_size = sizeof(fr_chat_options),
                                  .chat_template = "{{ bos_token }}{{ messages[0].content }}"},
               "a");
    const fr_chat_message bos = {"user", "<s>a"};
    check_text(&bos, 1,
               &(fr_chat_options){.struct_size = sizeof(fr_chat_options), .chat_template = "{{ messages[0].content }}"},
               "<s>a");
}

static void options_reach_the_template(void **state) {
    (void)state;
    const fr_chat_message m = {"user", "a"};
    check_text(&m, 1,
               &(fr_chat_options){.struct_size = sizeof(fr_chat_options),
                                  .chat_template = "{{ x }}{{ tools is none }}{{ add_generation_prompt }}",
                                  .variables = "{\"x\": false}"},
               "FalseTrueTrue");
    check_text(&m, 1, &(fr_chat_options){.struct_size = sizeof(fr_chat_options), .no_generation_prompt = 1},
               "USER: a\n");
    check_text(NULL, 0,
               &(fr_chat_options){.struct_size = sizeof(fr_chat_options),
                                  .messages = "[{\"role\": \"user\", \"content\": \"\\u00e9\"}]"},
               "USER: \xC3\xA9\nASSISTANT:");
    check_text(&m, 1,
               &(fr_chat_options){.struct_size = sizeof(fr_chat_options),
                                  .chat_template = "{{ tools[0].name }}",
                                  .tools = "[{\"name\": \"f\"}]"},
               "f");
    check_text(&m, 1, &(fr_chat_options){.struct_size = sizeof(fr_chat_options), .chat_template = "phi3"},
               "<|user|>\na<|end|>\n<|assistant|>\n");
}

static void refused(const fr_chat_options *o, int want, const char *part) {
    const fr_chat_message m = {"user", "a"};
    fr_chat_result r = {.struct_size = sizeof r};
    fr_error err = {0};
    assert_int_equal(fr_chat_apply(fx.model, &m, 1, o, &r, &err), want);
    if (!strstr(err.message, part)) fail_msg("'%s' has no '%s'", err.message, part);
    assert_null(r.text);
    assert_null(r.tokens);
}

/* For families that have both a format and a template, the two write the same text; every template runs. */
static void templates_have_names(void **state) {
    (void)state;
    const fr_chat_message m[] = {{"user", "a"}, {"assistant", "b"}, {"user", "c"}};
    int n = 0;
    for (const char *const *name = named_templates(); *name; name++, n++) {
        fr_chat_result r = {.struct_size = sizeof r};
        fr_error err;
        size_t n_bytes;
        assert_non_null(named_template(*name, &n_bytes));
        assert_true(n_bytes > 20);
        if (fr_chat_apply(fx.model, m, 3,
                          &(fr_chat_options){.struct_size = sizeof(fr_chat_options), .chat_template = *name}, &r, &err))
            fail_msg("%s: %s", *name, err.message);
        if (!strstr(r.text, "a") || !strstr(r.text, "b") || !strstr(r.text, "c")) fail_msg("%s: %s", *name, r.text);
        fr_chat_result_free(&r);
    }
    assert_int_equal(n, 28);
    size_t none;
    assert_null(named_template("cuneiform", &none));
}

/* A file may have a template of its own for tools. */
static void tools_have_their_template(void **state) {
    (void)state;
    static const char text[] = "{{ tools[0].name }}!";
    const fr_chat_message m = {"user", "a"};
    assert_int_equal(chat_template_open(&fx.model->tool_template, text, sizeof text - 1, NULL), FR_OK);
    check_text(&m, 1, &(fr_chat_options){.struct_size = sizeof(fr_chat_options), .tools = "[{\"name\": \"f\"}]"}, "f!");
    check_text(&m, 1, &(fr_chat_options){.struct_size = sizeof(fr_chat_options)}, "USER: a\nASSISTANT:");
    chat_template_close(&fx.model->tool_template);
}

static void what_cannot_be_done_is_refused(void **state) {
    (void)state;
    refused(&(fr_chat_options){.struct_size = sizeof(fr_chat_options), .chat_template = "cuneiform"},
            FR_ERR_UNSUPPORTED, "no chat template 'cuneiform'");
    refused(&(fr_chat_options){.struct_size = sizeof(fr_chat_options), .chat_template = "{{ 1 +"}, FR_ERR_UNSUPPORTED,
            "line 1");
    refused(&(fr_chat_options){.struct_size = sizeof(fr_chat_options),
                               .chat_template = "{{ raise_exception('roles must alternate') }}"},
            FR_ERR_ARGUMENT, "roles must alternate");
    refused(&(fr_chat_options){.struct_size = sizeof(fr_chat_options), .messages = "[{]"}, FR_ERR_ARGUMENT,
            "messages: the JSON is not valid at byte 2");
    refused(&(fr_chat_options){.struct_size = sizeof(fr_chat_options), .tools = "nonsense"}, FR_ERR_ARGUMENT,
            "tools: ");
    refused(&(fr_chat_options){.struct_size = sizeof(fr_chat_options), .variables = "[]"}, FR_ERR_ARGUMENT,
            "must be a JSON object");
    refused(&(fr_chat_options){.struct_size = sizeof(fr_chat_options), .chat_template = "gemma", .tools = "[]"},
            FR_ERR_UNSUPPORTED, "need a Jinja template");
}

static void fallback(const char *source, const char *want_text, const char *want_warning) {
    const ChatMessage m = {"user", "a</s>"};
    Conversation c = {.messages = &m, .n_messages = 1, .adds_generation_prompt = true};
    TemplateOutput out = {.text.max_bytes = 1000};
    ChatTemplate t;
    char warning[256];
    fr_error err;
    assert_int_equal(chat_template_open(&t, source, strlen(source), &err), FR_OK);
    int status = chat_template_apply(&t, fx.tokenizer, &c, &out, warning, &err);
    if (!want_text) assert_int_not_equal(status, FR_OK);
    else {
        assert_int_equal(status, FR_OK);
        assert_string_equal(out.text.data, want_text);
        assert_int_equal(out.n_data, 1);
        assert_memory_equal(out.text.data + out.data[0].begin, "a</s>", 5);
        assert_int_equal(out.data[0].end - out.data[0].begin, 5);
    }
    const char *said = status ? err.message : warning;
    if (!strstr(said, want_warning)) fail_msg("'%s' has no '%s'", said, want_warning);
    template_output_free(&out);
    chat_template_close(&t);
}

static void a_built_in_format_replaces_a_template_that_does_not_run(void **state) {
    (void)state;
    fallback("{% include 'x' %}<|im_start|>", "<|im_start|>user\na</s><|im_end|>\n<|im_start|>assistant\n",
             "'chatml' is used instead");
    fallback("{{ messages | frobnicate }}<|im_start|>", "<|im_start|>user\na</s><|im_end|>\n<|im_start|>assistant\n",
             "frobnicate");
    fallback("{% include 'x' %}", NULL, "{% include %} is not supported");
    fallback("{{ raise_exception('no') }}<|im_start|>", NULL, "no");
}

/* An answer that is sent back gives the text that was generated: so a conversation finds its own answers in the prefix
 * cache. Where the template writes a space before an answer, models begin with one. */
static void check_given_back(const char *name, const fr_chat_options *o, const char *begin, const char *answer) {
    const fr_chat_message m[] = {{"user", "Hi"}, {"assistant", answer}, {"user", "Bye?"}};
    fr_chat_result first = {.struct_size = sizeof first}, both = {.struct_size = sizeof both};
    fr_error err;
    char want[4000];
    if (fr_chat_apply(fx.model, m, 1, o, &first, &err) || fr_chat_apply(fx.model, m, 3, o, &both, &err))
        fail_msg("%s: %s", name, err.message);
    snprintf(want, sizeof want, "%s%s%s", first.text, begin, answer);
    if (strncmp(both.text, want, strlen(want)) != 0)
        fail_msg("%s: the conversation\n\"%s\"\ndoes not begin with\n\"%s\"", name, both.text, want);
    fr_chat_result_free(&first);
    fr_chat_result_free(&both);
}

static void answers_are_given_back_as_they_were_generated(void **state) {
    (void)state;
    static const char *const answers[] = {" Hello there", "Hello there", "\n\nHello\n there\n ", "  Hello"};
    static const char *const with_space[] = {"plain", "vicuna", "deepseek-v2", "llama2", "mistral-v1", "mistral-v3"};
    int n = 0;
    for (const char *const *name = named_templates(); *name; name++, n++) {
        const fr_chat_options o = {.struct_size = sizeof o, .chat_template = *name};
        if (strcmp(*name, "deepseek-r1-distill") == 0) continue; /* it begins reasoning, which it does not give back */
        const char *begin = strcmp(*name, "gpt-oss") == 0 ? "<|channel|>final<|message|>" : "";
        bool adds_space = false;
        for (int i = 0; i < 6; i++) adds_space = adds_space || strcmp(*name, with_space[i]) == 0;
        for (int i = 0; i < 4; i++)
            if (!adds_space || answers[i][0] == ' ') check_given_back(*name, &o, begin, answers[i]);
        if (adds_space) check_given_back(*name, &o, " ", "Hello there"); /* a client that removed the space */
    }
    assert_true(n >= 28);
    for (int i = 0; i < 4; i += 3) check_given_back("the model's own", NULL, "", answers[i]);
    check_given_back("the model's own", NULL, " ", "Hello there");
}

/* Data spans hide control tokens, and nothing else changes. */
static void the_tokenizer_finds_special_tokens_outside_data_only(void **state) {
    (void)state;
    static const char text[] = "a</s>b</s>c</s>";
    const struct {
        TextSpan spans[2];
        size_t n;
        int n_eos;
    } cases[] = {{{{0, 0}}, 0, 3},  {{{1, 5}}, 1, 2},           {{{4, 5}}, 1, 2}, {{{1, 2}}, 1, 2},
                 {{{0, 15}}, 1, 0}, {{{2, 3}, {11, 15}}, 2, 1}, {{{5, 6}}, 1, 3}, {{{4, 7}}, 1, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int32_t *tokens;
        int64_t n;
        fr_error err;
        assert_int_equal(tokenizer_encode_marked(fx.tokenizer, text, 15, cases[i].spans, cases[i].n, TOKENIZE_SPECIAL,
                                                 &tokens, &n, &err),
                         FR_OK);
        if (count(tokens, n, tokenizer_eos(fx.tokenizer)) != cases[i].n_eos)
            fail_msg("case %zu: %d", i, count(tokens, n, tokenizer_eos(fx.tokenizer)));
        free(tokens);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_shipped_model_gets_the_tokens_it_was_trained_with),
        cmocka_unit_test(special_tokens_in_messages_stay_text),
        cmocka_unit_test(a_bos_of_the_template_is_not_doubled),
        cmocka_unit_test(options_reach_the_template),
        cmocka_unit_test(templates_have_names),
        cmocka_unit_test(tools_have_their_template),
        cmocka_unit_test(what_cannot_be_done_is_refused),
        cmocka_unit_test(a_built_in_format_replaces_a_template_that_does_not_run),
        cmocka_unit_test(answers_are_given_back_as_they_were_generated),
        cmocka_unit_test(the_tokenizer_finds_special_tokens_outside_data_only),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}

/* test_answer_reader.c - reasoning, text and tool calls of all families, with the text cut at every place. */
#include "testing.h"

#include "cli/answer_reader.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WRITTEN_MAX = 4096 };

typedef struct Written {
    char text[WRITTEN_MAX];
    size_t n;
} Written;

/* Writes the items as one line: T[text] R[reasoning] C[name arguments]. */
static void write_event(void *user, AnswerEvent event, const AnswerItem *item, const char *bytes, size_t n) {
    Written *w = user;
    char *at = w->text + w->n;
    size_t room = sizeof w->text - w->n;
    int more = 0;
    if (event == ANSWER_BEGINS && item->kind == ANSWER_CALL)
        more = snprintf(at, room, "C%d[%s ", item->i_call, item->name);
    else if (event == ANSWER_BEGINS) more = snprintf(at, room, "%s", item->kind == ANSWER_TEXT ? "T[" : "R[");
    else if (event == ANSWER_GROWS) more = snprintf(at, room, "%.*s", (int)n, bytes);
    else more = snprintf(at, room, "]");
    w->n += (size_t)more;
}

/* Reads the items of a text that comes in pieces that end at a and b. */
static void read_cut(const AnswerForm *form, const char *text, size_t a, size_t b, Written *w) {
    AnswerReader r;
    size_t n = strlen(text);
    *w = (Written){.n = 0};
    answer_reader_init(&r, form);
    assert_true(answer_reader_feed(&r, text, a, write_event, w));
    assert_true(answer_reader_feed(&r, text + a, b - a, write_event, w));
    assert_true(answer_reader_feed(&r, text + b, n - b, write_event, w));
    assert_true(answer_reader_end(&r, write_event, w));
    answer_reader_free(&r);
}

static void check_form(const AnswerForm *form, const char *text, const char *wanted) {
    const char *family = form->tools ? form->tools->family : "none";
    Written w;
    size_t n = strlen(text);
    for (size_t a = 0; a <= n; a++)
        for (size_t b = a; b <= n; b++) {
            read_cut(form, text, a, b, &w);
            if (strcmp(w.text, wanted) != 0)
                fail_msg("%s, cut at %zu and %zu:\n  %s\nis read as\n  %s\ninstead of\n  %s", family, a, b, text,
                         w.text, wanted);
        }
}

static void check(const char *family, bool reasons, const char *text, const char *wanted) {
    const AnswerForm form = {.tools = family ? tool_form_of(family) : NULL, .reasons = reasons};
    check_form(&form, text, wanted);
}

static void calls_of_hermes_and_qwen(void **state) {
    (void)state;
    check("chatml", false, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1, \"}\"]}}\n</tool_call>",
          "C0[f {\"a\": [1, \"}\"]}]");
    check("jinja", false,
          "Let me look.\n\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n<tool_call>\n{\"arguments\": "
          "{\"x\":\"\\\"\"}, \"name\": \"g\"}\n</tool_call> Done. ",
          "T[Let me look.]C0[f {}]C1[g {\"x\":\"\\\"\"}]T[Done. ]");
    check("chatml", false, "<tool_call>{\"name\": \"f\"}</tool_call>", "C0[f {}]");
    check("chatml", false,
          "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": \\\"\\\\n\\u00e4\\\"}\"}</tool_call>",
          "C0[f {\"a\": \"\\n\\u00e4\"}]");
    check("chatml", false, "<tool_call>{\"name\": \"f\", \"arguments\": {\"arguments\": {\"name\": 1}}, \"id\": \"x\"}",
          "C0[f {\"arguments\": {\"name\": 1}}]");
}

static void calls_of_llama(void **state) {
    (void)state;
    check("llama3", false, "{\"name\": \"f\", \"parameters\": {\"a\": 1}}", "C0[f {\"a\": 1}]");
    check("llama3", false,
          "\n<|python_tag|>{\"type\": \"function\", \"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\", "
          "\"parameters\": {\"b\":null}}",
          "C0[f {}]C1[g {\"b\":null}]");
    check("llama3", false, "{\"name\": \"Ann\", \"age\": 3} is an answer",
          "T[{\"name\": \"Ann\", \"age\": 3} is an answer]");
    check("llama3", false, "An answer: {\"name\": \"f\", \"parameters\": {}}",
          "T[An answer: {\"name\": \"f\", \"parameters\": {}}]");
}

static void calls_of_mistral_and_phi(void **state) {
    (void)state;
    check("mistral", false,
          "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": [[]]}}, {\"name\": \"g\", \"arguments\": {}}]",
          "C0[f {\"a\": [[]]}]C1[g {}]");
    check("mistral", false, "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {}}]\nDone", "C0[f {}]T[Done]");
    check("mistral", false, "Hm.[TOOL_CALLS]f_1[ARGS]{\"a\": {}}[TOOL_CALLS]g[CALL_ID]abc[ARGS]{}",
          "T[Hm.]C0[f_1 {\"a\": {}}]C1[g {}]");
    check("mistral", false, "[TOOL_CALLS]f{\"a\": \"{\"}", "C0[f {\"a\": \"{\"}]");
    check("phi3", false, "<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"a\": 1}}]<|/tool_call|>",
          "C0[f {\"a\": 1}]");
}

#define ANALYSIS "<|channel|>analysis<|message|>So.<|end|>"
#define START "<|start|>assistant"

static void calls_of_gpt_oss(void **state) {
    (void)state;
    static const struct {
        const char *text, *wanted;
    } cases[] = {
        {ANALYSIS START "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\": \"<|e\"}<|call|>",
         "R[So.]C0[f {\"a\": \"<|e\"}]"},
        {ANALYSIS START " to=functions.f_1<|channel|>commentary json<|message|>{}", "R[So.]C0[f_1 {}]"},
        {" to=functions.f<|channel|>commentary<|message|>{\"a\": 1}", "C0[f {\"a\": 1}]"},
        {"<|channel|>commentary<|message|>Let me look.<|end|>" START
         "<|channel|>commentary to=functions.f <|constrain|>json<|message|>",
         "T[Let me look.]C0[f {}]"},
        {ANALYSIS START "<|channel|>analysis to=functions.f json<|message|>{}<|end|>" START
                        "<|channel|>commentary to=functions.g json<|message|>[1]",
         "R[So.]C0[f {}]C1[g [1]]"},
        {ANALYSIS START "<|channel|>final<|message|>Yes to=functions.f", "R[So.]T[Yes to=functions.f]"},
        {"<|channel|>commentary to=assistant<|channel|>analysis<|message|>So", "T[So]"},
        {"<|channel|>analysis<|message|>A <|end", "R[A <|end]"},
        {ANALYSIS START "<|channel|>comm", "R[So.]"},
        {"<|channel|>analysis to=browser.open code<|message|>x",
         "T[<|channel|>analysis to=browser.open code<|message|>x]"},
        {"Plain <|channel|>analysis<|message|>", "T[Plain <|channel|>analysis<|message|>]"},
        {"<|chan", "T[<|chan]"},
        {" to={", "T[ to={]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const AnswerForm form = {.tools = tool_form_of("gpt-oss"),
                                 .marks = reasoning_marks_of("<|channel|>"),
                                 .reasons = true};
        check_form(&form, cases[i].text, cases[i].wanted);
    }
    const AnswerForm late = {.tools = tool_form_of("gpt-oss"),
                             .marks = reasoning_marks_of("<|channel|>"),
                             .has_reasoned = true};
    check_form(&late, "Yes<|return|>", "T[Yes]");
    const AnswerForm toolless = {.marks = reasoning_marks_of("<|channel|>"), .reasons = true};
    check_form(&toolless, ANALYSIS START "<|channel|>final <|constrain|>json<|message|>{}", "R[So.]T[{}]");
    check_form(&toolless, "<|channel|>commentary<|message|>Hm.<|end|>" START "<|channel|>final<|message|>Yes",
               "T[Hm.]T[Yes]");
    check_form(&toolless, "<|channel|>commentary to=functions.f json<|message|>{}",
               "T[<|channel|>commentary to=functions.f json<|message|>{}]");
}

/* No part of the text is lost. */
static void what_is_no_call_stays_text(void **state) {
    (void)state;
    static const char *const texts[] = {
        "The mark <tool_call> begins a call.",
        "<tool_call>{\"no\": \"name\"}</tool_call>",
        "<tool_cal",
        "<tool_call>\n{\"name\": ",
        " a < b <tool <t </tool_call> {\"name\": \"f\", \"arguments\": {}} ",
        "<think>no</think> ",
        "<tool_call></tool_call>",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        char wanted[256];
        snprintf(wanted, sizeof wanted, "T[%s]", texts[i]);
        check("chatml", false, texts[i], wanted);
        check(NULL, false, texts[i], wanted);
    }
    check("mistral", false, "[TOOL_CALLS]a b", "T[[TOOL_CALLS]a b]");
    check("chatml", false, "", "");
}

/* If the text ends in the middle of a call, the part of the call that has come is kept. */
static void a_call_that_is_cut_short(void **state) {
    (void)state;
    check("chatml", false, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"b", "C0[f {\"a\": \"b]");
}

static void reasoning(void **state) {
    (void)state;
    check(NULL, true, "<think>\nSo.\n\nYes.\n</think>\n\nThe answer. ", "R[So.\n\nYes.]T[The answer. ]");
    check("chatml", true, "\n<think>So.</think>\n\n<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>",
          "R[So.]C0[f {}]");
    check("llama3", true, "<think>So.</think>{\"name\": \"f\", \"parameters\": {}}", "R[So.]C0[f {}]");
    check("chatml", true, "<think>\n\n</think>\n\nYes, </think> <think>", "T[Yes, </think> <think>]");
    check("chatml", true, "<think>It <tool_call> never", "R[It <tool_call> never]");
    check(NULL, true, " Plain text", "T[ Plain text]");
    check(NULL, true, "<think>a</think><think>b</think>", "R[a]T[<think>b</think>]");
    AnswerForm form = {.is_reasoning = true};
    Written w;
    read_cut(&form, "\nSo.</think>Yes", 3, 7, &w);
    assert_string_equal(w.text, "R[So.]T[Yes]");
}

/* Templates that mark reasoning in another way. */
static void reasoning_between_other_marks(void **state) {
    (void)state;
    static const struct {
        const char *sign, *text, *wanted;
    } cases[] = {
        {"[THINK]", "[THINK]So.[/THINK]Yes [/THINK]", "R[So.]T[Yes [/THINK]]"},
        {"[THINK]", "<think>So.</think>", "T[<think>So.</think>]"},
        {"<|channel>", "<|channel>thought\nSo.\n<channel|>Yes", "R[So.]T[Yes]"},
        {"<|channel>", "<|channel>thought\n<channel|>Yes", "T[Yes]"},
        {"<|channel>", "<|channel>thoughtful", "T[<|channel>thoughtful]"},
        {"<|channel|>", "<|channel|>analysis<|message|>So.<|end|><|start|>assistant<|channel|>final<|message|>Yes",
         "R[So.]T[Yes]"},
        {"<|channel|>", "<|channel|>final<|message|>Yes", "T[Yes]"},
        {"<|channel|>", "<|channel|>analysis<|message|>So.<|end|>", "R[So.]"},
        {"<|channel|>", "<|channel|>fine", "T[<|channel|>fine]"},
        {"jinja", "<think>So.</think>Yes", "R[So.]T[Yes]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char chat_template[64];
        snprintf(chat_template, sizeof chat_template, "{{ x }}%s{{ y }}", cases[i].sign);
        const AnswerForm form = {.marks = reasoning_marks_of(chat_template), .reasons = true};
        check_form(&form, cases[i].text, cases[i].wanted);
    }
    const AnswerForm open = {.marks = reasoning_marks_of("[THINK]"), .is_reasoning = true};
    check_form(&open, "So. [/THINK] Yes", "R[So.]T[Yes]");
    assert_ptr_equal(reasoning_marks_of(NULL), reasoning_marks_of("{{ x }}"));
}

/* With a schema for the answer, a text that does not begin with a call has none, whatever its strings contain. */
static void only_calls_or_only_text(void **state) {
    (void)state;
    char f[] = "f", g[] = "g", *names[] = {f, g};
    AnswerForm hermes = {.tools = tool_form_of("chatml"), .is_either = true, .names = names, .n_names = 2};
    AnswerForm llama = hermes, reasons = hermes;
    llama.tools = tool_form_of("llama3");
    reasons.reasons = true;
    check_form(&hermes, "{\"x\": \"<tool_call>{\\\"name\\\": \\\"f\\\"}</tool_call>\"}",
               "T[{\"x\": \"<tool_call>{\\\"name\\\": \\\"f\\\"}</tool_call>\"}]");
    check_form(&hermes, "\"<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>",
               "T[\"<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>]");
    check_form(&hermes,
               "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>\n<tool_call>{\"name\": \"g\"}</tool_call>",
               "C0[f {}]C1[g {}]");
    check_form(&reasons, "<think>So.</think>\n{\"x\": \"<tool_call>\"}", "R[So.]T[{\"x\": \"<tool_call>\"}]");
    check_form(&llama, "{\"name\": \"f\", \"parameters\": {\"a\": 1}}; {\"name\": \"g\", \"parameters\": {}}",
               "C0[f {\"a\": 1}]C1[g {}]");
    check_form(&llama, "{\"name\": \"Tom\", \"parameters\": {\"a\": \"<|python_tag|>\"}}",
               "T[{\"name\": \"Tom\", \"parameters\": {\"a\": \"<|python_tag|>\"}}]");
    check_form(&llama, "{\"name\": \"ff\", \"arguments\": 1}", "T[{\"name\": \"ff\", \"arguments\": 1}]");
    check_form(&llama, "{\"age\": 3}", "T[{\"age\": 3}]");
    check_form(&llama, "<|python_tag|>{\"name\": \"f\", \"parameters\": {}}", "C0[f {}]");
}

/* The place in bytes at which the reasoning ends, however the text is cut; 0: it has not ended. */
static void the_end_of_reasoning_is_noted(void **state) {
    (void)state;
    static const struct {
        const char *text;
        size_t n;
    } cases[] = {{"<think>\nSo.</think>\n\nThe end of it.", 19},
                 {" \n<think></think>", 17},
                 {"<think>So, </thin", 0},
                 {"A <think>b</think>", 0},
                 {"", 0}};
    const AnswerForm form = {.reasons = true};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t a = 0; a <= strlen(cases[i].text); a++) {
            AnswerReader r;
            answer_reader_init(&r, &form);
            assert_true(answer_reader_feed(&r, cases[i].text, a, NULL, NULL));
            assert_true(answer_reader_feed(&r, cases[i].text + a, strlen(cases[i].text) - a, NULL, NULL));
            assert_int_equal(r.n_reason, cases[i].n);
            assert_int_equal(r.n_read, strlen(cases[i].text));
            answer_reader_free(&r);
        }
}

static void a_blank_of_the_template_is_dropped(void **state) {
    (void)state;
    static const struct {
        const char *text, *want;
        bool drops;
    } cases[] = {{" Hello", "Hello", true},
                 {"  Hello", " Hello", true},
                 {"Hello", "Hello", true},
                 {" Hello", " Hello", false},
                 {"\n Hello", "\n Hello", true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int reasons = 0; reasons < 2; reasons++) {
            AnswerForm form = {.drops_blank = cases[i].drops, .reasons = reasons};
            AnswerReader r;
            answer_reader_init(&r, &form);
            for (const char *c = cases[i].text; *c; c++) assert_true(answer_reader_feed(&r, c, 1, NULL, NULL));
            assert_true(answer_reader_end(&r, NULL, NULL));
            assert_int_equal(r.n_items, 1);
            assert_string_equal(r.items[0].text.data, cases[i].want);
            answer_reader_free(&r);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_of_hermes_and_qwen),
        cmocka_unit_test(calls_of_llama),
        cmocka_unit_test(calls_of_mistral_and_phi),
        cmocka_unit_test(what_is_no_call_stays_text),
        cmocka_unit_test(calls_of_gpt_oss),
        cmocka_unit_test(a_call_that_is_cut_short),
        cmocka_unit_test(reasoning),
        cmocka_unit_test(reasoning_between_other_marks),
        cmocka_unit_test(only_calls_or_only_text),
        cmocka_unit_test(the_end_of_reasoning_is_noted),
        cmocka_unit_test(a_blank_of_the_template_is_dropped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

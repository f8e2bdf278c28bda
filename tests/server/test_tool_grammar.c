/* test_tool_grammar.c - the grammar of calls for each family of templates: which answers it allows, that forced text is
 * read as calls with valid arguments, and the reports of schemas that cannot be enforced. */
#include "testing.h"

#include "server/api/answers.h"
#include "server/api/plan.h"
#include "engine/engine.h"

#include <stdlib.h>
#include <string.h>

static ServedModel model;
static Service service;

static int open_model(void **state) {
    (void)state;
    fr_error err;
    if (fr_model_open(&model.model, "models/draft.gguf", NULL, &err)) return -1;
    grammar_cache_open(&service.grammars, 64 << 20);
    return 0;
}

static int close_model(void **state) {
    (void)state;
    grammar_cache_close(&service.grammars);
    fr_model_close(model.model);
    return 0;
}

#define WEATHER \
    "{\"type\": \"function\", \"function\": {\"name\": \"weather\", \"parameters\": {\"type\": \"object\", " \
    "\"properties\": " \
    "{\"city\": {\"$ref\": \"#/$defs/city\"}}, \"required\": [\"city\"], \"$defs\": {\"city\": {\"enum\": [\"Rome\", " \
    "\"Os\\\"lo\"]}}}}}"
#define NOW "{\"type\": \"function\", \"function\": {\"name\": \"now-2\"}}"
#define ODD(strict) \
    "{\"type\": \"function\", \"function\": {\"name\": \"odd\", \"strict\": " strict ", \"parameters\": {\"not\": " \
    "{}}}}"
#define VAGUE \
    "{\"type\": \"function\", \"function\": {\"name\": \"vague\", \"strict\": true, \"parameters\": {\"type\": " \
    "\"object\", " \
    "\"properties\": {\"x\": {\"oneOf\": [{\"type\": \"integer\"}, {\"type\": \"number\"}]}}}}}"

/* Reads a request of the API and makes its grammar. With the family "gpt-oss, inside" the prompt ends within a
 * message. */
typedef struct Rig {
    ApiCall call;
    Answers answers;
    json_t *tools, *choice;
    int status;
} Rig;

static void rig_begin_beside(Rig *r, const char *family, const char *tools, const char *choice, bool has_one_call,
                             bool has_args, const char *format) {
    *r = (Rig){.tools = json_loads(tools, 0, NULL), .choice = json_loads(choice, JSON_DECODE_ANY, NULL)};
    assert_true(r->tools && r->choice);
    bool is_inside = strcmp(family, "gpt-oss, inside") == 0, is_harmony = is_inside || strcmp(family, "gpt-oss") == 0;
    r->answers = (Answers){.form = {.tools = tool_form_of(is_harmony ? "gpt-oss" : family),
                                    .marks = reasoning_marks_of(is_harmony ? "<|channel|>" : NULL),
                                    .has_reasoned = is_inside},
                           .has_args_mark = has_args,
                           .has_id_mark = has_args};
    r->call = (ApiCall){.service = &service, .plan.model = &model};
    const ChatMessages f = {.tools = r->tools, .tool_choice = r->choice, .has_one_call = has_one_call};
    json_t *value = format ? json_loads(format, 0, NULL) : NULL;
    const ConstraintFields fields = {.format = value};
    r->status = constraint_read(&r->call.plan, &service.grammars, &fields, &r->call.error);
    if (!r->status) r->status = tool_grammar_prepare(&r->call, &r->answers, &f);
    json_decref(value);
}

static void rig_begin(Rig *r, const char *family, const char *tools, const char *choice, bool has_one_call,
                      bool has_args) {
    rig_begin_beside(r, family, tools, choice, has_one_call, has_args, NULL);
}

static void rig_end(Rig *r) {
    plan_free(&r->call.plan);
    json_decref(r->tools), json_decref(r->choice);
}

static void begin_text(const Rig *r, GrammarText *x) {
    fr_error err;
    if (r->status) fail_msg("%s", r->call.error.message);
    if (grammar_text_begin(x, cached_grammar(r->call.plan.grammar)->grammar, NULL, NULL, &err))
        fail_msg("%s", err.message);
}

typedef enum Verdict { REFUSED, PART, WHOLE } Verdict; /* PART: it is only a beginning */

static Verdict judge(const Rig *r, const char *text) {
    GrammarText x;
    begin_text(r, &x);
    bool fits = true;
    for (const char *c = text; *c && fits; c++) fits = grammar_text_may_read(&x, x.state, (uint8_t)*c, &x.state);
    Verdict v = !fits ? REFUSED : x.state->accepts ? WHOLE : PART;
    grammar_text_end(&x);
    return v;
}

#define ROME "{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}"
#define LLAMA_ROME "{\"name\": \"weather\", \"parameters\": {\"city\": \"Rome\"}}"
#define TIME "{\"name\": \"now-2\", \"arguments\": {}}"
#define SAYS "<|channel|>commentary<|message|>"
#define NEXT "<|end|><|start|>assistant"
#define TO_ROME "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{\"city\": \"Rome\"}"
#define TO_TIME " to=functions.now-2<|channel|>commentary json<|message|>{}"

static void answers_by_family(void **state) {
    (void)state;
    static const struct {
        const char *family, *choice;
        bool has_one_call, has_args;
        struct {
            const char *text;
            Verdict verdict;
        } texts[14];
    } cases[] = {
        {"chatml",
         "\"auto\"",
         false,
         false,
         {{"", WHOLE},
          {"No call <tool_cal>, {\"name\": 1}", WHOLE},
          {"Well.\n<tool_call>", PART},
          {"Well.\n<tool_call>\n" ROME "\n</tool_call>", WHOLE},
          {"<tool_call>" ROME "</tool_call>\n<tool_call>\n" TIME "\n</tool_call> Done <tool", WHOLE},
          {"<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"P", REFUSED},
          {"<tool_call>{\"name\": \"other", REFUSED},
          {"<tool_call>\n" ROME "\n</tool_call><tool_call>no", REFUSED},
          {"<tool_call>\n" ROME " and", REFUSED}}},
        {"chatml",
         "\"auto\"",
         true,
         false,
         {{"text <b>", WHOLE},
          {"text <tool_call>" ROME "</tool_call>", WHOLE},
          {"<tool_call>" ROME "</tool_call> ", REFUSED}}},
        {"chatml",
         "\"required\"",
         false,
         false,
         {{"", PART},
          {"text", REFUSED},
          {"<tool_call>\n" ROME "\n</tool_call>", WHOLE},
          {"<tool_call>" ROME "</tool_call>\n<tool_call>" TIME "</tool_call>", WHOLE},
          {"<tool_call>" ROME "</tool_call> text", REFUSED}}},
        {"chatml",
         "\"required\"",
         true,
         false,
         {{"<tool_call>" ROME "</tool_call>", WHOLE}, {"<tool_call>" ROME "</tool_call>\n<", REFUSED}}},
        {"chatml",
         "{\"type\": \"function\", \"function\": {\"name\": \"now-2\"}}",
         false,
         false,
         {{"<tool_call>" TIME "</tool_call>", WHOLE},
          {"<tool_call>{\"name\": \"w", REFUSED},
          {"<tool_call>" TIME "</tool_call><", REFUSED}}},
        {"phi3",
         "\"auto\"",
         false,
         false,
         {{"a <|tool", WHOLE},
          {"<|tool_call|>[" ROME ", " TIME "]<|/tool_call|>", WHOLE},
          {"<|tool_call|>" ROME, REFUSED}}},
        {"phi3",
         "\"required\"",
         true,
         false,
         {{"<|tool_call|>[" ROME "]<|/tool_call|>", WHOLE}, {"<|tool_call|>[" ROME ",", REFUSED}}},
        {"mistral",
         "\"required\"",
         false,
         false,
         {{"[TOOL_CALLS][" ROME ", " TIME "]", WHOLE},
          {"[TOOL_CALLS] [" ROME "]", WHOLE},
          {"[TOOL_CALLS][]", REFUSED}}},
        {"mistral",
         "\"auto\"",
         false,
         true,
         {{"[TOOL_CALLS]weather[ARGS]{\"city\": \"Rome\"}[TOOL_CALLS]now-2[CALL_ID]abcDEF123[ARGS]{}", WHOLE},
          {"Hi [TOOL_CALLS]weather[ARGS]{\"city\": \"P", REFUSED},
          {"[TOOL_CALLS]weathers", REFUSED}}},
        {"llama3",
         "\"auto\"",
         false,
         false,
         {{"{\"na", WHOLE},
          {"{\"name\":", PART},
          {LLAMA_ROME, WHOLE},
          {LLAMA_ROME "; " LLAMA_ROME, WHOLE},
          {"{\"name\": \"Tom\"}", REFUSED},
          {"As {\"name\": \"Tom\"}", WHOLE},
          {"{\"age\": 1}", WHOLE},
          {"<|python_tag|>" LLAMA_ROME, WHOLE},
          {"<|python_tag|>print", REFUSED},
          {"{\"n<|python_tag|>x", REFUSED}}},
        {"llama3",
         "\"required\"",
         false,
         false,
         {{LLAMA_ROME "; " LLAMA_ROME, WHOLE}, {"<|python_tag|>", REFUSED}, {"x", REFUSED}}},
        {"gpt-oss",
         "\"auto\"",
         false,
         false,
         {{"", PART},
          {"Well", REFUSED},
          {"<|channel|>final<|message|>Well to=functions.f {", WHOLE},
          {"<|channel|>analysis<|message|>So." NEXT SAYS "Well." NEXT TO_ROME, WHOLE},
          {TO_TIME, WHOLE},
          {"<|channel|>commentary to=functions.now-2<|message|>{}", WHOLE},
          {TO_ROME "<|end|>", REFUSED},
          {SAYS "Well." NEXT, PART},
          {SAYS "Well.<|end|>x", REFUSED},
          {"<|channel|>commentary to=functions.other", REFUSED},
          {"<|channel|>commentary to=browser", REFUSED},
          {"<|channel|>commentary to=functions.weather json<|message|>{\"city\": \"P", REFUSED}}},
        {"gpt-oss",
         "{\"type\": \"function\", \"function\": {\"name\": \"now-2\"}}",
         false,
         false,
         {{TO_TIME, WHOLE}, {"<|channel|>f", REFUSED}, {"<|channel|>commentary to=functions.w", REFUSED}}},
        {"gpt-oss, inside",
         "\"auto\"",
         false,
         false,
         {{"", WHOLE},
          {"It rains. <|channel|>", WHOLE},
          {"It" NEXT SAYS "Well.", WHOLE},
          {"It" NEXT TO_ROME, WHOLE},
          {"It" NEXT "x", REFUSED}}},
        {"gpt-oss, inside", "\"required\"", false, false, {{NEXT TO_ROME, WHOLE}, {"I", REFUSED}, {TO_TIME, REFUSED}}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Rig r;
        rig_begin(&r, cases[i].family, "[" WEATHER ", " NOW "]", cases[i].choice, cases[i].has_one_call,
                  cases[i].has_args);
        for (int k = 0; k < 14 && cases[i].texts[k].text; k++) {
            Verdict v = judge(&r, cases[i].texts[k].text);
            if (v != cases[i].texts[k].verdict)
                fail_msg("%s, %s: '%s' is %d", cases[i].family, cases[i].choice, cases[i].texts[k].text, (int)v);
        }
        rig_end(&r);
    }
}

#define DONE \
    "{\"type\": \"json_schema\", \"json_schema\": {\"schema\": {\"type\": \"object\", \"properties\": {\"name\": " \
    "{\"const\": \"Tom\"}}, \"required\": [\"name\"]}}}"
#define DONE_AS_TEXT \
    "{\"type\": \"json_schema\", \"json_schema\": {\"schema\": \"\\n {\\\"const\\\": \\\"a\\\\n}\\\"}\"}}"
#define ANYTHING "{\"type\": \"json_schema\", \"json_schema\": {\"schema\": \"true\"}}"

/* With "auto" an answer consists only of calls or matches the schema; if a call is forced, there is no other answer. */
static void a_schema_for_the_answer_beside_tools(void **state) {
    (void)state;
    static const struct {
        const char *family, *choice, *format;
        bool has_one_call;
        struct {
            const char *text;
            Verdict verdict;
        } texts[10];
    } cases[] = {
        {"chatml",
         "\"auto\"",
         DONE,
         false,
         {{"{\"name\": \"Tom\"}", WHOLE},
          {"<tool_call>" ROME "</tool_call>", WHOLE},
          {"<tool_call>" ROME "</tool_call>\n<tool_call>" TIME "</tool_call>", WHOLE},
          {"", PART},
          {"Well", REFUSED},
          {"{\"name\": \"Ann", REFUSED},
          {"{\"name\": \"Tom\"} <", REFUSED},
          {"<tool_call>" ROME "</tool_call>{", REFUSED},
          {"<tool_call>{\"name\": \"Tom", REFUSED}}},
        {"chatml",
         "\"auto\"",
         DONE,
         true,
         {{"{\"name\": \"Tom\"}", WHOLE},
          {"<tool_call>" ROME "</tool_call>", WHOLE},
          {"<tool_call>" ROME "</tool_call><", REFUSED}}},
        {"chatml", "\"required\"", DONE, false, {{"<tool_call>" ROME "</tool_call>", WHOLE}, {"{", REFUSED}}},
        {"llama3",
         "\"auto\"",
         DONE,
         false,
         {{"{\"name\": \"Tom\"}", WHOLE},
          {LLAMA_ROME "; " LLAMA_ROME, WHOLE},
          {"<|python_tag|>" LLAMA_ROME, WHOLE},
          {"{\"name\": \"weather\"}", REFUSED},
          {"As {\"name\"", REFUSED}}},
        {"mistral",
         "\"auto\"",
         "{\"type\": \"json_object\"}",
         false,
         {{"[TOOL_CALLS][" ROME ", " TIME "]", WHOLE}, {"{\"a\": [1]}", WHOLE}, {"[1", REFUSED}}},
        {"chatml",
         "\"auto\"",
         DONE_AS_TEXT,
         false,
         {{"\"a\\n}\"", WHOLE}, {"<tool_call>" TIME "</tool_call>", WHOLE}, {"\"b", REFUSED}}},
        {"chatml", "\"auto\"", ANYTHING, false, {{"[1, null]", WHOLE}, {"<tool_call>" TIME "</tool_call>", WHOLE}}},
        {"chatml", "\"auto\"", "{\"type\": \"text\"}", false, {{"Well", WHOLE}}},
        {"gpt-oss",
         "\"auto\"",
         DONE,
         false,
         {{"<|channel|>final <|constrain|>json<|message|>{\"name\": \"Tom\"}", WHOLE},
          {"<|channel|>final<|message|>{\"name\": \"Tom\"}", WHOLE},
          {TO_ROME, WHOLE},
          {"<|channel|>final<|message|>W", REFUSED},
          {"<|channel|>a", REFUSED},
          {"{", REFUSED}}},
        {"gpt-oss", "\"required\"", DONE, false, {{TO_ROME, WHOLE}, {"<|channel|>final", REFUSED}}},
        {"gpt-oss, inside",
         "\"auto\"",
         DONE,
         false,
         {{"{\"name\": \"Tom\"}", WHOLE}, {NEXT TO_TIME, WHOLE}, {"W", REFUSED}}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Rig r;
        rig_begin_beside(&r, cases[i].family, "[" WEATHER ", " NOW "]", cases[i].choice, cases[i].has_one_call, false,
                         cases[i].format);
        for (int k = 0; k < 10 && cases[i].texts[k].text; k++) {
            Verdict v = judge(&r, cases[i].texts[k].text);
            if (v != cases[i].texts[k].verdict)
                fail_msg("%s, %s, %s: '%s' is %d", cases[i].family, cases[i].choice, cases[i].format,
                         cases[i].texts[k].text, (int)v);
        }
        rig_end(&r);
    }
    Rig r;
    rig_begin_beside(&r, "chatml", "[" WEATHER ", " ODD("false") "]", "\"auto\"", false, false, DONE);
    assert_true(r.call.plan.n_warnings == 1 && strstr(r.call.plan.warnings[0], "the tool 'odd'"));
    assert_int_equal(judge(&r, "{\"name\": \"Tom\"}"), WHOLE);
    rig_end(&r);
}

/* ---- forced text is read ------------------------------------------------------------------------------------- */

static uint64_t seed = 7;

static uint32_t below(uint32_t n) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33) % n;
}

/* Writes a random text of the grammar, which ends with some probability wherever it may; false: it became too long. */
static bool random_text(const Rig *r, char *out, size_t size) {
    GrammarText x;
    size_t n = 0;
    begin_text(r, &x);
    for (; n < size - 1; n++) {
        uint8_t allowed[256];
        uint32_t n_allowed = 0;
        if (state_is_complete(x.state) || (x.state->accepts && below(3) == 0)) break;
        for (int byte = 0; byte < 256; byte++) {
            const GrammarState *next;
            if (grammar_text_may_read(&x, x.state, (uint8_t)byte, &next)) allowed[n_allowed++] = (uint8_t)byte;
        }
        assert_true(n_allowed > 0);
        out[n] = (char)allowed[below(n_allowed)];
        (void)grammar_text_may_read(&x, x.state, (uint8_t)out[n], &x.state);
    }
    bool is_whole = x.state->accepts;
    grammar_text_end(&x);
    out[n] = '\0';
    return is_whole;
}

static int read_calls(const Rig *r, const char *text) {
    AnswerReader reader;
    int n_calls = 0;
    answer_reader_init(&reader, &r->answers.form);
    assert_true(answer_reader_feed(&reader, text, strlen(text), NULL, NULL) && answer_reader_end(&reader, NULL, NULL));
    for (int i = 0; i < reader.n_items; i++) {
        const AnswerItem *item = &reader.items[i];
        if (item->kind != ANSWER_CALL) fail_msg("'%s' is read as text in '%s'", item->text.data, text);
        json_t *arguments = json_loadb(item->text.data, item->text.n, 0, NULL);
        if (!json_is_object(arguments)) fail_msg("arguments '%s' in '%s'", item->text.data, text);
        if (strcmp(item->name, "weather") == 0) assert_non_null(json_object_get(arguments, "city"));
        else assert_string_equal(item->name, "now-2");
        json_decref(arguments);
        n_calls++;
    }
    answer_reader_free(&reader);
    return n_calls;
}

static void what_is_forced_is_read_as_calls(void **state) {
    (void)state;
    static const char tools[] = "[" WEATHER
                                ", {\"type\": \"function\", \"function\": {\"name\": \"now-2\", \"parameters\": "
                                "{\"type\": \"object\", \"additionalProperties\": false}}}]";
    static const struct {
        const char *family;
        bool has_args;
    } families[] = {{"chatml", false}, {"phi3", false},   {"mistral", false},
                    {"mistral", true}, {"llama3", false}, {"gpt-oss", false}};
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        for (int one = 0; one < 2; one++) {
            Rig r;
            int n_texts = 0, most = 0;
            rig_begin(&r, families[i].family, tools, "\"required\"", one, families[i].has_args);
            for (int k = 0; k < 60; k++) {
                static char text[20000];
                if (!random_text(&r, text, sizeof text)) continue;
                int n = read_calls(&r, text);
                if (n < 1 || (one && n != 1)) fail_msg("%d calls in '%s'", n, text);
                if (n > most) most = n;
                n_texts++;
            }
            bool is_single = one || r.answers.form.marks->next_message; /* a call ends an answer of gpt-oss */
            if (n_texts < 50 || (!is_single && most < 2)) fail_msg("%s: %d texts", families[i].family, n_texts);
            rig_end(&r);
        }
}

/* ---- schemas that cannot be enforced ------------------------------------------------------------------------- */

static void a_schema_that_cannot_be_enforced_is_reported(void **state) {
    (void)state;
    static const struct {
        const char *tools, *choice, *error, *warning;
    } cases[] = {
        {"[" WEATHER ", " ODD("false") "]", "\"auto\"", NULL,
         "the arguments of the tool 'odd' are not constrained by its schema"},
        {"[" WEATHER ", " ODD("true") "]", "\"auto\"", "tools[1] ('odd'): JSON schema, at #", NULL},
        {"[" WEATHER ", " ODD("false") "]", "\"required\"", "tools[1] ('odd'): JSON schema, at #", NULL},
        {"[" ODD("true") ", " WEATHER "]", "{\"type\": \"function\", \"function\": {\"name\": \"weather\"}}", NULL,
         NULL},
        {"[" VAGUE "]", "\"auto\"", "tools[0] ('vague'): ", NULL},
        {"[" WEATHER "]", "\"auto\"", NULL, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Rig r;
        rig_begin(&r, "chatml", cases[i].tools, cases[i].choice, false, false);
        const char *warning = r.call.plan.n_warnings ? r.call.plan.warnings[0] : "";
        if (cases[i].error && (!r.status || !strstr(r.call.error.message, cases[i].error)))
            fail_msg("%s: %d '%s'", cases[i].tools, r.status, r.call.error.message);
        if (!cases[i].error && r.status) fail_msg("%s", r.call.error.message);
        if (cases[i].warning ? !strstr(warning, cases[i].warning) : *warning != '\0') fail_msg("'%s'", warning);
        if (cases[i].warning) {
            assert_int_equal(judge(&r, "<tool_call>{\"name\": \"odd\", \"arguments\": {\"x\": [1]}}</tool_call>"),
                             WHOLE);
            assert_int_equal(judge(&r, "<tool_call>{\"name\": \"weather\", \"arguments\": {\"x\""), REFUSED);
        }
        rig_end(&r);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_by_family),
        cmocka_unit_test(a_schema_for_the_answer_beside_tools),
        cmocka_unit_test(what_is_forced_is_read_as_calls),
        cmocka_unit_test(a_schema_that_cannot_be_enforced_is_reported),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}

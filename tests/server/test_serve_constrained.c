/* test_serve_constrained.c - texts that are constrained to schemas, grammars and expressions by the fields of OpenAI,
 * llama.cpp and vLLM; errors in these are reported, and the server continues. */
#include "serve_rig.h"

#include "base/system.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static ServeRig server;

static int start(void **state) {
    (void)state;
    serve_start(&server, "-t 2 -c 512 --parallel 4 --draft ngram-trie --draft suffix");
    return 0;
}

static int stop(void **state) {
    (void)state;
    return serve_stop(&server);
}

#define SCHEMA \
    "{\"type\": \"object\", \"properties\": {\"name\": {\"type\": \"string\", \"maxLength\": 12}, \"age\": " \
    "{\"type\": " \
    "\"integer\", \"minimum\": 1, \"maximum\": 20}}, \"required\": [\"name\", \"age\"], \"additionalProperties\": " \
    "false}"
#define CHAT "\"messages\": [{\"role\": \"user\", \"content\": \"A dog\"}], \"max_tokens\": 150, \"seed\": 9"
#define TEXT "\"prompt\": \"A dog\", \"max_tokens\": 150, \"seed\": 9"

static json_t *ask(const char *path, const char *fields, const char *draft) {
    char body[1400];
    snprintf(body, sizeof body, "{%s, \"tree_budget\": 8, \"draft\": %s}", fields, draft);
    return serve_json(&server, path, 200, body);
}

/* Each form of the request gives a dog, and the same one with drafts. */
static void a_schema_holds_in_every_form(void **state) {
    (void)state;
    static const struct {
        const char *path, *fields, *text;
    } cases[] = {
        {"/v1/chat/completions",
         CHAT
         ", \"response_format\": {\"type\": \"json_schema\", \"json_schema\": {\"name\": \"dog\", \"strict\": true, "
         "\"schema\": " SCHEMA "}}",
         "choices.0.message.content"},
        {"/v1/chat/completions", CHAT ", \"response_format\": {\"type\": \"json_object\", \"schema\": " SCHEMA "}",
         "choices.0.message.content"},
        {"/v1/chat/completions", CHAT ", \"json_schema\": " SCHEMA, "choices.0.message.content"},
        {"/v1/completions", TEXT ", \"structured_outputs\": {\"json\": " SCHEMA "}", "choices.0.text"},
        {"/v1/completions", TEXT ", \"guided_json\": " SCHEMA, "choices.0.text"},
        {"/completion", TEXT ", \"json_schema\": " SCHEMA, "content"},
        {"/v1/responses",
         "\"input\": \"A dog\", \"max_output_tokens\": 150, \"seed\": 9, \"text\": {\"format\": {\"type\": "
         "\"json_schema\", \"name\": \"dog\", \"schema\": " SCHEMA "}}",
         "output.0.content.0.text"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *drafted = ask(cases[i].path, cases[i].fields, "null"),
               *plain = ask(cases[i].path, cases[i].fields, "\"none\"");
        const char *text = json_text_at(drafted, cases[i].text);
        json_t *dog = json_loads(text, 0, NULL);
        if (!dog || json_object_size(dog) != 2) fail_msg("%s is not a dog", text);
        assert_true(json_int_at(dog, "age") >= 1 && json_int_at(dog, "age") <= 20);
        assert_true(strlen(json_text_at(dog, "name")) <= 12 * 4);
        assert_string_equal(json_text_at(plain, cases[i].text), text);
        assert_true(json_int_at(drafted, "timings.draft_n_accepted") > 0);
        assert_int_equal(json_int_at(plain, "timings.draft_n"), 0);
        json_decref(dog), json_decref(drafted), json_decref(plain);
    }
}

static void grammars_expressions_choices_and_objects(void **state) {
    (void)state;
    static const struct {
        const char *fields;
        const char *texts[3]; /* one of them, or any JSON object */
    } cases[] = {
        {TEXT ", \"grammar\": \"root ::= \\\"wag \\\" tail\\ntail ::= \\\"left\\\" | \\\"right\\\"\"",
         {"wag left", "wag right"}},
        {TEXT ", \"guided_grammar\": \"root ::= \\\"bark\\\"\"", {"bark"}},
        {TEXT ", \"guided_regex\": \"(woof){2}\"", {"woofwoof"}},
        {TEXT ", \"structured_outputs\": {\"regex\": \"[ab]c\", \"json\": null}", {"ac", "bc"}},
        {TEXT ", \"structured_outputs\": {\"grammar\": \"root ::= \\\"x\\\"\"}", {"x"}},
        {TEXT ", \"structured_outputs\": {\"choice\": [\"a\\\"b\", \"c\\\\d\", \"\\u00e9\\n\"]}",
         {"a\"b", "c\\d", "\xC3\xA9\n"}},
        {TEXT ", \"guided_choice\": [\"only\"]", {"only"}},
        {TEXT ", \"response_format\": {\"type\": \"json_object\"}", {NULL}},
        {TEXT ", \"structured_outputs\": {\"json_object\": true}", {NULL}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *drafted = ask("/v1/completions", cases[i].fields, "null"),
               *plain = ask("/v1/completions", cases[i].fields, "[]");
        const char *text = json_text_at(drafted, "choices.0.text");
        bool fits = false;
        for (int k = 0; k < 3 && cases[i].texts[k]; k++) fits = fits || strcmp(cases[i].texts[k], text) == 0;
        if (!cases[i].texts[0]) {
            json_t *object = json_loads(text, 0, NULL);
            fits = json_is_object(object) || strcmp(json_text_at(drafted, "choices.0.finish_reason"), "length") == 0;
            json_decref(object);
        }
        if (!fits) fail_msg("%s: '%s'", cases[i].fields, text);
        assert_string_equal(json_text_at(plain, "choices.0.text"), text);
        json_decref(drafted), json_decref(plain);
    }
}

/* Log-probabilities of constrained text are the model's own, and n choices share the grammar. */
static void with_logprobs_choices_and_biases(void **state) {
    (void)state;
    static const char fields[] = TEXT ", \"n\": 3, \"logprobs\": 1, \"json_schema\": " SCHEMA
                                      ", \"logit_bias\": [[\"1\", false]]";
    json_t *drafted = ask("/v1/completions", fields, "null"), *plain = ask("/v1/completions", fields, "\"none\"");
    assert_true(json_equal(json_at(drafted, "choices"), json_at(plain, "choices")));
    assert_int_equal(json_array_size(json_at(plain, "choices")), 3);
    json_decref(drafted), json_decref(plain);
}

static void a_schema_is_compiled_once(void **state) {
    (void)state;
    double queries = serve_metric(&server, "forerun_grammar_cache_queries_total"),
           hits = serve_metric(&server, "forerun_grammar_cache_hits_total"),
           entries = serve_metric(&server, "forerun_grammar_cache_entries"),
           ended = serve_metric(&server, "forerun_constrained_requests_total");
    static const char *const bodies[] = {
        "{" TEXT ", \"json_schema\": {\"enum\": [\"first\", 0.1]}}",
        "{" TEXT ", \"json_schema\": {  \"enum\" :\n[ \"first\", 1e-1]  }}",
        "{" TEXT ", \"response_format\": {\"type\": \"json_schema\", \"json_schema\": {\"schema\": {\"enum\": "
        "[\"first\", 0.1]}}}}"};
    for (int i = 0; i < 3; i++) {
        json_t *j = serve_json(&server, "/v1/completions", 200, bodies[i]);
        const char *text = json_text_at(j, "choices.0.text");
        assert_true(strcmp(text, "\"first\"") == 0 || strcmp(text, "0.1") == 0);
        json_decref(j);
    }
    assert_true(serve_metric(&server, "forerun_grammar_cache_queries_total") == queries + 3);
    assert_true(serve_metric(&server, "forerun_grammar_cache_hits_total") == hits + 2);
    assert_true(serve_metric(&server, "forerun_grammar_cache_entries") == entries + 1);
    assert_true(serve_metric(&server, "forerun_grammar_cache_bytes") > 1000);
    assert_true(serve_metric(&server, "forerun_constrained_requests_total") == ended + 3);
}

/* Sends more grammars than are kept, one after the other: those that no request holds are dropped. */
static void the_cache_is_bounded(void **state) {
    (void)state;
    for (int i = 0; i < 80; i++) {
        char body[200];
        snprintf(body, sizeof body, "{\"prompt\": \"A\", \"max_tokens\": 2, \"grammar\": \"root ::= \\\"x%d\\\"\"}", i);
        json_decref(serve_json(&server, "/v1/completions", 200, body));
    }
    double entries = serve_metric(&server, "forerun_grammar_cache_entries");
    if (entries < 60 || entries > 65) fail_msg("%g grammars are kept", entries);
}

static void refusals_name_the_field(void **state) {
    (void)state;
    static const struct {
        const char *path, *fields, *param, *names;
    } cases[] = {
        {"/v1/chat/completions", CHAT ", \"response_format\": {\"type\": \"xml\"}", "response_format", "json_schema"},
        {"/v1/chat/completions", CHAT ", \"response_format\": \"json\"", "response_format", "json_schema"},
        {"/v1/chat/completions", CHAT ", \"response_format\": {\"type\": \"json_schema\"}", "response_format",
         "'schema'"},
        {"/v1/chat/completions",
         CHAT ", \"response_format\": {\"type\": \"json_schema\", \"json_schema\": {\"name\": \"x\", \"schema\": [1]}}",
         "response_format", "object"},
        {"/v1/chat/completions",
         CHAT ", \"response_format\": {\"type\": \"json_schema\", \"json_schema\": {\"name\": \"x\", \"schema\": "
              "{\"properties\": {\"a\": {\"type\": \"objekt\"}}}}}",
         "response_format", "#/properties/a"},
        {"/v1/responses",
         "\"input\": \"x\", \"text\": {\"format\": {\"type\": \"json_schema\", \"name\": \"x\", \"schema\": {\"not\": "
         "{}}}}",
         "text.format", "'not'"},
        {"/v1/responses", "\"input\": \"x\", \"text\": {\"format\": {\"type\": \"json_schema\", \"name\": \"x\"}}",
         "text.format", "'schema'"},
        {"/completion", TEXT ", \"json_schema\": true", "json_schema", "object"},
        {"/completion", TEXT ", \"json_schema\": {\"$ref\": \"#\"}", "json_schema", "comes to an end"},
        {"/completion", TEXT ", \"json_schema\": {\"$ref\": \"http://x/y\"}", "json_schema", "reference"},
        {"/completion", TEXT ", \"json_schema\": {\"type\": \"integer\", \"minimum\": 5, \"maximum\": 4}",
         "json_schema", "no text"},
        {"/completion", TEXT ", \"json_schema\": {\"type\": \"string\", \"pattern\": \"(?=x)\"}", "json_schema",
         "lookahead"},
        {"/completion", TEXT ", \"json_schema\": \"{\"", "json_schema", "JSON"},
        {"/completion", TEXT ", \"grammar\": \"root ::= (\"", "grammar", "line 1"},
        {"/completion", TEXT ", \"grammar\": \"root ::= other\"", "grammar", "other"},
        {"/completion", TEXT ", \"grammar\": \"root ::= root \\\"a\\\" | \\\"b\\\"\"", "grammar", "recurs"},
        {"/completion", TEXT ", \"grammar\": \"root ::= \\\"a\\\"{4000000}\"", "grammar", "1000000"},
        {"/completion", TEXT ", \"grammar\": {}", "grammar", "string"},
        {"/completion", TEXT ", \"grammar\": \"root ::= \\\"a\\\"\", \"json_schema\": {}", "grammar", "exclude"},
        {"/completion", TEXT ", \"json_schema\": {}, \"ignore_eos\": true", "ignore_eos", "json_schema"},
        {"/v1/completions", TEXT ", \"guided_regex\": \"(\"", "guided_regex", ""},
        {"/v1/completions", TEXT ", \"guided_choice\": []", "guided_choice", "list"},
        {"/v1/completions", TEXT ", \"guided_choice\": [1]", "guided_choice", "list"},
        {"/v1/completions", TEXT ", \"structured_outputs\": {\"structural_tag\": \"x\"}", "structured_outputs",
         "structural_tag"},
        {"/v1/completions", TEXT ", \"structured_outputs\": {\"regex\": 1}", "structured_outputs", "regex"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char body[1000];
        snprintf(body, sizeof body, "{%s}", cases[i].fields);
        Answer a = serve_post(&server, cases[i].path, body);
        json_t *j = json_loads(a.body, 0, NULL);
        if (a.status != 400) fail_msg("%s: status %d, %s", body, a.status, a.body);
        if (strcmp(json_text_at(j, "error.param"), cases[i].param) != 0 ||
            !strstr(json_text_at(j, "error.message"), cases[i].names))
            fail_msg("%s: %s", body, a.body);
        json_decref(j);
        answer_free(&a);
    }
}

/* Returns a text of n bytes with `inner` repeated as often as it fits. */
static char *body_around(const char *before, const char *inner, size_t n, const char *after) {
    char *body = malloc(strlen(before) + n + strlen(inner) + strlen(after) + 1), *at = body;
    at += sprintf(at, "%s", before);
    for (size_t i = 0; i < n; i += strlen(inner)) at += sprintf(at, "%s", inner);
    sprintf(at, "%s", after);
    return body;
}

static void large_and_deep_schemas_are_refused(void **state) {
    (void)state;
    char *large = body_around("{\"prompt\": \"A\", \"json_schema\": {\"enum\": [1",
                              ", \"xxxxxxxxxxxxxxxxxxxxxxxxxxxx\"", 5 << 20, "]}}"),
         *deep = body_around("{\"prompt\": \"A\", \"json_schema\": {\"a\": ", "[", 3000, "}}"), nested[16000];
    size_t n = (size_t)sprintf(nested, "{\"prompt\": \"A\", \"json_schema\": ");
    for (int i = 0; i < 900; i++) n += (size_t)sprintf(nested + n, "{\"items\":");
    n += (size_t)sprintf(nested + n, "{}");
    for (int i = 0; i < 900; i++) nested[n++] = '}';
    strcpy(nested + n, "}");
    json_t *a = serve_json(&server, "/v1/completions", 400, large),
           *b = serve_json(&server, "/v1/completions", 400, deep),
           *c = serve_json(&server, "/v1/completions", 400, nested);
    assert_string_equal(json_text_at(a, "error.param"), "json_schema");
    assert_string_equal(json_text_at(b, "error.code"), "invalid_json");
    assert_string_equal(json_text_at(c, "error.param"), "json_schema");
    json_decref(a), json_decref(b), json_decref(c);
    free(large), free(deep);
    json_decref(serve_json(&server, "/v1/completions", 200, "{\"prompt\": \"x\", \"max_tokens\": 2}"));
}

/* ---- grammars that need too much ------------------------------------------------------------------------ */

static char *regex_body(const char *before, const char *part, size_t n, const char *after) {
    char *inner = body_around(before, part, n * strlen(part), after);
    char *body = body_around("{\"prompt\": \"A\", \"max_tokens\": 2, \"guided_regex\": \"", inner, 1, "\"}");
    free(inner);
    return body;
}

static void limits_are_named(void **state) {
    (void)state;
    static const struct {
        const char *before, *part;
        size_t n;
        const char *after, *names;
    } cases[] = {
        {"", "a?", 5000, "", "8000000 transitions, which is the limit"},
        {"(", ".*|", 21000, ".*)x",
         "20000 places of it, which is the limit"}, /* this is found when the first mask is computed */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *body = regex_body(cases[i].before, cases[i].part, cases[i].n, cases[i].after);
        json_t *j = serve_json(&server, "/v1/completions", 400, body);
        if (!strstr(json_text_at(j, "error.message"), cases[i].names)) fail_msg("%s", json_text_at(j, "error.message"));
        json_decref(j);
        free(body);
    }
}

enum { N_HEAVY = 12 };

/* Sends many requests whose grammars take long to compile. */
static void send_heavy(const ServeRig *s, const char *body, int fds[N_HEAVY]) {
    size_t size = strlen(body) + 1000;
    char *text = malloc(size);
    serve_format_post(text, size, "/v1/completions", body);
    for (int i = 0; i < N_HEAVY; i++) {
        fds[i] = serve_connect(s);
        serve_send(fds[i], text);
    }
    free(text);
}

/* Grammars for which no client waits are not compiled: all of them would take as long as N_HEAVY requests. */
static void a_compilation_ends_with_its_client_and_with_the_server(void **state) {
    (void)state;
    ServeRig s;
    int fds[N_HEAVY];
    char *body = regex_body("", "a?", 5000, "");
    serve_start(&s, "-t 1 -c 128 --draft none");
    double start_s = clock_s();
    json_decref(serve_json(&s, "/v1/completions", 400, body));
    double once_s = clock_s() - start_s;
    start_s = clock_s();
    send_heavy(&s, body, fds);
    for (int i = 0; i < N_HEAVY; i++) close(fds[i]);
    json_decref(serve_json(&s, "/v1/completions", 200, "{\"prompt\": \"x\", \"max_tokens\": 2}"));
    double gone_s = clock_s() - start_s;
    start_s = clock_s();
    send_heavy(&s, body, fds);
    kill(s.pid, SIGTERM);
    Answer a = {0};
    do { /* until the signal has arrived */
        answer_free(&a);
        a = serve_get(&s, "/health");
    } while (a.status == 200);
    answer_free(&a);
    kill(s.pid, SIGTERM);
    assert_int_equal(serve_wait_end(&s), 0);
    double end_s = clock_s() - start_s;
    for (int i = 0; i < N_HEAVY; i++) close(fds[i]);
    print_message("one compilation %.2f s; all hung up after %.2f s; the server ended after %.2f s\n", once_s, gone_s,
                  end_s);
    assert_true(gone_s < 0.6 * N_HEAVY * once_s && end_s < 0.6 * N_HEAVY * once_s);
    free(body);
}

int main(int argc, char **argv) {
    (void)argc;
    serve_rig_begin(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_schema_holds_in_every_form),
        cmocka_unit_test(grammars_expressions_choices_and_objects),
        cmocka_unit_test(with_logprobs_choices_and_biases),
        cmocka_unit_test(a_schema_is_compiled_once),
        cmocka_unit_test(the_cache_is_bounded),
        cmocka_unit_test(refusals_name_the_field),
        cmocka_unit_test(large_and_deep_schemas_are_refused),
        cmocka_unit_test(limits_are_named),
        cmocka_unit_test(a_compilation_ends_with_its_client_and_with_the_server),
    };
    return cmocka_run_group_tests(tests, start, stop);
}

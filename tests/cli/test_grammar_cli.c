/* test_grammar_cli.c - `forerun run` with a schema, a grammar or an expression: the text is the same with and without
 * drafts, and errors in the files are reported. */
#include "cli_rig.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RUN "run -m models/target.gguf -t 1 -c 256 -n 120 -p 'A dog' --temp 0.8 --seed 3 "

static const char *write_file(const char *name, const char *text) {
    static char path[4][700];
    static int n;
    char *to = path[n++ % 4];
    snprintf(to, sizeof path[0], "%s/%s", cli_rig_folder(), name);
    FILE *f = fopen(to, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    return to;
}

/* Runs with drafts, and checks that the text is that of plain decoding. */
static void generate(const char *option, const char *value, char *text, size_t size) {
    char args[1200], plain[4000];
    snprintf(args, sizeof args, RUN "--draft none %s '%s'", option, value);
    assert_int_equal(cli_run(args, plain, sizeof plain), 0);
    snprintf(args, sizeof args, RUN "--draft ngram-trie %s '%s'", option, value);
    assert_int_equal(cli_run(args, text, size), 0);
    assert_string_equal(text, plain);
}

static void a_schema_of_a_file_holds(void **state) {
    (void)state;
    char text[4000];
    const char *path = write_file("dog.json",
                                  "{\"type\": \"object\", \"properties\": {\"name\": {\"enum\": [\"Rex\", \"Bella\"]}, "
                                  "\"age\": {\"type\": \"integer\", \"minimum\": 1, \"maximum\": 20}}, "
                                  "\"required\": [\"name\", \"age\"], \"additionalProperties\": false}\n");
    generate("--json-schema", path, text, sizeof text);
    const char *object = strchr(text, '{'); /* the prompt may come before it */
    json_t *dog = object ? json_loads(object, JSON_DISABLE_EOF_CHECK, NULL) : NULL;
    if (!dog || json_object_size(dog) != 2) fail_msg("no dog: '%s'", text);
    json_int_t age = json_integer_value(json_object_get(dog, "age"));
    assert_true(age >= 1 && age <= 20);
    json_decref(dog);
}

static void a_schema_may_be_the_argument(void **state) {
    (void)state;
    char text[4000];
    generate("--json-schema", " {\"enum\": [\"woof woof\"]}", text, sizeof text);
    assert_non_null(strstr(text, "\"woof woof\""));
    cli_expect(RUN "--json-schema '{\"type\": \"objekt\"}'", 2, "--json-schema: ");
}

static void a_grammar_of_a_file_and_an_expression_hold(void **state) {
    (void)state;
    char text[4000];
    generate("--grammar", write_file("wag.gbnf", "root ::= \"wag \" tail\ntail ::= \"left\" | \"right\"\n"), text,
             sizeof text);
    if (!strstr(text, "wag left") && !strstr(text, "wag right")) fail_msg("'%s'", text);
    generate("--regex", "(woof){2}", text, sizeof text);
    assert_non_null(strstr(text, "woofwoof"));
}

static void errors_are_reported(void **state) {
    (void)state;
    static const struct {
        const char *option, *file, *words;
    } cases[] = {
        {"--json-schema", "{\"type\": \"objekt\"}", "objekt"},
        {"--json-schema", "{", "JSON"},
        {"--json-schema", "{\"not\": {}}", "'not'"},
        {"--grammar", "root ::= (", "line 1"},
        {"--grammar", "other ::= \"a\"", "root"},
    };
    char args[1200];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(args, sizeof args, RUN "%s %s", cases[i].option, write_file("odd", cases[i].file));
        cli_expect(args, 2, cases[i].words);
    }
    snprintf(args, sizeof args, RUN "--json-schema %s/none.json", cli_rig_folder());
    cli_expect(args, 1, "none.json");
}

int main(int argc, char **argv) {
    (void)argc;
    cli_rig_begin(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_schema_of_a_file_holds),
        cmocka_unit_test(a_schema_may_be_the_argument),
        cmocka_unit_test(a_grammar_of_a_file_and_an_expression_hold),
        cmocka_unit_test(errors_are_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_grammar_readers.c - tests which texts match GBNF and regular expressions, and which grammars are refused with
 * which errors. */
#include "grammar_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Case {
    const char *grammar;
    const char *yes[8], *no[8];
} Case;

static void check(GrammarKind kind, const Case *c) {
    GrammarRig r;
    if (!grammar_rig_open(&r, kind, c->grammar)) fail_msg("%s: %s", c->grammar, r.err.message);
    for (int i = 0; i < 8 && c->yes[i]; i++)
        if (!grammar_rig_matches(&r, c->yes[i])) fail_msg("%s: '%s' is refused", c->grammar, c->yes[i]);
    for (int i = 0; i < 8 && c->no[i]; i++)
        if (grammar_rig_matches(&r, c->no[i])) fail_msg("%s: '%s' is accepted", c->grammar, c->no[i]);
    grammar_rig_close(&r);
}

static void grammars_in_gbnf(void **state) {
    (void)state;
    static const Case cases[] = {
        {"root ::= \"a\" \"b\"", {"ab"}, {"a", "b", "abb", ""}},
        {"root ::= \"a\" | \"b\" |\n \"c\"", {"a", "b", "c"}, {"ab", ""}},
        {"root ::= x*\nx ::= [a-c]", {"", "a", "abc"}, {"d", "ad"}},
        {"root ::= [^a-c\\]\\n] [\\x41-\\x43-]", {"dA", "\xC3\xA9-", "xC"}, {"aA", "]A", "\nA", "dD", "d"}},
        {"root ::= .{2}", {"ab", "\xC3\xA9\xE4\xB8\xAD", "\n\n"}, {"a", "abc", "\xC3"}},
        {"root ::= \"\\\"\\\\\\n\\t\\x7e\\u00e9\\U0001F600\"", {"\"\\\n\t~\xC3\xA9\xF0\x9F\x98\x80"}, {"\"\\"}},
        {"root ::= (\n  \"a\" # a comment ( \"\n  | \"b\"\n)+ end # the end\n\n# more\nend ::= \";\"?",
         {"a", "ab;", "bba"},
         {";", "c"}},
        {"root ::= \"x\"{3} \"y\"{1,} \"z\"{,2} \"w\"{0,1}",
         {"xxxy", "xxxyyyzzw"},
         {"xxy", "xxx", "xxxyzzz", "xxxyww"}},
        {"my-rule_2 ::= \"q\"\nroot ::= my-rule_2 root | my-rule_2", {"q", "qqq"}, {"", "x"}},
        {"root ::= \"(\" root \")\" | \"\"", {"", "()", "((()))"}, {"(", "())"}},
        {"root ::= %text \"<c>\" (%mark \"<c>\" [0-9]+ %mark \"</c>\" %text \"<c>\")*",
         {"", "<b> a", "a<c>12</c>", "<c>1</c><<c>2</c>\xFF<c"},
         {"<c>", "a<c>x", "<c>1</c", "<c>1</c><c>"}},
        {"root ::= %text \"<\" \"ab\"", {"", "a", "aab", "b", "ba", "a\xC3"}, {"ab", "abc", "a<"}},
        {"root ::= x %json {\"type\": \"object\", \"properties\": {\"}\\\"\": {\"$ref\": \"#/$defs/n\"}}, \"$defs\": "
         "{\"n\": "
         "{\"type\": \"integer\"}}} x\nx ::= \"-\"",
         {"-{}-", "-{\"}\\\"\": 5}-"},
         {"-{\"}\\\"\": 5.5}-", "-{}"}},
        {"root ::= [a] [-a] [a-]", {"a-a", "aa-"}, {"abb"}},
        {"ws ::= | \" \" ws\nroot ::= \"a\" ws \"b\"", {"ab", "a   b"}, {"a b ", "b"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check(GRAMMAR_GBNF, &cases[i]);
}

static void expressions(void **state) {
    (void)state;
    static const Case cases[] = {
        {"abc", {"abc"}, {"ab", "xabc", "abcx"}},
        {"^a|b$", {"a", "b"}, {"ab", ""}},
        {"[a-c]+?x?"
         "?(?:yz){2}",
         {"ayzyz", "abcxyzyz"},
         {"xyzyz", "ayz"}},
        {"\\d{2,3}\\.\\w\\s\\S", {"12.a b", "123._\tx"}, {"1.a b", "1234.a b", "12.- b", "12.a  "}},
        {"[\\d\\-x]+[^\\W_]", {"1-x5", "xz"}, {"1_", "-"}},
        {".", {"a", "\xE4\xB8\xAD", "\t"}, {"\n", "\r", "\xE2\x80\xA8", "ab", "\xFF", "\xC0\x80", "\xED\xA0\x80"}},
        {"\\x41\\u0042\\u{1F600}\\uD83D\\uDE00\\t\\/\\0?", {"AB\xF0\x9F\x98\x80\xF0\x9F\x98\x80\t/"}, {"AB"}},
        {"(?<year>[0-9]{4})-(a|)", {"2024-", "2024-a"}, {"2024"}},
        {"{\"a\": [0-9]}", {"{\"a\": 1}"}, {"{}"}},
        {"a{2}{3}", {"aaaaaa"}, {"aaaaa", "aa"}},
        {"", {""}, {"a"}},
        {"[^]?", {"", "\n"}, {"ab"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check(GRAMMAR_REGEX, &cases[i]);
}

static void long_counts_take_little(void **state) {
    (void)state;
    GrammarRig r;
    char text[5001];
    assert_true(grammar_rig_open(&r, GRAMMAR_REGEX, "[a-z]{17,5000}"));
    assert_true(r.automaton->n_nodes < 10);
    memset(text, 'q', sizeof text);
    for (size_t n = 1; n <= sizeof text; n += n < 20 || n > 4990 ? 1 : 415)
        assert_int_equal(grammar_rig_read(&r, text, n)->accepts, n >= 17 && n <= 5000);
    grammar_rig_close(&r);
}

static void what_is_refused_is_named(void **state) {
    (void)state;
    static const struct {
        GrammarKind kind;
        const char *text, *message;
    } cases[] = {
        {GRAMMAR_GBNF, "", "has no rule 'root'"},
        {GRAMMAR_GBNF, "rot ::= \"a\"", "has no rule 'root'"},
        {GRAMMAR_GBNF, "root ::= x", "the rule 'x' is used, but not defined"},
        {GRAMMAR_GBNF, "root ::= \"a", "line 1, column 12: a literal does not end"},
        {GRAMMAR_GBNF, "root ::= [a", "a class does not end"},
        {GRAMMAR_GBNF, "root ::= [b-a]", "a range of a class is empty"},
        {GRAMMAR_GBNF, "root ::= (\"a\"\nx ::= \"b\"", "line 2, column 1: a group does not end"},
        {GRAMMAR_GBNF, "root ::= \"a\" )", "column 14: expected an item"},
        {GRAMMAR_GBNF, "root ::= \"\\q\"", "an unknown escape"},
        {GRAMMAR_GBNF, "root ::= \"\\xZ\"", "too few hexadecimal digits"},
        {GRAMMAR_GBNF, "root ::= \"\\uD800\"", "no character of Unicode"},
        {GRAMMAR_GBNF, "root ::= \"a\"{3,2}", "the least number of repetitions is above the greatest"},
        {GRAMMAR_GBNF, "root ::= \"a\"{9999999}", "more than 1000000 repetitions"},
        {GRAMMAR_GBNF, "root ::= \"\xFF\"", "not valid UTF-8"},
        {GRAMMAR_GBNF, "root ::= %txt \"a\"", "known are %text, %mark and %json"},
        {GRAMMAR_GBNF, "root ::= %text x", "expected a literal after %text or %mark"},
        {GRAMMAR_GBNF, "root ::= %mark \"\"", "must have 1 to 200 bytes"},
        {GRAMMAR_GBNF, "root ::= %text \"aba\"", "must not end as it begins"},
        {GRAMMAR_GBNF, "root ::= %text \"b\" \"abc\"", "must not contain the first"},
        {GRAMMAR_GBNF, "root ::= %json 5", "expected an object with a JSON schema"},
        {GRAMMAR_GBNF, "root ::= %json {\"type\": \"object\"", "expected an object with a JSON schema"},
        {GRAMMAR_GBNF, "root ::= %json {\"not\": {}}", "JSON schema, at #: the keyword 'not'"},
        {GRAMMAR_GBNF, "root ::= <[12]>", "tokens as items of a grammar are not supported"},
        {GRAMMAR_GBNF, "root ::= \"a\"\nroot ::= \"b\"", "a rule is defined twice"},
        {GRAMMAR_GBNF, "root ::= root \"a\" | \"a\"", "the rule 'root' is left-recursive"},
        {GRAMMAR_GBNF, "root ::= x \"a\" | \"c\"\nx ::= y? root\ny ::= \"b\"", "is left-recursive"},
        {GRAMMAR_GBNF, "root ::= \"a\" root", "no text matches the grammar"},
        {GRAMMAR_GBNF, "root ::= ((((a))))", "the rule 'a' is used, but not defined"},
        {GRAMMAR_REGEX, "a(", "a group does not end"},
        {GRAMMAR_REGEX, "a)", "a ')' without '('"},
        {GRAMMAR_REGEX, "*a", "nothing to repeat"},
        {GRAMMAR_REGEX, "(?=a)", "lookahead, lookbehind and flags are not supported"},
        {GRAMMAR_REGEX, "(?<!a)", "lookahead, lookbehind"},
        {GRAMMAR_REGEX, "(a)\\1", "back references are not supported"},
        {GRAMMAR_REGEX, "\\ba", "word boundaries"},
        {GRAMMAR_REGEX, "\\p{L}", "Unicode properties"},
        {GRAMMAR_REGEX, "a^b", "^ and $ are supported only where"},
        {GRAMMAR_REGEX, "(a$)b", "^ and $ are supported only where"},
        {GRAMMAR_REGEX, "[a-\\d]", "ends with a class"},
        {GRAMMAR_REGEX, "a\\", "ends with a backslash"},
        {GRAMMAR_REGEX, "\\uD83Dx", "half of a surrogate pair"},
        {GRAMMAR_REGEX, "[]", "no text matches"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        GrammarRig r;
        if (grammar_rig_open(&r, cases[i].kind, cases[i].text)) fail_msg("'%s' is read", cases[i].text);
        if (!strstr(r.err.message, cases[i].message)) fail_msg("'%s': '%s'", cases[i].text, r.err.message);
    }
}

/* Nesting, copies and closures are bounded. */
static void hostile_texts_end_with_an_error(void **state) {
    (void)state;
    enum { N = 200000 };
    static const struct {
        GrammarKind kind;
        const char *before, *part;
        int n;
        const char *after;
    } cases[] = {
        {GRAMMAR_GBNF, "root ::= ", "(", N, "\"a\""},
        {GRAMMAR_REGEX, "", "(", N, "a"},
        {GRAMMAR_REGEX, "", "(((((a{1000}){1000}){1000}){1000}){1000})", 1, ""},
        {GRAMMAR_REGEX, "", "a?", N / 10, ""},
        {GRAMMAR_REGEX, "a", "+", N / 10, ""},
        {GRAMMAR_JSON_SCHEMA, "", "[", N, ""},
        {GRAMMAR_JSON_SCHEMA, "", "{\"items\":", 5000, "{}"},
        {GRAMMAR_JSON_SCHEMA, "{\"$ref\":\"#\"", "", 0, "}"},
        {GRAMMAR_JSON_SCHEMA, "{\"allOf\":[{\"$ref\":\"#\"}]", "", 0, "}"},
        {GRAMMAR_JSON_SCHEMA, "{\"anyOf\":[{\"$ref\":\"#\"},{\"$ref\":\"#\"}]", "", 0, "}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t n_part = strlen(cases[i].part), n = strlen(cases[i].before), n_after = strlen(cases[i].after);
        char *text = malloc(n + n_part * (size_t)cases[i].n + n_after + 1);
        memcpy(text, cases[i].before, n);
        for (int k = 0; k < cases[i].n; k++, n += n_part) memcpy(text + n, cases[i].part, n_part);
        memcpy(text + n, cases[i].after, n_after + 1);
        GrammarRig r;
        if (grammar_rig_open(&r, cases[i].kind, text)) {
            grammar_rig_read(&r, "aaaaaaaaaaaaaaaaaaaaaaaa", 24);
            grammar_rig_close(&r);
        } else assert_true(r.err.message[0]);
        free(text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grammars_in_gbnf),
        cmocka_unit_test(expressions),
        cmocka_unit_test(long_counts_take_little),
        cmocka_unit_test(what_is_refused_is_named),
        cmocka_unit_test(hostile_texts_end_with_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

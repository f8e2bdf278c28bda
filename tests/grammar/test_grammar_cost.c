/* test_grammar_cost.c - the cost of compiling grammars, in counted steps: twice the text takes about twice the steps,
 * the work can be stopped, and grammars that need too much are refused with the name of the limit. */
#include "grammar_rig.h"
#include "vocab_build.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A part is written many times. In it, %d is its number and %n the next one; in `after`, %d is the number of parts. */
typedef struct Case {
    GrammarKind kind;
    const char *before, *part, *after;
} Case;

static char *write_part(char *at, const char *part, int number) {
    for (; *part; part++)
        if (part[0] == '%' && part[1] == 'd') at += sprintf(at, "%d", number), part++;
        else if (part[0] == '%' && part[1] == 'n') at += sprintf(at, "%d", number + 1), part++;
        else *at++ = *part;
    *at = '\0';
    return at;
}

static char *write_text(const Case *c, int n) {
    size_t n_part = strlen(c->part) + 20;
    char *text = malloc(strlen(c->before) + (size_t)n * n_part + strlen(c->after) + 20), *at = stpcpy(text, c->before);
    for (int i = 0; i < n; i++) at = write_part(at, c->part, i);
    write_part(at, c->after, n);
    return text;
}

static int64_t steps_of(const Case *c, int n) {
    char *text = write_text(c, n);
    GrammarRig r;
    if (!grammar_rig_open(&r, c->kind, text)) fail_msg("%d times %s: %s", n, c->part, r.err.message);
    int64_t steps = r.w.n_steps;
    grammar_rig_close(&r);
    free(text);
    return steps;
}

static void twice_the_text_takes_twice_the_steps(void **state) {
    (void)state;
    static const Case cases[] = {
        {GRAMMAR_REGEX, "(", ".*|", ".)x"},
        {GRAMMAR_REGEX, "", "[^a]{300}x|", "y"},
        {GRAMMAR_REGEX, "", "value%d|", "x"},
        {GRAMMAR_REGEX, "", "(value%d)b*|", "x"},
        {GRAMMAR_GBNF, "root ::= \"\" ", "| \"choice %d\"", ""},
        {GRAMMAR_GBNF, "root ::= r0\n", "r%d ::= \"a\" r%n | \"b\"\n", "r%d ::= \"\"\n"},
        {GRAMMAR_GBNF, "r0 ::= \"\"\n", "r%n ::= \"b\" r%d | r%d\n", "root ::= r%d\n"},
        {GRAMMAR_JSON_SCHEMA, "{\"enum\": [", "\"value%d\", ", "null]}"},
        {GRAMMAR_JSON_SCHEMA, "{\"enum\": [", "[%d, \"x\"], ", "null]}"},
        {GRAMMAR_JSON_SCHEMA, "{\"required\": [", "\"name%d\", ", "\"x\"]}"},
        {GRAMMAR_JSON_SCHEMA, "{\"properties\": {", "\"name%d\": {\"type\": \"string\"}, ", "\"x\": {}}}"},
        {GRAMMAR_JSON_SCHEMA, "{\"anyOf\": [", "{\"type\": \"string\", \"pattern\": \"^a%d.*\"}, ", "{}]}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t once = steps_of(&cases[i], 1000), twice = steps_of(&cases[i], 2000), more = steps_of(&cases[i], 4000);
        print_message("%s: %lld, %lld, %lld steps\n", cases[i].part, (long long)once, (long long)twice,
                      (long long)more);
        assert_true((double)twice < 2.3 * (double)once && (double)more < 2.3 * (double)twice);
    }
}

static void what_needs_too_much_is_refused_with_the_limit(void **state) {
    (void)state;
    static const struct {
        Case text;
        int n;
        const char *message;
    } cases[] = {
        {{GRAMMAR_REGEX, "", "a?", ""}, 5000, "more than 8000000 transitions, which is the limit"},
        {{GRAMMAR_REGEX, "", "[^a]|", "b"}, 500000, "which is the limit"},
        {{GRAMMAR_REGEX, "a", "{2}", ""}, 11, "more than 10 quantifiers in a row, which is the limit"},
        {{GRAMMAR_GBNF, "root ::= \"a\"", "{2}", ""}, 11, "more than 10 quantifiers in a row, which is the limit"},
        {{GRAMMAR_JSON_SCHEMA, "{\"enum\": [", "1, ", "2], \"type\": [\"string\", \"string\"]}"}, 900000, "no text"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *text = write_text(&cases[i].text, cases[i].n);
        GrammarRig r;
        if (grammar_rig_open(&r, cases[i].text.kind, text)) fail_msg("%s is read", cases[i].text.part);
        if (!strstr(r.err.message, cases[i].message)) fail_msg("%s: '%s'", cases[i].text.part, r.err.message);
        free(text);
    }
}

/* ---- stopping -------------------------------------------------------------------------------------------- */

typedef struct Patience {
    int n_looks, n_left;
} Patience;

static int should_stop(void *user) {
    Patience *p = user;
    p->n_looks++;
    return p->n_left-- == 0;
}

static void a_compilation_can_be_stopped(void **state) {
    (void)state;
    Tokenizer *tokenizer;
    TokenTrie *t;
    fr_error err;
    VocabSpec spec = vocab_build_tiny_bpe("gpt-2");
    if (vocab_build_open(&tokenizer, &spec, &err) || token_trie_open(&t, tokenizer, TINY_N_TOKENS, &err))
        fail_msg("%s", err.message);
    char *text = write_text(&(Case){GRAMMAR_REGEX, "(", ".*|", ".)x"}, 4000);
    for (int n = 0; n < 6; n++) {
        Grammar *g = NULL;
        Patience patience = {.n_left = n};
        GrammarStop stop = {should_stop, &patience};
        assert_int_equal(grammar_open(&g, t, GRAMMAR_REGEX, text, strlen(text), stop, &err), FR_ERR_CANCELLED);
        assert_null(g);
        assert_int_equal(patience.n_looks, n + 1);
    }
    Grammar *g = NULL;
    Patience patience = {.n_left = 1000000};
    if (grammar_open(&g, t, GRAMMAR_REGEX, text, strlen(text), (GrammarStop){should_stop, &patience}, &err))
        fail_msg("%s", err.message);
    assert_in_range(patience.n_looks, 8, 40); /* one every 65,536 steps */
    grammar_release(g);
    free(text);
    token_trie_close(t);
    tokenizer_close(tokenizer);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(twice_the_text_takes_twice_the_steps),
        cmocka_unit_test(what_needs_too_much_is_refused_with_the_limit),
        cmocka_unit_test(a_compilation_can_be_stopped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_grammar_states.c - compares the automaton and its states with a matcher that tries everything, on random
 * grammars and all short texts; also tests states that have moved to a fresh epoch, and limits. */
#include "grammar_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_GRAMMARS = 600, MAX_TEXT = 5 };

static uint64_t seed = 1;

static uint32_t below(uint32_t n) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33) % n;
}

/* ---- random grammars ------------------------------------------------------------------------------------- */

static const Expr *random_expr(ExprGrammar *g, int depth);

static const Expr *random_class(ExprGrammar *g) {
    static const uint32_t codes[] = {'a', 'b', 'c', 0xE9, 0xEA};
    CodeSet set = {0};
    for (uint32_t i = 0, n = 1 + below(3); i < n; i++) {
        uint32_t code = codes[below(5)];
        code_set_add(g->w, &set, code, code);
    }
    return expr_class(g->w, &set);
}

static const Expr *random_list(ExprGrammar *g, Expr *list, int depth) {
    for (uint32_t i = 0, n = below(4); i < n; i++) expr_add(g->w, list, random_expr(g, depth - 1));
    return list;
}

static const Expr *random_repeat(ExprGrammar *g, int depth) {
    int32_t min = (int32_t)below(4), max = below(2) ? EXPR_UNBOUNDED : min + (int32_t)below(below(4) ? 4 : 40);
    return expr_repeat(g->w, random_expr(g, depth - 1), min, max);
}

static const Expr *random_expr(ExprGrammar *g, int depth) {
    static const char *const literals[] = {"a", "b", "ab", "", "c\xC3\xA9", "\xC3\xA9", "ba"};
    switch (depth > 0 ? below(9) : below(2)) {
    case 0: return random_class(g);
    case 1: return expr_literal(g->w, literals[below(7)]);
    case 2: return random_list(g, expr_alt(g->w), depth);
    case 3: return random_repeat(g, depth);
    case 4: return expr_rule(g->w, (int32_t)below((uint32_t)g->n_rules));
    case 5: return expr_mark(g->w, below(2) ? "ab" : "b", 1);
    case 6: {
        static const char *const marks[] = {"ab", "c", "aab", "\xC3\xA9"}, *const beginnings[] = {"", "ba", "aa",
                                                                                                  "bbc"};
        const char *mark = marks[below(4)], *beginning = beginnings[below(4)];
        if (strstr(beginning, mark)) beginning = "";
        return expr_text(g->w, mark, strlen(mark), beginning, strlen(beginning));
    }
    default: return random_list(g, expr_seq(g->w), depth);
    }
}

static void random_grammar(ExprGrammar *g, void *user) {
    (void)user;
    int32_t n = 1 + (int32_t)below(4);
    for (int32_t i = 0; i < n; i++) expr_add_rule(g, "a rule");
    for (int32_t i = 0; i < n; i++) {
        const Expr *body = random_expr(g, 3);
        g->rules[i].body = body;
    }
}

/* All texts of at most MAX_TEXT bytes. */
static void check_texts(GrammarRig *r, char *text, size_t n, int *n_matches) {
    static const char bytes[] = "abc\xC3\xA9\xAA";
    const GrammarState *state = grammar_rig_read(r, text, n);
    bool want = grammar_rig_naive(r, text, n);
    if (state->accepts != want)
        fail_msg("'%.*s' %s, but %s", (int)n, text, want ? "matches" : "does not match",
                 want ? "is refused" : "is accepted");
    if (state->n > 0 && n <= 2) assert_true(grammar_rig_can_end(r, state));
    *n_matches += want;
    for (size_t i = 0; n < MAX_TEXT && i < sizeof bytes - 1; i++) {
        text[n] = bytes[i];
        check_texts(r, text, n + 1, n_matches);
    }
}

static void random_grammars_match_what_trying_everything_does(void **state) {
    (void)state;
    int n_open = 0, n_matches = 0;
    for (int i = 0; i < N_GRAMMARS; i++) {
        GrammarRig r;
        char text[MAX_TEXT];
        if (!grammar_rig_make(&r, random_grammar, NULL)) {
            if (!strstr(r.err.message, "left-recursive") && !strstr(r.err.message, "no text matches"))
                fail_msg("refused: %s", r.err.message);
            continue;
        }
        check_texts(&r, text, 0, &n_matches);
        grammar_rig_close(&r);
        n_open++;
    }
    print_message("%d grammars, %d matches\n", n_open, n_matches);
    assert_true(n_open > N_GRAMMARS / 4 && n_matches > 1000);
}

/* ---- states ---------------------------------------------------------------------------------------------- */

static const GrammarState *read_text(GrammarRig *r, const char *text) {
    return grammar_rig_read(r, text, strlen(text));
}

static void the_same_place_is_the_same_state(void **state) {
    (void)state;
    GrammarRig r;
    assert_true(grammar_rig_open(&r, GRAMMAR_JSON_SCHEMA, "{\"type\": \"object\"}"));
    assert_ptr_equal(read_text(&r, "{\"a\": [1, "), read_text(&r, "{\"b\\n\":[true,{}, "));
    assert_ptr_not_equal(read_text(&r, "{\"a\": ["), read_text(&r, "{\"a\": [["));
    assert_ptr_equal(read_text(&r, "{\"a\": ["), read_text(&r, "{\"a\": ["));
    grammar_rig_close(&r);
}

static void lists_written_as_recursion_do_not_grow(void **state) {
    (void)state;
    GrammarRig r;
    assert_true(grammar_rig_open(&r, GRAMMAR_GBNF, "root ::= item | item \",\" root\nitem ::= [a-z]+"));
    assert_ptr_equal(read_text(&r, "a,"), read_text(&r, "a,b,c,d,"));
    grammar_rig_close(&r);
}

/* The number of places grows with the text, not with the number of derivations. */
static void ambiguous_grammars_stay_small(void **state) {
    (void)state;
    static const struct {
        GrammarKind kind;
        const char *text;
    } cases[] = {
        {GRAMMAR_REGEX, "(a*)*(a|aa)+(a?){50}b"},
        {GRAMMAR_REGEX, "((a+)+)+b"},
        {GRAMMAR_GBNF, "root ::= \"a\" root \"b\" | \"a\" root | \"a\" root root | \"b\""},
        {GRAMMAR_GBNF, "root ::= \"a\" (root | \"(\" root \")\")* "},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        GrammarRig r;
        char text[500];
        memset(text, 'a', sizeof text);
        if (!grammar_rig_open(&r, cases[i].kind, cases[i].text)) fail_msg("%s", r.err.message);
        const GrammarState *s = grammar_rig_read(&r, text, sizeof text);
        assert_true(s->n > 0 && s->n < 10000);
        grammar_rig_close(&r);
    }
}

static void deep_nesting_is_read_and_moved(void **state) {
    (void)state;
    enum { DEPTH = 100000 };
    GrammarRig r;
    assert_true(grammar_rig_open(&r, GRAMMAR_GBNF, "root ::= \"[\" root \"]\" | \"1\""));
    char *text = malloc(2 * DEPTH + 1);
    memset(text, '[', DEPTH);
    text[DEPTH] = '1';
    memset(text + DEPTH + 1, ']', DEPTH);
    const GrammarState *half = grammar_rig_read(&r, text, DEPTH);
    GrammarStates *fresh = states_new(r.automaton);
    const GrammarState *moved = states_move(fresh, half);
    assert_non_null(moved);
    for (size_t i = DEPTH; i < 2 * DEPTH + 1; i++) moved = state_after(fresh, moved, (uint8_t)text[i], &r.err);
    assert_true(moved->accepts && moved->n == 1);
    assert_ptr_equal(state_after(fresh, moved, ']', &r.err), state_after(fresh, moved, '[', &r.err));
    states_free(fresh);
    free(text);
    grammar_rig_close(&r);
}

static void a_grammar_after_a_text(void **state) {
    (void)state;
    static const struct {
        const char *text;
        bool matches;
    } cases[] = {
        {"</t>12", true},     {"12", false},         {"a <</t>1", true},  {"</</t>7", true},      {"</t>", false},
        {"</t>1</t>", false}, {"</t>1</t>2", false}, {"\xFF</t>0", true}, {"<<</</t</t>3", true}, {"</t1", false},
    };
    GrammarRig r;
    assert_true(grammar_rig_open(&r, GRAMMAR_REGEX, "[0-9]+"));
    Automaton *a = automaton_after(r.automaton, "", 0, "</t>", 4);
    GrammarStates *s = states_new(a);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const GrammarState *at = states_start(s);
        assert_true(at->is_free && !at->accepts);
        for (const char *c = cases[i].text; *c; c++) at = state_after(s, at, (uint8_t)*c, &r.err);
        if (at->accepts != cases[i].matches)
            fail_msg("'%s' %s", cases[i].text, at->accepts ? "is accepted" : "is refused");
    }
    states_free(s);
    free(a);
    grammar_rig_close(&r);
}

/* Returns whether a text matches, by the definition of automaton_after taken literally. */
static bool is_opened_match(GrammarRig *r, const char *text, const char *opening, const char *after) {
    if (grammar_rig_matches(r, text)) return true;
    if (strncmp(text, opening, strlen(opening)) != 0) return false;
    const char *end = strstr(text + strlen(opening), after);
    return end && grammar_rig_matches(r, end + strlen(after));
}

static void a_grammar_after_an_optional_opening(void **state) {
    (void)state;
    static const char *const grammars[] = {"b+", "[ab]*", "a?b|(ab)*a", "(b|ab){1,3}"};
    static const char bytes[] = "abx";
    enum { LONGEST = 8 };
    for (size_t i = 0; i < sizeof grammars / sizeof *grammars; i++) {
        GrammarRig r;
        assert_true(grammar_rig_open(&r, GRAMMAR_REGEX, grammars[i]));
        Automaton *a = automaton_after(r.automaton, "ab", 2, "aab", 3);
        GrammarStates *s = states_new(a);
        int n_matches = 0;
        for (int code = 0; code < 6561; code++) { /* 3^8 texts, of which shorter ones are beginnings */
            char text[LONGEST + 1] = "";
            for (int k = 0, rest = code; k < LONGEST; k++, rest /= 3) text[k] = bytes[rest % 3];
            const GrammarState *at = states_start(s);
            for (int n = 0; n <= LONGEST; n++) {
                char last = text[n];
                text[n] = '\0';
                bool wanted = is_opened_match(&r, text, "ab", "aab");
                n_matches += wanted;
                if (at->accepts != wanted)
                    fail_msg("%s: '%s' %s", grammars[i], text, wanted ? "is refused" : "is accepted");
                text[n] = last;
                if (n < LONGEST) at = state_after(s, at, (uint8_t)text[n], &r.err);
            }
        }
        assert_true(n_matches > 10);
        states_free(s);
        free(a);
        grammar_rig_close(&r);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_grammars_match_what_trying_everything_does),
        cmocka_unit_test(the_same_place_is_the_same_state),
        cmocka_unit_test(lists_written_as_recursion_do_not_grow),
        cmocka_unit_test(ambiguous_grammars_stay_small),
        cmocka_unit_test(deep_nesting_is_read_and_moved),
        cmocka_unit_test(a_grammar_after_a_text),
        cmocka_unit_test(a_grammar_after_an_optional_opening),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_draft_grammar.c - the drafter `grammar` proposes the tokens of the forced text as the tokenizer writes them,
 * with the white space that the text has used before, and proposes nothing if nothing is forced. */
#include "draft_rig.h"

#include "draft/text/token_splits.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static Gguf *gguf;
static Tokenizer *tokenizer;
static TokenTrie *trie;

static int open_vocabulary(void **state) {
    (void)state;
    fr_error err;
    if (gguf_open(&gguf, "models/target.gguf", &err) || tokenizer_open(&tokenizer, gguf, &err)) return -1;
    return token_trie_open(&trie, tokenizer, tokenizer_n_vocab(tokenizer), &err);
}

static int close_vocabulary(void **state) {
    (void)state;
    token_trie_close(trie);
    tokenizer_close(tokenizer);
    gguf_close(gguf);
    return 0;
}

/* The text of the path that takes the most probable child of each node. */
static void likely_path(const Tree *t, char *out) {
    size_t n_out = 0;
    for (int32_t node = 0, best; node >= 0; node = best) {
        best = -1;
        for (int32_t i = node + 1; i < t->n; i++)
            if (t->nodes[i].parent == node && (best < 0 || t->nodes[i].p_accept > t->nodes[best].p_accept)) best = i;
        if (best < 0) break;
        size_t n_piece;
        const char *piece = tokenizer_piece(tokenizer, t->nodes[best].token, false, &n_piece);
        memcpy(out + n_out, piece, n_piece);
        n_out += n_piece;
    }
    out[n_out] = '\0';
}

/* The text that is proposed after `written`, whose first token is pending. */
static void propose(GrammarKind kind, const char *grammar, const char *after, const char *written, int budget,
                    char *out) {
    static Tree t;
    Grammar *g;
    GrammarText x;
    fr_error err;
    Drafter *d = rig_open_drafter("grammar", tokenizer_n_vocab(tokenizer), 1);
    if (grammar_open(&g, trie, kind, grammar, strlen(grammar), (GrammarStop){0}, &err) ||
        grammar_text_begin(&x, g, "", after, &err))
        fail_msg("%s", err.message);
    d->class->set_grammar(d, 0, &x);
    assert_int_equal(d->class->begin(d, 0, (int32_t[]){1}, 1, &err), FR_OK);
    for (size_t i = 0; i < strlen(written); i++) { /* a token for each byte */
        int32_t token = -1;
        bool allowed;
        for (uint32_t k = 0; k < trie->all.n_ranked && token < 0; k++) {
            size_t n_piece;
            const char *piece = tokenizer_piece(tokenizer, trie->all.ranked[k], false, &n_piece);
            if (n_piece == 1 && piece[0] == written[i]) token = trie->all.ranked[k];
        }
        if (grammar_text_read(&x, x.state, token, &x.state, &allowed, &err) || !allowed)
            fail_msg("'%s' is not allowed at %zu", written, i);
        d->class->observe(d, 0, &token, 1, &err);
    }
    rig_propose(d, 0, 5, budget, tokenizer_n_vocab(tokenizer), &t);
    likely_path(&t, out);
    d->class->end(d, 0);
    drafter_close(d);
    grammar_text_end(&x);
    grammar_release(g);
}

static void what_is_forced_is_proposed(void **state) {
    (void)state;
    static const char person[] =
        "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"population\":{\"type\":\"integer\"},"
        "\"tags\":{\"type\":\"array\",\"items\":{\"type\":\"string\"}}},\"required\":[\"name\",\"population\",\"tags\"]"
        "}";
    static const struct {
        GrammarKind kind;
        const char *grammar, *after, *written, *want;
    } cases[] = {
        {GRAMMAR_REGEX, "hello world!", NULL, "", "hello world!"},
        {GRAMMAR_REGEX, "hello (world|moon)", NULL, "hell", "o "},
        {GRAMMAR_REGEX, "hello (world|moon)", NULL, "hello w", "orld"},
        {GRAMMAR_REGEX, "[a-z]+ end", NULL, "abc", ""},
        {GRAMMAR_REGEX, "yes", "x", "abc", ""},
        {GRAMMAR_REGEX, "yes", "x", "abcx", "yes"},
        {GRAMMAR_JSON_SCHEMA, person, NULL, "", "{\"name\": \""},
        {GRAMMAR_JSON_SCHEMA, person, NULL, "{\"na", "me\": \""},
        {GRAMMAR_JSON_SCHEMA, person, NULL, "{\"name\":\"x\"", ",\"population\":"},
        {GRAMMAR_JSON_SCHEMA, person, NULL, "{\n  \"name\": \"x\"", ",\n  \"population\": "},
        {GRAMMAR_JSON_SCHEMA, person, NULL, "{\n  \"name\": \"x\",\n  \"population\": 12,", "\n  \"tags\": ["},
        {GRAMMAR_JSON_SCHEMA, person, NULL, "{\n    \"name\": \"x\",\n ", "   \"population\":"},
        {GRAMMAR_JSON_SCHEMA, person, NULL, "{\n  \"name\": \"x\",\n  \"population\": 12,\n  \"tags\": [\n    \"a\"",
         "\n  ]"},
        {GRAMMAR_JSON_SCHEMA, person, NULL, "{\"name\": \"x\", \"population\": 12, \"tags\": []", "}"},
        {GRAMMAR_JSON_SCHEMA, person, NULL, "{\"name\": \"a, b: {\\\"", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char got[400], part[400];
        propose(cases[i].kind, cases[i].grammar, cases[i].after, cases[i].written, 100, got);
        size_t n = strlen(cases[i].want);
        if (strncmp(got, cases[i].want, n) != 0)
            fail_msg("after '%s': '%s' instead of '%s'", cases[i].written, got, cases[i].want);
        propose(cases[i].kind, cases[i].grammar, cases[i].after, cases[i].written, 1, part);
        assert_memory_equal(got, part, strlen(part));
    }
}

/* Compares with a search of the whole vocabulary: the children of each node are different tokens with which the known
 * text continues, the tokenizer's among them, and their probabilities sum to that of the node. */
static void every_split_is_a_candidate(void **state) {
    (void)state;
    static Tree t;
    KnownText x = {.n = 12};
    SplitCounts counts;
    fr_error err;
    memcpy(x.bytes, "{\"name\": \"a,", x.n);
    for (size_t i = 0; i < x.n; i++) x.chance[i] = 1;
    split_counts_begin(&counts);
    tree_reset(&t, 5);
    assert_int_equal(split_tree(&t, 400, 0, trie, &counts, &x, &err), FR_OK);
    assert_true(t.n > 10 && t.n <= 401);
    size_t ends[TREE_MAX_NODES] = {0};
    int32_t usual, n_first = 0, n_possible = 0;
    double sum = 0;
    for (int32_t i = 1; i < t.n; i++) {
        size_t n, begin = ends[t.nodes[i].parent];
        const char *piece = tokenizer_piece(tokenizer, t.nodes[i].token, false, &n);
        assert_true(n > 0 && begin + n <= x.n && memcmp(piece, x.bytes + begin, n) == 0);
        ends[i] = begin + n;
        if (t.nodes[i].parent == 0) n_first++, sum += (double)t.nodes[i].p_accept;
    }
    bool has_length[SPLIT_MAX_BYTES] = {false};
    for (uint32_t k = 0; k < trie->all.n_ranked; k++) {
        size_t n;
        const char *piece = tokenizer_piece(tokenizer, trie->all.ranked[k], false, &n);
        if (n <= x.n && memcmp(piece, x.bytes, n) == 0 && !has_length[n]) has_length[n] = true, n_possible++;
    }
    assert_int_equal(n_first, n_possible);
    assert_true(fabs(sum - 1) < 1e-5);
    assert_int_equal(split_as_tokenizer(tokenizer, &x, 0, &usual, &err), FR_OK);
    assert_int_equal(t.nodes[1].token, usual);
}

static void a_request_learns_how_its_model_writes(void **state) {
    (void)state;
    static Tree t;
    KnownText x = {.n = 4};
    SplitCounts counts;
    fr_error err;
    size_t n;
    memcpy(x.bytes, "name", x.n);
    for (size_t i = 0; i < x.n; i++) x.chance[i] = 1;
    split_counts_begin(&counts);
    for (int i = 0; i < 30; i++) split_counts_add(&counts, 1, false);
    tree_reset(&t, 5);
    assert_int_equal(split_tree(&t, 1, 0, trie, &counts, &x, &err), FR_OK);
    tokenizer_piece(tokenizer, t.nodes[1].token, false, &n);
    assert_int_equal(n, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_is_forced_is_proposed),
                                       cmocka_unit_test(every_split_is_a_candidate),
                                       cmocka_unit_test(a_request_learns_how_its_model_writes)};
    return cmocka_run_group_tests(tests, open_vocabulary, close_vocabulary);
}

/* test_token_mask_golden.c - masks that npm's @mlc-ai/web-xgrammar found (bench/schemas/xgrammar_masks.mjs wrote
 * them), token for token. */
#include "grammar_rig.h"
#include "vocab_build.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_VOCAB = 400 };

/* A SentencePiece vocabulary of these texts; token 0 ends a text. */
static void open_vocabulary(const json_t *texts, Tokenizer **tokenizer, TokenTrie **trie) {
    static const char *tokens[MAX_VOCAB];
    static int32_t types[MAX_VOCAB];
    static float scores[MAX_VOCAB];
    static char spelled[MAX_VOCAB][64];
    int n = (int)json_array_size(texts);
    fr_error err;
    assert_true(n > 100 && n <= MAX_VOCAB);
    for (int i = 0; i < n; i++) {
        char *out = spelled[i];
        for (const char *c = json_string_value(json_array_get(texts, (size_t)i)); *c; c++)
            out = *c == ' ' ? stpcpy(out, "\xE2\x96\x81") : (*out = *c, out + 1);
        tokens[i] = spelled[i];
        types[i] = i ? 1 : 3;
    }
    VocabSpec spec = {.model = "llama",
                      .tokens = tokens,
                      .n_tokens = n,
                      .types = types,
                      .n_types = n,
                      .scores = scores,
                      .n_scores = n,
                      .ids = {{"eos_token_id", 0}}};
    if (vocab_build_open(tokenizer, &spec, &err) || token_trie_open(trie, *tokenizer, n, &err))
        fail_msg("%s", err.message);
}

static void check_line(const TokenTrie *t, const json_t *line) {
    const char *grammar = json_string_value(json_object_get(line, "grammar"));
    json_t *token;
    size_t i;
    GrammarRig r;
    if (!grammar_rig_open(&r, GRAMMAR_GBNF, grammar)) fail_msg("%s: %s", grammar, r.err.message);
    const GrammarState *state = states_start(r.states);
    json_array_foreach(json_object_get(line, "path"), i, token) {
        bool allowed;
        if (token_read(r.states, t, (int32_t)json_integer_value(token), &state, &allowed, &r.err) || !allowed)
            fail_msg("%s: token %zu of the path is refused", grammar, i);
    }
    const TokenMask *m = token_mask_of(r.states, t, state, &r.err);
    uint64_t want[MAX_VOCAB / 64 + 1] = {0};
    json_array_foreach(json_object_get(line, "allowed"), i, token) {
        int32_t id = (int32_t)json_integer_value(token);
        want[id / 64] |= (uint64_t)1 << id % 64;
    }
    for (int32_t id = 0; id < t->n_vocab; id++) {
        size_t n;
        if ((m->bits[id / 64] ^ want[id / 64]) >> id % 64 & 1)
            fail_msg("%s after %zu tokens: '%s' is %s by xgrammar", grammar,
                     json_array_size(json_object_get(line, "path")), tokenizer_piece(t->tokenizer, id, true, &n),
                     want[id / 64] >> id % 64 & 1 ? "allowed" : "forbidden");
    }
    grammar_rig_close(&r);
}

static void xgrammar_agrees(void **state) {
    (void)state;
    FILE *f = fopen("tests/data/xgrammar_masks.jsonl", "r");
    char *text = NULL;
    size_t size = 0;
    int n = 0;
    Tokenizer *tokenizer = NULL;
    TokenTrie *trie = NULL;
    assert_non_null(f);
    while (getline(&text, &size, f) > 0) {
        json_t *line = json_loads(text, 0, NULL);
        assert_non_null(line);
        if (!trie) open_vocabulary(json_object_get(line, "vocabulary"), &tokenizer, &trie);
        else check_line(trie, line), n++;
        json_decref(line);
    }
    free(text);
    fclose(f);
    token_trie_close(trie);
    tokenizer_close(tokenizer);
    print_message("%d masks\n", n);
    assert_true(n > 100);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(xgrammar_agrees)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

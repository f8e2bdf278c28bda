/* test_token_mask.c - compares masks with the results of reading every token, along random texts of many grammars, with
 * the vocabularies of the shipped model and of a tiny byte-level one. Also tests masks in slices, and threads that
 * share a grammar. */
#include "grammar_rig.h"
#include "vocab_build.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { N_STEPS = 60, MAX_WORDS = 1000 };

static const struct {
    GrammarKind kind;
    const char *text, *after, *opening;
} grammars[] = {
    {GRAMMAR_JSON_SCHEMA, "{\"type\": \"object\"}", NULL, NULL},
    {GRAMMAR_JSON_SCHEMA, "{\"type\": \"object\"}", "the", NULL},
    {GRAMMAR_JSON_SCHEMA,
     "{\"type\": \"object\", \"properties\": {\"name\": {\"type\": \"string\", \"minLength\": 3, \"maxLength\": 9}, "
     "\"n\": "
     "{\"type\": \"array\", \"items\": {\"type\": \"integer\", \"minimum\": -5, \"maximum\": 1200}, \"maxItems\": 3}}, "
     "\"required\": [\"n\"]}",
     NULL, NULL},
    {GRAMMAR_JSON_SCHEMA, "{\"type\": \"string\", \"minLength\": 2, \"maxLength\": 40}", NULL, NULL},
    {GRAMMAR_JSON_SCHEMA, "{\"type\": \"array\", \"items\": {\"type\": \"string\", \"pattern\": \"^[a-z ]{2,12}$\"}}",
     NULL, NULL},
    {GRAMMAR_JSON_SCHEMA, "{\"enum\": [\"red\", \"green\", \"gr\\u00fcn\", 1, 12.5, null, {\"a\": [1]}]}", NULL, NULL},
    {GRAMMAR_REGEX, "([a-z]+ ){3,}[A-Z]?\\.", NULL, NULL},
    {GRAMMAR_REGEX, "[^a]{0,20}a(.|\\n)*", ". ", NULL},
    {GRAMMAR_REGEX, "(\\w+|[ ,.]){1,30}", NULL, NULL},
    {GRAMMAR_GBNF, "root ::= [^\"x]* \"\\\"\" | \"<\" root \">\"", NULL, NULL},
    {GRAMMAR_GBNF, "root ::= .{0,12}", NULL, NULL},
    {GRAMMAR_GBNF, "root ::= %text \" the\" \"One\" (%mark \" the\" [a-z]{0,9} %mark \"<s>\" %text \" the\")*", NULL,
     NULL},
    {GRAMMAR_JSON_SCHEMA, "{\"type\": \"object\"}", ". ", "<s>"}, /* a control token */
    {GRAMMAR_REGEX, "(<[a-z])?", "a", "<"},
};
enum { N_GRAMMARS = sizeof grammars / sizeof *grammars };

static uint64_t seed = 5;

static uint32_t below(uint32_t n) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33) % n;
}

static int32_t draw(const TokenMask *m, uint32_t which) {
    for (int32_t token = 0;; token++)
        if (m->bits[token / 64] >> token % 64 & 1 && which-- == 0) return token;
}

static int32_t n_set(const uint64_t *bits, size_t n) {
    int32_t sum = 0;
    for (size_t i = 0; i < n; i++) sum += __builtin_popcountll(bits[i]);
    return sum;
}

/* Checks that the state, and the same state in a fresh epoch, have the mask that reading every token gives. */
static void check_state(GrammarRig *r, const TokenTrie *t, const GrammarState *state, const char *what) {
    static uint64_t slow[MAX_WORDS];
    const TokenMask *m = token_mask_of(r->states, t, state, &r->err);
    assert_true(t->n_words <= MAX_WORDS);
    if (!m || token_mask_slow(r->states, t, state, slow, &r->err)) fail_msg("%s", r->err.message);
    for (int32_t token = 0; token < t->n_vocab; token++) {
        size_t n;
        if ((m->bits[token / 64] ^ slow[token / 64]) >> token % 64 & 1)
            fail_msg("%s: token %d '%s' is %s", what, token, tokenizer_piece(t->tokenizer, token, true, &n),
                     slow[token / 64] >> token % 64 & 1 ? "forbidden" : "allowed");
    }
    assert_int_equal(m->n_allowed, n_set(slow, t->n_words));
    GrammarStates *fresh = states_new(states_automaton(r->states));
    const GrammarState *moved = states_move(fresh, state);
    const TokenMask *again = token_mask_of(fresh, t, moved, &r->err);
    assert_memory_equal(again->bits, slow, t->n_words * sizeof *slow);
    states_free(fresh);
}

static void check_grammar(const TokenTrie *t, int i) {
    GrammarRig r;
    if (!grammar_rig_open(&r, grammars[i].kind, grammars[i].text)) fail_msg("%s", r.err.message);
    if (grammars[i].after) {
        const char *opening = grammars[i].opening ? grammars[i].opening : "";
        Automaton *a = automaton_after(r.automaton, opening, strlen(opening), grammars[i].after,
                                       strlen(grammars[i].after));
        states_free(r.states);
        free(r.automaton);
        r.automaton = a;
        r.states = states_new(a);
    }
    for (int text = 0; text < 3; text++) {
        const GrammarState *state = states_start(r.states);
        for (int step = 0; step < N_STEPS && state->n > 0; step++) {
            check_state(&r, t, state, grammars[i].text);
            const TokenMask *m = token_mask_of(r.states, t, state, &r.err);
            if (m->n_allowed == 0) break;
            bool allowed;
            if (token_read(r.states, t, draw(m, below((uint32_t)m->n_allowed)), &state, &allowed, &r.err))
                fail_msg("%s", r.err.message);
            assert_true(allowed);
        }
    }
    grammar_rig_close(&r);
}

static void masks_are_those_of_reading_every_token(void **state) {
    (void)state;
    Gguf *g;
    Tokenizer *tokenizer;
    TokenTrie *t;
    fr_error err;
    if (gguf_open(&g, "models/target.gguf", &err) || tokenizer_open(&tokenizer, g, &err)) fail_msg("%s", err.message);
    if (token_trie_open(&t, tokenizer, tokenizer_n_vocab(tokenizer) + 70, &err)) fail_msg("%s", err.message);
    for (int i = 0; i < N_GRAMMARS; i++) check_grammar(t, i);
    token_trie_close(t);
    tokenizer_close(tokenizer);
    gguf_close(g);
}

static void also_with_a_vocabulary_of_bytes(void **state) {
    (void)state;
    Tokenizer *tokenizer;
    TokenTrie *t;
    fr_error err;
    VocabSpec spec = vocab_build_tiny_bpe("gpt-2");
    if (vocab_build_open(&tokenizer, &spec, &err) || token_trie_open(&t, tokenizer, TINY_N_TOKENS, &err))
        fail_msg("%s", err.message);
    for (int i = 0; i < N_GRAMMARS; i++) check_grammar(t, i);
    token_trie_close(t);
    tokenizer_close(tokenizer);
}

static int32_t token_of(const Tokenizer *tokenizer, const char *spelling) {
    for (int32_t token = 0; token < tokenizer_n_vocab(tokenizer); token++) {
        size_t n;
        const char *piece = tokenizer_piece(tokenizer, token, true, &n);
        if (n == strlen(spelling) && memcmp(piece, spelling, n) == 0) return token;
    }
    fail_msg("there is no token '%s'", spelling);
    return -1;
}

/* gpt-oss begins its reasoning with <|channel|>analysis<|message|>, which has two control tokens. */
static void an_opening_may_have_several_control_tokens(void **state) {
    (void)state;
    static const char *const spellings[] = {"<s>", "a", "<s>", "b", "<s>", "c"};
    Gguf *g;
    Tokenizer *tokenizer;
    TokenTrie *t;
    GrammarRig r;
    fr_error err;
    if (gguf_open(&g, "models/target.gguf", &err) || tokenizer_open(&tokenizer, g, &err) ||
        token_trie_open(&t, tokenizer, tokenizer_n_vocab(tokenizer), &err))
        fail_msg("%s", err.message);
    if (!grammar_rig_open(&r, GRAMMAR_REGEX, "c")) fail_msg("%s", r.err.message);
    Automaton *a = automaton_after(r.automaton, "<s>a<s>", strlen("<s>a<s>"), "b<s>", strlen("b<s>"));
    GrammarStates *states = states_new(a);
    const GrammarState *at = states_start(states);
    for (size_t i = 0; i < sizeof spellings / sizeof *spellings; i++) {
        int32_t token = token_of(tokenizer, spellings[i]);
        const TokenMask *m = token_mask_of(states, t, at, &err);
        bool allowed;
        if (!(m->bits[token / 64] >> token % 64 & 1)) fail_msg("token %zu, '%s', is forbidden", i, spellings[i]);
        if (token_read(states, t, token, &at, &allowed, &err)) fail_msg("%s", err.message);
        assert_true(allowed);
    }
    assert_true(at->accepts);
    states_free(states);
    free(a);
    grammar_rig_close(&r);
    token_trie_close(t);
    tokenizer_close(tokenizer);
    gguf_close(g);
}

/* A mask that is computed in slices is the same one, and no slice does much more than its quota. */
static void a_mask_in_slices_is_the_same(void **state) {
    (void)state;
    static const int64_t quotas[] = {1, 100, 3000};
    Tokenizer *tokenizer;
    TokenTrie *t;
    fr_error err;
    VocabSpec spec = vocab_build_tiny_bpe("gpt-2");
    if (vocab_build_open(&tokenizer, &spec, &err) || token_trie_open(&t, tokenizer, TINY_N_TOKENS, &err))
        fail_msg("%s", err.message);
    for (int i = 0; i < N_GRAMMARS; i++)
        for (size_t q = 0; q < sizeof quotas / sizeof *quotas; q++) {
            GrammarRig whole, sliced;
            MaskWork *work = NULL;
            const TokenMask *m, *want;
            int64_t n_slices = 0, most = 0;
            int status;
            assert_true(grammar_rig_open(&whole, grammars[i].kind, grammars[i].text));
            assert_true(grammar_rig_open(&sliced, grammars[i].kind, grammars[i].text));
            want = token_mask_of(whole.states, t, states_start(whole.states), &err);
            do {
                states_set_quota(sliced.states, quotas[q]);
                status = token_mask_find(&work, sliced.states, t, states_start(sliced.states), &m, &err);
                if (quotas[q] - states_quota(sliced.states) > most) most = quotas[q] - states_quota(sliced.states);
                n_slices++;
            } while (status == STATES_WAIT);
            assert_int_equal(status, FR_OK);
            assert_null(work);
            assert_int_equal(m->n_allowed, want->n_allowed);
            assert_memory_equal(m->bits, want->bits, t->n_words * sizeof *m->bits);
            if (most > quotas[q] + 2000) fail_msg("%s: a slice did %lld units", grammars[i].text, (long long)most);
            if (quotas[q] == 1) assert_true(n_slices > 10);
            grammar_rig_close(&whole);
            grammar_rig_close(&sliced);
        }
    token_trie_close(t);
    tokenizer_close(tokenizer);
}

static void a_mask_hides_logits(void **state) {
    (void)state;
    enum { V = 200 };
    float logits[V], out[V];
    TokenMask *m = calloc(1, sizeof *m + 4 * sizeof(uint64_t));
    for (int i = 0; i < V; i++) logits[i] = (float)i;
    for (int share = 0; share <= 10; share++) {
        for (int i = 0; i < 4; i++) m->bits[i] = 0;
        for (int i = 0; i < V; i++) m->bits[i / 64] |= (uint64_t)(below(10) < (uint32_t)share) << i % 64;
        token_mask_apply(m, logits, V, out);
        for (int i = 0; i < V; i++) assert_true(m->bits[i / 64] >> i % 64 & 1 ? out[i] == logits[i] : out[i] < -1e38f);
    }
    free(m);
}

/* ---- threads --------------------------------------------------------------------------------------------- */

static Grammar *shared;

static void *write_texts(void *user) {
    uint64_t own = (uint64_t)(uintptr_t)user;
    for (int i = 0; i < 20; i++) {
        GrammarText x;
        fr_error err;
        if (grammar_text_begin(&x, shared, i % 3 == 1 ? "b" : NULL, i % 3 == 2 ? NULL : "a", &err)) return NULL;
        for (int step = 0; step < 40 && !state_is_complete(x.state); step++) {
            const TokenMask *m;
            bool allowed;
            if (grammar_text_refresh(&x, &err) || grammar_text_mask(&x, x.state, &m, &err) || m->n_allowed == 0)
                return NULL;
            own = own * 6364136223846793005u + 1442695040888963407u;
            int32_t token = draw(m, (uint32_t)(own >> 33) % (uint32_t)m->n_allowed);
            if (grammar_text_read(&x, x.state, token, &x.state, &allowed, &err) || !allowed) return NULL;
            if (x.state->n == 0) break;
        }
        grammar_text_end(&x);
    }
    return user;
}

static void threads_share_a_grammar(void **state) {
    (void)state;
    enum { N_THREADS = 4 };
    pthread_t threads[N_THREADS];
    Tokenizer *tokenizer;
    TokenTrie *t;
    fr_error err;
    VocabSpec spec = vocab_build_tiny_bpe("gpt-2");
    if (vocab_build_open(&tokenizer, &spec, &err) || token_trie_open(&t, tokenizer, TINY_N_TOKENS, &err))
        fail_msg("%s", err.message);
    if (grammar_open(&shared, t, GRAMMAR_JSON_SCHEMA, grammars[0].text, strlen(grammars[0].text), (GrammarStop){0},
                     &err))
        fail_msg("%s", err.message);
    for (uintptr_t i = 0; i < N_THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, write_texts, (void *)(i + 1)), 0);
    for (int i = 0; i < N_THREADS; i++) {
        void *result;
        pthread_join(threads[i], &result);
        assert_non_null(result);
    }
    grammar_release(shared);
    token_trie_close(t);
    tokenizer_close(tokenizer);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(masks_are_those_of_reading_every_token),
        cmocka_unit_test(also_with_a_vocabulary_of_bytes),
        cmocka_unit_test(an_opening_may_have_several_control_tokens),
        cmocka_unit_test(a_mask_in_slices_is_the_same),
        cmocka_unit_test(a_mask_hides_logits),
        cmocka_unit_test(threads_share_a_grammar),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

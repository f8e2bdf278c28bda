/* test_grammar_cache.c - which grammars are kept, and the effects of requests that hold too many. */
#include "testing.h"

#include "server/engine/grammar_cache.h"

#include <stdio.h>
#include <string.h>

static ServedModel models[2];

static int open_model(void **state) {
    (void)state;
    fr_error err;
    if (fr_model_open(&models[0].model, "models/draft.gguf", NULL, &err)) return -1;
    models[1].model = models[0].model; /* a different model for the cache */
    return 0;
}

static int close_model(void **state) {
    (void)state;
    fr_model_close(models[0].model);
    return 0;
}

/* Returns the grammar of a regular expression. */
static CachedGrammar *get(GrammarCache *c, const ServedModel *m, const char *text) {
    CachedGrammar *g;
    bool is_full;
    CompileWatch watch = {NULL, 0};
    fr_error err = {0};
    if (grammar_cache_get(c, &g, m, FR_GRAMMAR_REGEX, text, strlen(text), &watch, &is_full, &err))
        assert_true(is_full || err.code == FR_ERR_ARGUMENT);
    return g;
}

static void one_text_of_one_model_is_compiled_once(void **state) {
    (void)state;
    GrammarCache c;
    grammar_cache_open(&c, 64 << 20);
    CachedGrammar *a = get(&c, &models[0], "a+"), *b = get(&c, &models[0], "a+"), *other = get(&c, &models[0], "b+"),
                  *elsewhere = get(&c, &models[1], "a+");
    assert_ptr_equal(a, b);
    assert_non_null(cached_grammar(a));
    assert_ptr_not_equal(a, other);
    assert_ptr_not_equal(a, elsewhere);
    assert_null(get(&c, &models[0], "("));
    assert_null(get(&c, &models[0], "(")); /* an invalid grammar is not kept */
    GrammarCacheStats s = grammar_cache_stats(&c);
    assert_int_equal(s.n_queries, 6);
    assert_int_equal(s.n_hits, 1);
    assert_int_equal(s.n_grammars, 3);
    assert_true(s.n_bytes > 3 * 100);
    grammar_cache_give_back(&c, a), grammar_cache_give_back(&c, b), grammar_cache_give_back(&c, other);
    grammar_cache_give_back(&c, elsewhere), grammar_cache_give_back(&c, NULL);
    grammar_cache_close(&c);
    assert_null(cached_grammar(NULL));
}

/* The least recently used grammars are dropped, but none that a request holds. */
static void the_least_recently_used_grammar_is_dropped(void **state) {
    (void)state;
    GrammarCache c;
    char text[16];
    grammar_cache_open(&c, 64 << 20);
    CachedGrammar *held = get(&c, &models[0], "held");
    for (int i = 0; i < 200; i++) {
        snprintf(text, sizeof text, "x%d", i);
        grammar_cache_give_back(&c, get(&c, &models[0], text));
        if (i % 10 == 0) grammar_cache_give_back(&c, get(&c, &models[0], "often"));
    }
    int64_t hits = grammar_cache_stats(&c).n_hits;
    grammar_cache_give_back(&c, get(&c, &models[0], "x199"));
    grammar_cache_give_back(&c, get(&c, &models[0], "often"));
    assert_ptr_equal(get(&c, &models[0], "held"), held);
    assert_int_equal(grammar_cache_stats(&c).n_hits, hits + 3);
    grammar_cache_give_back(&c, get(&c, &models[0], "x0"));
    assert_int_equal(grammar_cache_stats(&c).n_hits, hits + 3);
    assert_in_range(grammar_cache_stats(&c).n_grammars, 60, 70);
    grammar_cache_give_back(&c, held), grammar_cache_give_back(&c, held);
    grammar_cache_close(&c);
}

static void what_requests_hold_is_bounded(void **state) {
    (void)state;
    GrammarCache c;
    grammar_cache_open(&c, 100); /* less than one grammar takes */
    CachedGrammar *first = get(&c, &models[0], "first");
    assert_non_null(first);
    assert_null(get(&c, &models[0], "second"));
    assert_ptr_equal(get(&c, &models[0], "first"), first);
    grammar_cache_give_back(&c, first), grammar_cache_give_back(&c, first);
    CachedGrammar *second = get(&c, &models[0], "second");
    assert_non_null(second);
    assert_int_equal(grammar_cache_stats(&c).n_grammars, 1);
    grammar_cache_give_back(&c, second);
    grammar_cache_close(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_text_of_one_model_is_compiled_once),
                                       cmocka_unit_test(the_least_recently_used_grammar_is_dropped),
                                       cmocka_unit_test(what_requests_hold_is_bounded)};
    return cmocka_run_group_tests(tests, open_model, close_model);
}

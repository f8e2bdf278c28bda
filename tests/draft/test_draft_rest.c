/* test_draft_rest.c - the corpus index and the drafter rest: compares the suffix array, the search and the tree with
 * brute force; matches do not cross documents; the text does not change. test_corpus_index.c tests the index file. */
#include "draft_rig.h"
#include "engine_rig.h"
#include "random_model.h"

#include "research/corpus_build.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define INDEX "build/test-rest.index"

/* ---- corpora, and the index of one ------------------------------------------------------------- */

enum { MAX_CORPUS = 400, MAX_FOUND = 4096 };

typedef struct Corpus {
    int32_t n_vocab, n; /* n tokens, the separator n_vocab after every document that is not empty */
    int32_t tokens[MAX_CORPUS];
} Corpus;

static const int32_t vocab_sizes[] = {5, 255, 256, 300, 65535, 65536, 70000, 1 << 24};
enum { N_VOCAB_SIZES = sizeof vocab_sizes / sizeof *vocab_sizes };

/* Documents of 0 to 30 tokens with few different ids, which are spread over the vocabulary so that all bytes of an id
 * matter. */
static void fill_corpus(Corpus *c, int32_t n_vocab, CorpusBuild *b) {
    *c = (Corpus){.n_vocab = n_vocab};
    *b = (CorpusBuild){.n_vocab = n_vocab};
    for (int32_t n_documents = 1 + rig_below(12); n_documents > 0; n_documents--) {
        int32_t n = rig_below(3) ? rig_below(31) : rig_below(3), text[30];
        rig_fill_text(text, n, 4);
        for (int32_t i = 0; i < n; i++) text[i] = (int32_t)((int64_t)text[i] * (n_vocab - 1) / 3);
        int32_t first = n ? rig_below(n) : 0;
        assert_int_equal(corpus_build_add(b, text, first, NULL), FR_OK);
        assert_int_equal(corpus_build_add(b, text + first, n - first, NULL), FR_OK);
        assert_int_equal(corpus_build_end(b, NULL), FR_OK);
        memcpy(c->tokens + c->n, text, (size_t)n * sizeof *text);
        c->n += n;
        if (n) c->tokens[c->n++] = n_vocab;
    }
}

static const Corpus *sorting; /* the corpus that compare_places reads */

static int compare_places(const void *a, const void *b) {
    uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b, n = (uint32_t)sorting->n;
    for (; i < n && j < n; i++, j++)
        if (sorting->tokens[i] != sorting->tokens[j]) return sorting->tokens[i] < sorting->tokens[j] ? -1 : 1;
    return i == n ? -1 : 1; /* the shorter one comes first */
}

static int32_t sort_by_comparing(const Corpus *c, uint32_t *places) {
    int32_t n = 0;
    for (int32_t i = 0; i < c->n; i++)
        if (c->tokens[i] != c->n_vocab) places[n++] = (uint32_t)i;
    sorting = c;
    qsort(places, (size_t)n, sizeof *places, compare_places);
    return n;
}

static void the_suffix_array_is_sorted(void **state) {
    (void)state;
    static Corpus c;
    uint32_t want[MAX_CORPUS];
    for (int round = 0; round < 400; round++) {
        CorpusBuild b;
        fill_corpus(&c, vocab_sizes[round % N_VOCAB_SIZES], &b);
        assert_int_equal(b.n_tokens, c.n);
        int32_t n_want = sort_by_comparing(&c, want);
        for (int wide = 0; wide < 2 && c.n > 0; wide++) {
            uint32_t *got;
            int64_t n;
            assert_int_equal(corpus_sort(&b, wide, &got, &n, NULL), FR_OK);
            assert_int_equal(n, n_want);
            assert_memory_equal(got, want, (size_t)n * sizeof *got);
            mem_free(got);
        }
        corpus_build_free(&b);
    }
}

/* A random corpus that is not empty, as a file. */
static void write_corpus(Corpus *c, int32_t n_vocab) {
    CorpusBuild b;
    fr_error err = {0};
    do fill_corpus(c, n_vocab, &b);
    while (c->n == 0 && (corpus_build_free(&b), true));
    unlink(INDEX); /* file systems wait for the disk when a file is replaced */
    if (corpus_build_write(&b, INDEX, NULL, &err)) fail_msg("%s", err.message);
    corpus_build_free(&b);
}

/* ---- the search -------------------------------------------------------------------------------- */

/* Returns the positions, in suffix order, at which the m tokens occur and are followed by another token. */
static int32_t places_of(const Corpus *c, const int32_t *query, int32_t m, uint32_t *out) {
    uint32_t sorted[MAX_CORPUS];
    int32_t n = sort_by_comparing(c, sorted), found = 0;
    for (int32_t i = 0; i < n; i++) {
        int32_t at = (int32_t)sorted[i];
        if (at + m < c->n && memcmp(c->tokens + at, query, (size_t)m * sizeof *query) == 0 &&
            c->tokens[at + m] != c->n_vocab)
            out[found++] = sorted[i];
    }
    return found;
}

/* A query that may occur in the corpus: a piece of it, sometimes with a token changed. */
static void make_query(const Corpus *c, int32_t *query, int32_t n) {
    int32_t from = rig_below(c->n);
    for (int32_t i = 0; i < n; i++) {
        query[i] = c->tokens[(from + i) % c->n];
        if (query[i] == c->n_vocab) query[i] = c->tokens[0];
    }
    if (rig_below(3) == 0) query[rig_below(n)] = c->tokens[0];
}

static void the_search_finds_all_matches(void **state) {
    (void)state;
    static Corpus c;
    int n_found = 0, n_longest = 0;
    for (int round = 0; round < 120; round++) {
        CorpusIndex x;
        fr_error err = {0};
        write_corpus(&c, vocab_sizes[round % N_VOCAB_SIZES]);
        if (corpus_open(&x, INDEX, c.n_vocab, NULL, &err)) fail_msg("%s", err.message);
        for (int k = 0; k < 10; k++) {
            int32_t query[20], n = 1 + rig_below(20), longest = 0;
            uint32_t places[MAX_CORPUS];
            make_query(&c, query, n);
            for (int32_t m = 1; m <= n; m++) {
                int32_t want = places_of(&c, query + n - m, m, places);
                CorpusSpan s = corpus_find(&x, query + n - m, m);
                assert_int_equal(s.end - s.begin, want);
                if (want) assert_memory_equal(x.places + s.begin, places, (size_t)want * sizeof *places);
                if (want && m >= 2 && m <= 16) longest = m;
                n_found += want > 0;
            }
            CorpusSpan s;
            assert_int_equal(corpus_longest(&x, query, n, 2, 16, &s), longest);
            if (longest) assert_int_equal(s.end - s.begin, places_of(&c, query + n - longest, longest, places));
            n_longest += longest > 3;
        }
        corpus_close(&x);
    }
    assert_true(n_found > 1000 && n_longest > 100); /* the queries find something */
}

/* ---- the tree ---------------------------------------------------------------------------------- */

typedef struct Rule {
    int32_t min_match, max_match, matches, continuation, budget;
} Rule;

typedef struct Taken { /* the matches that the rule uses */
    uint32_t at[MAX_CORPUS];
    int32_t n, m;
} Taken;

static Taken take_places(const Corpus *c, const int32_t *text, int32_t n_text, const Rule *r) {
    static uint32_t all[MAX_CORPUS];
    Taken t = {.n = 0};
    for (int32_t m = r->max_match; m >= r->min_match && t.n == 0; m--) {
        if (m > n_text) continue;
        int32_t n = places_of(c, text + n_text - m, m, all);
        t.n = n < r->matches ? n : r->matches;
        t.m = m;
        for (int32_t i = 0; i < t.n; i++) t.at[i] = n > r->matches ? all[(int64_t)i * n / r->matches] : all[i];
    }
    return t;
}

/* Returns the number of matches that continue with the path; the end of a document ends a match. */
static int32_t count(const Corpus *c, const Taken *t, const int32_t *path, int32_t n) {
    int32_t found = 0;
    for (int32_t i = 0; i < t->n; i++) {
        int32_t equal = 0, at = (int32_t)t->at[i] + t->m;
        while (equal < n && at + equal < c->n && c->tokens[at + equal] == path[equal]) equal++;
        found += equal == n;
    }
    return found;
}

static double ranked[MAX_FOUND];
static int32_t n_ranked;

/* p_accept of every continuation of the path, up to the rule's depth. */
static void rank_below(const Corpus *c, const Taken *t, const Rule *r, int32_t *path, int32_t depth, double p_accept) {
    if (depth == r->continuation) return;
    int32_t all = count(c, t, path, depth), distinct[4] = {0}, n_distinct = 0;
    for (int32_t k = 0; k < 4; k++) { /* the tokens fill_corpus uses */
        int32_t token = (int32_t)((int64_t)k * (c->n_vocab - 1) / 3);
        if (n_distinct == 0 || distinct[n_distinct - 1] != token) distinct[n_distinct++] = token;
    }
    for (int32_t k = 0; k < n_distinct; k++) {
        path[depth] = distinct[k];
        int32_t n = count(c, t, path, depth + 1);
        if (n == 0) continue;
        assert_true(n_ranked < MAX_FOUND);
        double below = p_accept * n / (all + 32.0 / (t->m + depth));
        ranked[n_ranked++] = below;
        rank_below(c, t, r, path, depth + 1, below);
    }
}

static int descending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x > y ? -1 : x < y;
}

/* Checks that the tree has all nodes, up to the budget, each with the p_accept of its count, and that no other tree of
 * that size has a greater sum of p_accept. */
static void check_tree(const Corpus *c, const int32_t *text, int32_t n_text, const Rule *r, const Tree *tree) {
    Taken t = take_places(c, text, n_text, r);
    int32_t path[64];
    n_ranked = 0;
    if (t.n > 0) rank_below(c, &t, r, path, 0, 1);
    qsort(ranked, (size_t)n_ranked, sizeof *ranked, descending);
    int32_t want = n_ranked < r->budget ? n_ranked : r->budget;
    assert_int_equal(tree->n - 1, want);
    double best = 0, got = 0, p_accept[TREE_MAX_NODES] = {1};
    for (int32_t i = 0; i < want; i++) best += ranked[i];
    for (int32_t i = 1; i < tree->n; i++) {
        int32_t parent = tree->nodes[i].parent, depth = tree->nodes[i].depth;
        for (int32_t v = i; v > 0; v = tree->nodes[v].parent) path[tree->nodes[v].depth - 1] = tree->nodes[v].token;
        int32_t all = count(c, &t, path, depth - 1), n = count(c, &t, path, depth);
        assert_true(n > 0);
        p_accept[i] = p_accept[parent] * n / (all + 32.0 / (t.m + depth - 1));
        got += p_accept[i];
        assert_true(fabs(p_accept[i] - (double)tree->nodes[i].p_accept) < 1e-5);
    }
    assert_true(fabs(got - best) < 1e-4);
}

static void it_drafts_the_most_probable_continuations(void **state) {
    (void)state;
    static Corpus c;
    static Tree tree, again;
    int n_drafted = 0, n_sampled = 0, n_cut = 0;
    for (int round = 0; round < 300; round++) {
        write_corpus(&c, vocab_sizes[round % N_VOCAB_SIZES]);
        Rule r = {.min_match = 1 + rig_below(3),
                  .matches = rig_below(2) ? 5000 : 1 + rig_below(6),
                  .continuation = 1 + rig_below(10)};
        r.max_match = r.min_match + rig_below(14);
        char spec[256];
        snprintf(spec, sizeof spec, "rest:index=" INDEX ",min_match=%d,max_match=%d,matches=%d,continuation=%d",
                 r.min_match, r.max_match, r.matches, r.continuation);
        Drafter *d = rig_open_drafter(spec, c.n_vocab, 1);
        for (int k = 0; k < 4; k++) {
            int32_t text[120], n = 1 + rig_below(k ? 20 : 120); /* also longer than the 64 tokens it keeps */
            r.budget = rig_below(40);
            make_query(&c, text, n);
            rig_feed(d, 0, text, 1 + rig_below(n), n);
            rig_propose(d, 0, text[n - 1], r.budget, c.n_vocab, &tree);
            check_tree(&c, text, n, &r, &tree);
            rig_propose(d, 0, text[n - 1], r.budget, c.n_vocab, &again);
            rig_assert_same_tree(&tree, &again, spec);
            d->class->end(d, 0);
            n_drafted += tree.n > 1;
            n_sampled += take_places(&c, text, n, &r).n == r.matches;
            n_cut += n_ranked > r.budget;
        }
        drafter_close(d);
    }
    assert_true(n_drafted > 300 && n_sampled > 100 && n_cut > 100);
}

/* One index of 64 tokens and known documents. */
static void write_known(const int32_t *tokens, int32_t n) {
    CorpusBuild b = {.n_vocab = 64};
    assert_int_equal(corpus_build_add(&b, tokens, n, NULL), FR_OK);
    assert_int_equal(corpus_build_end(&b, NULL), FR_OK);
    assert_int_equal(corpus_build_add(&b, (int32_t[]){1, 2}, 2, NULL), FR_OK);
    assert_int_equal(corpus_build_end(&b, NULL), FR_OK);
    assert_int_equal(corpus_build_write(&b, INDEX, NULL, NULL), FR_OK);
    corpus_build_free(&b);
}

static void sequences_are_independent(void **state) {
    (void)state;
    int32_t text[200];
    rig_fill_text(text, 200, 4);
    write_known(text, 200);
    rig_check_sequences_are_independent("rest:index=" INDEX ",min_match=1");
    rig_check_refuses_unknown_tokens("rest:index=" INDEX);
}

/* ---- the text does not depend on it ------------------------------------------------------------- */

#define MODEL "build/test-rest.gguf"

/* The index contains the texts of plain decoding, greedy and sampled, so that drafts are accepted. */
static void index_streams(const Stream *streams, int n, const Gguf *vocab, int32_t n_vocab) {
    CorpusBuild b = {.n_vocab = n_vocab};
    fr_error err = {0};
    for (int i = 0; i < n; i++) {
        assert_int_equal(corpus_build_add(&b, streams[i].tokens, streams[i].n, NULL), FR_OK);
        assert_int_equal(corpus_build_end(&b, NULL), FR_OK);
    }
    if (corpus_build_write(&b, INDEX, vocab, &err)) fail_msg("%s", err.message);
    corpus_build_free(&b);
}

static void the_text_equals_that_of_plain_decoding(void **state) {
    (void)state;
    enum { N_SAMPLINGS = 3, N_PROMPT = 20 };
    const RandomModel m = {.arch = "llama",
                           .n_layer = 2,
                           .n_embd = 64,
                           .n_head = 4,
                           .n_head_kv = 2,
                           .n_ff = 96,
                           .n_vocab = 300,
                           .seed = 9};
    static Stream plain[N_SAMPLINGS], got;
    fr_error err = {0};
    Gguf *vocab = NULL;
    if (random_model_write(&m, MODEL, &err) || gguf_open(&vocab, MODEL, &err)) fail_msg("%s", err.message);
    fr_model *model = rig_open_model(MODEL, NULL);
    const fr_engine_options options = {.struct_size = sizeof options, .n_ctx = 256};
    fr_engine *e = rig_open_engine(model, &options);
    int32_t prompt[N_PROMPT];
    for (int32_t i = 0; i < N_PROMPT; i++) prompt[i] = 3 + i % 7;
    fr_request_options o = {.struct_size = sizeof o,
                            .prompt = prompt,
                            .n_prompt = N_PROMPT,
                            .max_tokens = 60,
                            .ignore_eos = 1,
                            .sampling = fr_sampling_default()};
    for (int i = 0; i < N_SAMPLINGS; i++) {
        o.sampling.temperature = 0.7f * (float)i;
        o.sampling.seed = (uint64_t)i;
        rig_run_request(e, &o, &plain[i]);
    }
    index_streams(plain, N_SAMPLINGS, vocab, m.n_vocab);
    const char *draft = "rest:index=" INDEX;
    o.drafts = &draft;
    o.n_drafts = 1;
    for (int i = 0; i < N_SAMPLINGS; i++)
        for (o.tree_budget = 1; o.tree_budget <= 63; o.tree_budget = 2 * o.tree_budget + 1) {
            o.sampling.temperature = 0.7f * (float)i;
            o.sampling.seed = (uint64_t)i;
            rig_run_request(e, &o, &got);
            rig_assert_same(&plain[i], &got, draft);
            assert_string_equal(got.draft_error, "");
            assert_true(got.stats.accepted > 20);
        }
    fr_engine_close(e);
    fr_model_close(model);
    gguf_close(vocab);
    unlink(MODEL);
}

static int clean(void **state) {
    (void)state;
    unlink(INDEX);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_suffix_array_is_sorted),
        cmocka_unit_test(the_search_finds_all_matches),
        cmocka_unit_test(it_drafts_the_most_probable_continuations),
        cmocka_unit_test(sequences_are_independent),
        cmocka_unit_test(the_text_equals_that_of_plain_decoding),
    };
    return cmocka_run_group_tests(tests, NULL, clean);
}

/* test_tokenizer.c - SentencePiece BPE: compares the shipped vocabulary (models/target.gguf) with a plain search for
 * the best pair; tests small and damaged vocabularies that are made here. */
#include "testing.h"
#include "vocab_build.h"

#include "base/system.h"
#include "base/rng.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static Gguf *target_file;
static Tokenizer *target;
static float *target_score;

static int open_target(void **state) {
    (void)state;
    fr_error err = {0};
    if (gguf_open(&target_file, "models/target.gguf", &err) || tokenizer_open(&target, target_file, &err)) {
        print_error("%s\n", err.message);
        return -1;
    }
    int64_t kv = gguf_find_key(target_file, "tokenizer.ggml.scores"), n = gguf_kv_count(target_file, kv);
    target_score = malloc((size_t)n * sizeof *target_score);
    for (int64_t i = 0; i < n; i++) gguf_array_f32(target_file, kv, i, &target_score[i]);
    return 0;
}

static int close_target(void **state) {
    (void)state;
    tokenizer_close(target);
    gguf_close(target_file);
    free(target_score);
    return 0;
}

static int64_t encode(const Tokenizer *t, const char *text, size_t n, unsigned flags, int32_t **ids) {
    int64_t n_ids;
    fr_error err = {0};
    if (tokenizer_encode(t, text, n, flags, ids, &n_ids, &err)) fail_msg("%s", err.message);
    return n_ids;
}

/* The spellings of the pieces, joined by '|', with byte tokens as <0xNN>. */
static void expect(const Tokenizer *t, const char *text, unsigned flags, const char *want) {
    char got[2048] = "";
    size_t at = 0;
    int32_t *ids;
    int64_t n = encode(t, text, strlen(text), flags, &ids);
    for (int64_t i = 0; i < n; i++) {
        size_t n_piece;
        const char *piece = tokenizer_piece(t, ids[i], true, &n_piece);
        char byte[8];
        snprintf(byte, sizeof byte, "<0x%02X>", n_piece ? (unsigned char)piece[0] : 0u);
        bool is_byte = n_piece == 1 && tokenizer_find(t, byte, 6) == ids[i];
        at += (size_t)snprintf(got + at, sizeof got - at, "%s%.*s", i ? "|" : "", is_byte ? 6 : (int)n_piece,
                               is_byte ? byte : piece);
    }
    free(ids);
    if (strcmp(got, want) != 0) fail_msg("\"%s\": want \"%s\", got \"%s\"", text, want, got);
}

static void the_shipped_vocabulary_has_its_special_tokens(void **state) {
    (void)state;
    assert_int_equal(tokenizer_n_vocab(target), 4096);
    assert_int_equal(tokenizer_bos(target), 1);
    assert_int_equal(tokenizer_eos(target), 2);
    assert_true(tokenizer_adds_bos(target) && tokenizer_adds_space_prefix(target) && !tokenizer_adds_eos(target));
    assert_true(tokenizer_is_eog(target, 2) && tokenizer_is_special(target, 1) && tokenizer_is_special(target, 0));
    assert_false(tokenizer_is_eog(target, 1) || tokenizer_is_special(target, 100) || tokenizer_is_eog(target, -1) ||
                 tokenizer_is_eog(target, 4096));
    assert_int_equal(tokenizer_find(target, "</s>", 4), 2);
    assert_int_equal(tokenizer_find(target, "<0x0A>", 6), 13);
    size_t n;
    assert_string_equal(tokenizer_piece(target, 4096, true, &n), "");
    assert_int_equal(n, 0);
    tokenizer_piece(target, 2, false, &n);
    assert_int_equal(n, 0);
    assert_memory_equal(tokenizer_piece(target, 2, true, &n), "</s>", 4);
    assert_int_equal(n, 4);
    assert_memory_equal(tokenizer_piece(target, 13, false, &n), "\n", 1);
}

static void our_vocabulary_encodes(void **state) {
    (void)state;
    expect(target, "", 0, "");
    expect(target, "the", 0, " the");
    expect(target, "\x01", 0, " |<0x01>");
    expect(target, "", TOKENIZE_BOS | TOKENIZE_EOS, "<s>|</s>");
    expect(target, "the</s>the", TOKENIZE_SPECIAL, " the|</s>| the"); /* the space is added again after a special
                                                                       * token */
    expect(target, "<s> the", TOKENIZE_SPECIAL, "<s>| | the");
    expect(target, "\xF0\x9F\xA6\x99", 0, " |<0xF0>|<0x9F>|<0xA6>|<0x99>");
    expect(target, "the\xE2\x96\x81the", 0, " the| the"); /* U+2581 is the mark of a space and becomes one */
    int32_t *ids;
    int64_t n = encode(target, "</s>", 4, 0, &ids); /* without TOKENIZE_SPECIAL it gives no control token */
    for (int64_t i = 0; i < n; i++) assert_int_not_equal(ids[i], 2);
    free(ids);
}

/* Returns the pieces of ids, without the space that encoding put first. */
static size_t decode(const int32_t *ids, int64_t n, char *out) {
    size_t at = 0;
    for (int64_t i = 0; i < n; i++) {
        size_t n_piece;
        const char *piece = tokenizer_piece(target, ids[i], false, &n_piece);
        memcpy(out + at, piece, n_piece);
        at += n_piece;
    }
    return at;
}

static size_t random_text(uint32_t seed, char *text, size_t max) {
    static const char *const parts[] = {"the",  " ",        "and ",   "e",  "t",  "a",        "\n",
                                        "ing",  "A",        "12",     ".",  "  ", "\xC3\xA9", "\xE4\xBD\xA0",
                                        "\xFF", "\xE2\x82", "USER: ", "\t", "on", "there"};
    size_t n = 0;
    for (uint32_t i = 0;; i++) {
        uint32_t w[4];
        rng_words(seed, RNG_TEST, i, 0, w);
        const char *part = parts[w[0] % (sizeof parts / sizeof *parts)];
        if (n + strlen(part) > max || w[1] % 64 == 0) return n;
        memcpy(text + n, part, strlen(part));
        n += strlen(part);
    }
}

static void pieces_give_back_the_text(void **state) {
    (void)state;
    for (uint32_t seed = 0; seed < 2000; seed++) {
        char text[256], back[512];
        size_t n = random_text(seed, text, sizeof text);
        int32_t *ids;
        int64_t n_ids = encode(target, text, n, 0, &ids);
        size_t n_back = decode(ids, n_ids, back);
        free(ids);
        if (n_back != n + (n > 0) || (n > 0 && memcmp(back + 1, text, n) != 0))
            fail_msg("seed %u: \"%.*s\" became \"%.*s\"", seed, (int)n, text, (int)n_back, back);
    }
}

/* The definition: as long as there is a pair, the best pair of neighbours is merged, the leftmost one of equals. `at`
 * points to the spellings, and `n` has their lengths. The text must be well-formed UTF-8. Returns the number of
 * remaining symbols. */
static int merge_plainly(const char *text, size_t n_text, size_t *n_bytes) {
    int n = 0;
    for (size_t i = 0; i < n_text; n++) {
        unsigned char c = (unsigned char)text[i];
        n_bytes[n] = c < 0x80 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
        i += n_bytes[n];
    }
    for (;;) {
        int best = -1;
        float best_score = -FLT_MAX;
        size_t from = 0;
        for (int i = 0; i + 1 < n; from += n_bytes[i++]) {
            int32_t id = tokenizer_find(target, text + from, n_bytes[i] + n_bytes[i + 1]);
            if (id < 259 || target_score[id] <= best_score) continue; /* control and byte tokens have lower ids */
            best = i;
            best_score = target_score[id];
        }
        if (best < 0) return n;
        n_bytes[best] += n_bytes[best + 1];
        memmove(&n_bytes[best + 1], &n_bytes[best + 2], (size_t)(n - best - 2) * sizeof *n_bytes);
        n--;
    }
}

static void the_heap_merges_as_the_plain_search_does(void **state) {
    (void)state;
    for (uint32_t seed = 0; seed < 1000; seed++) {
        char text[200], escaped[1024] = "\xE2\x96\x81";
        size_t n = 0, n_escaped = 3, n_bytes[1024];
        for (uint32_t i = 0; i < 60; i++) { /* letters and spaces of the vocabulary, which all are pieces */
            uint32_t w[4];
            rng_words(seed, RNG_TEST, i, 1, w);
            text[n++] = "etaoinshrdlu eee  "[w[0] % 18];
        }
        for (size_t i = 0; i < n; i++) {
            const char *c = text[i] == ' ' ? "\xE2\x96\x81" : &text[i];
            size_t n_c = text[i] == ' ' ? 3 : 1;
            memcpy(escaped + n_escaped, c, n_c);
            n_escaped += n_c;
        }
        int n_want = merge_plainly(escaped, n_escaped, n_bytes);
        int32_t *ids;
        int64_t n_got = encode(target, text, n, 0, &ids);
        size_t at = 0;
        for (int i = 0; i < n_want; at += n_bytes[i++]) {
            int32_t want = tokenizer_find(target, escaped + at, n_bytes[i]);
            if (i >= n_got || ids[i] != want)
                fail_msg("seed %u, \"%.*s\", token %d: want %d, got %d", seed, (int)n, text, i, want,
                         i < n_got ? ids[i] : -1);
        }
        assert_int_equal(n_got, n_want);
        free(ids);
    }
}

static void long_texts_take_their_time_and_no_more(void **state) {
    (void)state;
    enum { N = 200000 };
    static const char *const fills[] = {"a", " ", "the ", "there", "\xE4\xBD\xA0", "\xFF", "\xE2\x96\x81", "<s"};
    char *text = malloc(N);
    for (size_t f = 0; f < sizeof fills / sizeof *fills; f++) {
        size_t n_fill = strlen(fills[f]);
        for (size_t i = 0; i < N; i++) text[i] = fills[f][i % n_fill];
        int32_t *ids;
        double start_s = clock_s();
        encode(target, text, N, TOKENIZE_SPECIAL, &ids);
        double took_s = clock_s() - start_s;
        if (took_s > 5) fail_msg("200 KB of \"%s\" took %.1f s", fills[f], took_s);
        free(ids);
    }
    free(text);
}

/* A small SentencePiece vocabulary: <unk> <s> </s>, pieces, no byte tokens. */
static const char *const spm_tokens[] = {"<unk>",
                                         "<s>",
                                         "</s>",
                                         "\xE2\x96\x81",
                                         "a",
                                         "b",
                                         "ab",
                                         ("\xE2\x96\x81"
                                          "a"),
                                         "bb"};
static const int32_t spm_types[] = {2, 3, 3, 1, 1, 1, 1, 1, 1};
static const float spm_scores[] = {0, 0, 0, -1, -2, -3, -4, -5, -4};

static VocabSpec spm_spec(void) {
    return (VocabSpec){.model = "llama",
                       .tokens = spm_tokens,
                       .n_tokens = 9,
                       .types = spm_types,
                       .n_types = 9,
                       .scores = spm_scores,
                       .n_scores = 9};
}

static Tokenizer *open_spec(const VocabSpec *spec) {
    fr_error err = {0};
    Tokenizer *t;
    if (vocab_build_open(&t, spec, &err)) fail_msg("%s", err.message);
    return t;
}

static void scores_and_keys_decide(void **state) {
    (void)state;
    VocabSpec spec = spm_spec();
    Tokenizer *t = open_spec(&spec);
    assert_int_equal(tokenizer_bos(t), 1); /* these ids have no keys, so they are those of SentencePiece */
    assert_int_equal(tokenizer_eos(t), 2);
    expect(t, "ab", 0, " |ab");    /* -4 beats -5 */
    expect(t, "abb", 0, " |ab|b"); /* equal scores: the leftmost */
    expect(t, "a a", 0, " a| a");
    expect(t, "axyb", 0, " a|<unk>|b"); /* no byte tokens: one unknown for the run */
    tokenizer_close(t);
    spec.flags[0].key = "add_space_prefix", spec.flags[0].value = false;
    t = open_spec(&spec);
    assert_false(tokenizer_adds_space_prefix(t));
    expect(t, "abb", 0, "ab|b");
    tokenizer_close(t);
    spec.types = NULL; /* the types are derived: <s> does not become an ordinary piece */
    t = open_spec(&spec);
    assert_true(tokenizer_is_special(t, 0) && tokenizer_is_special(t, 1) && tokenizer_is_special(t, 2));
    tokenizer_close(t);
}

/* Words are merged one by one only if no piece has a space inside. */
static void pieces_may_cross_words(void **state) {
    (void)state;
    static const char *const tokens[] = {"<unk>",
                                         "\xE2\x96\x81",
                                         "a",
                                         "b",
                                         "a\xE2\x96\x81",
                                         ("a\xE2\x96\x81"
                                          "b")};
    static const int32_t types[] = {2, 1, 1, 1, 1, 1};
    static const float scores[] = {0, -1, -2, -3, -4, -5};
    VocabSpec spec = {.model = "llama",
                      .tokens = tokens,
                      .n_tokens = 6,
                      .types = types,
                      .n_types = 6,
                      .scores = scores,
                      .n_scores = 6};
    Tokenizer *t = open_spec(&spec);
    expect(t, "a ba b", 0, " |a b|a b");
    tokenizer_close(t);
}

static void damaged_vocabularies_are_refused(void **state) {
    (void)state;
    static const float nan_scores[] = {0, 0, 0, NAN, 0, 0, 0, 0, 0};
    static char long_piece[1100];
    static const char *long_tokens[] = {long_piece};
    static const char *const no_space[] = {"ab"}, *const only_space[] = {" a "};
    memset(long_piece, 'x', sizeof long_piece - 1);
    VocabSpec good = spm_spec(), bpe = vocab_build_tiny_bpe("gpt-2");
    struct {
        VocabSpec spec;
        const char *why;
    } cases[] = {
        {{.tokens = spm_tokens, .n_tokens = 9}, "holds no vocabulary"},
        {{.model = "bert\x07", .tokens = spm_tokens, .n_tokens = 9}, "'bert\\x07' is not supported"},
        {{.model = "llama"}, "0 tokens"},
        {{.model = "llama", .tokens = spm_tokens, .n_tokens = 0}, "0 tokens"},
        {{.model = "llama", .tokens = spm_tokens, .n_tokens = 9}, "has no tokenizer.ggml.scores"},
        {{.model = "llama", .tokens = long_tokens, .n_tokens = 1}, "1099 bytes"},
        {good, "8 elements for 9 tokens"},
        {good, "token_type has 10 elements"},
        {good, "scores[3] is not a number"},
        {good, "bos_token_id is 9 but there are 9 tokens"},
        {good, "eot_token_id is 2147483648"},
        {bpe, "'nobody' is not supported; supported are default, gpt-2"},
        {bpe, "has no list of strings tokenizer.ggml.merges"},
        {bpe, "merges[0] is not two pieces"},
        {bpe, "merges[0] is not two pieces"},
        {bpe, "eos_token_id is 300 but"},
    };
    static int32_t ten_types[10];
    cases[6].spec.n_scores = 8;
    cases[7].spec.types = ten_types, cases[7].spec.n_types = 10;
    cases[8].spec.scores = nan_scores;
    cases[9].spec.ids[0].key = "bos_token_id", cases[9].spec.ids[0].value = 9;
    cases[10].spec.ids[0].key = "eot_token_id", cases[10].spec.ids[0].value = 2147483648u;
    cases[11].spec.pre = "nobody";
    cases[12].spec.merges = NULL;
    cases[13].spec.merges = no_space, cases[13].spec.n_merges = 1;
    cases[14].spec.merges = only_space, cases[14].spec.n_merges = 1;
    cases[15].spec.ids[1].value = 300;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fr_error err = {0};
        Tokenizer *t;
        int status = vocab_build_open(&t, &cases[i].spec, &err);
        if (status == FR_OK || t || !strstr(err.message, cases[i].why))
            fail_msg("case %zu: want \"%s\", got %d \"%s\"", i, cases[i].why, status, err.message);
    }
}

static void odd_vocabularies_are_handled(void **state) {
    (void)state;
    /* Duplicates, empty pieces, types that do not exist, a byte token that names no byte, ids of -1. */
    static const char *const tokens[] = {"a", "a", "", "<0xZZ>", "ab", "ab", "b", "<0x41>"};
    static const int32_t types[] = {1, 1, 1, 6, 99, -3, 1, 6};
    static const float scores[] = {0, 0, 0, 0, -1, -INFINITY, 0, 0};
    VocabSpec spec = {.model = "llama",
                      .tokens = tokens,
                      .n_tokens = 8,
                      .types = types,
                      .n_types = 8,
                      .scores = scores,
                      .n_scores = 8,
                      .ids = {{"bos_token_id", UINT32_MAX}}};
    Tokenizer *t = open_spec(&spec);
    int32_t *ids;
    assert_int_equal(tokenizer_bos(t), -1);
    assert_int_equal(encode(t, "ab", 2, TOKENIZE_BOS, &ids),
                     1); /* the prefix space is no piece and no byte: left out */
    assert_int_equal(ids[0], 4);
    free(ids);
    assert_int_equal(encode(t, "A", 1, 0, &ids), 1);
    assert_int_equal(ids[0], 7);
    free(ids);
    assert_int_equal(tokenizer_find(t, "a", 1), 0);
    tokenizer_close(t);
    /* Merges that lead to no token, repeated merges, and merges of letters outside the alphabet. */
    static const char *const merges[] = {"x y", "x y", "\xE4\xBD\xA0 a", "a b c", "h e"};
    VocabSpec bpe = vocab_build_tiny_bpe("gpt-2");
    bpe.merges = merges, bpe.n_merges = 5;
    t = open_spec(&bpe);
    assert_int_equal(encode(t, "hexy", 4, 0, &ids), 3);
    assert_int_equal(ids[0], 256);
    free(ids);
    tokenizer_close(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_shipped_vocabulary_has_its_special_tokens),
        cmocka_unit_test(our_vocabulary_encodes),
        cmocka_unit_test(pieces_give_back_the_text),
        cmocka_unit_test(the_heap_merges_as_the_plain_search_does),
        cmocka_unit_test(long_texts_take_their_time_and_no_more),
        cmocka_unit_test(scores_and_keys_decide),
        cmocka_unit_test(pieces_may_cross_words),
        cmocka_unit_test(damaged_vocabularies_are_refused),
        cmocka_unit_test(odd_vocabularies_are_handled),
    };
    return cmocka_run_group_tests(tests, open_target, close_target);
}

/* test_detokenizer.c - unit tests of the detokenizer (text/tokenizer.c): it returns only whole characters, whatever the
 * tokens are. */
#include "testing.h"
#include "vocab_build.h"

#include "text/tokenizer.h"

#include "base/rng.h"

#include <stdlib.h>
#include <string.h>

static Tokenizer *bytes; /* tokens 0..255 are the bytes */

static int open_bytes(void **state) {
    (void)state;
    VocabSpec spec = vocab_build_tiny_bpe("gpt-2");
    fr_error err = {0};
    return vocab_build_open(&bytes, &spec, &err);
}

static int close_bytes(void **state) {
    (void)state;
    tokenizer_close(bytes);
    return 0;
}

/* Feeds the bytes as one token each, and joins the results of the calls by '|', with '$' before the result of
 * finish. */
static void feed(const char *text, size_t n, char *out) {
    Detokenizer d = {.tokenizer = bytes};
    size_t at = 0, n_got;
    for (size_t i = 0; i < n; i++) {
        const char *got = detokenizer_next(&d, (unsigned char)text[i], &n_got);
        memcpy(out + at, got, n_got);
        at += n_got;
        out[at++] = '|';
    }
    const char *got = detokenizer_finish(&d, &n_got);
    out[at++] = '$';
    memcpy(out + at, got, n_got);
    out[at + n_got] = 0;
}

#define R "\xEF\xBF\xBD"

static void characters_come_whole(void **state) {
    (void)state;
    static const struct {
        const char *text, *want;
    } cases[] = {
        {"", "$"},
        {"ab", "a|b|$"},
        {"\xC3\xA9", "|\xC3\xA9|$"},
        {"\xE2\x82\xAC", "||\xE2\x82\xAC|$"},
        {"\xF0\x9F\xA6\x99", "|||\xF0\x9F\xA6\x99|$"},
        {"\xE2\x82", "||$" R}, /* unfinished at the end: one U+FFFD */
        {"\xE2\x82"
         "a",
         "||" R "a|$"},
        {"\xE2\xC3\xA9", "|" R "|\xC3\xA9|$"},
        {"\x80\xFF", R "|" R "|$"},
        {"\xC0\xAF", R "|" R "|$"},                          /* overlong */
        {"\xE0\x80\xAF", "|" R R "|" R "|$"},                /* E0 has begun, and 80 cannot follow it */
        {"\xED\xA0\x80", "|" R R "|" R "|$"},                /* a surrogate */
        {"\xF4\x90\x80\x80", "|" R R "|" R "|" R "|$"},      /* above U+10FFFF */
        {"\xF1\x80\x80\xE1\x80\xC2", "|||" R "||" R "|$" R}, /* the standard's example of maximal subparts */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char got[128];
        feed(cases[i].text, strlen(cases[i].text), got);
        if (strcmp(got, cases[i].want) != 0) fail_msg("case %zu: want \"%s\", got \"%s\"", i, cases[i].want, got);
    }
}

static void control_tokens_are_left_out_by_default(void **state) {
    (void)state;
    Detokenizer d = {.tokenizer = bytes};
    size_t n;
    detokenizer_next(&d, 0xC3, &n);
    assert_int_equal(n, 0);
    detokenizer_next(&d, TINY_END, &n);
    assert_int_equal(n, 0);
    detokenizer_next(&d, 99999, &n); /* outside the vocabulary: no text */
    assert_int_equal(n, 0);
    assert_memory_equal(detokenizer_next(&d, 0xA9, &n), "\xC3\xA9", 2); /* kept across tokens without text */
    assert_int_equal(n, 2);
    d.with_special = true;
    assert_memory_equal(detokenizer_next(&d, TINY_END, &n), "<|endoftext|>", 13);
    assert_int_equal(n, 13);
}

static void the_first_space_can_be_dropped(void **state) {
    (void)state;
    fr_error err = {0};
    Gguf *g;
    Tokenizer *t;
    if (gguf_open(&g, "models/target.gguf", &err) || tokenizer_open(&t, g, &err)) fail_msg("%s", err.message);
    gguf_close(g);
    int32_t *ids;
    int64_t n_ids;
    assert_int_equal(tokenizer_encode(t, "the the", 7, TOKENIZE_BOS, &ids, &n_ids, NULL), FR_OK);
    for (int strip = 0; strip < 2; strip++) {
        Detokenizer d = {.tokenizer = t, .strip_space = strip};
        char text[64];
        size_t at = 0, n;
        for (int64_t i = 0; i < n_ids; i++) {
            const char *got = detokenizer_next(&d, ids[i], &n);
            memcpy(text + at, got, n);
            at += n;
        }
        text[at] = 0;
        assert_string_equal(text, strip ? "the the" : " the the");
    }
    free(ids);
    tokenizer_close(t);
}

/* Bytes in any order: the output is always well-formed, and well-formed text is unchanged. */
static void random_bytes_come_out_well_formed(void **state) {
    (void)state;
    static const unsigned char leads[] = {'a', 0x80, 0xBF, 0xC2, 0xE0, 0xA0, 0xED, 0x9F, 0xF0, 0x90, 0xF4, 0x8F, 0xFF};
    for (uint32_t seed = 0; seed < 500; seed++) {
        Detokenizer d = {.tokenizer = bytes};
        size_t expected_starts = 0;
        for (uint32_t i = 0; i < 200; i++) {
            uint32_t w[4];
            rng_words(seed, RNG_TEST, i, 2, w);
            size_t n;
            const char *got = detokenizer_next(&d, leads[w[0] % sizeof leads], &n);
            for (size_t k = 0; k < n;) { /* every call ends at the end of a character */
                unsigned char c = (unsigned char)got[k];
                size_t length = c < 0x80 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
                assert_true(c < 0x80 || (c >= 0xC2 && c <= 0xF4));
                assert_true(k + length <= n);
                for (size_t j = 1; j < length; j++) assert_int_equal((unsigned char)got[k + j] & 0xC0, 0x80);
                k += length;
                expected_starts++;
            }
        }
        assert_true(expected_starts > 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(characters_come_whole),
        cmocka_unit_test(control_tokens_are_left_out_by_default),
        cmocka_unit_test(the_first_space_can_be_dropped),
        cmocka_unit_test(random_bytes_come_out_well_formed),
    };
    return cmocka_run_group_tests(tests, open_bytes, close_bytes);
}

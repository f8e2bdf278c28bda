/* test_tokenizer_bpe.c - byte-level BPE and its pre-tokenizers, on vocabularies that are made here. */
#include "testing.h"
#include "vocab_build.h"

#include "text/encoder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static Tokenizer *open_spec(const VocabSpec *spec) {
    fr_error err = {0};
    Tokenizer *t;
    if (vocab_build_open(&t, spec, &err)) fail_msg("%s", err.message);
    return t;
}

/* Returns the ids as "1 2 3". */
static const char *encode(const Tokenizer *t, const char *text, size_t n, unsigned flags) {
    static char line[4096];
    int32_t *ids;
    int64_t n_ids;
    fr_error err = {0};
    if (tokenizer_encode(t, text, n, flags, &ids, &n_ids, &err)) fail_msg("%s", err.message);
    size_t at = 0;
    line[0] = 0;
    for (int64_t i = 0; i < n_ids; i++)
        at += (size_t)snprintf(line + at, sizeof line - at, "%s%d", i ? " " : "", ids[i]);
    free(ids);
    return line;
}

static void expect(const Tokenizer *t, const char *text, unsigned flags, const char *want) {
    const char *got = encode(t, text, strlen(text), flags);
    if (strcmp(got, want) != 0) fail_msg("\"%s\": want %s, got %s", text, want, got);
}

static void merges_go_by_rank(void **state) {
    (void)state;
    VocabSpec spec = vocab_build_tiny_bpe("gpt-2");
    Tokenizer *t = open_spec(&spec);
    expect(t, "", 0, "");
    expect(t, "hello", 0, "259");           /* h+e, l+l, he+ll, hell+o */
    expect(t, "hello world", 0, "259 264"); /* "Ġworld" */
    expect(t, "hell", 0, "258");
    expect(t, "elll", 0, "101 257 108"); /* the leftmost of equal ranks */
    expect(t, "abc", 0, "269");
    expect(t, "bcab", 0, "98 99 268");
    expect(t, "\xC3\xA9", 0, "267");
    expect(t, "a  b", 0, "97 32 32 98"); /* the words are "a", "Ġ", "Ġb": no merge across */
    expect(t, "a   b", 0, "97 265 32 98");
    expect(t, "x12", 0, "120 266");
    assert_string_equal(encode(t, "a\0b", 3, 0), "97 0 98");
    tokenizer_close(t);
}

static void words_in_the_vocabulary_are_taken_whole_where_merges_are_ignored(void **state) {
    (void)state;
    static const char *tokens[258];
    static const char *const merges[] = {"a b"};
    vocab_build_alphabet(tokens);
    tokens[256] = "ab";
    tokens[257] = "abcd"; /* no merge leads there */
    VocabSpec spec =
        {.model = "gpt2", .pre = "gpt-2", .tokens = tokens, .n_tokens = 258, .merges = merges, .n_merges = 1};
    Tokenizer *t = open_spec(&spec);
    expect(t, "abcd", 0, "256 99 100");
    tokenizer_close(t);
    spec.pre = "llama-bpe";
    t = open_spec(&spec);
    expect(t, "abcd", 0, "257");
    expect(t, "abc", 0, "256 99");
    tokenizer_close(t);
}

static void intermediate_strings_that_are_no_tokens_are_split_again(void **state) {
    (void)state;
    static const char *tokens[257];
    static const char *const merges[] = {"x y", "xy z"};
    vocab_build_alphabet(tokens);
    tokens[256] = "xyz";
    VocabSpec spec =
        {.model = "gpt2", .pre = "gpt-2", .tokens = tokens, .n_tokens = 257, .merges = merges, .n_merges = 2};
    Tokenizer *t = open_spec(&spec);
    expect(t, "xyz", 0, "256");
    expect(t, "xyy", 0, "120 121 121");
    tokenizer_close(t);
}

static void special_tokens_split_the_text(void **state) {
    (void)state;
    VocabSpec spec = vocab_build_tiny_bpe("gpt-2");
    Tokenizer *t = open_spec(&spec);
    assert_int_equal(TINY_USER, 270);
    expect(t, "hello<|user|>hello", 0, "259 270 259"); /* user-defined: always */
    expect(t, "<|endoftext|>", TOKENIZE_SPECIAL, "271");
    expect(t, "hello<|endoftext|>hello<|user|>", TOKENIZE_SPECIAL, "259 271 259 270");
    expect(t, "<|e", TOKENIZE_SPECIAL, "60 124 101");
    expect(t, "hello", TOKENIZE_BOS | TOKENIZE_EOS, "271 259 271");
    assert_null(strstr(encode(t, "<|endoftext|>", 13, 0), "271")); /* control tokens: only with TOKENIZE_SPECIAL */
    assert_true(tokenizer_is_special(t, TINY_END) && tokenizer_is_eog(t, TINY_END));
    assert_false(tokenizer_is_special(t, TINY_USER) || tokenizer_is_eog(t, TINY_USER));
    assert_int_equal(tokenizer_find(t, "<|endoftext|>", 13), TINY_END);
    assert_int_equal(tokenizer_find(t, "hello", 5), 259);
    assert_int_equal(tokenizer_find(t, "nowhere", 7), -1);
    tokenizer_close(t);
}

static void longest_special_token_wins(void **state) {
    (void)state;
    static const char *tokens[260];
    static const char *const merges[] = {"a b"};
    static int32_t types[260];
    vocab_build_alphabet(tokens);
    tokens[256] = "<<", tokens[257] = "<<x>>", tokens[258] = "<<x", tokens[259] = "ab";
    for (int i = 0; i < 260; i++) types[i] = i >= 256 && i < 259 ? 4 : 1;
    VocabSpec spec = {.model = "gpt2",
                      .pre = "gpt-2",
                      .tokens = tokens,
                      .n_tokens = 260,
                      .types = types,
                      .n_types = 260,
                      .merges = merges,
                      .n_merges = 1};
    Tokenizer *t = open_spec(&spec);
    expect(t, "<<x>>", 0, "257");
    expect(t, "<<x>", 0, "258 62");
    expect(t, "<<y", 0, "256 121");
    expect(t, "<<<x>>", 0, "256 60 120 62 62"); /* leftmost before longest */
    expect(t, "<ab<<x", 0, "60 259 258");
    tokenizer_close(t);
}

static void conventions_for_bos_come_with_the_pre_tokenizer_or_the_file(void **state) {
    (void)state;
    VocabSpec spec = vocab_build_tiny_bpe("gpt-2");
    Tokenizer *t = open_spec(&spec);
    assert_false(tokenizer_adds_bos(t) || tokenizer_adds_eos(t) || tokenizer_adds_space_prefix(t));
    tokenizer_close(t);
    spec.pre = "llama-bpe";
    t = open_spec(&spec);
    assert_true(tokenizer_adds_bos(t));
    tokenizer_close(t);
    spec.flags[0].key = "add_bos_token", spec.flags[0].value = false;
    spec.flags[1].key = "add_eos_token", spec.flags[1].value = true;
    t = open_spec(&spec);
    assert_false(tokenizer_adds_bos(t));
    assert_true(tokenizer_adds_eos(t));
    assert_int_equal(tokenizer_bos(t), TINY_END);
    tokenizer_close(t);
    memset(spec.ids, 0, sizeof spec.ids);
    spec.flags[0].value = true;
    t = open_spec(&spec);
    assert_false(tokenizer_adds_bos(t)); /* there is none */
    assert_int_equal(tokenizer_bos(t), -1);
    expect(t, "hello", TOKENIZE_BOS | TOKENIZE_EOS, "259");
    assert_true(tokenizer_is_eog(t, TINY_END)); /* by its spelling */
    tokenizer_close(t);
}

static void spaces_after_the_special_tokens_of_phi3_are_removed(void **state) {
    (void)state;
    VocabSpec spec = vocab_build_tiny_bpe("gpt-2");
    spec.name = "Phi-3 mini";
    Tokenizer *t = open_spec(&spec);
    expect(t, "<|user|>\n hello", TOKENIZE_SPECIAL, "270 259");
    expect(t, "<|endoftext|>\nhello", TOKENIZE_SPECIAL, "271 10 259");
    tokenizer_close(t);
}

static void unknown_bytes_become_the_unknown_token(void **state) {
    (void)state;
    static const char *const tokens[] = {"a", "b", "<unk>"};
    static const int32_t types[] = {1, 1, 2};
    static const char *const merges[] = {"x y"};
    VocabSpec spec = {.model = "gpt2",
                      .pre = "gpt-2",
                      .tokens = tokens,
                      .n_tokens = 3,
                      .types = types,
                      .n_types = 3,
                      .merges = merges,
                      .n_merges = 1,
                      .ids = {{"unknown_token_id", 2}}};
    Tokenizer *t = open_spec(&spec);
    expect(t, "axyzb", 0, "0 2 1"); /* one for the run */
    tokenizer_close(t);
    spec.ids[0].key = NULL;
    t = open_spec(&spec);
    expect(t, "axyzb", 0, "0 1");
    tokenizer_close(t);
}

/* The pieces, joined by '|'. */
static void expect_cut(const char *pre, const char *text, const char *want) {
    fr_error err = {0};
    Pretokenizer *p;
    Encoding e = {0};
    const size_t *ends;
    size_t n_ends, at = 0;
    char got[512] = "";
    if (pretokenizer_open(&p, pre, strlen(pre), "test", &err)) fail_msg("%s", err.message);
    if (pretokenizer_split(p, text, strlen(text), &e, &ends, &n_ends, &err)) fail_msg("%s", err.message);
    for (size_t i = 0, begin = 0; i < n_ends; begin = ends[i++])
        at += (size_t)snprintf(got + at, sizeof got - at, "%s%.*s", i ? "|" : "", (int)(ends[i] - begin), text + begin);
    if (strcmp(got, want) != 0) fail_msg("%s \"%s\": want \"%s\", got \"%s\"", pre, text, want, got);
    encoding_close(&e);
    pretokenizer_close(p);
}

static void texts_are_split_by_each_pattern(void **state) {
    (void)state;
    static const struct {
        const char *pre, *text, *want;
    } cases[] = {
        {"gpt-2", "I'm 1234,  ok\n\nyes", "I|'m| 1234|,| | ok|\n|\n|yes"},
        {"gpt-2", "it'S", "it|'|S"},
        {"llama-bpe", "it'S 12345!\n\nx", "it|'S| |123|45|!\n\n|x"},
        {"qwen2", "x12\t\ty \n z", "x|1|2|\t|\ty| \n| z"},
        {"starcoder", "x12 3", "x|1|2| |3"},
        {"falcon", "a$b 1234 x`y", "a|$|b| |123|4| x|`|y"},
        {"default", "a 1234,b", "a| |123|4|,|b"},
        {"deepseek-llm", "a b\r\n1234 \xE4\xBD\xA0x  ", "a| b|\r|\n|1234| |\xE4\xBD\xA0|x|  "},
        {"deepseek-coder", "a, b12", "a|,| b|1|2"},
        {"deepseek-v3", "a1234 _b(c", "a|123|4| _|b|(c"},
        {"tekken", "fooBar 12/\n", "foo|Bar| |1|2|/\n"},
        {"gpt-4o", "don't fooBAR123", "don't| foo|BAR|123"},
        {"superbpe", "a1234567 12", "a|1|234|567| |12"},
        {"afmoe", "a1234 12", "a|1|234| |12"},
        {"kimi-k2", "ab\xE4\xBD\xA0\xE5\xA5\xBD cd", "ab|\xE4\xBD\xA0\xE5\xA5\xBD| cd"},
        {"gemma4", "a b\n\nc", "a b|\n\n|c"},
        /* U+180E is not white space; a byte that is not UTF-8 counts as a symbol. */
        {"gpt-2", "a \xE1\xA0\x8E", "a| \xE1\xA0\x8E"},
        {"gpt-2", "a\xFF\xC3(b", "a|\xFF\xC3(|b"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) expect_cut(cases[i].pre, cases[i].text, cases[i].want);
}

static void related_names_share_a_pattern(void **state) {
    (void)state;
    static const char *const names[] = {
        "default",    "gpt-2",       "phi-2",        "mpt",
        "olmo",       "jais",        "llama3",       "llama-v3",
        "llama-bpe",  "dbrx",        "smaug-bpe",    "glm4",
        "qwen2",      "stablelm2",   "qwen35",       "deepseek-r1-qwen",
        "falcon",     "refact",      "starcoder",    "command-r",
        "smollm",     "codeshell",   "deepseek-llm", "deepseek-coder",
        "exaone",     "tekken",      "gpt-4o",       "llama4",
        "minerva-7b", "deepseek-v3",
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) expect_cut(names[i], "ab cd", "ab| cd");
}

static void broken_utf8_comes_back_byte_for_byte(void **state) {
    (void)state;
    VocabSpec spec = vocab_build_tiny_bpe("llama-bpe");
    Tokenizer *t = open_spec(&spec);
    char text[256], back[256];
    for (int b = 0; b < 256; b++) text[b] = (char)(b * 89); /* every byte, in a mixed order */
    int32_t *ids;
    int64_t n;
    assert_int_equal(tokenizer_encode(t, text, sizeof text, 0, &ids, &n, NULL), FR_OK);
    size_t at = 0;
    for (int64_t i = 0; i < n; i++) {
        size_t n_piece;
        const char *piece = tokenizer_piece(t, ids[i], false, &n_piece);
        assert_true(at + n_piece <= sizeof back);
        memcpy(back + at, piece, n_piece);
        at += n_piece;
    }
    assert_int_equal(at, sizeof text);
    assert_memory_equal(back, text, sizeof text);
    free(ids);
    tokenizer_close(t);
}

/* Texts on which a quadratic algorithm, or a pattern that backtracks, would take minutes. */
static void long_texts_take_linear_time(void **state) {
    (void)state;
    enum { N = 200000 };
    static const char *const fills[] = {"a",    "l", " ",   "A",     "1",  "\n",          "ab c", " \xE4\xBD\xA0",
                                        "\xFF", "'", "  1", "\t \n", "a ", "\xD9\xA1\x31"};
    char *text = malloc(N);
    for (size_t p = 0; p < pre_n_families; p++) {
        char pre[64];
        snprintf(pre, sizeof pre, "%.*s", (int)strcspn(pre_families[p].names, " "), pre_families[p].names);
        VocabSpec spec = vocab_build_tiny_bpe(pre);
        Tokenizer *t = open_spec(&spec);
        for (size_t f = 0; f < sizeof fills / sizeof *fills; f++) {
            size_t n_fill = strlen(fills[f]);
            for (size_t i = 0; i < N; i++)
                text[i] = i + 2 < N ? fills[f][i % n_fill] : 'Z'; /* an end that breaks the
                                                                                              * pattern */
            int32_t *ids;
            int64_t n;
            clock_t start = clock(); /* processor time, which other programs do not lengthen */
            assert_int_equal(tokenizer_encode(t, text, N, 0, &ids, &n, NULL), FR_OK);
            double took_s = (double)(clock() - start) / CLOCKS_PER_SEC;
            if (took_s > 5) fail_msg("%s: 200 KB of \"%s\" took %.1f s", pre, fills[f], took_s);
            free(ids);
        }
        tokenizer_close(t);
    }
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merges_go_by_rank),
        cmocka_unit_test(words_in_the_vocabulary_are_taken_whole_where_merges_are_ignored),
        cmocka_unit_test(intermediate_strings_that_are_no_tokens_are_split_again),
        cmocka_unit_test(special_tokens_split_the_text),
        cmocka_unit_test(longest_special_token_wins),
        cmocka_unit_test(conventions_for_bos_come_with_the_pre_tokenizer_or_the_file),
        cmocka_unit_test(spaces_after_the_special_tokens_of_phi3_are_removed),
        cmocka_unit_test(unknown_bytes_become_the_unknown_token),
        cmocka_unit_test(texts_are_split_by_each_pattern),
        cmocka_unit_test(related_names_share_a_pattern),
        cmocka_unit_test(broken_utf8_comes_back_byte_for_byte),
        cmocka_unit_test(long_texts_take_linear_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

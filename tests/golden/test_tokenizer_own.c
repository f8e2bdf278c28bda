/* test_tokenizer_own.c - token ids of llama.cpp's tokenizer for the shipped vocabulary and for byte-level BPE under
 * each pre-tokenizer, all of them in this repository: tests/golden/data/tokens.json (its README says how it was
 * made).
 *
 * The vocabularies of byte-level BPE have the 256 bytes and data/merges.txt. Those merges were trained on text that
 * nothing had split, so they cross every boundary at which a pre-tokenizer may split, and the ids depend on where it
 * does.
 *
 * `test_tokenizer_own --write FOLDER` writes these vocabularies as bpe-NAME.gguf, for make_golden.py. */
#include "testing.h"

#include "vocab_build.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DATA "tests/golden/data/"

static const char *const pres[] = {"gpt-2",        "llama-bpe",      "qwen2",       "qwen35", "dbrx",   "falcon",
                                   "deepseek-llm", "deepseek-coder", "deepseek-v3", "tekken", "gpt-4o", "smollm"};
enum { N_PRES = sizeof pres / sizeof *pres, MAX_MERGES = 1000, MAX_TOKEN = 64 };

/* ---- the vocabularies ------------------------------------------------------------------------------------ */

/* All lines of data/merges.txt; a merge's token is the line without its space. */
static VocabSpec read_bpe(const char *pre) {
    static char lines[MAX_MERGES][MAX_TOKEN], made[MAX_MERGES][MAX_TOKEN];
    static const char *merges[MAX_MERGES], *tokens[256 + MAX_MERGES];
    static int32_t types[256 + MAX_MERGES];
    FILE *f = fopen(DATA "merges.txt", "r");
    if (!f) fail_msg(DATA "merges.txt cannot be opened");
    int n = 0;
    for (; n < MAX_MERGES && fgets(lines[n], MAX_TOKEN, f); n++) {
        char *end = strchr(lines[n], '\n'), *space = strchr(lines[n], ' ');
        if (!end || !space) fail_msg(DATA "merges.txt: line %d is not a merge", n + 1);
        *end = 0;
        snprintf(made[n], MAX_TOKEN, "%.*s%s", (int)(space - lines[n]), lines[n], space + 1);
        merges[n] = lines[n], tokens[256 + n] = made[n];
    }
    fclose(f);
    vocab_build_alphabet(tokens);
    for (int i = 0; i < 256 + n; i++) types[i] = 1;
    return (VocabSpec){.model = "gpt2",
                       .pre = pre,
                       .tokens = tokens,
                       .n_tokens = 256 + n,
                       .types = types,
                       .n_types = 256 + n,
                       .merges = merges,
                       .n_merges = n,
                       .ids = {{"bos_token_id", 0}, {"eos_token_id", 0}}};
}

static Tokenizer *open_bpe(const char *pre) {
    VocabSpec spec = read_bpe(pre);
    Tokenizer *t;
    fr_error err = {0};
    if (vocab_build_open(&t, &spec, &err)) fail_msg("%s: %s", pre, err.message);
    return t;
}

static Tokenizer *open_target(void) {
    Gguf *g;
    Tokenizer *t = NULL;
    fr_error err = {0};
    if (gguf_open(&g, "models/target.gguf", &err) || tokenizer_open(&t, g, &err)) fail_msg("%s", err.message);
    gguf_close(g);
    return t;
}

/* ---- the stored ids --------------------------------------------------------------------------------------- */

static json_t *read_tokens(void) {
    json_error_t error;
    json_t *all = json_load_file(DATA "tokens.json", JSON_ALLOW_NUL, &error);
    if (!all) fail_msg(DATA "tokens.json: %s", error.text);
    return all;
}

static void print_ids(const char *what, const int32_t *ids, size_t n) {
    print_message("%s", what);
    for (size_t i = 0; i < n; i++) print_message(" %d", ids[i]);
    print_message("\n");
}

/* 1 where the ids of the text are not `want`, after printing both. */
static int differs(const Tokenizer *t, const char *name, const json_t *text, const json_t *want) {
    int32_t *got, expected[1024];
    int64_t n_got;
    size_t n = json_array_size(want);
    fr_error err = {0};
    assert_true(n <= 1024);
    for (size_t i = 0; i < n; i++) expected[i] = (int32_t)json_integer_value(json_array_get(want, i));
    if (tokenizer_encode(t, json_string_value(text), json_string_length(text), 0, &got, &n_got, &err))
        fail_msg("%s", err.message);
    int bad = (size_t)n_got != n || (n > 0 && memcmp(got, expected, n * sizeof *got) != 0);
    if (bad) {
        print_message("%s: \"%s\"\n", name, json_string_value(text));
        print_ids("  want", expected, n);
        print_ids("  got ", got, (size_t)n_got);
    }
    free(got);
    return bad;
}

static void check(const json_t *all, const char *name, Tokenizer *t) {
    const json_t *texts = json_object_get(all, "texts"), *ids = json_object_get(all, name);
    assert_true(json_array_size(texts) >= 60 && json_array_size(ids) == json_array_size(texts));
    int n_wrong = 0;
    for (size_t i = 0; i < json_array_size(texts); i++)
        n_wrong += differs(t, name, json_array_get(texts, i), json_array_get(ids, i));
    tokenizer_close(t);
    if (n_wrong) fail_msg("%s: %d of %zu texts have other ids", name, n_wrong, json_array_size(texts));
}

static void the_shipped_vocabulary_encodes_as_llama_cpp_does(void **state) {
    (void)state;
    json_t *all = read_tokens();
    check(all, "target", open_target());
    json_decref(all);
}

static void every_pre_tokenizer_splits_as_in_llama_cpp(void **state) {
    (void)state;
    json_t *all = read_tokens();
    for (int i = 0; i < N_PRES; i++) check(all, pres[i], open_bpe(pres[i]));
    json_decref(all);
}

/* ---- the vocabularies as files, for make_golden.py ---------------------------------------------------------- */

static int write_vocabularies(const char *folder) {
    for (int i = 0; i < N_PRES; i++) {
        char path[1024];
        Buf b = {.max_bytes = 1 << 20};
        VocabSpec spec = read_bpe(pres[i]);
        vocab_build(&b, &spec);
        snprintf(path, sizeof path, "%s/bpe-%s.gguf", folder, pres[i]);
        FILE *f = fopen(path, "wb");
        bool written = f && fwrite(b.data, 1, b.n, f) == b.n;
        if (!f || fclose(f) != 0 || !written) {
            fprintf(stderr, "%s: cannot be written\n", path);
            return 1;
        }
        buf_free(&b);
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "--write") == 0) return write_vocabularies(argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_shipped_vocabulary_encodes_as_llama_cpp_does),
        cmocka_unit_test(every_pre_tokenizer_splits_as_in_llama_cpp),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_tokenizer_vectors.c - compares with test vectors of other projects' tokenizers:
 * ../shared/data/{tokenizers,golden/tokenizer.json}. test_tokenizer_own.c needs no ../shared. */
#include "testing.h"

#include "gguf/gguf.h"
#include "text/tokenizer.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VOCABS "../shared/data/tokenizers/ggml-vocab-"
#define SEPARATOR "\n__ggml_vocab_test__\n"

static Tokenizer *open_vocab(const char *path) {
    fr_error err = {0};
    Gguf *g;
    Tokenizer *t = NULL;
    if (gguf_open(&g, path, &err) || tokenizer_open(&t, g, &err)) fail_msg("%s", err.message);
    gguf_close(g);
    return t;
}

static char *read_text(const char *path, size_t *n) {
    FILE *f = fopen(path, "rb");
    if (!f) fail_msg("%s cannot be opened", path);
    char *text = malloc(1 << 16);
    *n = fread(text, 1, (1 << 16) - 1, f);
    text[*n] = 0;
    fclose(f);
    return text;
}

static void print_ids(const char *what, const int32_t *ids, int64_t n) {
    print_message("%s", what);
    for (int64_t i = 0; i < n; i++) print_message(" %d", ids[i]);
    print_message("\n");
}

/* Returns 1 and prints both if the ids differ. */
static int differs(const Tokenizer *t, const char *name, const char *text, size_t n, unsigned flags,
                   const int32_t *want, int64_t n_want) {
    int32_t *got;
    int64_t n_got;
    fr_error err = {0};
    if (tokenizer_encode(t, text, n, flags, &got, &n_got, &err)) fail_msg("%s", err.message);
    int bad = n_got != n_want || (n_got > 0 && memcmp(got, want, (size_t)n_got * sizeof *got) != 0);
    if (bad) {
        print_message("%s: \"%.*s\"\n", name, (int)n, text);
        print_ids("  want", want, n_want);
        print_ids("  got ", got, n_got);
    }
    free(got);
    return bad;
}

static int count_wrong(const char *name, int *n_cases) {
    char path[256];
    size_t n_inp, n_out;
    snprintf(path, sizeof path, VOCABS "%s.gguf", name);
    Tokenizer *t = open_vocab(path);
    snprintf(path, sizeof path, VOCABS "%s.gguf.inp", name);
    char *inp = read_text(path, &n_inp), *text = inp;
    snprintf(path, sizeof path, VOCABS "%s.gguf.out", name);
    char *out = read_text(path, &n_out), *line = out;
    int wrong = 0;
    for (*n_cases = 0; line && *line; (*n_cases)++) {
        int32_t want[4096];
        int64_t n_want = 0;
        char *end = strstr(text, SEPARATOR), *eol = strchr(line, '\n');
        if (eol) *eol = 0;
        for (char *word = strtok(line, " "); word; word = strtok(NULL, " ")) want[n_want++] = atoi(word);
        wrong += differs(t, name, text, end ? (size_t)(end - text) : strlen(text), 0, want, n_want);
        line = eol ? eol + 1 : NULL;
        if (!end) break;
        text = end + strlen(SEPARATOR);
    }
    free(inp);
    free(out);
    tokenizer_close(t);
    return wrong;
}

static void vectors_of_llama_cpp_hold(void **state) {
    (void)state;
    need_shared();
    static const char *const names[] = {"llama-spm", "gpt-2", "starcoder", "falcon", "deepseek-llm", "deepseek-coder"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        int n_cases, wrong = count_wrong(names[i], &n_cases);
        if (wrong || n_cases < 40) fail_msg("%s: %d of %d texts are encoded differently", names[i], wrong, n_cases);
    }
}

static int64_t read_ids(const json_t *array, int32_t *ids) {
    size_t n = json_array_size(array);
    for (size_t i = 0; i < n; i++) ids[i] = (int32_t)json_integer_value(json_array_get(array, i));
    return (int64_t)n;
}

static int detok_differs(const Tokenizer *t, const int32_t *ids, int64_t n, const char *want_hex) {
    char hex[8192];
    size_t at = 0;
    for (int64_t i = 0; i < n; i++) {
        size_t n_piece;
        const char *piece = tokenizer_piece(t, ids[i], false, &n_piece);
        for (size_t k = 0; k < n_piece; k++) at += (size_t)sprintf(hex + at, "%02x", (unsigned char)piece[k]);
    }
    hex[at] = 0;
    if (strcmp(hex, want_hex) == 0) return 0;
    print_message("text in hex: want %s\n             got  %s\n", want_hex, hex);
    return 1;
}

static int count_wrong_golden(const char *path, const json_t *cases) {
    Tokenizer *t = open_vocab(path);
    int wrong = 0;
    size_t i;
    json_t *c;
    json_array_foreach(cases, i, c) {
        const json_t *text = json_object_get(c, "text");
        int32_t ids[4096];
        const char *bytes = json_string_value(text);
        size_t n = json_string_length(text);
        int64_t n_ids = read_ids(json_object_get(c, "ids"), ids);
        wrong += differs(t, path, bytes, n, 0, ids, n_ids);
        n_ids = read_ids(json_object_get(c, "ids_bos"), ids);
        wrong += differs(t, path, bytes, n, TOKENIZE_BOS, ids, n_ids);
        wrong += detok_differs(t, ids, n_ids, json_string_value(json_object_get(c, "detok_hex")));
    }
    tokenizer_close(t);
    return wrong;
}

static void golden_ids_and_texts_hold(void **state) {
    (void)state;
    need_shared();
    json_error_t je;
    json_t *all = json_load_file("../shared/data/golden/tokenizer.json", JSON_ALLOW_NUL, &je);
    if (!all) fail_msg("tokenizer.json: %s", je.text);
    static const struct {
        const char *key, *path;
    } sets[] = {{"stories260k-512", "../shared/data/models/stories260K.gguf"},
                {"llama-spm-32000", VOCABS "llama-spm.gguf"}};
    for (size_t i = 0; i < 2; i++) {
        const json_t *cases = json_object_get(json_object_get(all, sets[i].key), "cases");
        int wrong = count_wrong_golden(sets[i].path, cases);
        if (wrong || json_array_size(cases) < 50) fail_msg("%s: %d differences", sets[i].key, wrong);
    }
    json_decref(all);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vectors_of_llama_cpp_hold),
        cmocka_unit_test(golden_ids_and_texts_hold),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_tokenizer_own.c - compares with the token ids of llama.cpp's tokenizer for the shipped vocabulary and for
 * byte-level BPE under each pre-tokenizer, all of them in this repository: tests/golden/data/tokens.json (the README
 * there explains how it was made).
 *
 * The vocabularies of byte-level BPE have the 256 bytes and data/merges.txt. Those merges were trained on text that was
 * not split, so they cross every boundary at which a pre-tokenizer may split, and the ids depend on these boundaries.
 *
 * `test_tokenizer_own --write FOLDER` writes these vocabularies as bpe-NAME.gguf, for make_golden.py. */
#include "testing.h"

#include "vocab_build.h"

#include "base/hash.h"
#include "text/encoder.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DATA "tests/golden/data/"

static const char *const pres[] = {"gpt-2",        "llama-bpe",      "qwen2",       "qwen35", "dbrx",   "falcon",
                                   "deepseek-llm", "deepseek-coder", "deepseek-v3", "tekken", "gpt-4o", "smollm"};
enum { N_PRES = sizeof pres / sizeof *pres, MAX_MERGES = 1000, MAX_TOKEN = 64 };

/* ---- the vocabularies ------------------------------------------------------------------------------------ */

/* Reads all lines of data/merges.txt; the token of a merge is its line without the space. */
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

/* Returns 1 and prints both if the ids of the text are not `want`. */
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

/* ---- random texts ------------------------------------------------------------------------------------------- */

enum { N_TEXTS = 2000, TEXTS_OF_HASH = 20, MAX_TEXT = 400 };

/* The parts of the texts: everything that some pattern treats specially, and characters of many scripts. */
static const char *const parts[] = {
    " ",
    "  ",
    "   ",
    "    ",
    "\n",
    "\n\n",
    "\r",
    "\r\n",
    "\t",
    "\t\t",
    "\v",
    "\f",
    "\x1C",
    "\x1F",
    "\x7F",
    "\xC2\x85",
    "\xC2\xA0",
    "\xE1\x9A\x80",
    "\xE2\x80\x83",
    "\xE2\x80\x8B",
    "\xE2\x80\xA8",
    "\xE3\x80\x80",
    "\xE1\xA0\x8E",
    "\xE2\x80\xAF",
    "\xEF\xBB\xBF",
    "a",
    "Z",
    "foo",
    "Bar",
    "fooBar",
    "HTTPServer",
    "x",
    "'s",
    "'S",
    "'ll",
    "'LL",
    "'Re",
    "'\xC5\xBF",
    "'t",
    "'d",
    "'m",
    "'ve",
    "'x",
    "'",
    "\xE2\x80\x99s",
    "1",
    "12",
    "123",
    "1234",
    "12345",
    "123456",
    "1234567",
    "\xD9\xA1",
    "\xD9\xA1\xD9\xA2\xD9\xA3\xD9\xA4",
    "\xC2\xBD",
    "\xE2\x85\xA7",
    "3.14",
    "1,000,000",
    "0x1F",
    "!",
    "!!",
    "...",
    "?!",
    "(",
    ")",
    "[x]",
    "{",
    "}",
    "<",
    ">",
    "<=",
    "$",
    "$9.99",
    "+",
    "^",
    "~",
    "`",
    "|",
    "_",
    "__init__",
    "-",
    "--",
    "/",
    "//",
    "\\",
    "#",
    "@",
    "&",
    "*",
    "%",
    ";",
    ":",
    "=",
    "\"",
    ",",
    ".",
    "\xE2\x80\xA6",
    "\xE3\x80\x82",
    "\xEF\xBC\x8C",
    "\xE3\x80\x81",
    "\xE0\xA5\xA4",
    "\xDB\x94",
    "\xD8\x8C",
    "\xE2\x80\x9C",
    "\xE2\x80\x94",
    "\xC2\xBF",
    "\xE2\x82\xAC",
    "\xE2\x88\x91",
    "\xF0\x9F\x98\x80",
    "\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x92\xBB",
    "\xE2\x9C\x93",
    "\xEF\xBC\x81",
    "\xE2\x96\x81",
    "\xC3\xA9",
    "e\xCC\x81",
    "\xC3\x9C",
    "\xC3\x9F",
    "\xC7\x85",
    "\xCA\xB0",
    "\xC6\xBB",
    "\xCA\x94",
    "\xD0\x9F\xD1\x80\xD0\xB8",
    "\xD0\xB2\xD0\x95\xD1\x82",
    "\xCE\x95\xCE\xBB",
    "\xCE\xBB\xCE\xAC",
    "\xD8\xB3\xD9\x84\xD8\xA7\xD9\x85",
    "\xD9\x8B",
    "\xD7\xA9\xD7\x9C",
    "\xE0\xA4\xB9\xE0\xA4\xBF\xE0\xA4\xA8",
    "\xE0\xA5\x8D",
    "\xE0\xA6\xAC\xE0\xA6\xBE",
    "\xE0\xB9\x84\xE0\xB8\x97\xE0\xB8\xA2",
    "\xE0\xB8\xB5",
    "\xE1\x80\x99\xE1\x80\xBC",
    "\xE1\x9E\x81",
    "\xE1\x82\xA0",
    "\xE1\x83\x90",
    "\xE1\x8E\xA0",
    "\xE4\xBD\xA0\xE5\xA5\xBD",
    "\xE9\xBE\xA6",
    "\xE3\x90\x80",
    "\xF0\xA0\x80\x80",
    "\xEF\xA4\x80",
    "\xE3\x81\x82\xE3\x81\x84",
    "\xE3\x82\xAB\xE3\x83\xBC",
    "\xEF\xBD\xB1",
    "\xED\x95\x9C\xEA\xB8\x80",
    "\xE1\x84\x80",
    "\xE3\x84\xB1",
    "\xE3\x84\x85",
    "\xEF\xBC\xA1",
    "\xEF\xBD\x81",
    "\xF0\x90\x90\x80",
    "\xEF\xAC\x81",
    "\xEE\x80\x80",
    "IMGIMGABZ",
    "<sentinel:12>",
    "de la",
    "a b c",
    "A B",
};
enum { N_PARTS = sizeof parts / sizeof *parts };

static uint32_t draw(uint64_t *state, uint32_t n) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((*state >> 33) % n);
}

/* The texts, which are made once. */
static const char *const *random_texts(void) {
    static char bytes[N_TEXTS][MAX_TEXT];
    static const char *texts[N_TEXTS];
    uint64_t state = 1;
    for (int i = 0; i < N_TEXTS && !texts[i]; i++) {
        size_t at = 0;
        for (uint32_t n = 1 + draw(&state, 14); n-- > 0;) {
            const char *part = parts[draw(&state, N_PARTS)];
            for (uint32_t times = draw(&state, 16) ? 1 : 1 + draw(&state, 6); times-- > 0 && at + 40 < MAX_TEXT;)
                at += (size_t)snprintf(bytes[i] + at, MAX_TEXT - at, "%s", part);
        }
        texts[i] = bytes[i];
    }
    return texts;
}

/* A vocabulary whose merges are all pairs of neighbours in the random texts, in no order: neighbouring bytes, or for a
 * family that reads characters neighbouring characters. So if a text is split at other places, other pairs are
 * separated or joined, and the ids differ. */
typedef struct PairVocab {
    VocabSpec spec;
    const char **tokens;
    int32_t *types;
    char **merges;
} PairVocab;

static uint32_t hash_of(const char *bytes, size_t n) {
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)bytes[i]) * 16777619u;
    return h;
}

static int by_hash(const void *a, const void *b) {
    const char *x = *(char *const *)a, *y = *(char *const *)b;
    uint32_t h = hash_of(x, strlen(x)), k = hash_of(y, strlen(y));
    return h != k ? (h < k ? -1 : 1) : strcmp(x, y);
}

/* Writes the unit of a text at p in its spelling, and returns its length in bytes. */
static size_t next_unit(const char *p, bool characters, const char *const *alphabet, char spelling[8]) {
    size_t n = 1;
    if (characters)
        while ((p[n] & 0xC0) == 0x80) n++;
    if (!characters) snprintf(spelling, 8, "%s", alphabet[(unsigned char)*p]);
    else if (*p == ' ') snprintf(spelling, 8, "\xE2\x96\x81");
    else snprintf(spelling, 8, "%.*s", (int)n, p);
    return n;
}

static bool add_once(HashTable *seen, char **list, int *n, const char *text) {
    int32_t got;
    char *copy = strdup(text);
    assert_true(hash_table_add(seen, copy, strlen(copy), *n, &got));
    if (got == *n) list[(*n)++] = copy;
    else free(copy);
    return true;
}

static void close_pairs(PairVocab *v) {
    for (int i = 0; i < v->spec.n_merges; i++) free(v->merges[i]);
    for (int i = 256; i < v->spec.n_tokens; i++) free((char *)(uintptr_t)v->tokens[i]);
    free(v->tokens);
    free(v->types);
    free(v->merges);
}

static PairVocab open_pairs(const char *pre, bool characters) {
    enum { MAX = 1 << 15 };
    static char byte_names[256][8];
    PairVocab v = {.tokens = calloc(MAX, sizeof *v.tokens),
                   .types = calloc(MAX, sizeof *v.types),
                   .merges = calloc(MAX, sizeof *v.merges)};
    HashTable seen = {0}, seen_tokens = {0};
    char **added = (char **)(uintptr_t)(v.tokens + 256);
    int n_merges = 0, n_added = 0;
    const char *alphabet[256];
    vocab_build_alphabet(alphabet);
    for (int b = 0; b < 256; b++) {
        snprintf(byte_names[b], sizeof byte_names[b], "<0x%02X>", (unsigned)b);
        v.tokens[b] = characters ? byte_names[b] : alphabet[b];
        v.types[b] = characters ? 6 : 1;
    }
    const char *const *texts = random_texts();
    for (int i = 0; i < N_TEXTS; i++) {
        char left[8] = "", right[8], pair[20];
        for (const char *p = texts[i]; *p; snprintf(left, sizeof left, "%s", right)) {
            p += next_unit(p, characters, alphabet, right);
            if (characters && strcmp(right, "\n") == 0) right[0] = '\0'; /* no piece contains a newline */
            bool is_piece = strcmp(right, "\xE2\x96\x81") == 0 || hash_of(right, strlen(right)) % 8; /* or bytes */
            if (characters && right[0] && is_piece) add_once(&seen_tokens, added, &n_added, right);
            if (!left[0] || !right[0]) continue;
            snprintf(pair, sizeof pair, "%s %s", left, right);
            add_once(&seen, v.merges, &n_merges, pair);
        }
    }
    qsort(v.merges, (size_t)n_merges, sizeof *v.merges, by_hash);
    if (characters) add_once(&seen_tokens, added, &n_added, "\n\n");
    for (int i = 0; i < n_merges; i++) {
        char made[20];
        const char *space = strchr(v.merges[i] + 1, ' ');
        snprintf(made, sizeof made, "%.*s%s", (int)(space - v.merges[i]), v.merges[i], space + 1);
        add_once(&seen_tokens, added, &n_added, made);
    }
    hash_table_close(&seen);
    hash_table_close(&seen_tokens);
    for (int i = 256; i < 256 + n_added; i++) v.types[i] = 1;
    assert_true(n_merges < MAX && 256 + n_added < MAX);
    v.spec = (VocabSpec){.model = "gpt2",
                         .pre = pre,
                         .tokens = v.tokens,
                         .n_tokens = 256 + n_added,
                         .types = v.types,
                         .n_types = 256 + n_added,
                         .merges = (const char *const *)v.merges,
                         .n_merges = n_merges,
                         .ids = {{"bos_token_id", 0}, {"eos_token_id", 0}}};
    return v;
}

/* Reads the next name of a family; false after the last one. */
static bool next_name(const char **at, char name[64]) {
    size_t n = strcspn(*at, " ");
    snprintf(name, 64, "%.*s", (int)n, *at);
    *at += n + ((*at)[n] == ' ');
    return n > 0;
}

/* Writes a hash of the ids for each group of 20 random texts. */
static void hash_ids(const Tokenizer *t, char out[N_TEXTS / TEXTS_OF_HASH * 8 + 1]) {
    const char *const *texts = random_texts();
    for (int i = 0; i < N_TEXTS; i += TEXTS_OF_HASH) {
        uint32_t h = 2166136261u;
        for (int k = i; k < i + TEXTS_OF_HASH; k++) {
            int32_t *ids;
            int64_t n;
            fr_error err = {0};
            if (tokenizer_encode(t, texts[k], strlen(texts[k]), 0, &ids, &n, &err)) fail_msg("%s", err.message);
            for (int64_t j = 0; j < n; j++) h = (h ^ (uint32_t)ids[j]) * 16777619u;
            h = (h ^ 0xFFFFFFFFu) * 16777619u;
            free(ids);
        }
        sprintf(out + i / TEXTS_OF_HASH * 8, "%08x", h);
    }
}

/* Returns the hashes of llama.cpp's ids for a name: a key of the file lists the names that have the same ids. */
static const char *stored_hashes(json_t *all, const char *name) {
    const char *names;
    json_t *hashes;
    json_object_foreach(all, names, hashes) {
        char other[64];
        for (const char *at = names; next_name(&at, other);)
            if (strcmp(name, other) == 0) return json_string_value(hashes);
    }
    fail_msg(DATA "tokens_random.json has no ids for the pre-tokenizer %s: write them with make_golden.py tokens",
             name);
    return NULL;
}

static int n_wrong_hashes(const char *name, PairVocab *v, const char *want) {
    char got[N_TEXTS / TEXTS_OF_HASH * 8 + 1];
    int n_wrong = 0;
    fr_error err = {0};
    Tokenizer *t;
    v->spec.pre = name;
    if (vocab_build_open(&t, &v->spec, &err)) fail_msg("%s: %s", name, err.message);
    hash_ids(t, got);
    tokenizer_close(t);
    assert_int_equal(strlen(want), strlen(got));
    for (size_t i = 0; i < strlen(got); i += 8)
        if (memcmp(got + i, want + i, 8) != 0) {
            if (n_wrong++ == 0)
                print_message("%s: one of the texts %zu to %zu has other ids than in llama.cpp\n", name,
                              i / 8 * TEXTS_OF_HASH, i / 8 * TEXTS_OF_HASH + TEXTS_OF_HASH - 1);
        }
    return n_wrong;
}

static void every_name_splits_random_texts_as_llama_cpp_does(void **state) {
    (void)state;
    json_error_t error;
    json_t *all = json_load_file(DATA "tokens_random.json", 0, &error);
    if (!all) fail_msg(DATA "tokens_random.json: %s", error.text);
    PairVocab bytes = open_pairs("gpt-2", false), characters = open_pairs("gemma4", true);
    int n_wrong = 0;
    for (size_t f = 0; f < pre_n_families; f++) {
        char name[64];
        bool by_characters = pre_families[f].flags & PRE_READS_CHARACTERS;
        for (const char *at = pre_families[f].names; next_name(&at, name);)
            n_wrong += n_wrong_hashes(name, by_characters ? &characters : &bytes, stored_hashes(all, name));
    }
    close_pairs(&bytes);
    close_pairs(&characters);
    json_decref(all);
    if (n_wrong) fail_msg("%d groups of texts have other ids", n_wrong);
}

/* ---- the vocabularies as files, for make_golden.py ---------------------------------------------------------- */

static int write_file(const char *folder, const char *kind, const char *name, const VocabSpec *spec) {
    char path[1024];
    Buf b = {.max_bytes = 1 << 22};
    vocab_build(&b, spec);
    snprintf(path, sizeof path, "%s/%s-%s.gguf", folder, kind, name);
    FILE *f = fopen(path, "wb");
    bool written = f && fwrite(b.data, 1, b.n, f) == b.n;
    if (!f || fclose(f) != 0 || !written) {
        fprintf(stderr, "%s: cannot be written\n", path);
        return 1;
    }
    buf_free(&b);
    return 0;
}

static int write_random_texts(const char *folder) {
    char path[1024];
    const char *const *texts = random_texts();
    json_t *list = json_array();
    for (int i = 0; i < N_TEXTS; i++) json_array_append_new(list, json_string(texts[i]));
    snprintf(path, sizeof path, "%s/random.json", folder);
    int status = json_dump_file(list, path, JSON_COMPACT);
    json_decref(list);
    return status;
}

static int write_vocabularies(const char *folder) {
    int status = write_random_texts(folder);
    for (int i = 0; i < N_PRES; i++) {
        VocabSpec spec = read_bpe(pres[i]);
        status |= write_file(folder, "bpe", pres[i], &spec);
    }
    PairVocab bytes = open_pairs("gpt-2", false), characters = open_pairs("gemma4", true);
    for (size_t f = 0; f < pre_n_families; f++) {
        char name[64];
        PairVocab *v = pre_families[f].flags & PRE_READS_CHARACTERS ? &characters : &bytes;
        for (const char *at = pre_families[f].names; next_name(&at, name);) {
            v->spec.pre = name;
            status |= write_file(folder, "random", name, &v->spec);
        }
    }
    close_pairs(&bytes);
    close_pairs(&characters);
    return status;
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "--write") == 0) return write_vocabularies(argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_shipped_vocabulary_encodes_as_llama_cpp_does),
        cmocka_unit_test(every_pre_tokenizer_splits_as_in_llama_cpp),
        cmocka_unit_test(every_name_splits_random_texts_as_llama_cpp_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

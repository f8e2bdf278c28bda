/* bench_grammar.c - the time of a token mask with a vocabulary of 128,000 tokens.
 *
 *   bench_grammar [TEXTS]
 *
 * The vocabulary is made up: bytes, words with and without a blank before them, numbers, white space, the punctuation
 * of JSON, and 10 % characters beyond ASCII, some of them cut in half. For each schema TEXTS (20) texts are written
 * with tokens drawn from the masks, so that each mask is computed once, as in decoding. "cold": the grammar is opened
 * anew for each text; "warm": the masks of one text are kept for the next, as in a server. Prints the processor time of
 * a mask, and of applying it to a row of logits.
 */
#include "base/system.h"
#include "base/hash.h"
#include "base/rng.h"
#include "gguf/gguf_write.h"
#include "grammar/grammar.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { V = 128000, MAX_TOKENS = 200, MAX_TIMES = 4000000 };

static const char *const schemas[] = {
    "{\"type\":\"object\"}",
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"age\":{\"type\":\"integer\",\"minimum\":0,"
    "\"maximum\":150},\"email\":{\"type\":\"string\",\"format\":\"email\"}},\"required\":[\"name\",\"age\"]}",
    "{\"type\":\"array\",\"items\":{\"type\":\"object\",\"properties\":{\"id\":{\"type\":\"string\",\"format\":"
    "\"uuid\"},"
    "\"when\":{\"type\":\"string\",\"format\":\"date-time\"},\"kind\":{\"enum\":[\"create\",\"update\",\"delete\"]}},"
    "\"required\":[\"id\",\"when\",\"kind\"]},\"minItems\":2,\"maxItems\":5}",
    "{\"type\":\"object\",\"properties\":{\"title\":{\"type\":\"string\",\"maxLength\":80},\"tags\":{\"type\":"
    "\"array\","
    "\"items\":{\"type\":\"string\",\"maxLength\":20},\"maxItems\":6},\"score\":{\"type\":\"number\",\"minimum\":0,"
    "\"maximum\":1}},\"required\":[\"title\",\"tags\",\"score\"]}",
    "{\"$defs\":{\"node\":{\"type\":\"object\",\"properties\":{\"value\":{\"type\":\"string\"},\"children\":{\"type\":"
    "\"array\","
    "\"items\":{\"$ref\":\"#/$defs/node\"},\"maxItems\":3}},\"required\":[\"value\",\"children\"]}},\"$ref\":\"#/$defs/"
    "node\"}",
    "{\"anyOf\":[{\"type\":\"object\",\"properties\":{\"type\":{\"const\":\"text\"},\"text\":{\"type\":\"string\"}},"
    "\"required\":[\"type\",\"text\"]},{\"type\":\"object\",\"properties\":{\"type\":{\"const\":\"call\"},\"name\":{"
    "\"type\":"
    "\"string\",\"pattern\":\"^[a-z_]{1,40}$\"},\"arguments\":{\"type\":\"object\"}},\"required\":[\"type\",\"name\","
    "\"arguments\"]}]}",
    "{\"type\":\"object\",\"additionalProperties\":{\"type\":\"array\",\"items\":{\"type\":[\"string\",\"null\"]}}}",
    "{\"type\":\"string\",\"minLength\":20,\"maxLength\":400}",
};
enum { N_SCHEMAS = sizeof schemas / sizeof *schemas };

static uint64_t n_drawn;

static uint32_t below(uint32_t n) { return (uint32_t)(rng_uniform(1, RNG_TEST, n_drawn++, 0) * n); }

/* ---- the vocabulary ---------------------------------------------------------------------------------------- */

static size_t put(char *out, const char *text) { return strlen(strcpy(out, text)); }

static size_t make_word(char *out) {
    static const char *const syllables[] = {"a",  "be", "co", "di", "e",   "fo", "ga", "ho",   "in", "ju",   "ka",
                                            "lo", "me", "ni", "o",  "pre", "qu", "re", "st",   "ti", "un",   "ver",
                                            "wa", "x",  "y",  "zo", "ing", "ed", "er", "tion", "ly", "ment", "s"};
    size_t n = 0;
    if (below(100) < 45) n += put(out, "\xE2\x96\x81");
    size_t first = n;
    for (uint32_t i = 0, k = 1 + below(4); i < k; i++) n += put(out + n, syllables[below(33)]);
    if (below(100) < 20 && out[first] >= 'a') out[first] = (char)(out[first] - 32);
    return n;
}

static size_t make_token(char *out) {
    static const char *const marks[] = {"\"", "{", "}", "[", "]", ":", ",", "\\", "/", "'",
                                        "(",  ")", "=", ";", ".", "-", "_", "<",  ">", "+"};
    static const char *const letters[] = {"\xC3\xA9",     "\xC3\xBC",     "\xD0\xB0",     "\xD0\xBE",
                                          "\xE4\xB8\xAD", "\xE5\x9B\xBD", "\xE3\x81\x82", "\xF0\x9F\x98\x80"};
    uint32_t kind = below(100);
    size_t n = 0;
    if (kind < 72) return make_word(out);
    if (kind < 76) return (size_t)sprintf(out, "%u", below(1000));
    if (kind < 78) {
        for (uint32_t i = 0, k = 1 + below(40); i < k; i++) n += put(out + n, below(8) ? "\xE2\x96\x81" : "\n");
        return n;
    }
    if (kind < 90) {
        if (below(3) == 0) n += make_word(out);
        for (uint32_t i = 0, k = 1 + below(4); i < k; i++) n += put(out + n, marks[below(20)]);
        if (below(3) == 0) n += make_word(out + n);
        return n;
    }
    for (uint32_t i = 0, k = 1 + below(4); i < k; i++) n += put(out + n, letters[below(8)]);
    return n;
}

static GgufString pieces[V];
static char bytes[V][400];
static int32_t types[V];
static float scores[V];

static void make_vocabulary(const char *path) {
    HashTable seen = {0};
    fr_error err;
    for (int32_t i = 0; i < V; i++) {
        int32_t id;
        do {
            memset(bytes[i], 0, sizeof bytes[i]);
            if (i == 0) strcpy(bytes[i], "<unk>");
            else if (i == 1) strcpy(bytes[i], "<s>");
            else if (i == 2) strcpy(bytes[i], "</s>");
            else if (i < 259) sprintf(bytes[i], "<0x%02X>", i - 3);
            else make_token(bytes[i]);
            hash_table_add(&seen, bytes[i], strlen(bytes[i]), i, &id);
        } while (id != i);
        types[i] = i == 0 ? 2 : i < 3 ? 3 : i < 259 ? 6 : 1;
        pieces[i] = (GgufString){bytes[i], strlen(bytes[i])};
    }
    GgufWriter *w = gguf_writer_new();
    gguf_set_string(w, "tokenizer.ggml.model", "llama", 5);
    gguf_set_strings(w, "tokenizer.ggml.tokens", pieces, V);
    gguf_set_f32s(w, "tokenizer.ggml.scores", scores, V);
    gguf_set_i32s(w, "tokenizer.ggml.token_type", types, V);
    if (gguf_writer_finish(w, path, &err)) fprintf(stderr, "%s\n", err.message), exit(1);
    gguf_writer_free(w);
    hash_table_close(&seen);
}

static TokenTrie *open_trie(Tokenizer **tokenizer) {
    char path[] = "/tmp/bench-grammar-XXXXXX";
    Gguf *g;
    TokenTrie *t;
    fr_error err;
    int fd = mkstemp(path);
    if (fd < 0) exit(1);
    close(fd);
    make_vocabulary(path);
    if (gguf_open(&g, path, &err) || tokenizer_open(tokenizer, g, &err)) fprintf(stderr, "%s\n", err.message), exit(1);
    gguf_close(g);
    unlink(path);
    double start_s = clock_cpu_s();
    if (token_trie_open(&t, *tokenizer, V, &err)) fprintf(stderr, "%s\n", err.message), exit(1);
    printf("trie of %d tokens: %u nodes, %.1f MB, %.0f ms once for a model\n", V, t->all.n_nodes,
           (double)t->n_bytes / 1e6, 1e3 * (clock_cpu_s() - start_s));
    return t;
}

/* ---- texts --------------------------------------------------------------------------------------------------- */

static double *times;
static int64_t n_times;
static double apply_s;
static int64_t n_applied;

/* Returns a token that is allowed; every third time the first of several that closes what is open. */
static int32_t draw_token(const TokenTrie *t, const TokenMask *m) {
    int32_t best = -1;
    for (int tries = 0; tries < 8; tries++) {
        uint32_t rest = below((uint32_t)m->n_allowed);
        for (size_t w = 0; w < t->n_words; w++) {
            uint32_t n = (uint32_t)__builtin_popcountll(m->bits[w]);
            if (rest >= n) {
                rest -= n;
                continue;
            }
            uint64_t bits = m->bits[w];
            while (rest-- > 0) bits &= bits - 1;
            best = (int32_t)(64 * w) + __builtin_ctzll(bits);
            break;
        }
        size_t n;
        const char *text = tokenizer_piece(t->tokenizer, best, false, &n);
        if (tries == 0 && below(3)) break;
        if (n == 0 || memchr(text, '"', n) || memchr(text, '}', n) || memchr(text, ']', n)) break;
    }
    return best;
}

static void write_text(const TokenTrie *t, Grammar *g, float *logits, float *masked) {
    GrammarText x;
    fr_error err;
    if (grammar_text_begin(&x, g, NULL, NULL, &err)) exit(1);
    for (int i = 0; i < MAX_TOKENS && !state_is_complete(x.state); i++) {
        const TokenMask *m;
        double start_s = clock_cpu_s();
        if (grammar_text_mask(&x, x.state, &m, &err)) fprintf(stderr, "%s\n", err.message), exit(1);
        if (n_times < MAX_TIMES) times[n_times++] = clock_cpu_s() - start_s;
        start_s = clock_cpu_s();
        token_mask_apply(m, logits, V, masked);
        apply_s += clock_cpu_s() - start_s, n_applied++;
        bool allowed;
        grammar_text_read(&x, x.state, draw_token(t, m), &x.state, &allowed, &err);
        if (!allowed || x.state->n == 0) break; /* the end */
    }
    grammar_text_end(&x);
}

static int by_time(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void report(const char *name) {
    double sum = 0;
    for (int64_t i = 0; i < n_times; i++) sum += times[i];
    qsort(times, (size_t)n_times, sizeof *times, by_time);
    printf("%-22.22s %7lld masks  mean %7.1f us  median %7.1f  p99 %7.1f  max %8.1f us\n", name, (long long)n_times,
           1e6 * sum / (double)n_times, 1e6 * times[n_times / 2], 1e6 * times[n_times * 99 / 100],
           1e6 * times[n_times - 1]);
    n_times = 0;
}

int main(int argc, char **argv) {
    int n_texts = argc > 1 ? atoi(argv[1]) : 20;
    static float logits[V], masked[V];
    Tokenizer *tokenizer;
    TokenTrie *t = open_trie(&tokenizer);
    times = malloc(MAX_TIMES * sizeof *times);
    for (int cold = 1; cold >= 0; cold--) {
        printf("%s\n", cold ? "cold" : "warm");
        double compile_s = 0;
        for (int s = 0; s < N_SCHEMAS; s++) {
            Grammar *g = NULL;
            fr_error err;
            for (int i = 0; i < n_texts; i++) {
                double start_s = clock_cpu_s();
                if (cold || !g) {
                    grammar_release(g);
                    if (grammar_open(&g, t, GRAMMAR_JSON_SCHEMA, schemas[s], strlen(schemas[s]),
                                     (GrammarStop){.user = NULL}, &err))
                        fprintf(stderr, "%s\n", err.message), exit(1);
                }
                compile_s += clock_cpu_s() - start_s;
                write_text(t, g, logits, masked);
            }
            grammar_release(g);
            if (argc > 2) report(schemas[s]);
        }
        if (argc <= 2) report("all schemas");
        if (cold) printf("compiling a schema: %.0f us\n", 1e6 * compile_s / (N_SCHEMAS * n_texts));
    }
    printf("applying a mask to a row: %.1f us\n", 1e6 * apply_s / (double)n_applied);
    free(times);
    token_trie_close(t);
    tokenizer_close(tokenizer);
    return 0;
}

/* vocabulary.c - a SentencePiece-style vocabulary for models without one of their own.
 *
 * Three special tokens, 256 byte tokens, the printable ASCII characters (the blank as U+2581, as
 * SentencePiece has it), then pieces that are each a concatenation of two earlier ones, so that merging
 * reaches all of them: syllables "ba", "be", ... ; the same after a blank; pairs "babe"; the same after a
 * blank; triples. Scores fall with the index, so merging prefers short pieces first, as in a trained
 * vocabulary.
 */
#include "base/mem.h"
#include "make_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLANK "\xe2\x96\x81"

/* The numbers of tokenizer.ggml.token_type. */
enum { NORMAL = 1, UNKNOWN = 2, CONTROL = 3, UNUSED = 5, BYTE = 6 };

enum { PIECE_BYTES = 32 };

typedef struct Vocabulary {
    int64_t n;
    char (*pieces)[PIECE_BYTES]; /* owns the characters of the pieces that are ours */
    GgufString *strings;
    float *scores;
    int32_t *types;
} Vocabulary;

static void vocabulary_free(Vocabulary *v) {
    mem_free(v->pieces);
    mem_free(v->strings);
    mem_free(v->scores);
    mem_free(v->types);
}

static int vocabulary_init(Vocabulary *v, int64_t n, fr_error *err) {
    *v = (Vocabulary){.n = n};
    v->pieces = mem_calloc((size_t)n, sizeof *v->pieces);
    v->strings = mem_calloc((size_t)n, sizeof *v->strings);
    v->scores = mem_calloc((size_t)n, sizeof *v->scores);
    v->types = mem_calloc((size_t)n, sizeof *v->types);
    if (v->pieces && v->strings && v->scores && v->types) return FR_OK;
    vocabulary_free(v);
    return error_memory(err, "a vocabulary", (size_t)n * sizeof *v->pieces);
}

/* The piece in v->pieces[i] becomes token i. */
static void take_piece(Vocabulary *v, int64_t i, int32_t type) {
    v->strings[i] = (GgufString){v->pieces[i], strlen(v->pieces[i])};
    v->types[i] = type;
    v->scores[i] = type == NORMAL ? -(float)(i - MIN_VOCAB) : 0.0f;
}

static const char *syllable(int64_t i, char out[3]) {
    static const char consonants[] = "bcdfghjklmnpqrstvwxz", vowels[] = "aeiou";
    out[0] = consonants[i / 5 % 20];
    out[1] = vowels[i % 5];
    out[2] = '\0';
    return out;
}

/* Piece number i after the byte tokens. */
static void make_piece(int64_t i, char out[PIECE_BYTES]) {
    enum { N_CHARS = 95, N_ONE = 100, N_TWO = 100 * 100 };
    char a[3], b[3], c[3];
    const char *blank = "";
    if (i < N_CHARS) {
        snprintf(out, PIECE_BYTES, i == 0 ? BLANK : "%c", (char)(' ' + i));
        return;
    }
    i -= N_CHARS;
    int64_t n = N_ONE;
    int level = 1;
    for (; level < 3; level++, n = N_TWO) {
        if (i < 2 * n) {
            blank = i < n ? "" : BLANK;
            i %= n;
            break;
        }
        i -= 2 * n;
    }
    if (level == 1) snprintf(out, PIECE_BYTES, "%s%s", blank, syllable(i, a));
    else if (level == 2) snprintf(out, PIECE_BYTES, "%s%s%s", blank, syllable(i / 100, a), syllable(i, b));
    else snprintf(out, PIECE_BYTES, BLANK "%s%s%s", syllable(i / 10000, a), syllable(i / 100, b), syllable(i, c));
}

static void make_up(Vocabulary *v) {
    static const char *special[] = {"<unk>", "<s>", "</s>"};
    for (int64_t i = 0; i < v->n; i++) {
        if (i < 3) snprintf(v->pieces[i], PIECE_BYTES, "%s", special[i]);
        else if (i < MIN_VOCAB) snprintf(v->pieces[i], PIECE_BYTES, "<0x%02X>", (unsigned)(i - 3));
        else make_piece(i - MIN_VOCAB, v->pieces[i]);
        take_piece(v, i, i == 0 ? UNKNOWN : i < 3 ? CONTROL : i < MIN_VOCAB ? BYTE : NORMAL);
    }
}

static void set_made_up_keys(GgufWriter *w) {
    gguf_set_string(w, "tokenizer.ggml.model", "llama", 5);
    gguf_set_u32(w, "tokenizer.ggml.bos_token_id", 1);
    gguf_set_u32(w, "tokenizer.ggml.eos_token_id", 2);
    gguf_set_u32(w, "tokenizer.ggml.unknown_token_id", 0);
    gguf_set_bool(w, "tokenizer.ggml.add_bos_token", true);
    gguf_set_bool(w, "tokenizer.ggml.add_eos_token", false);
}

/* Takes the first n tokens of another file, and pads a shorter vocabulary with unused tokens. */
static int copy_tokens(Vocabulary *v, const Gguf *g, int64_t tokens, fr_error *err) {
    int64_t scores = gguf_find_key(g, "tokenizer.ggml.scores"), types = gguf_find_key(g, "tokenizer.ggml.token_type");
    for (int64_t i = 0; i < v->n; i++) {
        int64_t type = NORMAL;
        if (i >= gguf_kv_count(g, tokens)) {
            snprintf(v->pieces[i], PIECE_BYTES, "[PAD%lld]", (long long)i);
            take_piece(v, i, UNUSED);
            continue;
        }
        if (!gguf_array_string(g, tokens, i, &v->strings[i]))
            return error_set(err, FR_ERR_FORMAT, "%.200s: its tokens are not strings", gguf_path(g));
        if (scores >= 0 && i < gguf_kv_count(g, scores)) gguf_array_f32(g, scores, i, &v->scores[i]);
        if (types >= 0 && i < gguf_kv_count(g, types)) gguf_array_i64(g, types, i, &type);
        v->types[i] = (int32_t)type;
    }
    return FR_OK;
}

/* Copies the other tokenizer.* keys of the file, except ids of tokens that were cut off. */
static void copy_keys(GgufWriter *w, const Gguf *g, int64_t n_vocab) {
    static const char *set_already[] = {"tokenizer.ggml.tokens", "tokenizer.ggml.scores", "tokenizer.ggml.token_type"};
    for (int64_t i = 0; i < gguf_n_kv(g); i++) {
        const char *key = gguf_key(g, i), *id = strstr(key, "_token_id");
        int64_t v;
        bool wanted = strncmp(key, "tokenizer.", 10) == 0;
        for (size_t k = 0; k < 3; k++) wanted = wanted && strcmp(key, set_already[k]) != 0;
        if (id && gguf_get_i64(g, key, &v) && v >= n_vocab) wanted = false;
        if (wanted) gguf_copy_kv(w, g, i);
    }
}

static void set_tokens(GgufWriter *w, const Vocabulary *v) {
    gguf_set_strings(w, "tokenizer.ggml.tokens", v->strings, v->n);
    gguf_set_f32s(w, "tokenizer.ggml.scores", v->scores, v->n);
    gguf_set_i32s(w, "tokenizer.ggml.token_type", v->types, v->n);
}

static int set_from_file(GgufWriter *w, ModelPlan *plan, const Gguf *g, fr_error *err) {
    int64_t tokens = gguf_find_key(g, "tokenizer.ggml.tokens");
    if (tokens < 0) return error_set(err, FR_ERR_FORMAT, "%.200s: has no vocabulary to take", gguf_path(g));
    int64_t n = gguf_kv_count(g, tokens);
    if (plan->n_vocab == 0) plan->n_vocab = n;
    if (plan->n_vocab < n && gguf_find_key(g, "tokenizer.ggml.merges") >= 0)
        return error_set(err, FR_ERR_UNSUPPORTED,
                         "%.200s: its vocabulary of %lld tokens has merges and cannot be cut; pass a larger --vocab",
                         gguf_path(g), (long long)n);
    Vocabulary v;
    int status = vocabulary_init(&v, plan->n_vocab, err);
    if (status) return status;
    status = copy_tokens(&v, g, tokens, err);
    if (!status) {
        set_tokens(w, &v);
        copy_keys(w, g, plan->n_vocab);
    }
    vocabulary_free(&v);
    return status;
}

int vocabulary_set(GgufWriter *w, ModelPlan *plan, fr_error *err) {
    int status;
    if (plan->vocab_from) {
        Gguf *g;
        if ((status = gguf_open(&g, plan->vocab_from, err))) return status;
        status = set_from_file(w, plan, g, err);
        gguf_close(g);
        return status;
    }
    Vocabulary v;
    if (plan->n_vocab == 0) plan->n_vocab = 4096;
    if (plan->n_vocab < MIN_VOCAB || plan->n_vocab > 1000000)
        return error_set(err, FR_ERR_ARGUMENT, "--vocab must be from %d to 1000000", MIN_VOCAB);
    if ((status = vocabulary_init(&v, plan->n_vocab, err))) return status;
    make_up(&v);
    set_tokens(w, &v);
    set_made_up_keys(w);
    vocabulary_free(&v);
    return FR_OK;
}

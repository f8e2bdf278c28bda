/* vocab.c - reads the vocabulary of a GGUF file (tokenizer.ggml.*) and builds the tables for looking up pieces. Its
 * special tokens are found in vocab_special.c. */
#include "text/vocab.h"

#include "base/hash.h"
#include "base/mem.h"
#include "base/error.h"
#include "text/encoder.h"
#include "text/utf8.h"

#include <math.h>
#include <string.h>

#define KEY_TOKENS "tokenizer.ggml.tokens"
#define KEY_TYPES "tokenizer.ggml.token_type"
#define KEY_SCORES "tokenizer.ggml.scores"
#define KEY_SUPPRESSED "tokenizer.ggml.suppress_tokens"

/* ---- the alphabet of byte-level BPE ------------------------------------------------------------------------------ */

static bool stands_for_itself(unsigned c) {
    return (c >= 0x21 && c <= 0x7E) || (c >= 0xA1 && c <= 0xAC) || (c >= 0xAE && c <= 0xFF);
}

/* Returns the byte that is spelled as code point c, or -1. */
static int byte_of(unsigned c) {
    if (c < 256) return stands_for_itself(c) ? (int)c : -1;
    /* Byte number k of those that are not spelled as themselves: 0..0x20 (k up to 32), 0x7F..0xA0 (up to 66), 0xAD
     * (67). */
    unsigned k = c - 256;
    if (k <= 0x20) return (int)k;
    if (k <= 66) return (int)(0x7F + k - 33);
    return k == 67 ? 0xAD : -1;
}

size_t byte_map_decode(const char *spelling, size_t n, char *out, bool *pure) {
    size_t n_out = 0;
    *pure = true;
    for (size_t i = 0; i < n;) {
        size_t need, got = utf8_scan(spelling + i, n - i, &need);
        bool whole = need > 0 && got == need;
        int byte = -1;
        if (whole && need == 1) byte = byte_of((unsigned char)spelling[i]);
        else if (whole && need == 2)
            byte = byte_of(((unsigned)spelling[i] & 0x1F) << 6 | ((unsigned)spelling[i + 1] & 0x3F));
        size_t taken = whole ? need : 1;
        if (byte >= 0) out[n_out++] = (char)byte;
        else
            for (size_t j = 0; j < taken; j++) out[n_out++] = spelling[i + j];
        *pure = *pure && byte >= 0;
        i += taken;
    }
    return n_out;
}

/* ---- pieces, types and scores ------------------------------------------------------------------------------------ */

static int read_kind(Vocab *v, const Gguf *g, fr_error *err) {
    GgufString model;
    if (!gguf_get_string(g, "tokenizer.ggml.model", &model))
        return error_set(err, FR_ERR_UNSUPPORTED,
                         "%s: holds no vocabulary (no string tokenizer.ggml.model); give a model file that has one",
                         gguf_path(g));
    if (model.n == 5 && memcmp(model.data, "llama", 5) == 0) v->kind = VOCAB_SPM;
    else if (model.n == 6 && memcmp(model.data, "gemma4", 6) == 0) v->kind = VOCAB_CHARACTER_BPE;
    else if (model.n == 4 && memcmp(model.data, "gpt2", 4) == 0) {
        GgufString pre = {"", 0};
        gguf_get_string(g, "tokenizer.ggml.pre", &pre);
        v->kind = pretokenizer_flags_of(pre.data, pre.n) & PRE_READS_CHARACTERS ? VOCAB_CHARACTER_BPE : VOCAB_BPE;
    } else {
        Printable p;
        return error_set(err, FR_ERR_UNSUPPORTED,
                         "%s: the tokenizer model '%s' is not supported; forerun reads 'llama' (SentencePiece "
                         "BPE), 'gpt2' (byte-level BPE) and 'gemma4' (BPE over characters)",
                         gguf_path(g), printable(&p, model.data, model.n));
    }
    return FR_OK;
}

/* Sets *kv to the index of an array of n elements of a type, or to -1 if the file has no such key. n < 0 allows any
 * number. */
static int find_array(const Gguf *g, const char *key, GgufType type, int64_t n, int64_t *kv, fr_error *err) {
    *kv = gguf_find_key(g, key);
    if (*kv < 0) return FR_OK;
    bool fits = gguf_kv_type(g, *kv) == GGUF_ARRAY;
    GgufType got = fits ? gguf_kv_element_type(g, *kv) : GGUF_ARRAY;
    if (type == GGUF_I32) fits = fits && got != GGUF_STRING && got != GGUF_F32 && got != GGUF_F64 && got != GGUF_ARRAY;
    else fits = fits && (got == type || (type == GGUF_F32 && got == GGUF_F64));
    if (!fits)
        return error_set(err, FR_ERR_FORMAT, "%s: %s is not an array of %s; the vocabulary is damaged", gguf_path(g),
                         key,
                         type == GGUF_STRING ? "strings"
                         : type == GGUF_F32  ? "floats"
                                             : "integers");
    if (n >= 0 && gguf_kv_count(g, *kv) != n)
        return error_set(err, FR_ERR_FORMAT, "%s: %s has %lld elements for %lld tokens; the vocabulary is damaged",
                         gguf_path(g), key, (long long)gguf_kv_count(g, *kv), (long long)n);
    return FR_OK;
}

/* Adds up the lengths of the spellings, so that one block can be allocated for all spellings and texts. */
static int measure_pieces(const Gguf *g, int64_t kv, int64_t n, size_t *bytes, fr_error *err) {
    *bytes = 0;
    for (int64_t i = 0; i < n; i++) {
        GgufString s;
        if (!gguf_array_string(g, kv, i, &s))
            return error_set(err, FR_ERR_FORMAT, "%s: %s[%lld] cannot be read", gguf_path(g), KEY_TOKENS, (long long)i);
        if (s.n > VOCAB_MAX_PIECE)
            return error_set(err, FR_ERR_UNSUPPORTED, "%s: token %lld is spelled with %zu bytes; the limit is %d",
                             gguf_path(g), (long long)i, s.n, VOCAB_MAX_PIECE);
        *bytes += s.n;
    }
    return FR_OK;
}

static int read_pieces(Vocab *v, const Gguf *g, fr_error *err) {
    int64_t kv;
    int status = find_array(g, KEY_TOKENS, GGUF_STRING, -1, &kv, err);
    if (status) return status;
    int64_t n = kv < 0 ? 0 : gguf_kv_count(g, kv);
    if (n < 1 || n > INT32_MAX / 8)
        return error_set(err, FR_ERR_FORMAT, "%s: %s holds %lld tokens; a vocabulary has at least one", gguf_path(g),
                         KEY_TOKENS, (long long)n);
    size_t bytes;
    if ((status = measure_pieces(g, kv, n, &bytes, err))) return status;
    v->n = (int32_t)n;
    size_t count = (size_t)n;
    v->bytes = mem_alloc(2 * bytes + 1);
    v->spelling = mem_calloc(count, sizeof *v->spelling);
    v->text = mem_calloc(count, sizeof *v->text);
    v->score = mem_calloc(count, sizeof *v->score);
    v->type = mem_calloc(count, sizeof *v->type);
    v->is_eog = mem_calloc(count, sizeof *v->is_eog);
    v->strips_after = mem_calloc(count, sizeof *v->strips_after);
    if (!v->bytes || !v->spelling || !v->text || !v->score || !v->type || !v->is_eog || !v->strips_after)
        return error_memory(err, "a vocabulary", 2 * bytes + count * 64);
    char *end = v->bytes;
    for (int32_t i = 0; i < v->n; i++) {
        GgufString s;
        if (!gguf_array_string(g, kv, i, &s))
            return error_set(err, FR_ERR_INTERNAL, "a token cannot be read a second time");
        if (s.n) memcpy(end, s.data, s.n);
        v->spelling[i] = (Piece){end, (uint32_t)s.n};
        end += s.n;
    }
    return FR_OK;
}

/* Returns the byte of a spelling such as <0x0A>, or -1 for another spelling. */
static int named_byte(Piece p) {
    if (p.n != 6 || memcmp(p.data, "<0x", 3) != 0 || p.data[5] != '>') return -1;
    int value = 0;
    for (int i = 3; i < 5; i++) {
        char c = p.data[i];
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (digit < 0) return -1;
        value = 16 * value + digit;
    }
    return value;
}

static int read_types(Vocab *v, const Gguf *g, bool *given, fr_error *err) {
    int64_t kv;
    int status = find_array(g, KEY_TYPES, GGUF_I32, v->n, &kv, err);
    if (status) return status;
    *given = kv >= 0;
    for (int32_t i = 0; i < v->n; i++) {
        int64_t type = TOKEN_NORMAL;
        if (kv >= 0) gguf_array_i64(g, kv, i, &type);
        else if (v->kind != VOCAB_BPE && named_byte(v->spelling[i]) >= 0) type = TOKEN_BYTE;
        if (type < TOKEN_UNDEFINED || type > TOKEN_BYTE) type = TOKEN_UNDEFINED;
        if (type == TOKEN_BYTE && named_byte(v->spelling[i]) < 0) type = TOKEN_NORMAL;
        v->type[i] = (uint8_t)type;
    }
    return FR_OK;
}

static int read_scores(Vocab *v, const Gguf *g, fr_error *err) {
    int64_t kv;
    int status = find_array(g, KEY_SCORES, GGUF_F32, v->n, &kv, err);
    if (status || v->kind != VOCAB_SPM) return status; /* only SentencePiece uses scores */
    if (kv < 0)
        return error_set(err, FR_ERR_FORMAT, "%s: the SentencePiece vocabulary has no %s; convert the model again",
                         gguf_path(g), KEY_SCORES);
    for (int32_t i = 0; i < v->n; i++)
        if (!gguf_array_f32(g, kv, i, &v->score[i]) || isnan(v->score[i]))
            return error_set(err, FR_ERR_FORMAT, "%s: %s[%d] is not a number; the vocabulary is damaged", gguf_path(g),
                             KEY_SCORES, i);
    return FR_OK;
}

/* Writes the text of token i to `end`. *pure is false if no text is encoded as this piece. */
static Piece make_text(const Vocab *v, int32_t i, char *end, bool *pure) {
    Piece s = v->spelling[i];
    uint32_t n = 0;
    *pure = true;
    if (v->type[i] == TOKEN_BYTE) end[n++] = (char)named_byte(s);
    else if (v->type[i] == TOKEN_USER_DEFINED || v->type[i] == TOKEN_CONTROL || v->type[i] == TOKEN_UNKNOWN)
        return s; /* these are spelled as they appear in a text */
    else if (v->kind == VOCAB_BPE) n = (uint32_t)byte_map_decode(s.data, s.n, end, pure);
    else
        for (uint32_t at = 0; at < s.n; n++) {
            bool mark = s.n - at >= 3 && memcmp(s.data + at, "\xE2\x96\x81", 3) == 0;
            if (v->kind == VOCAB_CHARACTER_BPE && s.data[at] == ' ') *pure = false; /* a space is spelled as a mark */
            end[n] = mark ? ' ' : s.data[at];
            at += mark ? 3 : 1;
        }
    return (Piece){end, n};
}

static bool has_space_within(Piece text) {
    for (uint32_t i = 1; i < text.n; i++)
        if (text.data[i] == ' ' && text.data[i - 1] != ' ') return true;
    return false;
}

static int build_tables(Vocab *v, fr_error *err) {
    char *end = (char *)v->spelling[v->n - 1].data + v->spelling[v->n - 1].n;
    memset(v->byte_token, -1, sizeof v->byte_token);
    for (int32_t i = 0; i < v->n; i++) {
        bool pure, fits = true;
        int32_t id;
        Piece s = v->spelling[i], t = v->text[i] = make_text(v, i, end, &pure);
        if (t.data == end) end += t.n;
        if (s.n) fits = hash_table_add(&v->by_spelling, s.data, s.n, i, &id);
        bool ordinary = v->type[i] == TOKEN_NORMAL || v->type[i] == TOKEN_UNUSED || v->type[i] == TOKEN_UNDEFINED;
        if (ordinary) v->space_within = v->space_within || has_space_within(t);
        if (fits && ordinary && pure && t.n) fits = hash_table_add(&v->by_text, t.data, t.n, i, &id);
        if (!fits) return error_memory(err, "the table of a vocabulary", sizeof(HashSlot) * (size_t)v->n);
        if (v->type[i] == TOKEN_BYTE && v->byte_token[(unsigned char)t.data[0]] < 0)
            v->byte_token[(unsigned char)t.data[0]] = i;
    }
    for (int b = 0; b < 256; b++)
        if (v->byte_token[b] < 0) v->byte_token[b] = hash_table_find(&v->by_text, (const char[]){(char)b}, 1);
    return FR_OK;
}

/* Lists the tokens that are never generated, such as those that stand for pictures. Ids outside the vocabulary, which
 * published files have, mean nothing. */
static int read_suppressed(Vocab *v, const Gguf *g, fr_error *err) {
    int64_t kv, id;
    int status = find_array(g, KEY_SUPPRESSED, GGUF_I32, -1, &kv, err);
    if (status || kv < 0) return status;
    bool *is_listed = mem_calloc((size_t)v->n, sizeof *is_listed);
    v->suppressed = mem_calloc((size_t)v->n, sizeof *v->suppressed);
    for (int64_t i = 0; is_listed && v->suppressed && i < gguf_kv_count(g, kv); i++) {
        if (!gguf_array_i64(g, kv, i, &id) || id < 0 || id >= v->n || is_listed[id]) continue;
        is_listed[id] = true;
        v->suppressed[v->n_suppressed++] = (int32_t)id;
    }
    if (!is_listed || !v->suppressed)
        status = error_memory(err, "the suppressed tokens", (size_t)v->n * sizeof *v->suppressed);
    mem_free(is_listed);
    return status;
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

int vocab_open(Vocab *v, const Gguf *g, fr_error *err) {
    bool types_given;
    int status = read_kind(v, g, err);
    if (!status) status = read_pieces(v, g, err);
    if (!status) status = read_types(v, g, &types_given, err);
    if (!status) status = read_scores(v, g, err);
    if (!status) status = vocab_read_special(v, g, types_given, err);
    if (!status) status = read_suppressed(v, g, err);
    return status ? status : build_tables(v, err);
}

void vocab_close(Vocab *v) {
    hash_table_close(&v->by_spelling);
    hash_table_close(&v->by_text);
    mem_free(v->bytes);
    mem_free(v->spelling);
    mem_free(v->text);
    mem_free(v->score);
    mem_free(v->type);
    mem_free(v->is_eog);
    mem_free(v->strips_after);
    mem_free(v->suppressed);
    *v = (Vocab){0};
}

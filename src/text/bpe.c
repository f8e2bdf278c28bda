/* bpe.c - BPE by a list of merges (Radford et al. 2019). A word starts as single bytes, or, in some vocabularies, as
 * characters. The pair with the lowest rank, which is its position in the list, is merged first.
 *
 * A merge is written "left right". Both sides and their result get numbers when the vocabulary is opened (see Bpe),
 * so that encoding looks up pairs of numbers and builds no strings. Strings that are no tokens may occur while
 * merging ("Ġfo" before "Ġfoo"). If one remains at the end, it is replaced by the tokens of its bytes. */
#include "text/encoder.h"

#include "base/mem.h"

#include <string.h>

#include "text/vocab.h"

#define KEY_MERGES "tokenizer.ggml.merges"

static BpePair *slot_of(const Bpe *b, int32_t left, int32_t right) {
    size_t mask = b->n_slots - 1;
    for (size_t i = (size_t)(keyed_hash_pair(&b->key, left, right) >> 32) & mask;; i = (i + 1) & mask) {
        BpePair *p = &b->pairs[i];
        if (p->left < 0 || (p->left == left && p->right == right)) return p;
    }
}

/* Sets *id to the symbol of a string, which is a new one if the string has none yet. */
static bool symbol_of(Bpe *b, Vocab *v, const char *text, size_t n, int32_t *id) {
    if (!hash_table_add(&v->by_text, text, n, b->n_symbols, id)) return false;
    if (*id == b->n_symbols) b->n_symbols++;
    return true;
}

/* Reads merge number `rank` and writes its text to *end. Merges with characters outside the byte alphabet can never
 * occur and are skipped. Of equal merges the first counts. */
static int read_merge(Bpe *b, Vocab *v, const Gguf *g, int64_t kv, int64_t rank, char **end, fr_error *err) {
    GgufString s;
    const char *space = NULL;
    if (gguf_array_string(g, kv, rank, &s) && s.n >= 3) space = memchr(s.data + 1, ' ', s.n - 2);
    if (!space)
        return error_set(err, FR_ERR_FORMAT, "%s: %s[%lld] is not two pieces with a space between them", gguf_path(g),
                         KEY_MERGES, (long long)rank);
    bool left_pure = true, right_pure = true;
    size_t n_spelled = (size_t)(space - s.data), n_rest = s.n - n_spelled - 1, n_left, n_right;
    if (v->kind == VOCAB_CHARACTER_BPE) {
        n_left = marks_to_spaces(s.data, n_spelled, *end);
        n_right = marks_to_spaces(space + 1, n_rest, *end + n_left);
    } else {
        n_left = byte_map_decode(s.data, n_spelled, *end, &left_pure);
        n_right = byte_map_decode(space + 1, n_rest, *end + n_left, &right_pure);
    }
    if (!left_pure || !right_pure) return FR_OK;
    int32_t left, right, result;
    if (!symbol_of(b, v, *end, n_left, &left) || !symbol_of(b, v, *end + n_left, n_right, &right) ||
        !symbol_of(b, v, *end, n_left + n_right, &result))
        return error_memory(err, "the merges of a vocabulary", s.n);
    *end += n_left + n_right;
    BpePair *p = slot_of(b, left, right);
    if (p->left < 0) *p = (BpePair){left, right, (uint32_t)rank, result};
    return FR_OK;
}

static int read_merges(Bpe *b, Vocab *v, const Gguf *g, fr_error *err) {
    int64_t kv = gguf_find_key(g, KEY_MERGES);
    if (kv < 0 || gguf_kv_type(g, kv) != GGUF_ARRAY || gguf_kv_element_type(g, kv) != GGUF_STRING)
        return error_set(err, FR_ERR_FORMAT,
                         "%s: the byte-level BPE vocabulary has no list of strings %s; convert "
                         "the model again",
                         gguf_path(g), KEY_MERGES);
    int64_t n = gguf_kv_count(g, kv);
    size_t bytes = 1;
    for (int64_t i = 0; i < n; i++) {
        GgufString s;
        if (gguf_array_string(g, kv, i, &s)) bytes += s.n;
    }
    if (n > INT32_MAX / 8 || bytes > INT32_MAX)
        return error_set(err, FR_ERR_UNSUPPORTED, "%s: %s with %lld entries is too large", gguf_path(g), KEY_MERGES,
                         (long long)n);
    b->key = hash_key_new();
    for (b->n_slots = 16; b->n_slots < 2 * (size_t)n;) b->n_slots *= 2;
    b->pairs = mem_alloc(b->n_slots * sizeof *b->pairs);
    b->bytes = mem_alloc(bytes);
    if (!b->pairs || !b->bytes) return error_memory(err, "the merges of a vocabulary", b->n_slots * sizeof *b->pairs);
    memset(b->pairs, -1, b->n_slots * sizeof *b->pairs);
    char *end = b->bytes;
    int status = FR_OK;
    for (int64_t i = 0; i < n && !status; i++) status = read_merge(b, v, g, kv, i, &end, err);
    return status;
}

int bpe_open(Bpe *b, Vocab *v, const Gguf *g, fr_error *err) {
    GgufString pre = {"default", 7}, model;
    bool file_says;
    gguf_get_string(g, "tokenizer.ggml.pre", &pre);
    if (gguf_get_string(g, "tokenizer.ggml.model", &model) && model.n == 6) pre = model; /* gemma4 */
    int status = pretokenizer_open(&b->pre, pre.data, pre.n, gguf_path(g), err);
    if (status) return status;
    if (!gguf_get_bool(g, "tokenizer.ggml.add_bos_token", &file_says))
        v->adds_bos = pretokenizer_flags(b->pre) & PRE_ADDS_BOS;
    b->n_symbols = v->n;
    if ((status = read_merges(b, v, g, err))) return status;
    for (int c = 0; c < 256; c++) b->byte_symbol[c] = hash_table_find(&v->by_text, (const char[]){(char)c}, 1);
    return FR_OK;
}

void bpe_close(Bpe *b) {
    pretokenizer_close(b->pre);
    mem_free(b->pairs);
    mem_free(b->bytes);
    *b = (Bpe){0};
}

static bool pair(const void *ctx, const char *text, const MergeSymbol *left, const MergeSymbol *right,
                 uint32_t *priority, int32_t *result) {
    (void)text;
    if (left->id < 0 || right->id < 0) return false;
    const BpePair *p = slot_of(ctx, left->id, right->id);
    if (p->left < 0) return false;
    *priority = p->rank;
    *result = p->result;
    return true;
}

/* Makes the bytes of a word, or its characters, the first symbols. */
static bool add_symbols(const Bpe *b, const Vocab *v, const char *word, size_t n, Merger *m) {
    if (v->kind == VOCAB_CHARACTER_BPE) return merger_add_characters(m, v, word, 0, n);
    merger_clear(m);
    for (size_t i = 0; i < n; i++)
        if (!merger_add(m, (uint32_t)i, 1, b->byte_symbol[(unsigned char)word[i]])) return false;
    return true;
}

static bool encode_word(const Bpe *b, const Vocab *v, const char *word, size_t n, Encoding *e) {
    unsigned flags = pretokenizer_flags(b->pre);
    if (flags & PRE_IGNORES_MERGES || (flags & PRE_NEWLINES_WHOLE && word[0] == '\n')) {
        int32_t id = hash_table_find(&v->by_text, word, n);
        if (id >= 0 && id < v->n) return encoding_add(e, id);
    }
    if (!add_symbols(b, v, word, n, &e->merger)) return false;
    if (!merger_run(&e->merger, word, pair, b)) return false;
    bool unknown_run = false;
    for (int32_t i = 0; i >= 0; i = e->merger.symbols[i].next) {
        const MergeSymbol *s = &e->merger.symbols[i];
        bool token = s->id >= 0 && s->id < v->n;
        if (token) unknown_run = false;
        if (!(token ? encoding_add(e, s->id) : encoding_add_bytes(e, v, word + s->at, s->n, &unknown_run)))
            return false;
    }
    return true;
}

int bpe_encode(const Bpe *b, const Vocab *v, const char *text, size_t n, Encoding *e, fr_error *err) {
    const size_t *ends;
    size_t n_ends;
    if (v->kind == VOCAB_CHARACTER_BPE && memmem(text, n, "\xE2\x96\x81", 3)) {
        buf_clear(&e->unmarked);
        e->unmarked.max_bytes = SIZE_MAX;
        if (!buf_append(&e->unmarked, text, n)) return error_memory(err, "a text", n);
        n = marks_to_spaces(text, n, e->unmarked.data);
        text = e->unmarked.data;
    }
    int status = pretokenizer_split(b->pre, text, n, e, &ends, &n_ends, err);
    for (size_t i = 0, begin = 0; i < n_ends && !status; begin = ends[i++])
        if (!encode_word(b, v, text + begin, ends[i] - begin, e))
            status = error_memory(err, "the tokens of a text", 64 * n);
    return status;
}

/* tokenizer.c - opens a vocabulary, finds special tokens in a text, encodes the rest by the kind of BPE that the
 * vocabulary is made for, and turns tokens into text again. */
#include "text/tokenizer.h"

#include "text/encoder.h"
#include "text/utf8.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* ---- special tokens ---------------------------------------------------------------------------------------------- */

/* Special tokens are sorted by their bytes. Those that agree with the text so far are a range, which each further byte
 * narrows. */

static int compare(const void *a, const void *b) {
    const SpecialPiece *x = a, *y = b;
    uint32_t n = x->piece.n < y->piece.n ? x->piece.n : y->piece.n;
    int order = memcmp(x->piece.data, y->piece.data, n);
    if (order) return order;
    if (x->piece.n != y->piece.n) return x->piece.n < y->piece.n ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static bool wanted(const Vocab *v, int32_t id, bool all) {
    if (v->spelling[id].n == 0) return false;
    return v->type[id] == TOKEN_USER_DEFINED || (all && (v->type[id] == TOKEN_CONTROL || v->type[id] == TOKEN_UNKNOWN));
}

/* Keeps only the lowest id of equal spellings. A file may spell thousands of tokens alike, and each search would
 * have to pass all of them. */
static void drop_duplicates(SpecialSet *s) {
    int32_t n = 0;
    for (int32_t i = 0; i < s->n; i++) {
        const Piece *last = n ? &s->sorted[n - 1].piece : NULL, *p = &s->sorted[i].piece;
        if (!last || last->n != p->n || memcmp(last->data, p->data, p->n) != 0) s->sorted[n++] = s->sorted[i];
    }
    s->n = n;
}

int special_set_open(SpecialSet *s, const Vocab *v, bool all, fr_error *err) {
    size_t n = 0;
    for (int32_t i = 0; i < v->n; i++) n += wanted(v, i, all);
    if (n == 0) return FR_OK;
    s->sorted = mem_calloc(n, sizeof *s->sorted);
    if (!s->sorted) return error_memory(err, "the special tokens", n * sizeof *s->sorted);
    for (int32_t i = 0; i < v->n; i++)
        if (wanted(v, i, all)) s->sorted[s->n++] = (SpecialPiece){v->spelling[i], i};
    qsort(s->sorted, n, sizeof *s->sorted, compare);
    drop_duplicates(s);
    for (int32_t i = 0, c = 0; c <= 256; c++) {
        while (i < s->n && (unsigned char)s->sorted[i].piece.data[0] < c) i++;
        s->first[c] = i;
    }
    return FR_OK;
}

void special_set_close(SpecialSet *s) {
    mem_free(s->sorted);
    *s = (SpecialSet){0};
}

/* Returns the first element of sorted[lo..hi) whose byte number `depth` is at least c. They all agree in the bytes
 * before it. */
static int32_t lower_bound(const SpecialSet *s, int32_t lo, int32_t hi, uint32_t depth, unsigned c) {
    while (lo < hi) {
        int32_t mid = lo + (hi - lo) / 2;
        if ((unsigned char)s->sorted[mid].piece.data[depth] < c) lo = mid + 1;
        else hi = mid;
    }
    return lo;
}

/* Returns the longest special token at the beginning of the text, or NULL. Each byte of the text narrows the sorted
 * range. */
static const SpecialPiece *longest(const SpecialSet *s, const char *text, size_t n) {
    const SpecialPiece *best = NULL;
    unsigned c = (unsigned char)text[0];
    int32_t lo = s->first[c], hi = s->first[c + 1];
    for (uint32_t depth = 1; lo < hi; depth++) {
        if (s->sorted[lo].piece.n == depth) best = &s->sorted[lo++]; /* no other token has this spelling */
        if (depth == n) break;
        c = (unsigned char)text[depth];
        lo = lower_bound(s, lo, hi, depth, c);
        hi = lower_bound(s, lo, hi, depth, c + 1);
    }
    return best;
}

size_t special_set_find(const SpecialSet *s, const char *text, size_t n, size_t from, int32_t *id, size_t *n_bytes) {
    for (size_t i = from; s->n > 0 && i < n; i++) {
        unsigned c = (unsigned char)text[i];
        if (s->first[c] == s->first[c + 1]) continue;
        const SpecialPiece *hit = longest(s, text + i, n - i);
        if (!hit) continue;
        *id = hit->id;
        *n_bytes = hit->piece.n;
        return i;
    }
    return n;
}

/* ---- the list of tokens ------------------------------------------------------------------------------------------ */

bool encoding_add(Encoding *e, int32_t id) {
    if (e->n == e->capacity) {
        int64_t wanted = e->capacity ? 2 * e->capacity : 64;
        int32_t *bigger = realloc(e->ids, (size_t)wanted * sizeof *bigger);
        if (!bigger) return false;
        e->ids = bigger;
        e->capacity = wanted;
    }
    e->ids[e->n++] = id;
    return true;
}

bool encoding_add_bytes(Encoding *e, const Vocab *v, const char *bytes, size_t n, bool *unknown_run) {
    for (size_t i = 0; i < n; i++) {
        int32_t id = v->byte_token[(unsigned char)bytes[i]];
        bool unknown = id < 0;
        if (unknown) id = *unknown_run ? -1 : v->unknown;
        *unknown_run = unknown;
        if (id >= 0 && !encoding_add(e, id)) return false;
    }
    return true;
}

size_t marks_to_spaces(const char *text, size_t n, char *out) {
    size_t n_out = 0;
    for (size_t at = 0; at < n; n_out++) {
        bool mark = n - at >= 3 && memcmp(text + at, "\xE2\x96\x81", 3) == 0;
        out[n_out] = mark ? ' ' : text[at];
        at += mark ? 3 : 1;
    }
    return n_out;
}

void encoding_close(Encoding *e) {
    merger_close(&e->merger);
    buf_free(&e->unmarked);
    buf_free(&e->text);
    for (int i = 0; i < 2; i++) free(e->ends[i]);
}

/* ---- encoding ---------------------------------------------------------------------------------------------------- */

struct Tokenizer {
    Vocab vocab;
    Bpe bpe; /* not for VOCAB_SPM */
    SpecialSet user_defined, all_special;
};

int tokenizer_open(Tokenizer **out, const Gguf *g, fr_error *err) {
    *out = NULL;
    Tokenizer *t = calloc(1, sizeof *t);
    if (!t) return error_memory(err, "a tokenizer", sizeof *t);
    int status = vocab_open(&t->vocab, g, err);
    if (!status && t->vocab.kind != VOCAB_SPM) status = bpe_open(&t->bpe, &t->vocab, g, err);
    if (!status) status = special_set_open(&t->user_defined, &t->vocab, false, err);
    if (!status) status = special_set_open(&t->all_special, &t->vocab, true, err);
    if (status) tokenizer_close(t);
    else *out = t;
    return status;
}

void tokenizer_close(Tokenizer *t) {
    if (!t) return;
    special_set_close(&t->user_defined);
    special_set_close(&t->all_special);
    vocab_close(&t->vocab);
    bpe_close(&t->bpe);
    free(t);
}

/* Encodes a part between special tokens. Unless it is continued, it follows the beginning of the text or a special
 * token, so a space is put before it if the vocabulary wants one before the first word. */
static int encode_plain(const Tokenizer *t, const char *text, size_t n, bool continued, Encoding *e, fr_error *err) {
    if (n == 0) return FR_OK;
    if (t->vocab.kind != VOCAB_SPM) return bpe_encode(&t->bpe, &t->vocab, text, n, e, err);
    return spm_encode(&t->vocab, text, n, t->vocab.adds_space_prefix && !continued, e, err);
}

/* The first special token of a set at or after a position. It is kept until the position has passed it. */
typedef struct Hit {
    size_t at, n_bytes; /* at is the length of the text if there is none */
    int32_t id;
    bool is_known;
} Hit;

static void look_for(Hit *h, const SpecialSet *set, const char *text, size_t n, size_t from) {
    if (h->is_known && h->at >= from) return;
    *h = (Hit){.id = -1, .is_known = true};
    h->at = special_set_find(set, text, n, from, &h->id, &h->n_bytes);
}

/* The same, but only in the parts of the text that are not data. */
static void look_outside(Hit *h, const SpecialSet *set, const char *text, size_t n, size_t from, const TextSpan *data,
                         size_t n_data, size_t *i_data) {
    if (h->is_known && h->at >= from) return;
    *h = (Hit){.at = n, .id = -1, .is_known = true};
    while (from < n && h->id < 0) {
        while (*i_data < n_data && data[*i_data].end <= from) ++*i_data;
        bool inside = *i_data < n_data && data[*i_data].begin <= from;
        size_t end = inside ? data[*i_data].end : *i_data < n_data ? data[*i_data].begin : n;
        size_t at = inside ? end : special_set_find(set, text, end, from, &h->id, &h->n_bytes);
        if (h->id >= 0) h->at = at;
        from = end;
    }
}

static int encode_text(const Tokenizer *t, const char *text, size_t n, unsigned flags, const TextSpan *data,
                       size_t n_data, Encoding *e, fr_error *err) {
    Hit anywhere = {0}, outside = {0};
    size_t i_data = 0;
    int status = FR_OK;
    for (size_t at = 0; at < n && !status;) {
        look_for(&anywhere, &t->user_defined, text, n, at);
        Hit first = anywhere;
        if (flags & TOKENIZE_SPECIAL) {
            look_outside(&outside, &t->all_special, text, n, at, data, n_data, &i_data);
            if (outside.at < first.at || (outside.at == first.at && outside.n_bytes > first.n_bytes)) first = outside;
        }
        int32_t id = first.id;
        size_t hit = first.at, n_bytes = first.n_bytes;
        status = encode_plain(t, text + at, hit - at, at == 0 && (flags & TOKENIZE_CONTINUED), e, err);
        if (!status && id >= 0 && !encoding_add(e, id)) status = error_memory(err, "the tokens of a text", n);
        at = hit + n_bytes;
        if (id >= 0 && t->vocab.strips_after[id])
            while (at < n && isspace((unsigned char)text[at])) at++;
    }
    return status;
}

int tokenizer_encode(const Tokenizer *t, const char *text, size_t n, unsigned flags, int32_t **out_tokens,
                     int64_t *out_n, fr_error *err) {
    return tokenizer_encode_marked(t, text, n, NULL, 0, flags, out_tokens, out_n, err);
}

int tokenizer_encode_marked(const Tokenizer *t, const char *text, size_t n, const TextSpan *data, size_t n_data,
                            unsigned flags, int32_t **out_tokens, int64_t *out_n, fr_error *err) {
    *out_tokens = NULL;
    *out_n = 0;
    if (n > INT32_MAX - 1)
        return error_set(err, FR_ERR_ARGUMENT,
                         "a text of %zu bytes is too long to be tokenized at once; the limit is %d bytes", n,
                         INT32_MAX - 1);
    Encoding e = {0};
    bool fits = true;
    if ((flags & TOKENIZE_BOS) && t->vocab.bos >= 0) fits = encoding_add(&e, t->vocab.bos);
    int status = fits ? encode_text(t, text, n, flags, data, n_data, &e, err) : FR_OK;
    if (fits && !status && (flags & TOKENIZE_EOS) && t->vocab.eos >= 0) fits = encoding_add(&e, t->vocab.eos);
    if (!fits) status = error_memory(err, "the tokens of a text", n);
    encoding_close(&e);
    if (status) {
        free(e.ids);
        return status;
    }
    *out_tokens = e.ids;
    *out_n = e.n;
    return FR_OK;
}

int32_t tokenizer_n_vocab(const Tokenizer *t) { return t->vocab.n; }
int32_t tokenizer_bos(const Tokenizer *t) { return t->vocab.bos; }
int32_t tokenizer_eos(const Tokenizer *t) { return t->vocab.eos; }
bool tokenizer_adds_bos(const Tokenizer *t) { return t->vocab.adds_bos && t->vocab.bos >= 0; }
bool tokenizer_adds_eos(const Tokenizer *t) { return t->vocab.adds_eos && t->vocab.eos >= 0; }
bool tokenizer_adds_space_prefix(const Tokenizer *t) { return t->vocab.adds_space_prefix; }

static bool known(const Tokenizer *t, int32_t token) { return token >= 0 && token < t->vocab.n; }

bool tokenizer_is_eog(const Tokenizer *t, int32_t token) { return known(t, token) && t->vocab.is_eog[token]; }

const int32_t *tokenizer_suppressed(const Tokenizer *t, int32_t *n) {
    *n = t->vocab.n_suppressed;
    return t->vocab.suppressed;
}

bool tokenizer_is_special(const Tokenizer *t, int32_t token) {
    return known(t, token) && (t->vocab.type[token] == TOKEN_CONTROL || t->vocab.type[token] == TOKEN_UNKNOWN);
}

int32_t tokenizer_find(const Tokenizer *t, const char *piece, size_t n) {
    return hash_table_find(&t->vocab.by_spelling, piece, n);
}

const char *tokenizer_piece(const Tokenizer *t, int32_t token, bool with_special, size_t *n_bytes) {
    *n_bytes = 0;
    if (!known(t, token) || (!with_special && tokenizer_is_special(t, token))) return "";
    *n_bytes = t->vocab.text[token].n;
    return t->vocab.text[token].data;
}

/* ---- decoding ---------------------------------------------------------------------------------------------------- */

/* A token need not end where a character does, but text is written in whole characters. Bytes are read one by one,
 * and those of an incomplete character are held back. If a byte cannot continue it, the bytes held become one U+FFFD
 * (they are a "maximal subpart", Unicode 15 section 3.9), and the byte is read as the first of a character. So all
 * pieces together are what a decoder of the whole text would have written. */

_Static_assert(DETOKENIZER_MAX_TEXT >= 3 * (VOCAB_MAX_PIECE + 4), "every byte of a piece may become a U+FFFD");

static void put(Detokenizer *d, const char *bytes, int n) {
    memcpy(d->text + d->n_text, bytes, (size_t)n);
    d->n_text += n;
}

static void put_replacement(Detokenizer *d) { put(d, "\xEF\xBF\xBD", 3); }

static void take_byte(Detokenizer *d, char c) {
    size_t need;
    d->held[d->n_held++] = c;
    size_t got = utf8_scan(d->held, (size_t)d->n_held, &need);
    if (got == (size_t)d->n_held && got < need) return;
    if (got == (size_t)d->n_held && got == need) {
        put(d, d->held, d->n_held);
        d->n_held = 0;
        return;
    }
    /* c does not continue the bytes held, or cannot begin a character. */
    bool alone = d->n_held == 1;
    d->n_held = 0;
    put_replacement(d);
    if (!alone) take_byte(d, c);
}

const char *detokenizer_next(Detokenizer *d, int32_t token, size_t *n_bytes) {
    size_t n;
    const char *piece = tokenizer_piece(d->tokenizer, token, d->with_special, &n);
    d->n_text = 0;
    size_t from = d->strip_space && n > 0 && piece[0] == ' ' ? 1 : 0;
    if (n > 0 && !tokenizer_is_special(d->tokenizer, token)) d->strip_space = false;
    else from = 0;
    for (size_t i = from; i < n; i++) take_byte(d, piece[i]);
    *n_bytes = (size_t)d->n_text;
    return d->text;
}

const char *detokenizer_finish(Detokenizer *d, size_t *n_bytes) {
    d->n_text = 0;
    if (d->n_held > 0) put_replacement(d);
    d->n_held = 0;
    *n_bytes = (size_t)d->n_text;
    return d->text;
}

/* spm.c - SentencePiece BPE (Kudo and Richardson 2018): the row starts as characters, any two neighbours whose
 * joined text is a piece may merge, the piece of the highest score first; characters that are in no piece fall
 * back to their bytes.
 *
 * SentencePiece writes spaces as U+2581 before it looks pieces up. Here the pieces were rewritten instead (see
 * vocab.h): texts hold plain spaces, and a U+2581 in the input, which the model cannot tell from a space, becomes
 * one. Bytes that are not UTF-8 are symbols of one byte, in no piece, and so become their byte tokens. */
#include "text/spm.h"

#include "text/utf8.h"

#include <string.h>

/* Orders floats as unsigned numbers, the highest score first. */
static uint32_t priority_of(float score) {
    float canonical = score + 0.0f; /* -0 and 0 are equal */
    uint32_t bits;
    memcpy(&bits, &canonical, sizeof bits);
    return bits & 0x80000000u ? bits : ~(bits | 0x80000000u);
}

static bool pair(const void *ctx, const char *text, const MergeSymbol *left, const MergeSymbol *right,
                 uint32_t *priority, int32_t *result) {
    const Vocab *v = ctx;
    uint32_t n = left->n + right->n;
    if (n > VOCAB_MAX_PIECE) return false;
    *result = piece_table_find(&v->by_text, text + left->at, n);
    if (*result < 0) return false;
    *priority = priority_of(v->score[*result]);
    return true;
}

/* e->text = the text with its prefix, U+2581 as space. */
static bool normalise(Encoding *e, const char *text, size_t n, bool prefixed) {
    buf_clear(&e->text);
    e->text.max_bytes = SIZE_MAX;
    if (prefixed && !buf_append(&e->text, " ", 1)) return false;
    for (size_t from = 0, at = 0; from < n; from = at) {
        while (at < n && (n - at < 3 || memcmp(text + at, "\xE2\x96\x81", 3) != 0)) at++;
        if (!buf_append(&e->text, text + from, at - from)) return false;
        if (at == n) break;
        if (!buf_append(&e->text, " ", 1)) return false;
        at += 3;
    }
    return true;
}

static bool split_characters(const Vocab *v, Encoding *e) {
    merger_clear(&e->merger);
    const char *text = e->text.data;
    for (size_t at = 0, n; at < e->text.n; at += n) {
        size_t need, got = utf8_scan(text + at, e->text.n - at, &need);
        n = need > 0 && got == need ? need : 1;
        if (!merger_add(&e->merger, (uint32_t)at, (uint32_t)n, piece_table_find(&v->by_text, text + at, n)))
            return false;
    }
    return true;
}

int spm_encode(const Vocab *v, const char *text, size_t n, bool prefixed, Encoding *e, fr_error *err) {
    bool fits = normalise(e, text, n, prefixed) && split_characters(v, e) && merger_run(&e->merger, e->text.data, pair, v);
    bool unknown_run = false;
    for (int32_t i = e->merger.n_symbols > 0 ? 0 : -1; fits && i >= 0; i = e->merger.symbols[i].next) {
        const MergeSymbol *s = &e->merger.symbols[i];
        if (s->id < 0) fits = encoding_add_bytes(e, v, e->text.data + s->at, s->n, &unknown_run);
        else {
            fits = encoding_add(e, s->id);
            unknown_run = false;
        }
    }
    return fits ? FR_OK : error_memory(err, "the tokens of a text", 64 * n);
}

/* detokenizer.c - tokens need not end where characters do, but text must come in whole characters.
 *
 * Bytes are read one by one. The bytes of an incomplete character are held back. A byte that cannot continue it turns
 * them into one U+FFFD (they are a "maximal subpart", Unicode 15 section 3.9) and is then read as the first of a
 * character. So the pieces are together what a decoder of the whole text would have written. */
#include "text/detokenizer.h"

#include "text/utf8.h"
#include "text/vocab.h"

#include <string.h>

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
    /* c does not continue what was held, or cannot begin a character. */
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

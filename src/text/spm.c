/* spm.c - SentencePiece BPE (Kudo and Richardson 2018). A text starts as characters. Two neighbours may be merged if
 * their joined text is a piece, and the piece with the highest score is merged first. A character that is no piece
 * becomes the tokens of its bytes.
 *
 * SentencePiece replaces spaces by U+2581 before it looks up pieces. Here the pieces have spaces instead (see
 * vocab.h), and texts stay as they are. A U+2581 in the input becomes a space, because the model cannot distinguish
 * them. A byte that is not UTF-8 is a symbol of one byte without a piece, and becomes its byte token. */
#include "text/encoder.h"

#include <string.h>

/* Maps scores to unsigned numbers in the opposite order, so that the highest score is first. */
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
    *result = hash_table_find(&v->by_text, text + left->at, n);
    if (*result < 0) return false;
    *priority = priority_of(v->score[*result]);
    return true;
}

/* Sets e->text to the text with spaces for U+2581, and with a space before it if `prefixed`. */
static bool normalise(Encoding *e, const char *text, size_t n, bool prefixed) {
    buf_clear(&e->text);
    e->text.max_bytes = SIZE_MAX;
    if ((prefixed && !buf_append(&e->text, " ", 1)) || !buf_append(&e->text, text, n)) return false;
    e->text.n = prefixed + marks_to_spaces(text, n, e->text.data + prefixed);
    return true;
}

/* Returns the end of the part from `at` on that can be merged by itself. If no piece has a space after another
 * character, no merge crosses a space. Then words are merged one by one: the tokens are the same, but the heap stays in
 * the cache, which is nine times faster for a text of 1 MB. */
static size_t stretch_end(const Vocab *v, const Buf *text, size_t at) {
    if (v->space_within) return text->n;
    size_t end = at + 1;
    while (end < text->n && (text->data[end] != ' ' || text->data[end - 1] == ' ')) end++;
    return end;
}

static bool encode_stretch(const Vocab *v, size_t at, size_t end, Encoding *e, bool *unknown_run) {
    Merger *m = &e->merger;
    const char *text = e->text.data;
    if (!merger_add_characters(m, v, text, at, end) || !merger_run(m, text, pair, v)) return false;
    for (int32_t i = 0; i >= 0; i = m->symbols[i].next) {
        const MergeSymbol *s = &m->symbols[i];
        if (s->id >= 0) *unknown_run = false;
        bool fits = s->id >= 0 ? encoding_add(e, s->id) : encoding_add_bytes(e, v, text + s->at, s->n, unknown_run);
        if (!fits) return false;
    }
    return true;
}

int spm_encode(const Vocab *v, const char *text, size_t n, bool prefixed, Encoding *e, fr_error *err) {
    bool fits = normalise(e, text, n, prefixed), unknown_run = false;
    for (size_t at = 0, end; fits && at < e->text.n; at = end) {
        end = stretch_end(v, &e->text, at);
        fits = encode_stretch(v, at, end, e, &unknown_run);
    }
    return fits ? FR_OK : error_memory(err, "the tokens of a text", 64 * n);
}

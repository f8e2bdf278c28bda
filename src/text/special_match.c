/* special_match.c - special tokens are sorted by their bytes, so that those which agree with the text so far are a
 * range that each further byte narrows. */
#include "text/special_match.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

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

/* Of equal spellings only the lowest id stays: a file may spell thousands of tokens alike, and each search would walk
 * over all of them. */
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

/* The first of sorted[lo..hi), equal in `depth` bytes and longer, whose next byte is >= c. */
static int32_t lower_bound(const SpecialSet *s, int32_t lo, int32_t hi, uint32_t depth, unsigned c) {
    while (lo < hi) {
        int32_t mid = lo + (hi - lo) / 2;
        if ((unsigned char)s->sorted[mid].piece.data[depth] < c) lo = mid + 1;
        else hi = mid;
    }
    return lo;
}

/* The longest special token at the beginning of text, found by narrowing the sorted range byte by byte. NULL: none. */
static const SpecialPiece *longest(const SpecialSet *s, const char *text, size_t n) {
    const SpecialPiece *best = NULL;
    unsigned c = (unsigned char)text[0];
    int32_t lo = s->first[c], hi = s->first[c + 1];
    for (uint32_t depth = 1; lo < hi; depth++) {
        if (s->sorted[lo].piece.n == depth) best = &s->sorted[lo++]; /* no other is spelled alike */
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

/* encoding.c - the list of ids doubles as it grows; bytes without a piece become byte tokens or the unknown token. */
#include "text/encoding.h"

#include "text/utf8.h"

#include <stdlib.h>
#include <string.h>

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

bool merger_add_characters(Merger *m, const Vocab *v, const char *text, size_t at, size_t end) {
    merger_clear(m);
    for (size_t n; at < end; at += n) {
        size_t need, got = utf8_scan(text + at, end - at, &need);
        n = need > 0 && got == need ? need : 1;
        if (!merger_add(m, (uint32_t)at, (uint32_t)n, hash_table_find(&v->by_text, text + at, n))) return false;
    }
    return true;
}

void encoding_close(Encoding *e) {
    merger_close(&e->merger);
    buf_free(&e->unmarked);
    buf_free(&e->text);
    for (int i = 0; i < 2; i++) free(e->ends[i]);
}

/* encoding.c - the list of ids doubles as it grows; bytes without a piece become byte tokens or the unknown token. */
#include "text/encoding.h"

#include <stdlib.h>

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

void encoding_close(Encoding *e) {
    merger_close(&e->merger);
    buf_free(&e->text);
    for (int i = 0; i < 2; i++) free(e->ends[i]);
}

/* wire.c - the wire format of protocol buffers (protobuf.dev describes it): a message is a list of fields, each a number with a
 * kind, as a varint, and a value. Varints have seven bits a byte, the lowest first. Nothing is read beyond the message. */
#include "cli/convert/wire.h"

#include <string.h>

Wire wire_begin(const void *bytes, size_t n) {
    const unsigned char *at = bytes;
    return (Wire){.at = at, .end = at + n};
}

static bool stop(Wire *w) {
    w->broken = true;
    w->at = w->end;
    return false;
}

static bool take_varint(Wire *w, uint64_t *out) {
    *out = 0;
    for (unsigned shift = 0; w->at < w->end && shift < 64; shift += 7) {
        unsigned char byte = *w->at++;
        *out |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) return true;
    }
    return stop(w);
}

static bool take_bytes(Wire *w, uint64_t n, const char **out) {
    if (n > (size_t)(w->end - w->at)) return stop(w);
    *out = (const char *)w->at;
    w->at += n;
    return true;
}

bool wire_next(Wire *w, WireField *out) {
    uint64_t key, n;
    const char *bytes;
    *out = (WireField){.number = 0};
    if (w->at >= w->end || !take_varint(w, &key)) return false;
    if (key >> 3 == 0 || key >> 3 > UINT32_MAX) return stop(w);
    out->number = (uint32_t)(key >> 3);
    out->kind = (int)(key & 7);
    if (out->kind == 0) return take_varint(w, &out->value);
    if (out->kind == 2) {
        if (!take_varint(w, &n) || !take_bytes(w, n, &out->bytes)) return false;
        out->n = (size_t)n;
        return true;
    }
    if (out->kind != 1 && out->kind != 5) return stop(w); /* groups are not used any more */
    n = out->kind == 1 ? 8 : 4;
    if (!take_bytes(w, n, &bytes)) return false;
    memcpy(&out->value, bytes, (size_t)n);
    return true;
}

float wire_float(const WireField *f) {
    uint32_t bits = (uint32_t)f->value;
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

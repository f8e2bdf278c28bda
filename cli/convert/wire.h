/* wire.h - reads protocol buffers field by field, without a schema: enough for tokenizer.model. */
#ifndef CONVERT_WIRE_H
#define CONVERT_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct Wire {
    const unsigned char *at, *end;
    bool broken; /* the bytes are no message; nothing more is read */
} Wire;

typedef struct WireField {
    uint32_t number;
    int kind;          /* 0: an integer in value; 1 and 5: 8 and 4 bytes in value; 2: bytes */
    uint64_t value;    /* of kinds 0, 1 and 5 */
    const char *bytes; /* of kind 2: [n], in the message */
    size_t n;
} WireField;

Wire wire_begin(const void *bytes, size_t n);
/* The next field; false at the end, or where the bytes are no message. */
bool wire_next(Wire *w, WireField *out);
/* A field of kind 5 as a float. */
float wire_float(const WireField *f);

#endif

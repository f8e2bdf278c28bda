/* fields.h - the fields of a request's body, by tables: type, range, and what is refused by name. */
#ifndef SERVE_FIELDS_H
#define SERVE_FIELDS_H

#include "server/api/api.h"

typedef enum FieldKind {
    FIELD_REAL,    /* double */
    FIELD_INT,     /* int64_t */
    FIELD_BOOL,    /* bool */
    FIELD_TEXT,    /* const char *, borrowed */
    FIELD_ANY,     /* const json_t *, borrowed */
    FIELD_IGNORED, /* has no influence on what is generated */
    FIELD_NEUTRAL, /* a number or boolean that forerun does as if it were `min`: other values are refused */
} FieldKind;

typedef struct Field {
    const char *name; /* NULL ends the table */
    FieldKind kind;
    size_t offset;
    double min, max; /* of numbers; equal: any */
} Field;

#define FIELD(S, kind_, field, ...) .kind = FIELD_##kind_, .offset = offsetof(S, field), __VA_ARGS__

/* Fills *to by the tables (the last is NULL); null counts as absent. A field of no table is refused, unless its value asks for
 * nothing: null, false, "", [] or {}. */
int fields_read(const Field *const *tables, const json_t *body, void *to, ApiError *error);

/* Whether a value is this string. NULL is not. */
bool field_is_text(const json_t *value, const char *text);

#endif

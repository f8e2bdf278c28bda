/* mutators_gguf.c - mutators of GGUF files and of indexes. A separate reader lists the fields of the header, because
 * the program's reader is attacked. */
#include "mutators.h"

#include "base/error.h"
#include "base/hash.h"
#include "gguf/gguf.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum FieldKind { COUNT, TYPE, NUMBER, REAL, TEXT } FieldKind;

typedef struct Field {
    FieldKind kind;
    size_t at, n;  /* TEXT: the bytes after the length */
    int i_key;     /* -1: none */
    bool is_value; /* the place is in a key's value, not in its name or type */
} Field;

enum { MAX_FIELDS = 4096, MAX_KEYS = 256 };

typedef struct Shape {
    const char *data;
    size_t n, at;
    Field fields[MAX_FIELDS];
    int n_fields, n_keys;
    size_t keys[MAX_KEYS + 1]; /* where each key-value begins, and where the last ends */
    size_t end;                /* the end of the header */
} Shape;

static bool note(Shape *s, FieldKind kind, size_t n, int i_key, bool is_value) {
    if (n > s->n - s->at) return false;
    if (s->n_fields < MAX_FIELDS) s->fields[s->n_fields++] = (Field){kind, s->at, n, i_key, is_value};
    s->at += n;
    return true;
}

static uint64_t number_at(const char *p, size_t n) {
    uint64_t v = 0;
    memcpy(&v, p, n < sizeof v ? n : sizeof v);
    return v;
}

static bool read_number(Shape *s, FieldKind kind, size_t n, int i_key, uint64_t *v) {
    size_t at = s->at;
    if (!note(s, kind, n, i_key, false)) return false;
    *v = number_at(s->data + at, n);
    return true;
}

static bool read_text(Shape *s, int i_key, bool is_value) {
    uint64_t n;
    return read_number(s, COUNT, 8, i_key, &n) && note(s, TEXT, n, i_key, is_value);
}

static bool read_value(Shape *s, uint64_t type, int i_key) {
    static const uint8_t sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    if (type == 8) return read_text(s, i_key, true);
    if (type == 9) {
        uint64_t element, n;
        if (!read_number(s, TYPE, 4, i_key, &element) || !read_number(s, COUNT, 8, i_key, &n)) return false;
        for (uint64_t i = 0; i < n; i++)
            if (!read_value(s, element, i_key)) return false;
        return true;
    }
    if (type >= sizeof sizes) return false;
    return note(s, type == 6 || type == 12 ? REAL : NUMBER, sizes[type], i_key, true);
}

static bool read_tensor(Shape *s) {
    uint64_t n_dims, v;
    if (!read_text(s, -1, false) || !read_number(s, COUNT, 4, -1, &n_dims)) return false;
    for (uint64_t i = 0; i < n_dims; i++)
        if (!read_number(s, COUNT, 8, -1, &v)) return false;
    return read_number(s, TYPE, 4, -1, &v) && read_number(s, COUNT, 8, -1, &v);
}

/* False: the file is damaged already. */
static bool read_shape(Shape *s, const Buf *f) {
    uint64_t version, n_tensors, n_keys, type;
    s->data = f->data, s->n = f->n, s->at = 4, s->n_fields = 0, s->n_keys = 0;
    if (f->n < 24 || !read_number(s, COUNT, 4, -1, &version) || !read_number(s, COUNT, 8, -1, &n_tensors) ||
        !read_number(s, COUNT, 8, -1, &n_keys))
        return false;
    for (uint64_t i = 0; i < n_keys; i++) {
        int i_key = i < MAX_KEYS ? (int)i : -1;
        if (i_key >= 0) s->keys[i_key] = s->at, s->n_keys = i_key + 1;
        if (!read_text(s, i_key, false) || !read_number(s, TYPE, 4, i_key, &type) || !read_value(s, type, i_key))
            return false;
        if (i_key >= 0) s->keys[i_key + 1] = s->at;
    }
    for (uint64_t i = 0; i < n_tensors; i++)
        if (!read_tensor(s)) return false;
    s->end = s->at;
    return true;
}

/* ---- changes --------------------------------------------------------------------------------------------- */

static void put(Buf *f, size_t at, size_t n, uint64_t v) { memcpy(f->data + at, &v, n < 8 ? n : 8); }

static void put_real(Torture *t, Buf *f, size_t at, size_t n) {
    static const uint32_t singles[] = {0x7fc00000, 0x7f800000, 0xff800000, 0x7f7fffff, 0xff7fffff,
                                       0x00000001, 0x80000000, 0x00000000, 0x7149f2ca, 0xbf800000};
    static const uint64_t doubles[] = {0x7ff8000000000000, 0x7ff0000000000000, 0xfff0000000000000, 0x7fefffffffffffff,
                                       0x0000000000000001};
    put(f, at, n, n == 8 ? doubles[torture_below(t, 5)] : singles[torture_below(t, 10)]);
}

/* After a change of the header's length by `grown` bytes the data moves, so that it stays aligned. */
static void realign(Buf *f, size_t old_end, size_t new_end) {
    size_t old_data = (old_end + 31) / 32 * 32, new_data = (new_end + 31) / 32 * 32;
    size_t is_at = new_end + (old_data - old_end);
    char zeros[64] = {0};
    if (is_at > f->n) return;
    splice(f, new_end, is_at - new_end, zeros, new_data - new_end);
}

static void replace_text(Torture *t, Buf *f, const Shape *s, const Field *field) {
    size_t n;
    const char *text = nasty_text(t, &n);
    uint64_t length = n;
    size_t grown = s->end + n - field->n;
    splice(f, field->at, field->n, text, n);
    put(f, field->at - 8, 8, length);
    realign(f, s->end, grown);
}

static void repeat_key(Torture *t, Buf *f, const Shape *s) {
    if (s->n_keys == 0) return;
    int from = (int)torture_below(t, (uint64_t)s->n_keys), to = (int)torture_below(t, (uint64_t)s->n_keys);
    size_t n = s->keys[from + 1] - s->keys[from];
    bool removes = torture_below(t, 2) == 0;
    char *bytes = malloc(n);
    fr_assert(bytes);
    memcpy(bytes, f->data + s->keys[from], n);
    if (removes) splice(f, s->keys[from], n, "", 0);
    else splice(f, s->keys[to], 0, bytes, n);
    put(f, 16, 8, number_at(f->data + 16, 8) + (removes ? (uint64_t)-1 : 1));
    realign(f, s->end, removes ? s->end - n : s->end + n);
    free(bytes);
}

/* NaN, infinity and extremes as 16-bit and 32-bit numbers, at one place or at many. */
static void change_data(Torture *t, Buf *f, size_t end) {
    static const uint16_t halves[] = {0x7e00, 0x7c00, 0xfc00, 0x7bff, 0xfbff, 0x7fc0, 0x7f80, 0x0001};
    if (end + 8 >= f->n) return;
    size_t n = (f->n - end) / 4 - 1;
    for (uint64_t i = 1u << torture_below(t, 12); i > 0; i--) {
        size_t at = (end + 3) / 4 * 4 + 4 * torture_below(t, n);
        if (at + 8 > f->n) continue;
        if (torture_below(t, 2)) put_real(t, f, at, 4);
        else put(f, at + 2 * torture_below(t, 2), 2, halves[torture_below(t, 8)]);
    }
}

static void change_field(Torture *t, Buf *f, const Shape *s) {
    const Field *field = &s->fields[torture_below(t, (uint64_t)s->n_fields)];
    /* Most fields belong to the vocabulary, so every other time chooses a field that does not. */
    for (int tries = 0; tries < 40 && field->i_key >= 0 && s->keys[field->i_key + 1] - s->keys[field->i_key] > 400;
         tries++)
        field = &s->fields[torture_below(t, (uint64_t)s->n_fields)];
    switch (field->kind) {
    case TEXT: replace_text(t, f, s, field); break;
    case REAL: put_real(t, f, field->at, field->n); break;
    case TYPE: put(f, field->at, field->n, torture_below(t, 42)); break;
    default: put(f, field->at, field->n, nasty_integer(t, number_at(f->data + field->at, field->n))); break;
    }
}

void mutate_gguf(Torture *t, Buf *f) {
    Shape *s = malloc(sizeof *s);
    fr_assert(s);
    for (uint64_t n = 1 + torture_below(t, 3); n > 0; n--) {
        if (!read_shape(s, f)) break;
        switch (torture_below(t, 8)) {
        case 0: repeat_key(t, f, s); break;
        case 1:
        case 2: change_data(t, f, s->end); break;
        case 3: mutate_blind(t, f); break;
        default: change_field(t, f, s); break;
        }
    }
    free(s);
}

/* ---- files that have a hash or a header of their own --------------------------------------------------------- */

/* Returns the value of a string or an integer of the file, in place; NULL: there is none of n bytes. */
static char *find_value(Buf *f, const Shape *s, const char *key, size_t n) {
    for (int i = 0; i < s->n_fields; i++) {
        const Field *value = &s->fields[i];
        if (!value->is_value || value->n != n || value->i_key < 0) continue;
        const char *name = f->data + s->keys[value->i_key] + 8;
        if (number_at(name - 8, 8) == strlen(key) && memcmp(name, key, strlen(key)) == 0) return f->data + value->at;
    }
    return NULL;
}

/* Writes the fingerprint as checkpoint.c computes it. */
static void correct_checkpoint(Buf *f, Shape *s) {
    Gguf *g = NULL;
    char *hash = find_value(f, s, "checkpoint.hash", 16), hex[32];
    char *step = find_value(f, s, "checkpoint.step", 8), *data = find_value(f, s, "checkpoint.data", 16);
    GgufString options;
    fr_error err;
    if (!hash || !step || !data || gguf_open_memory(&g, f->data, f->n, "checkpoint", &err) != FR_OK) return;
    if (gguf_get_string(g, "checkpoint.options", &options)) {
        uint64_t h = hash64(options.data, options.n, hash64(data, 16, hash64(step, 8, 0)));
        for (int64_t i = 0; i < gguf_n_tensors(g); i++) {
            const GgufTensor *x = gguf_tensor(g, i);
            h = hash64(x->data, x->bytes, hash64(x->name, strlen(x->name), h));
        }
        snprintf(hex, sizeof hex, "%016" PRIx64, h);
        memcpy(hash, hex, 16);
    }
    gguf_close(g);
}

void mutate_checkpoint(Torture *t, Buf *f) {
    Shape *s = malloc(sizeof *s);
    fr_assert(s);
    if (torture_below(t, 3) == 0) mutate_gguf(t, f);
    else if (read_shape(s, f)) {
        char *step = find_value(f, s, "checkpoint.step", 8);
        uint64_t v = step ? nasty_integer(t, number_at(step, 8)) : 0;
        if (step && torture_below(t, 2)) memcpy(step, &v, 8);
        else change_data(t, f, s->end);
    }
    if (read_shape(s, f)) correct_checkpoint(f, s);
    free(s);
}

void mutate_index(Torture *t, Buf *f) {
    enum { HEADER = 128 };
    if (f->n <= HEADER || torture_below(t, 4) == 0) {
        mutate_blind(t, f);
        return;
    }
    size_t at = torture_below(t, 2) ? 8 * torture_below(t, HEADER / 8)
                                    : HEADER + 4 * torture_below(t, (f->n - HEADER) / 4);
    size_t n = torture_below(t, 2) ? 4 : 8;
    if (at + n <= f->n) put(f, at, n, nasty_integer(t, number_at(f->data + at, n)));
}

/* marked_text.c - a text has one mark for all its bytes, or a mark for each; builders keep one for each and drop them at the
 * end where they agree. */
#include "text/template/marked_text.h"

#include <string.h>

const Text *text_new(Work *w, const char *bytes, size_t n, bool is_data) {
    Text *t = work_alloc(w, sizeof *t);
    *t = (Text){.data = bytes, .n = n, .is_data = is_data};
    return t;
}

const Text *text_copy(Work *w, const char *bytes, size_t n, bool is_data) {
    char *copy = work_alloc(w, n);
    if (n) memcpy(copy, bytes, n);
    return text_new(w, copy, n, is_data);
}

const Text *text_slice(Work *w, const Text *t, size_t from, size_t to) {
    if (from == 0 && to == t->n) return t;
    Text *s = work_alloc(w, sizeof *s);
    *s = *t;
    s->data += from;
    s->n = to - from;
    if (s->marks) s->marks += from;
    return s;
}

bool text_equal(const Text *a, const Text *b) {
    return a->n == b->n && (a->n == 0 || memcmp(a->data, b->data, a->n) == 0);
}
bool text_is(const Text *t, const char *literal) {
    return t->n == strlen(literal) && memcmp(t->data, literal, t->n) == 0;
}

/* The order of bytes is that of code points. */
int text_order(const Text *a, const Text *b) {
    size_t n = a->n < b->n ? a->n : b->n;
    int order = n ? memcmp(a->data, b->data, n) : 0;
    if (order == 0) return a->n < b->n ? -1 : a->n > b->n;
    return order < 0 ? -1 : 1;
}

bool text_has_data(const Text *t) {
    if (!t->marks) return t->is_data && t->n > 0;
    return memchr(t->marks, 1, t->n) != NULL;
}

size_t text_find(Work *w, const Text *t, const Text *part, size_t from) {
    if (from > t->n || part->n > t->n - from) return t->n + 1;
    if (part->n == 0) return from;
    work_spend(w, t->n - from);
    const char *at = memmem(t->data + from, t->n - from, part->data, part->n);
    return at ? (size_t)(at - t->data) : t->n + 1;
}

size_t text_find_last(Work *w, const Text *t, const Text *part) {
    if (part->n > t->n) return t->n + 1;
    for (size_t at = t->n - part->n + 1; at-- > 0;) {
        work_spend(w, part->n);
        if (part->n == 0 || memcmp(t->data + at, part->data, part->n) == 0) return at;
    }
    return t->n + 1;
}

TextBuilder builder_new(Work *w) { return (TextBuilder){.w = w, .max_bytes = SIZE_MAX / 4}; }

static void reserve(TextBuilder *b, size_t n) {
    if (n > b->max_bytes - b->n)
        work_fail(b->w, FR_ERR_MEMORY, "more than %zu bytes of text are written, which is the limit", b->max_bytes);
    if (n <= b->capacity - b->n) return;
    size_t capacity = b->capacity ? b->capacity : 64;
    while (capacity - b->n < n) capacity *= 2;
    b->data = work_grow(b->w, b->data, b->n, capacity);
    b->marks = work_grow(b->w, b->marks, b->n, capacity);
    b->capacity = capacity;
}

void builder_add_slice(TextBuilder *b, const Text *t, size_t from, size_t to) {
    size_t n = to - from;
    if (n == 0) return;
    reserve(b, n);
    memcpy(b->data + b->n, t->data + from, n);
    if (t->marks) memcpy(b->marks + b->n, t->marks + from, n);
    else memset(b->marks + b->n, t->is_data, n);
    b->n += n;
}

void builder_add(TextBuilder *b, const Text *t) { builder_add_slice(b, t, 0, t->n); }

void builder_add_bytes(TextBuilder *b, const char *bytes, size_t n, bool is_data) {
    Text t = {.data = bytes, .n = n, .is_data = is_data};
    builder_add(b, &t);
}

void builder_add_literal(TextBuilder *b, const char *text) { builder_add_bytes(b, text, strlen(text), false); }

void builder_add_repeated(TextBuilder *b, const Text *t, int64_t times) {
    size_t bytes;
    if (times <= 0 || t->n == 0) return;
    if (__builtin_mul_overflow(t->n, (size_t)times, &bytes)) bytes = SIZE_MAX;
    reserve(b, bytes);
    work_spend(b->w, bytes);
    for (int64_t i = 0; i < times; i++) builder_add(b, t);
}

const Text *builder_text(TextBuilder *b) {
    Text *t = work_alloc(b->w, sizeof *t);
    *t = (Text){.data = b->n ? b->data : "", .n = b->n};
    if (b->n == 0) return t;
    bool any_data = memchr(b->marks, 1, b->n), any_own = memchr(b->marks, 0, b->n);
    t->is_data = any_data;
    if (any_data && any_own) t->marks = b->marks;
    return t;
}

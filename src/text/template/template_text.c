/* template_text.c - strings with marks, and their characters by the tables of utf8proc. A text has one mark for all
 * of its bytes or a mark for each. A builder keeps one for each byte, and drops them at the end if they are all
 * equal. */
#include "text/template/template_text.h"

#include <string.h>
#include <utf8proc.h>

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

bool text_same(Work *w, const Text *a, const Text *b) {
    if (a->n != b->n) return false;
    work_count(w, a->n);
    return text_equal(a, b);
}

bool text_is(const Text *t, const char *literal) {
    return t->n == strlen(literal) && memcmp(t->data, literal, t->n) == 0;
}

/* In UTF-8 the order of bytes is the order of code points. */
int text_order(const Text *a, const Text *b) {
    size_t n = a->n < b->n ? a->n : b->n;
    int order = n ? memcmp(a->data, b->data, n) : 0;
    if (order == 0) return a->n < b->n ? -1 : a->n > b->n;
    return order < 0 ? -1 : 1;
}

bool text_has_data(Work *w, const Text *t) {
    if (!t->marks) return t->is_data && t->n > 0;
    work_count(w, t->n);
    return memchr(t->marks, 1, t->n) != NULL;
}

/* Searches windows of growing length, each of which is counted before. So a part that is found early costs little. */
size_t text_find(Work *w, const Text *t, const Text *part, size_t from) {
    if (from > t->n || part->n > t->n - from) return t->n + 1;
    if (part->n == 0) return from;
    for (size_t window = 64 + 2 * part->n;; window *= 2) {
        size_t n = window < t->n - from ? window : t->n - from;
        work_spend(w, n);
        const char *at = memmem(t->data + from, n, part->data, part->n);
        if (at) return (size_t)(at - t->data);
        if (n == t->n - from) return t->n + 1;
        from += n - part->n + 1;
    }
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
    work_count(b->w, n);
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
    work_spend(b->w, bytes);
    reserve(b, bytes);
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

/* ---- characters -------------------------------------------------------------------------------------------------- */

enum { SHARP_S = 0xDF };

size_t char_next(const char *data, size_t n, size_t at, int32_t *code) {
    utf8proc_int32_t c;
    utf8proc_ssize_t bytes = utf8proc_iterate((const utf8proc_uint8_t *)data + at,
                                              n - at < 4 ? (utf8proc_ssize_t)(n - at) : 4, &c);
    *code = bytes > 0 ? c : 0xDC00 + (unsigned char)data[at];
    return bytes > 0 ? (size_t)bytes : 1;
}

size_t char_previous(const char *data, size_t at) {
    for (size_t back = 1; back <= 4 && back <= at; back++) {
        int32_t code;
        if (((unsigned char)data[at - back] & 0xC0) != 0x80)
            return char_next(data, at, at - back, &code) == back ? at - back : at - 1;
    }
    return at - 1;
}

size_t text_n_chars(Work *w, const Text *t) {
    size_t n = 0;
    int32_t code;
    work_spend(w, t->n);
    for (size_t at = 0; at < t->n; n++) at += char_next(t->data, t->n, at, &code);
    return n;
}

size_t text_char_offset(Work *w, const Text *t, size_t i) {
    size_t at = 0;
    int32_t code;
    work_spend(w, i);
    for (; i > 0 && at < t->n; i--) at += char_next(t->data, t->n, at, &code);
    return at;
}

bool code_is_space(int32_t c) {
    return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

static utf8proc_category_t category(int32_t c) {
    return c >= 0xDC00 && c <= 0xDFFF ? UTF8PROC_CATEGORY_CS : utf8proc_category(c);
}

bool code_is_printable(int32_t c) {
    if (c == ' ') return true;
    switch (category(c)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS: return false;
    default: return true;
    }
}

bool code_is_alpha(int32_t c) {
    utf8proc_category_t k = category(c);
    return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
}

bool code_is_digit(int32_t c) { return category(c) == UTF8PROC_CATEGORY_ND; }
bool code_is_upper(int32_t c) { return category(c) == UTF8PROC_CATEGORY_LU; }
bool code_is_lower(int32_t c) { return category(c) == UTF8PROC_CATEGORY_LL; }

void builder_add_code(TextBuilder *b, int32_t code, bool is_data) {
    utf8proc_uint8_t bytes[4];
    if (code >= 0xDC80 && code <= 0xDCFF) { /* a byte that is not UTF-8 */
        char byte = (char)(unsigned char)(code - 0xDC00);
        builder_add_bytes(b, &byte, 1, is_data);
        return;
    }
    utf8proc_ssize_t n = utf8proc_encode_char(code, bytes);
    builder_add_bytes(b, (const char *)bytes, (size_t)n, is_data);
}

static bool strips(Work *w, const Text *chars, int32_t code) {
    work_count(w, chars ? 1 + chars->n : 1);
    if (!chars) return code_is_space(code);
    for (size_t at = 0; at < chars->n;) {
        int32_t c;
        at += char_next(chars->data, chars->n, at, &c);
        if (c == code) return true;
    }
    return false;
}

const Text *text_strip(Work *w, const Text *t, const Text *chars, bool left, bool right) {
    size_t from = 0, to = t->n;
    int32_t code;
    while (left && from < to) {
        size_t n = char_next(t->data, t->n, from, &code);
        if (!strips(w, chars, code)) break;
        from += n;
    }
    while (right && to > from) {
        size_t at = char_previous(t->data, to);
        char_next(t->data, to, at, &code);
        if (!strips(w, chars, code)) break;
        to = at;
    }
    return text_slice(w, t, from, to);
}

static int32_t to_title(int32_t code) { return code == SHARP_S ? utf8proc_toupper(code) : utf8proc_totitle(code); }

static int32_t with_case(int32_t code, TextCase text_case, bool begins_word, bool is_first) {
    if (code >= 0xDC00 && code <= 0xDFFF) return code;
    switch (text_case) {
    case CASE_UPPER: return utf8proc_toupper(code);
    case CASE_LOWER: return utf8proc_tolower(code);
    case CASE_TITLE: return begins_word ? to_title(code) : utf8proc_tolower(code);
    case CASE_CAPITAL: return is_first ? to_title(code) : utf8proc_tolower(code);
    default: return code_is_upper(code) ? utf8proc_tolower(code) : utf8proc_toupper(code);
    }
}

const Text *text_with_case(Work *w, const Text *t, TextCase text_case) {
    TextBuilder b = builder_new(w);
    bool begins_word = true;
    work_spend(w, t->n);
    for (size_t at = 0; at < t->n;) {
        int32_t code;
        size_t n = char_next(t->data, t->n, at, &code);
        int32_t mapped = with_case(code, text_case, begins_word, at == 0);
        if (code == SHARP_S && mapped != code)
            builder_add_bytes(&b, text_case == CASE_UPPER || text_case == CASE_SWAP ? "SS" : "Ss", 2,
                              text_byte_is_data(t, at));
        else builder_add_code(&b, mapped, text_byte_is_data(t, at));
        begins_word = !code_is_alpha(code);
        at += n;
    }
    return builder_text(&b);
}

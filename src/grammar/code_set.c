/* code_set.c - sets of Unicode code points as sorted ranges, and their UTF-8.
 *
 * A range of code points is not one sequence of byte ranges: U+0400..U+07FF is [D0-DF][80-BF], but U+0450..U+0850 is
 * D1 [90-BF], [D2-DF][80-BF] and E0 A1 [80-90]. code_range_bytes splits a range where the number of bytes changes, at the
 * surrogates, and wherever a lower byte does not run through all of 80..BF while a higher one changes. */
#include "grammar/code_set.h"

/* Appends a range that lies behind all others, or touches the last. */
static void append(Work *w, CodeSet *s, uint32_t lo, uint32_t hi) {
    if (s->n > 0 && lo <= s->ranges[s->n - 1].hi + 1) {
        if (hi > s->ranges[s->n - 1].hi) s->ranges[s->n - 1].hi = hi;
        return;
    }
    if (s->n == s->capacity) {
        int32_t capacity = s->capacity ? 2 * s->capacity : 8;
        s->ranges = work_grow(w, s->ranges, (size_t)s->n * sizeof *s->ranges, (size_t)capacity * sizeof *s->ranges);
        s->capacity = capacity;
    }
    s->ranges[s->n++] = (CodeRange){lo, hi};
}

/* Both sets in one pass over their ranges. */
static CodeSet united(Work *w, const CodeSet *a, const CodeSet *b) {
    CodeSet out = {0};
    int32_t i = 0, k = 0;
    work_spend(w, (size_t)(a->n + b->n));
    while (i < a->n || k < b->n) {
        bool from_a = k == b->n || (i < a->n && a->ranges[i].lo <= b->ranges[k].lo);
        CodeRange r = from_a ? a->ranges[i++] : b->ranges[k++];
        append(w, &out, r.lo, r.hi);
    }
    return out;
}

void code_set_add(Work *w, CodeSet *s, uint32_t lo, uint32_t hi) {
    if (s->n == 0 || lo > s->ranges[s->n - 1].hi) {
        append(w, s, lo, hi);
        return;
    }
    CodeRange range = {lo, hi};
    *s = united(w, s, &(CodeSet){.ranges = &range, .n = 1});
}

void code_set_add_set(Work *w, CodeSet *s, const CodeSet *more) { *s = united(w, s, more); }

CodeSet code_set_negate(Work *w, const CodeSet *s) {
    CodeSet out = {0};
    uint32_t next = 0;
    for (int32_t i = 0; i < s->n; i++) {
        if (s->ranges[i].lo > next) append(w, &out, next, s->ranges[i].lo - 1);
        next = s->ranges[i].hi + 1;
    }
    if (next <= CODE_MAX) append(w, &out, next, CODE_MAX);
    return out;
}

CodeSet code_set_minus(Work *w, const CodeSet *a, const CodeSet *b) {
    CodeSet not_a = code_set_negate(w, a);
    code_set_add_set(w, &not_a, b);
    return code_set_negate(w, &not_a);
}

bool code_set_has(const CodeSet *s, uint32_t code) {
    int32_t lo = 0, hi = s->n;
    while (lo < hi) {
        int32_t middle = lo + (hi - lo) / 2;
        if (s->ranges[middle].hi < code) lo = middle + 1;
        else hi = middle;
    }
    return lo < s->n && s->ranges[lo].lo <= code;
}

int code_write(uint32_t code, char out[4]) {
    if (code < 0x80) return out[0] = (char)code, 1;
    if (code < 0x800) return out[0] = (char)(0xC0 | code >> 6), out[1] = (char)(0x80 | (code & 63)), 2;
    if (code >= 0xD800 && code <= 0xDFFF) code = 0xFFFD;
    int n = 0;
    if (code < 0x10000) out[n++] = (char)(0xE0 | code >> 12);
    else {
        out[n++] = (char)(0xF0 | code >> 18);
        out[n++] = (char)(0x80 | (code >> 12 & 63));
    }
    out[n++] = (char)(0x80 | (code >> 6 & 63));
    out[n++] = (char)(0x80 | (code & 63));
    return n;
}

typedef struct Emitter {
    void (*emit)(void *user, const ByteRanges *bytes);
    void *user;
} Emitter;

/* lo and hi have the same number of bytes. */
static void split(const Emitter *e, uint32_t lo, uint32_t hi) {
    for (int bits = 6; bits <= 18; bits += 6) {
        uint32_t low = (1u << bits) - 1;
        if ((lo & ~low) == (hi & ~low) || lo < 0x80) continue; /* the higher bytes are the same */
        if ((lo & low) != 0) {
            split(e, lo, lo | low);
            split(e, (lo | low) + 1, hi);
            return;
        }
        if ((hi & low) != low) {
            split(e, lo, (hi & ~low) - 1);
            split(e, hi & ~low, hi);
            return;
        }
    }
    char first[4] = {0}, last[4] = {0};
    ByteRanges r = {.n = code_write(lo, first)};
    code_write(hi, last);
    for (int i = 0; i < r.n; i++) r.lo[i] = (uint8_t)first[i], r.hi[i] = (uint8_t)last[i];
    e->emit(e->user, &r);
}

void code_range_bytes(uint32_t lo, uint32_t hi, void (*emit)(void *user, const ByteRanges *bytes), void *user) {
    static const CodeRange parts[] = {{0, 0x7F}, {0x80, 0x7FF}, {0x800, 0xD7FF}, {0xE000, 0xFFFF}, {0x10000, CODE_MAX}};
    const Emitter e = {emit, user};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        uint32_t from = lo > parts[i].lo ? lo : parts[i].lo, to = hi < parts[i].hi ? hi : parts[i].hi;
        if (from <= to) split(&e, from, to);
    }
}

/* text_cursor.c - reads a text from left to right, for the readers of GBNF and of regular expressions; and a table
 * of names. */
#include "grammar/readers.h"

#include "text/utf8.h"

#include <string.h>

int cursor_peek(const Cursor *c) { return c->at < c->n ? (unsigned char)c->text[c->at] : -1; }

int cursor_peek_at(const Cursor *c, size_t n) {
    return c->at < c->n && n < c->n - c->at ? (unsigned char)c->text[c->at + n] : -1;
}

bool cursor_skip(Cursor *c, char byte) {
    if (cursor_peek(c) != (unsigned char)byte) return false;
    c->at++;
    return true;
}

bool cursor_skip_text(Cursor *c, const char *text) {
    size_t n = strlen(text);
    if (c->n - c->at < n || memcmp(c->text + c->at, text, n) != 0) return false;
    c->at += n;
    return true;
}

void cursor_fail(const Cursor *c, const char *what) {
    int line = 1, column = 1;
    for (size_t i = 0; i < c->at && i < c->n; i++) {
        column++;
        if (c->text[i] == '\n') line++, column = 1;
    }
    work_fail(c->w, FR_ERR_ARGUMENT, "%s, line %d, column %d: %s", c->what, line, column, what);
}

uint32_t cursor_code(Cursor *c) {
    size_t need, got = utf8_scan(c->text + c->at, c->n - c->at, &need);
    if (need == 0 || got != need) cursor_fail(c, "a character is not valid UTF-8");
    work_spend(c->w, 0);
    const unsigned char *p = (const unsigned char *)c->text + c->at;
    c->at += need;
    if (need == 1) return p[0];
    uint32_t code = p[0] & (0x7Fu >> need);
    for (size_t i = 1; i < need; i++) code = code << 6 | (p[i] & 63u);
    return code;
}

static int digit_of(int c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

uint32_t cursor_hex(Cursor *c, int n_digits) {
    uint32_t code = 0;
    for (int i = 0; i < n_digits; i++, c->at++) {
        int digit = digit_of(cursor_peek(c));
        if (digit < 0) cursor_fail(c, "an escape has too few hexadecimal digits");
        code = code << 4 | (uint32_t)digit;
    }
    if (code > CODE_MAX || (code >= 0xD800 && code <= 0xDFFF)) cursor_fail(c, "an escape is no character of Unicode");
    return code;
}

static int32_t read_count(Cursor *c) {
    int32_t n = 0;
    if (cursor_peek(c) < '0' || cursor_peek(c) > '9') cursor_fail(c, "expected a number of repetitions");
    for (int digit; (digit = cursor_peek(c)) >= '0' && digit <= '9'; c->at++) {
        n = 10 * n + (digit - '0');
        if (n > EXPR_MAX_COUNT) cursor_fail(c, "more than 1000000 repetitions, which is the limit");
    }
    return n;
}

static void skip_blanks(Cursor *c) {
    while (cursor_peek(c) == ' ' || cursor_peek(c) == '\t') c->at++;
}

bool cursor_quantifier(Cursor *c, int32_t *min, int32_t *max) {
    int what = cursor_peek(c);
    *min = what == '+';
    *max = what == '?' ? 1 : EXPR_UNBOUNDED;
    if (what != '*' && what != '+' && what != '?' && what != '{') return false;
    c->at++;
    if (what != '{') return true;
    skip_blanks(c);
    *min = *max = cursor_peek(c) == ',' ? 0 : read_count(c);
    skip_blanks(c);
    if (cursor_skip(c, ',')) {
        skip_blanks(c);
        *max = cursor_peek(c) == '}' ? EXPR_UNBOUNDED : read_count(c);
        skip_blanks(c);
    }
    if (!cursor_skip(c, '}')) cursor_fail(c, "expected '}' after a number of repetitions");
    if (*max != EXPR_UNBOUNDED && *max < *min) cursor_fail(c, "the least number of repetitions is above the greatest");
    return true;
}

const char *cursor_copy(Cursor *c, size_t from, size_t to) {
    char *copy = work_alloc(c->w, to - from + 1);
    memcpy(copy, c->text + from, to - from);
    return copy;
}

/* ---- names ----------------------------------------------------------------------------------------------- */

static size_t slot_of(const KeyedNames *names, const char *name) {
    size_t at = keyed_hash(&names->key, name, strlen(name)) & (names->n_slots - 1);
    while (names->slots[at].name && strcmp(names->slots[at].name, name) != 0) at = (at + 1) & (names->n_slots - 1);
    return at;
}

int32_t keyed_names_find(const KeyedNames *names, const char *name) {
    if (names->n_slots == 0) return -1;
    const KeyedName *slot = &names->slots[slot_of(names, name)];
    return slot->name ? slot->value : -1;
}

void keyed_names_add(Work *w, KeyedNames *names, const char *name, int32_t value) {
    if (names->n_slots == 0) names->key = hash_key_new();
    if (2 * (names->n + 1) > names->n_slots) {
        KeyedNames bigger = {.n_slots = names->n_slots ? 2 * names->n_slots : 64, .n = names->n, .key = names->key};
        bigger.slots = work_array(w, bigger.n_slots, sizeof *bigger.slots);
        for (size_t i = 0; i < names->n_slots; i++)
            if (names->slots[i].name) bigger.slots[slot_of(&bigger, names->slots[i].name)] = names->slots[i];
        *names = bigger;
    }
    names->slots[slot_of(names, name)] = (KeyedName){name, value};
    names->n++;
}

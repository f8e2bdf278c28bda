/* methods_text_find.c - the methods of str that look for something or answer yes or no. */
#include "text/template/render.h"
#include "text/template/unicode_text.h"

/* The index of the character at a byte offset; -1 where nothing was found. */
static int64_t char_index(Render *r, const Text *t, size_t at) {
    if (at > t->n) return -1;
    Text before = {.data = t->data, .n = at};
    return (int64_t)text_n_chars(r->w, &before);
}

static int64_t find_in(Render *r, const Call *c, bool from_right) {
    const Text *t = c->subject.text, *part = value_need_text(r->w, c->at[0], "what is looked for");
    return char_index(r, t, from_right ? text_find_last(r->w, t, part) : text_find(r->w, t, part, 0));
}

static Value find(Render *r, const Call *c) { return value_int(find_in(r, c, false)); }
static Value rfind(Render *r, const Call *c) { return value_int(find_in(r, c, true)); }

static Value need_found(Render *r, int64_t i) {
    if (i < 0) work_fail(r->w, FR_ERR_FORMAT, "index: the substring is not in the string");
    return value_int(i);
}

static Value index_of(Render *r, const Call *c) { return need_found(r, find_in(r, c, false)); }
static Value rindex(Render *r, const Call *c) { return need_found(r, find_in(r, c, true)); }

static Value count(Render *r, const Call *c) {
    const Text *t = c->subject.text, *part = value_need_text(r->w, c->at[0], "what is counted");
    int64_t n = 0;
    if (part->n == 0) return value_int((int64_t)text_n_chars(r->w, t) + 1);
    for (size_t at = 0; (at = text_find(r->w, t, part, at)) <= t->n; at += part->n) n++;
    return value_int(n);
}

/* Whether there is a character, and all of them are as `is` says. */
static Value all(Render *r, const Call *c, bool (*is)(int32_t code)) {
    const Text *t = c->subject.text;
    int32_t code;
    work_spend(r->w, t->n);
    for (size_t at = 0; at < t->n;) {
        at += char_next(t->data, t->n, at, &code);
        if (!is(code)) return value_bool(false);
    }
    return value_bool(t->n > 0);
}

static bool is_alnum(int32_t code) { return code_is_alpha(code) || code_is_digit(code); }
static bool is_ascii(int32_t code) { return code < 0x80; }

static Value isdigit_all(Render *r, const Call *c) { return all(r, c, code_is_digit); }
static Value isalpha_all(Render *r, const Call *c) { return all(r, c, code_is_alpha); }
static Value isalnum_all(Render *r, const Call *c) { return all(r, c, is_alnum); }
static Value isspace_all(Render *r, const Call *c) { return all(r, c, code_is_space); }
static Value isascii_all(Render *r, const Call *c) {
    return c->subject.text->n ? all(r, c, is_ascii) : value_bool(true);
}

/* Some character has that case, and none has the other. */
static Value has_case(Render *r, const Text *t, bool upper) {
    bool any = false;
    int32_t code;
    work_spend(r->w, t->n);
    for (size_t at = 0; at < t->n;) {
        at += char_next(t->data, t->n, at, &code);
        if (upper ? code_is_lower(code) : code_is_upper(code)) return value_bool(false);
        any = any || (upper ? code_is_upper(code) : code_is_lower(code));
    }
    return value_bool(any);
}

static Value isupper_all(Render *r, const Call *c) { return has_case(r, c->subject.text, true); }
static Value islower_all(Render *r, const Call *c) { return has_case(r, c->subject.text, false); }

const Builtin text_find_methods[] = {
    {"find", "sub!", find},         {"rfind", "sub!", rfind},       {"index", "sub!", index_of},
    {"rindex", "sub!", rindex},     {"count", "sub!", count},       {"isdigit", "", isdigit_all},
    {"isnumeric", "", isdigit_all}, {"isdecimal", "", isdigit_all}, {"isalpha", "", isalpha_all},
    {"isalnum", "", isalnum_all},   {"isspace", "", isspace_all},   {"isascii", "", isascii_all},
    {"isupper", "", isupper_all},   {"islower", "", islower_all},   {NULL, NULL, NULL},
};

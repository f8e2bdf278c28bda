/* word_wrap.c - the filter `wordwrap`: lines of at most a number of characters, as Python's textwrap breaks them.
 *
 * A line is cut into chunks that stay whole: runs of white space, and words. With break_on_hyphens, a word also ends behind a
 * hyphen between letters, and before and behind a dash of two hyphens or more. Then chunks are put into lines as long as they fit;
 * white space at the end of a line, and at the beginning of all but the first, is left out. A chunk that is longer than a
 * line is broken where the line is full, behind its last hyphen if there is one. */
#include "text/template/render.h"
#include "text/template/text_functions.h"
#include "text/template/unicode_text.h"

#include <string.h>

/* One line of the text by characters. */
typedef struct Letters {
    Work *w;
    const Text *text;
    int32_t *codes;  /* [n] */
    size_t *offsets; /* [n + 1] bytes */
    int64_t n;
} Letters;

typedef struct Wrap {
    int64_t width;
    bool breaks_words, breaks_hyphens;
} Wrap;

static Letters letters_of(Work *w, const Text *t) {
    Letters l = {.w = w, .text = t, .n = (int64_t)text_n_chars(w, t)};
    size_t at = 0;
    l.codes = work_array(w, (size_t)l.n + 1, sizeof *l.codes);
    l.offsets = work_array(w, (size_t)l.n + 1, sizeof *l.offsets);
    for (int64_t i = 0; i < l.n; i++) {
        l.offsets[i] = at;
        at += char_next(t->data, t->n, at, &l.codes[i]);
    }
    l.offsets[l.n] = at;
    return l;
}

/* ---- chunks -------------------------------------------------------------------------------------------- */

static int32_t at(const Letters *l, int64_t i) { return i >= 0 && i < l->n ? l->codes[i] : -1; }

static bool is_blank(int32_t c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
static bool is_letter(int32_t c) { return c == '_' || code_is_alpha(c); }
static bool is_word(int32_t c) { return is_letter(c) || code_is_digit(c); }
static bool ends_word(int32_t c) { return is_word(c) || (c > 0 && c < 0x80 && strchr("!\"'&.,?", c)); }

/* The hyphens of a dash between words that begins at i; 0: there is none. */
static int64_t dash(const Letters *l, int64_t i) {
    int64_t n = 0;
    while (at(l, i + n) == '-') n++;
    return n >= 2 && ends_word(at(l, i - 1)) && is_word(at(l, i + n)) ? n : 0;
}

/* Whether a word may be broken behind the hyphen at i. */
static bool joins_words(const Letters *l, int64_t i) {
    bool before = is_letter(at(l, i - 1)) &&
                  (is_letter(at(l, i - 2)) || (at(l, i - 2) == '-' && is_letter(at(l, i - 3))));
    return at(l, i) == '-' && before && is_letter(at(l, i + 1)) &&
           is_letter(at(l, at(l, i + 2) == '-' ? i + 3 : i + 2));
}

/* Where the chunk that begins at i ends. */
static int64_t chunk_end(const Letters *l, int64_t i, bool breaks_hyphens) {
    bool blank = is_blank(at(l, i));
    if (!blank && breaks_hyphens && dash(l, i)) return i + dash(l, i);
    for (int64_t to = i + 1; to < l->n; to++) {
        work_spend(l->w, 0);
        if (is_blank(at(l, to)) != blank) return to;
        if (blank || !breaks_hyphens) continue;
        if (joins_words(l, to)) return to + 1;
        if (dash(l, to)) return to;
    }
    return l->n;
}

/* The first characters of all chunks, and the number of characters behind the last. */
static int64_t *chunks_of(const Letters *l, bool breaks_hyphens, int64_t *n) {
    int64_t *begins = work_array(l->w, (size_t)l->n + 1, sizeof *begins);
    *n = 0;
    for (int64_t i = 0; i < l->n; i = chunk_end(l, i, breaks_hyphens)) begins[(*n)++] = i;
    begins[*n] = l->n;
    return begins;
}

/* ---- lines --------------------------------------------------------------------------------------------- */

static bool is_empty(const Letters *l, int64_t from, int64_t to) {
    while (from < to && code_is_space(l->codes[from])) from++;
    return from == to;
}

/* How many characters of a chunk that is too long are put into the `space` of a line. */
static int64_t part_of(const Letters *l, int64_t from, int64_t space, bool breaks_hyphens) {
    int64_t hyphen = space - 1, first = 0;
    while (hyphen > 0 && at(l, from + hyphen) != '-') hyphen--;
    while (first < hyphen && at(l, from + first) == '-') first++;
    return breaks_hyphens && first < hyphen ? hyphen + 1 : space;
}

static void wrap_line(const Letters *l, const Wrap *how, Seq *lines) {
    int64_t n, *begins = chunks_of(l, how->breaks_hyphens, &n);
    bool is_first = true;
    for (int64_t i = 0; i < n;) {
        if (!is_first && is_empty(l, begins[i], begins[i + 1]) && ++i == n) break;
        int64_t from = begins[i], to = from, last = from; /* last: where the line's last chunk begins */
        while (i < n && begins[i + 1] - from <= how->width) last = begins[i], to = begins[++i];
        if (i < n && begins[i + 1] - begins[i] > how->width) {
            if (how->breaks_words) {
                last = to;
                to += part_of(l, begins[i], how->width - (to - from), how->breaks_hyphens);
                begins[i] = to;
            } else if (to == from) to = begins[++i];
        }
        int64_t kept = is_empty(l, last, to) ? last : to;
        work_spend(l->w, (size_t)(to - from));
        if (kept == from) continue;
        seq_add(l->w, lines, value_text(text_slice(l->w, l->text, l->offsets[from], l->offsets[kept])));
        is_first = false;
    }
}

Value wrap_words(Render *r, const Call *c) {
    const Text *t = value_need_text(r->w, c->subject, "what wordwrap gets");
    const Text *newline = given(c->at[2]) && c->at[2].kind != V_NONE
                              ? value_need_text(r->w, c->at[2], "wordwrap: wrapstring")
                              : value_literal(r->w, "\n").text;
    Wrap how = {argument_int(r, c->at[0], 79, "wordwrap: width"), argument_bool(c->at[1], true),
                argument_bool(c->at[3], true)};
    const Seq *paragraphs = text_split_lines(r->w, t, false);
    TextBuilder b = builder_new(r->w);
    for (size_t i = 0; i < paragraphs->n; i++) {
        Letters l = letters_of(r->w, paragraphs->items[i].text);
        Seq *lines = seq_new(r->w, SEQ_LIST, 0);
        if (how.width <= 0) work_fail(r->w, FR_ERR_FORMAT, "wordwrap: the width must be at least 1");
        wrap_line(&l, &how, lines);
        if (i) builder_add(&b, newline);
        for (size_t k = 0; k < lines->n; k++) {
            if (k) builder_add(&b, newline);
            builder_add(&b, lines->items[k].text);
        }
    }
    return value_text(builder_text(&b));
}

/* text_operations.c - operations on strings that filters and methods share: splitting, replacing, padding,
 * formatting and wrapping, as Python does them. */
#include "text/template/render.h"
#include "text/template/template_text.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Replaces the empty string, which is found before every character and at the end. */
static const Text *replace_nothing(Work *w, const Text *t, const Text *by, int64_t count) {
    TextBuilder b = builder_new(w);
    int32_t code;
    for (size_t at = 0, n; count != 0; count--, at += n) {
        work_spend(w, by->n);
        builder_add(&b, by);
        n = at < t->n ? char_next(t->data, t->n, at, &code) : 0;
        builder_add_slice(&b, t, at, at + n);
        if (n == 0) return builder_text(&b);
        if (count == 1) builder_add_slice(&b, t, at + n, t->n);
    }
    return b.n ? builder_text(&b) : t;
}

const Text *text_replace(Work *w, const Text *t, const Text *old, const Text *by, int64_t count) {
    if (old->n == 0) return replace_nothing(w, t, by, count);
    TextBuilder b = builder_new(w);
    size_t at = 0;
    for (size_t hit; count != 0 && (hit = text_find(w, t, old, at)) <= t->n; at = hit + old->n, count--) {
        builder_add_slice(&b, t, at, hit);
        builder_add(&b, by);
        work_spend(w, by->n);
    }
    if (at == 0) return t;
    builder_add_slice(&b, t, at, t->n);
    return builder_text(&b);
}

static bool ends_line(int32_t c) {
    return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

Seq *text_split_lines(Work *w, const Text *t, bool keeps_ends) {
    Seq *lines = seq_new(w, SEQ_LIST, 0);
    size_t from = 0, n;
    int32_t code;
    work_spend(w, t->n);
    for (size_t at = 0; at < t->n; at += n) {
        n = char_next(t->data, t->n, at, &code);
        if (!ends_line(code)) continue;
        if (code == '\r' && at + 1 < t->n && t->data[at + 1] == '\n') n = 2;
        seq_add(w, lines, value_text(text_slice(w, t, from, keeps_ends ? at + n : at)));
        from = at + n;
    }
    if (from < t->n) seq_add(w, lines, value_text(text_slice(w, t, from, t->n)));
    return lines;
}

static void add_slice(Work *w, Seq *s, const Text *t, size_t from, size_t to) {
    seq_add(w, s, value_text(text_slice(w, t, from, to)));
}

static void reverse(Seq *s) {
    for (size_t i = 0; i < s->n / 2; i++) {
        Value v = s->items[i];
        s->items[i] = s->items[s->n - 1 - i];
        s->items[s->n - 1 - i] = v;
    }
}

static Seq *split_at(Work *w, const Text *t, const Text *separator, int64_t max) {
    Seq *s = seq_new(w, SEQ_LIST, 0);
    size_t at = 0;
    for (size_t hit; max != 0 && (hit = text_find(w, t, separator, at)) <= t->n; at = hit + separator->n, max--)
        add_slice(w, s, t, at, hit);
    add_slice(w, s, t, at, t->n);
    return s;
}

static Seq *split_at_from_right(Work *w, const Text *t, const Text *separator, int64_t max) {
    Seq *s = seq_new(w, SEQ_LIST, 0);
    size_t to = t->n;
    for (; max != 0; max--) {
        const Text *left = text_slice(w, t, 0, to);
        size_t hit = text_find_last(w, left, separator);
        if (hit > left->n) break;
        add_slice(w, s, t, hit + separator->n, to);
        to = hit;
    }
    add_slice(w, s, t, 0, to);
    reverse(s);
    return s;
}

static size_t skip(const Text *t, size_t at, bool spaces) {
    int32_t code;
    while (at < t->n) {
        size_t n = char_next(t->data, t->n, at, &code);
        if (code_is_space(code) != spaces) break;
        at += n;
    }
    return at;
}

static size_t skip_back(const Text *t, size_t to, bool spaces) {
    int32_t code;
    while (to > 0) {
        size_t at = char_previous(t->data, to);
        char_next(t->data, to, at, &code);
        if (code_is_space(code) != spaces) break;
        to = at;
    }
    return to;
}

static Seq *split_words(Work *w, const Text *t, int64_t max) {
    Seq *s = seq_new(w, SEQ_LIST, 0);
    work_spend(w, t->n);
    for (size_t at = skip(t, 0, true); at < t->n; max--) {
        size_t to = max == 0 ? t->n : skip(t, at, false);
        add_slice(w, s, t, at, to);
        at = max == 0 ? t->n : skip(t, to, true);
    }
    return s;
}

static Seq *split_words_from_right(Work *w, const Text *t, int64_t max) {
    Seq *s = seq_new(w, SEQ_LIST, 0);
    work_spend(w, t->n);
    for (size_t to = skip_back(t, t->n, true); to > 0; max--) {
        size_t from = max == 0 ? 0 : skip_back(t, to, false);
        add_slice(w, s, t, from, to);
        to = max == 0 ? 0 : skip_back(t, from, true);
    }
    reverse(s);
    return s;
}

Seq *text_split(Work *w, const Text *t, const Text *separator, int64_t max, bool from_right) {
    if (!separator) return from_right ? split_words_from_right(w, t, max) : split_words(w, t, max);
    if (separator->n == 0) work_fail(w, FR_ERR_FORMAT, "split: the separator is empty");
    return from_right ? split_at_from_right(w, t, separator, max) : split_at(w, t, separator, max);
}

const Text *text_pad(Work *w, const Text *t, int64_t width, const Text *fill, TextPad side) {
    int64_t n = (int64_t)text_n_chars(w, t), pad = width - n;
    if (pad <= 0) return t;
    int64_t left = side == PAD_LEFT ? pad : side == PAD_RIGHT ? 0 : pad / 2 + (pad & width & 1);
    TextBuilder b = builder_new(w);
    builder_add_repeated(&b, fill, left);
    builder_add(&b, t);
    builder_add_repeated(&b, fill, pad - left);
    return builder_text(&b);
}

/* ---- "%s of %d" % values ----------------------------------------------------------------------------------------- */

typedef struct Spec {
    char flags[6];
    int width, precision; /* precision -1: none is given */
    char letter;
} Spec;

typedef struct Formatter {
    Work *w;
    const Text *t;
    const Call *arguments;
    size_t at, i_argument;
    TextBuilder out;
} Formatter;

static Value next_argument(Formatter *f) {
    if (f->i_argument >= f->arguments->n_positional)
        work_fail(f->w, FR_ERR_FORMAT, "format: there are not enough arguments");
    return f->arguments->positional[f->i_argument++];
}

static Value named_argument(Formatter *f, const Text *name) {
    work_count(f->w, f->arguments->n_keywords);
    for (size_t i = 0; i < f->arguments->n_keywords; i++)
        if (text_same(f->w, f->arguments->keywords[i].name, name)) return f->arguments->keywords[i].value;
    if (f->arguments->n_positional == 1 && f->arguments->positional[0].kind == V_DICT) {
        const Value *v = dict_get(f->w, f->arguments->positional[0].dict, value_text(name));
        if (v) return *v;
    }
    work_fail(f->w, FR_ERR_FORMAT, "format: there is no argument '%.*s'", (int)(name->n < 60 ? name->n : 60),
              name->data);
}

static char byte_at(const Formatter *f) { return f->at < f->t->n ? f->t->data[f->at] : '\0'; }

static int read_number(Formatter *f) {
    int n = 0;
    while (byte_at(f) >= '0' && byte_at(f) <= '9' && n < 10000) n = n * 10 + (f->t->data[f->at++] - '0');
    return n;
}

static Spec read_spec(Formatter *f) {
    Spec s = {.precision = -1};
    size_t n = 0;
    while (byte_at(f) && strchr("-+ 0#", byte_at(f)) && n < sizeof s.flags - 1) s.flags[n++] = f->t->data[f->at++];
    s.width = read_number(f);
    if (byte_at(f) == '.') {
        f->at++;
        s.precision = read_number(f);
    }
    s.letter = byte_at(f);
    f->at++;
    return s;
}

static void add_padded(Formatter *f, const Spec *s, const Text *t) {
    Text blank = {.data = " ", .n = 1};
    builder_add(&f->out, text_pad(f->w, t, s->width, &blank, strchr(s->flags, '-') ? PAD_RIGHT : PAD_LEFT));
}

static void add_string(Formatter *f, const Spec *s, Value v) {
    TextBuilder b = builder_new(f->w);
    if (s->letter == 's') value_write(&b, v);
    else value_write_repr(&b, v);
    const Text *t = builder_text(&b);
    if (s->precision >= 0) t = text_slice(f->w, t, 0, text_char_offset(f->w, t, (size_t)s->precision));
    add_padded(f, s, t);
}

static void add_number(Formatter *f, const Spec *s, Value v) {
    char form[24], text[600];
    bool is_int = strchr("dioxXc", s->letter) != NULL;
    if (!is_number(v))
        work_fail(f->w, FR_ERR_FORMAT, "format: %%%c needs a number, not %s", s->letter, value_type_name(v));
    if (s->width > 200 || s->precision > 100) work_fail(f->w, FR_ERR_UNSUPPORTED, "format: a number is wider than 200");
    char letter = s->letter == 'i' ? 'd' : s->letter;
    int n = snprintf(form, sizeof form, "%%%s*.*", s->flags);
    snprintf(form + n, sizeof form - (size_t)n, is_int ? "ll%c" : "%c", letter);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    if (is_int)
        n = snprintf(text, sizeof text, form, s->width, s->precision,
                     (long long)(v.kind == V_FLOAT  ? (int64_t)v.f
                                 : v.kind == V_BOOL ? v.b
                                                    : v.i));
    else n = snprintf(text, sizeof text, form, s->width, s->precision < 0 ? 6 : s->precision, value_to_double(v));
#pragma GCC diagnostic pop
    builder_add_bytes(&f->out, text, (size_t)n < sizeof text ? (size_t)n : sizeof text - 1, false);
}

static void format_one(Formatter *f) {
    const Text *name = NULL;
    if (byte_at(f) == '(') {
        size_t from = ++f->at;
        while (byte_at(f) && byte_at(f) != ')') f->at++;
        name = text_slice(f->w, f->t, from, f->at < f->t->n ? f->at : f->t->n);
        f->at++;
    }
    Spec s = read_spec(f);
    if (s.letter == '%') {
        builder_add_literal(&f->out, "%");
        return;
    }
    if (!s.letter || !strchr("srdiouxXeEfFgG", s.letter))
        work_fail(f->w, FR_ERR_UNSUPPORTED, "format: unsupported conversion after %%");
    Value v = name ? named_argument(f, name) : next_argument(f);
    if (s.letter == 's' || s.letter == 'r') add_string(f, &s, v);
    else add_number(f, &s, v);
}

const Text *text_format_percent(Work *w, const Text *t, const Call *arguments) {
    Formatter f = {.w = w, .t = t, .arguments = arguments, .out = builder_new(w)};
    work_spend(w, t->n);
    while (f.at < t->n) {
        size_t from = f.at;
        while (f.at < t->n && t->data[f.at] != '%') f.at++;
        builder_add_slice(&f.out, t, from, f.at);
        if (f.at++ < t->n) format_one(&f);
    }
    bool is_mapping = arguments->n_positional == 1 && arguments->positional[0].kind == V_DICT;
    if (f.i_argument < arguments->n_positional && !is_mapping)
        work_fail(w, FR_ERR_FORMAT, "format: not all arguments are used");
    return builder_text(&f.out);
}

/* ---- "{} of {}".format(values) ----------------------------------------------------------------------------------- */

static Value field(Formatter *f, const Text *name) {
    if (name->n == 0) return next_argument(f);
    if (name->data[0] < '0' || name->data[0] > '9') return named_argument(f, name);
    size_t i = 0;
    for (size_t k = 0; k < name->n && k < 6; k++) i = i * 10 + (size_t)(name->data[k] - '0');
    if (i >= f->arguments->n_positional) work_fail(f->w, FR_ERR_FORMAT, "format: there are not enough arguments");
    return f->arguments->positional[i];
}

static void format_field(Formatter *f) {
    size_t from = f->at;
    while (byte_at(f) && byte_at(f) != '}') f->at++;
    if (f->at >= f->t->n) work_fail(f->w, FR_ERR_FORMAT, "format: a '{' is not closed");
    const Text *name = text_slice(f->w, f->t, from, f->at++);
    for (size_t i = 0; i < name->n; i++)
        if (strchr(":!.[{", name->data[i]))
            work_fail(f->w, FR_ERR_UNSUPPORTED, "format: only {}, {0} and {name} are supported");
    value_write(&f->out, field(f, name));
}

const Text *text_format_braces(Work *w, const Text *t, const Call *arguments) {
    Formatter f = {.w = w, .t = t, .arguments = arguments, .out = builder_new(w)};
    work_spend(w, t->n);
    while (f.at < t->n) {
        char c = t->data[f.at++];
        if ((c == '{' || c == '}') && byte_at(&f) == c) f.at++;
        else if (c == '{') {
            format_field(&f);
            continue;
        } else if (c == '}') work_fail(w, FR_ERR_FORMAT, "format: a single '}'");
        builder_add_slice(&f.out, t, f.at - 1, f.at);
    }
    return builder_text(&f.out);
}

/* ---- wordwrap -------------------------------------------------------------------------------------------------- */

/* Lines are broken as Python's textwrap breaks them. A line is first cut into chunks that stay whole: words and runs
 * of white space. With break_on_hyphens, a word also ends after a hyphen between letters, and before and after a
 * dash of two or more hyphens. Then chunks are added to a line as long as they fit. White space at the end of a line
 * is left out, and so is white space at the beginning of a line other than the first. A chunk that is longer than a
 * line is broken where the line is full, or after the last hyphen before that. */

/* The characters of one line of the text. */
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

/* Returns the number of hyphens of the dash between words that begins at i. 0: none does. */
static int64_t dash(const Letters *l, int64_t i) {
    int64_t n = 0;
    if (!ends_word(at(l, i - 1))) return 0; /* so only the first hyphen of a dash looks for its end */
    for (; at(l, i + n) == '-'; n++) work_count(l->w, 1);
    return n >= 2 && is_word(at(l, i + n)) ? n : 0;
}

/* Returns whether a word may be broken after the hyphen at i. */
static bool joins_words(const Letters *l, int64_t i) {
    bool before = is_letter(at(l, i - 1)) &&
                  (is_letter(at(l, i - 2)) || (at(l, i - 2) == '-' && is_letter(at(l, i - 3))));
    return at(l, i) == '-' && before && is_letter(at(l, i + 1)) &&
           is_letter(at(l, at(l, i + 2) == '-' ? i + 3 : i + 2));
}

/* Returns where the chunk that begins at i ends. */
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

/* Returns the index of the first character of each chunk, followed by the number of characters. */
static int64_t *chunks_of(const Letters *l, bool breaks_hyphens, int64_t *n) {
    int64_t *begins = work_array(l->w, (size_t)l->n + 1, sizeof *begins);
    *n = 0;
    for (int64_t i = 0; i < l->n; i = chunk_end(l, i, breaks_hyphens)) begins[(*n)++] = i;
    begins[*n] = l->n;
    return begins;
}

/* ---- lines --------------------------------------------------------------------------------------------- */

static bool is_empty(const Letters *l, int64_t from, int64_t to) {
    for (; from < to && code_is_space(l->codes[from]); from++) work_count(l->w, 1);
    return from == to;
}

/* Returns how many characters of a chunk that is too long fill the `space` that is left in a line. */
static int64_t part_of(const Letters *l, int64_t from, int64_t space, bool breaks_hyphens) {
    int64_t hyphen = space - 1, first = 0;
    work_spend(l->w, (size_t)space);
    while (hyphen > 0 && at(l, from + hyphen) != '-') hyphen--;
    while (first < hyphen && at(l, from + first) == '-') first++;
    return breaks_hyphens && first < hyphen ? hyphen + 1 : space;
}

static void wrap_line(const Letters *l, const Wrap *how, Seq *lines) {
    int64_t n, *begins = chunks_of(l, how->breaks_hyphens, &n);
    bool is_first = true;
    for (int64_t i = 0; i < n;) {
        if (!is_first && is_empty(l, begins[i], begins[i + 1]) && ++i == n) break;
        int64_t from = begins[i], to = from, last = from; /* last: where the last chunk of the line begins */
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

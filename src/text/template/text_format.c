/* text_format.c - "%s of %d" % values, and "{} of {}".format(values). */
#include "text/template/text_functions.h"
#include "text/template/unicode_text.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- % ------------------------------------------------------------------------------------------------------- */

typedef struct Spec {
    char flags[6];
    int width, precision; /* precision -1: none */
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
    for (size_t i = 0; i < f->arguments->n_keywords; i++)
        if (text_equal(f->arguments->keywords[i].name, name)) return f->arguments->keywords[i].value;
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

/* ---- { } ------------------------------------------------------------------------------------------------------ */

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

/* python_text.c - str() and repr() of values as Python writes them, and the conversion of numbers from and to text. */
#include "text/template/template_text.h"
#include "text/template/value.h"

#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Returns the decimal point of the C library, which is a comma in some locales. */
static char decimal_point(void) { return localeconv()->decimal_point[0]; }

bool double_read(const char *text, size_t n, double *out) {
    char copy[512], *end;
    if (n == 0 || n >= sizeof copy || memchr(text, 0, n)) return false;
    memcpy(copy, text, n);
    copy[n] = '\0';
    if (strpbrk(copy, "xXpP") || strchr(copy, ',')) return false;
    char *point = strchr(copy, '.');
    if (point) *point = decimal_point();
    *out = strtod(copy, &end);
    return end == copy + n;
}

/* Finds the digits of the shortest decimal number that is read as f, and the power of ten of its first digit: "15" and
 * 0 for 1.5. */
static int shortest(double f, char digits[20], int *exponent) {
    char text[40];
    for (int precision = 0; precision < 17; precision++) {
        snprintf(text, sizeof text, "%.*e", precision, f);
        if (strtod(text, NULL) == f) break;
    }
    int n = 0;
    char *e = strchr(text, 'e');
    for (char *c = text; c < e; c++)
        if (*c >= '0' && *c <= '9') digits[n++] = *c;
    while (n > 1 && digits[n - 1] == '0') n--;
    *exponent = atoi(e + 1);
    return n;
}

size_t double_write(char out[32], double f) {
    if (isnan(f)) return (size_t)sprintf(out, "nan");
    if (isinf(f)) return (size_t)sprintf(out, f < 0 ? "-inf" : "inf");
    char digits[20] = "", *at = out;
    int exponent, n = shortest(fabs(f), digits, &exponent);
    if (signbit(f)) *at++ = '-';
    if (exponent < -4 || exponent >= 16) {
        *at++ = digits[0];
        if (n > 1) at += sprintf(at, ".%.*s", n - 1, digits + 1);
        at += sprintf(at, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
        return (size_t)(at - out);
    }
    if (exponent < 0) {
        at += sprintf(at, "0.");
        for (int i = -1; i > exponent; i--) *at++ = '0';
        at += sprintf(at, "%.*s", n, digits);
        return (size_t)(at - out);
    }
    for (int i = 0; i <= exponent || i < n; i++) {
        if (i == exponent + 1) *at++ = '.';
        *at++ = i < n ? digits[i] : '0';
    }
    if (n <= exponent + 1) at += sprintf(at, ".0");
    return (size_t)(at - out);
}

static void write_repr_text(TextBuilder *b, const Text *t) {
    work_spend(b->w, t->n);
    bool is_data = text_has_data(b->w, t), has_single = memchr(t->data, '\'', t->n),
         has_double = memchr(t->data, '"', t->n);
    char quote = has_single && !has_double ? '"' : '\'';
    if (t->is_safe) builder_add_literal(b, "Markup(");
    builder_add_bytes(b, &quote, 1, is_data);
    for (size_t at = 0; at < t->n;) {
        int32_t code;
        char escape[16] = "";
        size_t n = char_next(t->data, t->n, at, &code);
        if (code == quote || code == '\\') sprintf(escape, "\\%c", (char)code);
        else if (code == '\n') strcpy(escape, "\\n");
        else if (code == '\r') strcpy(escape, "\\r");
        else if (code == '\t') strcpy(escape, "\\t");
        else if (!code_is_printable(code))
            sprintf(escape,
                    code < 0x100     ? "\\x%02" PRIx32
                    : code < 0x10000 ? "\\u%04" PRIx32
                                     : "\\U%08" PRIx32,
                    (uint32_t)code);
        if (escape[0]) builder_add_bytes(b, escape, strlen(escape), is_data);
        else builder_add_bytes(b, t->data + at, n, is_data);
        at += n;
    }
    builder_add_bytes(b, &quote, 1, is_data);
    if (t->is_safe) builder_add_literal(b, ")");
}

static void write_items(TextBuilder *b, const Seq *s) {
    for (size_t i = 0; i < s->n; i++) {
        if (i) builder_add_literal(b, ", ");
        value_write_repr(b, s->items[i]);
    }
}

static void write_seq(TextBuilder *b, const Seq *s) {
    static const char *const begin[] = {"[", "(", "", "dict_keys([", "dict_values([", "dict_items([", ""};
    static const char *const end[] = {"]", ")", "", "])", "])", "])", ""};
    char range[96];
    if (s->flavour == SEQ_RANGE) {
        int n = snprintf(range, sizeof range, "range(%" PRId64 ", %" PRId64, s->start, s->stop);
        if (s->step != 1) n += snprintf(range + n, sizeof range - (size_t)n, ", %" PRId64, s->step);
        builder_add_bytes(b, range, (size_t)n, false);
        builder_add_literal(b, ")");
    } else if (s->flavour == SEQ_GENERATOR) builder_add_literal(b, "<generator object>");
    else {
        builder_add_literal(b, begin[s->flavour]);
        write_items(b, s);
        if (s->flavour == SEQ_TUPLE && s->n == 1) builder_add_literal(b, ",");
        builder_add_literal(b, end[s->flavour]);
    }
}

static void write_dict(TextBuilder *b, const Dict *d) {
    builder_add_literal(b, "{");
    for (size_t i = 0; i < d->n; i++) {
        if (i) builder_add_literal(b, ", ");
        value_write_repr(b, d->entries[i].key);
        builder_add_literal(b, ": ");
        value_write_repr(b, d->entries[i].value);
    }
    builder_add_literal(b, "}");
}

static void write_nested(TextBuilder *b, Value v) {
    work_enter(b->w);
    if (v.kind == V_SEQ) write_seq(b, v.seq);
    else if (v.kind == V_DICT) write_dict(b, v.dict);
    else {
        builder_add_literal(b, "<Namespace ");
        write_dict(b, v.dict);
        builder_add_literal(b, ">");
    }
    work_leave(b->w);
}

void value_write(TextBuilder *b, Value v) {
    char number[32];
    work_spend(b->w, 0);
    switch (v.kind) {
    case V_MISSING:
    case V_UNDEFINED: break;
    case V_NONE: builder_add_literal(b, "None"); break;
    case V_BOOL: builder_add_literal(b, v.b ? "True" : "False"); break;
    case V_INT: builder_add_bytes(b, number, (size_t)snprintf(number, sizeof number, "%" PRId64, v.i), false); break;
    case V_FLOAT: builder_add_bytes(b, number, double_write(number, v.f), false); break;
    case V_TEXT:
        work_spend(b->w, v.text->n);
        builder_add(b, v.text);
        break;
    case V_SEQ:
    case V_DICT:
    case V_NAMESPACE: write_nested(b, v); break;
    default:
        builder_add_literal(b, "<");
        builder_add_literal(b, value_type_name(v));
        builder_add_literal(b, ">");
    }
}

void value_write_repr(TextBuilder *b, Value v) {
    if (v.kind == V_TEXT) write_repr_text(b, v.text);
    else if (v.kind == V_UNDEFINED) builder_add_literal(b, "Undefined");
    else value_write(b, v);
}

const Text *value_str(Work *w, Value v) {
    if (v.kind == V_TEXT) return v.text;
    TextBuilder b = builder_new(w);
    value_write(&b, v);
    return builder_text(&b);
}

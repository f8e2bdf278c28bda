/* filters_text.c - the filters of strings. A filter with the name of a method of str does the same as that method on
 * str(value), except that `title` splits words differently. */
#include "text/template/render.h"
#include "text/template/template_text.h"

#include <string.h>

static Value upper(Render *r, const Call *c) {
    return value_text(text_with_case(r->w, argument_str(r, c->subject), CASE_UPPER));
}
static Value lower(Render *r, const Call *c) {
    return value_text(text_with_case(r->w, argument_str(r, c->subject), CASE_LOWER));
}
static Value capitalize(Render *r, const Call *c) {
    return value_text(text_with_case(r->w, argument_str(r, c->subject), CASE_CAPITAL));
}
static Value string(Render *r, const Call *c) { return value_text(argument_str(r, c->subject)); }

static Value title(Render *r, const Call *c) {
    const Text *t = argument_str(r, c->subject);
    TextBuilder b = builder_new(r->w);
    int32_t code;
    bool begins = true;
    for (size_t at = 0, n; at < t->n; at += n) {
        n = char_next(t->data, t->n, at, &code);
        builder_add(&b, text_with_case(r->w, text_slice(r->w, t, at, at + n), begins ? CASE_UPPER : CASE_LOWER));
        begins = code_is_space(code) || (code > 0 && code < 0x80 && strchr("-({[<", code));
    }
    return value_text(builder_text(&b));
}

static Value trim(Render *r, const Call *c) {
    const Text *chars = given(c->at[0]) && c->at[0].kind != V_NONE ? value_need_text(r->w, c->at[0], "trim: chars")
                                                                   : NULL;
    return value_text(text_strip(r->w, argument_str(r, c->subject), chars, true, true));
}

static Value replace(Render *r, const Call *c) {
    int64_t count = given(c->at[2]) && c->at[2].kind != V_NONE ? value_need_int(r->w, c->at[2], "replace: count") : -1;
    return value_text(
        text_replace(r->w, argument_str(r, c->subject), argument_str(r, c->at[0]), argument_str(r, c->at[1]), count));
}

static Value safe_text(Render *r, const Text *t) {
    Text *s = work_alloc(r->w, sizeof *s);
    *s = *t;
    s->is_safe = true;
    return value_text(s);
}

static Value safe(Render *r, const Call *c) { return safe_text(r, argument_str(r, c->subject)); }

static Value force_escape(Render *r, const Call *c) {
    static const char special[] = "&<>'\"";
    static const char *const spellings[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    const Text *t = argument_str(r, c->subject);
    TextBuilder b = builder_new(r->w);
    work_spend(r->w, t->n);
    for (size_t i = 0; i < t->n; i++) {
        const char *known = t->data[i] ? strchr(special, t->data[i]) : NULL;
        if (known)
            builder_add_bytes(&b, spellings[known - special], strlen(spellings[known - special]),
                              text_byte_is_data(t, i));
        else builder_add_slice(&b, t, i, i + 1);
    }
    return safe_text(r, builder_text(&b));
}

static Value escape(Render *r, const Call *c) {
    if (is_text(c->subject) && c->subject.text->is_safe) return c->subject;
    return force_escape(r, c);
}

static Value indent(Render *r, const Call *c) {
    const Text *t = value_need_text(r->w, c->subject, "what indent gets"), *space;
    TextBuilder b = builder_new(r->w), spaces = builder_new(r->w);
    bool first = argument_bool(c->at[1], false), blank = argument_bool(c->at[2], false);
    Text one = {.data = " ", .n = 1};
    if (is_text(c->at[0])) space = c->at[0].text;
    else {
        builder_add_repeated(&spaces, &one, argument_int(r, c->at[0], 4, "indent: width"));
        space = builder_text(&spaces);
    }
    TextBuilder whole = builder_new(r->w); /* one more newline, so that an empty last line is kept */
    builder_add(&whole, t);
    builder_add_literal(&whole, "\n");
    const Seq *lines = text_split_lines(r->w, builder_text(&whole), false);
    for (size_t i = 0; i < lines->n; i++) {
        const Text *line = lines->items[i].text;
        if (i) builder_add_literal(&b, "\n");
        if (i ? blank || line->n : first) builder_add(&b, space);
        work_spend(r->w, line->n + space->n);
        builder_add(&b, line);
    }
    return value_text(builder_text(&b));
}

static Value truncate(Render *r, const Call *c) {
    const Text *t = value_need_text(r->w, c->subject, "what truncate gets"),
               *end = argument_text(r, c->at[2], "...", "truncate: end");
    int64_t length = argument_int(r, c->at[0], 255, "truncate: length"), leeway = 5,
            n_end = (int64_t)text_n_chars(r->w, end);
    if (given(c->at[3]) && c->at[3].kind != V_NONE) leeway = value_need_int(r->w, c->at[3], "truncate: leeway");
    if (length < n_end || leeway < 0)
        work_fail(r->w, FR_ERR_FORMAT, "truncate: the length is less than that of the end");
    int64_t n = (int64_t)text_n_chars(r->w, t);
    if (n <= leeway || n - leeway <= length) return value_text(t);
    size_t to = text_char_offset(r->w, t, (size_t)(length - n_end));
    const Text *kept = text_slice(r->w, t, 0, to);
    if (!argument_bool(c->at[1], false)) {
        Text blank = {.data = " ", .n = 1};
        size_t last = text_find_last(r->w, kept, &blank);
        if (last <= kept->n) kept = text_slice(r->w, kept, 0, last);
    }
    TextBuilder b = builder_new(r->w);
    builder_add(&b, kept);
    builder_add(&b, end);
    return value_text(builder_text(&b));
}

static Value center(Render *r, const Call *c) {
    Text blank = {.data = " ", .n = 1};
    return value_text(text_pad(r->w, argument_str(r, c->subject), argument_int(r, c->at[0], 80, "center: width"),
                               &blank, PAD_CENTER));
}

static Value word_count(Render *r, const Call *c) {
    const Text *t = argument_str(r, c->subject);
    int64_t count = 0;
    bool in_word = false;
    work_spend(r->w, t->n);
    for (size_t at = 0; at < t->n;) {
        int32_t code;
        at += char_next(t->data, t->n, at, &code);
        bool is_word = code == '_' || code_is_alpha(code) || code_is_digit(code);
        count += is_word && !in_word;
        in_word = is_word;
    }
    return value_int(count);
}

static void add_quoted(TextBuilder *b, const Text *t, const char *unquoted, bool in_query) {
    static const char hex[] = "0123456789ABCDEF";
    work_spend(b->w, t->n);
    for (size_t i = 0; i < t->n; i++) {
        unsigned char ch = (unsigned char)t->data[i];
        bool plain = (ch >= '0' && ch <= '9') || ((ch | 32) >= 'a' && (ch | 32) <= 'z') || (ch && strchr(unquoted, ch));
        if (plain) builder_add_slice(b, t, i, i + 1);
        else if (ch == ' ' && in_query) builder_add_bytes(b, "+", 1, text_byte_is_data(t, i));
        else builder_add_bytes(b, (char[]){'%', hex[ch >> 4], hex[ch & 15]}, 3, text_byte_is_data(t, i));
    }
}

static Value url_encode(Render *r, const Call *c) {
    TextBuilder b = builder_new(r->w);
    if (c->subject.kind == V_DICT)
        for (size_t i = 0; i < c->subject.dict->n; i++) {
            const DictEntry *e = &c->subject.dict->entries[i];
            if (i) builder_add_literal(&b, "&");
            add_quoted(&b, value_str(r->w, e->key), "_.-~", true);
            builder_add_literal(&b, "=");
            add_quoted(&b, value_str(r->w, e->value), "_.-~", true);
        }
    else if (c->subject.kind == V_SEQ) work_fail(r->w, FR_ERR_UNSUPPORTED, "urlencode needs a string or a dict");
    else add_quoted(&b, argument_str(r, c->subject), "_.-~/", false);
    return value_text(builder_text(&b));
}

static int json_indent(Render *r, Value v) {
    if (!given(v) || v.kind == V_NONE) return -1;
    int64_t n = value_need_int(r->w, v, "tojson: indent");
    return n < 0 ? 0 : n > 100 ? 100 : (int)n;
}

static Value to_json(Render *r, const Call *c) {
    JsonStyle style = {.ensure_ascii = argument_bool(c->at[0], false),
                       .indent = json_indent(r, c->at[1]),
                       .sort_keys = argument_bool(c->at[3], false)};
    style.item_separator = value_literal(r->w, style.indent < 0 ? ", " : ",").text;
    style.key_separator = value_literal(r->w, ": ").text;
    if (given(c->at[2]) && c->at[2].kind != V_NONE) {
        const Seq *pair = value_items(r->w, c->at[2]);
        if (pair->n != 2) work_fail(r->w, FR_ERR_FORMAT, "tojson: separators must be a pair of strings");
        style.item_separator = value_need_text(r->w, pair->items[0], "tojson: a separator");
        style.key_separator = value_need_text(r->w, pair->items[1], "tojson: a separator");
    }
    return value_text(json_write(r->w, c->subject, &style));
}

static Value format(Render *r, const Call *c) {
    return value_text(text_format_percent(r->w, argument_str(r, c->subject), c));
}

const Builtin filters_text[] = {
    {"upper", "", upper},
    {"lower", "", lower},
    {"capitalize", "", capitalize},
    {"title", "", title},
    {"string", "", string},
    {"trim", "chars", trim},
    {"replace", "old! new! count", replace},
    {"safe", "", safe},
    {"escape", "", escape},
    {"e", "", escape},
    {"forceescape", "", force_escape},
    {"indent", "width first blank", indent},
    {"truncate", "length killwords end leeway", truncate},
    {"center", "width", center},
    {"wordcount", "", word_count},
    {"wordwrap", "width break_long_words wrapstring break_on_hyphens", wrap_words},
    {"urlencode", "", url_encode},
    {"tojson", "ensure_ascii indent separators sort_keys", to_json},
    {"format", "*", format},
    {NULL, NULL, NULL},
};

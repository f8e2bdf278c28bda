/* methods.c - the methods of strings, dicts, lists and cyclers. */
#include "text/template/render.h"
#include "text/template/template_text.h"

static const Text *chars(Render *r, const Call *c) {
    return given(c->at[0]) && c->at[0].kind != V_NONE ? value_need_text(r->w, c->at[0], "strip: the characters") : NULL;
}

static Value strip(Render *r, const Call *c) {
    return value_text(text_strip(r->w, c->subject.text, chars(r, c), true, true));
}
static Value lstrip(Render *r, const Call *c) {
    return value_text(text_strip(r->w, c->subject.text, chars(r, c), true, false));
}
static Value rstrip(Render *r, const Call *c) {
    return value_text(text_strip(r->w, c->subject.text, chars(r, c), false, true));
}
static Value upper(Render *r, const Call *c) { return value_text(text_with_case(r->w, c->subject.text, CASE_UPPER)); }
static Value lower(Render *r, const Call *c) { return value_text(text_with_case(r->w, c->subject.text, CASE_LOWER)); }
static Value title(Render *r, const Call *c) { return value_text(text_with_case(r->w, c->subject.text, CASE_TITLE)); }
static Value capitalize(Render *r, const Call *c) {
    return value_text(text_with_case(r->w, c->subject.text, CASE_CAPITAL));
}
static Value swapcase(Render *r, const Call *c) { return value_text(text_with_case(r->w, c->subject.text, CASE_SWAP)); }

static Value split_by(Render *r, const Call *c, bool from_right) {
    const Text *separator = given(c->at[0]) && c->at[0].kind != V_NONE
                                ? value_need_text(r->w, c->at[0], "split: the separator")
                                : NULL;
    return value_seq(
        text_split(r->w, c->subject.text, separator, argument_int(r, c->at[1], -1, "split: maxsplit"), from_right));
}

static Value split(Render *r, const Call *c) { return split_by(r, c, false); }
static Value rsplit(Render *r, const Call *c) { return split_by(r, c, true); }
static Value splitlines(Render *r, const Call *c) {
    return value_seq(text_split_lines(r->w, c->subject.text, argument_bool(c->at[0], false)));
}

static Value replace(Render *r, const Call *c) {
    const Text *old = value_need_text(r->w, c->at[0], "replace: what is replaced"),
               *by = value_need_text(r->w, c->at[1], "replace: the replacement");
    return value_text(text_replace(r->w, c->subject.text, old, by, argument_int(r, c->at[2], -1, "replace: count")));
}

static Value join(Render *r, const Call *c) {
    const Seq *items = value_items(r->w, c->at[0]);
    TextBuilder b = builder_new(r->w);
    for (size_t i = 0; i < items->n; i++) {
        if (i) builder_add(&b, c->subject.text);
        const Text *item = value_need_text(r->w, items->items[i], "join: an item");
        work_spend(r->w, item->n + c->subject.text->n);
        builder_add(&b, item);
    }
    return value_text(builder_text(&b));
}

static Value pad_by(Render *r, const Call *c, TextPad side) {
    const Text *fill = argument_text(r, c->at[1], " ", "the fill character");
    if (text_n_chars(r->w, fill) != 1) work_fail(r->w, FR_ERR_FORMAT, "the fill character must be one character");
    return value_text(text_pad(r->w, c->subject.text, value_need_int(r->w, c->at[0], "the width"), fill, side));
}

static Value ljust(Render *r, const Call *c) { return pad_by(r, c, PAD_RIGHT); }
static Value rjust(Render *r, const Call *c) { return pad_by(r, c, PAD_LEFT); }
static Value center(Render *r, const Call *c) { return pad_by(r, c, PAD_CENTER); }

static Value zfill(Render *r, const Call *c) {
    const Text *t = c->subject.text;
    Text zero = {.data = "0", .n = 1};
    int64_t width = value_need_int(r->w, c->at[0], "zfill: the width");
    size_t sign = t->n > 0 && (t->data[0] == '-' || t->data[0] == '+');
    TextBuilder b = builder_new(r->w);
    builder_add_slice(&b, t, 0, sign);
    builder_add(&b, text_pad(r->w, text_slice(r->w, t, sign, t->n), width - (int64_t)sign, &zero, PAD_LEFT));
    return value_text(builder_text(&b));
}

static bool has_affix(Work *w, const Text *t, const Text *affix, bool at_end) {
    if (affix->n > t->n) return false;
    Text part = {.data = at_end ? t->data + (t->n - affix->n) : t->data, .n = affix->n};
    return text_same(w, &part, affix);
}

static Value has_any_affix(Render *r, const Call *c, bool at_end) {
    if (c->at[0].kind != V_SEQ)
        return value_bool(
            has_affix(r->w, c->subject.text, value_need_text(r->w, c->at[0], "what is looked for"), at_end));
    for (size_t i = 0; i < c->at[0].seq->n; i++) {
        work_spend(r->w, 0);
        if (has_affix(r->w, c->subject.text, value_need_text(r->w, c->at[0].seq->items[i], "what is looked for"),
                      at_end))
            return value_bool(true);
    }
    return value_bool(false);
}

static Value startswith(Render *r, const Call *c) { return has_any_affix(r, c, false); }
static Value endswith(Render *r, const Call *c) { return has_any_affix(r, c, true); }

static Value remove_affix(Render *r, const Call *c, bool at_end) {
    const Text *t = c->subject.text, *affix = value_need_text(r->w, c->at[0], "what is removed");
    if (!has_affix(r->w, t, affix, at_end)) return c->subject;
    return value_text(at_end ? text_slice(r->w, t, 0, t->n - affix->n) : text_slice(r->w, t, affix->n, t->n));
}

static Value removeprefix(Render *r, const Call *c) { return remove_affix(r, c, false); }
static Value removesuffix(Render *r, const Call *c) { return remove_affix(r, c, true); }

static Value partition_at(Render *r, const Text *t, const Text *separator, size_t hit, bool from_right) {
    Seq *s = seq_new(r->w, SEQ_TUPLE, 3);
    bool found = hit <= t->n;
    Value empty = value_literal(r->w, ""), whole = value_text(t);
    seq_add(r->w, s, found ? value_text(text_slice(r->w, t, 0, hit)) : from_right ? empty : whole);
    seq_add(r->w, s, found ? value_text(text_slice(r->w, t, hit, hit + separator->n)) : empty);
    seq_add(r->w, s, found ? value_text(text_slice(r->w, t, hit + separator->n, t->n)) : from_right ? whole : empty);
    return value_seq(s);
}

static const Text *separator_of(Render *r, const Call *c) {
    const Text *separator = value_need_text(r->w, c->at[0], "partition: the separator");
    if (separator->n == 0) work_fail(r->w, FR_ERR_FORMAT, "partition: the separator is empty");
    return separator;
}

static Value partition(Render *r, const Call *c) {
    const Text *separator = separator_of(r, c);
    return partition_at(r, c->subject.text, separator, text_find(r->w, c->subject.text, separator, 0), false);
}

static Value rpartition(Render *r, const Call *c) {
    const Text *separator = separator_of(r, c);
    return partition_at(r, c->subject.text, separator, text_find_last(r->w, c->subject.text, separator), true);
}

static Value format(Render *r, const Call *c) { return value_text(text_format_braces(r->w, c->subject.text, c)); }

/* ---- methods of str that search or test ------------------------------------------------------------------------ */

/* Returns the index of the character at a byte offset. -1: the offset is that of text_find for a part that was not
 * found. */
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

/* Returns whether the text is not empty and `is` is true for all of its characters. */
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

/* Returns whether at least one character has the case, and none has the opposite one. */
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

const Builtin text_methods[] = {
    {"strip", "chars", strip},
    {"lstrip", "chars", lstrip},
    {"rstrip", "chars", rstrip},
    {"upper", "", upper},
    {"lower", "", lower},
    {"casefold", "", lower},
    {"title", "", title},
    {"capitalize", "", capitalize},
    {"swapcase", "", swapcase},
    {"split", "sep maxsplit", split},
    {"rsplit", "sep maxsplit", rsplit},
    {"splitlines", "keepends", splitlines},
    {"replace", "old! new! count", replace},
    {"join", "iterable!", join},
    {"ljust", "width! fillchar", ljust},
    {"rjust", "width! fillchar", rjust},
    {"center", "width! fillchar", center},
    {"zfill", "width!", zfill},
    {"startswith", "prefix!", startswith},
    {"endswith", "suffix!", endswith},
    {"removeprefix", "prefix!", removeprefix},
    {"removesuffix", "suffix!", removesuffix},
    {"partition", "sep!", partition},
    {"rpartition", "sep!", rpartition},
    {"format", "*", format},
    {"find", "sub!", find},
    {"rfind", "sub!", rfind},
    {"index", "sub!", index_of},
    {"rindex", "sub!", rindex},
    {"count", "sub!", count},
    {"isdigit", "", isdigit_all},
    {"isnumeric", "", isdigit_all},
    {"isdecimal", "", isdigit_all},
    {"isalpha", "", isalpha_all},
    {"isalnum", "", isalnum_all},
    {"isspace", "", isspace_all},
    {"isascii", "", isascii_all},
    {"isupper", "", isupper_all},
    {"islower", "", islower_all},
    {NULL, NULL, NULL},
};

/* ---- dicts, lists and tuples ------------------------------------------------------------------------------- */

static Value view(Render *r, const Dict *d, SeqFlavour flavour) {
    work_spend(r->w, d->n);
    Seq *s = seq_new(r->w, flavour, d->n);
    for (size_t i = 0; i < d->n; i++) {
        const DictEntry *e = &d->entries[i];
        seq_add(r->w, s,
                flavour == SEQ_KEYS     ? e->key
                : flavour == SEQ_VALUES ? e->value
                                        : seq_pair(r->w, e->key, e->value));
    }
    return value_seq(s);
}

static Value keys(Render *r, const Call *c) { return view(r, c->subject.dict, SEQ_KEYS); }
static Value values(Render *r, const Call *c) { return view(r, c->subject.dict, SEQ_VALUES); }
static Value items(Render *r, const Call *c) { return view(r, c->subject.dict, SEQ_ITEMS); }
static Value copy(Render *r, const Call *c) {
    (void)r;
    return c->subject; /* the original cannot change, so it serves as the copy */
}

static Value get(Render *r, const Call *c) {
    value_need_hashable(r->w, c->at[0]);
    const Value *v = dict_get(r->w, c->subject.dict, c->at[0]);
    return v ? *v : given(c->at[1]) ? c->at[1] : value_none();
}

static Value item_index(Render *r, const Call *c) {
    const Seq *s = c->subject.seq;
    for (size_t i = 0; i < s->n; i++)
        if (value_equal(r->w, s->items[i], c->at[0])) return value_int((int64_t)i);
    work_fail(r->w, FR_ERR_FORMAT, "index: the value is not in the list");
}

static Value item_count(Render *r, const Call *c) {
    int64_t n = 0;
    for (size_t i = 0; i < c->subject.seq->n; i++) n += value_equal(r->w, c->subject.seq->items[i], c->at[0]);
    return value_int(n);
}

const Builtin dict_methods[] = {
    {"keys", "", keys}, {"values", "", values},       {"items", "", items},
    {"copy", "", copy}, {"get", "key! default", get}, {NULL, NULL, NULL},
};

const Builtin sequence_methods[] = {
    {"index", "value!", item_index},
    {"count", "value!", item_count},
    {"copy", "", copy},
    {NULL, NULL, NULL},
};

/* text_functions.c - splitting, replacing and padding, as Python's str does them. */
#include "text/template/text_functions.h"
#include "text/template/unicode_text.h"

/* An empty string is found before every character, and at the end. */
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

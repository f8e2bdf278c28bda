/* global_functions.c - range, dict, namespace, cycler, joiner, and what Hugging Face adds: raise_exception and strftime_now. */
#include "text/template/render.h"

#include <string.h>
#include <time.h>

enum { RANGE_MAX = 100000 }; /* items, as in Jinja's sandbox */

/* The number of items of range(start, stop, step). */
static uint64_t range_count(int64_t start, int64_t stop, int64_t step) {
    if (step > 0) return start < stop ? ((uint64_t)stop - (uint64_t)start - 1) / (uint64_t)step + 1 : 0;
    return stop < start ? ((uint64_t)start - (uint64_t)stop - 1) / (0 - (uint64_t)step) + 1 : 0;
}

static Value range(Render *r, const Call *c) {
    bool one = !given(c->at[1]);
    int64_t start = one ? 0 : value_need_int(r->w, c->at[0], "range: start"),
            stop = value_need_int(r->w, c->at[!one], "range: stop");
    int64_t step = argument_int(r, c->at[2], 1, "range: step");
    if (step == 0) work_fail(r->w, FR_ERR_FORMAT, "range: the step cannot be 0");
    uint64_t n = range_count(start, stop, step);
    if (n > RANGE_MAX) work_fail(r->w, FR_ERR_MEMORY, "a range has more than %d items, which is the limit", RANGE_MAX);
    Seq *s = seq_new(r->w, SEQ_RANGE, n);
    work_spend(r->w, n);
    s->start = start, s->stop = stop, s->step = step;
    for (uint64_t i = 0; i < n; i++) seq_add(r->w, s, value_int(start + (int64_t)i * step));
    return value_seq(s);
}

/* The dict of dict(mapping or pairs, key=value, ...). */
static Dict *make_dict(Render *r, const Call *c) {
    Dict *d = dict_new(r->w);
    if (c->n_positional > 1) work_fail(r->w, FR_ERR_FORMAT, "dict takes at most one argument without a name");
    if (c->n_positional == 1 && c->positional[0].kind == V_DICT) {
        const Dict *from = c->positional[0].dict;
        for (size_t i = 0; i < from->n; i++) dict_set(r->w, d, from->entries[i].key, from->entries[i].value);
    } else if (c->n_positional == 1) {
        const Seq *pairs = value_items(r->w, c->positional[0]);
        for (size_t i = 0; i < pairs->n; i++) {
            const Seq *pair = value_items(r->w, pairs->items[i]);
            if (pair->n != 2) work_fail(r->w, FR_ERR_FORMAT, "dict needs pairs of a key and a value");
            dict_set(r->w, d, pair->items[0], pair->items[1]);
        }
    }
    for (size_t i = 0; i < c->n_keywords; i++) dict_set(r->w, d, value_text(c->keywords[i].name), c->keywords[i].value);
    return d;
}

static Value dict(Render *r, const Call *c) { return value_dict(make_dict(r, c)); }
static Value new_namespace(Render *r, const Call *c) { return (Value){.kind = V_NAMESPACE, .dict = make_dict(r, c)}; }

static Value raise_exception(Render *r, const Call *c) {
    const Text *message = value_str(r->w, c->at[0]);
    r->was_refused = true;
    work_fail(r->w, FR_ERR_ARGUMENT, "%.*s", (int)(message->n < 400 ? message->n : 400), message->data);
}

static Value strftime_now(Render *r, const Call *c) {
    const Text *form = value_need_text(r->w, c->at[0], "strftime_now: the format");
    char copy[256], out[512];
    struct tm parts;
    time_t now = (time_t)r->time;
    if (form->n >= sizeof copy)
        work_fail(r->w, FR_ERR_MEMORY, "strftime_now: the format is longer than %zu bytes, which is the limit",
                  sizeof copy - 1);
    memcpy(copy, form->data, form->n);
    copy[form->n] = '\0';
    if (!localtime_r(&now, &parts)) work_fail(r->w, FR_ERR_INTERNAL, "the local time is unknown");
    size_t n = strftime(out, sizeof out, copy, &parts);
    return value_text(text_copy(r->w, out, n, text_has_data(form)));
}

const Builtin global_functions[] = {
    {"range", "start! stop step", range},
    {"dict", "*", dict},
    {"namespace", "*", new_namespace},
    {"raise_exception", "message!", raise_exception},
    {"strftime_now", "format!", strftime_now},
    {"cycler", "*", cycler_new},
    {"joiner", "sep", joiner_new},
    {NULL, NULL, NULL},
};

/* methods_container.c - the methods of dict, list and tuple that change nothing. */
#include "text/template/render.h"

static Value view(Render *r, const Dict *d, SeqFlavour flavour) {
    Seq *s = seq_new(r->w, flavour, d->n);
    work_spend(r->w, d->n);
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
    return c->subject; /* nothing can change it */
}

static Value get(Render *r, const Call *c) {
    value_need_hashable(r->w, c->at[0]);
    const Value *v = dict_get(r->w, c->subject.dict, c->at[0]);
    return v ? *v : given(c->at[1]) ? c->at[1] : value_none();
}

static Value index_of(Render *r, const Call *c) {
    const Seq *s = c->subject.seq;
    for (size_t i = 0; i < s->n; i++)
        if (value_equal(r->w, s->items[i], c->at[0])) return value_int((int64_t)i);
    work_fail(r->w, FR_ERR_FORMAT, "index: the value is not in the list");
}

static Value count(Render *r, const Call *c) {
    int64_t n = 0;
    for (size_t i = 0; i < c->subject.seq->n; i++) n += value_equal(r->w, c->subject.seq->items[i], c->at[0]);
    return value_int(n);
}

const Builtin dict_methods[] = {
    {"keys", "", keys}, {"values", "", values},       {"items", "", items},
    {"copy", "", copy}, {"get", "key! default", get}, {NULL, NULL, NULL},
};

const Builtin sequence_methods[] = {
    {"index", "value!", index_of},
    {"count", "value!", count},
    {"copy", "", copy},
    {NULL, NULL, NULL},
};

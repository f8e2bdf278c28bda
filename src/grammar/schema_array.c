/* schema_array.c - schemas of arrays: prefixItems (in drafts before 2020-12 an array in `items`), items, and their number. */
#include "grammar/schema.h"

#include <stdio.h>

typedef struct Items {
    const Seq *prefix; /* NULL: none */
    size_t n_prefix;
    bool has_rest;
    Value rest; /* of all items behind the prefix */
    int32_t min, max;
} Items;

static void read_items(const Schema *s, Value schema, Items *out) {
    const Value *items = schema_get(s, schema, "items"), *unique = schema_get(s, schema, "uniqueItems");
    if (unique && !(unique->kind == V_BOOL && !unique->b)) schema_fail(s, "'uniqueItems' is not supported");
    *out = (Items){.prefix = schema_list(s, schema, "prefixItems"), .max = EXPR_UNBOUNDED, .rest = value_bool(true)};
    if (!out->prefix && items && items->kind == V_SEQ) {
        out->prefix = items->seq;
        items = schema_get(s, schema, "additionalItems");
    } else if (schema_get(s, schema, "additionalItems")) schema_fail(s, "'additionalItems' needs an array in 'items'");
    if (items) out->rest = *items;
    out->has_rest = out->rest.kind != V_BOOL || out->rest.b;
    out->n_prefix = out->prefix ? out->prefix->n : 0;
    schema_count(s, schema, "minItems", &out->min);
    schema_count(s, schema, "maxItems", &out->max);
}

static const Expr *with_comma(Schema *s, const Expr *item) {
    return expr_seq_of3(s->w, expr_literal(s->w, ","), schema_space(s), item);
}

/* Items behind n that have been written, and the bracket. */
static const Expr *rest_of_array(Schema *s, const Items *items, int32_t n, const Expr *item) {
    Work *w = s->w;
    const Expr *bracket = expr_literal(w, "]"), *end = n ? expr_seq_of(w, schema_space(s), bracket) : bracket;
    int32_t min = items->min > n ? items->min - n : 0, max = items->max < 0 ? items->max : items->max - n;
    if (!item || max == 0) return min > 0 ? expr_nothing(w) : end;
    if (max > 0 && max < min) return expr_nothing(w);
    if (n) return expr_seq_of(w, expr_repeat(w, with_comma(s, item), min, max), end);
    const Expr *more = expr_repeat(w, with_comma(s, item), min > 0 ? min - 1 : 0, max < 0 ? max : max - 1);
    Expr *some = expr_seq(w);
    expr_add(w, some, item);
    expr_add(w, some, more);
    expr_add(w, some, schema_space(s));
    expr_add(w, some, bracket);
    return min > 0 ? some : expr_alt_of(w, end, some);
}

/* An item is built once, however often it is written. */
static const Expr *item_rule(Schema *s, const char *keyword, const char *number, Value schema) {
    int32_t rule = expr_add_rule(s->g, "an item");
    const Expr *body = schema_below(s, keyword, number, schema);
    s->g->rules[rule].body = body;
    return expr_rule(s->w, rule);
}

const Expr *schema_array(Schema *s, Value schema) {
    Items items;
    Work *w = s->w;
    read_items(s, schema, &items);
    const Expr *item = items.has_rest ? item_rule(s, "items", NULL, items.rest) : NULL, *rest = NULL;
    size_t n = items.n_prefix;
    if (items.max >= 0 && (size_t)items.max < n) n = (size_t)items.max;
    rest = rest_of_array(s, &items, (int32_t)n, item);
    while (n-- > 0) {
        char number[24];
        snprintf(number, sizeof number, "%zu", n);
        const Expr *one = item_rule(s, "prefixItems", number, items.prefix->items[n]);
        const Expr *further = expr_seq_of(w, n ? with_comma(s, one) : one, rest);
        const Expr *bracket = expr_literal(w, "]"), *end = n ? expr_seq_of(w, schema_space(s), bracket) : bracket;
        int32_t rule = expr_add_rule(s->g, "items");
        s->g->rules[rule].body = (int32_t)n >= items.min ? expr_alt_of(w, end, further) : further;
        rest = expr_rule(w, rule);
    }
    return expr_seq_of3(w, expr_literal(w, "["), schema_space(s), rest);
}

/* schema_containers.c - schemas of objects, and of arrays: prefixItems (in drafts before 2020-12 an array in `items`),
 * items, and their number.
 *
 * Members come in the order of `properties`; those that are not required may be left out. There are two rules for each
 * name: `rest` is for the case that no member has been written before, and `after` for the case that one has been, in
 * which a comma comes first.
 *
 *     rest 0 ::= member 0  after 1 | rest 1          the second only if member 0 is not required
 *     after 0 ::= "," member 0  after 1 | after 1
 *
 * The last two rules write further members, if they are allowed, and the brace. The name of a further member must
 * differ from those in `properties`: it is read by a trie of these names from which every other name departs. It is
 * written with the shortest escapes only, so that no name can be written in a second way. */
#include "grammar/schema.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Member {
    const Text *name;
    Value schema;
    bool is_required;
} Member;

typedef struct Members {
    Member *at; /* [n] */
    size_t n, capacity;
    const Expr *further; /* one further member, with name and value; NULL: none is allowed */
} Members;

static void add_member(Schema *s, Members *m, Member member) {
    if (m->n == m->capacity) {
        size_t capacity = m->capacity ? 2 * m->capacity : 16;
        m->at = work_grow(s->w, m->at, m->n * sizeof *m->at, capacity * sizeof *m->at);
        m->capacity = capacity;
    }
    m->at[m->n++] = member;
}

/* ---- names that are not in a list ------------------------------------------------------------------------ */

static const CodeSet *name_characters(Schema *s) {
    CodeSet *plain = work_alloc(s->w, sizeof *plain);
    code_set_add(s->w, plain, 0, CODE_MAX);
    return plain;
}

static int by_text(const void *x, const void *y) {
    const Member *a = x, *b = y;
    return text_order(a->name, b->name);
}

static uint32_t code_at(Schema *s, const Text *name, size_t at, size_t *next) {
    Cursor c = {.w = s->w, .text = name->data, .n = name->n, .at = at, .what = "a name of the schema"};
    uint32_t code = cursor_code(&c);
    *next = c.at;
    return code;
}

/* Returns the ends of names, with the closing quote, that are none of the names of members[0..n). These are sorted, and
 * the name that is being written has their first `at` bytes. `free` matches any end. */
static const Expr *other_names(Schema *s, const Member *members, size_t n, size_t at, const Expr *free, int depth) {
    Work *w = s->w;
    Expr *alt = expr_alt(w);
    CodeSet taken = {0};
    size_t i = 0, next;
    if (depth > 100)
        schema_fail(s, "a name is longer than 100 characters, which is the limit beside additionalProperties");
    while (i < n && members[i].name->n == at) i++; /* a name of the list ends here */
    if (i == 0) expr_add(w, alt, expr_literal(w, "\""));
    while (i < n) {
        uint32_t code = code_at(s, members[i].name, at, &next);
        size_t first = i, end;
        while (i < n && code_at(s, members[i].name, at, &end) == code) i++;
        CodeSet one = {0};
        code_set_add(w, &one, code, code);
        code_set_add(w, &taken, code, code);
        expr_add(
            w, alt,
            expr_seq_of(w, json_character(w, &one), other_names(s, members + first, i - first, next, free, depth + 1)));
    }
    CodeSet others = code_set_minus(w, name_characters(s), &taken);
    expr_add(w, alt, expr_seq_of(w, json_character(w, &others), free));
    return alt;
}

static const Expr *name_besides(Schema *s, const Members *m) {
    Work *w = s->w;
    const Expr *characters = expr_repeat(w, json_character(w, name_characters(s)), 0, EXPR_UNBOUNDED);
    int32_t rule = expr_add_rule(s->g, "the rest of a name");
    s->g->rules[rule].body = expr_seq_of(w, characters, expr_literal(w, "\""));
    Member *sorted = work_array(w, m->n, sizeof *sorted);
    if (m->n) {
        memcpy(sorted, m->at, m->n * sizeof *sorted);
        qsort(sorted, m->n, sizeof *sorted, by_text);
    }
    return expr_seq_of(w, expr_literal(w, "\""), other_names(s, sorted, m->n, 0, expr_rule(w, rule), 0));
}

/* ---- members --------------------------------------------------------------------------------------------- */

static const Expr *named_value(Schema *s, const Expr *name, const Expr *value) {
    Expr *seq = expr_seq(s->w);
    expr_add(s->w, seq, name);
    expr_add(s->w, seq, expr_literal(s->w, ":"));
    expr_add(s->w, seq, schema_space(s));
    expr_add(s->w, seq, value);
    return seq;
}

/* Collects the names in `required`, each once and in their order. */
static Dict *required_names(const Schema *s, Value schema) {
    Dict *names = dict_new(s->w);
    const Seq *required = schema_list(s, schema, "required");
    for (size_t i = 0; required && i < required->n; i++) {
        if (!is_text(required->items[i])) schema_fail(s, "'required' must be an array of strings");
        dict_set(s->w, names, required->items[i], value_bool(true));
    }
    return names;
}

/* Lists the names of `properties`, and then those that are only in `required`. */
static void list_members(Schema *s, Value schema, Members *m, const Value *additional) {
    const Dict *properties = schema_dict(s, schema, "properties"), *required = required_names(s, schema);
    for (size_t i = 0; properties && i < properties->n; i++) {
        const DictEntry *e = &properties->entries[i];
        add_member(s, m, (Member){e->key.text, e->value, dict_get(s->w, required, e->key) != NULL});
    }
    for (size_t i = 0; i < required->n; i++) {
        Value name = required->entries[i].key;
        if (properties && dict_get(s->w, properties, name)) continue;
        add_member(s, m, (Member){name.text, additional ? *additional : value_bool(true), true});
    }
}

static const Expr *further_by_pattern(Schema *s, const Dict *patterns) {
    Expr *alt = expr_alt(s->w);
    if (patterns->n > 1) schema_fail(s, "more than one pattern in 'patternProperties' is not supported");
    for (size_t i = 0; i < patterns->n; i++) {
        const Text *pattern = patterns->entries[i].key.text;
        const Expr *name = expr_seq_of3(s->w, expr_literal(s->w, "\""),
                                        regex_expr(s->g, pattern->data, pattern->n, true), expr_literal(s->w, "\""));
        expr_add(s->w, alt,
                 named_value(s, name, schema_below(s, "patternProperties", "0", patterns->entries[i].value)));
    }
    return alt;
}

/* Returns the expression of one member that is not named. NULL: none is allowed. */
static const Expr *further_members(Schema *s, Value schema, const Members *m, const Value *additional) {
    const Dict *patterns = schema_dict(s, schema, "patternProperties");
    const Value *names = schema_get(s, schema, "propertyNames");
    if (names && !(names->kind == V_BOOL && names->b))
        schema_fail(s, "'propertyNames' is not supported; use patternProperties");
    if (patterns) {
        if (m->n > 0) schema_fail(s, "'patternProperties' beside names in 'properties' or 'required' is not supported");
        if (additional && !(additional->kind == V_BOOL && !additional->b))
            schema_fail(s, "'patternProperties' is supported with \"additionalProperties\": false, or without it");
        return further_by_pattern(s, patterns);
    }
    if (additional ? additional->kind == V_BOOL && !additional->b : m->n > 0) return NULL;
    const Expr *value = additional ? schema_below(s, "additionalProperties", NULL, *additional) : schema_any(s);
    return named_value(s, name_besides(s, m), value);
}

/* ---- the object ------------------------------------------------------------------------------------------ */

/* Matches min to max further members and the brace. is_first: no member has been written before. */
static const Expr *end_of_object(Schema *s, const Expr *further, bool is_first, int32_t min, int32_t max) {
    Work *w = s->w;
    const Expr *brace = expr_literal(w, "}"), *end = expr_seq_of(w, schema_space(s), brace);
    if (!further || max == 0) return is_first ? brace : end;
    const Expr *comma = expr_seq_of3(w, expr_literal(w, ","), schema_space(s), further);
    if (!is_first) return expr_seq_of(w, expr_repeat(w, comma, min, max), end);
    const Expr *rest = expr_repeat(w, comma, min > 0 ? min - 1 : 0, max < 0 ? max : max - 1);
    const Expr *some = expr_seq_of3(w, further, rest, end);
    return min > 0 ? some : expr_alt_of(w, brace, some);
}

/* Makes the rules that the head of this file describes, from the last member to the first. */
static const Expr *all_members(Schema *s, const Members *m, int32_t min, int32_t max) {
    Work *w = s->w;
    int32_t rest = expr_add_rule(s->g, "the end of an object"), after = expr_add_rule(s->g, "the end of an object");
    s->g->rules[rest].body = end_of_object(s, m->further, true, min, max);
    s->g->rules[after].body = end_of_object(s, m->further, false, 0, EXPR_UNBOUNDED);
    for (size_t i = m->n; i-- > 0;) {
        char name[64];
        snprintf(name, sizeof name, "%.*s", m->at[i].name->n < 50 ? (int)m->at[i].name->n : 50, m->at[i].name->data);
        const Expr *value = schema_below(s, "properties", name, m->at[i].schema);
        const Expr *member = named_value(s, schema_text_literal(s, m->at[i].name), value);
        int32_t written = expr_add_rule(s->g, "a member");
        s->g->rules[written].body = expr_seq_of(w, member, expr_rule(w, after));
        const Expr *first = expr_rule(w, written),
                   *later = expr_seq_of3(w, expr_literal(w, ","), schema_space(s), expr_rule(w, written));
        int32_t next_rest = expr_add_rule(s->g, "members"), next_after = expr_add_rule(s->g, "members");
        s->g->rules[next_rest].body = m->at[i].is_required ? first : expr_alt_of(w, first, expr_rule(w, rest));
        s->g->rules[next_after].body = m->at[i].is_required ? later : expr_alt_of(w, later, expr_rule(w, after));
        rest = next_rest;
        after = next_after;
    }
    return expr_rule(w, rest);
}

/* minProperties and maxProperties are exact where no member is named. Where they follow from `required` they are
 * ignored. */
static void read_counts(Schema *s, Value schema, const Members *m, int32_t *min, int32_t *max) {
    size_t n_required = 0;
    for (size_t i = 0; i < m->n; i++) n_required += m->at[i].is_required;
    bool has_min = schema_count(s, schema, "minProperties", min),
         has_max = schema_count(s, schema, "maxProperties", max);
    if (has_min && (size_t)*min <= n_required) *min = 0;
    if (has_max && !m->further && (size_t)*max >= m->n) *max = EXPR_UNBOUNDED;
    if (*min > 1) /* two members might have the same name, and count as one */
        schema_fail(s,
                    "'minProperties' above the number of required members, or above 1 without any, is not supported");
    if ((*min > 0 || *max != EXPR_UNBOUNDED) && m->n > 0)
        schema_fail(
            s,
            "'minProperties' and 'maxProperties' beside 'properties' are not supported unless 'required' implies them");
}

const Expr *schema_object(Schema *s, Value schema) {
    Members m = {0};
    int32_t min = 0, max = EXPR_UNBOUNDED;
    const Value *additional = schema_get(s, schema, "additionalProperties");
    list_members(s, schema, &m, additional);
    m.further = further_members(s, schema, &m, additional);
    read_counts(s, schema, &m, &min, &max);
    return expr_seq_of3(s->w, expr_literal(s->w, "{"), schema_space(s), all_members(s, &m, min, max));
}

/* ---- arrays ---------------------------------------------------------------------------------------------- */

typedef struct Items {
    const Seq *prefix; /* NULL: none */
    size_t n_prefix;
    bool has_rest; /* items may follow the prefix */
    Value rest;    /* the schema of all items after the prefix */
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

/* Matches the items that follow the first n, and the bracket. */
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

/* Makes a rule of an item, so that it is built once, however often it is repeated. */
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

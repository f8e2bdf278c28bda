/* constraint.c - from the fields of OpenAI, llama.cpp and vLLM to a compiled grammar.
 *
 *     "response_format": {"type": "json_object"}                                      any JSON object
 *     "response_format": {"type": "json_schema", "json_schema": {"schema": {...}}}    OpenAI's chats, "strict" or not
 *     "text": {"format": {"type": "json_schema", "schema": {...}}}                    responses
 *     "json_schema": {...}, "grammar": "root ::= ..."                                 llama.cpp
 *     "structured_outputs": {"json" | "regex" | "choice" | "grammar" | "json_object": ...}, "guided_...": ...     vLLM
 *
 * The text of a schema is written anew from its values, so that texts that differ only in white space are compiled
 * once. */
#include "server/api/plan.h"

#include "cli/command.h"

#include <string.h>

enum { TEXT_MAX_BYTES = 64 << 20 };
static const char any_object[] = "{\"type\":\"object\"}";

/* What the fields ask for: one of schema, choices and text. */
typedef struct Wanted {
    const char *field; /* the field that asks for it; NULL: none */
    fr_grammar_kind kind;
    const json_t *schema, *choices;
    const char *text;
    bool is_strict; /* a schema that cannot be kept exactly is refused */
    bool is_format; /* the field is `format` */
} Wanted;

static int want(Wanted *w, Wanted one, ApiError *error) {
    if (w->field)
        return api_refuse(error, 400, "invalid_value", one.field, "'%s' and '%s' exclude each other: pass one of them",
                          w->field, one.field);
    one.is_strict = w->is_strict;
    *w = one;
    return 0;
}

/* ---- fields ---------------------------------------------------------------------------------------------------- */

/* Notes a schema: an object, or an object as text. schema may be NULL. */
static int want_schema(Wanted *w, const char *field, const json_t *schema, ApiError *error) {
    if (!schema || json_is_null(schema)) return 0;
    if (json_is_string(schema)) return want(w, (Wanted){.field = field, .text = json_string_value(schema)}, error);
    if (!json_is_object(schema))
        return api_refuse(error, 400, "invalid_type", field, "'%s': the JSON schema must be an object", field);
    return want(w, (Wanted){.field = field, .schema = schema}, error);
}

static int want_text(Wanted *w, const char *field, fr_grammar_kind kind, const char *text, ApiError *error) {
    if (!text || !*text) return 0;
    return want(w, (Wanted){.field = field, .kind = kind, .text = text}, error);
}

static int want_choice(Wanted *w, const char *field, const json_t *choices, ApiError *error) {
    size_t n = json_array_size(choices);
    bool fits = !choices || n > 0;
    for (size_t i = 0; i < n && fits; i++) fits = json_is_string(json_array_get(choices, i));
    if (!fits) return api_refuse(error, 400, "invalid_type", field, "'%s' must be a list of strings", field);
    return choices ? want(w, (Wanted){.field = field, .kind = FR_GRAMMAR_GBNF, .choices = choices}, error) : 0;
}

static int want_format(Wanted *w, const ConstraintFields *f, ApiError *error) {
    const char *field = f->format_name ? f->format_name : "response_format";
    const char *type = json_string_value(json_object_get(f->format, "type"));
    const json_t *described = json_object_get(f->format, "json_schema");
    const json_t *schema = json_object_get(described ? described : f->format, "schema");
    bool is_schema = type && strcmp(type, "json_schema") == 0;
    if (!f->format || (type && strcmp(type, "text") == 0)) return 0;
    if (!is_schema && !(type && strcmp(type, "json_object") == 0))
        return api_refuse(error, 400, "invalid_value", field,
                          "'%s' must be an object whose 'type' is \"text\", \"json_object\" or \"json_schema\"", field);
    w->is_strict = json_is_true(json_object_get(described ? described : f->format, "strict"));
    if (schema && !json_is_null(schema)) return want_schema(w, field, schema, error);
    if (is_schema && !json_is_object(described))
        return api_refuse(error, 400, "missing_field", field, "'%s' of type \"json_schema\" must have a 'schema'",
                          field);
    return want_text(w, field, FR_GRAMMAR_JSON_SCHEMA, any_object, error);
}

static int want_structured(Wanted *w, const json_t *outputs, ApiError *error) {
    static const char field[] = "structured_outputs";
    const char *name;
    json_t *value;
    int status = 0;
    if (outputs && !json_is_object(outputs))
        return api_refuse(error, 400, "invalid_type", field, "'%s' must be an object", field);
    json_object_foreach((json_t *)(uintptr_t)outputs, name, value) {
        const char *text = json_string_value(value);
        if (status || json_is_null(value) || json_is_false(value)) continue;
        if (strcmp(name, "json") == 0) status = want_schema(w, field, value, error);
        else if (strcmp(name, "choice") == 0) status = want_choice(w, field, value, error);
        else if (strcmp(name, "regex") == 0 && text) status = want_text(w, field, FR_GRAMMAR_REGEX, text, error);
        else if (strcmp(name, "grammar") == 0 && text) status = want_text(w, field, FR_GRAMMAR_GBNF, text, error);
        else if (strcmp(name, "json_object") == 0 && json_is_true(value))
            status = want_text(w, field, FR_GRAMMAR_JSON_SCHEMA, any_object, error);
        else
            status = api_refuse(error, 400, "unsupported_parameter", field,
                                "'%s.%.40s' is not supported, or has a value of the wrong type", field, name);
    }
    return status;
}

static int find_wanted(Wanted *w, const ConstraintFields *f, ApiError *error) {
    if (want_format(w, f, error)) return -1;
    w->is_format = w->field != NULL;
    if (want_schema(w, "json_schema", f->json_schema, error)) return -1;
    if (want_text(w, "grammar", FR_GRAMMAR_GBNF, f->grammar, error)) return -1;
    if (want_structured(w, f->structured_outputs, error)) return -1;
    if (want_schema(w, "guided_json", f->guided_json, error)) return -1;
    if (want_text(w, "guided_regex", FR_GRAMMAR_REGEX, f->guided_regex, error)) return -1;
    if (want_choice(w, "guided_choice", f->guided_choice, error)) return -1;
    return want_text(w, "guided_grammar", FR_GRAMMAR_GBNF, f->guided_grammar, error);
}

/* ---- texts ------------------------------------------------------------------------------------------------------- */

static void write_value(JsonOut *out, const json_t *value) {
    const char *name;
    json_t *member;
    size_t i;
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        json_out_mark(out, '{');
        json_object_foreach((json_t *)(uintptr_t)value, name, member) {
            json_out_key(out, name);
            write_value(out, member);
        }
        json_out_mark(out, '}');
        return;
    case JSON_ARRAY:
        json_out_mark(out, '[');
        json_array_foreach(value, i, member) write_value(out, member);
        json_out_mark(out, ']');
        return;
    case JSON_STRING: json_out_bytes(out, json_string_value(value), json_string_length(value)); return;
    case JSON_INTEGER: json_out_int(out, json_integer_value(value)); return;
    case JSON_REAL: json_out_exact(out, json_real_value(value)); return;
    case JSON_NULL: json_out_null(out); return;
    default: json_out_bool(out, json_is_true(value));
    }
}

void constraint_write_value(Buf *out, const json_t *value) {
    JsonOut j = json_out_begin(out);
    write_value(&j, value);
}

bool constraint_write_literal(Buf *out, const char *text, size_t n) {
    bool fits = buf_append(out, "\"", 1);
    for (size_t i = 0; i < n && fits; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c < 0x20 || c == '"' || c == '\\') fits = buf_printf(out, "\\x%02X", c);
        else fits = buf_append(out, &text[i], 1);
    }
    return fits && buf_append(out, "\"", 1);
}

static bool write_choices(Buf *out, const json_t *choices) {
    bool fits = true;
    for (size_t i = 0; i < json_array_size(choices) && fits; i++) {
        const json_t *choice = json_array_get(choices, i);
        fits = buf_puts(out, i ? " | " : "root ::= ") &&
               constraint_write_literal(out, json_string_value(choice), json_string_length(choice));
    }
    return fits;
}

/* Writes the text to compile. *text is in the buffer or in the body. False: memory ran out. */
static bool write_text(const Wanted *w, Buf *buffer, const char **text, size_t *n) {
    JsonOut out = json_out_begin(buffer);
    bool fits = true;
    if (w->schema) write_value(&out, w->schema);
    else if (w->choices) fits = write_choices(buffer, w->choices);
    *text = w->text ? w->text : buffer->data;
    *n = w->text ? strlen(w->text) : buffer->n;
    return fits && !out.failed;
}

static int refuse_grammar(const Plan *plan, const Wanted *w, bool is_full, const fr_error *why, ApiError *error) {
    bool is_stopped = why->code == FR_ERR_CANCELLED && plan->watch.n_looks <= COMPILE_MAX_LOOKS;
    return api_refuse(
        error, is_full || is_stopped ? 503 : 400,
        w->kind == FR_GRAMMAR_JSON_SCHEMA ? "invalid_json_schema" : "invalid_grammar", w->field, "'%s': %s", w->field,
        why->code != FR_ERR_CANCELLED ? why->message
        : is_stopped                  ? "the server was stopped"
                     : "the grammars of this request need more than 40 million steps together, which is the limit");
}

/* It allocates no JSON values, so running out of their memory cannot lose the buffer (json_memory.h). */
static int compile(Plan *plan, GrammarCache *cache, const Wanted *w, ApiError *error) {
    Buf buffer = {.max_bytes = TEXT_MAX_BYTES};
    const char *text;
    size_t n;
    bool is_full = false;
    fr_error why;
    int status = write_text(w, &buffer, &text, &n) ? 0 : api_refuse(error, 500, NULL, NULL, "memory ran out");
    plan->grammars = cache;
    if (!status &&
        grammar_cache_get(cache, &plan->grammar, plan->model, w->kind, text, n, &plan->watch, &is_full, &why))
        status = refuse_grammar(plan, w, is_full, &why, error);
    const char *notice = fr_grammar_notice(cached_grammar(plan->grammar));
    if (!status && w->is_strict && *notice)
        status = api_refuse(error, 400, "invalid_json_schema", w->field, "'%s': 'strict' cannot be kept: %s", w->field,
                            notice);
    buf_free(&buffer);
    return status;
}

int constraint_read(Plan *plan, GrammarCache *cache, const ConstraintFields *f, ApiError *error) {
    Wanted w = {.field = NULL};
    if (find_wanted(&w, f, error)) return -1;
    if (w.field && plan->ignore_eos)
        return api_refuse(error, 400, "invalid_value", "ignore_eos",
                          "'ignore_eos' and '%s' exclude each other: the grammar decides where the text ends", w.field);
    plan->is_format = w.is_format;
    return w.field ? compile(plan, cache, &w, error) : 0;
}

int constraint_set_grammar(Plan *plan, GrammarCache *cache, const Buf *text, const char *field, ApiError *error) {
    if (!text->data) return api_refuse(error, 500, NULL, NULL, "memory ran out");
    return compile(plan, cache, &(Wanted){.field = field, .kind = FR_GRAMMAR_GBNF, .text = text->data}, error);
}

/* call_scan.c - finds "name" and "arguments" (or "parameters") in {"name": ..., "arguments": {...}} byte by byte.
 *
 * Arguments are handed on as they are written and are not checked: a model may write JSON that is none, and the client,
 * which knows the function, must be prepared for that anyway. Some models write them as a string that contains JSON; its
 * escapes are undone. */
#include "server/answer/call_scan.h"

#include <string.h>

void call_scan_begin(CallScan *s, const char *name) {
    Buf arguments = s->arguments;
    *s = (CallScan){.arguments = arguments};
    buf_clear(&s->arguments);
    s->arguments.max_bytes = 64 << 20;
    if (!name) return;
    s->n_name = strnlen(name, CALL_NAME_MAX - 1);
    memcpy(s->name, name, s->n_name);
    s->has_name = true;
    s->value = CALL_ARGUMENTS;
}

void call_scan_free(CallScan *s) { buf_free(&s->arguments); }

static bool add_argument(CallScan *s, char c) {
    s->has_arguments = true;
    return buf_append(&s->arguments, &c, 1);
}

static CallValue value_of_key(const CallScan *s) {
    static const struct {
        const char *key;
        CallValue value;
    } keys[] = {{"name", CALL_NAME}, {"arguments", CALL_ARGUMENTS}, {"parameters", CALL_ARGUMENTS}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strcmp(s->key, keys[i].key) == 0) return keys[i].value;
    return CALL_OTHER;
}

/* A byte of arguments that are a string, without its quotes. */
static bool add_unescaped(CallScan *s, char c, bool was_escaped) {
    static const char escapes[] = "n\nt\tr\rb\bf\f";
    if (!was_escaped) return c == '\\' || add_argument(s, c);
    const char *at = c ? strchr("ntrbf", c) : NULL;
    if (c == 'u' && !add_argument(s, '\\')) return false; /* \u00e4 is the same inside a string of the JSON */
    return add_argument(s, at ? escapes[2 * (at - "ntrbf") + 1] : c);
}

static bool string_byte(CallScan *s, char c) {
    bool was_escaped = s->is_escaped, ends = c == '"' && !was_escaped;
    s->is_escaped = c == '\\' && !was_escaped;
    if (ends) s->in_string = false;
    if (s->is_key) {
        if (ends) s->is_key = false;
        else if (s->n_key < CALL_KEY_MAX - 1) s->key[s->n_key++] = c;
        return true;
    }
    if (s->value == CALL_NAME && s->depth == 1) {
        if (ends) s->has_name = s->n_name > 0;
        else if (s->n_name < CALL_NAME_MAX - 1) s->name[s->n_name++] = c;
    }
    if (s->value != CALL_ARGUMENTS) return true;
    if (!s->arguments_are_text) return add_argument(s, c);
    return ends || add_unescaped(s, c, was_escaped);
}

static bool begin_string(CallScan *s, bool whole) {
    s->in_string = true;
    s->is_key = s->depth == 1 && s->value == CALL_OTHER && s->n_key == 0 && !whole;
    if (s->value == CALL_NAME && s->depth == 1) s->n_name = 0;
    if (s->value != CALL_ARGUMENTS) return true;
    s->arguments_are_text = s->depth == 1 && !whole;
    return s->arguments_are_text || add_argument(s, '"');
}

/* Whether the object is the arguments itself: then its own brackets belong to them. */
static bool is_whole(const CallScan *s) { return s->value == CALL_ARGUMENTS && s->n_key == 0; }

bool call_scan_byte(CallScan *s, char c) {
    bool whole = is_whole(s), opens = c == '{' || c == '[', closes = c == '}' || c == ']';
    int before = s->depth;
    if (s->in_string) return string_byte(s, c);
    if (c == '"') return begin_string(s, whole);
    s->depth += opens - closes;
    int deepest = before > s->depth ? before : s->depth;
    if (whole || deepest > 1) return s->value != CALL_ARGUMENTS || add_argument(s, c);
    if (c == ':') s->value = value_of_key(s);
    else if (c == ',') {
        s->value = CALL_OTHER;
        s->n_key = 0;
        memset(s->key, 0, sizeof s->key);
    } else if (s->value == CALL_ARGUMENTS && !closes && !strchr(" \t\r\n", c)) return add_argument(s, c); /* null, 1 */
    return true;
}

/* answer_reader.c - the state machine that separates reasoning, text and calls.
 *
 * Text that could become a mark is held back until it is one or can no longer become one. A call begins when its name
 * and the first byte of its arguments are known. What looks like a call but turns out not to be one is text, with all
 * its marks, so that nothing that the model wrote is lost. White space before a mark, and around reasoning, belongs to
 * the form and is dropped. */
#include "cli/answer_reader.h"

#include <stdlib.h>
#include <string.h>

enum { ITEM_TEXT_MAX = 64 << 20, NAME_FORM_MAX = 256 };

/* ---- one call -------------------------------------------------------------------------------------------
 *
 * A CallScan finds "name" and "arguments" (or "parameters") in {"name": ..., "arguments": {...}} byte by byte.
 * Arguments are passed on as they are written and are not checked: a model may write invalid JSON, and the client,
 * which knows the function, must be prepared for that anyway. Some models write them as a string that contains JSON,
 * whose escapes are removed. */

/* If name is not NULL, the object is the arguments of a call of that name. */
static void call_scan_begin(CallScan *s, const char *name) {
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

static void call_scan_free(CallScan *s) { buf_free(&s->arguments); }

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

/* Adds a byte of arguments that are written as a string, after the removal of its escape. */
static bool add_unescaped(CallScan *s, char c, bool was_escaped) {
    static const char escapes[] = "n\nt\tr\rb\bf\f";
    if (!was_escaped) return c == '\\' || add_argument(s, c);
    const char *at = c ? strchr("ntrbf", c) : NULL;
    if (c == 'u' && !add_argument(s, '\\')) return false; /* \u00e4 means the same inside a string of the JSON */
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

/* Returns whether the object itself is the arguments, so that its own brackets belong to them. */
static bool is_whole(const CallScan *s) { return s->value == CALL_ARGUMENTS && s->n_key == 0; }

/* Reads the next byte of the object, which is complete when depth is 0 again. False: memory ran out. */
static bool call_scan_byte(CallScan *s, char c) {
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

/* Returns whether messages are read (harmony.c): the answer is not just text. */
static bool is_harmony(const AnswerReader *r) {
    const AnswerForm *f = &r->form;
    return f->marks->next_message && (f->tools || f->reasons || f->is_reasoning);
}

void answer_reader_init(AnswerReader *r, const AnswerForm *form) {
    *r = (AnswerReader){.form = *form, .held.max_bytes = ITEM_TEXT_MAX};
    if (!form->marks) r->form.marks = reasoning_marks_of(NULL);
    if (form->is_reasoning) r->state = READS_REASONING;
    else if (!form->tools && !form->reasons) r->state = READS_TEXT;
    else if (is_harmony(r) && form->has_reasoned) r->state = READS_TEXT;
    r->drops_space = form->is_reasoning;
}

void answer_reader_free(AnswerReader *r) {
    for (int i = 0; i < r->n_items; i++) buf_free(&r->items[i].text);
    free(r->items);
    buf_free(&r->held);
    call_scan_free(&r->scan);
    *r = (AnswerReader){.items = NULL};
}

/* ---- items -------------------------------------------------------------------------------------------- */

static void tell(AnswerReader *r, AnswerEvent event, const AnswerItem *item, const char *bytes, size_t n) {
    if (r->sink && !r->failed) r->sink(r->user, event, item, bytes, n);
}

static void tell_growth(AnswerReader *r) {
    if (!r->is_open) return;
    AnswerItem *item = &r->items[r->n_items - 1];
    if (item->text.n > item->n_told)
        tell(r, ANSWER_GROWS, item, item->text.data + item->n_told, item->text.n - item->n_told);
    item->n_told = item->text.n;
}

void answer_reader_end_item(AnswerReader *r) {
    if (!r->is_open) return;
    tell_growth(r);
    r->is_open = false;
    tell(r, ANSWER_ENDS, &r->items[r->n_items - 1], NULL, 0);
}

void answer_reader_begin_item(AnswerReader *r, AnswerKind kind, const char *name) {
    answer_reader_end_item(r);
    if (r->n_items == r->capacity) {
        int capacity = r->capacity ? 2 * r->capacity : 4;
        AnswerItem *items = realloc(r->items, (size_t)capacity * sizeof *items);
        if (!items) {
            r->failed = true;
            return;
        }
        r->items = items;
        r->capacity = capacity;
    }
    AnswerItem *item = &r->items[r->n_items];
    *item = (AnswerItem){.kind = kind, .index = r->n_items, .i_call = r->n_calls, .text.max_bytes = ITEM_TEXT_MAX};
    if (name) strncpy(item->name, name, sizeof item->name - 1);
    if (!buf_append(&item->text, "", 0)) r->failed = true;
    if (kind == ANSWER_CALL) r->n_calls++;
    r->n_items++;
    r->is_open = true;
    tell(r, ANSWER_BEGINS, item, NULL, 0);
}

void answer_reader_put(AnswerReader *r, AnswerKind kind, const char *bytes, size_t n) {
    if (n == 0 || r->failed) return;
    if (!r->is_open || r->items[r->n_items - 1].kind != kind) answer_reader_begin_item(r, kind, NULL);
    if (!r->failed && !buf_append(&r->items[r->n_items - 1].text, bytes, n)) r->failed = true;
}

/* ---- marks -------------------------------------------------------------------------------------------- */

typedef enum Match { NO_MATCH, PART_MATCH, WHOLE_MATCH } Match;

static Match match(const char *text, size_t n, const char *mark) {
    size_t n_mark = mark ? strlen(mark) : 0;
    if (!mark || memcmp(text, mark, n < n_mark ? n : n_mark) != 0) return NO_MATCH;
    return n >= n_mark ? WHOLE_MATCH : PART_MATCH;
}

static bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

static void drop_held(AnswerReader *r, size_t n) {
    memmove(r->held.data, r->held.data + n, r->held.n - n);
    r->held.n -= n;
}

/* ---- reasoning and text --------------------------------------------------------------------------------- */

/* Returns whether a mark is at the beginning of `rest`, which is the held text after its white space; *mark is that
 * mark. */
static Match find_mark(const AnswerReader *r, const char *rest, size_t n, const char **mark) {
    const AnswerForm *f = &r->form;
    Match m = NO_MATCH;
    *mark = f->marks->end;
    if (r->state == READS_REASONING) return match(rest, n, *mark);
    if (r->state == READS_BEGINNING && f->reasons) m = match(rest, n, *mark = f->marks->begin);
    if (m != NO_MATCH || !f->tools) return m;
    *mark = f->tools->begin;
    if ((m = match(rest, n, *mark)) != NO_MATCH) return m;
    *mark = "{";
    return r->state == READS_BEGINNING && f->tools->is_bare ? match(rest, n, "{") : NO_MATCH;
}

static void take_mark(AnswerReader *r, const char *mark) {
    const ReasoningMarks *marks = r->form.marks;
    r->drops_space = mark == marks->begin || mark == marks->end;
    if (r->drops_space) {
        answer_reader_end_item(r);
        buf_clear(&r->held);
        r->state = mark == marks->begin ? READS_REASONING : READS_BEGINNING;
        if (mark == marks->end) r->n_reason = r->n_read;
        r->form.reasons = false;
        return;
    }
    r->state = READS_CALLS;
    r->n_mark = strcmp(mark, "{") == 0 ? 0 : r->held.n; /* including the white space before it */
}

static void read_calls(AnswerReader *r);

static void begin_text(AnswerReader *r) {
    r->state = READS_TEXT;
    if (r->form.is_either) r->form.tools = NULL;
}

/* Passes on what certainly is text or reasoning. */
static void read_text(AnswerReader *r) {
    while (r->held.n > 0 && (r->state <= READS_TEXT)) {
        const char *mark, *held = r->held.data;
        size_t n_space = 0;
        while (n_space < r->held.n && is_space(held[n_space])) n_space++;
        if (n_space == r->held.n) return;
        Match m = find_mark(r, held + n_space, r->held.n - n_space, &mark);
        if (m == PART_MATCH) return;
        if (m == WHOLE_MATCH) {
            take_mark(r, mark);
            if (r->state == READS_CALLS) read_calls(r);
            continue;
        }
        size_t skip = r->drops_space ? n_space : 0;
        answer_reader_put(r, r->state == READS_REASONING ? ANSWER_REASONING : ANSWER_TEXT, held + skip,
                          n_space + 1 - skip);
        r->drops_space = false;
        if (r->state == READS_BEGINNING) begin_text(r);
        drop_held(r, n_space + 1);
    }
}

/* ---- calls -------------------------------------------------------------------------------------------- */

/* What is held from `from` on turned out not to be a call: all of it is text. */
static void give_up_calls(AnswerReader *r, size_t from) {
    begin_text(r);
    answer_reader_put(r, ANSWER_TEXT, r->held.data + from, r->held.n - from);
    buf_clear(&r->held);
    r->n_mark = 0;
}

/* Begins the object of a call, which the last byte opens. */
static void begin_object(AnswerReader *r, const char *name);

static bool is_name_byte(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
           c == '.';
}

/* Reads NAME[ARGS]{ or NAME[CALL_ID]ID[ARGS]{ at `at`. */
static void read_named(AnswerReader *r, size_t at) {
    const char *text = r->held.data + at;
    size_t n = r->held.n - at, n_name = 0;
    char name[CALL_NAME_MAX] = "";
    while (n_name < n && is_name_byte(text[n_name])) n_name++;
    const char *brace = memchr(text, '{', n);
    if (!brace) {
        if (n > NAME_FORM_MAX || n_name >= CALL_NAME_MAX || (n_name < n && text[n_name] != '[')) give_up_calls(r, 0);
        return;
    }
    const char *end = brace;
    while (end > text + n_name && is_space(end[-1])) end--;
    size_t between = (size_t)(end - text) - n_name;
    bool fits = between == 0 || (between >= 6 && text[n_name] == '[' && memcmp(end - 6, "[ARGS]", 6) == 0);
    if (n_name == 0 || n_name >= CALL_NAME_MAX || !fits) {
        give_up_calls(r, 0);
        return;
    }
    memcpy(name, text, n_name);
    begin_object(r, name);
}

/* Decides what the held text is. Bytes come one by one, so the last one decides. */
static void read_calls(AnswerReader *r) {
    const ToolForm *form = r->form.tools;
    for (size_t at = r->n_mark; r->state == READS_CALLS && at < r->held.n; at++) {
        const char *rest = r->held.data + at;
        size_t n = r->held.n - at;
        Match begins = match(rest, n, form->begin), ends = match(rest, n, form->end);
        if (begins == PART_MATCH || ends == PART_MATCH) return;
        if (ends == WHOLE_MATCH && r->n_mark == 0) {
            buf_clear(&r->held);
            r->state = READS_TEXT;
            r->drops_space = true;
        } else if (begins == WHOLE_MATCH) {
            drop_held(r, at);
            r->n_mark = r->held.n;
            return;
        } else if (*rest == '{') begin_object(r, NULL);
        else if (form->has_names && r->n_mark > 0 && is_name_byte(*rest)) {
            read_named(r, at);
            return;
        } else if (!is_space(*rest) && !strchr(",;[]", *rest)) give_up_calls(r, r->n_mark > 0 ? 0 : at);
    }
}

/* Begins a call that has a name and arguments. From now on it can no longer turn out to be text. */
static void begin_call(AnswerReader *r) {
    r->scan.name[r->scan.n_name] = '\0';
    answer_reader_begin_item(r, ANSWER_CALL, r->scan.name);
    buf_clear(&r->held);
    r->n_mark = 0;
}

static void end_object(AnswerReader *r) {
    bool is_begun = r->is_open && r->items[r->n_items - 1].kind == ANSWER_CALL;
    if (!is_begun && r->scan.has_name && r->n_mark > 0) {
        begin_call(r);
        is_begun = true;
    }
    if (!is_begun) {
        give_up_calls(r, 0);
        return;
    }
    if (r->items[r->n_items - 1].text.n == 0) answer_reader_put(r, ANSWER_CALL, "{}", 2);
    answer_reader_end_item(r);
    r->state = READS_CALLS;
}

/* Returns whether the function may be called. */
static bool is_known(const AnswerReader *r) {
    const AnswerForm *f = &r->form;
    bool found = r->n_mark > 0 || !f->names;
    for (int i = 0; i < f->n_names && !found; i++) {
        size_t n = strnlen(f->names[i], CALL_NAME_MAX - 1);
        found = n == r->scan.n_name && memcmp(f->names[i], r->scan.name, n) == 0;
    }
    return found;
}

/* Reads a byte of a call's object, which is also held until the call begins. */
static void scan_byte(AnswerReader *r, char c) {
    bool is_begun = r->is_open && r->items[r->n_items - 1].kind == ANSWER_CALL;
    if (!call_scan_byte(&r->scan, c)) r->failed = true;
    if (!is_begun && r->scan.has_name && r->scan.has_arguments) {
        if (!is_known(r)) {
            give_up_calls(r, 0);
            return;
        }
        begin_call(r);
        is_begun = true;
    }
    if (is_begun) {
        answer_reader_put(r, ANSWER_CALL, r->scan.arguments.data, r->scan.arguments.n);
        buf_clear(&r->scan.arguments);
    }
    if (r->scan.depth == 0) end_object(r);
}

static void begin_object(AnswerReader *r, const char *name) {
    call_scan_begin(&r->scan, name);
    r->state = READS_CALL;
    scan_byte(r, '{');
}

/* ---- pieces -------------------------------------------------------------------------------------------- */

static void take_byte(AnswerReader *r, char c) {
    bool is_call = r->state == READS_CALL;
    bool is_begun = is_call && !is_harmony(r) && r->is_open && r->items[r->n_items - 1].kind == ANSWER_CALL;
    r->n_read++;
    if (!is_begun && !buf_append(&r->held, &c, 1)) r->failed = true;
    if (r->failed) return;
    if (is_harmony(r)) harmony_read(r);
    else if (is_call) scan_byte(r, c);
    else if (r->state == READS_CALLS) read_calls(r);
    else read_text(r);
}

static bool is_plain(const AnswerReader *r) {
    return r->state == READS_TEXT && !r->form.tools && !r->drops_space && r->held.n == 0 && !is_harmony(r);
}

bool answer_reader_feed(AnswerReader *r, const char *bytes, size_t n, AnswerSink sink, void *user) {
    r->sink = sink;
    r->user = user;
    size_t n_blank = n > 0 && r->n_read == 0 && r->form.drops_blank && bytes[0] == ' ';
    r->n_read += n_blank;
    for (size_t i = n_blank; i < n && !r->failed; i++) {
        if (is_plain(r)) {
            answer_reader_put(r, ANSWER_TEXT, bytes + i, n - i);
            r->n_read += n - i;
            break;
        }
        take_byte(r, bytes[i]);
    }
    tell_growth(r);
    return !r->failed;
}

bool answer_reader_end(AnswerReader *r, AnswerSink sink, void *user) {
    r->sink = sink;
    r->user = user;
    bool is_separator = r->state == READS_CALLS && r->n_mark == 0; /* "]" and white space after calls */
    size_t n_space = 0;
    while (n_space < r->held.n && is_space(r->held.data[n_space])) n_space++;
    size_t from = r->drops_space ? n_space : 0;
    if (is_harmony(r)) harmony_end(r);
    else if (!is_separator && r->held.n > from && (r->state != READS_REASONING || n_space < r->held.n))
        answer_reader_put(r, r->state == READS_REASONING ? ANSWER_REASONING : ANSWER_TEXT, r->held.data + from,
                          r->held.n - from);
    answer_reader_end_item(r);
    return !r->failed;
}

/* ---- how templates mark reasoning ----------------------------------------------------------------------- */

static const ReasoningMarks marks[] = {
    /* Harmony: <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>... */
    {.sign = "<|channel|>",
     .begin = "<|channel|>analysis<|message|>",
     .end = "<|end|><|start|>assistant<|channel|>final<|message|>",
     .text = "<|channel|>final<|message|>",
     .calls = "gpt-oss",
     .next_message = "<|end|><|start|>assistant"},
    /* Gemma 4: <|channel>thought ... <channel|> */
    {.sign = "<|channel>", .begin = "<|channel>thought\n", .end = "<channel|>"},
    /* Mistral */
    {.sign = "[THINK]", .begin = "[THINK]", .end = "[/THINK]"},
    {.begin = "<think>", .end = "</think>", .space_inside = "\n", .space_after = "\n\n"},
};
enum { N_MARKS = sizeof marks / sizeof *marks };

const ReasoningMarks *reasoning_marks_at(int i) { return i < N_MARKS ? &marks[i] : NULL; }

const ReasoningMarks *reasoning_marks_of(const char *chat_template) {
    for (int i = 0; i < N_MARKS - 1 && chat_template; i++)
        if (strstr(chat_template, marks[i].sign)) return &marks[i];
    return &marks[N_MARKS - 1];
}

/* ---- how the families of chat templates write tool calls ------------------------------------------------ */

/* Families that are not listed, and templates of no known family, have the form of the last row, which is that of
 * Hermes and Qwen and of most fine-tuned models. */
static const ToolForm forms[] = {
    /* {"name": "f", "parameters": {...}}, several with ';' between them; sometimes after <|python_tag|> */
    {.family = "llama3", .begin = "<|python_tag|>", .is_bare = true, .arguments = "parameters"},
    /* [TOOL_CALLS][{"name": "f", "arguments": {...}}, ...], since v11 [TOOL_CALLS]f[ARGS]{...} */
    {.family = "mistral", .begin = "[TOOL_CALLS]", .has_names = true, .is_list = true, .arguments = "arguments"},
    {.family = "llama2",
     .begin = "[TOOL_CALLS]",
     .has_names = true,
     .is_list = true,
     .arguments = "arguments"}, /* Mistral's older templates resemble it */
    /* <|tool_call|>[{"name": "f", "arguments": {...}}]<|/tool_call|> */
    {.family = "phi3", .begin = "<|tool_call|>", .end = "<|/tool_call|>", .is_list = true, .arguments = "arguments"},
    /* <|channel|>commentary to=functions.f <|constrain|>json<|message|>{...}<|call|> */
    {.family = "gpt-oss", .begin = "<|constrain|>", .arguments = "arguments"},
    /* <tool_call>{"name": "f", "arguments": {...}}</tool_call> */
    {.family = "chatml", .begin = "<tool_call>", .end = "</tool_call>", .arguments = "arguments"},
};
enum { N_FORMS = sizeof forms / sizeof *forms };

const ToolForm *tool_form_of(const char *family) {
    for (int i = 0; i < N_FORMS; i++)
        if (strcmp(forms[i].family, family) == 0) return &forms[i];
    return &forms[N_FORMS - 1];
}

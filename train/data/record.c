/* record.c - parses a line of training data. Errors are sentences without a subject; line_reader_refuse puts file and
 * line number before them. */
#include "train/data/record.h"

#include "base/mem.h"

#include <stdio.h>
#include <string.h>

static int parse_messages(Record *r, const json_t *list, fr_error *err) {
    size_t n = json_array_size(list);
    if (n == 0) return error_set(err, FR_ERR_FORMAT, "has a conversation without messages");
    if (n > INT32_MAX || !(r->messages = mem_calloc(n, sizeof *r->messages)))
        return error_memory(err, "a conversation", n);
    for (size_t i = 0; i < n; i++) {
        const json_t *message = json_array_get(list, i), *role = json_object_get(message, "role");
        r->messages[i].content = json_string_value(json_object_get(message, "content"));
        r->messages[i].role = json_string_value(role);
        if (!r->messages[i].content) return error_set(err, FR_ERR_FORMAT, "has a message without a string \"content\"");
    }
    r->n_messages = (int)n;
    r->kind = RECORD_CHAT;
    return FR_OK;
}

static int parse_tokens(Record *r, const json_t *list, fr_error *err) {
    const json_t *n_prompt = json_object_get(r->object, "prompt_tokens");
    r->kind = RECORD_TOKENS;
    r->tokens = list;
    r->n_tokens = (int64_t)json_array_size(list);
    r->n_prompt = json_integer_value(n_prompt);
    if (json_is_integer(n_prompt) && r->n_prompt >= 0 && r->n_prompt <= r->n_tokens) return FR_OK;
    return error_set(err, FR_ERR_FORMAT,
                     "has %lld \"tokens\"; with it must stand \"prompt_tokens\", an integer from 0 to %lld",
                     (long long)r->n_tokens, (long long)r->n_tokens);
}

static int parse_object(Record *r, fr_error *err) {
    const json_t *list = json_object_get(r->object, "messages");
    if (json_is_array(list)) return parse_messages(r, list, err);
    r->text = json_string_value(json_object_get(r->object, "text"));
    r->prompt = json_string_value(json_object_get(r->object, "prompt"));
    r->response = json_string_value(json_object_get(r->object, "response"));
    r->kind = r->text ? RECORD_TEXT : RECORD_PAIR;
    if (r->text || r->prompt) return FR_OK;
    list = json_object_get(r->object, "tokens");
    if (json_is_array(list)) return parse_tokens(r, list, err);
    if (json_is_array(json_object_get(r->object, "turns")))
        return error_set(err, FR_ERR_FORMAT,
                         "has \"turns\", which are questions without answers: let 'forerun distill-data' answer them");
    return error_set(
        err, FR_ERR_FORMAT,
        "must have a string \"text\", or strings \"prompt\" and \"response\", or a list \"messages\", or a "
        "list \"tokens\"");
}

/* Replaces a list "turns" by "messages": each turn is the user's, and between two of them the assistant has an answer
 * that is yet to be made. */
static int take_turns(json_t *object, fr_error *err) {
    const json_t *turns = json_object_get(object, "turns");
    size_t n = json_array_size(turns);
    if (!json_is_array(turns) || json_object_get(object, "messages")) return FR_OK;
    if (n == 0) return error_set(err, FR_ERR_FORMAT, "has a list \"turns\" without a turn");
    json_t *messages = json_array();
    int failed = !messages;
    for (size_t i = 0; i < n && !failed; i++) {
        json_t *text = json_array_get(turns, i);
        if (!json_is_string(text)) {
            json_decref(messages);
            return error_set(err, FR_ERR_FORMAT, "has a list \"turns\" whose item %zu is not a string", i + 1);
        }
        if (i > 0)
            failed |= json_array_append_new(messages, json_pack("{s:s, s:s}", "role", "assistant", "content", ""));
        failed |= json_array_append_new(messages, json_pack("{s:s, s:O}", "role", "user", "content", text));
    }
    if (failed || json_object_set(object, "messages", messages)) failed = 1;
    json_decref(messages);
    json_object_del(object, "turns");
    return failed ? (int)error_memory(err, "a conversation", n) : FR_OK;
}

static int parse(Record *out, const char *line, size_t n, bool is_question, fr_error *err) {
    *out = (Record){0};
    json_error_t where;
    out->object = json_loadb(line, n, 0, &where);
    if (!out->object) return error_set(err, FR_ERR_FORMAT, "is not JSON: %s", where.text);
    int status = is_question ? take_turns(out->object, err) : FR_OK;
    if (!status) status = parse_object(out, err);
    if (status) record_free(out);
    return status;
}

int record_parse(Record *out, const char *line, size_t n, fr_error *err) { return parse(out, line, n, false, err); }

void record_free(Record *r) {
    json_decref(r->object);
    mem_free(r->messages);
    *r = (Record){0};
}

bool record_is_cut(const Record *r, int i) {
    const json_t *list = json_object_get(r->object, "messages");
    const json_t *answer = r->kind == RECORD_CHAT ? json_array_get(list, (size_t)i) : r->object;
    const char *finish = json_string_value(json_object_get(answer, "finish"));
    return finish && (strcmp(finish, "length") == 0 || strcmp(finish, "context") == 0);
}

bool record_is_lossy(const Record *r) {
    const json_t *list = json_object_get(r->object, "messages"), *message;
    bool is_lossy = json_is_true(json_object_get(r->object, "lossy"));
    size_t i;
    json_array_foreach(list, i, message) is_lossy = is_lossy || json_is_true(json_object_get(message, "lossy"));
    return is_lossy;
}

bool record_is_of_target(const Record *r, uint64_t fingerprint) {
    char digits[17];
    snprintf(digits, sizeof digits, "%016llx", (unsigned long long)fingerprint);
    const char *target = json_string_value(json_object_get(r->object, "target"));
    return target && strcmp(target, digits) == 0;
}

static int next(LineReader *reader, Record *out, bool is_question, fr_error *err) {
    const char *line;
    size_t n;
    int got;
    while ((got = line_reader_next(reader, &line, &n, err)) == 1) {
        if (strspn(line, " \t\r") >= n) continue; /* the line ends with '\0', so strspn stops */
        fr_error why;
        return parse(out, line, n, is_question, &why) ? line_reader_refuse(reader, &why, err) : 1;
    }
    *out = (Record){0};
    return got;
}

int record_next(LineReader *reader, Record *out, fr_error *err) { return next(reader, out, false, err); }
int record_next_question(LineReader *reader, Record *out, fr_error *err) { return next(reader, out, true, err); }

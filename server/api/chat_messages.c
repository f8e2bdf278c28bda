/* chat_messages.c - from the messages of a body to the tokens of a prompt, by the chat template of the model.
 *
 * The template receives the messages as they are, so that it finds whatever it reads (tool calls, reasoning, names),
 * with two changes: parts of text are joined, because few templates know parts, and the role "developer" becomes
 * "system", which older templates know. If the model has no template that can be run, the built-in formats take only
 * roles and texts. */
#include "cli/answer_reader.h"
#include "server/api/answers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_MESSAGES = 10000 };

/* A part of type "refusal" has its text by that name. */
static const json_t *text_of_part(const json_t *part) {
    const json_t *text = json_object_get(part, "text");
    return text ? text : json_object_get(part, "refusal");
}

/* The text is copied to memory of jansson, which is freed with the rest of the body if that runs out of memory here. */
json_t *chat_messages_join(const json_t *parts) {
    json_malloc_t allocate;
    json_free_t release;
    size_t n = 0, i;
    json_t *part;
    json_array_foreach(parts, i, part) n += json_string_length(text_of_part(part));
    json_get_alloc_funcs(&allocate, &release);
    char *text = allocate(n + 1), *at = text;
    if (!text) return NULL;
    json_array_foreach(parts, i, part) {
        const json_t *piece = text_of_part(part);
        memcpy(at, json_string_value(piece), json_string_length(piece));
        at += json_string_length(piece);
    }
    json_t *joined = json_stringn(text, n);
    release(text);
    return joined;
}

/* Replaces the content [{"type": "text", "text": ...}, ...] by one text. */
static int join_parts(json_t *message, const json_t *parts, size_t i_message, ApiError *error) {
    for (size_t i = 0; i < json_array_size(parts); i++) {
        const json_t *part = json_array_get(parts, i);
        const char *type = json_string_value(json_object_get(part, "type"));
        bool is_text = type && (strcmp(type, "text") == 0 || strcmp(type, "refusal") == 0);
        if (is_text && !json_is_string(text_of_part(part)))
            return api_refuse(error, 400, "invalid_type", "messages",
                              "messages[%zu].content[%zu] must have a 'text', which is a string", i_message, i);
        if (!is_text)
            return api_refuse(
                error, 400, "unsupported_content", "messages",
                "messages[%zu].content[%zu]: content of type '%.40s' is not supported; this model reads text",
                i_message, i, type ? type : "?");
    }
    json_object_set_new(message, "content", chat_messages_join(parts));
    return 0;
}

/* Turns the arguments of earlier calls into values: clients send them as text, but templates expect values. */
static void parse_arguments(const json_t *message) {
    size_t i;
    json_t *call;
    json_array_foreach(json_object_get(message, "tool_calls"), i, call) {
        json_t *function = json_object_get(call, "function");
        const char *text = json_string_value(json_object_get(function, "arguments"));
        json_t *value = text ? json_loads(text, 0, NULL) : NULL;
        if (value) json_object_set_new(function, "arguments", value);
    }
}

/* Checks the calls of an earlier answer, which needs content if it has none. */
static int check_calls(const json_t *message, size_t i, ApiError *error) {
    const json_t *calls = json_object_get(message, "tool_calls");
    bool fits = !calls || json_is_null(calls) || json_is_array(calls);
    for (size_t k = 0; k < json_array_size(calls) && fits; k++)
        fits = json_is_string(json_object_get(json_object_get(json_array_get(calls, k), "function"), "name"));
    return fits ? 0
                : api_refuse(error, 400, "invalid_type", "messages",
                             "messages[%zu].tool_calls must be a list of calls, each with a 'function' that has a name",
                             i);
}

static int check_message(json_t *message, size_t i, ApiError *error) {
    const char *role = json_string_value(json_object_get(message, "role"));
    const json_t *content = json_object_get(message, "content");
    json_t *refusal = json_object_get(message, "refusal"); /* the text of an answer that has no other */
    if (!json_is_object(message) || !role)
        return api_refuse(error, 400, "invalid_type", "messages", "messages[%zu] must be an object with a role", i);
    if (strcmp(role, "developer") == 0) json_object_set_new(message, "role", json_string("system"));
    if (check_calls(message, i, error)) return -1;
    parse_arguments(message);
    if (json_is_array(content)) return join_parts(message, content, i, error);
    if (json_is_string(content)) return 0;
    if (json_is_string(refusal)) {
        json_object_set(message, "content", refusal);
        return 0;
    }
    if ((!content || json_is_null(content)) && json_array_size(json_object_get(message, "tool_calls")) > 0) return 0;
    return api_refuse(error, 400, "invalid_type", "messages",
                      "messages[%zu].content must be a string or a list of parts of text", i);
}

bool chat_messages_has_tools(const ChatMessages *f) {
    return json_array_size(f->tools) > 0 && !field_is_text(f->tool_choice, "none");
}

/* tool_choice is "required", or {"type": "function"} with the name in "function", as in chats, or beside "type", as in
 * responses. */
bool chat_messages_forces_call(const ChatMessages *f, const char **name) {
    const json_t *function = json_object_get(f->tool_choice, "function");
    *name = json_string_value(json_object_get(function ? function : f->tool_choice, "name"));
    return *name || field_is_text(f->tool_choice, "required");
}

static int check_choice(const ChatMessages *f, ApiError *error) {
    const char *name;
    bool forces = chat_messages_forces_call(f, &name), is_known = !name;
    if (!f->tool_choice || field_is_text(f->tool_choice, "auto") || field_is_text(f->tool_choice, "none")) return 0;
    if (!forces || (name && !field_is_text(json_object_get(f->tool_choice, "type"), "function")))
        return api_refuse(error, 400, "invalid_value", "tool_choice",
                          "'tool_choice' must be \"auto\", \"none\", \"required\" or a function by its name");
    for (size_t i = 0; i < json_array_size(f->tools) && !is_known; i++)
        is_known = field_is_text(json_object_get(json_object_get(json_array_get(f->tools, i), "function"), "name"),
                                 name);
    if (json_array_size(f->tools) > 0 && is_known) return 0;
    return api_refuse(error, 400, "invalid_value", "tool_choice", "'tool_choice': there is no %s%.60s among 'tools'",
                      name ? "function " : "function", name ? name : "");
}

/* Returns whether a call can carry the name in the forms of all families, which have no escapes. */
static bool is_tool_name(const char *name) {
    size_t n = strlen(name);
    for (const char *c = name; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == '"' || *c == '\\') return false;
    return n > 0 && n < CALL_NAME_MAX;
}

/* Returns whether a schema is that of an object, which the arguments of a call are. */
static bool is_schema_of_object(const json_t *parameters) {
    const json_t *type = json_object_get(parameters, "type");
    return !parameters || json_is_null(parameters) ||
           (json_is_object(parameters) && (!type || field_is_text(type, "object")));
}

static int check_tools(const ChatMessages *f, ApiError *error) {
    if (f->tools && !json_is_array(f->tools))
        return api_refuse(error, 400, "invalid_type", "tools", "'tools' must be a list");
    for (size_t i = 0; i < json_array_size(f->tools); i++) {
        const json_t *tool = json_array_get(f->tools, i), *function = json_object_get(tool, "function");
        if (!field_is_text(json_object_get(tool, "type"), "function") ||
            !json_is_string(json_object_get(function, "name")))
            return api_refuse(error, 400, "invalid_value", "tools",
                              "tools[%zu] must be {\"type\": \"function\", \"function\": {\"name\": ...}}", i);
        if (!is_tool_name(json_string_value(json_object_get(function, "name"))))
            return api_refuse(error, 400, "invalid_value", "tools",
                              "tools[%zu]: the name must have 1 to %d bytes, and no quotes, backslashes or control "
                              "characters",
                              i, CALL_NAME_MAX - 1);
        if (!is_schema_of_object(json_object_get(function, "parameters")))
            return api_refuse(error, 400, "invalid_json_schema", "tools",
                              "tools[%zu]: the parameters must be a JSON schema of type \"object\"", i);
    }
    return 0;
}

/* Refuses answers other than text. */
static int check_output(const ChatMessages *f, ApiError *error) {
    if (f->modalities &&
        (json_array_size(f->modalities) != 1 || !field_is_text(json_array_get(f->modalities, 0), "text")))
        return api_refuse(error, 400, "unsupported_parameter", "modalities",
                          "'modalities' other than [\"text\"] are not supported");
    return check_tools(f, error) ? -1 : check_choice(f, error);
}

static int check_variables(const json_t *variables, ApiError *error) {
    static const char field[] = "chat_template_kwargs";
    if (variables && !json_is_object(variables))
        return api_refuse(error, 400, "invalid_type", field, "'%s' must be an object", field);
    if (!json_object_get(variables, "messages") && !json_object_get(variables, "tools")) return 0;
    return api_refuse(error, 400, "invalid_value", field,
                      "'%s' must not have 'messages' or 'tools', which are fields of the body", field);
}

static int check_messages(const ChatMessages *f, ApiError *error) {
    size_t n = json_array_size(f->messages);
    int status = 0;
    if (!json_is_array(f->messages) || n == 0 || n > MAX_MESSAGES)
        return api_refuse(error, 400, "invalid_type", "messages", "'messages' must be a list of 1 to %d messages",
                          MAX_MESSAGES);
    for (size_t i = 0; i < n && !status; i++) status = check_message(json_array_get(f->messages, i), i, error);
    if (!status) status = check_variables(f->variables, error);
    return status ? status : check_output(f, error);
}

/* Applies a built-in format. */
static int apply_plainly(const ServedModel *m, const ChatMessages *f, fr_chat_result *out, ApiError *error) {
    size_t n = json_array_size(f->messages);
    fr_error why;
    fr_chat_message *messages = malloc(n * sizeof *messages);
    if (!messages) return api_refuse(error, 500, NULL, NULL, "memory ran out");
    for (size_t i = 0; i < n; i++) {
        const json_t *message = json_array_get(f->messages, i);
        const char *content = json_string_value(json_object_get(message, "content"));
        messages[i] = (fr_chat_message){json_string_value(json_object_get(message, "role")), content ? content : ""};
    }
    int status = fr_chat_apply(m->model, messages, (int)n, NULL, out, &why);
    free(messages);
    return status ? api_refuse_error(error, "messages", &why) : 0;
}

/* Replaces a content that is null, as it may be in messages with calls, by "": many templates join it to other text. */
static bool fill_contents(const json_t *messages) {
    size_t i;
    json_t *message;
    bool any = false;
    json_array_foreach(messages, i, message) {
        if (json_is_string(json_object_get(message, "content"))) continue;
        json_object_set_new(message, "content", json_string(""));
        any = true;
    }
    return any;
}

static int refuse_rendering(ApiError *error, const fr_error *why) {
    if (why->code != FR_ERR_FORMAT) return api_refuse_error(error, "messages", why);
    return api_refuse(error, 400, "invalid_value", "messages",
                      "the chat template of this model cannot render these messages: %s", why->message);
}

/* Runs the template. Tools are refused if the template ignores them, because the model would know nothing of them,
 * unless the operator lets such things be ignored. */
static int apply_template(const ServedModel *m, ChatMessages *f, fr_chat_options *options, fr_chat_result *out,
                          ApiError *error) {
    const char *name;
    fr_error why;
    fr_chat_result without = {.struct_size = sizeof without};
    int status = fr_chat_apply(m->model, NULL, 0, options, out, &why);
    if (status == FR_ERR_FORMAT && fill_contents(f->messages)) {
        options->messages = json_dumps(f->messages, JSON_COMPACT);
        status = fr_chat_apply(m->model, NULL, 0, options, out, &why);
    }
    if (status) return refuse_rendering(error, &why);
    if (!options->tools) return 0;
    fr_chat_options no_tools = *options;
    no_tools.tools = NULL;
    bool is_same = !fr_chat_apply(m->model, NULL, 0, &no_tools, &without, &why) && strcmp(without.text, out->text) == 0;
    fr_chat_result_free(&without);
    if (!is_same) return 0;
    if (f->drops_tools && !chat_messages_forces_call(f, &name)) {
        f->tools = NULL;
        return 0;
    }
    fr_chat_result_free(out);
    return api_refuse(error, 400, "unsupported_parameter", "tools",
                      "'tools' are not supported by the chat template of this model, which has no place for them; the "
                      "operator can have them ignored by --unknown-fields ignore");
}

bool chat_prompt_ends_with(const fr_chat_result *prompt, const char *mark) {
    size_t n = prompt->n_bytes, n_mark = strlen(mark);
    while (n_mark > 0 && strchr(" \n\r\t", mark[n_mark - 1])) n_mark--;
    while (n > 0 && strchr(" \n\r\t", prompt->text[n - 1])) n--;
    return n >= n_mark && memcmp(prompt->text + n - n_mark, mark, n_mark) == 0;
}

/* Whether the tokenizer writes a space before the first word of a text. */
static bool adds_space(const ServedModel *m) {
    int32_t *ids;
    int64_t n;
    size_t n_bytes = 0;
    const char *piece = "";
    if (fr_tokenize(m->model, "x", 1, 0, &ids, &n, NULL)) return false;
    if (n > 0) piece = fr_token_piece(m->model, ids[0], false, &n_bytes);
    bool adds = n_bytes > 0 && piece[0] == ' ';
    fr_free(ids);
    return adds;
}

/* Appends a text to the prompt. */
static int append(const ServedModel *m, const char *text, unsigned flags, fr_chat_result *out, ApiError *error) {
    int32_t *ids = NULL;
    int64_t n;
    fr_error why;
    char *all = NULL;
    if (fr_tokenize(m->model, text, strlen(text), flags, &ids, &n, &why))
        return api_refuse_error(error, "messages", &why);
    int32_t *tokens = malloc((size_t)(out->n_tokens + n + 1) * sizeof *tokens);
    if (!tokens || asprintf(&all, "%s%s", out->text, text) < 0) {
        free(tokens);
        fr_free(ids);
        return api_refuse(error, 500, NULL, NULL, "memory ran out");
    }
    memcpy(tokens, out->tokens, (size_t)out->n_tokens * sizeof *tokens);
    if (n > 0) memcpy(tokens + out->n_tokens, ids, (size_t)n * sizeof *tokens);
    n += out->n_tokens;
    fr_chat_result_free(out);
    *out = (fr_chat_result){.struct_size = sizeof *out,
                            .text = all,
                            .n_bytes = strlen(all),
                            .tokens = tokens,
                            .n_tokens = n};
    fr_free(ids);
    return 0;
}

/* Appends a mark with white space on both sides, which may be NULL. */
static int append_mark(const ServedModel *m, const char *before, const char *mark, const char *after,
                       fr_chat_result *out, ApiError *error) {
    char text[128];
    snprintf(text, sizeof text, "%s%s%s", before ? before : "", mark, after ? after : "");
    return append(m, text, FR_TOKENIZE_SPECIAL, out, error);
}

/* Appends the beginning of the answer to the prompt: its reasoning, which is closed if a text follows, and the text,
 * after the space that belongs to the template. The marks are tokens, and what the client has written is text. */
static int append_prefill(const ServedModel *m, const ChatMessages *f, fr_chat_result *out, ApiError *error) {
    const ReasoningMarks *marks = reasoning_marks_of(m->chat_template);
    bool is_open = chat_prompt_ends_with(out, marks->begin), has_mark = f->prefill && strstr(f->prefill, marks->end);
    const char *reasoning = f->prefill_reasoning, *text = f->prefill;
    char *spaced = NULL;
    int status = 0;
    if (reasoning && !is_open) status = append_mark(m, NULL, marks->begin, marks->space_inside, out, error);
    if (!status && reasoning) status = append(m, reasoning, 0, out, error);
    if (status || !text) return status;
    if (reasoning || (is_open && !has_mark))
        status = append_mark(m, marks->space_inside, marks->end, marks->space_after, out, error);
    else if (marks->text) status = append_mark(m, NULL, marks->text, NULL, out, error);
    else if (m->writes_blank && text[0] != ' ' && !adds_space(m) && asprintf(&spaced, " %s", text) < 0)
        return api_refuse(error, 500, NULL, NULL, "memory ran out");
    if (!status) status = append(m, spaced ? spaced : text, 0, out, error);
    free(spaced);
    return status;
}

/* Whether a list of {"type": "function", "name": ...}, or with the name in "function", has a name. */
static bool lists_tool(const json_t *list, const json_t *name) {
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i), *function = json_object_get(item, "function");
        if (json_equal(json_object_get(function ? function : item, "name"), name)) return true;
    }
    return false;
}

/* tool_choice {"type": "allowed_tools"} is "auto" or "required" with some of the tools: the others are left out, in the
 * prompt, too. The members are in "allowed_tools", as in chats, or beside "type", as in responses. */
static int allow_tools(ChatMessages *f, ApiError *error) {
    const json_t *inner = json_object_get(f->tool_choice, "allowed_tools"), *all = inner ? inner : f->tool_choice,
                 *mode = json_object_get(all, "mode"), *allowed = json_object_get(all, "tools");
    if (!field_is_text(json_object_get(f->tool_choice, "type"), "allowed_tools")) return 0;
    json_t *tools = json_array(), *strict = f->strict_tools ? json_array() : NULL;
    for (size_t i = 0; i < json_array_size(f->tools); i++) {
        json_t *tool = json_array_get(f->tools, i);
        if (!lists_tool(allowed, json_object_get(json_object_get(tool, "function"), "name"))) continue;
        json_array_append(tools, tool);
        if (strict) json_array_append(strict, json_array_get(f->strict_tools, i));
    }
    bool has_mode = field_is_text(mode, "auto") || field_is_text(mode, "required");
    if (!has_mode || json_array_size(tools) == 0 || json_array_size(tools) != json_array_size(allowed))
        return api_refuse(error, 400, "invalid_value", "tool_choice",
                          "'tool_choice': 'allowed_tools' needs the mode \"auto\" or \"required\", and functions that "
                          "are among 'tools'");
    f->tools = tools;
    f->strict_tools = strict;
    f->tool_choice = mode;
    return 0;
}

static int apply(const ServedModel *m, ChatMessages *f, fr_chat_result *out, ApiError *error);

int chat_messages_apply(const ServedModel *m, ChatMessages *f, fr_chat_result *out, ApiError *error) {
    *out = (fr_chat_result){.struct_size = sizeof(fr_chat_result)};
    if (allow_tools(f, error) || check_messages(f, error) || apply(m, f, out, error)) return -1;
    int status = f->prefill || f->prefill_reasoning ? append_prefill(m, f, out, error) : 0;
    if (status) fr_chat_result_free(out);
    return status;
}

static int apply(const ServedModel *m, ChatMessages *f, fr_chat_result *out, ApiError *error) {
    json_t *variables = (json_t *)(uintptr_t)f->variables; /* the body belongs to the call */
    if ((f->reasoning_effort || f->thinks) && !variables) variables = json_object();
    if (f->thinks && !json_object_get(variables, "enable_thinking"))
        json_object_set_new(variables, "enable_thinking", json_boolean(f->thinks > 0));
    if (f->reasoning_effort) json_object_set_new(variables, "reasoning_effort", json_string(f->reasoning_effort));
    bool has_template = strcmp(m->info.chat_family, "none") != 0 && !m->info.chat_template_error;
    bool has_tools = chat_messages_has_tools(f);
    if (!has_template && !has_tools && !f->variables) return apply_plainly(m, f, out, error);
    fr_chat_options options = {
        .struct_size = sizeof options,
        .no_generation_prompt = f->ends_open,
        .messages = json_dumps(f->messages, JSON_COMPACT),
        .tools = has_tools ? json_dumps(f->tools, JSON_COMPACT) : NULL,
        .variables = variables ? json_dumps(variables, JSON_COMPACT) : NULL,
    };
    return apply_template(m, f, &options, out, error);
}

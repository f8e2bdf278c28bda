/* chat_messages.c - messages of a body to the tokens of a prompt, by the model's template.
 *
 * Messages go to the template as they are, so that whatever a family's template reads (tool calls, reasoning, names)
 * reaches it. Two things are done before: parts of text are joined, because few templates know parts, and "developer" is
 * the "system" of older ones. Where the model has no template that can be run, the built-in formats take roles and
 * texts only. */
#include "server/api/chat_messages.h"

#include "server/answer/call_scan.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_MESSAGES = 10000 };

/* The copy is jansson's own memory: where the memory for the body ends in the middle of this, it is freed with the rest. */
json_t *chat_messages_join(const json_t *parts) {
    json_malloc_t allocate;
    json_free_t release;
    size_t n = 0, i;
    json_t *part;
    json_array_foreach(parts, i, part) n += json_string_length(json_object_get(part, "text"));
    json_get_alloc_funcs(&allocate, &release);
    char *text = allocate(n + 1), *at = text;
    if (!text) return NULL;
    json_array_foreach(parts, i, part) {
        const json_t *piece = json_object_get(part, "text");
        memcpy(at, json_string_value(piece), json_string_length(piece));
        at += json_string_length(piece);
    }
    json_t *joined = json_stringn(text, n);
    release(text);
    return joined;
}

/* Joins [{"type": "text", "text": ...}, ...] in place. */
static int join_parts(json_t *message, const json_t *parts, size_t i_message, ApiError *error) {
    for (size_t i = 0; i < json_array_size(parts); i++) {
        const json_t *part = json_array_get(parts, i);
        const char *type = json_string_value(json_object_get(part, "type"));
        bool is_text = type && (strcmp(type, "text") == 0 || strcmp(type, "refusal") == 0);
        if (is_text && !json_is_string(json_object_get(part, "text")))
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

/* Clients send the arguments of earlier calls as text, and templates expect them as values. */
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

/* Of an earlier answer; without them it needs content. */
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
    if (!json_is_object(message) || !role)
        return api_refuse(error, 400, "invalid_type", "messages", "messages[%zu] must be an object with a role", i);
    if (strcmp(role, "developer") == 0) json_object_set_new(message, "role", json_string("system"));
    if (check_calls(message, i, error)) return -1;
    parse_arguments(message);
    if (json_is_array(content)) return join_parts(message, content, i, error);
    if (json_is_string(content)) return 0;
    if ((!content || json_is_null(content)) && json_array_size(json_object_get(message, "tool_calls")) > 0) return 0;
    return api_refuse(error, 400, "invalid_type", "messages",
                      "messages[%zu].content must be a string or a list of parts of text", i);
}

bool chat_messages_has_tools(const ChatMessages *f) {
    return json_array_size(f->tools) > 0 && !field_is_text(f->tool_choice, "none");
}

/* "required", or {"type": "function"} with the name in "function", as chats have it, or beside it, as responses do. */
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

/* What a call in the form of any family can carry: it is read back without escapes. */
static bool is_tool_name(const char *name) {
    size_t n = strlen(name);
    for (const char *c = name; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == '"' || *c == '\\') return false;
    return n > 0 && n < CALL_NAME_MAX;
}

/* A call has an object of arguments. */
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

/* What an answer may be besides text. */
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

/* For the built-in formats. */
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

/* Many templates join the content of a message to other text, and fail where it is null, as it is beside calls. */
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

/* Tools that the template has no place for are refused: the model would know nothing of them. */
static int apply_template(const ServedModel *m, const ChatMessages *f, fr_chat_options *options, fr_chat_result *out,
                          ApiError *error) {
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
    fr_chat_result_free(out);
    return api_refuse(error, 400, "unsupported_parameter", "tools",
                      "'tools' are not supported by the chat template of this model, which has no place for them");
}

int chat_messages_apply(const ServedModel *m, const ChatMessages *f, fr_chat_result *out, ApiError *error) {
    *out = (fr_chat_result){.struct_size = sizeof(fr_chat_result)};
    int status = check_messages(f, error);
    if (status) return status;
    json_t *variables = (json_t *)(uintptr_t)f->variables; /* the body is the call's own */
    if (f->reasoning_effort && !variables) variables = json_object();
    if (f->reasoning_effort) json_object_set_new(variables, "reasoning_effort", json_string(f->reasoning_effort));
    bool has_template = strcmp(m->info.chat_family, "none") != 0 && !m->info.chat_template_error;
    bool has_tools = chat_messages_has_tools(f);
    if (!has_template && !has_tools && !f->variables) return apply_plainly(m, f, out, error);
    fr_chat_options options = {
        .struct_size = sizeof options,
        .messages = json_dumps(f->messages, JSON_COMPACT),
        .tools = has_tools ? json_dumps(f->tools, JSON_COMPACT) : NULL,
        .variables = variables ? json_dumps(variables, JSON_COMPACT) : NULL,
    };
    return apply_template(m, f, &options, out, error);
}

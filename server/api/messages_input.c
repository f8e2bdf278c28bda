/* messages_input.c - content blocks of the Messages API to the messages of chat templates.
 *
 * Text blocks are joined; "tool_use" becomes "tool_calls" of the assistant, "tool_result" a message of role "tool" before the
 * text of its turn, "thinking" becomes "reasoning_content". A block that the model cannot read is refused by name. */
#include "server/api/messages_input.h"

#include <string.h>

enum { MAX_MESSAGES = 10000 };

static int check_blocks(const json_t *blocks, const char *where, ApiError *error) {
    for (size_t i = 0; i < json_array_size(blocks); i++) {
        const json_t *block = json_array_get(blocks, i);
        if (!field_is_text(json_object_get(block, "type"), "text") || !json_is_string(json_object_get(block, "text")))
            return api_refuse(error, 400, "unsupported_content", where,
                              "'%s': block %zu must be of type 'text'; this model reads text", where, i);
    }
    return 0;
}

/* A string, or the texts of blocks, as a JSON string. NULL: refused. */
static json_t *join(const json_t *content, const char *where, ApiError *error) {
    if (json_is_string(content)) return json_stringn(json_string_value(content), json_string_length(content));
    if (!json_is_array(content)) {
        api_refuse(error, 400, "invalid_type", where, "'%s' must be a string or a list of blocks", where);
        return NULL;
    }
    return check_blocks(content, where, error) ? NULL : chat_messages_join(content);
}

static void add_message(json_t *to, const char *role, json_t *content) {
    json_array_append_new(to, json_pack("{s:s, s:o}", "role", role, "content", content));
}

/* One turn while its blocks are read. */
typedef struct Turn {
    json_t *out;   /* messages */
    json_t *texts; /* blocks of type text */
    json_t *calls, *thinking;
    bool is_assistant;
} Turn;

static int add_block(Turn *t, const json_t *block, size_t i, ApiError *error) {
    const char *type = json_string_value(json_object_get(block, "type"));
    json_t *id = json_object_get(block, t->is_assistant ? "id" : "tool_use_id");
    json_t *content = json_object_get(block, "content"), *input = json_object_get(block, "input");
    if (type && strcmp(type, "text") == 0) {
        json_array_append(t->texts, (json_t *)(uintptr_t)block);
        return 0;
    }
    if (type && t->is_assistant && strcmp(type, "thinking") == 0) {
        t->thinking = json_object_get(block, "thinking");
        return 0;
    }
    if (type && t->is_assistant && strcmp(type, "redacted_thinking") == 0) return 0;
    if (type && t->is_assistant && strcmp(type, "tool_use") == 0 && json_is_string(id) && json_is_object(input)) {
        json_array_append_new(t->calls, json_pack("{s:O, s:s, s:{s:O*, s:O}}", "id", id, "type", "function", "function",
                                                  "name", json_object_get(block, "name"), "arguments", input));
        return 0;
    }
    if (type && !t->is_assistant && strcmp(type, "tool_result") == 0 && json_is_string(id)) {
        json_t *text = content ? join(content, "messages", error) : json_string("");
        if (!text) return -1;
        json_array_append_new(t->out,
                              json_pack("{s:s, s:O, s:o}", "role", "tool", "tool_call_id", id, "content", text));
        return 0;
    }
    return api_refuse(error, 400, "unsupported_content", "messages",
                      "messages: content block %zu of type '%.40s' is not supported for this role, or is incomplete", i,
                      type ? type : "?");
}

static int add_turn(json_t *out, const json_t *message, size_t i_message, ApiError *error) {
    const json_t *role = json_object_get(message, "role"), *content = json_object_get(message, "content");
    Turn t = {.out = out,
              .texts = json_array(),
              .calls = json_array(),
              .is_assistant = field_is_text(role, "assistant")};
    if (!t.is_assistant && !field_is_text(role, "user"))
        return api_refuse(error, 400, "invalid_value", "messages",
                          "messages[%zu].role must be 'user' or 'assistant'; instructions go into 'system'", i_message);
    int status = 0;
    for (size_t i = 0; i < json_array_size(content) && !status; i++)
        status = add_block(&t, json_array_get(content, i), i, error);
    if (status) return status;
    bool has_others = json_array_size(content) > 0 && json_array_size(t.texts) == 0;
    if (has_others && !t.is_assistant) return 0; /* results of tools alone */
    json_t *text = join(json_is_array(content) ? t.texts : content, "messages", error);
    if (!text) return -1;
    add_message(out, json_string_value(role), text);
    json_t *added = json_array_get(out, json_array_size(out) - 1);
    if (json_array_size(t.calls) > 0) json_object_set_new(added, "tool_calls", t.calls);
    if (t.thinking) json_object_set(added, "reasoning_content", t.thinking);
    return 0;
}

static int convert_messages(const MessagesInput *in, ChatMessages *chat, ApiError *error) {
    json_t *out = json_array();
    size_t n = json_array_size(in->messages);
    int status = 0;
    if (!json_is_array(in->messages) || n == 0 || n > MAX_MESSAGES)
        return api_refuse(error, 400, "invalid_type", "messages", "'messages' must be a list of 1 to %d messages",
                          MAX_MESSAGES);
    if (in->system) {
        json_t *text = join(in->system, "system", error);
        if (!text) return -1;
        add_message(out, "system", text);
    }
    for (size_t i = 0; i < n && !status; i++) status = add_turn(out, json_array_get(in->messages, i), i, error);
    if (!status && field_is_text(json_object_get(json_array_get(in->messages, n - 1), "role"), "assistant"))
        status = api_refuse(error, 400, "unsupported_parameter", "messages",
                            "the last of 'messages' must be of the user: beginning an answer is not supported");
    chat->messages = out;
    return status;
}

/* {"name", "description", "input_schema"} becomes {"type": "function", "function": {..., "parameters"}}. */
static int convert_tools(const MessagesInput *in, ChatMessages *chat, ApiError *error) {
    json_t *out = json_array(), *strict = json_array();
    if (in->tools && !json_is_array(in->tools))
        return api_refuse(error, 400, "invalid_type", "tools", "'tools' must be a list");
    for (size_t i = 0; i < json_array_size(in->tools); i++) {
        const json_t *tool = json_array_get(in->tools, i), *type = json_object_get(tool, "type");
        json_t *name = json_object_get(tool, "name"), *schema = json_object_get(tool, "input_schema");
        if ((type && !field_is_text(type, "custom")) || !json_is_string(name) || !json_is_object(schema))
            return api_refuse(error, 400, "invalid_value", "tools",
                              "tools[%zu] must have 'name' and 'input_schema'; tools that the server would run are not "
                              "supported",
                              i);
        json_array_append_new(out,
                              json_pack("{s:s, s:{s:O, s:O*, s:O}}", "type", "function", "function", "name", name,
                                        "description", json_object_get(tool, "description"), "parameters", schema));
        json_array_append_new(strict, json_boolean(json_is_true(json_object_get(tool, "strict"))));
    }
    chat->tools = out;
    chat->strict_tools = strict; /* apart from the tools, which the template may write out */
    return 0;
}

static int convert_choices(const MessagesInput *in, ChatMessages *chat, ApiError *error) {
    const json_t *choice = json_object_get(in->tool_choice, "type"), *thinking = json_object_get(in->thinking, "type");
    json_t *name = json_object_get(in->tool_choice, "name");
    bool is_named = field_is_text(choice, "tool") && json_is_string(name);
    if (in->tool_choice && !field_is_text(choice, "auto") && !field_is_text(choice, "none") &&
        !field_is_text(choice, "any") && !is_named)
        return api_refuse(error, 400, "invalid_value", "tool_choice",
                          "'tool_choice' must be of type 'auto', 'none' or 'any', or 'tool' with a name");
    if (in->thinking && !field_is_text(thinking, "disabled"))
        return api_refuse(error, 400, "unsupported_parameter", "thinking",
                          "'thinking' is not supported with a budget; use 'chat_template_kwargs' for templates that "
                          "can switch it on and off");
    chat->has_one_call = json_is_true(json_object_get(in->tool_choice, "disable_parallel_tool_use"));
    chat->tool_choice = is_named                       ? json_pack("{s:s, s:O}", "type", "function", "name", name)
                        : field_is_text(choice, "any") ? json_string("required")
                                                       : choice;
    return 0;
}

int messages_input_convert(const MessagesInput *in, ChatMessages *chat, ApiError *error) {
    if (convert_messages(in, chat, error) || convert_tools(in, chat, error)) return -1;
    return convert_choices(in, chat, error);
}

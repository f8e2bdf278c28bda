/* messages_input.c - the conversation of Anthropic's Messages API: from content blocks and tools to the messages and
 * tools of chat templates.
 *
 * Blocks of text are joined, among them documents that are text and results of a search. "tool_use" becomes
 * "tool_calls" of the assistant, "tool_result" becomes a message of role "tool" before the text of its turn, and
 * "thinking" becomes "reasoning_content". A block that the model cannot read is refused by name. */
#include "server/api/answers.h"
#include "server/api/plan.h"

#include <string.h>

enum { MAX_MESSAGES = 10000 };

/* Joins the strings among the arguments, with a line for each, to a block of text. */
static json_t *lines(const json_t *title, const json_t *context, const json_t *text) {
    const json_t *const all[] = {title, context, text};
    json_t *parts = json_array();
    for (int i = 0; i < 3; i++) {
        if (!json_is_string(all[i])) continue;
        if (json_array_size(parts) > 0) json_array_append_new(parts, json_pack("{s:s}", "text", "\n"));
        json_array_append_new(parts, json_pack("{s:O}", "text", all[i]));
    }
    return json_pack("{s:s, s:o}", "type", "text", "text", chat_messages_join(parts));
}

/* Returns a block of text for one of text, for a document that is text, and for a result of a search. NULL: the block
 * is something else. */
static json_t *read_block(const json_t *block) {
    const json_t *type = json_object_get(block, "type"), *source = json_object_get(block, "source"), *text = NULL;
    if (field_is_text(type, "text"))
        return json_is_string(json_object_get(block, "text")) ? json_incref((json_t *)(uintptr_t)block) : NULL;
    if (field_is_text(type, "document"))
        text = json_object_get(source, field_is_text(json_object_get(source, "type"), "content") ? "content" : "data");
    if (field_is_text(type, "document") && field_is_text(json_object_get(source, "type"), "base64")) return NULL;
    if (field_is_text(type, "search_result")) text = json_object_get(block, "content");
    if (json_is_array(text)) {
        for (size_t i = 0; i < json_array_size(text); i++)
            if (!json_is_string(json_object_get(json_array_get(text, i), "text"))) return NULL;
        text = chat_messages_join(text);
    }
    return json_is_string(text) ? lines(json_object_get(block, "title"), json_object_get(block, "context"), text)
                                : NULL;
}

/* Joins a string, or the texts of blocks, to one JSON string. NULL: the content is refused. */
static json_t *join(const json_t *content, const char *where, ApiError *error) {
    json_t *texts = json_array();
    if (json_is_string(content)) return json_stringn(json_string_value(content), json_string_length(content));
    if (!json_is_array(content)) {
        api_refuse(error, 400, "invalid_type", where, "'%s' must be a string or a list of blocks", where);
        return NULL;
    }
    for (size_t i = 0; i < json_array_size(content); i++) {
        json_t *text = read_block(json_array_get(content, i));
        if (!text) {
            api_refuse(error, 400, "unsupported_content", where,
                       "'%s': block %zu must be of type 'text'; this model reads text", where, i);
            return NULL;
        }
        json_array_append_new(texts, text);
    }
    return chat_messages_join(texts);
}

static void add_message(json_t *to, const char *role, json_t *content) {
    json_array_append_new(to, json_pack("{s:s, s:o}", "role", role, "content", content));
}

/* A turn of the conversation while its blocks are read. */
typedef struct Turn {
    json_t *out;   /* the messages of the turn */
    json_t *texts; /* blocks of type text */
    json_t *calls, *thinking;
    bool is_assistant;
} Turn;

static int add_block(Turn *t, const json_t *block, size_t i, ApiError *error) {
    const char *type = json_string_value(json_object_get(block, "type"));
    json_t *id = json_object_get(block, t->is_assistant ? "id" : "tool_use_id");
    json_t *content = json_object_get(block, "content"), *input = json_object_get(block, "input");
    json_t *text = read_block(block);
    if (text && (!t->is_assistant || field_is_text(json_object_get(block, "type"), "text"))) {
        json_array_append_new(t->texts, text);
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
        json_t *result = content ? join(content, "messages", error) : json_string("");
        if (!result) return -1;
        json_array_append_new(t->out,
                              json_pack("{s:s, s:O, s:o}", "role", "tool", "tool_call_id", id, "content", result));
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
    if (field_is_text(role, "system") && i_message > 0) {
        json_t *text = join(content, "messages", error);
        if (!text) return -1;
        add_message(out, "system", text);
        return 0;
    }
    if (!t.is_assistant && !field_is_text(role, "user"))
        return api_refuse(error, 400, "invalid_value", "messages",
                          "messages[%zu].role must be 'user' or 'assistant'; instructions go into 'system'", i_message);
    int status = 0;
    for (size_t i = 0; i < json_array_size(content) && !status; i++)
        status = add_block(&t, json_array_get(content, i), i, error);
    if (status) return status;
    bool has_others = json_array_size(content) > 0 && json_array_size(t.texts) == 0;
    if (has_others && !t.is_assistant) return 0; /* the turn has only results of tools */
    json_t *text = join(json_is_array(content) ? t.texts : content, "messages", error);
    if (!text) return -1;
    add_message(out, json_string_value(role), text);
    json_t *added = json_array_get(out, json_array_size(out) - 1);
    if (json_array_size(t.calls) > 0) json_object_set_new(added, "tool_calls", t.calls);
    if (t.thinking) json_object_set(added, "reasoning_content", t.thinking);
    return 0;
}

/* The last message is the beginning of the answer, which the model continues. */
static int take_prefill(json_t *out, ChatMessages *chat, ApiError *error) {
    size_t n = json_array_size(out);
    const json_t *last = json_array_get(out, n - 1);
    const char *text = json_string_value(json_object_get(last, "content"));
    if (json_object_get(last, "tool_calls") || !text || n < 2)
        return api_refuse(error, 400, "invalid_value", "messages",
                          "a last message of the role 'assistant' must be text, which the answer continues");
    if (*text && strchr(" \t\r\n", text[strlen(text) - 1]))
        return api_refuse(error, 400, "invalid_value", "messages",
                          "messages: final assistant content cannot end with trailing whitespace");
    chat->prefill = text;
    json_incref((json_t *)(uintptr_t)last); /* the memory of all values is freed with that of the body */
    return json_array_remove(out, n - 1);
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
        status = take_prefill(out, chat, error);
    chat->messages = out;
    return status;
}

/* Turns {"name", "description", "input_schema"} into {"type": "function", "function": {..., "parameters"}}. */
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
    chat->strict_tools = strict; /* not in the tools themselves, which the template may write out */
    return 0;
}

static int convert_choices(const MessagesInput *in, ChatMessages *chat, ApiError *error) {
    const json_t *choice = json_object_get(in->tool_choice, "type");
    json_t *name = json_object_get(in->tool_choice, "name");
    bool is_named = field_is_text(choice, "tool") && json_is_string(name);
    if (in->tool_choice && !field_is_text(choice, "auto") && !field_is_text(choice, "none") &&
        !field_is_text(choice, "any") && !is_named)
        return api_refuse(error, 400, "invalid_value", "tool_choice",
                          "'tool_choice' must be of type 'auto', 'none' or 'any', or 'tool' with a name");
    chat->has_one_call = json_is_true(json_object_get(in->tool_choice, "disable_parallel_tool_use"));
    chat->tool_choice = is_named                       ? json_pack("{s:s, s:O}", "type", "function", "name", name)
                        : field_is_text(choice, "any") ? json_string("required")
                                                       : choice;
    return 0;
}

int messages_convert(const MessagesInput *in, ChatMessages *chat, ApiError *error) {
    if (convert_messages(in, chat, error) || convert_tools(in, chat, error)) return -1;
    return convert_choices(in, chat, error);
}

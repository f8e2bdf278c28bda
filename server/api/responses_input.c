/* responses_input.c - the items of the Responses API to the messages of chat templates.
 *
 * Items of type "message" are messages; "function_call" becomes "tool_calls" of the assistant, "function_call_output" a
 * message of role "tool". Reasoning of earlier answers is left out, as templates do. Items that only a server with a
 * memory knows ("item_reference") are refused. */
#include "server/api/responses_input.h"

#include <string.h>

/* Parts of text under the names of this API become parts of type "text", which chat_messages.c joins; it refuses others. */
static void name_parts(const json_t *content) {
    size_t i;
    json_t *part;
    json_array_foreach(content, i, part) {
        const json_t *type = json_object_get(part, "type");
        if (field_is_text(type, "input_text") || field_is_text(type, "output_text"))
            json_object_set_new(part, "type", json_string("text"));
    }
}

static int add_call(json_t *out, const json_t *item, size_t i, ApiError *error) {
    json_t *id = json_object_get(item, "call_id"), *name = json_object_get(item, "name");
    json_t *arguments = json_object_get(item, "arguments"), *last = json_array_get(out, json_array_size(out) - 1);
    if (!json_is_string(id) || !json_is_string(name) || !json_is_string(arguments))
        return api_refuse(error, 400, "invalid_type", "input",
                          "input[%zu] must have 'call_id', 'name' and 'arguments', which are strings", i);
    if (!field_is_text(json_object_get(last, "role"), "assistant")) {
        last = json_pack("{s:s, s:s}", "role", "assistant", "content", "");
        json_array_append_new(out, last);
    }
    if (!json_object_get(last, "tool_calls")) json_object_set_new(last, "tool_calls", json_array());
    json_array_append_new(json_object_get(last, "tool_calls"),
                          json_pack("{s:O, s:s, s:{s:O, s:O}}", "id", id, "type", "function", "function", "name", name,
                                    "arguments", arguments));
    return 0;
}

static int add_output(json_t *out, const json_t *item, size_t i, ApiError *error) {
    json_t *id = json_object_get(item, "call_id"), *output = json_object_get(item, "output");
    if (!json_is_string(id) || (!json_is_string(output) && !json_is_array(output)))
        return api_refuse(error, 400, "invalid_type", "input", "input[%zu] must have 'call_id' and 'output'", i);
    name_parts(output);
    json_array_append_new(out, json_pack("{s:s, s:O, s:O}", "role", "tool", "tool_call_id", id, "content", output));
    return 0;
}

static int add_item(json_t *out, const json_t *item, size_t i, ApiError *error) {
    const json_t *type = json_object_get(item, "type");
    json_t *role = json_object_get(item, "role"), *content = json_object_get(item, "content");
    if (field_is_text(type, "function_call")) return add_call(out, item, i, error);
    if (field_is_text(type, "function_call_output")) return add_output(out, item, i, error);
    if (field_is_text(type, "reasoning")) return 0;
    if ((type && !field_is_text(type, "message")) || !json_is_string(role) || !content)
        return api_refuse(error, 400, "unsupported_content", "input",
                          "input[%zu] of type '%.40s' is not supported, or is incomplete", i,
                          json_is_string(type) ? json_string_value(type) : "message");
    name_parts(content);
    json_array_append_new(out, json_pack("{s:O, s:O}", "role", role, "content", content));
    return 0;
}

static int convert_items(const ResponsesInput *in, ChatMessages *chat, ApiError *error) {
    json_t *out = json_array();
    int status = 0;
    if (!json_is_string(in->input) && json_array_size(in->input) == 0)
        return api_refuse(error, 400, "invalid_type", "input", "'input' must be a string or a list of items");
    if (in->instructions)
        json_array_append_new(out, json_pack("{s:s, s:s}", "role", "system", "content", in->instructions));
    if (json_is_string(in->input))
        json_array_append_new(out, json_pack("{s:s, s:O}", "role", "user", "content", in->input));
    for (size_t i = 0; i < json_array_size(in->input) && !status; i++)
        status = add_item(out, json_array_get(in->input, i), i, error);
    chat->messages = out;
    return status;
}

/* {"type": "function", "name", ...} becomes {"type": "function", "function": {"name", ...}}. */
static int convert_tools(const ResponsesInput *in, ChatMessages *chat, ApiError *error) {
    json_t *out = json_array(), *strict = json_array();
    if (in->tools && !json_is_array(in->tools))
        return api_refuse(error, 400, "invalid_type", "tools", "'tools' must be a list");
    for (size_t i = 0; i < json_array_size(in->tools); i++) {
        const json_t *tool = json_array_get(in->tools, i);
        json_t *name = json_object_get(tool, "name");
        if (!field_is_text(json_object_get(tool, "type"), "function") || !json_is_string(name))
            return api_refuse(error, 400, "unsupported_parameter", "tools",
                              "tools[%zu] must be of type 'function' and have a name", i);
        json_array_append_new(out, json_pack("{s:s, s:{s:O, s:O*, s:O*}}", "type", "function", "function", "name", name,
                                             "description", json_object_get(tool, "description"), "parameters",
                                             json_object_get(tool, "parameters")));
        json_array_append_new(strict, json_boolean(json_is_true(json_object_get(tool, "strict"))));
    }
    chat->tools = out;
    chat->strict_tools = strict; /* apart from the tools, which the template may write out */
    return 0;
}

int responses_input_convert(const ResponsesInput *in, ChatMessages *chat, ApiError *error) {
    chat->reasoning_effort = json_string_value(json_object_get(in->reasoning, "effort"));
    if (convert_items(in, chat, error)) return -1;
    return convert_tools(in, chat, error);
}

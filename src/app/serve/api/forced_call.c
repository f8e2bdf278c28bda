/* forced_call.c - makes a schema of the calls that may come, in the form of the model's family.
 *
 *     <tool_call>                                        added to the prompt, so that the model sees its own form begin
 *     {"name": "weather", "arguments": {...}}            {"properties": {"name": {"const": "weather"}, "arguments": PARAMETERS}}
 *
 * One call is made; the text ends behind it. An answer that begins with reasoning cannot begin with a mark: there the schema holds
 * behind the reasoning, and the call has no mark. PARAMETERS is the tool's own schema, whose references within itself are made
 * to start where it now stands. */
#include "app/serve/api/forced_call.h"

#include "app/serve/api/constraint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_SIZE = 64 };

/* ---- the schema ------------------------------------------------------------------------------------------------ */

/* "#/$defs/x" becomes "<path>/$defs/x". */
static json_t *moved_reference(const char *reference, const char *path) {
    return json_sprintf("%s%s", path, reference + 1);
}

static json_t *moved_schema(const json_t *schema, const char *path) {
    const char *name;
    json_t *value, *copy;
    size_t i;
    if (json_is_array(schema)) {
        copy = json_array();
        json_array_foreach(schema, i, value) json_array_append_new(copy, moved_schema(value, path));
        return copy;
    }
    if (!json_is_object(schema)) return json_incref((json_t *)(uintptr_t)schema);
    copy = json_object();
    json_object_foreach((json_t *)(uintptr_t)schema, name, value) {
        bool is_own = strcmp(name, "$ref") == 0 && json_is_string(value) && json_string_value(value)[0] == '#';
        json_object_set_new(copy, name,
                            is_own ? moved_reference(json_string_value(value), path) : moved_schema(value, path));
    }
    return copy;
}

/* path: where the schema of this call will stand. */
static json_t *call_schema(const ToolForm *form, const json_t *function, const char *path) {
    const json_t *parameters = json_object_get(function, "parameters");
    char place[PATH_SIZE + 32];
    snprintf(place, sizeof place, "%s/properties/%s", path, form->arguments);
    json_t *arguments = json_object_size(parameters) > 0 ? moved_schema(parameters, place)
                                                         : json_pack("{s:s}", "type", "object");
    return json_pack("{s:s, s:{s:{s:O}, s:o}, s:[s, s], s:b}", "type", "object", "properties", "name", "const",
                     json_object_get(function, "name"), form->arguments, arguments, "required", "name", form->arguments,
                     "additionalProperties", 0);
}

/* Of the function `name`, or of all where it is NULL. */
static json_t *calls_schema(const ToolForm *form, const ChatMessages *f, const char *name) {
    json_t *calls = json_array();
    bool is_one = name || json_array_size(f->tools) == 1;
    for (size_t i = 0; i < json_array_size(f->tools); i++) {
        const json_t *function = json_object_get(json_array_get(f->tools, i), "function");
        char path[PATH_SIZE];
        if (name && strcmp(json_string_value(json_object_get(function, "name")), name) != 0) continue;
        if (is_one) snprintf(path, sizeof path, "#%s", form->is_list ? "/items" : "");
        else snprintf(path, sizeof path, "#%s/anyOf/%zu", form->is_list ? "/items" : "", i);
        json_array_append_new(calls, call_schema(form, function, path));
        if (is_one) break;
    }
    json_t *one = is_one ? json_incref(json_array_get(calls, 0)) : json_pack("{s:o}", "anyOf", calls);
    if (!form->is_list) return one;
    return json_pack("{s:s, s:o, s:i, s:i}", "type", "array", "items", one, "minItems", 1, "maxItems", 1);
}

/* ---- the prompt -------------------------------------------------------------------------------------------------- */

static int add_mark(const ServedModel *m, Prompt *prompt, const char *mark, ApiError *error) {
    int32_t *ids;
    int64_t n;
    fr_error why;
    if (fr_tokenize(m->model, mark, strlen(mark), FR_TOKENIZE_SPECIAL, &ids, &n, &why))
        return api_refuse_error(error, "tool_choice", &why);
    int32_t *grown = realloc(prompt->tokens, (size_t)(prompt->n + n) * sizeof *grown);
    if (grown) {
        memcpy(grown + prompt->n, ids, (size_t)n * sizeof *ids);
        prompt->tokens = grown;
        prompt->n += n;
    }
    fr_free(ids);
    return grown ? 0 : api_refuse(error, 500, NULL, NULL, "memory ran out");
}

int forced_call_prepare(ApiCall *call, Answers *a, const ChatMessages *f, const char **mark) {
    const char *name;
    *mark = NULL;
    if (!chat_messages_forces_call(f, &name)) return 0;
    if (call->plan.grammar)
        return api_refuse(&call->error, 400, "invalid_value", "tool_choice",
                          "'tool_choice' that forces a call excludes a schema or grammar for the answer");
    a->own_form = *a->form.tools;
    a->form.tools = &a->own_form;
    if (a->form.is_reasoning) {
        a->own_form.is_bare = true;
        a->own_form.is_list = false;
    } else *mark = a->own_form.opening;
    const json_t *schema = calls_schema(&a->own_form, f, name);
    if (constraint_set_schema(&call->plan, &call->service->grammars, schema, "tools", &call->error)) return -1;
    return *mark ? add_mark(call->plan.model, &call->plan.prompts[0], *mark, &call->error) : 0;
}

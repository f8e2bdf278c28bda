/* llama_endpoints.c - the smaller endpoints of llama.cpp's server, which its page and its clients call.
 *
 *     POST /v1/chat/completions/control    ends the reasoning of a chat that is being generated
 *     POST /v1/streams/lookup              which streams can be resumed: none, as a stream ends with its connection
 *     GET, DELETE /v1/stream               resumes such a stream, or forgets it
 *     GET, POST /lora-adapters             the adapters: none
 *     POST /props                          changes properties of the server, which cannot be changed
 *
 * What llama.cpp's server offers only if its operator asks for it, /tools and /cors-proxy, is refused with 403 as it
 * does, because its page does not take 404 for an answer. */
#include "server/api/openai_format.h"
#include "server/api/plan.h"

#include <string.h>

/* ---- control ----------------------------------------------------------------------------------------------- */

typedef struct ControlFields {
    const char *model, *id, *action;
} ControlFields;

static const Field control_fields[] = {
    {.name = "model", FIELD(ControlFields, TEXT, model)},
    {.name = "id", FIELD(ControlFields, TEXT, id)},
    {.name = "action", FIELD(ControlFields, TEXT, action)},
    {.name = NULL},
};

/* Keeps the id of the chat in call->id until control_chat runs. */
static int read_control(ApiCall *call, const json_t *body) {
    const Field *const tables[] = {control_fields, NULL};
    ControlFields f = {.model = NULL};
    if (fields_read(tables, body, &f, call)) return -1;
    if (!f.id || !*f.id)
        return api_refuse(&call->error, 400, "missing_field", "id", "'id' is missing: the id of a chat completion");
    if (!f.action || strcmp(f.action, "reasoning_end") != 0)
        return api_refuse(&call->error, 400, "invalid_value", "action", "'action' must be \"reasoning_end\"");
    if (strlen(f.id) < sizeof call->id) memcpy(call->id, f.id, strlen(f.id) + 1);
    return 0;
}

/* Returns the chat of an id while it is being generated; NULL: there is none. */
static const ApiCall *find_chat(const Service *s, const ApiCall *asker) {
    for (const ApiCall *c = s->calls; c; c = c->next)
        if (c != asker && !c->is_in_worker && c->n_running > 0 && strcmp(c->id, asker->id) == 0) return c;
    return NULL;
}

static int control_chat(ApiCall *call) {
    const ApiCall *chat = find_chat(call->service, call);
    bool is_ready = chat && chat->plan.reasoning_end;
    for (int i = 0; is_ready && i < chat->n_choices; i++)
        if (chat->choices[i].generation) generation_end_reasoning(chat->choices[i].generation);
    JsonOut out = json_out_begin(&call->reply);
    json_out_mark(&out, '{');
    json_out_key_bool(&out, "success", is_ready);
    if (!chat) json_out_key_text(&out, "message", "no chat completion of this id is being generated");
    else if (!is_ready)
        json_out_key_text(&out, "message",
                          "the model does not reason, or the chat is without 'reasoning_control': true");
    json_out_mark(&out, '}');
    return api_end_reply(call, out.failed);
}

/* ---- streams ----------------------------------------------------------------------------------------------- */

typedef struct LookupFields {
    const json_t *ids;
} LookupFields;

static const Field lookup_fields[] = {{.name = "conversation_ids", FIELD(LookupFields, ANY, ids)}, {.name = NULL}};

static int write_no_list(ApiCall *call) { return api_end_reply(call, !buf_append(&call->reply, "[]", 2)); }

static int look_up_streams(ApiCall *call, const json_t *body) {
    const Field *const tables[] = {lookup_fields, NULL};
    LookupFields f = {.ids = NULL};
    if (fields_read(tables, body, &f, call)) return -1;
    if (!json_is_array(f.ids))
        return api_refuse(&call->error, 400, "invalid_type", "conversation_ids", "'conversation_ids' must be a list");
    return write_no_list(call);
}

static int resume_stream(ApiCall *call) {
    return api_refuse(&call->error, 404, "not_found", "conv_id",
                      "no stream is kept for this conversation: a stream ends with its connection");
}

static int forget_stream(ApiCall *call) {
    call->reply_status = 204;
    return 0;
}

/* ---- what this server does not have ------------------------------------------------------------------------ */

static int list_adapters(ApiCall *call) { return write_no_list(call); }

static int set_adapters(ApiCall *call, const json_t *body) {
    if (!json_is_array(body))
        return api_refuse(&call->error, 400, "invalid_type", NULL, "the body must be a list of adapters");
    if (json_array_size(body) > 0)
        return api_refuse(&call->error, 400, "unsupported_parameter", NULL, "LoRA adapters are not supported");
    return api_end_reply(call, !buf_append(&call->reply, "{\"success\":true}", 16));
}

static int refuse_disabled(ApiCall *call) {
    return api_refuse(&call->error, 403, "feature_disabled", NULL, "this server has no tools and no proxy for pages");
}

static int refuse_change(ApiCall *call) {
    return api_refuse(&call->error, 501, "not_supported", NULL, "the properties of this server cannot be changed");
}

static int refuse_audio(ApiCall *call) {
    return api_refuse(&call->error, 501, "not_supported", NULL, "audio is not supported; this model reads text");
}

static const ApiFormat format = {.write_error = openai_write_error};

const Endpoint llama_endpoints[] = {
    {.method = "POST",
     .path = "/v1/chat/completions/control",
     .format = &format,
     .prepare = read_control,
     .finish = control_chat},
    {.method = "POST", .path = "/v1/streams/lookup", .format = &format, .prepare = look_up_streams},
    {.method = "GET", .path = "/v1/stream", .format = &format, .answer = resume_stream},
    {.method = "DELETE", .path = "/v1/stream", .format = &format, .answer = forget_stream},
    {.method = "GET", .path = "/lora-adapters", .format = &format, .answer = list_adapters},
    {.method = "POST", .path = "/lora-adapters", .format = &format, .prepare = set_adapters, .takes_array = true},
    {.method = "POST", .path = "/props", .format = &format, .answer = refuse_change},
    {.method = "GET", .path = "/tools", .format = &format, .answer = refuse_disabled},
    {.method = "POST", .path = "/tools", .format = &format, .answer = refuse_disabled},
    {.method = "GET", .path = "/cors-proxy", .format = &format, .answer = refuse_disabled},
    {.method = "POST", .path = "/cors-proxy", .format = &format, .answer = refuse_disabled},
    {.method = "POST", .path = "/v1/audio/transcriptions", .format = &format, .answer = refuse_audio},
    {.method = "POST", .path = "/audio/transcriptions", .format = &format, .answer = refuse_audio},
    {.path = NULL},
};

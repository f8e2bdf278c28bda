/* slot_endpoints.c - POST /slots/ID?action=save, restore and erase, of llama.cpp's server: a slot in a file of the
 * operator's folder.
 *
 * The engine thread copies what the slot holds between two steps, and the worker writes and reads the file, so that no
 * stream waits for the disk. */
#include "server/api/answers.h"
#include "server/api/openai_format.h"
#include "server/engine/slots.h"

#include "base/system.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct SlotFields {
    const char *model, *filename;
} SlotFields;

static const Field slot_fields[] = {{.name = "model", FIELD(SlotFields, TEXT, model)},
                                    {.name = "filename", FIELD(SlotFields, TEXT, filename)},
                                    {.name = NULL}};

/* Reads the number in the path and the action in the query. */
static int read_action(ApiCall *call, SlotAction *a) {
    static const char *const names[] = {"action=save", "action=restore", "action=erase"};
    const Service *s = call->service;
    char *end;
    long id = strtol(call->name, &end, 10);
    int kind = 0;
    while (kind < 3 && strcmp(call->query, names[kind]) != 0) kind++;
    if (kind == 3)
        return api_refuse(&call->error, 400, "invalid_value", "action",
                          "the action must be one of ?action=save, ?action=restore and ?action=erase");
    a->kind = (SlotActionKind)kind;
    for (int i = 0; i < s->n_models && isdigit((unsigned char)call->name[0]) && !*end; i++)
        if (id >= s->models[i].first_slot && id < s->models[i].first_slot + s->models[i].max_requests)
            a->model = &s->models[i], a->slot = (int)id;
    if (a->model) return 0;
    return api_refuse(&call->error, 400, "invalid_value", "id", "there is no such slot; GET /slots lists them");
}

/* A name is a file of the folder itself: no path, and no hidden file. */
static bool is_plain_name(const char *name) {
    size_t n = strlen(name);
    bool is_plain = n > 0 && n <= 200 && name[0] != '.';
    for (size_t i = 0; i < n; i++)
        is_plain = is_plain && (unsigned char)name[i] > ' ' && !strchr("/\\:*?\"<>|\x7f", name[i]);
    return is_plain;
}

static int find_file(ApiCall *call, const char *name, char *path, size_t n) {
    if (!name || !is_plain_name(name))
        return api_refuse(&call->error, 400, "invalid_value", "filename",
                          "'filename' must be the name of a file, of at most 200 bytes, without a path, blanks and "
                          "special characters, that does not begin with '.'");
    if (snprintf(path, n, "%s/%s", call->service->slot_folder, name) < (int)n) return 0;
    return api_refuse(&call->error, 400, "invalid_value", "filename", "'filename' is too long");
}

/* An error of a file or of its content is the client's, who chose it. */
static int refuse(ApiCall *call, const SlotAction *a) {
    int code = a->error.code;
    if (code == FR_ERR_FORMAT || code == FR_ERR_MISMATCH || (code == FR_ERR_IO && a->kind == SLOT_RESTORE))
        return api_refuse(&call->error, 400, "invalid_slot_file", "filename", "%s", a->error.message);
    if (code == FR_ERR_MEMORY) return api_refuse(&call->error, 503, "no_room", NULL, "%s", a->error.message);
    return api_refuse_error(&call->error, NULL, &a->error);
}

static int run(ApiCall *call, SlotAction *a, const char *path) {
    if (a->kind == SLOT_RESTORE && (a->status = slot_file_read(path, &a->data, &a->n_bytes, &a->error)))
        return refuse(call, a);
    if (!engine_thread_run(&call->service->engine, slot_action_run, a))
        return api_refuse(&call->error, 503, NULL, NULL, "the server is shutting down");
    if (a->is_busy)
        return api_refuse(&call->error, 409, "slot_busy", "id", "slot %d is busy; try again when its request has ended",
                          a->slot);
    if (!a->status && a->kind == SLOT_SAVE) a->status = slot_file_write(path, a->data, a->n_bytes, &a->error);
    return a->status ? refuse(call, a) : 0;
}

static int write_reply(ApiCall *call, const SlotAction *a, const char *name, double seconds) {
    static const char *const tokens[] = {"n_saved", "n_restored", "n_erased"}, *const bytes[] = {"n_written", "n_read"},
                             *const times[] = {"save_ms", "restore_ms"};
    JsonOut out = json_out_begin(&call->reply);
    json_out_mark(&out, '{');
    json_out_key_int(&out, "id_slot", a->slot);
    if (a->kind != SLOT_ERASE) json_out_key_text(&out, "filename", name);
    json_out_key_int(&out, tokens[a->kind], a->n_tokens);
    if (a->kind != SLOT_ERASE) {
        json_out_key_int(&out, bytes[a->kind], (int64_t)a->n_bytes);
        json_out_open(&out, "timings", '{');
        json_out_key_real(&out, times[a->kind], seconds * 1e3);
        json_out_mark(&out, '}');
    }
    json_out_mark(&out, '}');
    return api_end_reply(call, out.failed);
}

static int act(ApiCall *call, const json_t *body) {
    const Field *const tables[] = {slot_fields, NULL};
    SlotFields f = {.model = NULL};
    SlotAction a = {.model = NULL};
    char path[4096] = "";
    double start_s = clock_s();
    if (!call->service->slot_folder)
        return api_refuse(&call->error, 501, "not_supported", NULL,
                          "this server does not save slots; the operator can start it with --slot-save-path");
    if (fields_read(tables, body, &f, call) || read_action(call, &a)) return -1;
    if (a.kind != SLOT_ERASE && find_file(call, f.filename, path, sizeof path)) return -1;
    int status = run(call, &a, path);
    fr_free(a.data);
    return status ? status : write_reply(call, &a, f.filename, clock_s() - start_s);
}

static const ApiFormat format = {.write_error = openai_write_error};

const Endpoint slot_endpoints[] = {
    {.method = "POST", .path = "/slots/", .format = &format, .prepare = act, .has_name = true, .needs_no_body = true},
    {.path = NULL},
};

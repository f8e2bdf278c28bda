/* request_log.c - the log of `forerun serve`.
 *
 * A request gets one line on standard error: when, from where, what, its status, how long it took, how many tokens it
 * had. No prompt and no text is part of it. Paths and names of fields come from clients, and are escaped. Status 499:
 * the client hung up.
 *
 *     2026-11-22T13:05:09 127.0.0.1:40112 POST /v1/chat/completions 200 0.841 s, 3 + 64 tokens (16 cached),
 *     29 of 60 drafted accepted */
#include "base/system.h"
#include "cli/command.h"
#include "server/api/api.h"
#include "server/api/openai_format.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

static const char *now_text(char text[32]) {
    struct tm tm;
    time_t now = time(NULL);
    strftime(text, 32, "%Y-%m-%dT%H:%M:%S", localtime_r(&now, &tm));
    return text;
}

void request_log_write(const ApiCall *call, int status) {
    char when[32], tokens[160] = "";
    Printable param;
    /* If the client hung up before its call was prepared, the worker may still be writing the error and the choices. */
    const ApiError *e = call->is_in_worker ? &(ApiError){.status = 0} : &call->error;
    if (!call->service->logs) return;
    fr_stats s = call->is_in_worker ? (fr_stats){.struct_size = 0} : openai_sum(call);
    if (s.n_prompt)
        snprintf(tokens, sizeof tokens, ", %lld + %lld tokens (%lld cached), %lld of %lld drafted accepted",
                 (long long)s.n_prompt, (long long)s.n_generated, (long long)s.n_prompt_shared, (long long)s.accepted,
                 (long long)s.drafted);
    fprintf(stderr, "%s %s %s %s %d %.3f s%s%s%s%s%s\n", now_text(when), call->peer, call->method, call->path, status,
            clock_s() - call->started_s, tokens, e->status ? ", " : "", e->status && e->code ? e->code : "",
            e->status && e->param[0] ? " " : "", e->status ? printable(&param, e->param, strlen(e->param)) : "");
}

void request_log_refusal(const Service *s, const char *peer, const char *method, const char *path, int status) {
    char when[32];
    Printable safe_method, safe_path;
    if (!s->logs) return;
    fprintf(stderr, "%s %s %s %s %d\n", now_text(when), peer, printable(&safe_method, method, strlen(method)),
            printable(&safe_path, path, strlen(path)), status);
}

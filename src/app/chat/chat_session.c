/* chat_session.c - opening and closing a conversation, and its drafters. */
#include "app/chat/chat_session.h"

#include "app/safe_text.h"
#include "base/error.h"
#include "engine/engine.h"
#include "spec/drafter/drafter.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void chat_session_say(const ChatSession *s, const char *sentence, ...) {
    (void)s;
    va_list ap;
    fflush(stdout);
    va_start(ap, sentence);
    vfprintf(stderr, sentence, ap);
    va_end(ap);
    fputc('\n', stderr);
}

/* ---- drafters ------------------------------------------------------------------------------------------ */

static void forget_drafters(ChatSession *s) {
    for (int i = 0; i < s->n_drafters; i++) free(s->drafters[i]);
    s->n_drafters = 0;
    memset(s->accepted, 0, sizeof s->accepted);
}

/* In the order in which a request numbers them: "none" is no drafter, and one that is named twice counts once. */
static int note_drafter(void *session, const char *spec, fr_error *err) {
    ChatSession *s = session;
    if (strcmp(spec, "none") == 0) return FR_OK;
    for (int i = 0; i < s->n_drafters; i++)
        if (strcmp(s->drafters[i], spec) == 0) return FR_OK;
    if (s->n_drafters == CHAT_MAX_DRAFTERS)
        return error_set(err, FR_ERR_ARGUMENT, "at most %d drafters can be united", CHAT_MAX_DRAFTERS);
    char *copy = strdup(spec);
    if (!copy) return error_memory(err, "a drafter", strlen(spec));
    s->drafters[s->n_drafters++] = copy;
    return FR_OK;
}

static int note_drafters(ChatSession *s, fr_error *err) {
    int status = FR_OK;
    forget_drafters(s);
    for (int i = 0; i < s->args->n_drafts && !status; i++)
        status = drafter_each(s->args->drafts[i], note_drafter, s, err);
    return status;
}

/* What has no cost model has no closing line about plain decoding, so a failure to measure is none. */
static void measure_costs(const ChatSession *s) {
    if (s->is_terminal && s->n_drafters > 0) (void)fr_engine_measure_costs(s->engine, NULL);
}

int chat_session_set_drafts(ChatSession *s, const char *drafts, fr_error *err) {
    char *copy = strdup(drafts);
    const char *list[] = {copy};
    if (!copy) return error_memory(err, "the names of drafters", strlen(drafts));
    int status = generate_check_drafts(list, 1, err);
    if (!status) status = fr_engine_open_draft(s->engine, copy, err);
    if (!status && s->args->tree_budget == FR_TREE_BUDGET_AUTO) status = fr_engine_measure_costs(s->engine, err);
    if (status) {
        free(copy);
        return status;
    }
    free(s->drafts);
    s->args->drafts[0] = s->drafts = copy;
    s->args->n_drafts = 1;
    status = note_drafters(s, err);
    measure_costs(s);
    return status;
}

void chat_session_show_drafts(const ChatSession *s) {
    if (s->n_drafters == 0) {
        chat_session_say(s, "No drafter: plain decoding.");
        return;
    }
    fflush(stdout);
    for (int i = 0; i < s->n_drafters; i++) {
        SafeText name;
        fprintf(stderr, "%s%s%s%s", i ? ", " : "Drafters: ", s->use_color ? generate_source_color(i) : "",
                safe_text(&name, s->drafters[i]), s->use_color ? GENERATE_COLOR_OFF : "");
        if (s->total.n_generated)
            fprintf(stderr, " (%lld token%s)", (long long)s->accepted[i], cli_plural(s->accepted[i]));
    }
    fputs(s->use_color ? "; what the model added itself has no colour.\n" : ".\n", stderr);
}

/* ---- opening ------------------------------------------------------------------------------------------- */

int chat_session_n_ctx(const ChatSession *s) { return s->engine->options.n_ctx; }

int chat_session_open(ChatSession *s, GenerateArgs *args, bool is_terminal, fr_error *err) {
    *s = (ChatSession){.args = args, .is_terminal = is_terminal};
    s->use_color = generate_use_color(args->color, STDOUT_FILENO);
    int status = note_drafters(s, err);
    if (!status && args->system) status = chat_turns_set_system(&s->turns, args->system, err);
    if (!status) status = generate_open_model(&s->model, args, err);
    if (!status)
        status = generate_open_engine(&s->engine, s->model, &args->engine, args->drafts, args->n_drafts,
                                      args->tree_budget, err);
    if (!status) measure_costs(s);
    return status;
}

void chat_session_close(ChatSession *s) {
    forget_drafters(s);
    chat_turns_free(&s->turns);
    free(s->drafts);
    fr_engine_close(s->engine);
    fr_model_close(s->model);
    *s = (ChatSession){0};
}

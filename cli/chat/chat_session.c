/* chat_session.c - opening and closing a conversation, and its drafters. */
#include "cli/chat/chat_session.h"

#include "cli/chat/chat_sampling.h"
#include "cli/safe_text.h"
#include "base/error.h"
#include "draft/drafter.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool fits_in_a_line(const char *text) {
    for (size_t n; *text; text += n + (text[n] == '\n'))
        if ((n = strcspn(text, "\n")) > CLI_WIDTH) return false;
    return true;
}

/* Where a person reads it, long lines are broken between words. */
void chat_say(const char *sentence, ...) {
    char *text;
    va_list ap;
    fflush(stdout);
    va_start(ap, sentence);
    int n = vasprintf(&text, sentence, ap);
    va_end(ap);
    if (n < 0) { /* no memory: unbroken, then */
        va_start(ap, sentence);
        vfprintf(stderr, sentence, ap);
        va_end(ap);
        fputc('\n', stderr);
        return;
    }
    Buf wrapped = {.max_bytes = 1 << 20};
    bool is_wrapped = isatty(STDERR_FILENO) && !fits_in_a_line(text) && text_wrap(&wrapped, text, 0, 0, CLI_WIDTH) &&
                      buf_append(&wrapped, "", 1);
    fprintf(stderr, "%s\n", is_wrapped ? wrapped.data : text);
    buf_free(&wrapped);
    free(text);
}

/* ---- drafters ------------------------------------------------------------------------------------------ */

static void forget_drafters(ChatDrafters *d) {
    for (int i = 0; i < d->n; i++) free(d->names[i]);
    *d = (ChatDrafters){.n = 0};
}

/* In the order in which a request numbers them: "none" is no drafter, and one that is named twice counts once. */
static int note_drafter(void *drafters, const char *spec, fr_error *err) {
    ChatDrafters *d = drafters;
    if (strcmp(spec, "none") == 0) return FR_OK;
    for (int i = 0; i < d->n; i++)
        if (strcmp(d->names[i], spec) == 0) return FR_OK;
    if (d->n == CHAT_MAX_DRAFTERS)
        return error_set(err, FR_ERR_ARGUMENT, "at most %d drafters can be united", CHAT_MAX_DRAFTERS);
    char *copy = strdup(spec);
    if (!copy) return error_memory(err, "a drafter", strlen(spec));
    d->names[d->n++] = copy;
    return FR_OK;
}

/* What has no cost model has no closing line about plain decoding, so a failure to measure is none. */
static void measure_costs(const ChatSession *s) {
    if (s->is_terminal && s->drafters.n > 0) (void)fr_engine_measure_costs(s->engine, NULL);
}

/* Opens them, and notes their names in *d. */
static int open_drafts(const ChatSession *s, const char *drafts, ChatDrafters *d, fr_error *err) {
    int status = generate_check_drafts(&drafts, 1, err);
    if (!status) status = drafter_each(drafts, note_drafter, d, err);
    if (!status) status = fr_engine_open_draft(s->engine, drafts, err);
    if (!status && s->args->tree_budget == FR_TREE_BUDGET_AUTO) status = fr_engine_measure_costs(s->engine, err);
    return status;
}

int chat_session_set_drafts(ChatSession *s, const char *drafts, fr_error *err) {
    ChatDrafters drafters = {.n = 0};
    char *copy = strdup(drafts);
    int status = copy ? open_drafts(s, copy, &drafters, err) : (int)error_memory(err, "a draft", strlen(drafts));
    if (status) {
        forget_drafters(&drafters);
        free(copy);
        return status;
    }
    forget_drafters(&s->drafters);
    free(s->drafts);
    s->drafters = drafters;
    s->args->drafts[0] = s->drafts = copy;
    s->args->n_drafts = 1;
    measure_costs(s);
    return FR_OK;
}

void chat_session_show_drafts(const ChatSession *s) {
    const ChatDrafters *d = &s->drafters;
    if (d->n == 0) {
        chat_say("No drafter: plain decoding.");
        return;
    }
    fflush(stdout);
    for (int i = 0; i < d->n; i++) {
        SafeText name;
        fprintf(stderr, "%s%s%s%s", i ? ", " : "Drafters: ", s->use_color ? generate_source_color(i) : "",
                safe_text(&name, d->names[i]), s->use_color ? GENERATE_COLOR_OFF : "");
        if (s->total.counts.n_generated)
            fprintf(stderr, " (%lld token%s)", (long long)d->accepted[i], cli_plural(d->accepted[i]));
    }
    fputs(s->use_color ? "; what the model added itself has no colour.\n" : ".\n", stderr);
}

/* ---- opening ------------------------------------------------------------------------------------------- */

int chat_session_n_ctx(const ChatSession *s) {
    fr_engine_options options = {.struct_size = sizeof options};
    fr_engine_get_options(s->engine, &options);
    return options.n_ctx;
}

int chat_session_open(ChatSession *s, GenerateArgs *args, bool is_terminal, fr_error *err) {
    *s = (ChatSession){.args = args, .is_terminal = is_terminal};
    s->use_color = generate_use_color(args->color, STDOUT_FILENO);
    int status = FR_OK;
    for (int i = 0; i < args->n_drafts && !status; i++)
        status = drafter_each(args->drafts[i], note_drafter, &s->drafters, err);
    if (!status && args->system) status = chat_turns_set_system(&s->turns, args->system, err);
    if (!status) status = generate_open_model(&s->model, args, err);
    if (!status) chat_sampling_complete(&args->sampling, s->model);
    if (!status)
        status = generate_open_engine(&s->engine, s->model, &args->engine, args->drafts, args->n_drafts,
                                      args->tree_budget, err);
    if (!status) measure_costs(s);
    return status;
}

void chat_session_close(ChatSession *s) {
    forget_drafters(&s->drafters);
    chat_turns_free(&s->turns);
    free(s->drafts);
    fr_engine_close(s->engine);
    fr_model_close(s->model);
    *s = (ChatSession){0};
}

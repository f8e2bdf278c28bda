/* chat_answer.c - one turn of a conversation: a prompt, a request that is run to its end or to Ctrl-C, and what is said
 * about it afterwards. */
#include "cli/chat/chat_prompt.h"
#include "cli/chat/chat_session.h"
#include "cli/chat/terminal_signals.h"
#include "cli/run/closing_line.h"
#include "cli/run/text_output.h"
#include "cli/stats_json.h"
#include "base/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What the callback of a token needs. */
typedef struct Shown {
    ChatSession *session;
    TextOutput text;
} Shown;

static int show_token(void *user, const fr_token_event *event) {
    Shown *shown = user;
    if (event->source >= 0 && event->source < CHAT_MAX_DRAFTERS) shown->session->drafters.accepted[event->source]++;
    return text_output_write(&shown->text, event) || terminal_signals_interrupted();
}

/* The prompt, which must leave room for an answer. */
static int make_prompt(ChatSession *s, int32_t **prompt, int64_t *n_prompt, fr_error *err) {
    int n_ctx = chat_session_n_ctx(s);
    int status = chat_prompt(s->model, s->args, &s->turns, &s->wants_plain, prompt, n_prompt, err);
    if (status || *n_prompt < n_ctx) return status;
    long long n = (long long)*n_prompt;
    fr_free(*prompt);
    *prompt = NULL;
    return error_set(err, FR_ERR_CONTEXT,
                     "this turn does not fit: the conversation would have %lld tokens, and the context holds %d; /undo "
                     "drops the last turn, /clear all of them, and -c N makes the context longer",
                     n, n_ctx);
}

static int open_request(ChatSession *s, Shown *shown, const int32_t *prompt, int64_t n_prompt, fr_request **out,
                        fr_error *err) {
    fr_request_options o = generate_request_options(s->args, s->args->drafts, s->args->n_drafts);
    const char *stops[GENERATE_MAX_CHAT_STOPS];
    o.prompt = prompt;
    o.n_prompt = n_prompt;
    o.on_token = show_token;
    o.user = shown;
    o.sampling.seed = s->last_seed = s->args->sampling.seed + chat_turns_last(&s->turns)->n_regenerated;
    if (s->wants_plain || generate_is_plain(s->args, s->model)) generate_stop_at_turns(&o, stops);
    return fr_request_open(out, s->engine, &o, err);
}

/* Ctrl-C is noticed between two steps of the prompt too, where no token calls back. */
static int run_request(ChatSession *s, const fr_request *r, fr_error *err) {
    int status = 1;
    while (status > 0 && !terminal_signals_interrupted()) status = fr_engine_step(s->engine, err);
    if (status < 0) return status;
    if (fr_request_finish_reason(r) != FR_FINISH_ERROR) return FR_OK;
    *err = *fr_request_error(r);
    return err->code;
}

/* Whether Ctrl-C ended it: between two steps, or in the callback of a token. */
static bool is_interrupted(const fr_request *r) {
    return fr_request_finish_reason(r) == FR_FINISH_NONE || fr_request_finish_reason(r) == FR_FINISH_CANCELLED;
}

/* How many of the generated tokens are the text of the answer: not the token that ended it, which the template writes, and
 * not what a stop string cut off. */
static int64_t n_of_text(const ChatSession *s, const fr_request *r, const int32_t *tokens, int64_t n, size_t n_text) {
    if (n > 0 && fr_request_finish_reason(r) == FR_FINISH_EOS) return n - 1;
    if (fr_request_finish_reason(r) != FR_FINISH_STOP) return n;
    size_t n_bytes = 0, n_piece = 0;
    for (int64_t i = 0; i < n; i++) {
        (void)fr_token_piece(s->model, tokens[i], 0, &n_piece);
        n_bytes += n_piece;
        if (n_bytes > n_text) return i;
    }
    return n;
}

static int keep_answer(ChatSession *s, const fr_request *r, const int32_t *prompt, int64_t n_prompt, fr_error *err) {
    int64_t n;
    size_t n_bytes;
    const int32_t *tokens = fr_request_tokens(r, &n);
    const char *text = fr_request_text(r, &n_bytes);
    int64_t n_kept = n_of_text(s, r, tokens, n, n_bytes);
    text = text_output_trimmed(text, &n_bytes);
    if (n_bytes == 0 && is_interrupted(r))
        return error_set(err, FR_ERR_CANCELLED,
                         "interrupted before the answer began, so the conversation stays as it was");
    int64_t n_context = n_prompt + n_kept;
    int32_t *context = malloc((size_t)n_context * sizeof *context);
    if (!context) return error_memory(err, "a conversation", (size_t)n_context * sizeof *context);
    memcpy(context, prompt, (size_t)n_prompt * sizeof *context);
    if (n_kept > 0) memcpy(context + n_prompt, tokens, (size_t)n_kept * sizeof *context);
    int status = chat_turns_answer(&s->turns, text, n_bytes, context, n_context, err);
    free(context);
    return status;
}

static void report(ChatSession *s, const fr_request *r) {
    stats_read(&s->last, r);
    stats_add(&s->total, &s->last);
    s->n_answers++;
    if (s->last.draft_error[0])
        chat_say("forerun: a drafter was switched off for this answer: %s", s->last.draft_error);
    if (terminal_signals_interrupted()) chat_say("(interrupted)");
    if (fr_request_finish_reason(r) == FR_FINISH_CONTEXT)
        chat_say("forerun: the answer ends because the context of %d tokens is full: /undo drops the last turn, "
                 "/clear all of them, and -c N makes the context longer",
                 chat_session_n_ctx(s));
    if (!s->is_terminal || !isatty(STDERR_FILENO)) return;
    const fr_stats *counts = &s->last.counts;
    closing_line_print(&s->last, closing_line_plain_s(s->engine, counts->n_prompt, counts->n_generated));
}

static int generate(ChatSession *s, const int32_t *prompt, int64_t n_prompt, fr_error *err) {
    Shown shown = {.session = s, .text = text_output_open(s->use_color, true)};
    fr_request *r = NULL;
    int status = open_request(s, &shown, prompt, n_prompt, &r, err);
    if (!status) {
        status = run_request(s, r, err);
        if (shown.text.has_begun || !status) putchar('\n');
        fflush(stdout);
        if (!status) status = keep_answer(s, r, prompt, n_prompt, err);
        if (!status) report(s, r);
    }
    fr_request_close(r);
    text_output_close(&shown.text);
    return status;
}

int chat_session_answer(ChatSession *s, fr_error *err) {
    int32_t *prompt = NULL;
    int64_t n_prompt = 0;
    terminal_signals_forget_interrupt();
    int status = make_prompt(s, &prompt, &n_prompt, err);
    if (!status) status = generate(s, prompt, n_prompt, err);
    fr_free(prompt);
    if (status && !chat_turns_last(&s->turns)->answer) chat_turns_undo(&s->turns);
    terminal_signals_forget_interrupt();
    return status;
}

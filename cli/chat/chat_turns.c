/* chat_turns.c - the turns of a conversation: the list of turns, the prompt, and generating an answer until its end or
 * Ctrl-C. */
#include "base/error.h"
#include "cli/chat/chat_session.h"
#include "cli/chat/line_editor.h"
#include "cli/stats_json.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What the callback for each token needs. */
typedef struct Shown {
    ChatSession *session;
    AnswerOutput answer;
} Shown;

static int show_token(void *user, const fr_token_event *event) {
    Shown *shown = user;
    if (event->source >= 0 && event->source < CHAT_MAX_DRAFTERS) shown->session->drafters.accepted[event->source]++;
    return answer_output_write(&shown->answer, event) || terminal_signals_interrupted();
}

/* Makes the prompt, which must leave room for an answer. */
static int make_prompt(ChatSession *s, int32_t **prompt, int64_t *n_prompt, fr_error *err) {
    int n_ctx = chat_session_n_ctx(s);
    int status = chat_prompt(s->model, s->args, &s->turns, &s->wants_plain, prompt, n_prompt, err);
    if (status || *n_prompt < n_ctx) return status;
    long long n = (long long)*n_prompt;
    fr_free(*prompt);
    *prompt = NULL;
    return error_set(err, FR_ERR_CONTEXT,
                     "this turn does not fit: the conversation would have %lld tokens, but the context holds %d; /undo "
                     "drops the last turn, /clear drops all turns, and -c N makes the context longer",
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

/* Runs the request until its end or Ctrl-C, which is also noticed while the prompt is read, when there is no
 * callback. */
static int run_request(ChatSession *s, const fr_request *r, fr_error *err) {
    int status = 1;
    while (status > 0 && !terminal_signals_interrupted()) status = fr_engine_step(s->engine, err);
    if (status < 0) return status;
    if (fr_request_finish_reason(r) != FR_FINISH_ERROR) return FR_OK;
    *err = *fr_request_error(r);
    return err->code;
}

/* Returns whether Ctrl-C ended the request, between two steps or in the callback for a token. */
static bool is_interrupted(const fr_request *r) {
    return fr_request_finish_reason(r) == FR_FINISH_NONE || fr_request_finish_reason(r) == FR_FINISH_CANCELLED;
}

/* Returns how many of the generated tokens belong to the text of the answer: not the token that ended it, which the
 * template will write, and not the tokens that a stop string cut off. */
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

static int keep_answer(const Shown *shown, const fr_request *r, const int32_t *prompt, int64_t n_prompt,
                       fr_error *err) {
    ChatSession *s = shown->session;
    int64_t n;
    size_t n_bytes;
    const int32_t *tokens = fr_request_tokens(r, &n);
    (void)fr_request_text(r, &n_bytes);
    int64_t n_kept = n_of_text(s, r, tokens, n, n_bytes);
    const char *text = answer_output_text(&shown->answer, r, &n_bytes);
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
                 "/clear drops all turns, and -c N makes the context longer",
                 chat_session_n_ctx(s));
    if (s->last.n_repeating && s->is_terminal)
        chat_say("forerun: the answer repeats itself: a larger model, or forerun chat --repeat-penalty 1.1, may help");
    if (s->is_terminal && isatty(STDERR_FILENO)) closing_line_print(&s->last.counts);
}

static int generate(ChatSession *s, const int32_t *prompt, int64_t n_prompt, fr_error *err) {
    Shown shown = {.session = s, .answer = answer_output_open(s->model, prompt, n_prompt, s->use_color)};
    const TextOutput *text = &shown.answer.text;
    fr_request *r = NULL;
    int status = open_request(s, &shown, prompt, n_prompt, &r, err);
    if (!status) {
        status = run_request(s, r, err);
        (void)answer_output_end(&shown.answer);
        if (text->has_begun || !status) putchar('\n');
        fflush(stdout);
        if (!status && text->has_failed) status = error_memory(err, "the answer", text->shown.n);
        if (!status) status = keep_answer(&shown, r, prompt, n_prompt, err);
        if (!status) report(s, r);
    }
    fr_request_close(r);
    answer_output_close(&shown.answer);
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

/* ---- the list of turns --------------------------------------------------------------------------------- */

static void free_turn(ChatTurn *turn) {
    free(turn->question);
    free(turn->answer);
    free(turn->context);
}

void chat_turns_clear(ChatTurns *t) {
    while (chat_turns_undo(t)) {}
}

void chat_turns_free(ChatTurns *t) {
    chat_turns_clear(t);
    free(t->items);
    free(t->system);
    *t = (ChatTurns){0};
}

int chat_turns_set_system(ChatTurns *t, const char *text, fr_error *err) {
    char *copy = *text ? strdup(text) : NULL;
    if (*text && !copy) return error_memory(err, "a system message", strlen(text));
    free(t->system);
    t->system = copy;
    return FR_OK;
}

int chat_turns_ask(ChatTurns *t, const char *question, size_t n, fr_error *err) {
    if (t->n == t->capacity) {
        int capacity = 2 * t->capacity + 8;
        ChatTurn *items = realloc(t->items, (size_t)capacity * sizeof *items);
        if (!items) return error_memory(err, "a conversation", (size_t)capacity * sizeof *items);
        t->items = items;
        t->capacity = capacity;
    }
    char *copy = strndup(question, n);
    if (!copy) return error_memory(err, "a question", n);
    t->items[t->n++] = (ChatTurn){.question = copy};
    return FR_OK;
}

/* Frees the context of an old turn: each is as long as the conversation was then. After undoing more turns than have a
 * context, the prompt is read again. */
static void forget_old_context(ChatTurns *t) {
    if (t->n <= CHAT_TURNS_CONTEXTS) return;
    ChatTurn *old = &t->items[t->n - 1 - CHAT_TURNS_CONTEXTS];
    free(old->context);
    old->context = NULL;
    old->n_context = 0;
}

int chat_turns_answer(ChatTurns *t, const char *answer, size_t n, const int32_t *context, int64_t n_context,
                      fr_error *err) {
    ChatTurn *turn = chat_turns_last(t);
    size_t n_bytes = (size_t)n_context * sizeof *context;
    char *text = strndup(answer, n);
    int32_t *tokens = context ? malloc(n_bytes + 1) : NULL;
    if (!text || (context && !tokens)) {
        free(text);
        free(tokens);
        return error_memory(err, "an answer", n + n_bytes);
    }
    if (tokens) memcpy(tokens, context, n_bytes);
    free(turn->answer);
    free(turn->context);
    turn->answer = text;
    turn->context = tokens;
    turn->n_context = tokens ? n_context : 0;
    forget_old_context(t);
    return FR_OK;
}

bool chat_turns_undo(ChatTurns *t) {
    if (t->n == 0) return false;
    free_turn(&t->items[--t->n]);
    return true;
}

ChatTurn *chat_turns_last(const ChatTurns *t) { return t->n ? &t->items[t->n - 1] : NULL; }

int chat_turns_messages(const ChatTurns *t, bool with_last_answer, fr_chat_message **out, int *n, fr_error *err) {
    size_t room = 2 * (size_t)t->n + 1;
    fr_chat_message *messages = malloc(room * sizeof *messages);
    *out = messages;
    *n = 0;
    if (!messages) return error_memory(err, "messages", room * sizeof *messages);
    if (t->system) messages[(*n)++] = (fr_chat_message){"system", t->system};
    for (int i = 0; i < t->n; i++) {
        messages[(*n)++] = (fr_chat_message){"user", t->items[i].question};
        if (t->items[i].answer && (with_last_answer || i + 1 < t->n))
            messages[(*n)++] = (fr_chat_message){"assistant", t->items[i].answer};
    }
    return FR_OK;
}

/* ---- sampling -------------------------------------------------------------------------------------------
 *
 * `run` is greedy by default, because its text is compared and repeated. A conversation is not, and greedy answers of a
 * chat model may fall into loops; nor could /regenerate give a different answer. So `chat` samples, as llama-cli and
 * ollama do. Each value is the user's, else the one that the model's file recommends under general.sampling (converters
 * write the publisher's generation_config.json there), else llama.cpp's default. A recommended value outside the range
 * of its option is ignored. */

/* Marks for missing values, outside the ranges of the options. */
#define REAL_NOT_GIVEN (-1.0f)
#define INT_NOT_GIVEN INT32_MIN

void chat_sampling_begin(fr_sampling *s) {
    s->temperature = s->top_p = s->min_p = s->repeat_penalty = REAL_NOT_GIVEN;
    s->top_k = s->penalty_last_n = INT_NOT_GIVEN;
}

void chat_sampling_complete(fr_sampling *s, const fr_model *model) {
    fr_sampling otherwise = fr_sampling_default();
    otherwise.temperature = 0.8f;
    otherwise.top_k = 40;
    otherwise.top_p = 0.95f;
    otherwise.min_p = 0.05f;
    (void)fr_model_recommended_sampling(model, &otherwise);
    if (s->temperature == REAL_NOT_GIVEN) s->temperature = otherwise.temperature;
    if (s->top_k == INT_NOT_GIVEN) s->top_k = otherwise.top_k;
    if (s->top_p == REAL_NOT_GIVEN) s->top_p = otherwise.top_p;
    if (s->min_p == REAL_NOT_GIVEN) s->min_p = otherwise.min_p;
    if (s->repeat_penalty == REAL_NOT_GIVEN) s->repeat_penalty = otherwise.repeat_penalty;
    if (s->penalty_last_n == INT_NOT_GIVEN) s->penalty_last_n = otherwise.penalty_last_n;
}

/* ---- the prompt ------------------------------------------------------------------------------------------
 *
 * Problem. The engine keeps the keys and values of the tokens that it has read and generated, and a prompt that begins
 * with the same tokens reuses them (engine/prefix_cache.c). For each turn, the template writes the whole conversation
 * again, and the text is tokenized. But a model may generate other tokens than those into which the tokenizer divides
 * the same text ("un" + "known" instead of "unknown"), above all at a high temperature; nor need it begin its answer
 * with the space that the template writes. From the first different token on, nothing could be reused, in this turn and
 * all later ones.
 *
 * Idea. If the new prompt begins with the text that the engine holds, apart from white space, its first tokens are
 * replaced by those of the engine:
 *
 *     engine    USER : Why ? ASSISTANT : un | known                     (generated)
 *     template  USER : Why ? ASSISTANT : unknown </s> USER : How ? ASSISTANT :
 *     prompt    USER : Why ? ASSISTANT : un | known </s> USER : How ? ASSISTANT :
 *
 * * The model then reads exactly what it wrote, and a turn costs only its new text. If the texts differ (a template
 * that leaves out the reasoning of earlier answers, another system message), the prompt stays the template's, and the
 * engine reuses its equal beginning. Proof: tests/cli/test_same_text.c; tests/cli/test_chat_command.c counts the
 * computed tokens. */

/* Replaces the first tokens of the prompt by those that the engine holds, if both have the same text. */
static int splice(const fr_model *model, const ChatTurn *before, int32_t **tokens, int64_t *n_tokens, fr_error *err) {
    int64_t end = same_text_end(model, before->context, before->n_context, *tokens, *n_tokens);
    if (end < 0) return FR_OK;
    int64_t n_rest = *n_tokens - end, n = before->n_context + n_rest;
    int32_t *spliced = malloc((size_t)n * sizeof *spliced);
    if (!spliced) return error_memory(err, "a prompt", (size_t)n * sizeof *spliced);
    memcpy(spliced, before->context, (size_t)before->n_context * sizeof *spliced);
    memcpy(spliced + before->n_context, *tokens + end, (size_t)n_rest * sizeof *spliced);
    free(*tokens);
    *tokens = spliced;
    *n_tokens = n;
    return FR_OK;
}

/* Formats the conversation by the model's template, or in the plain format if it has none. */
static int apply(const fr_model *model, const GenerateArgs *args, const fr_chat_message *messages, int n_messages,
                 bool *wants_plain, int32_t **tokens, int64_t *n_tokens, fr_error *err) {
    GenerateArgs plain = {.chat_template = "plain"};
    int status = FR_ERR_UNSUPPORTED;
    if (!*wants_plain) status = generate_chat(args, model, messages, n_messages, tokens, n_tokens, err);
    if (status != FR_ERR_UNSUPPORTED || args->chat_template) return status;
    if (!*wants_plain)
        fprintf(stderr, "forerun: warning: %s; the format 'plain' is used, which the model may not know\n",
                err->message);
    *wants_plain = true;
    return generate_chat(&plain, model, messages, n_messages, tokens, n_tokens, err);
}

int chat_prompt(const fr_model *model, const GenerateArgs *args, const ChatTurns *turns, bool *wants_plain,
                int32_t **tokens, int64_t *n_tokens, fr_error *err) {
    fr_chat_message *messages;
    int n_messages, status = chat_turns_messages(turns, false, &messages, &n_messages, err);
    if (status) return status;
    status = apply(model, args, messages, n_messages, wants_plain, tokens, n_tokens, err);
    free(messages);
    if (status || turns->n < 2 || !turns->items[turns->n - 2].context) return status;
    status = splice(model, &turns->items[turns->n - 2], tokens, n_tokens, err);
    if (status) {
        free(*tokens);
        *tokens = NULL;
    }
    return status;
}

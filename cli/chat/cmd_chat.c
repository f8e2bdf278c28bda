/* cmd_chat.c - `forerun chat`: holds a conversation, in a terminal or from a pipe. Standard output gets only the
 * answers, so that a file of questions becomes a file of answers. Messages of the program go to standard error. */
#include "base/error.h"
#include "cli/chat/line_editor.h"
#include "cli/chat/chat_session.h"
#include "cli/safe_text.h"
#include "draft/drafter.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static GenerateArgs args;

static const Option option_table[] = {
    GENERATE_ROW_COLOR("auto"),
    {.key = NULL},
};

static void set_defaults(void) {
    generate_defaults_interactive(&args);
    chat_sampling_begin(&args.sampling);
    args.n_tokens = 0; /* the model decides where an answer ends */
}

static int check(fr_error *err) {
    args.chat = 1;
    generate_complete_interactive(&args);
    int status = generate_check(&args, err);
    if (!status) status = generate_check_union(args.drafts, args.n_drafts, err);
    return status ? status : generate_check_drafts(args.drafts, args.n_drafts, err);
}

static bool files(CommandFiles *out) { return generate_add_files(out, args.drafts, args.n_drafts); }

/* ---- messages of the program ----------------------------------------------------------------------------- */

static bool fits_in_a_line(const char *text) {
    for (size_t n; *text; text += n + (text[n] == '\n'))
        if ((n = strcspn(text, "\n")) > CLI_WIDTH) return false;
    return true;
}

/* On a terminal, long lines are wrapped. */
void chat_say(const char *sentence, ...) {
    char *text;
    va_list ap;
    fflush(stdout);
    va_start(ap, sentence);
    int n = vasprintf(&text, sentence, ap);
    va_end(ap);
    if (n < 0) { /* memory ran out: print it without wrapping */
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

/* Adds a drafter, in the order in which a request numbers them: "none" is not one, and one that is named twice counts
 * once. */
static int note_drafter(void *drafters, const char *spec, fr_error *err) {
    ChatDrafters *d = drafters;
    if (strcmp(spec, "none") == 0) return FR_OK;
    for (int i = 0; i < d->n; i++)
        if (strcmp(d->names[i], spec) == 0) return FR_OK;
    if (d->n == CHAT_MAX_DRAFTERS)
        return error_set(err, FR_ERR_ARGUMENT, "at most %d drafters can be combined", CHAT_MAX_DRAFTERS);
    char *copy = strdup(spec);
    if (!copy) return error_memory(err, "a drafter", strlen(spec));
    d->names[d->n++] = copy;
    return FR_OK;
}

/* Measures what forwards cost, for the estimate of plain decoding after each answer. A failure only leaves the estimate
 * out. */
static void measure_costs(const ChatSession *s) {
    if (s->is_terminal && s->drafters.n > 0) (void)fr_engine_measure_costs(s->engine, NULL);
}

/* Opens the drafts, and notes their names in *d. */
static int open_drafts(const ChatSession *s, const char *drafts, ChatDrafters *d, fr_error *err) {
    int status = generate_check_drafts(&drafts, 1, err);
    if (!status) status = drafter_each(drafts, note_drafter, d, err);
    if (!status) status = fr_engine_open_draft(s->engine, drafts, err);
    if (!status) generate_note_drafts(s->engine, &drafts, 1);
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
    fputs(s->use_color ? "; the model's own tokens have no colour.\n" : ".\n", stderr);
}

/* ---- opening ------------------------------------------------------------------------------------------- */

int chat_session_n_ctx(const ChatSession *s) {
    fr_engine_options options = {.struct_size = sizeof options};
    fr_engine_get_options(s->engine, &options);
    return options.n_ctx;
}

/* Opens the model, the engine and the drafts. Call chat_session_close even if it fails. */
static int chat_session_open(ChatSession *s, GenerateArgs *generation, bool is_terminal, fr_error *err) {
    *s = (ChatSession){.args = generation, .is_terminal = is_terminal};
    s->use_color = generate_use_color(generation->color, STDOUT_FILENO);
    int status = FR_OK;
    for (int i = 0; i < generation->n_drafts && !status; i++)
        status = drafter_each(generation->drafts[i], note_drafter, &s->drafters, err);
    if (!status && generation->system) status = chat_turns_set_system(&s->turns, generation->system, err);
    if (!status) status = generate_open_model(&s->model, generation, err);
    if (!status) chat_sampling_complete(&generation->sampling, s->model);
    if (!status)
        status = generate_open_engine(&s->engine, s->model, &generation->engine, generation->drafts,
                                      generation->n_drafts, generation->tree_budget, err);
    if (!status) generate_note_drafts(s->engine, generation->drafts, generation->n_drafts);
    if (!status) measure_costs(s);
    return status;
}

static void chat_session_close(ChatSession *s) {
    forget_drafters(&s->drafters);
    chat_turns_free(&s->turns);
    free(s->drafts);
    fr_engine_close(s->engine);
    fr_model_close(s->model);
    *s = (ChatSession){0};
}

/* ---- the conversation ------------------------------------------------------------------------------------ */

static int answer(ChatSession *s, const ChatInput *in, fr_error *err) {
    int status = chat_turns_ask(&s->turns, in->text.data, in->text.n, err);
    return status ? status : chat_session_answer(s, err);
}

/* Prints an error. The conversation continues, but if it comes from a pipe, the exit status will be 1. */
static void say_error(ChatSession *s, const fr_error *err) {
    chat_say("forerun: %s", err->message);
    s->has_failed = true;
}

static void take(ChatSession *s, const ChatInput *in) {
    fr_error err;
    int status = FR_OK;
    bool is_whole = in->state == CHAT_INPUT_MESSAGE || in->state == CHAT_INPUT_COMMAND;
    if (is_whole && generate_check_message("", in->text.data, in->text.n, NULL))
        status = error_set(&err, FR_ERR_ARGUMENT, "a message must be UTF-8 text without zero bytes");
    else if (in->state == CHAT_INPUT_MESSAGE) status = answer(s, in, &err);
    else if (in->state == CHAT_INPUT_COMMAND) status = chat_command_run(s, in->text.data, &err);
    else if (in->state == CHAT_INPUT_TOO_LONG)
        status = error_set(&err, FR_ERR_MEMORY, "the message is longer than %d MiB", CHAT_INPUT_MAX_BYTES >> 20);
    if (status) say_error(s, &err);
}

static void converse(ChatSession *s, LineEditor *editor) {
    ChatInput in = {.text.max_bytes = CHAT_INPUT_MAX_BYTES};
    LineResult result = LINE_READ;
    fr_error err;
    while (!s->has_ended && result != LINE_END && result != LINE_FAILED) {
        const char *line = NULL;
        size_t n = 0;
        bool is_open = in.state == CHAT_INPUT_CONTINUED || in.state == CHAT_INPUT_QUOTED;
        result = line_editor_read(editor, is_open ? "... " : ">>> ", &line, &n);
        if (result == LINE_READ) chat_input_add(&in, line, n);
        if (result == LINE_END) chat_input_end(&in);
        if (result == LINE_FAILED) {
            error_set(&err, FR_ERR_IO, "standard input cannot be read, or memory ran out");
            say_error(s, &err);
        }
        if (result == LINE_INTERRUPTED && !is_open) chat_say("Ctrl-D or /quit ends the conversation.");
        if (result == LINE_INTERRUPTED) chat_input_drop(&in);
        take(s, &in);
    }
    buf_free(&in.text);
}

/* The smallest models that hold a conversation have ten times as many bytes of weights. */
static const size_t SMALL_BYTES = 16000000;

/* Greets a terminal: prints how to get help, what to expect of a tiny model, and what the colours mean. */
static void greet(const ChatSession *s) {
    if (!s->is_terminal) return;
    fr_model_info info = {.struct_size = sizeof info};
    SafeText name;
    fr_model_get_info(s->model, &info);
    chat_say("%s; /help lists the commands, Ctrl-D ends the conversation.", safe_text(&name, info.name));
    if (info.weight_bytes < SMALL_BYTES)
        chat_say("This model is very small (%.0f MB): it continues simple text and is for trying forerun. It cannot "
                 "answer questions; 'forerun pull OWNER/NAME' fetches a model that can.",
                 (double)info.weight_bytes * 1e-6);
    if (s->use_color) chat_session_show_drafts(s);
}

static int run(int argc, char **argv) {
    (void)argc, (void)argv;
    fr_error err;
    ChatSession session;
    LineEditor *editor = NULL;
    bool is_terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
    int status = chat_session_open(&session, &args, is_terminal, &err);
    if (!status) status = line_editor_open(&editor, is_terminal, is_terminal ? line_history_path() : NULL, &err);
    if (!status) {
        greet(&session);
        converse(&session, editor);
        if (is_terminal && !session.has_ended)
            putchar('\n'); /* ends the line of the prompt at which Ctrl-D was pressed */
    }
    bool has_failed = session.has_failed && !is_terminal;
    line_editor_close(editor);
    chat_session_close(&session);
    if (status) return cli_fail(&err);
    return has_failed ? CLI_FAILED : CLI_OK;
}

const Command command_chat = {
    .name = "chat",
    .summary = "hold a conversation; forerun MODEL.gguf starts one, too",
    .about =
        "Hold a conversation with a model. In a terminal, lines can be edited and are remembered, accepted drafts are "
        "coloured by drafter, Ctrl-C ends an answer, and a line after each answer shows its tokens per second, its "
        "tokens per step, and the estimated speed of plain decoding. From a pipe, each line is a "
        "question, and only the answers go to standard output; the exit status is 1 if a question was refused. Drafts "
        "do not change the answers (but see --verify).",
    .sets = (const OptionSet[]){{generate_options, &args}, {option_table, &args}, {NULL, NULL}},
    .list = generate_list_methods,
    .notes =
        "A message of several lines begins and ends with \"\"\", or has a backslash at the end of each line but the "
        "last. A line that begins with '/' is a command; /help lists the commands. Reasoning is shown between <think> "
        "and </think>; where special tokens mark it (gpt-oss, Gemma 4, Mistral), the conversation and its file do not "
        "keep it. Typed lines are stored in $XDG_STATE_HOME/forerun/chat_history or "
        "~/.local/state/forerun/chat_history, which only you can read.",
    .examples = "  forerun chat -m chat.gguf\n"
                "  forerun chat -m chat.gguf --system \"Answer briefly.\" --temp 0.7 --draft auto+suffix\n"
                "  forerun chat -m models/target.gguf < questions.txt > answers.txt\n",
    .defaults = set_defaults,
    .check = check,
    .files = files,
    .run = run,
};

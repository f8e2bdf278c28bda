/* cmd_chat.c - `forerun chat`: a conversation, in a terminal or from a pipe.
 *
 * Standard output holds the answers alone, so that a file of questions piped in becomes a file of answers; what the program
 * has to say goes to standard error. */
#include "cli/chat/chat_input.h"
#include "cli/chat/chat_sampling.h"
#include "cli/chat/chat_session.h"
#include "cli/chat/line_editor.h"
#include "cli/chat/line_history.h"
#include "cli/safe_text.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static GenerateArgs args;

static const Option option_table[] = {
    {.key = "color",
     OPT_CHOICE(GenerateArgs, color, "never", "auto", "always"),
     .metavar = "WHEN",
     .section = "Output",
     .implied = "always",
     .values = (const int32_t[]){COLOR_NEVER, COLOR_AUTO, COLOR_ALWAYS},
     .default_value = "auto",
     .help = "colour drafted tokens by drafter: always, auto (on a terminal) or never; --color alone: always"},
    {.key = NULL},
};

static void set_defaults(void) {
    generate_defaults_interactive(&args);
    chat_sampling_begin(&args.sampling);
    args.n_tokens = 0; /* an answer ends where the model ends it */
}

static int check(fr_error *err) {
    args.chat = 1;
    generate_complete_interactive(&args);
    int status = generate_check(&args, err);
    if (!status) status = generate_check_union(args.drafts, args.n_drafts, err);
    return status ? status : generate_check_drafts(args.drafts, args.n_drafts, err);
}

static bool files(CommandFiles *out) { return generate_add_files(out, args.drafts, args.n_drafts); }

/* ---- the conversation ------------------------------------------------------------------------------------ */

static int answer(ChatSession *s, const ChatInput *in, fr_error *err) {
    int status = chat_turns_ask(&s->turns, in->text.data, in->text.n, err);
    return status ? status : chat_session_answer(s, err);
}

/* What is refused costs its sentence, and from a pipe the exit status: the conversation goes on. */
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

/* A terminal is greeted with what can be typed and what the colours mean. */
static void greet(const ChatSession *s) {
    if (!s->is_terminal) return;
    fr_model_info info = {.struct_size = sizeof info};
    SafeText name;
    fr_model_get_info(s->model, &info);
    chat_say("%s; /help lists the commands, Ctrl-D ends the conversation.", safe_text(&name, info.name));
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
        if (is_terminal && !session.has_ended) putchar('\n'); /* behind the prompt at which Ctrl-D was pressed */
    }
    bool has_failed = session.has_failed && !is_terminal;
    line_editor_close(editor);
    chat_session_close(&session);
    if (status) return cli_fail(&err);
    return has_failed ? CLI_FAILED : CLI_OK;
}

const Command command_chat = {
    .name = "chat",
    .summary = "a conversation; forerun MODEL.gguf opens one, too",
    .about =
        "Hold a conversation with a model. In a terminal lines are edited and remembered, accepted drafts are coloured "
        "by drafter, Ctrl-C ends an answer, and a line after each answer tells tokens per second, tokens per pass "
        "of the model, and what plain decoding would reach. From a pipe, each line is a question, and only the "
        "answers go to standard output; the exit status is 1 if one of them was refused. Drafts change no token (but "
        "see --verify).",
    .sets = (const OptionSet[]){{generate_options, &args}, {option_table, &args}, {NULL, NULL}},
    .list = generate_list_methods,
    .notes = "A message of several lines stands between \"\"\" and \"\"\", or has a backslash at the end of each line "
             "but the "
             "last. A line that begins with '/' is a command; /help lists them. The lines that were typed are kept in "
             "$XDG_STATE_HOME/forerun/chat_history or ~/.local/state/forerun/chat_history, which only their user can "
             "read.",
    .examples = "  forerun chat -m chat.gguf\n"
                "  forerun chat -m chat.gguf --system \"Answer briefly.\" --temp 0.7 --draft auto+suffix\n"
                "  forerun chat -m models/target.gguf < questions.txt > answers.txt\n",
    .defaults = set_defaults,
    .check = check,
    .files = files,
    .run = run,
};

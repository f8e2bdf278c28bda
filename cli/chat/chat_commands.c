/* chat_commands.c - the slash commands of a conversation. Each has a row in the table and a function. */
#include "cli/chat/chat_session.h"
#include "cli/safe_text.h"
#include "cli/speed.h"
#include "base/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct ChatCommand {
    const char *name, *argument, *help;
    bool needs_argument;
    int (*run)(ChatSession *s, const char *argument, fr_error *err);
} ChatCommand;

static const ChatCommand commands[];

/* ---- the conversation ---------------------------------------------------------------------------------- */

static int run_help(ChatSession *s, const char *argument, fr_error *err) {
    (void)s, (void)argument, (void)err;
    fflush(stdout);
    for (const ChatCommand *c = commands; c->name; c++) {
        char usage[32];
        snprintf(usage, sizeof usage, "%s %s", c->name, c->argument ? c->argument : "");
        fprintf(stderr, "  %-18s %s\n", usage, c->help);
    }
    chat_say("For a message of several lines, begin and end it with \"\"\", or end lines with a\nbackslash.\n"
             "Ctrl-C ends an answer, Ctrl-D the conversation.");
    return FR_OK;
}

static int run_system(ChatSession *s, const char *argument, fr_error *err) {
    SafeText shown;
    if (*argument) {
        int status = chat_turns_set_system(&s->turns, strcmp(argument, "\"\"") == 0 ? "" : argument, err);
        if (status) return status;
    }
    if (s->turns.system) chat_say("System message: %s", safe_text(&shown, s->turns.system));
    else chat_say("There is no system message; /system TEXT sets one.");
    return FR_OK;
}

static int run_regenerate(ChatSession *s, const char *argument, fr_error *err) {
    (void)argument;
    ChatTurn *last = chat_turns_last(&s->turns);
    if (!last) return error_set(err, FR_ERR_ARGUMENT, "there is no question yet that could be answered again");
    if (s->args->sampling.temperature <= 0)
        chat_say("The temperature is 0, so the answer can only be the same; /temp 0.8 allows others.");
    last->n_regenerated++;
    return chat_session_answer(s, err);
}

static int run_undo(ChatSession *s, const char *argument, fr_error *err) {
    (void)argument;
    SafeText shown;
    const ChatTurn *last = chat_turns_last(&s->turns);
    if (!last) return error_set(err, FR_ERR_ARGUMENT, "there is no turn that could be dropped");
    chat_say("Dropped with its answer: %s", safe_text(&shown, last->question));
    chat_turns_undo(&s->turns);
    return FR_OK;
}

static int run_clear(ChatSession *s, const char *argument, fr_error *err) {
    (void)argument, (void)err;
    int n = s->turns.n;
    chat_turns_clear(&s->turns);
    chat_say("Forgot %d turn%s%s.", n, cli_plural(n), s->turns.system ? "; the system message stays" : "");
    return FR_OK;
}

static int run_quit(ChatSession *s, const char *argument, fr_error *err) {
    (void)argument, (void)err;
    s->has_ended = true;
    return FR_OK;
}

/* ---- files --------------------------------------------------------------------------------------------- */

static void say_file(const ChatSession *s, const char *what, const char *path) {
    SafeText shown;
    chat_say("%s %d turn%s: %s", what, s->turns.n, cli_plural(s->turns.n), safe_text(&shown, path));
}

static int run_save(ChatSession *s, const char *argument, fr_error *err) {
    bool has_texts_only = false;
    int status = chat_file_save(&s->turns, s->model, argument, &has_texts_only, err);
    if (!status) say_file(s, "Saved", argument);
    if (!status && has_texts_only)
        chat_say(
            "Only the texts were saved, because the model's file has changed: after /load, answers may differ from "
            "those of this conversation.");
    return status;
}

static int run_load(ChatSession *s, const char *argument, fr_error *err) {
    bool has_texts_only = false;
    int status = chat_file_load(&s->turns, s->model, argument, &has_texts_only, err);
    if (!status) say_file(s, "Loaded", argument);
    if (!status && has_texts_only)
        chat_say(
            "Only the texts were loaded, because the file was saved with another model or its messages were changed: "
            "answers may differ from those of the conversation that was saved.");
    return status;
}

/* ---- drafts, sampling, statistics ------------------------------------------------------------------------ */

static int run_drafts(ChatSession *s, const char *argument, fr_error *err) {
    int status = *argument ? chat_session_set_drafts(s, argument, err) : FR_OK;
    if (!status) chat_session_show_drafts(s);
    return status;
}

/* Sets an option of the command line by its row. */
static int set_option(ChatSession *s, const char *key, const char *argument, fr_error *err) {
    char written[160];
    if (!*argument) return FR_OK;
    snprintf(written, sizeof written, "/%s %s", key, argument);
    return option_store(options_find(generate_options, key), written, argument, s->args, err);
}

static int run_temp(ChatSession *s, const char *argument, fr_error *err) {
    int status = set_option(s, "temp", argument, err);
    if (!status) chat_say("Temperature %g", (double)s->args->sampling.temperature);
    return status;
}

static int run_seed(ChatSession *s, const char *argument, fr_error *err) {
    int status = set_option(s, "seed", argument, err);
    if (!status) chat_say("Seed %llu", (unsigned long long)s->args->sampling.seed);
    return status;
}

static void say_stats(const char *what, const fr_stats *a) {
    chat_say("%s: %lld token%s in %lld step%s, %.2f per step, %.*f tokens/s\n"
             "  %lld of %lld drafted tokens accepted; %lld prompt tokens, %lld kept from before",
             what, (long long)a->n_generated, cli_plural(a->n_generated), (long long)a->n_steps, cli_plural(a->n_steps),
             a->acceptance_length, speed_rate_digits(a->tokens_per_s), a->tokens_per_s, (long long)a->accepted,
             (long long)a->drafted, (long long)a->n_prompt, (long long)a->n_prompt_shared);
}

static int run_stats(ChatSession *s, const char *argument, fr_error *err) {
    (void)argument, (void)err;
    if (s->n_answers == 0) {
        chat_say("No answer has been generated yet.");
        return FR_OK;
    }
    say_stats("The last answer", &s->last.counts);
    if (s->n_answers > 1) say_stats("All answers", &s->total.counts);
    const fr_sampling *o = &s->args->sampling;
    if (o->temperature <= 0) chat_say("Greedy: temperature 0");
    else
        chat_say("Temperature %g, top-k %d, top-p %g, min-p %g, repeat penalty %g", (double)o->temperature, o->top_k,
                 (double)o->top_p, (double)o->min_p, (double)o->repeat_penalty);
    chat_say("Seed %llu; context %lld of %d tokens", (unsigned long long)s->last_seed,
             (long long)(s->last.counts.n_prompt + s->last.counts.n_generated), chat_session_n_ctx(s));
    return FR_OK;
}

/* ---- the table ------------------------------------------------------------------------------------------- */

static const ChatCommand commands[] = {
    {"/help", NULL, "print this list", false, run_help},
    {"/system", "[TEXT]", "show or set the system message; /system \"\" removes it", false, run_system},
    {"/regenerate", NULL, "generate another answer to the last question, with another seed", false, run_regenerate},
    {"/undo", NULL, "drop the last question and its answer", false, run_undo},
    {"/clear", NULL, "drop all questions and answers", false, run_clear},
    {"/save", "FILE", "write the conversation to FILE, as JSON", true, run_save},
    {"/load", "FILE", "continue the conversation in FILE", true, run_load},
    {"/drafts", "[SPEC]", "show or set the drafters: auto, none, pld+suffix, ...", false, run_drafts},
    {"/stats", NULL, "print acceptance and times", false, run_stats},
    {"/temp", "[T]", "show or set the temperature; 0: greedy", false, run_temp},
    {"/seed", "[S]", "show or set the seed of the sampling", false, run_seed},
    {"/quit", NULL, "end the conversation", false, run_quit},
    {NULL, NULL, NULL, false, NULL},
};

static int refuse(const char *word, fr_error *err) {
    NearestWord nearest = {.word = NULL};
    for (const ChatCommand *c = commands; c->name; c++) nearest_word_try(&nearest, word, c->name);
    return error_set(
        err, FR_ERR_ARGUMENT,
        "unknown command '%.40s'%s%s%s; /help lists the commands, and a message that begins with '/' needs a "
        "space before it",
        word, nearest.word ? ", did you mean " : "", nearest.word ? nearest.word : "", nearest.word ? "?" : "");
}

/* Returns the argument without white space around it, which is cut off in place. */
static const char *argument_of(char *text) {
    text += strspn(text, " \t");
    size_t n = strlen(text);
    while (n > 0 && (text[n - 1] == ' ' || text[n - 1] == '\t')) n--;
    text[n] = '\0';
    return text;
}

int chat_command_run(ChatSession *s, const char *line, fr_error *err) {
    char word[64];
    size_t n = strcspn(line, " \t");
    snprintf(word, sizeof word, "%.*s", (int)n, line);
    char *rest = strdup(line + n);
    if (!rest) return error_memory(err, "a command", strlen(line));
    const char *argument = argument_of(rest);
    const ChatCommand *c = commands;
    while (c->name && strcmp(c->name, word) != 0) c++;
    int status;
    if (!c->name) status = refuse(word, err);
    else if (c->needs_argument && !*argument)
        status = error_set(err, FR_ERR_ARGUMENT, "%s needs a file: %s %s", word, word, c->argument);
    else if (!c->argument && *argument) status = error_set(err, FR_ERR_ARGUMENT, "%s takes no argument", word);
    else status = c->run(s, argument, err);
    free(rest);
    return status;
}

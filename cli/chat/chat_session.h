/* chat_session.h - a running conversation: a model, one engine that stays open, the turns, and what was generated. */
#ifndef CHAT_CHAT_SESSION_H
#define CHAT_CHAT_SESSION_H

#include "cli/chat/chat_turns.h"
#include "cli/run/generate.h"
#include "cli/stats_json.h"

enum { CHAT_MAX_DRAFTERS = 8 };

/* The drafters of a conversation by the source of their tokens (fr_token_event.source). */
typedef struct ChatDrafters {
    char *names[CHAT_MAX_DRAFTERS];      /* [n] */
    int64_t accepted[CHAT_MAX_DRAFTERS]; /* tokens of the answers that each of them drafted */
    int n;
} ChatDrafters;

typedef struct ChatSession {
    GenerateArgs *args; /* sampling and drafts change during the conversation */
    fr_model *model;
    fr_engine *engine;
    ChatTurns turns;
    char *drafts; /* that /drafts chose; args->drafts[0] points to it. NULL: those of the command line */
    ChatDrafters drafters;
    bool is_terminal, use_color, wants_plain, has_ended;
    bool has_failed;          /* something was refused */
    RequestStats last, total; /* of the last answer, and of all */
    int n_answers;
    uint64_t last_seed;
} ChatSession;

/* Opens model, engine and drafts. Call chat_session_close also after a failure. */
int chat_session_open(ChatSession *s, GenerateArgs *args, bool is_terminal, fr_error *err);
void chat_session_close(ChatSession *s);
/* The longest context of the engine, in tokens. */
int chat_session_n_ctx(const ChatSession *s);
/* Drafts with these from now on: "auto", "none", "a+b". After a failure nothing changes. */
int chat_session_set_drafts(ChatSession *s, const char *drafts, fr_error *err);

/* Generates an answer to the last question and shows it. A question whose answer fails, or is interrupted before its
 * beginning, is dropped; an answer that is generated anew stays as it was. */
int chat_session_answer(ChatSession *s, fr_error *err);

/* A sentence for the user, on standard error: standard output holds the answers alone. */
__attribute__((format(printf, 1, 2))) void chat_say(const char *sentence, ...);
/* The drafters with their colours, and how many tokens each of them drafted. */
void chat_session_show_drafts(const ChatSession *s);

/* Runs a line that begins with '/'. Not FR_OK: it was refused (chat_commands.c). */
int chat_command_run(ChatSession *s, const char *line, fr_error *err);

#endif

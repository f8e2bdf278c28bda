/* chat.h - what was said in a conversation so far: a system message, and questions with their answers. */
#ifndef CLI_CHAT_CHAT_H
#define CLI_CHAT_CHAT_H

#include "cli/run/generate.h"
#include "cli/stats_json.h"
#include "forerun.h"

#include <stdbool.h>
#include <stddef.h>

enum { CHAT_TURNS_CONTEXTS = 8 };

typedef struct ChatTurn {
    char *question;
    char *answer; /* NULL: not answered yet */
    /* The tokens that the engine has read and generated up to the end of the answer, without the token that ended it.
     * NULL: the answer was loaded from a file that has only its text, or CHAT_TURNS_CONTEXTS turns follow it. */
    int32_t *context;
    int64_t n_context;
    uint32_t n_regenerated; /* how often the answer was replaced by another one */
} ChatTurn;

/* Zero-initialise; all strings and arrays are owned. */
typedef struct ChatTurns {
    char *system; /* NULL: none */
    ChatTurn *items;
    int n, capacity;
} ChatTurns;

void chat_turns_free(ChatTurns *t);
/* Forgets all turns; the system message stays. */
void chat_turns_clear(ChatTurns *t);
/* "" means no system message. */
int chat_turns_set_system(ChatTurns *t, const char *text, fr_error *err);
/* Appends a question of n bytes without an answer. */
int chat_turns_ask(ChatTurns *t, const char *question, size_t n, fr_error *err);
/* Answers the last question, or answers it anew. context: as in ChatTurn, copied; may be NULL. After a failure the turn
 * is what it was. */
int chat_turns_answer(ChatTurns *t, const char *answer, size_t n, const int32_t *context, int64_t n_context,
                      fr_error *err);
/* Drops the last turn. False: there is none. */
bool chat_turns_undo(ChatTurns *t);
/* The last turn; NULL: there is none. */
ChatTurn *chat_turns_last(const ChatTurns *t);

/* The messages up to the last question, or up to its answer: malloc'ed, their strings borrowed. */
int chat_turns_messages(const ChatTurns *t, bool with_last_answer, fr_chat_message **out, int *n, fr_error *err);

/* A running conversation: a model, one engine that stays open, the turns, and what was generated. */

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

/* The sampling of a conversation, where the user does not give it. */

/* Marks everything but the seed as not given. Before the command line is read. */
void chat_sampling_begin(fr_sampling *s);
/* Replaces what is still marked by what the model recommends, or else by the defaults. */
void chat_sampling_complete(fr_sampling *s, const fr_model *model);

/* The tokens of a conversation, which begin with those that the engine has read already. */

/* The prompt for an answer to the last question, malloc'ed. `wants_plain` is set where the model has no chat template that
 * can be run, so that the format `plain` is used instead. */
int chat_prompt(const fr_model *model, const GenerateArgs *args, const ChatTurns *turns, bool *wants_plain,
                int32_t **tokens, int64_t *n_tokens, fr_error *err);

/* A conversation as a JSON file: {"format": "forerun-chat", "messages": [{"role", "content"}, ...], "state": {...}}. */

/* Writes the conversation up to its last answer, in one moment. Refuses to replace a file that is no conversation.
 * *has_texts_only: the file has no state, because the model's file has changed. */
int chat_file_save(const ChatTurns *turns, const fr_model *model, const char *path, bool *has_texts_only,
                   fr_error *err);
/* Replaces the turns and the system message by those of a file. After a failure they are what they were.
 * *has_texts_only: the file has a state, which is of another model or does not fit the messages. */
int chat_file_load(ChatTurns *turns, const fr_model *model, const char *path, bool *has_texts_only, fr_error *err);

/* One text, cut into tokens in two ways. */

/* Where in the tokens b, [n_b], the text of all of a, [n_a], ends: b may cut the same bytes into other tokens, and have
 * other white space. -1: b does not begin with the text of a, or has no token that ends there. Special tokens equal
 * themselves alone. */
int64_t same_text_end(const fr_model *model, const int32_t *a, int64_t n_a, const int32_t *b, int64_t n_b);

#endif

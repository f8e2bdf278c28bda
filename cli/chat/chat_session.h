/* chat_session.h - a conversation of `forerun chat`: its turns, the running session, its commands, and its file. */
#ifndef CLI_CHAT_CHAT_SESSION_H
#define CLI_CHAT_CHAT_SESSION_H

#include "cli/run/generate.h"
#include "cli/stats_json.h"
#include "forerun.h"

#include <stdbool.h>
#include <stddef.h>

/* ---- turns: a system message, and questions with their answers --------------------------------------- */

enum { CHAT_TURNS_CONTEXTS = 8 };

typedef struct ChatTurn {
    char *question;
    char *answer; /* NULL: not answered yet */
    /* The tokens that the engine has read and generated up to the end of the answer, without the token that ended it.
     * NULL: the answer was loaded from a file that has only its text, or CHAT_TURNS_CONTEXTS turns follow it. */
    int32_t *context;
    int64_t n_context;
    uint32_t n_regenerated; /* how often another answer was generated */
} ChatTurn;

/* Zero-initialised; all strings and arrays are owned. */
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
/* Sets or replaces the answer to the last question. context: as in ChatTurn; it is copied, and may be NULL. After a
 * failure the turn is unchanged. */
int chat_turns_answer(ChatTurns *t, const char *answer, size_t n, const int32_t *context, int64_t n_context,
                      fr_error *err);
/* Drops the last turn. False: there is none. */
bool chat_turns_undo(ChatTurns *t);
/* Returns the last turn; NULL: there is none. */
ChatTurn *chat_turns_last(const ChatTurns *t);

/* Makes the messages up to the last question, or up to its answer. *out is malloc'ed; its strings are borrowed. */
int chat_turns_messages(const ChatTurns *t, bool with_last_answer, fr_chat_message **out, int *n, fr_error *err);

/* ---- a running conversation --------------------------------------------------------------------------- */

enum { CHAT_MAX_DRAFTERS = 8 };

/* The drafters of a conversation, in the order of fr_token_event.source. */
typedef struct ChatDrafters {
    char *names[CHAT_MAX_DRAFTERS];      /* [n] */
    int64_t accepted[CHAT_MAX_DRAFTERS]; /* how many tokens of the answers each of them drafted */
    int n;
} ChatDrafters;

typedef struct ChatSession {
    GenerateArgs *args; /* sampling and drafts change during the conversation */
    fr_model *model;
    fr_engine *engine;
    ChatTurns turns;
    char *drafts; /* chosen by /drafts; args->drafts[0] points to it. NULL: those of the command line are in use */
    ChatDrafters drafters;
    bool is_terminal, use_color, wants_plain, has_ended;
    bool has_failed;          /* an input was refused */
    RequestStats last, total; /* statistics of the last answer, and of all */
    int n_answers;
    uint64_t last_seed;
} ChatSession;

/* Returns the longest context of the engine, in tokens. */
int chat_session_n_ctx(const ChatSession *s);
/* Changes the drafts: "auto", "none", "a+b". After a failure nothing has changed. */
int chat_session_set_drafts(ChatSession *s, const char *drafts, fr_error *err);

/* Generates an answer to the last question and shows it. If that fails, or is interrupted before the answer begins, the
 * question is dropped, or an earlier answer to it stays. */
int chat_session_answer(ChatSession *s, fr_error *err);

/* Prints a sentence for the user on standard error. Standard output gets only the answers. */
__attribute__((format(printf, 1, 2))) void chat_say(const char *sentence, ...);
/* Prints the drafters in their colours, and how many tokens each of them drafted. */
void chat_session_show_drafts(const ChatSession *s);

/* Runs a line that begins with '/'. Not FR_OK: it was refused. */
int chat_command_run(ChatSession *s, const char *line, fr_error *err);

/* ---- the sampling of a conversation --------------------------------------------------------------------- */

/* Marks everything but the seed as not given. Call it before the command line is parsed. */
void chat_sampling_begin(fr_sampling *s);
/* Replaces the values that are still marked by those that the model recommends, or else by defaults. */
void chat_sampling_complete(fr_sampling *s, const fr_model *model);

/* ---- the prompt ------------------------------------------------------------------------------------------- */

/* Makes the prompt for an answer to the last question; *tokens is malloc'ed. *wants_plain is set if the model has no
 * chat template that can be run, so that the format `plain` is used instead. */
int chat_prompt(const fr_model *model, const GenerateArgs *args, const ChatTurns *turns, bool *wants_plain,
                int32_t **tokens, int64_t *n_tokens, fr_error *err);

/* ---- the file: {"format": "forerun-chat", "messages": [{"role", "content"}, ...], "state": {...}} ------------- */

/* Writes the conversation up to its last answer, atomically. Refuses to replace a file that is not a saved
 * conversation. *has_texts_only: the state is left out, because the model's file has changed. */
int chat_file_save(const ChatTurns *turns, const fr_model *model, const char *path, bool *has_texts_only,
                   fr_error *err);
/* Replaces the turns and the system message by those of a file. After a failure they are unchanged.
 *  * *has_texts_only: the file's state is ignored, because it is of another model or does not fit the messages. */
int chat_file_load(ChatTurns *turns, const fr_model *model, const char *path, bool *has_texts_only, fr_error *err);

/* Returns the number of tokens of b [n_b] that have the same text as all of a [n_a]. b may divide the same bytes into
 * different tokens, and have different white space. -1: b does not begin with the text of a, or has no token that ends
 * there. A special token equals only itself. */
int64_t same_text_end(const fr_model *model, const int32_t *a, int64_t n_a, const int32_t *b, int64_t n_b);

#endif

/* chat_turns.h - what was said in a conversation so far: a system message, and questions with their answers. */
#ifndef CHAT_CHAT_TURNS_H
#define CHAT_CHAT_TURNS_H

#include "forerun.h"

#include <stdbool.h>
#include <stddef.h>

enum { CHAT_TURNS_CONTEXTS = 8 };

typedef struct ChatTurn {
    char *question;
    char *answer; /* NULL: not answered yet */
    /* The tokens that the engine has read and generated up to the end of the answer, without the token that ended it.
     * NULL: the answer was loaded from a file, or CHAT_TURNS_CONTEXTS turns follow it. */
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

#endif

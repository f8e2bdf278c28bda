/* chat_turns.c - the turns of a conversation. Nothing here depends on a model or a terminal. */
#include "cli/chat/chat_turns.h"

#include "base/error.h"

#include <stdlib.h>
#include <string.h>

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

/* Each is as long as the conversation was then. After so many turns that are dropped, a prompt is read again. */
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

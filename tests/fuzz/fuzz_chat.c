/* fuzz_chat.c - any text as a chat template, which is recognised or not; and any conversation in every family's format,
 * which is refused, or written with each answer at the reported place.
 *
 * Each line of an input is a message: its first byte chooses the role, and the other bytes are the content. */
#include "base/error.h"
#include "text/chat.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

enum { MAX_MESSAGES = 16 };

static const char *const roles[] = {"system", "user", "assistant", "tool", ""};
enum { N_ROLES = sizeof roles / sizeof *roles };

/* Cuts `text`, which ends with '\0', into messages. */
static int split(char *text, ChatMessage *messages) {
    int n = 0;
    for (char *line = text; line && *line && n < MAX_MESSAGES; n++) {
        char *end = strchr(line, '\n');
        if (end) *end = 0;
        messages[n] = (ChatMessage){roles[(unsigned char)*line % N_ROLES], *line ? line + 1 : line};
        line = end ? end + 1 : NULL;
    }
    return n;
}

static void check_answers(ChatFamily family, const ChatMessage *messages, int n) {
    Buf out = {.max_bytes = 1 << 16};
    ChatSpan answers[MAX_MESSAGES];
    int n_answers = 0;
    fr_error err = {0};
    if (chat_format_answers(family, messages, n, &out, answers, &n_answers, &err) == FR_OK) {
        size_t at = 0;
        fr_assert(n_answers >= 0 && n_answers <= n);
        for (int i = 0; i < n_answers; at = answers[i++].end) {
            const ChatSpan *a = &answers[i];
            fr_assert(at <= a->begin && a->begin <= a->end && a->end <= out.n);
            fr_assert(a->i_message >= 0 && a->i_message < n && strcmp(messages[a->i_message].role, "assistant") == 0);
        }
    } else fr_assert(err.code != FR_OK && err.message[0] != '\0');
    buf_free(&out);
}

static void check_prompt(ChatFamily family, const ChatMessage *messages, int n) {
    Buf out = {.max_bytes = 1 << 16};
    fr_error err = {0};
    if (chat_format(family, messages, n, &out, NULL, NULL, &err) == FR_OK) fr_assert(out.n > 0);
    else fr_assert(err.code != FR_OK && err.message[0] != '\0');
    buf_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
    ChatMessage messages[MAX_MESSAGES];
    ChatFamily family = chat_family_detect((const char *)bytes, n);
    fr_assert(family >= CHAT_NONE && family < CHAT_FAMILY_COUNT);
    char *text = malloc(n + 1);
    fr_assert(text);
    if (n) memcpy(text, bytes, n);
    text[n] = 0;
    int n_messages = split(text, messages);
    for (int f = CHAT_NONE; f < CHAT_FAMILY_COUNT; f++) {
        check_prompt((ChatFamily)f, messages, n_messages);
        check_answers((ChatFamily)f, messages, n_messages);
    }
    free(text);
    return 0;
}

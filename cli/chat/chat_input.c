/* chat_input.c - puts lines together to messages.
 *
 * The forms are those of ollama (""") and llama-cli (a backslash at the end of a line), so that what is typed there can be
 * typed here. Blank lines between messages are passed over. A '/' makes a command of a line only where it begins the
 * message and stands first: a message that begins with one is written with a blank before it, or between """. */
#include "cli/chat/chat_input.h"

#include <stdbool.h>
#include <string.h>

static const char quotes[] = "\"\"\"";
enum { N_QUOTES = sizeof quotes - 1 };

static bool begins_with_quotes(const char *line, size_t n) {
    return n >= N_QUOTES && memcmp(line, quotes, N_QUOTES) == 0;
}

static bool ends_with_quotes(const char *line, size_t n) {
    return n >= N_QUOTES && memcmp(line + n - N_QUOTES, quotes, N_QUOTES) == 0;
}

static bool is_blank(const char *line, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (line[i] != ' ' && line[i] != '\t' && line[i] != '\r' && line[i] != '\n') return false;
    return true;
}

void chat_input_drop(ChatInput *in) {
    buf_clear(&in->text);
    in->state = CHAT_INPUT_EMPTY;
}

/* Appends a piece of the message; `next` is the state behind it. */
static ChatInputState append(ChatInput *in, const char *text, size_t n, bool ends_line, ChatInputState next) {
    bool fits = buf_append(&in->text, text, n) && (!ends_line || buf_append(&in->text, "\n", 1));
    return in->state = fits ? next : CHAT_INPUT_TOO_LONG;
}

static ChatInputState add_quoted(ChatInput *in, const char *line, size_t n) {
    if (ends_with_quotes(line, n)) {
        append(in, line, n - N_QUOTES, false, CHAT_INPUT_QUOTED);
        return in->state == CHAT_INPUT_TOO_LONG ? in->state : chat_input_end(in);
    }
    return append(in, line, n, true, CHAT_INPUT_QUOTED);
}

static ChatInputState add_plain(ChatInput *in, const char *line, size_t n) {
    if (n > 0 && line[n - 1] == '\\') return append(in, line, n - 1, true, CHAT_INPUT_CONTINUED);
    return append(in, line, n, false, CHAT_INPUT_MESSAGE);
}

ChatInputState chat_input_add(ChatInput *in, const char *line, size_t n) {
    if (in->state == CHAT_INPUT_QUOTED) return add_quoted(in, line, n);
    if (in->state == CHAT_INPUT_CONTINUED) return add_plain(in, line, n);
    chat_input_drop(in);
    if (is_blank(line, n)) return CHAT_INPUT_EMPTY;
    if (line[0] == '/') return append(in, line, n, false, CHAT_INPUT_COMMAND);
    if (begins_with_quotes(line, n)) return add_quoted(in, line + N_QUOTES, n - N_QUOTES);
    return add_plain(in, line, n);
}

ChatInputState chat_input_end(ChatInput *in) {
    bool is_open = in->state == CHAT_INPUT_QUOTED || in->state == CHAT_INPUT_CONTINUED;
    if (!is_open || is_blank(in->text.data, in->text.n)) chat_input_drop(in);
    else in->state = CHAT_INPUT_MESSAGE;
    return in->state;
}

/* harmony.c - answers of gpt-oss, which consist of messages with headers.
 *
 *     <|channel|>analysis<|message|>I need the weather.<|end|>                             reasoning
 *     <|start|>assistant<|channel|>commentary<|message|>Let me look.<|end|>                text before a call
 *     <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>
 *     <|start|>assistant to=functions.f<|channel|>commentary json<|message|>{"a": 1}<|call|>    the same call
 *     <|start|>assistant<|channel|>final<|message|>It rains.<|return|>                     text
 *     <|start|>assistant<|channel|>final <|constrain|>json<|message|>{"rain": true}<|return|>    text
 *
 * The prompt ends with <|start|>assistant, so the first message begins in the middle of its header. <|call|> and
 * <|return|> end the answer, and are rarely written as text. A message to functions.NAME is a call, whose arguments are
 * the message. A message to anybody else, of a tool that the model only believes it has, is text with its header, so
 * that nothing is lost; without tools, so are messages to functions. What does not begin with a header is text, too.
 * Test: test_answer_reader.c. */
#include "cli/answer_reader.h"

#include <string.h>

enum { HEADER_MAX = 256 }; /* bytes; a longer text has no header */

static const char message_mark[] = "<|message|>", recipient_mark[] = "to=", function_mark[] = "functions.";

static bool is_part(const char *text, size_t n, const char *mark) {
    size_t n_mark = strlen(mark);
    return memcmp(text, mark, n < n_mark ? n : n_mark) == 0;
}

/* Returns the place of `mark` in a text; NULL: it is not there. */
static const char *find(const char *text, size_t n, const char *mark) {
    size_t n_mark = strlen(mark);
    for (size_t i = 0; i + n_mark <= n; i++)
        if (memcmp(text + i, mark, n_mark) == 0) return text + i;
    return NULL;
}

/* Returns the length of the word at the beginning of a text of a header. */
static size_t word(const char *text, size_t n) {
    size_t k = 0;
    while (k < n && text[k] != ' ' && text[k] != '<') k++;
    return k;
}

/* Returns whether a text that begins so may be a header. */
static bool may_be_header(const char *text, size_t n) {
    static const char *const beginnings[] = {"<|start|>assistant", "<|channel|>", "to="};
    bool found = false;
    while (n > 0 && *text == ' ') text++, n--;
    for (int i = 0; i < 3 && !found; i++) found = is_part(text, n, beginnings[i]);
    return found;
}

static void begin_text(AnswerReader *r) {
    r->state = READS_TEXT;
    answer_reader_put(r, ANSWER_TEXT, r->held.data, r->held.n);
}

/* Begins the message after the held header. */
static void begin_message(AnswerReader *r) {
    const char *text = r->held.data, *to = find(text, r->held.n, recipient_mark);
    const char *channel = find(text, r->held.n, "<|channel|>"), *end = text + r->held.n;
    size_t n_to = 0, n_function = strlen(function_mark);
    if (to) to += strlen(recipient_mark), n_to = word(to, (size_t)(end - to));
    if (n_to == strlen("assistant") && memcmp(to, "assistant", n_to) == 0) to = NULL;
    if (to && r->form.tools && n_to > n_function && n_to - n_function < CALL_NAME_MAX &&
        memcmp(to, function_mark, n_function) == 0) {
        char name[CALL_NAME_MAX] = "";
        memcpy(name, to + n_function, n_to - n_function);
        answer_reader_begin_item(r, ANSWER_CALL, name);
        r->state = READS_CALL;
    } else if (to) begin_text(r);
    else if (channel && is_part(channel, (size_t)(end - channel), "<|channel|>analysis")) r->state = READS_REASONING;
    else r->state = READS_TEXT;
    buf_clear(&r->held);
}

static void read_header(AnswerReader *r) {
    size_t n_mark = strlen(message_mark), n = r->held.n;
    if (!may_be_header(r->held.data, n) || n > HEADER_MAX) {
        begin_text(r);
        buf_clear(&r->held);
    } else if (n >= n_mark && memcmp(r->held.data + n - n_mark, message_mark, n_mark) == 0) begin_message(r);
}

/* Ends the message, if it has not ended. */
static void end_message(AnswerReader *r) {
    bool is_empty = r->state == READS_CALL && r->items[r->n_items - 1].text.n == 0;
    if (is_empty && r->is_open) answer_reader_put(r, ANSWER_CALL, "{}", 2);
    if (r->state == READS_REASONING && r->n_reason == 0) r->n_reason = r->n_read;
    answer_reader_end_item(r);
    r->state = READS_BEGINNING;
    buf_clear(&r->held);
}

static AnswerKind kind_of(const AnswerReader *r) {
    return r->state == READS_CALL ? ANSWER_CALL : r->state == READS_REASONING ? ANSWER_REASONING : ANSWER_TEXT;
}

static void read_message(AnswerReader *r) {
    static const char *const ends[] = {"<|end|>", "<|call|>", "<|return|>"};
    size_t n_done = 0;
    for (; n_done < r->held.n; n_done++) {
        const char *rest = r->held.data + n_done;
        size_t n = r->held.n - n_done;
        int i = 0;
        while (i < 3 && !is_part(rest, n, ends[i])) i++;
        if (i == 3) continue;
        answer_reader_put(r, kind_of(r), r->held.data, n_done);
        memmove(r->held.data, rest, n);
        r->held.n = n;
        if (n == strlen(ends[i])) end_message(r);
        return;
    }
    answer_reader_put(r, kind_of(r), r->held.data, n_done);
    buf_clear(&r->held);
}

void harmony_read(AnswerReader *r) {
    if (r->state == READS_BEGINNING) read_header(r);
    else read_message(r);
}

/* The header of a message that was not written is dropped, unless it is all that there is. */
void harmony_end(AnswerReader *r) {
    if (r->state != READS_BEGINNING || r->n_items == 0) answer_reader_put(r, kind_of(r), r->held.data, r->held.n);
    if (r->state == READS_CALL) end_message(r);
}

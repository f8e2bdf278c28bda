/* answer_output.c - shows the answer of a conversation while it is generated.
 *
 * Some models mark their reasoning with special tokens, which have no text: gpt-oss, Gemma 4, and Mistral's models that
 * reason. Without the marks it could not be told from the answer, and the headers of gpt-oss's messages would remain as
 * words. So an AnswerReader gets these tokens by their names, and the reasoning is shown as most other models write it,
 * between <think> and </think>. It is no part of the answer that the conversation keeps: the templates of these models
 * leave it out of later turns. Test: tests/cli/test_answer_output.c. */
#include "cli/run/generate.h"

#include <string.h>

enum { PROMPT_END_TOKENS = 16, MARK_SIZE = 48, ANSWER_MAX_BYTES = 64 << 20 };

/* Finds the marks that begin with a special token of the vocabulary; NULL: there are none. */
static const ReasoningMarks *find_marks(const fr_model *model) {
    const ReasoningMarks *marks;
    for (int i = 0; (marks = reasoning_marks_at(i)); i++) {
        int32_t *tokens = NULL;
        int64_t n = 0;
        bool found = marks->sign &&
                     !fr_tokenize(model, marks->sign, strlen(marks->sign), FR_TOKENIZE_SPECIAL, &tokens, &n, NULL) &&
                     n == 1 && fr_token_is_special(model, tokens[0]);
        fr_free(tokens);
        if (found) break;
    }
    return marks;
}

/* Returns whether the prompt ends with a mark, spelled in any tokens. */
static bool ends_with(const fr_model *model, const int32_t *prompt, int64_t n_prompt, const char *mark) {
    Buf text = {.max_bytes = 1 << 20};
    size_t n, n_mark = strlen(mark);
    int64_t i = n_prompt > PROMPT_END_TOKENS ? n_prompt - PROMPT_END_TOKENS : 0;
    for (; i < n_prompt; i++) {
        const char *piece = fr_token_piece(model, prompt[i], true, &n);
        if (!buf_append(&text, piece, n)) break;
    }
    bool is_long_enough = text.data && i == n_prompt && text.n >= n_mark;
    bool found = is_long_enough && memcmp(text.data + text.n - n_mark, mark, n_mark) == 0;
    buf_free(&text);
    return found;
}

AnswerOutput answer_output_open(const fr_model *model, const int32_t *prompt, int64_t n_prompt, bool use_color) {
    AnswerOutput o = {.text = text_output_open(use_color, true), .model = model, .marks = find_marks(model)};
    if (!o.marks) return o;
    answer_reader_init(&o.reader, &(AnswerForm){.marks = o.marks,
                                                .reasons = true,
                                                .is_reasoning = ends_with(model, prompt, n_prompt, o.marks->begin),
                                                .has_reasoned = ends_with(model, prompt, n_prompt, o.marks->end)});
    o.answer.max_bytes = ANSWER_MAX_BYTES;
    return o;
}

void answer_output_close(AnswerOutput *o) {
    if (o->marks) answer_reader_free(&o->reader);
    buf_free(&o->answer);
    text_output_close(&o->text);
}

/* Shows bytes that the last token made certain. */
static void show(AnswerOutput *o, const char *bytes, size_t n) {
    fr_token_event event = {.source = o->source, .text = bytes, .n_bytes = n};
    if (!o->stops) o->stops = text_output_write(&o->text, &event);
}

static void note_memory(AnswerOutput *o, bool fits) {
    if (fits) return;
    o->text.has_failed = true;
    o->stops = 1;
}

/* An AnswerSink. */
static void show_item(void *user, AnswerEvent event, const AnswerItem *item, const char *bytes, size_t n) {
    AnswerOutput *o = user;
    bool is_text = item->kind == ANSWER_TEXT;
    if (event == ANSWER_GROWS) {
        show(o, bytes, n);
        if (is_text) note_memory(o, buf_append(&o->answer, bytes, n));
    } else if (event == ANSWER_BEGINS) {
        if (item->index > 0) show(o, "\n\n", 2);
        if (is_text && o->answer.n > 0) note_memory(o, buf_append(&o->answer, "\n\n", 2));
        if (!is_text) show(o, "<think>\n", strlen("<think>\n"));
    } else if (!is_text && !o->is_ending) show(o, "\n</think>", strlen("\n</think>"));
}

/* Feeds the reader. Not 0: the generation stops. */
static int feed(AnswerOutput *o, const char *bytes, size_t n) {
    note_memory(o, answer_reader_feed(&o->reader, bytes, n, show_item, o));
    return o->stops;
}

int answer_output_write(AnswerOutput *o, const fr_token_event *event) {
    if (!o->marks) return text_output_write(&o->text, event);
    o->source = event->source;
    if (feed(o, event->text, event->n_bytes)) return 1;
    if (!fr_token_is_special(o->model, event->token)) return 0;
    char name[MARK_SIZE] = "";
    size_t n;
    const char *piece = fr_token_piece(o->model, event->token, true, &n);
    if (n >= MARK_SIZE) return 0;
    memcpy(name, piece, n);
    bool is_of_mark = strstr(o->marks->begin, name) || strstr(o->marks->end, name);
    return is_of_mark ? feed(o, name, n) : 0;
}

int answer_output_end(AnswerOutput *o) {
    o->is_ending = true; /* reasoning that was cut off has no end */
    if (o->marks) note_memory(o, answer_reader_end(&o->reader, show_item, o));
    return o->stops;
}

const char *answer_output_text(const AnswerOutput *o, const fr_request *request, size_t *n) {
    const char *text = fr_request_text(request, n);
    if (o->marks) text = o->answer.n ? o->answer.data : "", *n = o->answer.n;
    return text_output_trimmed(text, n);
}

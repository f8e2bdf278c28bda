/* answers.c - from messages and tools to a prompt, and from tokens to items. */
#include "app/serve/api/answers.h"

#include "app/serve/api/openai_format.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void free_answers(void *own) {
    Answers *a = own;
    for (int i = 0; i < a->n_readers; i++) answer_reader_free(&a->readers[i]);
    free(a->readers);
    free(a);
}

/* The token that a mark is; -1: it is several. *is_hidden: it has no text. */
static int32_t token_of(const ServedModel *m, const char *mark, bool *is_hidden) {
    int32_t *ids = NULL, token = -1;
    int64_t n = 0;
    char *text = NULL;
    size_t n_text = 0;
    fr_error why;
    *is_hidden = false;
    if (!fr_tokenize(m->model, mark, strlen(mark), FR_TOKENIZE_SPECIAL, &ids, &n, &why) && n == 1) token = ids[0];
    if (token >= 0 && !fr_detokenize(m->model, &token, 1, &text, &n_text, &why)) *is_hidden = n_text == 0;
    fr_free(ids);
    fr_free(text);
    return token;
}

/* Whether the vocabulary has the mark as a token. */
static bool add_mark(Answers *a, const ServedModel *m, const char *mark) {
    bool is_hidden;
    int32_t token = mark ? token_of(m, mark, &is_hidden) : -1;
    if (token >= 0 && is_hidden && a->n_hidden < ANSWERS_MAX_HIDDEN) {
        a->hidden[a->n_hidden].token = token;
        a->hidden[a->n_hidden++].mark = mark;
    }
    return token >= 0;
}

static bool ends_with_think(const fr_chat_result *prompt) {
    static const char mark[] = "<think>";
    size_t n = prompt->n_bytes;
    while (n > 0 && strchr(" \n\r\t", prompt->text[n - 1])) n--;
    return n >= sizeof mark - 1 && memcmp(prompt->text + n - (sizeof mark - 1), mark, sizeof mark - 1) == 0;
}

/* A family reasons where the vocabulary has a token for it, or where the template has begun it. */
static void find_form(Answers *a, const ServedModel *m, const ChatMessages *f, const fr_chat_result *prompt) {
    a->form.tools = chat_messages_has_tools(f) ? tool_form_of(m->info.chat_family) : NULL;
    a->form.is_reasoning = ends_with_think(prompt);
    a->form.reasons = add_mark(a, m, "<think>");
    (void)add_mark(a, m, "</think>");
    if (!a->form.tools) return;
    (void)add_mark(a, m, a->form.tools->begin);
    (void)add_mark(a, m, a->form.tools->end);
    if (!a->form.tools->has_names) return;
    (void)add_mark(a, m, "[ARGS]");
    (void)add_mark(a, m, "[CALL_ID]");
}

static int make_readers(Answers *a, int n) {
    a->readers = calloc((size_t)n, sizeof *a->readers);
    for (; a->readers && a->n_readers < n; a->n_readers++) answer_reader_init(&a->readers[a->n_readers], &a->form);
    return a->readers ? 0 : -1;
}

int answers_prepare(ApiCall *call, const ChatMessages *f) {
    fr_chat_result result;
    Answers *a = calloc(1, sizeof *a);
    call->own = a;
    call->free_own = a ? free_answers : NULL;
    if (!a) return api_refuse(&call->error, 500, NULL, NULL, "memory ran out");
    if (chat_messages_apply(call->plan.model, f, &result, &call->error)) return -1;
    find_form(a, call->plan.model, f, &result);
    Prompt prompt = {.tokens = result.tokens, .n = result.n_tokens};
    result.tokens = NULL;
    fr_chat_result_free(&result);
    if (plan_add_prompt(&call->plan, &prompt, &call->error)) return -1;
    return make_readers(a, call->plan.n) ? api_refuse(&call->error, 500, NULL, NULL, "memory ran out") : 0;
}

static AnswerReader *reader_of(const Choice *c) {
    const Answers *a = c->call->own;
    return &a->readers[c->index];
}

const AnswerReader *answers_of(const Choice *c) { return reader_of(c); }

static const char *hidden_mark(const Answers *a, int32_t token) {
    for (int i = 0; i < a->n_hidden; i++)
        if (a->hidden[i].token == token) return a->hidden[i].mark;
    return NULL;
}

bool answers_feed(const Choice *c, const TokenBatch *fresh, AnswerSink sink, void *user) {
    const Answers *a = c->call->own;
    AnswerReader *r = reader_of(c);
    size_t told = 0, n = 0; /* [told, n) of the text is not told yet */
    bool fits = true;
    for (size_t i = 0; i < fresh->n && fits; i++) {
        const char *mark = hidden_mark(a, fresh->tokens[i].token);
        n += fresh->tokens[i].n_text;
        if (!mark) continue;
        fits = answer_reader_feed(r, fresh->text.data + told, n - told, sink, user) &&
               answer_reader_feed(r, mark, strlen(mark), sink, user);
        told = n;
    }
    if (fits && fresh->text.n > told)
        fits = answer_reader_feed(r, fresh->text.data + told, fresh->text.n - told, sink, user);
    return fits;
}

bool answers_end(const Choice *c, AnswerSink sink, void *user) { return answer_reader_end(reader_of(c), sink, user); }

bool answers_keep(const Choice *c, const TokenBatch *fresh) { return answers_feed(c, fresh, NULL, NULL); }

void answers_call_id(const Choice *c, const AnswerItem *item, char id[ANSWERS_ID_SIZE]) {
    static const char letters[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    int number = c->index * 31 + item->i_call;
    size_t n = strlen(c->call->id);
    const char *tail = n > 6 ? c->call->id + n - 6 : "000000";
    snprintf(id, ANSWERS_ID_SIZE, "%.6s%c%c%c", tail, letters[number / 3844 % 62], letters[number / 62 % 62],
             letters[number % 62]);
}

JsonOut answers_begin_event(Buf *out, const char *type) {
    bool fits = buf_append(out, "event: ", 7) && buf_append(out, type, strlen(type)) && buf_append(out, "\n", 1);
    JsonOut j = sse_begin(out);
    j.failed = j.failed || !fits;
    json_out_mark(&j, '{');
    json_out_key_text(&j, "type", type);
    return j;
}

void answers_end_event(JsonOut *j) {
    json_out_mark(j, '}');
    sse_end(j);
}

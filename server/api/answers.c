/* answers.c - from messages and tools to a prompt, and from tokens to items. */
#include "server/api/answers.h"
#include "server/api/openai_format.h"
#include "server/api/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { UNBOUNDED = INT32_MAX }; /* more tokens than any context has */

static void free_answers(void *own) {
    Answers *a = own;
    for (int i = 0; i < a->n_readers; i++) answer_reader_free(&a->readers[i]);
    for (int i = 0; i < a->n_readers && a->logprobs; i++) answer_logprobs_free(&a->logprobs[i]);
    for (int i = 0; i < a->form.n_names; i++) free(a->form.names[i]);
    free(a->form.names);
    free(a->readers);
    free(a->reasoning);
    free(a->logprobs);
    free(a);
}

static const char *hidden_mark(const Answers *a, int32_t token) {
    for (int i = 0; i < a->n_hidden; i++)
        if (a->hidden[i].token == token) return a->hidden[i].mark;
    return NULL;
}

/* Adds the control tokens of a mark, whose text is not shown, to the hidden ones. Returns whether the mark is one
 * token. */
static bool add_mark(Answers *a, const ServedModel *m, const char *mark) {
    int32_t *ids = NULL;
    int64_t n = 0;
    if (!mark || fr_tokenize(m->model, mark, strlen(mark), FR_TOKENIZE_SPECIAL, &ids, &n, NULL)) return false;
    for (int64_t i = 0; i < n && a->n_hidden < ANSWERS_MAX_HIDDEN; i++) {
        size_t n_text, n_name;
        const char *name = fr_token_piece(m->model, ids[i], true, &n_name);
        char *spelling = a->spelling[a->n_hidden];
        (void)fr_token_piece(m->model, ids[i], false, &n_text);
        if (n_text > 0 || n_name >= ANSWERS_MARK_SIZE || hidden_mark(a, ids[i])) continue;
        memcpy(spelling, name, n_name);
        a->hidden[a->n_hidden].token = ids[i];
        a->hidden[a->n_hidden++].mark = spelling;
    }
    fr_free(ids);
    return n == 1;
}

bool answers_may_reason(const ServedModel *m) {
    return m->info.chat_reasons || reasoning_marks_of(m->chat_template)->sign;
}

/* Sets the form of the answers. They may begin with reasoning if the vocabulary or the template has a mark for it. */
static void find_form(Answers *a, const ServedModel *m, const ChatMessages *f, const fr_chat_result *prompt) {
    const ReasoningMarks *marks = a->form.marks = reasoning_marks_of(m->chat_template);
    const char *family = marks->calls ? marks->calls : m->info.chat_family;
    a->form.tools = chat_messages_has_tools(f) ? tool_form_of(family) : NULL;
    bool goes_on = f->prefill_reasoning && !f->prefill; /* the prompt ends within the reasoning */
    a->form.is_reasoning = goes_on || chat_prompt_ends_with(prompt, marks->begin);
    a->form.has_reasoned = chat_prompt_ends_with(prompt, marks->end);
    a->form.reasons = add_mark(a, m, marks->begin) || answers_may_reason(m);
    (void)add_mark(a, m, marks->end);
    if (!a->form.tools) return;
    (void)add_mark(a, m, a->form.tools->begin);
    (void)add_mark(a, m, a->form.tools->end);
    if (!a->form.tools->has_names) return;
    a->has_args_mark = add_mark(a, m, "[ARGS]");
    a->has_id_mark = add_mark(a, m, "[CALL_ID]");
}

static int make_readers(Answers *a, const Plan *plan) {
    a->readers = calloc((size_t)plan->n, sizeof *a->readers);
    a->reasoning = calloc((size_t)plan->n, sizeof *a->reasoning);
    a->logprobs = plan->wants_logprobs ? calloc((size_t)plan->n, sizeof *a->logprobs) : NULL;
    if (!a->readers || !a->reasoning || (plan->wants_logprobs && !a->logprobs)) return -1;
    for (; a->n_readers < plan->n; a->n_readers++) answer_reader_init(&a->readers[a->n_readers], &a->form);
    return 0;
}

/* Copies the names of the tools, because the schema of an answer may allow texts that look like a call without a
 * mark. */
static int copy_names(AnswerForm *form, const json_t *tools) {
    size_t n = json_array_size(tools);
    form->names = calloc(n ? n : 1, sizeof *form->names);
    for (size_t i = 0; i < n && form->names; i++) {
        const json_t *function = json_object_get(json_array_get(tools, i), "function");
        char *name = strdup(json_string_value(json_object_get(function, "name")));
        if (!name) return -1;
        form->names[form->n_names++] = name;
    }
    return form->names ? 0 : -1;
}

/* Makes the grammar begin after the reasoning. If the template has not begun the reasoning and the model may do so, the
 * grammar begins after it or, without reasoning, at once. A text that the prompt has begun does not reason. */
static void put_reasoning_first(Plan *plan, const Answers *a) {
    const AnswerForm *form = &a->form;
    bool may_begin = answers_may_reason(plan->model) && !form->has_reasoned;
    if (form->is_reasoning || may_begin) plan->grammar_after = a->reasoning_end;
    if (!form->is_reasoning && may_begin) plan->grammar_opening = form->marks->begin;
}

/* Bounds the reasoning of answers that may have some, or prepares for a client that ends it. */
static void set_budget(Plan *plan, const Answers *a, const ChatMessages *f) {
    const AnswerForm *form = &a->form;
    bool is_bounded = f->has_budget || plan->controls_reasoning;
    if (!is_bounded || form->has_reasoned || !(form->is_reasoning || form->reasons)) return;
    plan->reasoning_end = a->reasoning_end;
    plan->reasoning_opening = form->is_reasoning ? NULL : form->marks->begin;
    plan->max_reasoning = f->has_budget ? f->max_reasoning : UNBOUNDED;
}

static Answers *new_answers(ApiCall *call) {
    Answers *a = calloc(1, sizeof *a);
    call->own = a;
    call->free_own = a ? free_answers : NULL;
    if (!a) api_refuse(&call->error, 500, NULL, NULL, "memory ran out");
    return a;
}

int answers_prepare_text(ApiCall *call) {
    Answers *a = new_answers(call);
    if (!a) return -1;
    return make_readers(a, &call->plan) ? api_refuse(&call->error, 500, NULL, NULL, "memory ran out") : 0;
}

int answers_prepare(ApiCall *call, ChatMessages *f) {
    fr_chat_result result = {.struct_size = sizeof result};
    Answers *a = new_answers(call);
    if (!a) return -1;
    bool has_tools = chat_messages_has_tools(f);
    f->drops_tools = call->service->ignores_unknown;
    if (chat_messages_apply(call->plan.model, f, &result, &call->error)) return -1;
    if (has_tools && !f->tools)
        (void)plan_warn(&call->plan, "the chat template of this model has no place for 'tools', which were ignored");
    find_form(a, call->plan.model, f, &result);
    Prompt prompt = {.tokens = result.tokens, .n = result.n_tokens, .text = NULL};
    const char *name;
    if (call->plan.is_verbose) prompt.text = result.text, result.text = NULL;
    a->is_forced = a->form.tools && chat_messages_forces_call(f, &name);
    a->has_one_call = f->has_one_call;
    a->form.is_either = a->form.tools && call->plan.is_format;
    bool is_free = !call->plan.grammar && !f->prefill && !f->prefill_reasoning; /* a grammar holds the whole text */
    a->form.drops_blank = is_free && call->plan.model->writes_blank;
    if (f->prefill && !a->form.is_reasoning) a->form.reasons = false, a->form.has_reasoned = true;
    result.tokens = NULL;
    fr_chat_result_free(&result);
    if (plan_add_prompt(&call->plan, &prompt, &call->error)) return -1;
    if (a->form.is_either && copy_names(&a->form, f->tools))
        return api_refuse(&call->error, 500, NULL, NULL, "memory ran out");
    a->reasoning_end = a->form.marks->end;
    if (tool_grammar_prepare(call, a, f)) return -1;
    if (call->plan.grammar) put_reasoning_first(&call->plan, a);
    set_budget(&call->plan, a, f);
    if (f->keeps_reasoning) a->form.reasons = a->form.is_reasoning = false;
    return make_readers(a, &call->plan) ? api_refuse(&call->error, 500, NULL, NULL, "memory ran out") : 0;
}

bool answers_are_forced(const ApiCall *call) {
    const Answers *a = call->own;
    return a->is_forced;
}

static AnswerReader *reader_of(const Choice *c) {
    const Answers *a = c->call->own;
    return &a->readers[c->index];
}

const AnswerReader *answers_of(const Choice *c) { return reader_of(c); }

/* ---- log-probabilities ---------------------------------------------------------------------------------------- */

static AnswerLogprobs *logprobs_of(const Choice *c) {
    const Answers *a = c->call->own;
    return a->logprobs ? &a->logprobs[c->index] : NULL;
}

const TokenBatch *answers_fresh_logprobs(const Choice *c) {
    const AnswerLogprobs *l = logprobs_of(c);
    return l ? &l->fresh : NULL;
}

const TokenBatch *answers_logprobs(const Choice *c, const AnswerItem *item) {
    const AnswerLogprobs *l = logprobs_of(c);
    return l ? answer_logprobs_of(l, item->index) : NULL;
}

/* A sink that assigns log-probabilities, and passes everything on to the sink of an API. */
typedef struct LogprobSink {
    const Choice *choice;
    AnswerSink next;
    void *user;
    bool failed;
} LogprobSink;

/* If the first token of an answer begins with the blank of the template, it is shown without it, so that the tokens
 * together are the text. n is how many bytes the text grew. */
static void skip_blank(AnswerLogprobs *l, int item, size_t n) {
    TokenBatch *all = &l->of_item[item];
    size_t n_text = 0;
    for (size_t i = 0; i < l->fresh.n; i++) n_text += l->fresh.tokens[i].n_text;
    if (l->fresh.n == 0 || n_text != n + 1) return;
    l->fresh.tokens[0].n_skip = all->tokens[all->n - l->fresh.n].n_skip = 1;
}

static void sort_logprobs(void *user, AnswerEvent event, const AnswerItem *item, const char *bytes, size_t n) {
    LogprobSink *s = user;
    AnswerLogprobs *l = logprobs_of(s->choice);
    bool is_text = item->kind == ANSWER_TEXT;
    bool is_first = item->index == 0 && item->n_told == 0;
    if (event == ANSWER_GROWS && is_text && !answer_logprobs_take(l, item->index, n)) s->failed = true;
    else if (event == ANSWER_GROWS && is_text && is_first && reader_of(s->choice)->form.drops_blank)
        skip_blank(l, item->index, n);
    if (s->next) s->next(s->user, event, item, bytes, n);
    if (event != ANSWER_BEGINS || !is_text) answer_logprobs_drop(l);
}

/* ---- reading ---------------------------------------------------------------------------------------------------- */

/* Feeds the text of tokens to a reader, with the marks that some tokens are. */
static bool feed(const Answers *a, AnswerReader *r, const TokenRecord *tokens, size_t n_tokens, const char *text,
                 AnswerSink sink, void *user) {
    size_t told = 0, n = 0; /* bytes [told, n) of the text have not been fed yet */
    bool fits = true;
    for (size_t i = 0; i < n_tokens && fits; i++) {
        const char *mark = hidden_mark(a, tokens[i].token);
        n += tokens[i].n_text;
        if (!mark) continue;
        fits = answer_reader_feed(r, text + told, n - told, sink, user) &&
               answer_reader_feed(r, mark, strlen(mark), sink, user);
        told = n;
    }
    return fits && (n == told || answer_reader_feed(r, text + told, n - told, sink, user));
}

/* Feeds token by token, so that each item gets the log-probabilities of its own tokens. */
static bool feed_with_logprobs(const Choice *c, const TokenBatch *fresh, AnswerSink sink, void *user) {
    const char *text = fresh->text.data ? fresh->text.data : "";
    LogprobSink s = {.choice = c, .next = sink, .user = user};
    const fr_top_logprob *top = (const fr_top_logprob *)(const void *)fresh->top.data;
    bool fits = true;
    for (size_t i = 0; i < fresh->n && fits; i++) {
        const TokenRecord *t = &fresh->tokens[i];
        fits = answer_logprobs_add(logprobs_of(c), c->call->plan.model, t, text, top) &&
               feed(c->call->own, reader_of(c), t, 1, text, sort_logprobs, &s);
        text += t->n_text;
        if (top) top += t->n_top;
    }
    return fits && !s.failed;
}

/* Counts the tokens of the reasoning by their lengths, because the reader does not know where tokens end. */
static void count_reasoning(const Answers *a, ReasoningCount *count, const AnswerReader *r, const TokenBatch *fresh) {
    for (size_t i = 0; i < fresh->n; i++) {
        const char *mark = hidden_mark(a, fresh->tokens[i].token);
        if (!r->n_reason || count->n_bytes < r->n_reason) count->n_tokens++;
        count->n_bytes += fresh->tokens[i].n_text + (mark ? strlen(mark) : 0);
    }
}

int64_t answers_count_reasoning(const ApiCall *call) {
    const Answers *a = call->own;
    int64_t n = 0;
    for (int i = 0; i < a->n_readers; i++)
        if (a->readers[i].n_reason || a->readers[i].state == READS_REASONING) n += a->reasoning[i].n_tokens;
    return n;
}

bool answers_feed(const Choice *c, const TokenBatch *fresh, AnswerSink sink, void *user) {
    const Answers *a = c->call->own;
    const char *text = fresh->text.data ? fresh->text.data : "";
    bool fits = a->logprobs ? feed_with_logprobs(c, fresh, sink, user)
                            : feed(a, reader_of(c), fresh->tokens, fresh->n, text, sink, user);
    count_reasoning(a, &a->reasoning[c->index], reader_of(c), fresh);
    return fits;
}

bool answers_end(const Choice *c, AnswerSink sink, void *user) {
    const Answers *a = c->call->own;
    LogprobSink s = {.choice = c, .next = sink, .user = user};
    if (!a->logprobs) return answer_reader_end(reader_of(c), sink, user);
    return answer_reader_end(reader_of(c), sort_logprobs, &s) && !s.failed;
}

bool answers_write_texts(JsonOut *out, const AnswerReader *r, AnswerKind kind, const char *key) {
    Buf text = {.max_bytes = 64 << 20};
    int n = 0;
    for (int i = 0; i < r->n_items; i++) {
        if (r->items[i].kind != kind) continue;
        if (!buf_append(&text, r->items[i].text.data, r->items[i].text.n)) out->failed = true;
        n++;
    }
    if (n > 0) {
        json_out_key(out, key);
        json_out_bytes(out, text.data ? text.data : "", text.n);
    }
    buf_free(&text);
    return n > 0;
}

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

/* Assigns tokens to the items that have their text.
 *
 * The reader of an answer holds text back until it knows to which item it belongs, so tokens wait until an item grows.
 * The item then gets the last waiting tokens, as many as have the number of bytes by which it grew. Tokens before these
 * were white space that the form drops. */

void answer_logprobs_free(AnswerLogprobs *l) {
    for (int i = 0; i < l->n_items; i++) token_batch_free(&l->of_item[i]);
    free(l->of_item);
    token_batch_free(&l->pending);
    *l = (AnswerLogprobs){.n_items = 0};
}

bool answer_logprobs_add(AnswerLogprobs *l, const ServedModel *m, const TokenRecord *t, const char *text,
                         const fr_top_logprob *top) {
    size_t n;
    (void)fr_token_piece(m->model, t->token, false, &n);
    return n == 0 || token_batch_append(&l->pending, t, text, top);
}

void answer_logprobs_drop(AnswerLogprobs *l) {
    token_batch_clear(&l->pending);
    l->fresh = (TokenBatch){.n = 0};
}

/* Returns the last tokens of `pending`, which have n bytes. */
static TokenBatch last_bytes(const TokenBatch *pending, size_t n) {
    TokenBatch last = *pending;
    size_t n_text = 0;
    for (size_t i = 0; i < last.n; i++) n_text += last.tokens[i].n_text;
    while (last.n > 0 && last.tokens->n_text > 0 && n_text - last.tokens->n_text >= n) {
        n_text -= last.tokens->n_text;
        if (last.top.data) last.top.data += last.tokens->n_top * sizeof(fr_top_logprob);
        last.tokens++;
        last.n--;
    }
    return last;
}

static bool make_items(AnswerLogprobs *l, int n) {
    if (n <= l->n_items) return true;
    TokenBatch *grown = realloc(l->of_item, (size_t)n * sizeof *grown);
    if (!grown) return false;
    l->of_item = grown;
    while (l->n_items < n) l->of_item[l->n_items++] = (TokenBatch){.n = 0};
    return true;
}

bool answer_logprobs_take(AnswerLogprobs *l, int item, size_t n_bytes) {
    l->fresh = last_bytes(&l->pending, n_bytes);
    return make_items(l, item + 1) && token_batch_copy(&l->of_item[item], &l->fresh);
}

const TokenBatch *answer_logprobs_of(const AnswerLogprobs *l, int item) {
    return item < l->n_items && l->of_item[item].n > 0 ? &l->of_item[item] : NULL;
}

/* Finds which of several stop strings ended a text.
 *
 * The engine cuts a text off before its stop string and does not report which one it was. It is the one that comes
 * first in the text of all tokens, which are kept for this purpose (Plan.tells_stop). */

const char *stop_string_of(const Choice *c) {
    const Plan *plan = &c->call->plan;
    const char *first = NULL, *found = NULL;
    Buf ids = {.max_bytes = 64 << 20};
    char *text = NULL;
    size_t n;
    fr_error why;
    if (choice_finish(c) != FR_FINISH_STOP || plan->n_stops == 0) return NULL;
    for (size_t i = 0; i < c->tokens.n; i++)
        if (!buf_append(&ids, &c->tokens.tokens[i].token, sizeof(int32_t))) break;
    if (plan->n_stops > 1 && !fr_detokenize(plan->model->model, (const int32_t *)(const void *)ids.data,
                                            (int64_t)(ids.n / sizeof(int32_t)), &text, &n, &why))
        for (int i = 0; i < plan->n_stops; i++) {
            const char *at = strstr(text, plan->stops[i]);
            if (!at || (first && at >= first)) continue;
            first = at;
            found = plan->stops[i];
        }
    fr_free(text);
    buf_free(&ids);
    return found ? found : plan->stops[0];
}

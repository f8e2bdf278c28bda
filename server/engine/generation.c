/* generation.c - what the event loop does with a generation. */
#include "server/engine/generation.h"

#include "base/system.h"

#include <stdlib.h>

bool token_batch_append(TokenBatch *b, const TokenRecord *token, const char *text, const fr_top_logprob *top) {
    if (b->n == b->capacity) {
        size_t capacity = b->capacity ? 2 * b->capacity : 16;
        TokenRecord *grown = realloc(b->tokens, capacity * sizeof *grown);
        if (!grown) return false;
        b->tokens = grown;
        b->capacity = capacity;
    }
    b->text.max_bytes = b->top.max_bytes = TOKEN_BATCH_MAX_TEXT;
    if (token->n_top && !buf_append(&b->top, top, token->n_top * sizeof *top)) return false;
    if (token->n_text && !buf_append(&b->text, text, token->n_text)) {
        b->top.n -= token->n_top * sizeof *top;
        return false;
    }
    b->tokens[b->n++] = *token;
    return true;
}

bool token_batch_copy(TokenBatch *b, const TokenBatch *from) {
    const fr_top_logprob *top = (const fr_top_logprob *)(const void *)from->top.data;
    for (size_t i = 0; i < from->n; i++) {
        TokenRecord record = from->tokens[i];
        record.n_text = 0;
        if (!token_batch_append(b, &record, NULL, top)) return false;
        if (top) top += record.n_top;
    }
    return true;
}

bool token_batch_next(const TokenBatch *b, TokenCursor *at, TokenBatch *one) {
    if (at->i >= b->n) return false;
    TokenRecord *t = &b->tokens[at->i++];
    size_t n_top = t->n_top * sizeof(fr_top_logprob);
    *one = (TokenBatch){.tokens = t,
                        .n = 1,
                        .text = {.data = b->text.data ? b->text.data + at->n_text : NULL, .n = t->n_text},
                        .top = {.data = b->top.data ? b->top.data + at->n_top : NULL, .n = n_top}};
    at->n_text += t->n_text;
    at->n_top += n_top;
    return true;
}

void token_batch_clear(TokenBatch *b) {
    b->n = 0;
    if (b->text.data) buf_clear(&b->text);
    if (b->top.data) buf_clear(&b->top);
    if (b->steps.data) buf_clear(&b->steps);
}

void token_batch_free(TokenBatch *b) {
    free(b->tokens);
    buf_free(&b->text);
    buf_free(&b->top);
    buf_free(&b->steps);
    *b = (TokenBatch){.tokens = NULL};
}

static void deliver(Message *m) {
    Generation *g = (Generation *)m;
    g->on_news(g);
}

void generation_result_free(GenerationResult *r) {
    if (!r) return;
    free(r->embedding);
    free(r);
}

static GenerationResult *new_result(const ServedModel *model, const fr_request_options *options) {
    GenerationResult *r = calloc(1, sizeof *r);
    if (!r) return NULL;
    r->stats.struct_size = sizeof r->stats;
    r->drafts.struct_size = sizeof r->drafts;
    r->submitted_s = clock_s();
    if (!options->want_embedding) return r;
    r->embedding = calloc((size_t)model->info.n_embd, sizeof *r->embedding);
    if (r->embedding) return r;
    generation_result_free(r);
    return NULL;
}

Generation *generation_new(ServedModel *model, const fr_request_options *options, Mailbox *mailbox) {
    Generation *g = calloc(1, sizeof *g);
    if (!g) return NULL;
    g->message.deliver = deliver;
    g->mailbox = mailbox;
    g->model = model;
    g->slot = g->wanted_slot = -1;
    g->options = *options;
    g->result = new_result(model, options);
    if (g->result) return g;
    generation_free(g);
    return NULL;
}

void generation_free(Generation *g) {
    if (!g) return;
    token_batch_free(&g->fresh);
    generation_result_free(g->result);
    free(g);
}

bool generation_take(Generation *g, TokenBatch *out) {
    pthread_mutex_lock(&g->mailbox->lock);
    TokenBatch empty = *out;
    *out = g->fresh;
    g->fresh = empty;
    bool is_ended = g->is_ended && !g->message.is_posted;
    pthread_mutex_unlock(&g->mailbox->lock);
    return is_ended;
}

/* Ends and posts under one lock: otherwise the event loop could see the end, and free the message before it is
 * posted. */
void generation_end(Generation *g) {
    Mailbox *mailbox = g->mailbox;
    g->result->ended_s = clock_s();
    pthread_mutex_lock(&mailbox->lock);
    g->is_ended = true;
    bool wakes = mailbox_add(mailbox, &g->message);
    pthread_mutex_unlock(&mailbox->lock);
    if (wakes) mailbox_wake(mailbox);
}

bool generation_is_open(Generation *g) {
    pthread_mutex_lock(&g->mailbox->lock);
    bool is_open = g->is_open;
    pthread_mutex_unlock(&g->mailbox->lock);
    return is_open;
}

int generation_slot(Generation *g) {
    pthread_mutex_lock(&g->mailbox->lock);
    int slot = g->slot;
    pthread_mutex_unlock(&g->mailbox->lock);
    return slot;
}

fr_stats generation_stats(Generation *g) {
    pthread_mutex_lock(&g->mailbox->lock);
    fr_stats stats = g->stats;
    pthread_mutex_unlock(&g->mailbox->lock);
    return stats;
}

void generation_cancel(Generation *g) { atomic_store(&g->wants_cancel, true); }
void generation_end_reasoning(Generation *g) { atomic_store(&g->wants_reasoning_end, true); }

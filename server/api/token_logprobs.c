/* token_logprobs.c - log-probabilities of tokens as text.
 *
 * They are the model's own, before sampling options, and written with 17 digits, so that a client reads the double that
 * the engine computed. What a token stands for need not be whole characters: "bytes" has it exactly, and "token" with
 * U+FFFD in place of what is no character by itself. A control token has its name, and no bytes. */
#include "server/api/token_logprobs.h"

#include <stdio.h>
#include <string.h>

void logprobs_want(Plan *plan, int64_t n_top) {
    plan->wants_logprobs = true;
    plan->n_top_logprobs = (int)n_top;
}

/* What to call a token. */
static const char *name_of(const ServedModel *m, int32_t token, size_t *n) {
    return fr_token_piece(m->model, token, true, n);
}

static const fr_top_logprob *top_of(const TokenBatch *tokens) {
    return (const fr_top_logprob *)(const void *)tokens->top.data;
}

/* ---- one object a token --------------------------------------------------------------------------------------- */

static void write_bytes(JsonOut *out, const ServedModel *m, int32_t token) {
    size_t n;
    const char *bytes = fr_token_piece(m->model, token, false, &n);
    json_out_key(out, "bytes");
    if (n == 0) {
        json_out_null(out);
        return;
    }
    json_out_mark(out, '[');
    for (size_t i = 0; i < n; i++) json_out_int(out, (unsigned char)bytes[i]);
    json_out_mark(out, ']');
}

/* An object that is not closed yet. */
static void open_token(JsonOut *out, const ServedModel *m, int32_t token, double logprob, bool with_id) {
    size_t n;
    const char *name = name_of(m, token, &n);
    json_out_mark(out, '{');
    if (with_id) json_out_key_int(out, "id", token);
    json_out_key(out, "token");
    json_out_bytes(out, name, n);
    json_out_key(out, "logprob");
    json_out_exact(out, logprob);
    write_bytes(out, m, token);
}

void logprobs_write_list(JsonOut *out, const ServedModel *m, const TokenBatch *tokens, bool with_ids) {
    const fr_top_logprob *top = tokens ? top_of(tokens) : NULL;
    for (size_t i = 0; tokens && i < tokens->n; i++) {
        const TokenRecord *t = &tokens->tokens[i];
        open_token(out, m, t->token, t->logprob, with_ids);
        json_out_open(out, "top_logprobs", '[');
        for (uint32_t k = 0; k < t->n_top; k++, top++) {
            open_token(out, m, top->token, top->logprob, with_ids);
            json_out_mark(out, '}');
        }
        json_out_mark(out, ']');
        json_out_mark(out, '}');
    }
}

/* ---- columns ------------------------------------------------------------------------------------------------------ */

typedef struct Name {
    char text[4 * 1024 + 16];
    size_t n;
} Name;

/* OpenAI's API writes "bytes:\xe2\x82" where the bytes are not UTF-8, so that no two names are the same. */
static void find_name(const ServedModel *m, int32_t token, Name *name) {
    size_t n;
    const char *bytes = name_of(m, token, &n);
    if (n > 1024) n = 1024;
    name->n = n;
    memcpy(name->text, bytes, n);
    if (json_out_is_text(bytes, n)) return;
    name->n = (size_t)snprintf(name->text, sizeof name->text, "bytes:");
    for (size_t i = 0; i < n; i++, name->n += 4)
        snprintf(name->text + name->n, sizeof name->text - name->n, "\\x%02x", (unsigned char)bytes[i]);
}

static void write_name(JsonOut *out, const ServedModel *m, int32_t token) {
    Name name;
    find_name(m, token, &name);
    json_out_bytes(out, name.text, name.n);
}

static void write_member(JsonOut *out, const ServedModel *m, int32_t token, double logprob) {
    Name name;
    find_name(m, token, &name);
    json_out_key_bytes(out, name.text, name.n);
    json_out_exact(out, logprob);
}

static bool have_one_name(const ServedModel *m, int32_t a, int32_t b) {
    size_t n_a, n_b;
    const char *name_a = name_of(m, a, &n_a), *name_b = name_of(m, b, &n_b);
    return n_a == n_b && memcmp(name_a, name_b, n_a) == 0;
}

/* The most probable tokens and, as OpenAI has it, the chosen one where it is not among them. A name comes once, with its
 * greatest log-probability. */
static void write_map(JsonOut *out, const ServedModel *m, const TokenRecord *t, const fr_top_logprob *top) {
    bool has_chosen = false;
    json_out_mark(out, '{');
    for (uint32_t i = 0; i < t->n_top; i++) {
        bool is_new = true;
        for (uint32_t k = 0; k < i && is_new; k++) is_new = !have_one_name(m, top[k].token, top[i].token);
        has_chosen = has_chosen || have_one_name(m, top[i].token, t->token);
        if (is_new) write_member(out, m, top[i].token, top[i].logprob);
    }
    if (!has_chosen) write_member(out, m, t->token, t->logprob);
    json_out_mark(out, '}');
}

/* Characters that begin in the bytes of a token. */
static int64_t count_characters(const ServedModel *m, int32_t token) {
    size_t n;
    const char *bytes = fr_token_piece(m->model, token, false, &n);
    int64_t count = 0;
    for (size_t i = 0; i < n; i++) count += ((unsigned char)bytes[i] & 0xC0) != 0x80;
    return count;
}

void logprobs_write_columns(JsonOut *out, const ServedModel *m, const TokenBatch *tokens, int64_t *offset) {
    json_out_mark(out, '{');
    json_out_open(out, "tokens", '[');
    for (size_t i = 0; i < tokens->n; i++) write_name(out, m, tokens->tokens[i].token);
    json_out_mark(out, ']');
    json_out_open(out, "token_logprobs", '[');
    for (size_t i = 0; i < tokens->n; i++) json_out_exact(out, tokens->tokens[i].logprob);
    json_out_mark(out, ']');
    json_out_open(out, "top_logprobs", '[');
    const fr_top_logprob *top = top_of(tokens);
    for (size_t i = 0; i < tokens->n; i++) {
        write_map(out, m, &tokens->tokens[i], top);
        if (top) top += tokens->tokens[i].n_top;
    }
    json_out_mark(out, ']');
    json_out_open(out, "text_offset", '[');
    for (size_t i = 0; i < tokens->n; i++) {
        json_out_int(out, *offset);
        *offset += count_characters(m, tokens->tokens[i].token);
    }
    json_out_mark(out, ']');
    json_out_mark(out, '}');
}

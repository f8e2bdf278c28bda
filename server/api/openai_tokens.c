/* openai_tokens.c - what answers say about single tokens: their log-probabilities, and which drafter proposed them. */
#include "server/api/openai_format.h"

#include <stdint.h>
#include <string.h>

/* ---- log-probabilities -----------------------------------------------------------------------------------------
 *
 * Log-probabilities are those of the model's own distribution, before sampling options. They are written with 17
 * digits, so that a client reads the double that the engine computed. The text of a token need not be whole characters:
 * "bytes" has it exactly, and "token" has U+FFFD in place of incomplete characters. A control token has its name as
 * "token", and no bytes. */

void logprobs_want(Plan *plan, int64_t n_top) {
    plan->wants_logprobs = true;
    plan->n_top_logprobs = (int)n_top;
}

/* Returns the name of a token. */
static const char *name_of(const ServedModel *m, int32_t token, size_t *n) {
    return fr_token_piece(m->model, token, true, n);
}

static const fr_top_logprob *top_of(const TokenBatch *tokens) {
    return (const fr_top_logprob *)(const void *)tokens->top.data;
}

/* ---- one object for each token ----------------------------------------------------------------------------- */

static void write_bytes(JsonOut *out, const ServedModel *m, int32_t token, size_t n_skip) {
    size_t n;
    const char *bytes = fr_token_piece(m->model, token, false, &n);
    if (n_skip > n) n_skip = n;
    bytes += n_skip;
    n -= n_skip;
    json_out_key(out, "bytes");
    if (n == 0) {
        json_out_null(out);
        return;
    }
    json_out_mark(out, '[');
    for (size_t i = 0; i < n; i++) json_out_int(out, (unsigned char)bytes[i]);
    json_out_mark(out, ']');
}

/* Begins the object of a token, which the caller closes. The first n_skip bytes of the token are left out. */
static void open_token(JsonOut *out, const ServedModel *m, int32_t token, double logprob, size_t n_skip, bool with_id) {
    size_t n;
    const char *name = name_of(m, token, &n);
    if (n_skip > n) n_skip = n;
    name += n_skip;
    n -= n_skip;
    json_out_mark(out, '{');
    if (with_id) json_out_key_int(out, "id", token);
    json_out_key(out, "token");
    json_out_bytes(out, name, n);
    json_out_key(out, "logprob");
    json_out_exact(out, logprob);
    write_bytes(out, m, token, n_skip);
}

void logprobs_write_list(JsonOut *out, const ServedModel *m, const TokenBatch *tokens, bool with_ids) {
    const fr_top_logprob *top = tokens ? top_of(tokens) : NULL;
    for (size_t i = 0; tokens && i < tokens->n; i++) {
        const TokenRecord *t = &tokens->tokens[i];
        open_token(out, m, t->token, t->logprob, t->n_skip, with_ids);
        json_out_open(out, "top_logprobs", '[');
        for (uint32_t k = 0; k < t->n_top; k++, top++) {
            open_token(out, m, top->token, top->logprob, 0, with_ids);
            json_out_mark(out, '}');
        }
        json_out_mark(out, ']');
        json_out_mark(out, '}');
    }
}

/* ---- columns ----------------------------------------------------------------------------------------------- */

typedef struct Name {
    char text[4 * 1024 + 16];
    size_t n;
} Name;

/* Finds the name of a token. OpenAI's API writes "bytes:\xe2\x82" if the bytes are not UTF-8, so that all names
 * differ. */
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

/* Writes the most probable tokens and, as in OpenAI's API, the chosen token if it is not among them. Each name is
 * written once, with its greatest log-probability. */
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

/* Returns how many characters begin in the bytes of a token. */
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

/* ---- the field "forerun" of streams: which drafter proposed each token, and what else was proposed -----------
 *
 *     "forerun": {"tokens": [{"text": " the", "source": "suffix", "ms": 31.2}, {"text": " cat", "source": null, ...}],
 *                 "steps": [{"n": 2, "tree": [{"parent": -1, "text": "sat", "p": 1, "source": null, "accepted": true},
 *                                             ...]}]}
 *
 * An event has the tokens and the steps that ended since the event before. A step comes after its n tokens, perhaps in
 * a later event. Steps are in the order of the text, so a reader that counts tokens knows which of them each step
 * added. If the source of a token is null, it is the target's own. "ms" is the time from the first byte of the request
 * until the engine chose the token; the rest of the time until the event arrives is what the server adds
 * (bench/bench_serve.c). */

int token_pieces_read(Plan *plan, const json_t *value, ApiError *error) {
    const char *name;
    json_t *wanted;
    if (!value) return 0;
    if (!json_is_object(value)) return api_refuse(error, 400, "invalid_type", "forerun", "'forerun' must be an object");
    json_object_foreach((json_t *)(uintptr_t)value, name, wanted) {
        bool *to = strcmp(name, "tokens") == 0  ? &plan->shows_sources
                   : strcmp(name, "trees") == 0 ? &plan->shows_trees
                                                : NULL;
        if (!to || !json_is_boolean(wanted))
            return api_refuse(error, 400, "unsupported_parameter", "forerun",
                              "'forerun.%.40s' is not supported, or has a value of the wrong type", name);
        *to = json_is_true(wanted);
    }
    if (plan->shows_trees) plan->shows_sources = true;
    if (plan->shows_sources && !plan->streams)
        return api_refuse(error, 400, "invalid_value", "forerun", "'forerun' needs 'stream': true");
    return 0;
}

static const char *source_name(const Choice *c, int32_t source) {
    const int n = sizeof c->sources.names / sizeof *c->sources.names;
    return source >= 0 && source < n && c->sources.names[source][0] ? c->sources.names[source] : NULL;
}

static void write_token_text(JsonOut *out, const ServedModel *m, int32_t token) {
    size_t n;
    const char *text = fr_token_piece(m->model, token, false, &n);
    json_out_key(out, "text");
    json_out_bytes(out, text, n);
}

static void write_tree(JsonOut *out, const Choice *c, const StepNode *nodes, int32_t n) {
    json_out_open(out, "tree", '[');
    for (int32_t i = 0; i < n; i++) {
        const fr_tree_node *node = &nodes[i].node;
        json_out_mark(out, '{');
        json_out_key_int(out, "parent", node->parent);
        write_token_text(out, c->call->plan.model, node->token);
        json_out_key_real(out, "p", (double)node->p_accept);
        json_out_key_text(out, "source", source_name(c, node->source));
        json_out_key_bool(out, "accepted", i == 0 || nodes[i].is_accepted);
        json_out_mark(out, '}');
    }
    json_out_mark(out, ']');
}

static void write_steps(JsonOut *out, const Choice *c, const Buf *steps) {
    json_out_open(out, "steps", '[');
    for (size_t at = 0; at < steps->n;) {
        StepRecord record;
        StepNode nodes[FR_TREE_BUDGET_MAX + 1];
        memcpy(&record, steps->data + at, sizeof record);
        at += sizeof record;
        memcpy(nodes, steps->data + at, (size_t)record.n_nodes * sizeof *nodes);
        at += (size_t)record.n_nodes * sizeof *nodes;
        json_out_mark(out, '{');
        json_out_key_int(out, "n", record.n_tokens);
        write_tree(out, c, nodes, record.n_nodes);
        json_out_mark(out, '}');
    }
    json_out_mark(out, ']');
}

void token_pieces_write(JsonOut *out, const Choice *c, const TokenBatch *fresh) {
    const Plan *plan = &c->call->plan;
    size_t at = 0;
    if (!plan->shows_sources) return;
    json_out_open(out, "forerun", '{');
    json_out_open(out, "tokens", '[');
    for (size_t i = 0; i < fresh->n; i++) {
        const TokenRecord *t = &fresh->tokens[i];
        json_out_mark(out, '{');
        json_out_key(out, "text");
        json_out_bytes(out, t->n_text ? fresh->text.data + at : "", t->n_text);
        json_out_key_text(out, "source", source_name(c, t->source));
        json_out_key_real(out, "ms", (t->made_s - c->call->started_s) * 1e3);
        json_out_mark(out, '}');
        at += t->n_text;
    }
    json_out_mark(out, ']');
    if (plan->shows_trees) write_steps(out, c, &fresh->steps);
    json_out_mark(out, '}');
}

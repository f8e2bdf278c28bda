/* request_reasoning.c - reasoning that reaches its budget is closed by its end mark.
 *
 * A model that reasons writes <think> ... </think> before its answer, and may take long. With a budget of n tokens the
 * mark is forced after n of them: at the positions n, n + 1, ... of the text the only token that may be generated is
 * the next one of the mark, unless the mark is among the tokens before. So the constraint on a position depends only on
 * the tokens before it, and the text is the same with and without drafts; a drafted token that contradicts the mark is
 * rejected like any other. A grammar that holds after the mark reads the forced tokens as it reads all others.
 *
 *     budget 3, the mark has two tokens:     t0 t1 t2 m0 m1 t5 ...
 *     the model closes it by itself:         t0 m0 m1 t3 ...
 *
 * If the prompt has not begun the reasoning, the text may do so; a text that begins otherwise has no budget. Proof:
 * tests/engine/test_reasoning_budget.c. */
#include "engine/engine.h"
#include "engine/request.h"

#include <stdlib.h>
#include <string.h>

static int tokens_of(const fr_request *r, const char *mark, int32_t **tokens, int64_t *n, fr_error *err) {
    if (!mark || !*mark) return FR_OK;
    return fr_tokenize(r->engine->model, mark, strlen(mark), FR_TOKENIZE_SPECIAL, tokens, n, err);
}

int request_reasoning_begin(fr_request *r, const fr_request_options *o, fr_error *err) {
    RequestReasoning *x = &r->reasoning;
    if (o->max_reasoning < 0) return error_set(err, FR_ERR_ARGUMENT, "max_reasoning cannot be negative");
    int status = tokens_of(r, o->reasoning_end, &x->end, &x->n_end, err);
    if (!status && x->n_end > 0) status = tokens_of(r, o->reasoning_opening, &x->opening, &x->n_opening, err);
    x->budget = o->max_reasoning + x->n_opening;
    return status;
}

void request_reasoning_end(fr_request *r) {
    fr_free(r->reasoning.end);
    fr_free(r->reasoning.opening);
    r->reasoning.end = r->reasoning.opening = NULL;
}

int fr_request_end_reasoning(fr_request *r, fr_error *err) {
    RequestReasoning *x = &r->reasoning;
    int64_t first = r->stats.n_generated > x->n_opening ? r->stats.n_generated : x->n_opening;
    if (x->n_end == 0) return error_set(err, FR_ERR_ARGUMENT, "the request has no reasoning_end");
    if (!x->has_ended && x->budget > first) x->budget = first;
    return FR_OK;
}

/* The text up to a node of the tree: the tokens of the context, and then those of the path. */
typedef struct TextSoFar {
    const fr_request *r;
    int32_t path[TREE_MAX_NODES]; /* [n_path] the tokens after the context */
    int32_t n_path;
} TextSoFar;

static void find_text(const fr_request *r, int32_t node, TextSoFar *t) {
    const TreeNode *nodes = r->tree.nodes;
    t->r = r;
    t->n_path = 0;
    for (int32_t i = node; i > 0; i = nodes[i].parent) t->n_path++;
    for (int32_t i = node, k = t->n_path; i > 0; i = nodes[i].parent) t->path[--k] = nodes[i].token;
}

/* Token i of the generated text. */
static int32_t token_at(const TextSoFar *t, int64_t i) {
    int64_t n = t->r->stats.n_generated;
    return i < n ? t->r->context[t->r->stats.n_prompt + i] : t->path[i - n];
}

/* Whether the text has these tokens from position `at` on. */
static bool has(const TextSoFar *t, int64_t at, const int32_t *tokens, int64_t n) {
    if (at < 0 || at + n > t->r->stats.n_generated + t->n_path) return false;
    for (int64_t i = 0; i < n; i++)
        if (token_at(t, at + i) != tokens[i]) return false;
    return true;
}

int32_t request_reasoning_forced(const void *request, int32_t node) {
    const fr_request *r = request;
    const RequestReasoning *x = &r->reasoning;
    int64_t n = r->stats.n_generated;
    TextSoFar t;
    if (x->n_end == 0 || x->has_ended || n > x->budget + x->n_end || n + r->tree.n < x->budget) return -1;
    find_text(r, node, &t);
    int64_t position = n + t.n_path;
    if (position < x->budget || position >= x->budget + x->n_end || !has(&t, 0, x->opening, x->n_opening)) return -1;
    for (int64_t i = n - x->n_end + 1; i + x->n_end <= x->budget; i++) /* ends within the path */
        if (has(&t, i, x->end, x->n_end)) return -1;
    return x->end[position - x->budget];
}

void request_reasoning_advance(fr_request *r) {
    RequestReasoning *x = &r->reasoning;
    const TextSoFar t = {.r = r, .n_path = 0};
    if (x->n_end > 0 && !x->has_ended) x->has_ended = has(&t, r->stats.n_generated - x->n_end, x->end, x->n_end);
}

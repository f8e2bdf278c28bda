/* step_notes.c - copies trees from the engine to whoever shows them.
 *
 * They are kept per request and on demand only: a tree is as large as some hundred tokens of text. A note that finds no
 * memory is left out; the text does not depend on it. */
#include "server/engine/step_notes.h"

#include <stdio.h>
#include <string.h>

enum { MAX_NODES = FR_TREE_BUDGET_MAX + 1, MAX_STEP_BYTES = 4 << 20 };

void step_notes_begin(Generation *g) {
    for (int i = 0; i < (int)(sizeof g->sources.names / sizeof *g->sources.names); i++) {
        const char *spec = fr_request_draft(g->request, i);
        if (!spec) break;
        snprintf(g->sources.names[i], sizeof g->sources.names[i], "%.*s", (int)strcspn(spec, ":"), spec);
    }
}

/* The tokens of the step lead from node 0 along the nodes that were accepted. */
static void mark_accepted(StepNode *nodes, int n, const int32_t *tokens, int64_t n_tokens) {
    int at = 0;
    for (int64_t k = 0; k < n_tokens; k++) {
        int child = at + 1;
        while (child < n && (nodes[child].node.parent != at || nodes[child].node.token != tokens[k])) child++;
        if (child >= n) return;
        nodes[child].is_accepted = 1;
        at = child;
    }
}

void step_notes_add(Generation *g) {
    fr_tree_node tree[MAX_NODES];
    StepNode nodes[MAX_NODES];
    int64_t n_tokens;
    const int32_t *tokens = fr_request_tokens(g->request, &n_tokens);
    if (n_tokens == g->n_noted) return;
    const StepRecord record = {.n_tokens = (int32_t)(n_tokens - g->n_noted),
                               .n_nodes = fr_request_tree(g->request, tree, MAX_NODES)};
    for (int i = 0; i < record.n_nodes; i++) nodes[i] = (StepNode){.node = tree[i]};
    mark_accepted(nodes, record.n_nodes, tokens + g->n_noted, record.n_tokens);
    g->n_noted = n_tokens;
    size_t n_bytes = (size_t)record.n_nodes * sizeof *nodes;
    pthread_mutex_lock(&g->mailbox->lock);
    Buf *steps = &g->fresh.steps;
    steps->max_bytes = MAX_STEP_BYTES;
    if (buf_reserve(steps, sizeof record + n_bytes)) {
        (void)buf_append(steps, &record, sizeof record);
        (void)buf_append(steps, nodes, n_bytes);
    }
    pthread_mutex_unlock(&g->mailbox->lock);
}

/* A forward of this text took so long, with so many rows in the mean; T(n) says how much less one row would have taken.
 * Measured times are only compared with measured times, so that a busy machine makes both slower. What is neither
 * forward nor drafting counts for each token, although a step without drafts has all of it for one: plain decoding is
 * not made slower than it is. */
double step_notes_plain_s(const Generation *g, const fr_stats *s) {
    if (s->n_steps == 0 || s->n_generated == 0) return 0;
    int64_t n_context = s->n_prompt + s->n_generated / 2;
    int n_rows = (int)(1 + (s->drafted + s->n_steps / 2) / s->n_steps);
    double one_s = fr_engine_forward_s(g->model->engine, 1, n_context),
           these_s = fr_engine_forward_s(g->model->engine, n_rows, n_context),
           rest_s = s->decode_s - s->forward_s - s->draft_s;
    if (these_s <= 0) return 0;
    return s->forward_s / (double)s->n_steps * one_s / these_s + (rest_s > 0 ? rest_s / (double)s->n_generated : 0);
}

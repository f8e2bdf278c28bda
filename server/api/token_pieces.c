/* token_pieces.c - which drafter proposed each token of a stream, and what else was proposed.
 *
 *     "forerun": {"tokens": [{"text": " the", "source": "suffix", "ms": 31.2}, {"text": " cat", "source": null, "ms": 31.2}],
 *                 "steps": [{"n": 2, "tree": [{"parent": -1, "text": "sat", "p": 1, "source": null, "accepted": true}, ...]}]}
 *
 * An event has the tokens and the steps that ended since the event before. A step stands behind its n tokens, perhaps in
 * a later event; steps come in the order of the text, so that a reader who counts knows which tokens each step made. A source of
 * null is the target itself. "ms" is when the engine chose the token, counted from the first byte of the request: what lies between that
 * and the arrival of the event is what the server adds (bench/bench_serve.c). */
#include "server/api/token_pieces.h"

#include <string.h>

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

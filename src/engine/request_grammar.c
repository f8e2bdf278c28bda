/* request_grammar.c - the grammar of a request in a step of the engine.
 *
 * Each node of the token tree has a state of the grammar, which is a pointer (grammar/states.h). Under `sampled`, nodes
 * that the grammar forbids are removed from the proposals of drafters, so that they get no row of the forward: the
 * target cannot choose them. At each node that it visits, the verification rule then reads the logits of the allowed
 * tokens only, as plain decoding does after the same text. So the text is the same with and without drafts.
 *
 * A ratio rule divides by the distributions that the drafter declared, and nothing is removed there: which nodes are
 * left must not depend on the tokens that were drawn. The target's distribution is the masked one, under which a
 * forbidden draft has no probability; such drafts are rejected, and the text has the masked distribution for the same
 * reason as every other text has its own (tests/verify/test_rules_masked.c).
 *
 * A mask takes microseconds for most grammars and seconds for a hostile one. So that no other request waits for it, the
 * work of all grammars in a step is counted and bounded (GRAMMAR_STEP_WORK). When a request's share of it runs out, the
 * work goes on in the next step, in which the request has no rows. What happens in this step depends on what is
 * missing:
 *
 *     the mask of a drafted node    `sampled` accepts the path up to the node, whose token begins the next tree
 *     anything else                 the verdict is dropped; later the same rows give the same verdict
 *
 * Neither changes a token: each position of the text has its own random numbers, and a rule that needs its trees gets
 * the same trees again. */
#include "engine/engine.h"
#include "engine/request.h"

#include <stdlib.h>
#include <string.h>

/* ---- fr_grammar ------------------------------------------------------------------------------------------ */

static int find_trie(fr_model *m, fr_error *err) {
    pthread_mutex_lock(&m->trie_lock);
    int status = m->trie ? FR_OK : token_trie_open(&m->trie, m->tokenizer, m->model->hparams.n_vocab, err);
    pthread_mutex_unlock(&m->trie_lock);
    return status;
}

static int open_grammar(fr_grammar *g, GrammarKind kind, const char *text, size_t n, GrammarStop stop, fr_error *err) {
    int status = find_trie(g->model, err);
    return status ? status : grammar_open(&g->grammar, g->model->trie, kind, text, n, stop, err);
}

int fr_grammar_open(fr_grammar **out, const fr_model *model, fr_grammar_kind kind, const char *text, size_t n_bytes,
                    fr_error *err) {
    return fr_grammar_open_stoppable(out, model, kind, text, n_bytes, NULL, NULL, err);
}

int fr_grammar_open_stoppable(fr_grammar **out, const fr_model *model, fr_grammar_kind kind, const char *text,
                              size_t n_bytes, int (*should_stop)(void *user), void *user, fr_error *err) {
    static const char function[] = "fr_grammar_open";
    int status = check_given(out, function, "out", err);
    if (status) return status;
    *out = NULL;
    if (!(status = check_given(model, function, "model", err))) status = check_given(text, function, "text", err);
    if (status) return status;
    if ((unsigned)kind >= GRAMMAR_N_KINDS)
        return error_set(err, FR_ERR_ARGUMENT, "%s: there is no kind of grammar %d", function, (int)kind);
    _Static_assert((int)GRAMMAR_JSON_SCHEMA == FR_GRAMMAR_JSON_SCHEMA && (int)GRAMMAR_GBNF == FR_GRAMMAR_GBNF &&
                       (int)GRAMMAR_REGEX == FR_GRAMMAR_REGEX,
                   "one numbering");
    fr_grammar *g = calloc(1, sizeof *g);
    if (!g) return error_memory(err, "a grammar", sizeof *g);
    g->model = (fr_model *)(uintptr_t)model; /* only its number of users and its trie change */
    atomic_fetch_add(&g->model->n_users, 1);
    FpEnv caller_env = fp_env_enter();
    status = open_grammar(g, (GrammarKind)kind, text, n_bytes, (GrammarStop){should_stop, user}, err);
    fp_env_leave(&caller_env);
    if (status) fr_grammar_close(g);
    else *out = g;
    return status;
}

void fr_grammar_close(fr_grammar *g) {
    if (!g) return;
    grammar_release(g->grammar);
    model_release(g->model);
    free(g);
}

const char *fr_grammar_notice(const fr_grammar *g) { return g ? grammar_notice(g->grammar) : ""; }
size_t fr_grammar_bytes(const fr_grammar *g) { return g ? grammar_bytes(g->grammar) : 0; }

/* ---- in a request ---------------------------------------------------------------------------------------- */

static void fail(RequestGrammar *g, int status, const fr_error *why) {
    g->status = status;
    g->error = *why;
}

static void wait_for(RequestGrammar *g, const GrammarState *state, int32_t token) {
    if (g->wanted) return;
    g->wanted = state;
    g->wanted_token = token;
}

static const TokenMask *mask_after(void *user, int32_t node) {
    RequestGrammar *g = user;
    const TokenMask *m = NULL;
    fr_error err;
    if (g->wanted) return NULL; /* the rest of the verdict is not used */
    int status = grammar_text_mask(&g->text, g->states[node], &m, &err);
    if (status == STATES_WAIT) wait_for(g, g->states[node], -1);
    else if (status) fail(g, status, &err);
    return m;
}

int request_grammar_begin(fr_request *r, const fr_request_options *o, fr_error *err) {
    RequestGrammar *g = &r->grammar;
    if (!o->grammar) return FR_OK;
    if (o->grammar->model != r->engine->model)
        return error_set(err, FR_ERR_MISMATCH, "the grammar was opened for another model; open it for the engine's");
    if (o->ignore_eos)
        return error_set(err, FR_ERR_ARGUMENT,
                         "a grammar decides where the text ends, which ignore_eos contradicts: leave ignore_eos out");
    g->states = malloc(TREE_MAX_NODES * sizeof *g->states);
    if (!g->states) return error_memory(err, "a request", TREE_MAX_NODES * sizeof *g->states);
    g->masks = (VerifyMasks){g, mask_after};
    int status = grammar_text_begin(&g->text, o->grammar->grammar, o->grammar_opening, o->grammar_after, err);
    g->text.quota = &g->quota;
    return status;
}

/* The draft "grammar" does not join if the caller names "none", if a draft draws its tokens under a ratio rule, or if
 * an automatic budget would need costs that are not known. */
bool request_grammar_wants_draft(const fr_request *r, const fr_request_options *o, bool has_auto) {
    bool wants_auto = (has_auto || o->tree_budget == FR_TREE_BUDGET_AUTO) && !verify_rule_needs_its_trees(r->rule);
    if (!o->grammar || r->options.n_drafts == REQUEST_MAX_DRAFTS || (wants_auto && r->engine->policy.cost.n == 0))
        return false;
    for (int i = 0; i < o->n_drafts; i++)
        if (strcmp(o->drafts[i], "none") == 0) return false;
    for (int i = 0; i < r->options.n_drafts; i++)
        if (r->rule->is_ratio && r->drafts[i].shared->drafter->class->draws) return false;
    return true;
}

void request_grammar_end(fr_request *r) {
    grammar_text_end(&r->grammar.text);
    free(r->grammar.states);
    r->grammar.states = NULL;
}

void request_grammar_begin_step(fr_request *r, int64_t quota) {
    RequestGrammar *g = &r->grammar;
    int status = FR_OK;
    if (!g->text.grammar) return;
    /* Fresh states would lack the one that the request waits for. If there is no memory for fresh states, the old ones
     * are used and go on growing. */
    if (!g->wanted && !g->is_behind) (void)grammar_text_refresh(&g->text, NULL);
    g->quota = (GrammarQuota){.left = quota};
    g->sits_out = g->is_behind = false;
    if (!g->wanted) return;
    if (g->wanted_token >= 0) {
        const GrammarState *to;
        bool allowed;
        status = grammar_text_read(&g->text, g->wanted, g->wanted_token, &to, &allowed, &g->error);
    } else {
        const TokenMask *m;
        status = grammar_text_mask(&g->text, g->wanted, &m, &g->error);
    }
    g->sits_out = g->is_behind = status == STATES_WAIT;
    if (!g->sits_out) g->wanted = NULL;
    if (status < 0) g->status = status;
}

/* Fills in the states of all nodes of a tree. If `allowed` is given, nodes whose state is still unknown when the quota
 * has run out count as forbidden; otherwise the request waits for their states. */
static int find_states(fr_request *r, const Tree *t, bool *allowed, fr_error *err) {
    RequestGrammar *g = &r->grammar;
    g->states[0] = g->text.state;
    for (int32_t i = 1; i < t->n; i++) {
        const TreeNode *x = &t->nodes[i];
        bool is_allowed = false;
        if (allowed && !allowed[x->parent]) {
            allowed[i] = false;
            continue;
        }
        int status = grammar_text_read(&g->text, g->states[x->parent], x->token, &g->states[i], &is_allowed, err);
        if (status == STATES_WAIT && !allowed) wait_for(g, g->states[x->parent], x->token);
        if (status && !(status == STATES_WAIT && allowed)) return status;
        if (allowed) allowed[i] = status == FR_OK && is_allowed;
    }
    return FR_OK;
}

bool request_grammar_is_ready(fr_request *r) {
    RequestGrammar *g = &r->grammar;
    if (!g->text.grammar) return true;
    if (g->sits_out || g->status) return false;
    if (!verify_rule_needs_its_trees(r->rule)) return true;
    g->is_behind = g->quota.ran_out || find_states(r, &r->tree, NULL, NULL) == STATES_WAIT;
    return !g->is_behind;
}

void request_grammar_prune(fr_request *r, Tree *t) {
    bool allowed[TREE_MAX_NODES] = {true};
    int32_t place[TREE_MAX_NODES], n = 0;
    if (!r->grammar.text.grammar || verify_rule_needs_its_trees(r->rule)) return;
    if (find_states(r, t, allowed, NULL)) {
        t->n = 1;
        return;
    }
    for (int32_t i = 0; i < t->n; i++) {
        if (!allowed[i]) continue;
        place[i] = n;
        t->nodes[n] = t->nodes[i];
        if (i > 0) t->nodes[n].parent = place[t->nodes[i].parent];
        n++;
    }
    t->n = n;
}

static int refuse_dead_end(const fr_request *r, fr_error *err) {
    return error_set(
        err, FR_ERR_UNSUPPORTED,
        "after %lld generated tokens no token of the vocabulary continues the text as the grammar demands: the "
        "vocabulary lacks a byte that the grammar needs, or logit_bias bans all tokens that may follow",
        (long long)r->stats.n_generated);
}

int request_grammar_enter(fr_request *r, fr_error *err) {
    RequestGrammar *g = &r->grammar;
    if (!g->text.grammar) return FR_OK;
    int status = find_states(r, &r->tree, NULL, err);
    if (status) return status;
    const TokenMask *m = mask_after(g, 0);
    if (m) return m->n_allowed > 0 ? FR_OK : refuse_dead_end(r, err);
    if (g->wanted) return STATES_WAIT;
    if (err) *err = g->error;
    return g->status;
}

const VerifyMasks *request_grammar_masks(const fr_request *r) {
    return r->grammar.text.grammar ? &r->grammar.masks : NULL;
}

int request_grammar_check(fr_request *r, VerifyResult *v, fr_error *err) {
    RequestGrammar *g = &r->grammar;
    if (!g->text.grammar) return FR_OK;
    if (g->status) {
        if (err) *err = g->error;
        return g->status;
    }
    if (g->wanted && verify_rule_needs_its_trees(r->rule)) return STATES_WAIT;
    for (int32_t i = 0; i < v->n_path; i++) {
        const TokenMask *m = g->states[v->path[i]]->mask; /* the rule has visited the node */
        if (m && m->n_allowed > 0) continue;
        v->next_token = r->tree.nodes[v->path[i]].token;
        v->n_path = i;
    }
    const GrammarState *last = g->states[v->n_path ? v->path[v->n_path - 1] : 0], *next;
    bool allowed;
    int status = grammar_text_read(&g->text, last, v->next_token, &next, &allowed, err);
    if (status == STATES_WAIT) {
        g->wanted = NULL; /* this state is needed before the mask of a later node */
        wait_for(g, last, v->next_token);
    }
    return status;
}

fr_finish request_grammar_advance(fr_request *r, int32_t token) {
    RequestGrammar *g = &r->grammar;
    bool allowed;
    if (!g->text.grammar) return FR_FINISH_NONE;
    /* request_grammar_check has read all of these tokens, so no work is left. */
    if (grammar_text_read(&g->text, g->text.state, token, &g->text.state, &allowed, &r->error)) return FR_FINISH_ERROR;
    return state_is_complete(g->text.state) ? FR_FINISH_EOS : FR_FINISH_NONE;
}

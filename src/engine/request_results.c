/* request_results.c - what a caller reads of a request, at any time, also within a callback. Without a request, each
 * function gives what an ended request without text would. */
#include "base/system.h"
#include "engine/api_check.h"
#include "engine/engine.h"
#include "engine/request.h"

static const fr_error no_request = {FR_ERR_ARGUMENT, "the request is NULL, but must be given"};

fr_finish fr_request_finish_reason(const fr_request *r) { return r ? r->finish : FR_FINISH_ERROR; }

const char *fr_finish_name(fr_finish finish) {
    static const char *const names[] = {"running", "eos", "stop", "length", "context", "cancelled", "error"};
    return (unsigned)finish < sizeof names / sizeof *names ? names[finish] : "unknown";
}

const fr_error *fr_request_error(const fr_request *r) { return r ? &r->error : &no_request; }

const int32_t *fr_request_tokens(const fr_request *r, int64_t *n) {
    if (n) *n = r ? r->stats.n_generated : 0;
    return r ? r->context + r->stats.n_prompt : NULL;
}

const char *fr_request_text(const fr_request *r, size_t *n_bytes) {
    if (n_bytes) *n_bytes = r ? r->text.n : 0;
    return r ? r->text.data : "";
}

int fr_request_get_stats(const fr_request *r, fr_stats *out) {
    fr_stats s = {0};
    if (!r) {
        (void)fill_result(out, &s, sizeof s);
        return FR_ERR_ARGUMENT;
    }
    FpEnv caller_env = fp_env_enter();
    s = r->stats;
    if (r->is_queued) s.queue_s = clock_s() - r->opened_s;
    if (!r->finish && r->decode_started_s > 0) s.decode_s = clock_s() - r->decode_started_s;
    s.acceptance_length = s.n_steps ? (double)s.n_generated / (double)s.n_steps : 0;
    s.tokens_per_s = s.decode_s > 0 ? (double)s.n_generated / s.decode_s : 0;
    fp_env_leave(&caller_env);
    return fill_result(out, &s, sizeof s);
}

int fr_request_get_draft_stats(const fr_request *r, fr_draft_stats *out) {
    static const fr_draft_stats none;
    int status = fill_result(out, r ? &r->draft_stats : &none, sizeof none);
    return r ? status : FR_ERR_ARGUMENT;
}

const char *fr_request_draft_error(const fr_request *r) { return r ? r->draft_error : ""; }

int fr_request_tree(const fr_request *r, fr_tree_node *nodes, int max_nodes) {
    if (!r || r->stats.n_steps == 0 || r->is_prefill_step) return 0;
    for (int32_t i = 0; nodes && i < r->tree.n && i < max_nodes; i++) {
        const TreeNode *node = &r->tree.nodes[i];
        nodes[i] = (fr_tree_node){.token = node->token,
                                  .parent = node->parent,
                                  .source = node->source,
                                  .p_accept = node->p_accept};
    }
    return r->tree.n;
}

const char *fr_request_draft(const fr_request *r, int source) {
    return r && source >= 0 && source < r->options.n_drafts ? r->drafts[source].shared->spec : NULL;
}

/* request.h - the inside of fr_request, and what its module does for a step. */
#ifndef ENGINE_REQUEST_H
#define ENGINE_REQUEST_H

#include "base/mem.h"
#include "engine/drafter_pool.h"
#include "engine/results.h"
#include "engine/request_grammar.h"
#include "verify/sampler.h"
#include "tree/draft_dists.h"
#include "verify/verifier.h"
#include "text/tokenizer.h"

enum { REQUEST_MAX_DRAFTS = 8, REQUEST_MAX_TEXT = 64 << 20 };

typedef struct RequestDraft {
    EngineDrafter *shared;         /* of the pool; or `own`, where the request must not depend on others */
    EngineDrafter own;             /* not open: spec == NULL */
    int32_t sequence;              /* its number in the drafter */
    bool is_active;                /* begun for this request's sequence, and not switched off */
    bool is_proposing;             /* in this step */
    int64_t n_fed;                 /* tokens of the context that it has been shown */
    int32_t counters[TREE_N_TAGS]; /* place of each tag in stats.counters; -1: the tag is not counted */
    int32_t extra_counter;         /* likewise, of its extra rows (DrafterClass.add_rows) */
    int32_t first_extra, n_extra;  /* of these rows in this step; the first is number first_extra behind the tree */
    /* For draft_policy.c: */
    Calibration calibration;
    Tree *proposal; /* as the drafter made it; NULL: nothing is learned from it */
    int64_t n_proposals;
    double gain_s;        /* mean time that one of its recent proposals saved */
    double time_credit_s; /* time that it may spend on proposals without saving as much */
} RequestDraft;

/* What verification decided about the tree of a step. Threads work it out side by side, each for requests of its own;
 * it takes effect when the request's turn comes. */
typedef struct Verdict {
    VerifyResult result; /* cut before the first row of logits that is not finite */
    int32_t n_path;      /* accepted nodes before the cut */
    int32_t n_good;      /* tokens that rows of finite logits decided; 0: none */
    int status;          /* of the rule */
    fr_error error;
    TokenScore scores[TREE_MAX_NODES]; /* of the tokens decided: the accepted path, and the one after it */
} Verdict;

struct fr_request {
    fr_engine *engine;
    fr_request_options options; /* prompt, stops and drafts are not read again */
    SamplingOptions sampling;   /* its seed is that of the options, hashed with the prompt */
    int32_t sequence;           /* of the executor; -1 while it waits, and once its KV is given back */
    int32_t *context;           /* prompt, then output; room for n_ctx + TREE_MAX_NODES + 1 */
    int64_t n_context;
    uint64_t arrival; /* the smaller, the older */
    int32_t n_read;   /* first tokens of the context that its KV held before pages were taken from it */
    /* The last page border before which its tokens are those of another sequence, of which it could take over a part
     * only. */
    int32_t branch;
    bool is_preempted; /* pages were taken from it, and it has not claimed slots since */
    bool is_queued;    /* it waits for a sequence */
    RequestDraft drafts[REQUEST_MAX_DRAFTS];
    int32_t tree_budget;            /* drafted nodes in a step, as the options say */
    int32_t step_budget;            /* what fits of them into this step */
    bool reads_prompt;              /* one of its drafters has observe_prompt ... */
    bool needs_hidden;              /* ... and one needs hidden states there */
    bool has_auto_budget;           /* draft_policy.c decides which nodes get a row */
    int32_t proposal_budget;        /* nodes that each drafter may propose, with an automatic budget */
    double time_credit_s;           /* forward time that drafted nodes may still lose */
    double recent_tokens, recent_s; /* of the last steps; their ratio is the rate of the request */
    const VerifyRule *rule;
    VerifyOptions rule_options;
    DraftDists *dists;              /* of `tree`, for a ratio rule; NULL otherwise */
    Tree tree;                      /* of this step */
    Tree proposal;                  /* of one drafter, before the union */
    int32_t first_row, n_step_rows; /* its rows in this step; 0 rows: it sits out */
    bool is_prefill_step;
    Verdict verdict;
    RequestGrammar grammar;
    RequestEmbedding embedding;
    Detokenizer detokenizer;
    Buf text; /* all text so far; the callback has been given n_sent bytes of it */
    size_t n_sent;
    char **stops;                 /* [n_stops] */
    int32_t *prediction;          /* [options.n_prediction] */
    LogitBias *bias;              /* [sampling.n_bias] */
    fr_top_logprob *top_logprobs; /* [tree_budget + 1][options.n_top_logprobs] of the tokens of a step */
    fr_finish finish;
    bool is_emitting; /* its callback is running */
    bool is_closed;   /* by a callback; freed when the step is over */
    fr_error error;
    fr_stats stats;
    fr_draft_stats draft_stats;
    char draft_error[256]; /* why a drafter was switched off; "" if none was */
    double opened_s, started_s, decode_started_s;
};

/* Whether tokens of its context before the pending one are yet to be read. */
bool request_is_prefilling(const fr_request *r);
/* Tokens it may still generate. */
int64_t request_tokens_left(const fr_request *r);
/* Appends n tokens that a step decided, in order, until one ends the request. sources[i] is the draft that proposed
 * token i, or -1. Their scores are those of r->verdict. */
void request_emit(fr_request *r, const int32_t *tokens, const int32_t *sources, int32_t n);
/* Ends a running request and gives its KV back. Calling it again does nothing. */
void request_end(fr_request *r, fr_finish finish);
void request_fail(fr_request *r, const fr_error *err);

#endif

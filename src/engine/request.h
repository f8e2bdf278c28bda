/* request.h - the inside of fr_request, and what each of its modules does for a step. */
#ifndef ENGINE_REQUEST_H
#define ENGINE_REQUEST_H

#include "base/mem.h"
#include "compute/executor.h"
#include "engine/drafter_pool.h"
#include "grammar/grammar.h"
#include "verify/sampler.h"
#include "tree/draft_dists.h"
#include "verify/verifier.h"
#include "text/tokenizer.h"

enum { REQUEST_MAX_DRAFTS = 8, REQUEST_MAX_TEXT = 64 << 20 };

typedef struct RequestDraft {
    EngineDrafter *shared;         /* in the pool; it is &own if the request must not depend on other requests */
    EngineDrafter own;             /* own.spec is NULL: not open */
    int32_t sequence;              /* the number of the request's sequence in the drafter */
    bool is_active;                /* the drafter has begun the sequence, and is not switched off */
    bool reads_prompt;             /* it is shown the prompt (DrafterClass.observe_prompt) */
    bool is_proposing;             /* it proposes in this step */
    bool is_catching_up;           /* it reads the context in pieces before it proposes (draft_policy.c) ... */
    int32_t n_catch_up;            /* ... and this many tokens of it in this step */
    int64_t n_fed;                 /* how many tokens of the context the drafter has been shown */
    int32_t counters[TREE_N_TAGS]; /* the index of each tag in stats.counters; -1: the tag is not counted */
    int32_t extra_counter;         /* the index for its extra rows (DrafterClass.add_rows); -1: they are not counted */
    int32_t first_extra, n_extra;  /* its extra rows of this step; first_extra counts from the end of the tree */
    /* The fields below belong to draft_policy.c. */
    Calibration calibration;
    Tree *proposal; /* the tree as the drafter wrote it; NULL: nothing is learned from proposals */
    double gain_s;  /* the mean time that one of its recent proposals saved */
} RequestDraft;

/* How much work all grammars together may do in one step, in the units of grammar/states.h. It takes two to three
 * milliseconds; most masks need less than a tenth of it. */
enum { GRAMMAR_STEP_WORK = 400000 };

typedef struct RequestGrammar {
    GrammarText text;            /* text.grammar is NULL: the request has no grammar */
    const GrammarState **states; /* [TREE_MAX_NODES] the state after each node of the tree of this step */
    VerifyMasks masks;
    int status; /* not FR_OK: why a state or a mask could not be found in this step */
    fr_error error;
    GrammarQuota quota; /* the work that is left in this step */
    /* The request waits for the state that follows `wanted` after wanted_token, or for the mask of `wanted` if
     * wanted_token is -1. NULL: it does not wait. */
    const GrammarState *wanted;
    int32_t wanted_token;
    bool sits_out;  /* it waits, and has no rows in this step */
    bool is_behind; /* it sat out the last step, or its verdict was dropped */
} RequestGrammar;

typedef struct TokenScore {
    double logprob;       /* NaN: the request does not ask for it */
    uint64_t logits_hash; /* the hash of all rows of logits up to this token's */
} TokenScore;

/* The mean of the final hidden states over a prompt (fr_request_options.want_embedding). */
typedef struct RequestEmbedding {
    double *sum; /* [n_embd] over the first n positions of the prompt, in order; NULL: the request wants none */
    int64_t n;
} RequestEmbedding;

/* The end of reasoning that is longer than its budget (fr_request_options.max_reasoning). */
typedef struct RequestReasoning {
    int32_t *end, *opening; /* [n_end] and [n_opening] tokens; end is NULL: there is no budget */
    int64_t n_end, n_opening;
    int64_t budget; /* where the end is forced, in tokens of the text */
    bool has_ended; /* the end is in the text */
} RequestReasoning;

/* What verification decided about the tree of a step. Several threads find verdicts at once, each for different
 * requests; a verdict takes effect when the request's turn comes. */
typedef struct Verdict {
    VerifyResult result; /* it is cut before the first row of logits that is not finite */
    int32_t n_path;      /* accepted nodes before that cut */
    int32_t n_good;      /* how many tokens were decided by rows of finite logits */
    int status;          /* not FR_OK: why there is no verdict */
    fr_error error;
    TokenScore scores[TREE_MAX_NODES]; /* scores of the accepted path and of the token after it */
} Verdict;

struct fr_request {
    fr_engine *engine;
    fr_request_options options; /* the pointers to prompt, stops and drafts are no longer valid */
    SamplingOptions sampling;   /* its seed is a hash of the options' seed and the prompt */
    int32_t sequence;           /* its sequence in the executor; -1: it waits for one, or has given it back */
    int32_t *context;           /* the prompt and then the output; room for n_ctx + TREE_MAX_NODES + 1 tokens */
    int64_t n_context;
    uint64_t arrival; /* older requests have smaller numbers */
    int32_t n_read;   /* how many tokens of the context the KV cache held before pages were taken from the request */
    /* Another sequence begins with the same tokens up to this page border, but could be taken over only in part. */
    int32_t branch;
    bool is_preempted; /* pages were taken from it, and it has not claimed slots since */
    bool is_queued;    /* it waits for a sequence */
    RequestDraft drafts[REQUEST_MAX_DRAFTS];
    int32_t tree_budget;            /* the most drafted nodes of a step, by the options */
    int32_t step_budget;            /* the most drafted nodes of this step */
    bool reads_prompt;              /* one of its drafters is shown the prompt ... */
    bool needs_hidden;              /* ... and one needs hidden states for it */
    bool only_best;                 /* logits are only read to choose the next token (RowDraw) */
    bool has_auto_budget;           /* draft_policy.c decides which nodes get a row */
    int32_t proposal_budget;        /* how many nodes each drafter may propose if the budget is automatic */
    double time_credit_s;           /* how much forward time drafted nodes may still lose */
    double recent_tokens, recent_s; /* sums over the last steps; their ratio is the request's rate */
    const VerifyRule *rule;
    VerifyOptions rule_options;
    DraftDists *dists;              /* the distributions of `tree` for a ratio rule; NULL for other rules */
    Tree tree;                      /* the tree of this step */
    Tree proposal;                  /* the tree of one drafter, before the union */
    int32_t first_row, n_step_rows; /* its rows in this step; n_step_rows is 0: it sits out the step */
    bool is_prefill_step;
    Verdict verdict;
    RequestGrammar grammar;
    RequestEmbedding embedding;
    RequestReasoning reasoning;
    Detokenizer detokenizer;
    Buf text; /* all text so far, of which the callback has received n_sent bytes */
    size_t n_sent;
    char **stops;                 /* [n_stops] */
    int32_t *prediction;          /* [options.n_prediction] */
    LogitBias *bias;              /* [sampling.n_bias] */
    fr_top_logprob *top_logprobs; /* [tree_budget + 1][options.n_top_logprobs] for the tokens of a step */
    fr_finish finish;
    bool is_emitting; /* its callback is running */
    bool is_closed;   /* a callback closed it; it is freed when the step is over */
    fr_error error;
    fr_stats stats;
    fr_draft_stats draft_stats;
    char draft_error[256]; /* why a drafter was switched off; "" if none was */
    double opened_s, started_s, decode_started_s;
};

/* ---- life (request.c) ----------------------------------------------------------------------------------------- */

/* Returns whether some token of its context before the pending one has not been read yet. */
bool request_is_prefilling(const fr_request *r);
/* Returns how many tokens it may still generate. */
int64_t request_tokens_left(const fr_request *r);
/* Appends n tokens that a step decided, in order, until one ends the request. sources[i] is the number of the draft
 * that proposed token i, or -1. The scores of the tokens are in r->verdict. */
void request_emit(fr_request *r, const int32_t *tokens, const int32_t *sources, int32_t n);
/* Ends the request with FR_FINISH_ERROR. */
void request_fail(fr_request *r, const fr_error *err);

/* ---- queue (request_queue.c): which open requests run, and which wait for a place ----------------------------- */

/* Fails if the engine already holds as many requests as its options allow. */
int request_queue_check(const fr_engine *e, fr_error *err);
/* Allocates memory for the logits of all trees that this request and the open ones may have in one step. */
int request_queue_reserve(const fr_request *r, fr_error *err);
/* Adds a request. It runs from the next step on if a sequence is free and no other request waits; otherwise it
 * waits. */
void request_queue_add(fr_request *r);
/* Gives free sequences to waiting requests, in order of arrival. Call it at the start of a step. */
void request_queue_admit(fr_engine *e);
/* Takes a request that has ended out of the queue, or frees its sequence, which is empty. */
void request_queue_leave(fr_request *r);
/* Returns how many requests run. */
int request_queue_n_running(const fr_engine *e);
/* Removes a request that has ended, or that was never added, from the engine. */
void request_queue_remove(const fr_request *r);

/* ---- drafters (request_drafts.c) ------------------------------------------------------------------------------
 *
 * A drafter that fails is switched off for the request in which it failed (fr_request_draft_error). The text does not
 * depend on drafters, so these functions return no errors. */

/* Shows the prompt to the drafters. The request has a sequence, and its drafts are acquired. */
void request_drafts_begin(fr_request *r);
/* Shows the last tokens to the drafters, and ends their sequences. Calling it again does nothing. */
void request_drafts_end(fr_request *r);
/* Builds r->tree for each of n decoding requests: the pending token, and below it at most r->step_budget nodes that its
 * drafters propose. */
void request_drafts_propose(fr_engine *e, fr_request *const *requests, int n);
/* Returns how many rows the drafters may add after those of the tree (DrafterClass.add_rows). */
int32_t request_drafts_extra_room(const fr_request *r);
/* Returns whether a drafter of the request adds rows; these do not fit an automatic budget. */
bool request_drafts_want_rows(const fr_request *r);
/* Lets the drafters add at most `room` rows after those of the final tree, which begin at r->first_row. Returns how
 * many they added. */
int32_t request_drafts_add_rows(fr_request *r, int32_t room, Row *rows);
/* Shows the verdict to the drafters, with the target's logits and hidden states at every node of r->tree, which are in
 * step.row_logits and step.row_hidden from r->first_row on. */
void request_drafts_observe_tree(fr_request *r, const VerifyResult *verdict);
/* Shows the context tokens first .. first + n - 1, which the target has just read, to the drafters that read prompts.
 * If one of them needs hidden states, these are in step.row_hidden from r->first_row on. */
void request_drafts_observe_prompt(fr_request *r, int64_t first, int32_t n);
/* The four functions below serve prefix_cache.c: they share what drafters keep for the tokens of a prompt
 * (DrafterClass.take_over).
 *
 * How many tokens the drafters of r allow it to take over from a sequence of the executor that begins with the same
 * n_common tokens as r. */
int32_t request_drafts_limit(const fr_request *r, int32_t sequence, int32_t n_common);
/* Returns how many they will allow it to take over from `reader`, a request that is reading its prompt. */
int32_t request_drafts_limit_of_reader(const fr_request *r, const fr_request *reader);
/* Lets the drafters take over what a sequence holds for the first n tokens of r. */
void request_drafts_take_over(fr_request *r, int32_t sequence, int32_t n);
/* Copies what the drafters keep for the first n tokens of r to the sequence of an entry of the prefix cache, which has
 * the first n_common >= n tokens of r. */
void request_drafts_keep(const fr_request *r, int32_t sequence, int32_t n, int32_t n_common);
/* Returns which drafters of the engine learn from the text of r (CachedPrefix.learners). */
uint32_t request_drafts_learners(const fr_request *r);
/* Counts the nodes of r->tree by their tags (fr_draft_stats.counters). The first n_emitted nodes of the accepted path
 * have become part of the text. */
void request_drafts_count_tags(fr_request *r, const VerifyResult *verdict, int64_t n_emitted);

/* ---- grammar (request_grammar.c): for a request without one, each function does nothing ----------------------- */

int request_grammar_begin(fr_request *r, const fr_request_options *o, fr_error *err);
void request_grammar_end(fr_request *r);
/* Returns whether the draft "grammar" joins the drafts that the options name, which r has acquired. */
bool request_grammar_wants_draft(const fr_request *r, const fr_request_options *o, bool has_auto);
/* Begins a step in which the grammar may do `quota` units of work. If the request waits for a state or a mask, the work
 * on it goes on; the request sits out the step if that does not finish it. */
void request_grammar_begin_step(fr_request *r, int64_t quota);
/* Returns whether the request's tree may have rows in this step. A tree that is smaller because the quota ran out may
 * have none under a rule that needs its trees. */
bool request_grammar_is_ready(fr_request *r);
/* Removes the nodes that the grammar forbids, with all nodes below them. It does nothing under a rule that needs its
 * trees, where a forbidden node has no probability and is rejected. */
void request_grammar_prune(fr_request *r, Tree *t);
/* Finds the state after each node, before verification. Fails if no token is allowed after the text. STATES_WAIT: the
 * quota ran out. The step then has no verdict, and is repeated when the request no longer waits. */
int request_grammar_enter(fr_request *r, fr_error *err);
/* Returns the masks for VerifyInput.masks. */
const VerifyMasks *request_grammar_masks(const fr_request *r);
/* Cuts the verdict, after verification, before a node after which no token is allowed, where plain decoding ends too,
 * and before a node whose mask is not known yet; the token of that node begins the next tree. STATES_WAIT: as for
 * request_grammar_enter. */
int request_grammar_check(fr_request *r, VerifyResult *v, fr_error *err);
/* Reads a token that was generated. Returns FR_FINISH_EOS if nothing can follow it, FR_FINISH_ERROR if it fails, with
 * r->error set, and FR_FINISH_NONE otherwise. */
fr_finish request_grammar_advance(fr_request *r, int32_t token);

/* ---- reasoning (request_reasoning.c): for a request without a budget, each function does nothing --------------- */

int request_reasoning_begin(fr_request *r, const fr_request_options *o, fr_error *err);
void request_reasoning_end(fr_request *r);
/* VerifyInput.forced: the only token that may follow a node of the request's tree; -1: there is none. */
int32_t request_reasoning_forced(const void *request, int32_t node);
/* Notes the last token of the context, which has just been generated. */
void request_reasoning_advance(fr_request *r);

/* ---- results (results.c): what a step finds out about its tokens --------------------------- */

/* Refuses options with biases of unknown tokens or with numbers out of range. */
int check_scores(const fr_request_options *o, int32_t n_vocab, fr_error *err);
/* Copies the biases, bans the tokens that the model suppresses, and allocates memory for the most probable tokens. The
 * tree budget is known. */
int open_scores(fr_request *r, const fr_request_options *o, fr_error *err);
/* Fills in r->verdict.scores and r->top_logprobs for the tokens of the verdict. Several threads may call it at once,
 * for different requests. */
void score_tokens(fr_request *r, const Sampler *sampler);

int request_embedding_begin(fr_request *r, const fr_request_options *o, fr_error *err);
void request_embedding_end(fr_request *r);
/* Adds the hidden state [n_embd] of the prompt's next position; those of later positions are ignored. */
void request_embedding_add(fr_request *r, const float *hidden);

#endif

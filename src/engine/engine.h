/* engine.h - inside of the engine: what stands behind the opaque types of forerun.h. */
#ifndef ENGINE_ENGINE_H
#define ENGINE_ENGINE_H

#include "base/mem.h"
#include "backend/cost_curve.h"
#include "spec/drafter/calibration.h"
#include "spec/drafter/drafter.h"
#include "engine/budget_allocator.h"
#include "spec/verify/verifier.h"
#include "text/chat.h"
#include "text/detokenizer.h"

struct fr_model {
    Gguf *gguf;
    Tokenizer *tokenizer;
    Model *model;
    Weights *weights;  /* of the model, resident in its backend */
    ChatFamily chat_family;
    char *name;
};

enum { ENGINE_MAX_DRAFTERS = 32, REQUEST_MAX_DRAFTS = 8, REQUEST_MAX_TEXT = 64 << 20 };

/* Drafters are shared by all requests that name the same spec, so that a draft model runs one forward for
 * all of them. They stay open when the last of these ends, so that methods which learn from one request for the
 * next keep what they learned; where places run out, one that nobody uses makes room. */
typedef struct EngineDrafter {
    char *spec;      /* NULL: the place is free */
    Drafter *drafter;
    int32_t n_users; /* open requests */
    Calibration calibration; /* learned from all requests */
    double cost_s;   /* of feeding it and of one proposal, lately; 0: never asked */
} EngineDrafter;

/* The pages of a finished request, kept for those that begin alike. */
typedef struct CachedPrefix {
    int32_t sequence;  /* in the executor, behind those of requests */
    int32_t *tokens;   /* [n_tokens] that the sequence holds; memory of an earlier entry may be left here */
    int32_t n_tokens;  /* 0: the entry is free */
    uint64_t last_use;
} CachedPrefix;

struct fr_engine {
    const fr_model *model;
    Device *device;    /* threads and memory of everything that this engine computes, drafters included */
    Executor *executor;
    VerifyScratch *scratch;
    fr_engine_options options; /* every 0 replaced by its default */
    EngineDrafter drafters[ENGINE_MAX_DRAFTERS];
    fr_request **requests;     /* [max_requests], NULL where free; the one at place i has sequence i */
    uint64_t n_arrivals;
    fr_request **by_age;       /* [n_by_age] of max_requests: running when this step began, the oldest first */
    int n_by_age;
    bool pages_short;          /* in this step somebody waits for pages, and so does who comes after */
    CachedPrefix *cached;      /* [n_cached], 0 where sharing is off */
    int n_cached;
    uint64_t n_cache_uses;
    int32_t n_rows_max;
    Row *rows;                 /* [n_rows_max] of the step being built */
    int32_t n_rows;
    const float **row_logits, **row_hidden; /* [n_rows_max] of one tree's nodes, or of a piece of a prompt */
    int32_t commit_rows[EXECUTOR_MAX_ROWS];
    fr_request **stepping;     /* [max_requests] running ones of this step, decoding ones first */
    int32_t *propose_sequences, *propose_budgets; /* [max_requests] arguments of one propose call */
    Tree **propose_trees;
    const Tree **budget_trees;   /* [max_requests] arguments of the planner */
    int32_t *allocated_budgets;
    BudgetNode *budget_scratch;    /* [max_requests * FR_TREE_BUDGET_AUTO_MAX] */
    CostCurve cost;            /* measured when the first request that plans is opened */
    double tokens_per_s;       /* of this step's decoding requests together: the price of a second */
    int32_t n_base_rows;       /* rows of this step that no plan put there */
};

typedef struct RequestDraft {
    EngineDrafter *shared;
    bool active;               /* begun for this request's sequence, and not switched off */
    bool is_asked;             /* in this step */
    int64_t n_fed;             /* tokens of the context that it was told */
    /* Where the request learns (draft_policy.c): */
    Calibration calibration;
    Tree *proposal;            /* as the drafter made it; NULL: the request does not learn */
    int64_t n_asked;
    double gain_s, time_credit_s;   /* what a proposal of it saved lately; time it may spend on proposals without earning it */
} RequestDraft;

struct fr_request {
    fr_engine *engine;
    fr_request_options options; /* prompt, stops and drafts are not read again */
    SamplingOptions sampling;
    int32_t sequence;           /* -1 once its KV is given back */
    int32_t *context;           /* prompt, then output; room for n_ctx + TREE_MAX_NODES + 1 */
    int64_t n_context;
    uint64_t arrival;           /* the smaller, the older */
    int32_t n_read;             /* first tokens of the context that its KV held before pages were taken from it */
    bool is_preempted;          /* they were, and it has not claimed slots since */
    RequestDraft drafts[REQUEST_MAX_DRAFTS];
    int32_t tree_budget;        /* asked for; step_budget: what fits into this step */
    int32_t step_budget;
    bool needs_hidden;          /* one of its drafters does: it reads its whole prompt itself */
    bool has_auto_budget;            /* draft_policy.c decides which nodes get a row */
    int32_t ask_budget;         /* nodes asked of each drafter, where planned */
    double time_credit_s;             /* forward time that drafts may lose yet */
    double recent_tokens, recent_s; /* of the last steps: their ratio is its rate */
    const VerifyRule *rule;
    VerifyOptions rule_options;
    DraftDists *dists;                 /* of `tree`, for a ratio rule; NULL otherwise */
    Tree tree, proposal;        /* of this step; `proposal` is one drafter's, before the union */
    int32_t first_row, n_step_rows; /* its rows in this step; 0 rows: it sits out */
    bool is_prefill_step;
    Detokenizer detokenizer;
    Buf text;                   /* all text so far; n_sent bytes of it were handed to the callback */
    size_t n_sent;
    char **stops;
    fr_finish finish;
    fr_error error;
    fr_stats stats;
    double started_s, decode_started_s;
};

/* draft.c: opens (or finds) the drafter of a spec; releases it; switches a draft of a request off. */
int engine_drafter_acquire(fr_engine *e, const char *spec, EngineDrafter **out, fr_error *err);
void engine_drafter_release(EngineDrafter *d);
void engine_close_drafters(fr_engine *e);
void request_begin_drafts(fr_request *r);
void request_end_drafts(fr_request *r);
/* Shows the drafters what the target said at every node of r->tree; the rows are in e->row_logits, row_hidden. */
void request_observe_tree(fr_request *r, const VerifyResult *verdict);
/* Shows them the hidden states of n tokens of the context from place `first` on; the rows are in e->row_hidden. */
void request_observe_prompt(fr_request *r, int64_t first, int32_t n);
/* Fills r->tree of every request in the list: the pending token and what its drafters propose. */
void engine_propose(fr_engine *e, fr_request *const *requests, int n);

/* draft_policy.c: what a request learns from its steps, and what that decides. */
int request_begin_learning(fr_request *r, fr_error *err); /* once its drafts are there */
void request_end_learning(fr_request *r);
/* Puts what is known of costs, corrected by every forward, into the cache that the options name. */
void engine_keep_costs(const fr_engine *e);
/* Marks the drafts that are asked in this step. */
void request_wake_drafts(fr_request *r);
/* A proposal of `d` (with what it had to be fed) took so long. */
void engine_note_cost(EngineDrafter *d, double seconds);
/* Chooses the nodes of all planned trees; n_base_rows: all other rows of the step, the roots included. */
void engine_allocate_budgets(fr_engine *e, fr_request *const *requests, int n, int32_t n_base_rows);
/* The step committed these tokens, proposed by these drafts (-1: none). */
void request_learn(fr_request *r, const int32_t *tokens, const int32_t *sources, int32_t n);

/* kv_policy.c: at the start of a step, puts the running requests in order of age. */
void pages_begin_step(fr_engine *e);
/* Slots for n more rows of r in this step, at least n_least, at others' cost where need be; oldest requests first.
 * Returns how many it got; 0: r sits out, or failed. */
int32_t pages_claim(fr_request *r, int32_t n, int32_t n_least);

/* prefix_cache.c: needs options and executor. */
int prefix_cache_open(fr_engine *e, fr_error *err);
void prefix_cache_close(fr_engine *e);
/* Requests that still read their context take over what others hold of it. Before any slot is claimed in the step. */
void prefix_cache_share(fr_engine *e);
/* Whether an older request reads, in this very step, at least half of the n rows that r would read. */
bool prefix_is_coming(const fr_request *r, int32_t n);
/* Keeps the KV of a request that ends. */
void prefix_cache_keep(const fr_request *r);
/* Gives the pages of the least recently used entry back; false: none is left. */
bool prefix_cache_drop(fr_engine *e);

/* request.c: whether tokens of its context before the pending one are yet to be read. */
bool request_is_prefilling(const fr_request *r);
/* Takes the tokens that a step brought, in order, with who proposed each, until one ends the
 * request. logits[i] is the row that decided token i. */
void request_emit(fr_request *r, const int32_t *tokens, const int32_t *sources, const float *const *logits, int32_t n);
void request_end(fr_request *r, fr_finish finish);
void request_fail(fr_request *r, const fr_error *err);
/* Tokens it may still generate. */
int64_t request_tokens_left(const fr_request *r);

#endif

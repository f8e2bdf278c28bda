/* small_model.h - a second, smaller model beside the target: what it has read of each sequence, and rows of its
 * forwards. draft_model.h grows trees with it. All functions are of the thread that drafts. */
#ifndef DRAFT_SMALL_MODEL_H
#define DRAFT_SMALL_MODEL_H

#include "compute/executor.h"
#include "draft/cached_kv.h"
#include "draft/drafter.h"
#include "draft/models/retokenizer.h"
#include "tree/tree.h"

/* A tree has at most DRAFT_MODEL_MAX_LEVELS levels. At most SMALL_MODEL_MAX_NEW context rows of a sequence run together
 * with its tree; earlier rows run before. */
enum { DRAFT_MODEL_MAX_LEVELS = 64, SMALL_MODEL_MAX_NEW = 32 };

/* A sequence of the draft model. */
typedef struct DraftSequence {
    bool begun;
    int32_t kv;      /* its id in the executor */
    int32_t *tokens; /* the context, the pending token last; there is memory for a path of a tree after it */
    int32_t n;
    RetokenizedText text; /* the context as the draft model reads it, if its vocabulary is another one */
    uint64_t position;    /* output position of the token after the pending one */
    SamplingOptions dist; /* how q is computed: the request's options; if it is greedy, temperature 1 and no filters */
    bool greedy;
} DraftSequence;

/* The draft model and its KV cache. It begins a drafter, whose class has the functions of this header. */
typedef struct SmallModel {
    Drafter base;
    Gguf *gguf;
    Model *model;
    Weights *weights;
    Executor *executor;
    Sampler *sampler;
    bool is_recurrent;
    bool has_other_vocab;
    Retokenizer retokenizer; /* with has_other_vocab */
    float *restricted;       /* [n_vocab] the draft model's logits as a row of the target's vocabulary */
    int32_t mark_every;      /* tokens between two borders of the target's pages */
    int32_t n_vocab, max_sequences, n_ctx;
    int32_t n_own_ctx; /* the most context tokens that the draft model reads */
    int32_t n_nodes;   /* nodes in the largest tree of one sequence */
    int32_t max_rows;  /* rows in a forward */
    int64_t n_forwards;
    uint64_t weights_mark;    /* gguf_weights_mark */
    DraftSequence *sequences; /* [max_sequences + n_cached]; the cached ones use kv only */
    CachedKv cached;
    int32_t n_cached;
    Row *rows; /* [max_rows] the rows of the next forward */
    int32_t n_rows;
    int32_t *row_ids; /* [max_rows] argument of executor_commit */
} SmallModel;

/* Opens the model at `path` for trees of at most n_nodes nodes below n_levels levels of one forward each. Refuses a
 * model whose vocabulary shares nothing with the target's. small_model_close frees all but the SmallModel itself, also
 * after an error. */
int small_model_open(SmallModel *r, const char *path, int32_t n_nodes, int32_t n_levels, const DrafterEnv *env,
                     fr_error *err);
void small_model_close(SmallModel *r);

/* These are functions of a DrafterClass; the drafter is the base of a SmallModel. */
void small_model_set_sampling(Drafter *drafter, int32_t sequence, const SamplingOptions *sampling, uint64_t position);
int small_model_begin(Drafter *drafter, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err);
int small_model_observe_prompt(Drafter *drafter, int32_t sequence, int64_t first, const float *const *hidden, int32_t n,
                               fr_error *err);
void small_model_take_over(Drafter *drafter, int32_t from, int32_t to, int32_t n);
int32_t small_model_n_held(const Drafter *drafter, int32_t sequence);
int32_t small_model_reach(const Drafter *drafter, int32_t sequence, int32_t n);
bool small_model_save(const Drafter *drafter, int32_t sequence, Buf *out);
int small_model_load(Drafter *drafter, int32_t sequence, ByteReader *in, fr_error *err);
int small_model_observe(Drafter *drafter, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err);
void small_model_end(Drafter *drafter, int32_t sequence);
double small_model_shared_vocab(const Drafter *drafter);
/* Returns the number of forwards of the draft model so far; for tests. */
int64_t small_model_n_forwards(const Drafter *drafter);

DraftSequence *small_model_sequence(const SmallModel *r, int32_t sequence);
/* Returns whether the model can read the text: one in another vocabulary may be too long, or empty because it consists
 * of tokens without a text. */
bool small_model_can_draft(const SmallModel *r, int32_t sequence);
/* Returns the draft model's token for one of the target's, or -1. */
int32_t small_model_token(const SmallModel *r, int32_t token);

/* A proposal: catch_up runs context rows until at most SMALL_MODEL_MAX_NEW are left; put_context appends those to
 * r->rows, of which the last wants logits; after the forward commit_context keeps their keys. n_rows is their
 * number. */
int small_model_catch_up(SmallModel *r, const DraftSequence *s, fr_error *err);
int small_model_put_context(SmallModel *r, const DraftSequence *s, int32_t *n_rows, fr_error *err);
void small_model_commit_context(SmallModel *r, const DraftSequence *s, int32_t first_row, int32_t n_rows);
/* Computes the distribution [n_vocab] at a node of a tree of sequence s, from the logits of `row`. */
void small_model_dist(SmallModel *r, DraftSequence *s, const Tree *t, int32_t node, int32_t row, float *dist);

#endif

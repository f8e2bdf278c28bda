/* drafter.h - what a drafting method implements. One file and one line in drafter_registry.c each.
 *
 * The engine calls, per sequence: begin (the prompt), then in every step propose and observe (the tokens
 * just committed, in order), then end. A drafter writes trees and nothing else: it cannot emit a token.
 *
 * One drafter serves all sequences of an engine, and its memory may outlive them (what was learned from earlier texts). Calls
 * come from one thread at a time. Each sequence goes begin ... end, and its id is used again later; close may come with
 * sequences still running. A planned request does not propose in every step, and one with nothing to say adds no node.
 * After a call that fails, the drafter is asked nothing more for that request, and the text goes on without it.
 *
 * The smallest example is draft_pld.c; text_drafter.h keeps the texts of the sequences for methods that copy from them.
 */
#ifndef DRAFTER_DRAFTER_H
#define DRAFTER_DRAFTER_H

#include "format/gguf.h"
#include "backend/backend.h"
#include "spec/tree/draft_dists.h"
#include "spec/sampling/sampler.h"
#include "spec/verify/verifier.h"

typedef struct Drafter Drafter;

/* "method:key=value,key=value" as the user wrote it, split. Owned by the caller; strings borrowed. */
typedef struct DraftSpec {
    char method[32];
    int n_options;
    struct { char key[32]; char value[256]; } options[16];
} DraftSpec;

typedef struct DrafterEnv { /* what a method may know about the target; extended as methods need it */
    int32_t n_vocab;
    int32_t max_sequences; /* sequence ids are below this */
    const Gguf *vocab; /* a file of the vocabulary, also in replay; NULL: unknown (tests). Borrowed. */
    /* For methods that run something themselves; zero where no target is run (replay). Borrowed. */
    const Gguf *target;
    const Weights *weights; /* the target's: embedding, LM head, and how a draft model's weights are to be opened */
    Device *device;         /* the engine's: threads and memory of everything that drafters run */
    int32_t n_ctx;          /* longest sequence */
} DrafterEnv;

/* A tree that the target has read, for methods that learn from what it said at every node, taken or not. */
typedef struct VerifiedTree {
    const Tree *tree;
    const float *const *logits; /* [tree->n] rows [n_vocab] after each node, before penalties and filters */
    const float *const *hidden; /* [tree->n] rows [n_embd]: the target's hidden state after its final norm */
    const VerifyResult *verdict;
} VerifiedTree;

typedef struct DrafterOption { /* for --help and for refusing unknown keys */
    const char *key, *default_value, *help;
} DrafterOption;

/* All functions are needed but for those marked optional. Memory comes from base/mem.h. */
typedef struct DrafterClass {
    const char *name; /* as in --draft: small letters and '-' */
    const char *summary;           /* one line for --help */
    const DrafterOption *options;  /* ends with key == NULL */
    /* Learns from the target's hidden states: observe_prompt is there, and requests that draft with it read their
     * whole prompt themselves, whoever has read it before. */
    bool needs_hidden;
    bool draws; /* its nodes are drawn where the temperature is above 0: under a ratio rule it declares from which distribution */
    /* Allocates the method's own struct, whose first member is a Drafter, and reads its options with draft_spec_get*. The
     * caller (drafter_open) has refused unknown keys, and fills in class and source afterwards. */
    int (*open)(Drafter **out, const DraftSpec *spec, const DrafterEnv *env, fr_error *err);
    void (*close)(Drafter *d);
    /* Optional, before begin: how the target's tokens are drawn (borrowed until end), and the output position
     * of the token after the context that begin will give. Without it a method that draws is greedy. */
    void (*set_sampling)(Drafter *d, int32_t sequence, const SamplingOptions *sampling, uint64_t position);
    /* A sequence starts with this context; the last of its tokens is the pending one. */
    int (*begin)(Drafter *d, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err);
    /* With needs_hidden: the target's hidden states, [n_embd] each after its final norm, of context tokens first ..
     * first + n - 1. Every token of the context but the last is shown once, in order, in pieces; later ones come
     * with observe_tree, the pending token being its node 0. */
    int (*observe_prompt)(Drafter *d, int32_t sequence, int64_t first, const float *const *hidden, int32_t n,
                          fr_error *err);
    /* Optional, before observe: the tree of this step as the target read it (all drafters' nodes). */
    int (*observe_tree)(Drafter *d, int32_t sequence, const VerifiedTree *verified, fr_error *err);
    /* Tokens committed since: the accepted path and the target's own token. */
    int (*observe)(Drafter *d, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err);
    /* For each i < n: trees[i] holds the pending token of sequences[i] (node 0); add at most budgets[i]
     * nodes below it with tree_add, whose source is the drafter's own; every p_accept is a chance (tree.h), which unions and
     * planners learn to correct and still rank by. A method that draws tokens and finds trees[i]->distributions set declares its draws there. */
    int (*propose)(Drafter *d, const int32_t *sequences, const int32_t *budgets, Tree *const *trees, int n,
                   fr_error *err);
    void (*end)(Drafter *d, int32_t sequence);
} DrafterClass;

struct Drafter {
    const DrafterClass *class; /* first member of every method's own struct */
    int32_t source;            /* what it writes into TreeNode.source; set by drafter_open */
};

/* Splits "method:key=value,..."; refuses bad syntax. */
int draft_spec_parse(const char *text, DraftSpec *out, fr_error *err);
/* The value of a key, or its default. Numbers are checked against [min, max]. */
const char *draft_spec_get(const DraftSpec *spec, const DrafterClass *class, const char *key);
int draft_spec_get_int(const DraftSpec *spec, const DrafterClass *class, const char *key, int64_t min,
                       int64_t max, int64_t *out, fr_error *err);
int draft_spec_get_real(const DraftSpec *spec, const DrafterClass *class, const char *key, double min,
                        double max, double *out, fr_error *err);

/* All methods, ending with NULL; and one by name (NULL: unknown). */
const DrafterClass *const *drafter_classes(void);
const DrafterClass *drafter_find(const char *name);
/* The specs that `auto` stands for, ending with NULL. They are drafters like others; when each is asked, and how many of
 * its nodes get a row, is decided where they are united (engine/draft_policy.c). */
const char *const *drafter_auto_members(void);
/* Parses the spec, refuses unknown methods and keys (naming the known ones) and opens. "none" opens
 * nothing: *out is NULL and the result 0. */
int drafter_open(Drafter **out, const char *spec, const DrafterEnv *env, int32_t source, fr_error *err);
void drafter_close(Drafter *d);

#endif

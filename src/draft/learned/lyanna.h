/* lyanna.h - the parts of the drafter `lyanna` (draft_lyanna.c): the layer that drafts hidden states, token trees from
 * their logits, and the choice of the tree to verify. */
#ifndef LEARNED_LYANNA_H
#define LEARNED_LYANNA_H

#include "draft/learned/layer_entries.h"
#include "draft/learned/logit_corrections.h"

/* ---- the layer (lyanna_layer.c) -------------------------------------------------------------------------- */

/* One transformer layer that predicts the target's next hidden states. */
typedef struct LyannaLayer {
    LearnedDrafter *learned; /* borrowed: file, target, products */
    bool is_fused;           /* the input of an entry contains the token after it */
    int32_t depth, max_group;
    Linear *fc;
    int32_t n_inputs;       /* learned inputs of a parallel chain; 0: the chain is serial */
    float *chain_inputs;    /* [n_inputs][H] */
    bool has_later;         /* the steps after the first have a layer of their own */
    Linear *later_fc;       /* computes its input from the pending token and the state; NULL: its input is the state */
    Buffer *pairs, *inputs; /* [max_group][2H], [max_group][H] of later_fc */
    OneLayer layer;
    EntryQueue entries;
    Buffer *chains; /* [max_group][depth][H] */
} LyannaLayer;

/* Reads the layer's tensors from the open file, and allocates memory for chains of `depth` hidden states of max_group
 * sequences at once. After a failure lyanna_layer_close is safe on a zeroed struct. */
int lyanna_layer_open(LyannaLayer *l, LearnedDrafter *learned, const DrafterEnv *env, int32_t depth, int32_t max_group,
                      fr_error *err);
void lyanna_layer_close(LyannaLayer *l);

/* Computes the hidden states h_1 .. h_depth after the entries of each of n <= max_group sequences, into l->chains as
 * [n][depth][H], on the device as well. Each sequence has at least one entry. */
int lyanna_layer_chain(LyannaLayer *l, const int32_t *sequences, int32_t n, fr_error *err);

/* ---- trees (lyanna_tree.c) -------------------------------------------------------------------------------- */

enum { LYANNA_MAX_TOP = 16 };

/* Tags of nodes. LYANNA_RESAMPLED: the node was found only in the logits of an earlier proposal. */
enum { LYANNA_FRESH, LYANNA_RESAMPLED };

typedef struct LyannaSampler {
    LearnedDrafter *learned; /* borrowed */
    TokenInfo *info;         /* empty if the file has no token info */
    InfoGate *gate;
    const Confidence *confidence;
    LiveInfo *live;    /* [max_sequences] what each text taught; NULL: live=0 */
    int32_t info_step; /* the first step of a chain with token info and gate: 1 or 2 */
    int32_t top;       /* k: children of a node, and nodes expanded at each level; <= LYANNA_MAX_TOP */
    float *rows;       /* [top][n_vocab] working memory of the caller */
} LyannaSampler;

/* The paper's BuildSubtree: grows `t`, which has only its root, by n_steps levels. A node's p_accept is its joint
 * probability, its tag is `tag`.
 *   first       the step of the chain that made the first row: 1 in a fresh chain
 *   logits      [n_steps][n_vocab] raw logits of that sequence, row i for the tokens at depth i + 1
 *   states      [n_steps][rank] the gate's states (info_gate_states) of the same rows, if there is a gate
 *   confidence  [n_steps] confidence_of_state of the same rows */
void lyanna_build_subtree(const LyannaSampler *s, int32_t sequence, int32_t first, const float *logits,
                          const float *states, const float *confidence, int32_t n_steps, int32_t tag, Tree *t);

/* Learns from a step whose tree was verified. Row i of the n_steps rows of logits and states predicted the tokens after
 * depth i; `first` as above. */
void lyanna_learn(const LyannaSampler *s, int32_t sequence, int32_t first, const float *logits, const float *states,
                  int32_t n_steps, const VerifiedTree *v);

/* How many tokens of the text were expected to be among the nodes of a tree, judged by its p_accept, and how many
 * were. */
typedef struct LyannaHitRate {
    double expected, observed;
} LyannaHitRate;

/* Counts the hits among the children of each node on the path of the n tokens that followed the root. `without` is NULL
 * or a tree with the same root. Then only nodes that it also has are counted, and only children that it does not
 * have. */
void lyanna_update_hit_rate(LyannaHitRate *rate, const Tree *t, const Tree *without, const int32_t *tokens, int64_t n);

/* Returns the hit rate of re-sampled children that the fresh tree does not have, relative to that of fresh children: 0
 * to 1. */
double lyanna_trust(const LyannaHitRate *resampled, const LyannaHitRate *fresh);

/* Writes to `into` the re-sampled tree with its p_accept on the scale of the fresh one, which has the same root. A node
 * in both has the fresh tree's p_accept; a node that leaves the fresh tree has its parent's p_accept * trust * its
 * conditional probability; a node below that has its parent's p_accept * its conditional probability. */
void lyanna_reweight(const Tree *resampled, const Tree *fresh, double trust, Tree *into);

/* ---- the choice between a re-sampled tree and a fresh one (fusion=auto) ------------------------------------- */

/* The measurements of a sequence. */
typedef struct LyannaChoice {
    LyannaHitRate resampled; /* nodes of re-sampled trees that were expected on the path of the text, and that were */
    double fresh_tokens;     /* tokens committed by a step with a fresh draft: the mean over the last such steps */
    int32_t n_fresh;         /* how many steps the mean covers */
} LyannaChoice;

/* The measurements of a drafter: means over its last steps. 0: not measured yet. */
typedef struct LyannaTimes {
    double draft_s; /* a fresh proposal for one sequence */
    double step_s;  /* the time from the end of a proposal to the next one: mostly the target's forward */
    double ended_s; /* the time at which the last proposal ended */
} LyannaTimes;

/* Call these at the beginning and at the end of a proposal. n_fresh of its sequences got a fresh draft. */
void lyanna_times_begin(LyannaTimes *t, double now_s);
void lyanna_times_end(LyannaTimes *t, double now_s, double began_s, int32_t n_fresh);
/* Returns the share of a step that fresh drafts for n sequences take; 0: not known yet. */
double lyanna_times_draft_share(const LyannaTimes *t, int32_t n);

/* A step with a fresh draft committed n tokens. */
void lyanna_choice_observe_fresh(LyannaChoice *c, int64_t n);
/* A step committed these n tokens while there was a re-sampled tree, whether or not it was proposed. */
void lyanna_choice_observe_resampled(LyannaChoice *c, const Tree *resampled, const int32_t *tokens, int64_t n);
/* Returns whether the re-sampled tree, cut to its budget, promises at least as many tokens per time as a fresh draft,
 * which takes the share `draft_share` of a step. */
bool lyanna_choice_is_resampled(const LyannaChoice *c, const Tree *resampled, double draft_share);

#endif

/* lyanna_tree.h - token trees from logits that do not depend on tokens: Lyanna's Algorithms 1 and 2. */
#ifndef LEARNED_LYANNA_TREE_H
#define LEARNED_LYANNA_TREE_H

#include "draft/learned/confidence.h"
#include "draft/learned/live_info.h"
#include "draft/learned/lyanna_gate.h"
#include "draft/learned/token_info.h"

enum { LYANNA_MAX_TOP = 16 };
enum {
    LYANNA_FRESH,
    LYANNA_RESAMPLED
}; /* tags of nodes; LYANNA_RESAMPLED: found only in the logits of an earlier proposal */

typedef struct LyannaSampler {
    LearnedDrafter *learned;      /* borrowed */
    TokenInfo *info;              /* empty if the file has none */
    LyannaGate *gate;             /* likewise */
    const Confidence *confidence; /* likewise */
    LiveInfo *live;               /* [max_sequences] what each text taught; NULL: live=0 */
    int32_t top;                  /* k: children of a node, and nodes expanded at each level; <= LYANNA_MAX_TOP */
    float *rows;                  /* [top][n_vocab] scratch of the caller */
} LyannaSampler;

/* BuildSubtree: grows `t`, which has only its root, by n_steps levels. logits: [n_steps][n_vocab] raw logits of that
 * sequence, row i for the tokens at depth i + 1; states: [n_steps][rank] of the same rows for the gate, if there is one; confidence: [n_steps] what
 * confidence_of_state gives for them.
 * p_accept of a node is its joint probability, its tag is `tag`. */
void lyanna_build_subtree(const LyannaSampler *s, int32_t sequence, const float *logits, const float *states,
                          const float *confidence, int32_t n_steps, int32_t tag, Tree *t);

/* Learns from a step whose tree was verified: row i of the n_steps rows of logits, and of states for the gate, predicted the
 * tokens after depth i. */
void lyanna_learn(const LyannaSampler *s, int32_t sequence, const float *logits, const float *states, int32_t n_steps,
                  const VerifiedTree *v);

/* How many tokens of the text were expected to be among the nodes of a tree, by its p_accept, and how many were. */
typedef struct LyannaHitRate {
    double expected, observed;
} LyannaHitRate;

/* Counts the hits among the children of each node on the path of the n tokens that followed the root. If `without`, a
 * tree with the same root, is not NULL: only at nodes that it has too, and only among children that it does not have.
 * */
void lyanna_update_hit_rate(LyannaHitRate *rate, const Tree *t, const Tree *without, const int32_t *tokens, int64_t n);

/* The hit rate of re-sampled children that the fresh tree does not have, relative to that of fresh children: 0 to 1. */
double lyanna_trust(const LyannaHitRate *resampled, const LyannaHitRate *fresh);

/* into = the re-sampled tree with its p_accept on the scale of the fresh one, which has the same root. A node in both
 * has the fresh tree's p_accept; one that leaves the fresh tree, its parent's p_accept * trust * its conditional
 * probability; a node below that, its parent's p_accept * its conditional probability. */
void lyanna_reweight(const Tree *resampled, const Tree *fresh, double trust, Tree *into);

#endif

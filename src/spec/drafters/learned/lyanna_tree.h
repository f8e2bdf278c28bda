/* lyanna_tree.h - token trees from a chain of logits that know no tokens: Lyanna's Algorithms 1 and 2. */
#ifndef LEARNED_LYANNA_TREE_H
#define LEARNED_LYANNA_TREE_H

#include "spec/drafters/learned/learned.h"
#include "spec/drafters/learned/token_info.h"

enum { LYANNA_MAX_TOP = 16 };
enum { LYANNA_FRESH, LYANNA_RESAMPLED }; /* tags of nodes: the latter were found again in logits of an earlier proposal */

typedef struct LyannaSampler {
    const LearnedDrafter *learned; /* borrowed */
    TokenInfo *info;               /* may be empty: the file has none */
    int32_t top;                   /* k: children of a node, and nodes expanded at each level; <= LYANNA_MAX_TOP */
    float *rows;                   /* [top][n_vocab] scratch of the caller */
} LyannaSampler;

/* BuildSubtree: grows `t`, which has its root alone, by n_steps levels. logits: [n_steps][n_vocab] raw, row i telling
 * the tokens at depth i + 1, of that sequence; left as they are. p_accept of a node is its joint probability, its tag `tag`. */
void lyanna_build_subtree(const LyannaSampler *s, int32_t sequence, const float *logits, int32_t n_steps, int32_t tag, Tree *t);

/* What trees promised of the tokens that came, and what of it came true. Old cases fade. */
typedef struct LyannaHitRate {
    double promised, kept;
} LyannaHitRate;

/* Counts, along the n tokens that came after the root, what each node on their path promised of its children. p_accept is a joint
 * probability. With `beside` (NULL: none), a tree of the same root: only of those children that are not in it, and only at nodes
 * that are. */
void lyanna_update_hit_rate(LyannaHitRate *p, const Tree *t, const Tree *beside, const int32_t *tokens, int64_t n);

/* What a re-sampled child that the fresh tree has not is worth beside a fresh one that promises the same, 0 .. 1. */
double lyanna_trust(const LyannaHitRate *resampled, const LyannaHitRate *fresh);

/* `into` = the re-sampled tree with p_accept as it is beside the fresh one of the same root: nodes in both have the fresh tree's,
 * one that leaves the fresh tree its parent's p_accept * trust * what it promised, and below it what was promised. */
void lyanna_weigh(const Tree *resampled, const Tree *fresh, double trust, Tree *into);

#endif

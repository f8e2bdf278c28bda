/* tree.h - the token tree: the one data structure that drafters, the forward and verifiers share.
 *
 * Nodes are stored parents first. Node 0 is the pending token: the last token that the target chose, whose keys and
 * values are not computed yet. Plain decoding is the tree with one node.
 *
 *   node   0      1     2      3
 *   token "the"  "cat" "dog" "sat"        the ── cat ── sat
 *   parent -1     0     0      1              └─ dog
 *   depth   0     1     1      2
 */
#ifndef TREE_TREE_H
#define TREE_TREE_H

#include "base/error.h"

#include <stdbool.h>

enum { TREE_MAX_NODES = 512, TREE_N_TAGS = 4 };

typedef struct DraftDists DraftDists; /* draft_dists.h */

typedef struct TreeNode {
    int32_t token;
    int32_t parent; /* index of an earlier node; -1 for node 0 */
    int32_t depth;  /* depth of the parent + 1; 0 for node 0 */
    int32_t source; /* index of the drafter that proposed it; -1 for node 0 */
    float p_accept; /* the drafter's estimate of the probability that the node and its whole path are accepted, in
                     * [0,1]; never above the parent's; 1 for node 0 */
    int32_t tag;    /* 0, or what the drafter wants to be counted separately (DrafterClass.tags), below TREE_N_TAGS */
} TreeNode;

typedef struct Tree {
    int32_t n;         /* nodes in use, node 0 included */
    DraftDists *dists; /* borrowed; NULL if nobody needs distributions. Otherwise the drafter declares here from which
                        * distribution it drew each child, and prunes only as draft_dists.h allows */
    TreeNode nodes[TREE_MAX_NODES];
} Tree;

/* Makes it a tree that consists of the pending token, without distributions. */
void tree_reset(Tree *t, int32_t pending_token);
/* Adds a child and returns its index. If the parent already has a child with that token, returns the index of that
 * child, whose p_accept becomes the larger of the two. Returns -1 if the tree is full. */
int32_t tree_add(Tree *t, int32_t parent, int32_t token, float p_accept, int32_t source);
/* Returns the index of the child of `parent` that has that token, or -1. */
int32_t tree_child(const Tree *t, int32_t parent, int32_t token);
/* Checks a drafter's tree before it is used: order, depths, tokens in [0, n_vocab), no duplicates among siblings,
 * p_accept in [0,1] and not NaN, at most max_nodes nodes, node 0 the pending token. */
int tree_validate(const Tree *t, int32_t pending_token, int32_t n_vocab, int32_t max_nodes, fr_error *err);

/* Adds every path of `from` to `into` (both with the same pending token). Nodes with equal (parent, token) are merged
 * and keep the larger p_accept. Nodes that no longer fit are left out with all their descendants. */
void union_merge(Tree *into, const Tree *from);

/* Keeps the `budget` nodes below the root with the highest p_accept; ties go to the earlier node. Because p_accept
 * never rises along a path, what is kept is a tree. */
void union_prune(Tree *t, int32_t budget);

#endif

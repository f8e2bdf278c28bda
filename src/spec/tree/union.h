/* union.h - several drafters under one budget: their trees become one. */
#ifndef TREE_UNION_H
#define TREE_UNION_H

#include "spec/tree/tree.h"

/* Adds every path of `from` to `into` (both with the same pending token); nodes with equal (parent, token)
 * merge and keep the larger p_accept. Nodes that no longer fit are left out with all that hangs below them. */
void union_merge(Tree *into, const Tree *from);

/* Keeps the `budget` nodes below the root with the best p_accept (ties: the earlier node). Because p_accept never
 * grows along a path, what is kept is a tree. */
void union_prune(Tree *t, int32_t budget);

#endif

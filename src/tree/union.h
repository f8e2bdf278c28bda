/* union.h - several drafters under one budget: merges their trees into one. */
#ifndef TREE_UNION_H
#define TREE_UNION_H

#include "tree/tree.h"

/* Adds every path of `from` to `into` (both with the same pending token). Nodes with equal (parent, token) are merged
 * and keep the larger p_accept. Nodes that no longer fit are left out with all their descendants. */
void union_merge(Tree *into, const Tree *from);

/* Keeps the `budget` nodes below the root with the highest p_accept (ties: the earlier node). Because p_accept never
 * rises along a path, what is kept is a tree. */
void union_prune(Tree *t, int32_t budget);

#endif

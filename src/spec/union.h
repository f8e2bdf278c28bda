/* union.h - several drafters under one budget: their trees become one. */
#ifndef SPEC_UNION_H
#define SPEC_UNION_H

#include "spec/tree.h"

/* Adds every path of `from` to `into` (both with the same pending token); nodes with equal (parent, token)
 * merge and keep the larger est. Nodes that no longer fit are left out with all that hangs below them. */
void union_merge(Tree *into, const Tree *from);

/* Keeps the `budget` nodes below the root with the best est (ties: the earlier node). Because est never
 * grows along a path, what is kept is a tree. */
void union_prune(Tree *t, int32_t budget);

#endif

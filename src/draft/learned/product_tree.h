/* product_tree.h - the tree of a drafter whose levels are independent of each other: medusa's heads, space's masks. */
#ifndef LEARNED_PRODUCT_TREE_H
#define LEARNED_PRODUCT_TREE_H

#include "tree/tree.h"

/* The tokens of each level, best first. */
typedef struct ProductRanks {
    int32_t n_levels, n_ranks;
    const int32_t *tokens;   /* [n_levels][n_ranks] */
    const double *log_p;     /* likewise */
    const int32_t *n_tokens; /* [n_levels] how many there are */
} ProductRanks;

/* Adds the at most `budget` paths of greatest probability, the product of their tokens' probabilities, to the tree of a
 * pending token; the most probable first. */
void product_tree_grow(const ProductRanks *r, int32_t budget, int32_t source, Tree *t);

#endif

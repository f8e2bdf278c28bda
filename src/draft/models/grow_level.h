/* grow_level.h - one level of a draft model's tree: drawing the children of its nodes. */
#ifndef SMALL_GROW_LEVEL_H
#define SMALL_GROW_LEVEL_H

#include "base/mem.h"
#include "draft/models/draft_model.h"
#include "draft/models/small_model_kv.h"
#include "verify/gumbel.h"

enum {
    GROW_N_RIVALS = 16
}; /* a coupled draw draws at least so many children, to normalise the chances of those it keeps */

/* A node of the current level, whose row has run and whose children are drawn next. */
typedef struct DraftFront {
    int32_t i; /* index of its sequence in the group */
    int32_t node, row;
    uint64_t paths; /* DRAFT_PATHS: bit j is set if path j passes through the node */
    DrawParent parent;
} DraftFront;

/* One of the sequences that draft together. */
typedef struct DraftMember {
    DraftSequence *s; /* NULL: its budget is 0 */
    Tree *tree;
    bool declares, own_noise; /* own_noise: not the target's */
    int32_t budget, n_levels;
    int32_t n_left; /* draws that its shape may still make */
    int32_t first_row, n_context_rows;
} DraftMember;

enum { GROW_MAX_GROUP = EXECUTOR_MAX_ROWS / SMALL_MODEL_MAX_NEW };

typedef struct DraftModel {
    Drafter base;
    DraftShape shape;
    SmallModelKv small_model;
    int32_t max_group; /* sequences whose rows fit into one forward */
    DraftMember group[GROW_MAX_GROUP];
    int32_t n_group;
    DraftFront *front, *next; /* [max_rows] the nodes of this level, and of the next */
    int32_t n_front, n_next;
    DrawChild *children; /* of one sequence at one level */
    const float **dists; /* [max_rows] the distribution at each node of the front, if it is declared */
    float *dist;         /* [n_vocab] the distribution at the current node, if it is not declared */
    Arena arena;         /* of the arrays above */
} DraftModel;

/* Draws the children of the whole front, whose rows have run, and adds them to their trees. The nodes that get children
 * themselves become the front; their rows are the first n_front of small_model.rows, ready to run. */
int grow_level(DraftModel *d, int32_t level, fr_error *err);

#endif

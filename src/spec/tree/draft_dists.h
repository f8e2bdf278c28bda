/* draft_dists.h - from which distribution each drafted token was drawn: what a ratio rule divides by.
 *
 * The children of one node are its sibling group. They were offered in an order, and a ratio rule tries them in
 * it, so the group is kept as a list of draws. Drawing the same token twice (with replacement) is one node of
 * the tree and two draws.
 *
 *   node 0 "the"    three draws from q = (cat 0.6, dog 0.3, rat 0.1), with replacement: cat, dog, cat
 *   tree            the(cat, dog)
 *   draws           {0, cat, IID, q} {0, dog, IID, q} {0, cat, IID, q}
 *
 * A node whose children have no draw is a group of points: no chance was at work. All of a drafter's choices
 * that depend on the tokens drawn (which nodes stay under a budget, say) would change the distribution that the others
 * were drawn from: a drafter that declares distributions keeps to a shape that is fixed before it draws, or cuts by what
 * tells nothing about the tokens it cuts. The distribution that proposes is the distribution that is divided by.
 */
#ifndef TREE_DRAFT_DISTS_H
#define TREE_DRAFT_DISTS_H

#include "spec/tree/tree.h"

typedef enum DrawKind {
    DRAW_POINT,               /* no chance: ranked, copied, looked up. q is NULL */
    DRAW_IID,                 /* each from its own q, independently of the other draws of the group */
    DRAW_WITHOUT_REPLACEMENT, /* all of the group from one q, each without the tokens drawn before it */
} DrawKind;

typedef struct DistDraw {
    int32_t parent, child; /* nodes of the tree */
    DrawKind kind;          /* one kind in a group */
    const float *q;        /* [n_vocab] after every filter: the very array that the token was drawn from */
} DistDraw;

enum { DRAFT_MAX_DRAWS = 2 * TREE_MAX_NODES };

/* The draws of one tree, in the order of drawing within each group, and the memory of their distributions. */
struct DraftDists {
    int32_t n_vocab;
    int32_t n_draws;
    DistDraw draws[DRAFT_MAX_DRAWS];
    int32_t n_rows, n_rows_made;
    float *rows[TREE_MAX_NODES]; /* [n_rows_made][n_vocab]; the first n_rows are in use */
};

DraftDists *draft_dists_new(int32_t n_vocab); /* NULL: no memory */
void draft_dists_free(DraftDists *l);         /* NULL is fine */
void draft_dists_reset(DraftDists *l);        /* forgets the draws, keeps the memory */
/* A row [n_vocab] for one more distribution, until the next reset; NULL where memory or rows ran out. */
float *draft_dists_row(DraftDists *l);
/* Appends a draw; false where there is no room for more. */
bool draft_dists_add(DraftDists *l, int32_t parent, int32_t child, DrawKind kind, const float *q);

/* The sibling group below a node, as a ratio rule tries it: the declared draws in their order, or else the children
 * as points, in the order of the tree. */
typedef struct SiblingGroup {
    int32_t n;
    DistDraw draws[DRAFT_MAX_DRAWS];
} SiblingGroup;

void sibling_group(const Tree *t, int32_t parent, SiblingGroup *out);

/* What a drafter declared is checked before anybody divides by it: children stand below their parents, one kind
 * a group, a group without replacement has one q and no token twice, every q gives its token a chance, and a
 * group with any draw has one for each of its children. */
int draft_dists_validate(const DraftDists *l, const Tree *t, fr_error *err);

#endif

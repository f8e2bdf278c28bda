/* draft_dists.h - from which distribution each drafted token was drawn: what a ratio rule divides by.
 *
 * The children of one node are its sibling group. A ratio rule tries them in the order in which they were drawn, so
 * the group is kept as a list of draws. Drawing the same token twice (with replacement) makes one node of the tree
 * and two draws.
 *
 *   node 0 "the"    three draws from q = (cat 0.6, dog 0.3, rat 0.1), with replacement: cat, dog, cat
 *   tree            the(cat, dog)
 *   draws           {0, cat, IID, q} {0, dog, IID, q} {0, cat, IID, q}
 *
 * A node whose children have no draw is a group of points: the tokens were not chosen at random.
 *
 * The distribution that a rule divides by must be the one that the token was really drawn from, given everything that
 * the rule has seen before. If a drafter makes a choice that depends on the tokens drawn (which nodes to keep under a
 * budget, for example), it changes the distribution of what remains. How strict this is depends on the rule:
 *
 *   - Most rules decide one draft of a node after the other, and look at a draft only if those before it were rejected.
 *     For them a drafter may prune its tree if whether a node is kept does not depend on the token of that node.
 *   - A rule that looks ahead (`transport`) sees all drafts of a node before it accepts one. For it the number of
 *     children that a node keeps must not depend on their tokens either, nor on what was drawn below them. A second
 *     child that is kept unless there is something better below the first one breaks this. So if `whole_groups` is set,
 *     a drafter either fixes the shape of its tree before it draws, or prunes whole groups: it decides by the draws
 *     above and beside a node whether the node gets children, and how many.
 *
 * The essays of rule_transport.c, learned_top.c and draft_model.c have the proofs.
 */
#ifndef TREE_DRAFT_DISTS_H
#define TREE_DRAFT_DISTS_H

#include "tree/tree.h"

typedef enum DrawKind {
    DRAW_POINT,               /* not random: ranked, copied, looked up. q is NULL */
    DRAW_IID,                 /* each draw from its own q, independently of the other draws of the group */
    DRAW_WITHOUT_REPLACEMENT, /* all draws of the group from one q, each without the tokens drawn before it */
} DrawKind;

typedef struct DistDraw {
    int32_t parent, child; /* nodes of the tree */
    DrawKind kind;         /* the same for all draws of a group */
    const float *q;        /* [n_vocab] after every filter: the very array that the token was drawn from */
} DistDraw;

enum { DRAFT_MAX_DRAWS = 2 * TREE_MAX_NODES };

/* The draws of one tree, in the order of drawing within each group, and the memory of their distributions. */
struct DraftDists {
    int32_t n_vocab;
    bool only_points;  /* the rule takes no draws without replacement, or several drafters share the tree: methods that
                       * can also rank their tokens do so */
    bool whole_groups; /* the rule looks ahead, and nodes must not be pruned one by one (above) */
    int32_t n_draws;
    DistDraw draws[DRAFT_MAX_DRAWS];
    bool no_memory; /* for a row: a tree without its draws is another tree, and a ratio rule's text another text */
    int32_t n_rows, n_rows_made;
    float *rows[TREE_MAX_NODES]; /* [n_rows_made][n_vocab]; the first n_rows are in use */
};

DraftDists *draft_dists_new(int32_t n_vocab); /* NULL: no memory */
void draft_dists_free(DraftDists *d);         /* NULL is allowed */
void draft_dists_reset(DraftDists *d);        /* forgets the draws, keeps the memory */
/* Returns a row [n_vocab] for one more distribution, valid until the next reset; NULL if rows ran out, or memory
 * (d->no_memory). */
float *draft_dists_row(DraftDists *d);
/* Appends a draw; false if there is no room for more. */
bool draft_dists_add(DraftDists *d, int32_t parent, int32_t child, DrawKind kind, const float *q);

/* The sibling group below a node, as a ratio rule tries it: the declared draws in their order, or, without any, the
 * children as points in the order of the tree. */
typedef struct SiblingGroup {
    int32_t n;
    DistDraw draws[DRAFT_MAX_DRAWS];
} SiblingGroup;

void sibling_group(const Tree *t, int32_t parent, SiblingGroup *out);

/* Checks what a drafter declared, before a rule divides by it: each draw's child is a child of its parent, a group
 * has one kind, a group without replacement has one q and no token twice, every q gives its token a positive
 * probability, and a group with any draw has at least one for each of its children. */
int draft_dists_validate(const DraftDists *d, const Tree *t, fr_error *err);

#endif

/* eagle_tree.h - the state of the drafter `eagle`, and growing its trees. */
#ifndef LEARNED_EAGLE_TREE_H
#define LEARNED_EAGLE_TREE_H

#include "draft/learned/confidence.h"
#include "draft/learned/entry_queue.h"
#include "draft/learned/token_info.h"
#include "tree/tree_shapes.h"

enum { EAGLE_MAX_DEPTH = 16, EAGLE_MAX_TOP = 16, EAGLE_MAX_ROWS = 512 };

/* The most probable tokens after a node. */
typedef struct EagleTop {
    int32_t n, tokens[EAGLE_MAX_TOP];
    double log_p[EAGLE_MAX_TOP];
} EagleTop;

/* A sequence in a proposal. */
typedef struct EagleMember {
    int32_t sequence;
    const EntrySequence *entries; /* its feature is f of the last one; its logits are those after the pending token */
    Tree *tree;
    int32_t budget;
    double log_p[TREE_MAX_NODES];        /* of each node: the sum along its path */
    int32_t expanded_by[TREE_MAX_NODES]; /* index of its parent on the front, -1: the root */
    int32_t shape[TREE_MAX_NODES];       /* index of the node in the shape of a static tree */
} EagleMember;

/* A node that is expanded: a row of its level. */
typedef struct EagleFront {
    int32_t member, node;
    EagleTop top;
} EagleFront;

typedef struct Eagle {
    LearnedDrafter learned;
    int32_t top, depth, n_ctx;
    bool is_static;
    StaticTree shape;
    Linear *fc;
    TokenInfo info;
    Confidence confidence;
    OneLayer layer;
    EntryQueue entries; /* its rows and pairs are also those of the tree */
    EagleMember *group; /* [max_group] */
    int32_t n_group, max_rows;
    EagleFront *front, *next; /* [max_group * top] the nodes expanded at this level, and at the next */
    int32_t *front_rows;      /* [max_group * top] their executor rows */
    float *features;          /* [max_group * top][H] f of the nodes of the front */
    float *logits;            /* [V] */
} Eagle;

/* The tokens that the target most probably chooses after a node, from the layer's output f and its logits there. */
void eagle_find_top(Eagle *d, const EagleMember *m, int32_t node, const float *feature, const float *logits,
                    EagleTop *out);

/* Grows the trees of the group and prunes each to its budget. */
int eagle_grow_trees(Eagle *d, fr_error *err);

#endif

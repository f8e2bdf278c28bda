/* dflash.h - the parts of the drafter `dflash` (draft_dflash.c): its weights, its blocks, and the trees that grow from
 * their predictions. */
#ifndef LEARNED_DFLASH_H
#define LEARNED_DFLASH_H

#include "draft/learned/layer_entries.h"
#include "draft/learned/logit_corrections.h"

/* The vectors of a layer. */
typedef struct DflashVectors {
    float *attn_norm, *q_norm, *k_norm, *sinks, *ffn_norm, *attn_conv, *ffn_conv;
    float *q_bias, *k_bias, *v_bias, *o_bias;
    GemmaParts gemma;
} DflashVectors;

typedef struct Dflash {
    LearnedDrafter learned;
    DflashKeys keys;
    int32_t depth, n_ranks, max_rows;
    Linear *fc;
    OneLayer layers; /* its model has all layers of the drafter, `specs` */
    LayerSpec specs[DFLASH_MAX_LAYERS];
    DflashVectors vectors[DFLASH_MAX_LAYERS];
    float *context_norm, *output_norm;
    Rope rope;
    OwnEmbedding embedding;
    EntryQueue entries;
    MarkovHead markov;
    TokenSelector selector;
    int32_t *slots;  /* [max_rows] the tokens of the blocks */
    float *logits;   /* [V] */
    int32_t *tokens; /* [][n_ranks] the most probable tokens of each position, or with a Markov head after each node */
    double *log_p;   /* [][n_ranks] */
} Dflash;

/* ---- weights (dflash_weights.c) --------------------------------------------------------------------------- */

/* Reads the shape from the open file. */
int dflash_read_shape(Dflash *d, fr_error *err);
/* Reads the layers, and everything around them, for forwards of d->max_rows rows. After a failure dflash_close_weights
 * is safe on a zeroed struct. */
int dflash_read_weights(Dflash *d, fr_error *err);
void dflash_close_weights(Dflash *d);

/* ---- trees (dflash_tree.c) -------------------------------------------------------------------------------- */

/* Returns whether nodes have children of their own: the distribution of a position depends on the token before it, or a
 * confidence head corrects it. */
static inline bool dflash_is_conditioned(const Dflash *d) {
    return d->markov.rank || d->markov.confidence.weights || d->selector.rank;
}

/* Returns how many positions of a member can be in its tree. */
static inline int32_t dflash_n_levels(const Dflash *d, const LearnedMember *m) {
    return m->budget < d->depth ? m->budget : d->depth;
}

/* Grows the tree of a member from the last forward, in which its position i is row `first` + i. */
void dflash_grow(Dflash *d, const LearnedMember *m, int32_t first);

#endif

/* told_rig.h - drafters that learn from the target's logits, driven without a model: a made-up target, one step
 * at a time.
 */
#ifndef TESTS_TOLD_RIG_H
#define TESTS_TOLD_RIG_H

#include "draft_rig.h"

enum { TOLD_V = 70, TOLD_MAX_TEXT = 8192 }; /* not a multiple of the block that told_top reads at once */

/* A sequence and what the made-up target said in its last step. */
typedef struct ToldSequence {
    int32_t id;
    uint64_t seed;                        /* of its target: logits hang on it and on the last two tokens */
    SamplingOptions sampling;
    int32_t context[TOLD_MAX_TEXT], n;    /* the last one is pending */
    Tree tree;                            /* as verified */
    float rows[TREE_MAX_NODES][TOLD_V];
    const float *logits[TREE_MAX_NODES];
    VerifyResult verdict;
} ToldSequence;

/* As rig_open_drafter, with a target that may not be looked into. */
Drafter *told_rig_open(const char *spec, int32_t n_vocab, int32_t n_sequences);
/* A prompt of n tokens over a small alphabet, shown to the drafter; a greedy target. */
void told_rig_begin(Drafter *d, ToldSequence *s, int32_t id, uint64_t seed, int32_t n_prompt);
/* A validated proposal goes into s->tree. */
void told_rig_propose(Drafter *d, ToldSequence *s, int32_t budget);
/* The target reads s->tree; the context grows by what it accepted and said. The drafter is not told. */
void told_rig_verify(ToldSequence *s);
/* The drafter observes the tree and the tokens. */
void told_rig_observe(Drafter *d, const ToldSequence *s);
/* The token after `depth` tokens of the accepted path. */
int32_t told_rig_came(const ToldSequence *s, int32_t depth);

/* Promises and what came: over many steps, nodes by est in ten bands; fails where a band of 300 or more is off by
 * more than `tolerance`. */
typedef struct ToldBands {
    double est[10], right[10];
    int64_t n[10];
} ToldBands;
void told_rig_count(ToldBands *b, const ToldSequence *s);
void told_rig_check_bands(const ToldBands *b, double tolerance);

/* On the shipped model, alone and beside the other one: plain decoding's tokens, and drafts that are accepted. */
void told_rig_check_engine(const char *draft, const char *other);

#endif

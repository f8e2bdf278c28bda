/* feedback_rig.h - drafters that learn from the target's logits, driven without a model: a made-up target, one step
 * at a time.
 */
#ifndef SUPPORT_FEEDBACK_RIG_H
#define SUPPORT_FEEDBACK_RIG_H

#include "draft_rig.h"

enum { FEEDBACK_V = 70, FEEDBACK_MAX_TEXT = 8192 }; /* not a multiple of the block that logits_top_k reads at once */

/* A sequence and what the made-up target said in its last step. */
typedef struct FeedbackSequence {
    int32_t id;
    uint64_t seed;                        /* of its target: logits hang on it and on the last two tokens */
    SamplingOptions sampling;
    int32_t context[FEEDBACK_MAX_TEXT], n;    /* the last one is pending */
    Tree tree;                            /* as verified */
    float rows[TREE_MAX_NODES][FEEDBACK_V];
    const float *logits[TREE_MAX_NODES];
    VerifyResult verdict;
} FeedbackSequence;

/* As rig_open_drafter, with a target that may not be looked into. */
Drafter *feedback_rig_open(const char *spec, int32_t n_vocab, int32_t n_sequences);
/* A prompt of n tokens over a small alphabet, shown to the drafter; a greedy target. */
void feedback_rig_begin(Drafter *d, FeedbackSequence *s, int32_t id, uint64_t seed, int32_t n_prompt);
/* A validated proposal goes into s->tree. */
void feedback_rig_propose(Drafter *d, FeedbackSequence *s, int32_t budget);
/* The target reads s->tree; the context grows by what it accepted and said. The drafter is not told. */
void feedback_rig_verify(FeedbackSequence *s);
/* The drafter observes the tree and the tokens. */
void feedback_rig_observe(Drafter *d, const FeedbackSequence *s);
/* The token after `depth` tokens of the accepted path. */
int32_t feedback_rig_came(const FeedbackSequence *s, int32_t depth);

/* Promises and what came: over many steps, nodes by p_accept in ten bands; fails where a band of 300 or more is off by
 * more than `tolerance`. */
typedef struct FeedbackBands {
    double p_accept[10], right[10];
    int64_t n[10];
} FeedbackBands;
void feedback_rig_count(FeedbackBands *b, const FeedbackSequence *s);
void feedback_rig_check_bands(const FeedbackBands *b, double tolerance);

/* On the shipped model, alone and beside the other one: plain decoding's tokens, and drafts that are accepted. */
void feedback_rig_check_engine(const char *draft, const char *other);

#endif

/* feedback_rig.h - tests drafters that learn from the target's logits with a simulated target, one step at a time,
 * without a model.
 */
#ifndef SUPPORT_FEEDBACK_RIG_H
#define SUPPORT_FEEDBACK_RIG_H

#include "draft_rig.h"

enum { FEEDBACK_V = 70, FEEDBACK_MAX_TEXT = 8192 }; /* not a multiple of the block that logits_top_k reads at once */

/* A sequence and the simulated target's results of its last step. */
typedef struct FeedbackSequence {
    int32_t id;
    uint64_t seed; /* the target's logits depend on the seed and on the last two tokens */
    SamplingOptions sampling;
    int32_t context[FEEDBACK_MAX_TEXT], n; /* the last token is pending */
    Tree tree;                             /* the tree that was verified last */
    float rows[TREE_MAX_NODES][FEEDBACK_V];
    const float *logits[TREE_MAX_NODES];
    VerifyResult verdict;
} FeedbackSequence;

/* Like rig_open_drafter; its environment has a target that must not be read. */
Drafter *feedback_rig_open(const char *spec, int32_t n_vocab, int32_t n_sequences);
/* Begins with a prompt of n tokens over a small alphabet; the target is greedy. */
void feedback_rig_begin(Drafter *d, FeedbackSequence *s, int32_t id, uint64_t seed, int32_t n_prompt);
/* Proposes s->tree and validates it. */
void feedback_rig_propose(Drafter *d, FeedbackSequence *s, int32_t budget);
/* Verifies s->tree with the simulated target; the context grows by the committed tokens. The drafter observes nothing
 * yet. */
void feedback_rig_verify(FeedbackSequence *s);
/* Lets the drafter observe the tree and the tokens. */
void feedback_rig_observe(Drafter *d, const FeedbackSequence *s);
/* Returns the token that followed `depth` tokens of the accepted path. */
int32_t feedback_rig_after(const FeedbackSequence *s, int32_t depth);

/* Compares estimates with frequencies: over many steps, nodes are counted by p_accept in ten bands. The check fails if
 * a band of 300 or more nodes is off by more than `tolerance`. */
typedef struct FeedbackBands {
    double p_accept[10], right[10];
    int64_t n[10];
} FeedbackBands;
void feedback_rig_count(FeedbackBands *b, const FeedbackSequence *s);
void feedback_rig_check_bands(const FeedbackBands *b, double tolerance);

/* Checks on the shipped model, with this draft and together with another one, that the tokens are those of plain
 * decoding, and that drafts are accepted. */
void feedback_rig_check_engine(const char *draft, const char *other);

#endif

/* rule_rig.h - the distribution of what a rule of acceptance says, summed over everything that can happen: all drafts that a
 * drafter can draw and all coins that the rule can toss. The rule's own code runs, whole trees included. */
#ifndef TESTS_RULE_RIG_H
#define TESTS_RULE_RIG_H

#include "testing.h"

#include "spec/verify/verifier.h"

#include <math.h>

enum { RIG_MAX_VOCAB = 5, RIG_MAX_LEVELS = 4, RIG_MAX_DRAFTS = 4, RIG_N_PROMPT = 2, RIG_MAX_TEXT = 10 };

/* What is wrong, for negative controls. */
typedef enum RigFault {
    RIG_SOUND,
    RIG_Q_PERTURBED,    /* the declared q is not the one that was drawn from */
    RIG_KIND_LIED,      /* declared as independent draws from q, whatever they were */
    RIG_REUSED,         /* a draft is offered again, as if it had been drawn: the second of a group repeats the first; a
                         * lone one repeats its parent */
    RIG_NOT_SUBTRACTED, /* the rule draws from p where it should draw from a residual */
    RIG_NOT_NORMALISED, /* the residual's missing mass falls to the last token */
} RigFault;

typedef struct RigLevel {
    DrawKind kind;
    int32_t k;
    bool mixes;     /* the kind changes from node to node of the level */
    bool own_dists;  /* independent draws have a distribution each */
} RigLevel;

/* DraftDists are random functions of the seed and the context, through logits and the sampler's filters. */
typedef struct RigCase {
    uint64_t seed;
    int32_t n_vocab, n_levels;
    RigLevel levels[RIG_MAX_LEVELS];
    SamplingOptions target, draft;
    double gamma;
    RigFault fault;
    bool no_dists; /* groups of points are not declared */
    const float *target_logits, *draft_logits; /* [n_vocab] after every text, instead of random ones */
} RigCase;

/* Temperature 1 without filters. */
extern const SamplingOptions RIG_PLAIN;

/* Sums the output distribution over n_levels + 1 positions, completed by the target's own distribution behind what a step says, and
 * returns its greatest difference from the product of the target's distributions. *n_kept: drafts accepted on average (NULL is
 * fine). */
double rig_dist_error(const RigCase *c, const VerifyRule *rule, double *n_kept);

/* The same for a text of n_tokens that is said in as many steps as it takes, each with a tree of its own. With
 * noise_returns (two tokens only) a draft at some position of the text is drawn with the noise of that position, whichever
 * step draws it, so that the drafts that one step judged come back in the next. */
double rig_text_error(const RigCase *c, const VerifyRule *rule, int32_t n_tokens, bool noise_returns);

/* One step with keyed coins on a tree drawn with keyed noise: writes what was said and returns its length. */
int32_t rig_say(const RigCase *c, const VerifyRule *rule, uint64_t random_seed, int32_t *tokens);

/* Prints the case, for a message of failure. */
void rig_describe(const RigCase *c, const VerifyRule *rule, char *text, size_t size);

#endif

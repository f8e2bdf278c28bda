/* rule_rig.h - the output distribution of a verification rule, summed over everything that can happen: all drafts
 * that a drafter can draw and all random choices of the rule. The rule's own code runs, on whole trees. */
#ifndef TESTS_RULE_RIG_H
#define TESTS_RULE_RIG_H

#include "testing.h"

#include "verify/verifier.h"

#include <math.h>

enum { RIG_MAX_VOCAB = 5, RIG_MAX_LEVELS = 4, RIG_MAX_DRAFTS = 4, RIG_N_PROMPT = 2, RIG_MAX_TEXT = 10 };

/* Deliberate faults, for negative controls. */
typedef enum RigFault {
    RIG_NO_FAULT,
    RIG_Q_PERTURBED, /* the declared q is not the one that was drawn from */
    RIG_KIND_WRONG,  /* every draft is declared as an independent draw from q */
    RIG_REUSED, /* a draft is offered again, as if it had been drawn: the second draft of a group repeats the first, and
                 * the only draft of a group repeats its parent */
    RIG_NOT_SUBTRACTED, /* the rule draws from p instead of a residual */
    RIG_NOT_NORMALISED, /* the residual's missing mass goes to the last token */
    RIG_NOT_MASKED,     /* the rule does not get the mask of the grammar */
} RigFault;

typedef struct RigLevel {
    DrawKind kind;
    int32_t k;
    bool mixes;     /* the kind changes from node to node of the level */
    bool own_dists; /* each independent draw has its own distribution */
    int32_t width;  /* in a pruned tree: the number of nodes of the level that are kept; 0: all */
} RigLevel;

/* How a tree of draws without replacement is pruned. Its nodes rank by their perturbed log-probabilities, as in a
 * stochastic beam search (gumbel.c). */
typedef enum RigPruning {
    RIG_WHOLE_TREE,
    RIG_BY_RANK,      /* the nodes of greatest value are kept, within the budget and the width of each level */
    RIG_WHOLE_GROUPS, /* the kept nodes get their k children in the order of their values, within the budget; in a level
                       * with a width the first node gets two children and the others get one */
} RigPruning;

/* All distributions are random functions of the seed and the context, through logits and the sampler's filters. */
typedef struct RigCase {
    uint64_t seed;
    int32_t n_vocab, n_levels;
    RigLevel levels[RIG_MAX_LEVELS];
    RigPruning pruning;
    int32_t budget; /* in a pruned tree: the number of nodes that are kept; 0: any number */
    SamplingOptions target, draft;
    double gamma;
    RigFault fault;
    bool no_dists; /* groups of points are not declared */
    bool masked; /* a grammar forbids some tokens after each text, others after other texts; the drafter ignores that */
    const float *target_logits, *draft_logits; /* [n_vocab] the same after every text; NULL: random ones */
} RigCase;

/* Temperature 1 without filters. */
extern const SamplingOptions RIG_PLAIN;

/* Sums the output distribution over n_levels + 1 positions, completed by the target's own distribution after the tokens
 * of a step, and returns its greatest difference from the product of the target's distributions. *n_kept: drafts
 * accepted on average (may be NULL). */
double rig_dist_error(const RigCase *c, const VerifyRule *rule, double *n_kept);

/* The same for a text of n_tokens that is generated in several steps, each with its own tree. With noise_returns
 * (vocabularies of two tokens only) a draft at some position of the text is drawn with the noise of that position,
 * whichever step draws it, so that the drafts of one step return in the next. */
double rig_text_error(const RigCase *c, const VerifyRule *rule, int32_t n_tokens, bool noise_returns);

/* One step with a keyed random source on a tree drawn with keyed noise: writes the emitted tokens and returns their
 * number. */
int32_t rig_step(const RigCase *c, const VerifyRule *rule, uint64_t random_seed, int32_t *tokens);

/* Fails unless rig_dist_error is at most RIG_TOLERANCE; returns n_kept. */
#define RIG_TOLERANCE 1e-12
double rig_check(const RigCase *c, const char *rule);
/* The same for one group of k drafts of each kind, with each rule that is correct for it; sets the level of the
 * case. */
void rig_check_groups(RigCase *c, int32_t k);
/* Prints the number of cases that were checked, and the greatest error. */
void rig_print_checks(void);

#endif

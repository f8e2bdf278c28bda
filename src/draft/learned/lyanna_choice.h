/* lyanna_choice.h - whether a re-sampled tree is verified instead of a fresh one (fusion=auto). */
#ifndef LEARNED_LYANNA_CHOICE_H
#define LEARNED_LYANNA_CHOICE_H

#include "draft/learned/lyanna_tree.h"

/* Of a sequence. */
typedef struct LyannaChoice {
    LyannaHitRate resampled; /* nodes of re-sampled trees that were expected on the path of the text, and that were */
    double fresh_tokens;     /* tokens committed by a step with a fresh draft: a mean over the last ones */
    int32_t n_fresh;         /* how many of them it covers */
} LyannaChoice;

/* Of a drafter: means over its last steps. 0: not measured yet. */
typedef struct LyannaTimes {
    double draft_s; /* a fresh proposal for one sequence */
    double step_s;  /* from the end of a proposal to the next one: the target's forward, above all */
    double ended_s; /* when the last proposal ended */
} LyannaTimes;

/* Call at the beginning and at the end of a proposal for n sequences of which n_fresh got a fresh draft. */
void lyanna_times_begin(LyannaTimes *t, double now_s);
void lyanna_times_end(LyannaTimes *t, double now_s, double began_s, int32_t n_fresh);
/* The share of a step that fresh drafts for n sequences take; 0: not known yet. */
double lyanna_times_draft_share(const LyannaTimes *t, int32_t n);

/* n tokens were committed by a step with a fresh draft. */
void lyanna_choice_observe_fresh(LyannaChoice *c, int64_t n);
/* These n tokens were committed where the re-sampled tree was at hand, whether or not it was proposed. */
void lyanna_choice_observe_resampled(LyannaChoice *c, const Tree *resampled, const int32_t *tokens, int64_t n);
/* Whether the re-sampled tree, cut to its budget, promises at least as many tokens per time as a fresh draft, which
 * takes that share of a step. */
bool lyanna_choice_is_resampled(const LyannaChoice *c, const Tree *resampled, double draft_share);

#endif

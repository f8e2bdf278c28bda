/* lyanna_choice.c - steps without a draft.
 *
 * The problem. A fresh draft costs time, and what is left of the last one costs almost none. A fresh draft has read more
 * of the text and accepts more.
 *
 * The idea. Compare tokens per time. With T the time of a step without its draft, C that of a fresh draft, f the tokens
 * that a step with a fresh draft commits on the average, and r those that the re-sampled tree promises,
 *
 *     r / T >= f / (T + C)     or     r >= f (1 - C / (T + C))
 *
 *     r = 1 + trust * (sum of p_accept over the tree's nodes)      the sum is the expected length of the accepted path
 *
 * trust is the observed length of the path of the text through re-sampled trees relative to that sum; it is counted at
 * every step where rows were left, so that it is known before such a tree is verified instead of a fresh one. C and T are
 * measured. If n sequences draft together, each of them saves a share of C, and all wait for T.
 *
 *     C / (T + C) = 0.2, f = 4:   a re-sampled tree is verified alone if it promises 3.2 tokens
 *
 * The choice depends on times, so it may differ from run to run. Texts do not depend on it under the rule `sampled`; under a
 * ratio rule, whose text depends on its trees, the caller does not ask.
 *
 * Proof: tests/draft/test_lyanna_choice.c. */
#include "draft/learned/lyanna_choice.h"

#include <math.h>

#define PRIOR 4.0
#define START_TRUST 0.5
#define MOST_CHANGE 0.25 /* of a mean by one measurement: an idle engine is not a long step */
enum { MEMORY = 16, MIN_FRESH = 4 };

static void observe_time(double *mean_s, double s) {
    if (*mean_s <= 0) *mean_s = s;
    double change = (s / *mean_s - 1) / MEMORY * 4;
    *mean_s *= 1 + fmin(fmax(change, -MOST_CHANGE), MOST_CHANGE);
}

void lyanna_times_begin(LyannaTimes *t, double now_s) {
    if (t->ended_s > 0 && now_s > t->ended_s) observe_time(&t->step_s, now_s - t->ended_s);
}

void lyanna_times_end(LyannaTimes *t, double now_s, double began_s, int32_t n_fresh) {
    if (n_fresh > 0 && now_s > began_s) observe_time(&t->draft_s, (now_s - began_s) / n_fresh);
    t->ended_s = now_s;
}

double lyanna_times_draft_share(const LyannaTimes *t, int32_t n) {
    return t->step_s > 0 ? n * t->draft_s / (n * t->draft_s + t->step_s) : 0;
}

void lyanna_choice_observe_fresh(LyannaChoice *c, int64_t n) {
    if (c->n_fresh < MEMORY) c->n_fresh++;
    c->fresh_tokens += ((double)n - c->fresh_tokens) / c->n_fresh;
}

/* The expected length of the accepted path. */
static double promise(const Tree *t) {
    double sum = 0;
    for (int32_t i = 1; i < t->n; i++) sum += (double)t->nodes[i].p_accept;
    return sum;
}

void lyanna_choice_observe_resampled(LyannaChoice *c, const Tree *resampled, const int32_t *tokens, int64_t n) {
    c->resampled.expected += promise(resampled);
    for (int32_t i = 0, node = 0; i < n && (node = tree_child(resampled, node, tokens[i])) >= 0; i++)
        c->resampled.observed++;
    if (c->resampled.expected > 4 * MEMORY) c->resampled.expected /= 2, c->resampled.observed /= 2;
}

bool lyanna_choice_is_resampled(const LyannaChoice *c, const Tree *resampled, double draft_share) {
    double trust = (c->resampled.observed + PRIOR * START_TRUST) / (c->resampled.expected + PRIOR);
    if (resampled->n == 1 || c->n_fresh < MIN_FRESH || draft_share <= 0) return false;
    return 1 + fmin(trust, 1) * promise(resampled) >= c->fresh_tokens * (1 - draft_share);
}

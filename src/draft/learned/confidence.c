/* confidence.c - how sure a drafter should be of its own tokens.
 *
 * The problem. A tree gets its shape from the drafter's estimates: the probability that it gives to a token is taken for
 * the chance that the target chooses it. Deep in a chain the state has drifted from the target's, and the drafter is as
 * sure of itself as before.
 *
 * The idea (DSpark's confidence head, and METHODS). A linear head on the state predicts whether the best token there is
 * the target's, given the estimate p:
 *
 *     chance c = sigmoid(w state + b + (1 + a) logit(p))
 *
 * With all numbers 0 that is p itself, so training begins without a correction and learns one. The best child of a node
 * gets c in place of p. Where c < p the state is unsure and all children are scaled by c / p, so that trees become shorter
 * there; where c > p the others share 1 - c as they shared 1 - p.
 *
 *     p = .6 .3 .05    c = .3   ->  .3 .15 .025        c = .8   ->  .8 .15 .025
 *
 * Cost: a dot product for each state. Training: train/unroll_net.c. Proof: tests/draft/test_confidence.c. */
#include "draft/learned/confidence.h"

#include "base/mem.h"

#include <math.h>
#include <stdio.h>

int confidence_open(Confidence *c, LearnedDrafter *learned, const char *method, fr_error *err) {
    char name[64];
    *c = (Confidence){.n_embd = learned->n_embd};
    snprintf(name, sizeof name, "%s." CONFIDENCE, method);
    if (!drafter_file_has(&learned->file, name)) return FR_OK;
    return drafter_file_vector(&learned->file, name, c->n_embd + CONFIDENCE_SCALARS, &c->weights, err);
}

void confidence_close(Confidence *c) {
    mem_free(c->weights);
    c->weights = NULL;
}

float confidence_of_state(const Confidence *c, const float *state) {
    if (!c->weights) return 0;
    double sum = (double)c->weights[c->n_embd + CONFIDENCE_BIAS];
    for (int32_t i = 0; i < c->n_embd; i++) sum += (double)c->weights[i] * (double)state[i];
    return (float)sum;
}

static double clamp(double x, double limit) { return x < -limit ? -limit : x > limit ? limit : x; }

void confidence_correct(const Confidence *c, float of_state, double *log_p, int32_t n) {
    if (!c->weights || n == 0) return;
    double p = exp(log_p[0]), others = 1 - p;
    double logit = others > 0 ? clamp(log_p[0] - log(others), CONFIDENCE_MAX_MARGIN) : CONFIDENCE_MAX_MARGIN;
    double z = (double)of_state + (1 + (double)c->weights[c->n_embd + CONFIDENCE_SLOPE]) * logit;
    double log_c = -log1p(exp(-z)), log_not_c = log_c - z; /* log c and log (1 - c) */
    if (!isfinite(log_c)) return;
    double factor = log_c < log_p[0] || !(others > 0) ? log_c - log_p[0] : log_not_c - log(others);
    log_p[0] = log_c;
    for (int32_t i = 1; i < n; i++) log_p[i] += factor;
}

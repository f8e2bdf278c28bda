/* learned_top.c - which tokens the target will choose after a node, by a drafter's logits.
 *
 * The problem: a drafter learns the target's distribution, but a token is accepted only if it is the one that the target
 * chooses. Greedily, that is mostly the drafter's favourite. At temperature 1 the target draws, and a tree of favourites
 * is wrong whenever the draw takes another token: 16 nodes of EAGLE-2 accept 0.6 tokens a step instead of 3.8.
 *
 * The idea: the draw is no secret here. The target will take argmax(log p + G), and the noise G is keyed by the request,
 * the position and the token (gumbel.h), so a drafter can compute it as well. With q, the drafter's estimate of p under the
 * request's temperature, filters and penalties, it ranks tokens by log q + G. Where q = p the first of them is the
 * target's choice with certainty. Only the verifier chooses tokens, so this changes no text.
 *
 * How much it helps: let q differ from p by the total variation distance TV. One candidate by coupled noise agrees with the
 * target with probability at least (1 - TV) / (1 + TV) (Daliri et al. 2025, arXiv 2408.07978); one drawn independently
 * agrees with sum p q, and the favourite with max p.
 *
 * The chance of a child. Greedily the drafter's uncertainty about the best logit z is softmax(z / T0), T0 =
 * LEARNED_MIN_TEMPERATURE: a drafter that finds z nearly equal is unsure which is greater. With noise the target compares z
 * + T G instead, and drafters are less sure of z away from the best token:
 *
 *     p_accept = softmax((z + T G) / (T0 + 0.4 T)) over the best tokens,     z = T log q + const
 *
 * (the divisor by measurement: research/DIARY.md). Where one token leads after the noise, a chain gets the budget, and where two
 * are close, both do.
 *
 * Under a ratio rule, whose random numbers are others, the methods that declare draws have noise of their own (learned_draw.c).
 *
 * Otherwise (coupled=0, or another drafter under a ratio rule): the tokens of greatest p = softmax(z /
 * max(T, T0)). With T = 1 throughout, greedy requests would get trees that are too wide and too short.
 *
 * Cost: a softmax over V and the noise of the few tokens that can be among the best (gumbel.c). When it loses: never in
 * acceptance; at T near 0 it is the ranking by q. Proof: tests/draft/test_learned_top.c,
 * tests/lossless/test_learned_temperature.c. */
#include "draft/learned/learned.h"

#include <math.h>
#include <string.h>

enum { N_RIVALS = 16 }; /* tokens among which chances are divided, at least */

/* x *= factor, in blocks of constant length, which compilers vectorise. */
static void scale(float *x, int32_t n, float factor) {
    enum { BLOCK = 16 };
    int32_t i = 0;
    for (; i + BLOCK <= n; i += BLOCK)
        for (int32_t k = 0; k < BLOCK; k++) x[i + k] *= factor;
    for (; i < n; i++) x[i] *= factor;
}

static int32_t top_by_probability(const LearnedDrafter *d, float temperature, float *logits, int32_t k, int32_t *tokens,
                                  double *log_p) {
    scale(logits, d->n_vocab, 1 / (temperature > LEARNED_MIN_TEMPERATURE ? temperature : LEARNED_MIN_TEMPERATURE));
    d->backend->softmax(d->device, logits, 1, d->n_vocab);
    int32_t n = logits_top_k(logits, d->n_vocab, k,
                             tokens); /* an infinite logit makes all p NaN, and NaN is never among the top k */
    for (int32_t i = 0; i < n; i++) log_p[i] = log((double)logits[tokens[i]]);
    return n;
}

/* But for biases. */
static bool is_plain(const SamplingOptions *o) {
    return o->top_k == 0 && o->top_p >= 1 && o->min_p <= 0 && o->repeat_penalty == 1 && o->frequency_penalty == 0 &&
           o->presence_penalty == 0;
}

/* q after the path, as the target's sampler makes p: in `out` or, if that is d->dist, perhaps in `logits`. */
static const float *find_dist(LearnedDrafter *d, LearnedSequence *s, const int32_t *path, int32_t n_path, float *logits,
                              float *out) {
    if (is_plain(&s->sampling)) {
        sampling_add_bias(&s->sampling, logits, d->n_vocab);
        scale(logits, d->n_vocab, 1 / s->sampling.temperature);
        d->backend->softmax(d->device, logits, 1, d->n_vocab);
        return out == d->dist ? logits : memcpy(out, logits, (size_t)d->n_vocab * sizeof *out);
    }
    if (path) memcpy(s->context + s->n_tokens, path, (size_t)n_path * sizeof *path);
    sampler_dist(d->sampler, &s->sampling, logits, s->context, s->n_tokens + (path ? n_path : 0), out);
    return out;
}

int32_t learned_top(LearnedDrafter *d, int32_t sequence, const int32_t *path, int32_t n_path, float *logits, int32_t k,
                    int32_t *tokens, double *log_p) {
    LearnedSequence *s = &d->sequences[sequence];
    if (s->is_drawing) {
        float *row = draft_dists_row(s->dists); /* NULL: no children; the engine sees whether memory ran out */
        return row ? learned_draw(d, s, path, n_path, find_dist(d, s, path, n_path, logits, row), k, tokens, log_p) : 0;
    }
    if (!s->is_coupled) {
        sampling_add_bias(&s->sampling, logits, d->n_vocab);
        return top_by_probability(d, s->sampling.temperature, logits, k, tokens, log_p);
    }
    const float *q = find_dist(d, s, path, n_path, logits, d->dist);
    const DrawParent parent = {
        .noise = {.stream = RNG_TARGET, .seed = s->sampling.seed, .position = s->position + (uint64_t)n_path}};
    const DrawChild *best = d->children;
    int32_t n = draw_children(q, d->n_vocab, &parent, 0, k > N_RIVALS ? k : N_RIVALS, d->children);
    double t = (double)s->sampling.temperature, sum = 0;
    double sharpness = t / ((double)LEARNED_MIN_TEMPERATURE + 0.4 * t);
    for (int32_t i = 0; i < n; i++) sum += exp(sharpness * (best[i].value - best[0].value));
    if (n > k) n = k;
    for (int32_t i = 0; i < n; i++) {
        tokens[i] = best[i].token;
        log_p[i] = sharpness * (best[i].value - best[0].value) - log(sum);
    }
    return n;
}

int32_t learned_path(const Tree *t, int32_t node, int32_t path[TREE_MAX_NODES]) {
    int32_t depth = t->nodes[node].depth;
    for (; node > 0; node = t->nodes[node].parent) path[t->nodes[node].depth - 1] = t->nodes[node].token;
    return depth;
}

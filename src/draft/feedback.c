/* feedback.c - shared by the drafters that learn from the target's logits: the top k of a row, the committed path of
 * a step, counts of right guesses, and chances of candidates under the target's noise.
 *
 * The top k of a row of V logits must cost little compared with the forward that computed the row, which reads a matrix
 * of V rows. Sorting would take too long. The k best so far are kept in order; a new logit matters only if it exceeds
 * the last of them. In random rows about k ln(V / k) of V logits do (80 of 131,072 for k = 8), so the row is read in
 * blocks of 64, and a branchless test first finds out whether anything in the block exceeds the threshold: one
 * comparison for each logit, which compilers turn into vector code. A row in rising order is the worst case, with k
 * moves for each logit. With gcc -O2, 32 rows of normally distributed numbers took 4.5 us for each row of 32,000 logits
 * and 15 us for each of 128,256 with k = 8; 3.3 and 12.5 us with k = 1. */
#include "draft/feedback.h"

#include "base/math_functions.h"

#include <math.h>

int feedback_require_target(const char *method, const DrafterEnv *env, fr_error *err) {
    if (env->target) return FR_OK;
    return error_set(err, FR_ERR_UNSUPPORTED,
                     "%s: learns from the target's logits, and no target runs here; use run or compare", method);
}

int feedback_check_tokens(const int32_t *tokens, int64_t n, int32_t n_vocab, fr_error *err) {
    for (int64_t i = 0; i < n; i++)
        if (tokens[i] < 0 || tokens[i] >= n_vocab)
            return error_set(err, FR_ERR_ARGUMENT, "a drafter: token %d is outside the vocabulary of %d tokens",
                             tokens[i], n_vocab);
    return FR_OK;
}

enum { BLOCK = 64 };

typedef struct Top {
    int32_t k, n, *ids;
    float values[TOP_K_MAX], threshold; /* a logit must exceed it to enter */
} Top;

static void enter(Top *t, float value, int32_t id) {
    int32_t place = t->n < t->k ? t->n++ : t->k - 1;
    for (; place > 0 && value > t->values[place - 1]; place--) {
        t->values[place] = t->values[place - 1];
        t->ids[place] = t->ids[place - 1];
    }
    t->values[place] = value;
    t->ids[place] = id;
    if (t->n == t->k) t->threshold = t->values[t->k - 1];
}

static bool any_above(const float block[BLOCK], float threshold) {
    int32_t above = 0;
    for (int32_t i = 0; i < BLOCK; i++) above |= block[i] > threshold;
    return above;
}

int32_t logits_top_k(const float *logits, int32_t n_vocab, int32_t k, int32_t *ids) {
    fr_assert(k >= 1 && k <= TOP_K_MAX);
    Top t = {.k = k, .ids = ids, .threshold = -INFINITY};
    for (int32_t i = 0; i < k; i++) ids[i] = -1;
    for (int32_t begin = 0; begin < n_vocab; begin += BLOCK) {
        int32_t end = n_vocab - begin < BLOCK ? n_vocab : begin + BLOCK;
        if (end - begin == BLOCK && !any_above(logits + begin, t.threshold)) continue;
        for (int32_t i = begin; i < end; i++)
            if (logits[i] > t.threshold) enter(&t, logits[i], i);
    }
    return t.n;
}

int32_t feedback_node(const VerifiedTree *v, int32_t depth) { return depth == 0 ? 0 : v->verdict->path[depth - 1]; }

int32_t feedback_after(const VerifiedTree *v, int32_t depth) {
    if (depth == v->verdict->n_path) return v->verdict->next_token;
    return v->tree->nodes[v->verdict->path[depth]].token;
}

void tally_add(Tally *t, bool right) {
    t->n++;
    t->n_right += right;
    if (t->n < TALLY_FULL) return;
    t->n /= 2;
    t->n_right /= 2;
}

double tally_share(const Tally *t, double prior) {
    enum { PRIOR_WEIGHT = 8 };
    return (t->n_right + PRIOR_WEIGHT * prior) / (t->n + PRIOR_WEIGHT);
}

/* ---- candidates and the target's noise ------------------------------------------------------------------ */

/* The chances of candidates whose probabilities are only roughly known, given the target's noise.
 *
 * The problem: the target chooses argmax(log p + G), and the noise G of every token is known in advance (gumbel.h).
 * With q = p only argmax(log q + G) would have to be drafted. But a drafter that has seen a context once or twice has a
 * rough q. Then the order by log q + G is a guess, and dividing a budget of nodes requires an estimate of how good the
 * guess is.
 *
 * The idea: let log p(x) = log q(x) + an error that is independent for each candidate and, like the noise itself,
 * standard Gumbel. Then the target's choice among the candidates is argmax(log q + G + error) with a known G and an
 * unknown error. By the Gumbel-max identity (sampler.c), x is chosen with probability w(x) / sum of w, where w(x) =
 * q(x) e^G(x). All tokens that are not candidates together count as one more rival, of constant weight:
 *
 *     chance(x) = w(x) / (REST + sum over y of w(y)),     e^G = 1 / -log(1 - v)
 *
 * If one candidate leads by its noise, it gets nearly all of the chance, and a chain below it gets the budget. If
 * several are equal, or none has much weight compared with REST, the tree becomes wide. REST = 2/3 was measured: values
 * from 0.1 to 0.7 are within 1 % of each other, and so are other forms, such as the exact chance that no other token
 * exceeds the candidates, or errors of other sizes (research/DIARY.md, 2026-11-22).
 *
 * Example: q = (0.6, 0.3), G = (-0.5, 1.2): w = (0.36, 1.00), chance = (0.18, 0.49). By q the other one leads.
 * Cost: a Philox block and a logarithm for each candidate. Proof: tests/verify/test_coupling.c. */
#define REST (2.0 / 3)

void coupled_chances(const GumbelRow *noise, const int32_t *tokens, const float *q, int32_t n, double *chance) {
    double sum = REST;
    for (int32_t i = 0; i < n; i++) {
        chance[i] = (double)q[i] / -math_log1p(-gumbel_row_v(noise, tokens[i]));
        sum += chance[i];
    }
    for (int32_t i = 0; i < n; i++) chance[i] /= sum;
}

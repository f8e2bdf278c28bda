/* coupling.c - what the target's noise says about candidates whose probabilities are known roughly.
 *
 * The problem: the target chooses argmax(log p + G), and the noise G of every token is known in advance (gumbel.h). With q =
 * p one would draft argmax(log q + G) alone. A drafter that has seen a context once or twice has a rough q: then the order
 * by log q + G is a guess, and a budget of nodes needs to know how good a guess it is.
 *
 * The idea: let log p(x) = log q(x) + an error that is independent for each candidate and, like the noise itself, standard
 * Gumbel. Then the target's choice among the candidates is argmax(log q + G + error) with G known and the error not, and by
 * the Gumbel-max identity (sampler.c) x is chosen with probability w(x) / sum of w, where w(x) = q(x) e^G(x). All tokens
 * that are not candidates together are one more rival, of constant weight:
 *
 *     chance(x) = w(x) / (REST + sum over y of w(y)),     e^G = 1 / -log(1 - v)
 *
 * Where one candidate leads by its noise, it gets nearly all of the chance and a chain below it the budget; where several
 * are level, or none has a weight beside REST, the tree becomes wide. REST = 2/3 by measurement: 0.1 to 0.7 are within 1 % of
 * each other, and so are other forms (the exact chance that the rest's greatest perturbed value stays below; errors of other
 * sizes): research/DIARY.md, 2026-11-22.
 *
 * Example: q = (0.6, 0.3), G = (-0.5, 1.2): w = (0.36, 1.00), chance = (0.18, 0.49). By q alone the other one leads.
 * Cost: a Philox block and a logarithm for each candidate. Proof: tests/verify/test_coupling.c. */
#include "draft/coupling.h"

#define REST (2.0 / 3)

void coupled_chances(const GumbelRow *noise, const int32_t *tokens, const float *q, int32_t n, double *chance) {
    double sum = REST;
    for (int32_t i = 0; i < n; i++) {
        chance[i] = (double)q[i] / -log1p(-gumbel_row_v(noise, tokens[i]));
        sum += chance[i];
    }
    for (int32_t i = 0; i < n; i++) chance[i] /= sum;
}

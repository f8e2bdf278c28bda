/* rule_transport.c - the rule `transport`: near-optimal transport for the drafts of a node, above all for draws
 * without replacement.
 *
 * The problem. The rule `recursive` decides each draft before it looks at the next one: x is accepted with probability
 * min(1, p(x) / q(x)), even if a later draft is a token that the drafts reach too rarely. The most that any rule can
 * accept is an optimal transport from the set of drafts to the emitted token (SpecTr, Sun et al. 2023, arXiv
 * 2310.15141); Hu et al. (2025, arXiv 2502.18779) compute its value for real vocabularies, Khisti et al. (2025, arXiv
 * 2410.18234) describe its form, and Thomas and Pal (2025, arXiv 2511.15898) find it for independent draws by convex
 * minimisation. For draws without replacement none of them has a rule that runs at every node.
 *
 * The idea (ours). Keep a distribution r of the token to be emitted, at first p, and replace it, draft by draft, by one
 * that depends on the draft just seen:
 *
 *     sum over x of q(x) r_x(z) = r(z)  for every z                                                      (*)
 *
 * where q is the distribution of this draft given those before it. After the last draft the token is drawn from r; if
 * it is one of the drafts, that draft is accepted. By (*) and induction the token has distribution p, whatever the r_x
 * are: the rule `recursive` is the choice r_x = min(1, p/q)(x) at x and the residual elsewhere. Here mass on a draft
 * already seen is not final: a later draft may take it over. The r_x come from a table M(x, z) = q(x) r_x(z) with row
 * sums q and column sums r, made of products of a row and a column, so that its sums cost O(V):
 *
 *     z was drafted before x       r(z) / B s'(x) B / (B + L)          B: r of all drafts before x
 *     z = x                        d(x)
 *     other z                      v(x) m(z) + s'(x) e(z) / (B + L)
 *
 *   v(x) m(z)   what row x leaves to the later drafts. v = q / (1 - q), because after x the next draft is z with
 *               probability q(z) / (1 - q(x)); for independent draws v = q. m(z) is as little as the column needs
 *               beyond what the row can keep, and no more than later drafts can accept (transport_plan.c):
 *                 m = (r - q + v tau) / sum v, between 0 and capacity / others,  tau = sum m,  others(z) = sum v - v(z)
 *   d(x)        the smaller one of what is left of column x, which is r(x) - m(x) others(x), and what is left of row x,
 *               which is s(x) = q(x) - v(x) (tau - m(x))
 *   s'(x)       s(x) - d(x), what is left of the row. It goes to the drafts before x and to what columns have left,
 *               which is e(z), of sum L
 *
 * A column with e(z) > 0 is one that the drafts reach too rarely: draws of such z should not give way to later drafts.
 * So row z keeps a part f(z) = min(1, e(z) / (v(z) Y)) of what it leaves to columns within their capacity, of sum Y,
 * and these columns get that mass from the rows with s' > 0 instead: the structure of the optimum, in which sets with a
 * token from one side of the cut never emit one from the other side (research/acceptance.c).
 *
 * Example: p = (0.5, 0.3, 0.2), q = (0.2, 0.4, 0.4), two drafts without replacement: any of the three pairs has to be
 * as good as any other. The rule `recursive` accepts the first draft with probability 0.2 + 0.3 + 0.2 = 0.7, after
 * which the residual is only token 0, and the second draft is token 0 with probability 1/3: 0.7 + 0.3 / 3 = 0.8 in
 * all. Token 0 is among the drafts with probability 0.2 + 0.8 / 3 = 0.467 < 0.5, so that 0.967 is the optimum, and
 * `transport` accepts it: where token 0 comes second, it takes over from an accepted first draft, whose column is
 * served by other pairs.
 *
 * What it needs of its drafts. This rule sees all drafts of a node before it accepts one, and the number of drafts
 * decides how much is left to later ones. So drafts must depend on each other only as their declared distributions do:
 *
 *   Condition. Let u_0, ..., u_d be a path of the tree, u_0 its root, and let X_i be the drafts at u_i, in their order.
 *   Given that the path is in the tree, given X_0, ..., X_{d-1} and given how many drafts X_d has, X_d is distributed
 *   as declared.
 *
 *   Theorem. If the condition holds for every path, the emitted text has the target's distribution.
 *
 * Proof. At u_d the rule uses X_d, their number and fresh random numbers. By the condition and (*), the token that it
 * emits has distribution p(. | u_d), given all that it saw before. If this token is one of the drafts, the path goes on
 * to its node, where the condition holds again; if not, the step ends, and the next step begins with new drafts. By
 * induction the probability of a text is the product of p along it. If X_d is empty, the token is drawn from p itself.
 *
 * The condition holds for a tree whose shape was fixed before anything was drawn, for independent paths (how many
 * drafts a node has is known from the group above), and for beams that are pruned in whole groups (learned_top.c,
 * draft_model.c): there the size of X_d depends on counts and on values of nodes that are not below u_d, and the noise
 * at u_d is independent of all of that. It fails for a tree that is pruned node by node: whether a node keeps its
 * second child depends on what was drawn below the first one. The other ratio rules need less. `recursive`,
 * `multi-round` and `chain` look at a draft only after those before it were rejected, so that only each draft by itself
 * must be distributed as declared, given the earlier ones of its group and given that it was kept. `k-seq` uses the
 * number of drafts, and `block` the length of the chain, but both only take independent paths, for which the condition
 * holds.
 *
 * Points are the simplest case: the token is drawn from p, and accepted if it was drafted. Independent draws work with
 * their own q each.
 *
 * Invariants: r >= 0 has the support of p, so that at temperature 0 the token is the greedy one; r is divided by its
 * sum after each draft, against rounding. One draft is decided as by `chain`. Cost: O(V) for each draft of a node,
 * also where an early one is accepted; several times as much as `recursive`. When it loses: on a chain `block`
 * accepts more. On all random pairs of distributions tried it accepts at least as much as `recursive`, and more than
 * 90 % of what the optimum adds to it (tests/verify/test_rule_transport.c); that is a measurement, not a theorem.
 * Proof: tests/verify/test_rules.c as for rejection.c, with trees of whole groups and, as a control, trees that are
 * pruned by rank; tests/support/enumerate_transport.py in rational numbers, by another program;
 * tests/lossless/test_learned_draws.c counts texts of whole engines. */
#include "base/mem.h"
#include "verify/ratio.h"

enum { HIGH = 1 }; /* a mark in RatioNode.ids: the column has more than the later drafts can accept */

/* The table of one draft. Its entries are computed when they are needed, from these sums. */
typedef struct Stage {
    RatioNode *n;
    TransportPlan plan;
    double tau;    /* the sum of m over all columns */
    double low_m;  /* Y: the sum of m over the columns that are not marked HIGH */
    double banked; /* B: the mass of r on the drafts seen so far */
    double left;   /* L: the sum of what columns have left */
    double kept;   /* the sum of f v over all rows */
} Stage;

/* The mass of r on each draft seen so far. If a token was drawn twice, its mass belongs to the first draw. */
typedef struct Bank {
    double mass[DRAFT_MAX_DRAWS], sum;
} Bank;

static double positive(double a) { return a > 0 ? a : 0; }
static int32_t token_of(const RatioNode *n, int32_t i) { return n->tree->nodes[n->group->draws[i].child].token; }

/* Sets n->q to the distribution of draft i given those before it. Returns false if no token is left to draw. */
static bool load_q(RatioNode *n, int32_t i) {
    const DistDraw *d = &n->group->draws[i];
    double sum = 0;
    if (i == 0 || d->kind != DRAW_WITHOUT_REPLACEMENT) {
        if (i == 0 || d->q != d[-1].q) ratio_draft_dist(d, token_of(n, i), n->n_vocab, n->q);
        return true;
    }
    n->q[token_of(n, i - 1)] = 0;
    for (int32_t t = 0; t < n->n_vocab; t++) sum += n->q[t];
    for (int32_t t = 0; t < n->n_vocab; t++) n->q[t] /= sum > 0 ? sum : 1;
    return sum > 0;
}

/* Computes m of a token at the plan's tau, and marks its column. */
static double find_m(const Stage *s, int32_t t, int32_t *mark) {
    const RatioNode *n = s->n;
    double v = transport_weight(&s->plan, n->q[t]), others = transport_weight_of_others(&s->plan, t, v);
    double m = (n->p[t] - n->q[t] + v * s->plan.tau) / s->plan.v_sum;
    *mark = 0;
    if (!(m > 0 && others > 0)) return 0;
    double most = transport_capacity(&s->plan, t, n->q[t]) / others;
    if (m >= most * (1 - 1e-6)) *mark = HIGH, m = most;
    return min_f64(m, n->p[t] / others);
}

/* Fills n->m and the marks, and scales m down so that no row leaves more than it has. */
static void leave_to_later_drafts(Stage *s) {
    RatioNode *n = s->n;
    double scale = 1;
    s->tau = s->low_m = 0;
    for (int32_t t = 0; t < n->n_vocab; t++) {
        n->m[t] = s->plan.n > 1 ? find_m(s, t, &n->ids[t]) : (n->ids[t] = 0);
        s->tau += n->m[t];
    }
    if (!(s->tau > 0)) return;
    for (int32_t t = 0; t < n->n_vocab; t++) {
        double given = transport_weight(&s->plan, n->q[t]) * (s->tau - n->m[t]);
        if (given > n->q[t]) scale = min_f64(scale, n->q[t] / given);
    }
    s->tau *= scale;
    for (int32_t t = 0; t < n->n_vocab; t++) {
        n->m[t] *= scale;
        if (n->ids[t] != HIGH) s->low_m += n->m[t];
    }
}

/* The row and the column of one token. */
typedef struct Cell {
    double v, d;                  /* v and d of the essay at the top of the file */
    double row_left, column_left; /* what is left of the row and of the column without d */
    double f;                     /* the part of v m that the row keeps from columns that are not HIGH */
} Cell;

static Cell cell_of(const Stage *s, int32_t t) {
    const RatioNode *n = s->n;
    double v = transport_weight(&s->plan, n->q[t]);
    double row = positive(n->q[t] - v * (s->tau - n->m[t]));
    double column = positive(n->p[t] - n->m[t] * transport_weight_of_others(&s->plan, t, v)), d = min_f64(row, column);
    Cell c = {.v = v, .d = d, .row_left = row - d, .column_left = column - d};
    if (n->ids[t] == HIGH && v * s->low_m > 0) c.f = min_f64(1, c.column_left / (v * s->low_m));
    return c;
}

static void sum_up(Stage *s) {
    s->left = s->kept = 0;
    for (int32_t t = 0; t < s->n->n_vocab; t++) {
        Cell c = cell_of(s, t);
        s->left += c.column_left;
        s->kept += c.f * c.v;
    }
}

/* e of a column: the total that it gets from the rows with s' > 0. */
static double e_of(const Stage *s, int32_t t, const Cell *c) {
    if (s->n->ids[t] == HIGH) return positive(c->column_left - c->f * c->v * s->low_m);
    return c->column_left + s->kept * s->n->m[t];
}

/* Replaces r by r_x, where x is draft i. */
static void enter_row(Stage *s, Bank *bank, int32_t i) {
    RatioNode *n = s->n;
    int32_t x = token_of(n, i);
    const Cell row = cell_of(s, x);
    double spare = s->banked + s->left > 0 ? row.row_left / (s->banked + s->left) : 0, sum = 0;
    for (int32_t t = 0; t < n->n_vocab; t++) {
        if (!(n->p[t] > 0)) continue; /* it stays 0 */
        Cell c = cell_of(s, t);
        double own = t == x ? c.d + c.f * c.v * s->low_m : row.v * n->m[t] * (n->ids[t] == HIGH ? 1 : 1 - row.f);
        n->p[t] = own + spare * e_of(s, t, &c);
        sum += n->p[t];
    }
    for (int32_t k = 0; k < i; k++) sum += bank->mass[k] *= spare;
    if (!(sum > 0)) sum = 1;
    for (int32_t t = 0; t < n->n_vocab; t++) n->p[t] /= sum;
    for (int32_t k = 0; k < i; k++) bank->mass[k] /= sum;
}

/* Moves the mass of the draft's token from r to the bank. */
static void bank_token(RatioNode *n, Bank *bank, int32_t i) {
    int32_t x = token_of(n, i);
    bank->mass[i] = n->p[x];
    n->p[x] = 0;
    bank->sum = 0;
    for (int32_t k = 0; k <= i; k++) bank->sum += bank->mass[k];
}

static void see_draft(RatioNode *n, Bank *bank, int32_t i) {
    Stage s = {.n = n, .banked = bank->sum};
    bool is_drawn = n->group->draws[i].kind != DRAW_POINT && load_q(n, i) && n->q[token_of(n, i)] > 0;
    if (is_drawn && s.banked < 1) {
        transport_plan_make(n, i, &s.plan);
        leave_to_later_drafts(&s);
        sum_up(&s);
        enter_row(&s, bank, i);
    }
    bank_token(n, bank, i);
}

int32_t transport_decide(RatioNode *n) {
    Bank bank = {.sum = 0};
    for (int32_t i = 0; i < n->group->n; i++) see_draft(n, &bank, i);
    n->p_mass = 0;
    for (int32_t t = 0; t < n->n_vocab; t++) n->p_mass += n->p[t];
    for (int32_t i = 0; i < n->group->n; i++) {
        double rest = n->p_mass;
        for (int32_t k = n->group->n - 1; k >= i; k--) rest += bank.mass[k];
        if (bank.mass[i] > 0 && n->random_source->flip(n->random_source, bank.mass[i] / rest)) return i;
    }
    return -1;
}

static const RatioRule transport = {"transport", NULL, transport_decide};

static int verify_transport(const VerifyInput *in, VerifyScratch *s, VerifyResult *out, fr_error *err) {
    return ratio_walk(&transport, in, s, out, err);
}

const VerifyRule verify_rule_transport = {
    .name = "transport",
    .summary = "near-optimal transport: any tree; accepts more drafts than recursive and k-seq",
    .is_ratio = true,
    .takes_any_tree = true,
    .looks_ahead = true,
    .verify = verify_transport,
};

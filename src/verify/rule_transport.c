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
 *               beyond what the row can keep, and no more than later drafts can accept (the plan, below):
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

#include <math.h>
#include <string.h>

/* ---- the plan --------------------------------------------------------------------------------------- */

/* Which part of p should be left to the later drafts?
 *
 * The problem. For a draft with n - 1 more to come, the rule keeps d(t) of p(t) for the event that this draft is t, and
 * leaves the rest to later drafts. If it leaves too much, they cannot accept it; if it keeps too much, this draft is
 * not t often enough to use it.
 *
 * The idea: layers. Let pi_j(t) be the probability that draft j is t and no draft before it was t. Draft 1 takes up to
 * g_1 pi_1(t) of p(t), draft 2 takes up to g_2 pi_2(t) of what remains, and so on:
 *
 *     delta_j(t) = min(p(t), u_j(t)) - min(p(t), u_{j-1}(t)),     u_j = sum over i <= j of g_i pi_i
 *
 * Draft j is used only if no later draft is. Hence g_j = 1 - sum over i > j and all t of delta_i(t), and g_n = 1. These
 * equations are solved by iteration from g = 1. The capacity of the later drafts for t is u_n(t) - u_1(t).
 *
 * pi. For independent draws pi_j = q_j (1 - q_1) .. (1 - q_{j-1}). Without replacement pi_1 = q and pi_2(t) = q(t) (W -
 * w(t)) with w = q / (1 - q) and W = sum w, which are both exact. From the third draft on it is an estimate: a token
 * that has not been drawn yet with probability u is drawn with probability u q r / (1 + q r), where the rate r makes
 * the sum over all tokens 1.
 *
 * Cost. Tokens with p and q below 1 / 128 are added up in bins by p / q, four to an octave, so that the iterations
 * run over a few hundred entries at most. The plan decides how much is accepted and not what is emitted, which is
 * exact for every plan. */
enum { MAX_PLANNED = 8 }; /* a plan covers this draft and the next seven */

/* The plan for one draft of a node. Here p is the mass of the tokens that have not been drafted yet, and q is the
 * distribution of the draft given those before it. */
typedef struct Plan {
    const DistDraw *draws;     /* this draft and those after it */
    int32_t n;                 /* how many of them the plan covers */
    double share[MAX_PLANNED]; /* g: draft j accepts at most this share of the cases in which it draws a token */
    double rate[MAX_PLANNED];  /* r: the rate of draft j, for draws without replacement */
    double w_sum;              /* W: the sum of w over all tokens */
    double v_floor;            /* 1 - q is not taken to be smaller than this in a row weight v */
    double v_sum, v_rest;      /* the sum of all row weights, and the sum without the greatest one */
    int32_t v_max;             /* the token with the greatest row weight */
    double tau;                /* an estimate of sum m */
} Plan;

enum { N_BINS = 64, MAX_LARGE = 256, FIRST_BIN = (127 - 8) * 4, MAX_ROUNDS = 60 };
static const double LARGE = 1.0 / 128; /* tokens of at least this p or q have an entry of their own */
static const double FLOOR = 1e-3;      /* 1 - q is not taken to be smaller, because of rounding errors */

/* A token, or a bin of small ones. */
typedef struct Entry {
    double p, q, v;
    double unseen; /* the probability that the token has not been drawn yet; 1 for a bin */
    double pi[MAX_PLANNED];
} Entry;

typedef struct Entries {
    int32_t n;
    Entry e[N_BINS + MAX_LARGE];
} Entries;

static bool without_replacement(const Plan *plan) { return plan->draws[0].kind == DRAW_WITHOUT_REPLACEMENT; }

static double w_of(const Plan *plan, double q) {
    if (!without_replacement(plan)) return q;
    return q / (1 - q > FLOOR ? 1 - q : FLOOR);
}

/* Returns the row weight v of a token, as a function of its q. */
static double weight_of(const Plan *plan, double q) {
    if (!without_replacement(plan)) return q;
    return q / (1 - q > plan->v_floor ? 1 - q : plan->v_floor);
}

/* Returns the sum of the row weights of all other tokens. */
static double weight_of_others(const Plan *plan, int32_t token, double v) {
    return token == plan->v_max ? plan->v_rest : plan->v_sum - v;
}

/* Fills pi[j] for one token and all drafts that the plan covers. */
static void find_pi(const Plan *plan, int32_t token, double q, double *pi) {
    double unseen = 1 - q > 0 ? 1 - q : 0;
    pi[0] = q;
    for (int32_t j = 1; j < plan->n; j++) {
        double x = q * plan->rate[j];
        if (!without_replacement(plan)) pi[j] = unseen * (double)plan->draws[j].q[token];
        else if (j == 1) pi[j] = q * (plan->w_sum - w_of(plan, q));
        else pi[j] = unseen * x / (1 + x);
        unseen = unseen > pi[j] ? unseen - pi[j] : 0;
    }
}

/* Returns how much of a token's p the drafts after this one can probably accept. */
static double capacity_of(const Plan *plan, int32_t token, double q) {
    double pi[MAX_PLANNED], sum = 0;
    find_pi(plan, token, q, pi);
    for (int32_t j = 1; j < plan->n; j++) sum += plan->share[j] * pi[j];
    return sum;
}

/* ---- entries --------------------------------------------------------------------------------------- */

static int32_t bin_of(double p, double q) {
    float ratio = q > 0 ? (float)(p / q) : 1e9f;
    uint32_t bits;
    memcpy(&bits, &ratio, sizeof bits);
    int32_t bin = (int32_t)(bits >> 21) - FIRST_BIN;
    return bin < 0 ? 0 : bin >= N_BINS ? N_BINS - 1 : bin;
}

static void add_token(const Plan *plan, Entries *x, int32_t token, double p, double q) {
    bool is_large = p >= LARGE || q >= LARGE;
    fr_assert(!is_large || x->n < N_BINS + MAX_LARGE); /* at most 2 / LARGE tokens are large */
    Entry *e = is_large ? &x->e[x->n++] : &x->e[bin_of(p, q)];
    double pi[MAX_PLANNED];
    e->p += p;
    e->q += q;
    if (is_large || !without_replacement(plan)) {
        find_pi(plan, token, q, pi);
        for (int32_t j = 0; j < plan->n; j++) e->pi[j] += pi[j];
    }
    if (is_large) e->unseen = q < 1 ? 1 - q : 0;
}

static void list_entries(const Plan *plan, const RatioNode *n, Entries *x) {
    memset(x, 0, sizeof *x);
    x->n = N_BINS;
    for (int32_t b = 0; b < N_BINS; b++) x->e[b].unseen = 1;
    for (int32_t t = 0; t < n->n_vocab; t++)
        if (n->p[t] > 0 || n->q[t] > 0) add_token(plan, x, t, n->p[t], n->q[t]);
}

/* ---- draws without replacement: the rates of the third and later drafts ------------------------------ */

static double drawn(const Entry *e, int32_t i, double rate) {
    return i < N_BINS ? e->q * rate : e->unseen * e->q * rate / (1 + e->q * rate);
}

/* Finds the rate at which drawn() sums to 1. The sum is an increasing and concave function of the rate, so that
 * Newton's method approaches the root from below. */
static double find_rate(const Entries *x) {
    double rate = 0;
    for (int round = 0; round < 30; round++) {
        double sum = 0, slope = 0;
        for (int32_t i = 0; i < x->n; i++) {
            double q = x->e[i].q, part = 1 + q * rate;
            sum += drawn(&x->e[i], i, rate);
            slope += i < N_BINS ? q : x->e[i].unseen * q / (part * part);
        }
        if (!(slope > 1e-12) || 1 - sum < 1e-6) break; /* the slope is 0 if all tokens have been drawn */
        rate += (1 - sum) / slope;
    }
    return rate;
}

static void find_rates(Plan *plan, Entries *x) {
    for (int32_t j = 1; j < plan->n; j++) {
        plan->rate[j] = j > 1 ? find_rate(x) : 0;
        for (int32_t i = 0; i < x->n; i++) {
            Entry *e = &x->e[i];
            if (j > 1) e->pi[j] = drawn(e, i, plan->rate[j]);
            else if (i < N_BINS) e->pi[j] = e->q * plan->w_sum;
            if (i >= N_BINS) e->unseen = e->unseen > e->pi[j] ? e->unseen - e->pi[j] : 0;
        }
    }
    for (int32_t i = 0; i < N_BINS; i++) x->e[i].pi[0] = x->e[i].q;
}

/* ---- layers ---------------------------------------------------------------------------------------- */

static void find_shares(Plan *plan, const Entries *x) {
    double *g = plan->share, change = 1;
    for (int32_t j = 0; j < plan->n; j++) g[j] = 1;
    for (int round = 0; round < MAX_ROUNDS && change > 1e-6; round++) {
        double taken[MAX_PLANNED] = {0}, later = 0;
        for (int32_t i = 0; i < x->n; i++) {
            double level = 0, below = 0;
            for (int32_t j = 0; j < plan->n; j++) {
                level += g[j] * x->e[i].pi[j];
                double filled = min_f64(x->e[i].p, level);
                taken[j] += filled - below;
                below = filled;
            }
        }
        change = 0;
        for (int32_t j = plan->n - 1; j > 0; j--) {
            later += taken[j];
            double next = later < 1 ? 1 - later : 0;
            change += fabs(next - g[j - 1]);
            g[j - 1] = next;
        }
    }
}

static double entry_capacity(const Plan *plan, const Entry *e) {
    double sum = 0;
    for (int32_t j = 1; j < plan->n; j++) sum += plan->share[j] * e->pi[j];
    return sum;
}

/* Estimates the total mass that is left to later drafts. This is the least v_floor at which no row has to leave more
 * than it has. */
static double estimate_left(const Plan *plan, const Entries *x) {
    double sum = 0;
    for (int32_t i = 0; i < x->n; i++) {
        double over = x->e[i].p - plan->share[0] * x->e[i].q;
        if (over > 0) sum += min_f64(over, entry_capacity(plan, &x->e[i]));
    }
    return sum;
}

static void find_weights(Plan *plan, const RatioNode *n) {
    double greatest = -1;
    plan->v_sum = plan->v_rest = 0;
    for (int32_t t = 0; t < n->n_vocab; t++) {
        double v = weight_of(plan, n->q[t]);
        plan->v_sum += v;
        if (v > greatest) greatest = v, plan->v_max = t;
    }
    for (int32_t t = 0; t < n->n_vocab; t++)
        if (t != plan->v_max) plan->v_rest += weight_of(plan, n->q[t]);
}

/* Finds the smallest root of sum m(tau) = tau, with m as in the essay at the top of the file. */
static double find_tau(const Plan *plan, Entries *x) {
    double low = 0, high = 1;
    for (int32_t i = 0; i < x->n; i++) x->e[i].v = i < N_BINS ? x->e[i].q : weight_of(plan, x->e[i].q);
    for (int round = 0; round < 40; round++) {
        double tau = (low + high) / 2, sum = 0;
        for (int32_t i = 0; i < x->n; i++) {
            const Entry *e = &x->e[i];
            double m = (e->p - e->q + e->v * tau) / plan->v_sum, others = plan->v_sum - e->v;
            if (m > 0) sum += i < N_BINS || others > 0 ? min_f64(m, entry_capacity(plan, e) / others) : m;
        }
        if (sum >= tau + 1e-7) low = tau;
        else high = tau;
    }
    return low;
}

static void make_plan(const RatioNode *n, int32_t i_draw, Plan *out) {
    Entries x;
    int32_t n_left = n->group->n - i_draw;
    *out = (Plan){.draws = n->group->draws + i_draw,
                  .n = n_left < MAX_PLANNED ? n_left : MAX_PLANNED,
                  .v_floor = FLOOR};
    for (int32_t t = 0; t < n->n_vocab; t++) out->w_sum += w_of(out, n->q[t]);
    list_entries(out, n, &x);
    if (without_replacement(out)) find_rates(out, &x);
    find_shares(out, &x);
    if (out->n > 2 && without_replacement(out)) {
        double left = estimate_left(out, &x);
        if (left > FLOOR) out->v_floor = left;
    }
    find_weights(out, n);
    out->tau = find_tau(out, &x);
}

/* ---- the rule --------------------------------------------------------------------------------------- */

enum { HIGH = 1 }; /* a mark in RatioNode.ids: the column has more than the later drafts can accept */

/* The table of one draft. Its entries are computed when they are needed, from these sums. */
typedef struct Stage {
    RatioNode *n;
    Plan plan;
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
    double v = weight_of(&s->plan, n->q[t]), others = weight_of_others(&s->plan, t, v);
    double m = (n->p[t] - n->q[t] + v * s->plan.tau) / s->plan.v_sum;
    *mark = 0;
    if (!(m > 0 && others > 0)) return 0;
    double most = capacity_of(&s->plan, t, n->q[t]) / others;
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
        double given = weight_of(&s->plan, n->q[t]) * (s->tau - n->m[t]);
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
    double v = weight_of(&s->plan, n->q[t]);
    double row = positive(n->q[t] - v * (s->tau - n->m[t]));
    double column = positive(n->p[t] - n->m[t] * weight_of_others(&s->plan, t, v)), d = min_f64(row, column);
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
        make_plan(n, i, &s.plan);
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

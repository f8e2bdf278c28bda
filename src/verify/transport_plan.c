/* transport_plan.c - the plan of the rule `transport`: which part of p should be left to the later drafts?
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
#include "verify/ratio.h"

#include "base/mem.h"

#include <math.h>
#include <string.h>

enum { N_BINS = 64, MAX_LARGE = 256, FIRST_BIN = (127 - 8) * 4, MAX_ROUNDS = 60 };
static const double LARGE = 1.0 / 128; /* tokens of at least this p or q have an entry of their own */
static const double FLOOR = 1e-3;      /* 1 - q is not taken to be smaller, because of rounding errors */

/* A token, or a bin of small ones. */
typedef struct Entry {
    double p, q, v;
    double unseen; /* the probability that the token has not been drawn yet; 1 for a bin */
    double pi[TRANSPORT_MAX_PLANNED];
} Entry;

typedef struct Entries {
    int32_t n;
    Entry e[N_BINS + MAX_LARGE];
} Entries;

static double w_of(const TransportPlan *plan, double q) {
    if (!transport_is_without_replacement(plan)) return q;
    return q / (1 - q > FLOOR ? 1 - q : FLOOR);
}

/* Fills pi[j] for one token and all drafts that the plan covers. */
static void find_pi(const TransportPlan *plan, int32_t token, double q, double *pi) {
    double unseen = 1 - q > 0 ? 1 - q : 0;
    pi[0] = q;
    for (int32_t j = 1; j < plan->n; j++) {
        double x = q * plan->rate[j];
        if (!transport_is_without_replacement(plan)) pi[j] = unseen * (double)plan->draws[j].q[token];
        else if (j == 1) pi[j] = q * (plan->w_sum - w_of(plan, q));
        else pi[j] = unseen * x / (1 + x);
        unseen = unseen > pi[j] ? unseen - pi[j] : 0;
    }
}

double transport_capacity(const TransportPlan *plan, int32_t token, double q) {
    double pi[TRANSPORT_MAX_PLANNED], sum = 0;
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

static void add_token(const TransportPlan *plan, Entries *x, int32_t token, double p, double q) {
    bool is_large = p >= LARGE || q >= LARGE;
    fr_assert(!is_large || x->n < N_BINS + MAX_LARGE); /* at most 2 / LARGE tokens are large */
    Entry *e = is_large ? &x->e[x->n++] : &x->e[bin_of(p, q)];
    double pi[TRANSPORT_MAX_PLANNED];
    e->p += p;
    e->q += q;
    if (is_large || !transport_is_without_replacement(plan)) {
        find_pi(plan, token, q, pi);
        for (int32_t j = 0; j < plan->n; j++) e->pi[j] += pi[j];
    }
    if (is_large) e->unseen = q < 1 ? 1 - q : 0;
}

static void list_entries(const TransportPlan *plan, const RatioNode *n, Entries *x) {
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

static void find_rates(TransportPlan *plan, Entries *x) {
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

static void find_shares(TransportPlan *plan, const Entries *x) {
    double *g = plan->share, change = 1;
    for (int32_t j = 0; j < plan->n; j++) g[j] = 1;
    for (int round = 0; round < MAX_ROUNDS && change > 1e-6; round++) {
        double taken[TRANSPORT_MAX_PLANNED] = {0}, later = 0;
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

static double entry_capacity(const TransportPlan *plan, const Entry *e) {
    double sum = 0;
    for (int32_t j = 1; j < plan->n; j++) sum += plan->share[j] * e->pi[j];
    return sum;
}

/* Estimates the total mass that is left to later drafts. This is the least v_floor at which no row has to leave more
 * than it has. */
static double estimate_left(const TransportPlan *plan, const Entries *x) {
    double sum = 0;
    for (int32_t i = 0; i < x->n; i++) {
        double over = x->e[i].p - plan->share[0] * x->e[i].q;
        if (over > 0) sum += min_f64(over, entry_capacity(plan, &x->e[i]));
    }
    return sum;
}

static void find_weights(TransportPlan *plan, const RatioNode *n) {
    double greatest = -1;
    plan->v_sum = plan->v_rest = 0;
    for (int32_t t = 0; t < n->n_vocab; t++) {
        double v = transport_weight(plan, n->q[t]);
        plan->v_sum += v;
        if (v > greatest) greatest = v, plan->v_max = t;
    }
    for (int32_t t = 0; t < n->n_vocab; t++)
        if (t != plan->v_max) plan->v_rest += transport_weight(plan, n->q[t]);
}

/* Finds the smallest root of sum m(tau) = tau, with m as in the essay of rule_transport.c. */
static double find_tau(const TransportPlan *plan, Entries *x) {
    double low = 0, high = 1;
    for (int32_t i = 0; i < x->n; i++) x->e[i].v = i < N_BINS ? x->e[i].q : transport_weight(plan, x->e[i].q);
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

void transport_plan_make(const RatioNode *n, int32_t i_draw, TransportPlan *out) {
    Entries x;
    int32_t n_left = n->group->n - i_draw;
    *out = (TransportPlan){.draws = n->group->draws + i_draw,
                           .n = n_left < TRANSPORT_MAX_PLANNED ? n_left : TRANSPORT_MAX_PLANNED,
                           .v_floor = FLOOR};
    for (int32_t t = 0; t < n->n_vocab; t++) out->w_sum += w_of(out, n->q[t]);
    list_entries(out, n, &x);
    if (transport_is_without_replacement(out)) find_rates(out, &x);
    find_shares(out, &x);
    if (out->n > 2 && transport_is_without_replacement(out)) {
        double left = estimate_left(out, &x);
        if (left > FLOOR) out->v_floor = left;
    }
    find_weights(out, n);
    out->tau = find_tau(out, &x);
}

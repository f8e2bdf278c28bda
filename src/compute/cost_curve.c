/* cost_curve.c - measures T(n, context) in some tenths of a second, and corrects it by every forward afterwards.
 *
 * A drafted token pays only if the row that verifies it costs less time than it saves, so the budget allocator must
 * know T(n) within a few per cent. Disturbances only ever make a forward slower: of several measurements the fastest
 * counts. */
#include "compute/cost_curve.h"

#include "base/system.h"
#include "compute/cost.h"

#include <math.h>

enum { SINK = 2048 /* forwards */, LONG = 1024 /* tokens */, ROUNDS = 32, FEWEST = 5 /* counts */ };
/* Closer together where arithmetic usually begins to take longer than reading the weights. */
static const int32_t COUNTS[COST_CURVE_MAX] = {1, 2, 3, 4, 6, 8, 12, 16, 32};
enum { KEY_POINT = 5 };
/* Seconds: at least for each number of rows; for each measurement of keys; after which larger numbers of rows are
 * left out; and after which nothing more is repeated. */
#define ROWS_S 0.012
#define KEYS_S 0.01
#define GROW_S 0.7
#define LIMIT_S 1.1
#define MOST 0.08 /* of a forward's error that counts: this much of the time at most */
/* Shares of an error. A virtual machine becomes half as fast for seconds, at all numbers of rows; the shape of the curve, on
 * which the choice of rows depends, stays as it was measured. Where most of an error moved only the points beside it, a
 * change of speed while trees of one size ran would make that size look too expensive, or too cheap. */
#define OF_CURVE 0.75
#define OF_POINT 0.25

/* Two facts hold for every forward: more rows never take less time, and never more than several forwards of fewer
 * rows would. Points that contradict them are noise.
 *
 * Where more rows took less time than fewer, both get the mean. Some kernels are slow at a certain number of rows; of
 * all rising curves this one is the nearest (isotonic regression). If only the upper point were moved, each slow forward of
 * few rows would lift its neighbours, whose next forwards would then seem fast and pull the whole curve down. */
static void make_rising(CostCurve *c) {
    double sum[COST_CURVE_MAX];
    int count[COST_CURVE_MAX], n = 0; /* runs of points that share their mean */
    for (int k = 0; k < c->n; k++) {
        sum[n] = c->seconds[k], count[n++] = 1;
        for (; n > 1 && sum[n - 2] / count[n - 2] > sum[n - 1] / count[n - 1]; n--)
            sum[n - 2] += sum[n - 1], count[n - 2] += count[n - 1];
    }
    for (int i = 0, k = 0; i < n; i++)
        for (int j = 0; j < count[i]; j++) c->seconds[k++] = sum[i] / count[i];
}

static void make_sound(CostCurve *c) {
    make_rising(c);
    for (int k = 1; k < c->n; k++) {
        double most = c->seconds[k - 1] * (double)c->rows[k] / (double)c->rows[k - 1];
        if (c->seconds[k] > most) c->seconds[k] = most;
    }
}

/* Times one forward without context; *least keeps the fastest. */
static int time_once(Executor *e, int32_t n_rows, double *least, double *spent_s, fr_error *err) {
    double s;
    int status = cost_measure(e, 0, &n_rows, 1, 1, 0, 0, &s, err);
    if (status) return status;
    if (s < *least) *least = s;
    *spent_s += s;
    return FR_OK;
}

/* The time that n_keys keys add to a forward: measured with and without them in turn, because the difference is small
 * and the speed of the machine varies. At least two forwards are timed, because the first finds the caches full of
 * the keys that were just written. */
static double added_by(Executor *e, int32_t n_keys, int32_t rows) {
    double least[2] = {INFINITY, INFINITY}, s;
    for (int round = 0; round < 2; round++)
        for (int k = 0; k < 2; k++) {
            if (cost_measure(e, k * n_keys, &rows, 1, 2, KEYS_S, 0, &s, NULL)) return 0;
            if (s < least[k]) least[k] = s;
        }
    return least[1] > least[0] ? least[1] - least[0] : 0;
}

/* From one row and a few rows: both read the keys once, and the difference is the arithmetic of the additional rows. */
static void measure_keys(CostCurve *c, Executor *e, int32_t n_ctx) {
    int32_t few = c->rows[c->n <= KEY_POINT ? c->n - 1 : KEY_POINT], n_keys = n_ctx - few < LONG ? n_ctx - few : LONG;
    c->key_s = c->key_read_s = 0;
    if (n_keys < 1) return;
    double one_s = added_by(e, n_keys, 1) / n_keys, few_s = few > 1 ? added_by(e, n_keys, few) / n_keys : one_s;
    c->key_s = few > 1 && few_s > one_s ? (few_s - one_s) / (few - 1) : few_s / few;
    if (one_s > c->key_s) c->key_read_s = one_s - c->key_s;
}

/* Measures the numbers of rows in turn, the small ones more often, so that each gets about as much time as the
 * largest: a moment in which something else ran must not decide a point. A first forward, with cold caches, is not
 * counted. */
static int measure_rows(CostCurve *c, Executor *e, int32_t n_ctx, double begin_s, fr_error *err) {
    double spent_s[COST_CURVE_MAX] = {0}, cold_s = INFINITY, none = 0;
    int n = 0, status = time_once(e, 1, &cold_s, &none, err);
    for (int k = 0; !status && k < COST_CURVE_MAX && COUNTS[k] <= executor_max_rows(e) && COUNTS[k] <= n_ctx; k++) {
        if (n >= FEWEST && clock_s() > begin_s + GROW_S)
            break; /* a large model: the line through the last two goes on */
        int32_t rows = COUNTS[k];
        c->rows[n] = rows, c->seconds[n] = INFINITY;
        status = time_once(e, rows, &c->seconds[n], &spent_s[n], err);
        n++;
    }
    double share_s = 1.5 * c->seconds[n - 1] > ROWS_S ? 1.5 * c->seconds[n - 1] : ROWS_S;
    for (int round = 1; !status && round < ROUNDS && clock_s() < begin_s + LIMIT_S; round++)
        for (int k = 0; !status && k < n; k++)
            if (spent_s[k] < share_s) status = time_once(e, c->rows[k], &c->seconds[k], &spent_s[k], err);
    c->n = status ? 0 : n;
    return status;
}

int cost_curve_measure(CostCurve *c, Executor *e, int32_t n_ctx, fr_error *err) {
    double begin_s = clock_s();
    c->n = 0;
    int status = measure_rows(c, e, n_ctx, begin_s, err);
    if (status) return status;
    make_sound(c);
    measure_keys(c, e, n_ctx);
    return FR_OK;
}

/* The point at which the line segment through n_rows begins. */
static int segment(const CostCurve *c, int32_t n_rows) {
    int i = 0;
    while (i + 2 < c->n && c->rows[i + 1] <= n_rows) i++;
    return i;
}

static double without_keys(const CostCurve *c, int32_t n_rows) {
    if (c->n == 1 || n_rows == c->rows[0]) return c->seconds[0];
    int i = segment(c, n_rows);
    double slope = (c->seconds[i + 1] - c->seconds[i]) / (double)(c->rows[i + 1] - c->rows[i]);
    return c->seconds[i] + slope * (double)(n_rows - c->rows[i]);
}

double cost_curve_at(const CostCurve *c, int32_t n_rows) {
    return without_keys(c, n_rows) + c->n_context * (c->key_read_s + n_rows * c->key_s);
}

/* Points above n_rows sink slowly towards those beside it: a size that looks too expensive to be used would otherwise never
 * be measured again. */
void cost_curve_observe(CostCurve *c, int32_t n_rows, double seconds) {
    if (n_rows > 2 * c->rows[c->n - 1]) return;
    double wrong = seconds / cost_curve_at(c, n_rows) - 1;
    wrong = wrong > MOST ? MOST : wrong < -MOST ? -MOST : wrong;
    c->key_s *= 1 + wrong * OF_CURVE;
    c->key_read_s *= 1 + wrong * OF_CURVE;
    int i = n_rows == 1 || c->n == 1 ? 0 : segment(c, n_rows);
    double part = i + 1 < c->n ? (double)(n_rows - c->rows[i]) / (double)(c->rows[i + 1] - c->rows[i]) : 0;
    part = part > 1 ? 1 : part;
    for (int k = 0; k < c->n; k++) {
        double local = k == i ? 1 - part : k == i + 1 ? part : 0;
        c->seconds[k] *= 1 + wrong * (OF_CURVE + OF_POINT * local);
        if (k > i && local <= 0) c->seconds[k] -= (c->seconds[k] - c->seconds[k - 1]) / SINK;
    }
    make_sound(c);
}

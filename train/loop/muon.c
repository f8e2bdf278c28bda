/* muon.c - the optimiser Muon, for the matrices of a network.
 *
 * AdamW scales each element of a gradient for itself. But the gradient of a matrix is nearly of low rank: a few
 * directions dominate, and the others, which matter as well, hardly move. Muon replaces the momentum by the nearest
 * matrix with orthonormal rows or columns, in which all directions are equally long:
 *
 *     M = mu M + G,   D = mu M + G                    mu = 0.95 (Nesterov's momentum)
 *     X = D / |D|, and five times:                    |.|: the Frobenius norm, so all singular values are at most 1
 *         A = X X^T,   X = a X + (b A + c A A) X      a, b, c = 3.4445, -4.7750, 2.0315
 *     W = (1 - rate * weight_decay) W - rate * 0.2 sqrt(max(rows, columns)) X
 *
 * The iteration (Newton and Schulz's, with coefficients that converge fast and stop between 0.7 and 1.2) is an odd
 * polynomial, so it acts on singular values alone: U S V^T becomes U p(S) V^T. A matrix with more rows than columns uses
 * X^T X from the other side, because the square is then smaller. The factor of the step gives it the root mean square
 * of AdamW's steps, so that both take the same learning rate and weight decay.
 *
 * Norms, biases and the embedding are no maps between directions of the residual stream; AdamW does them.
 *
 * Threads take whole matrices, so the bits are those of one thread. Cost: for a matrix of m x n (m the smaller) about
 * 5 (4 m^2 n + 2 m^3) operations a step; for the shipped target 6 % of a step of 12,000 tokens.
 *
 * Test: test_muon.c compares the step with one in double, and the directions with a singular value decomposition's.
 */
#include "train/loop/muon.h"
#include "base/mem.h"

#include "base/threads.h"
#include "train/ops/gemm.h"

#include <math.h>
#include <string.h>

static const float MOMENTUM = 0.95f;
enum { N_ITERATIONS = 5 };

int muon_open(Muon *m, Trainer *t, int n_threads, fr_error *err) {
    *m = (Muon){.n_threads = n_threads};
    for (int32_t i = 0; i < t->class->n_params(t); i++) {
        const Param *p = t->class->param(t, i);
        if (!p->n_rows) continue;
        int64_t side = min_i64(p->n_rows, p->n / p->n_rows), n = 2 * p->n + 2 * side * side;
        if (n > m->n_room) m->n_room = n;
    }
    const ArenaItem items[] = {ARENA_ITEM(&m->room, m->n_room * n_threads)};
    return m->n_room ? arena_take(&m->arena, items, 1, "the optimiser's products", err) : FR_OK;
}

void muon_close(Muon *m) {
    arena_free(&m->arena);
    *m = (Muon){0};
}

/* Scales x to norm 1; a zero matrix stays. */
static void normalize(float *x, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    float scale = sum > 0 ? (float)(1 / sqrt(sum)) : 0;
    for (int64_t i = 0; i < n; i++) x[i] *= scale;
}

/* x: [rows][cols], replaced by (nearly) its orthogonal factor. room: 2 side^2 + rows cols */
static void orthogonalize(float *x, int64_t rows, int64_t cols, float *room) {
    bool is_tall = rows > cols;
    int64_t side = is_tall ? cols : rows, other = is_tall ? rows : cols, n = rows * cols;
    float *gram = room, *poly = gram + side * side, *old = poly + side * side;
    normalize(x, n);
    for (int i = 0; i < N_ITERATIONS; i++) {
        memcpy(old, x, (size_t)n * sizeof *x);
        gemm(is_tall, !is_tall, side, side, other, 1, old, cols, old, cols, false, gram, side);
        memcpy(poly, gram, (size_t)(side * side) * sizeof *poly);
        for (int64_t k = 0; k < side * side; k++) poly[k] *= -4.7750f;
        gemm(false, false, side, side, side, 2.0315f, gram, side, gram, side, true, poly, side);
        for (int64_t k = 0; k < n; k++) x[k] *= 3.4445f;
        if (is_tall) gemm(false, false, rows, cols, side, 1, old, cols, poly, side, true, x, cols);
        else gemm(false, false, rows, cols, side, 1, poly, side, old, cols, true, x, cols);
    }
}

typedef struct Job {
    const Muon *muon;
    const AdamW *adamw;
    Trainer *t;
    double rate;
    float scale;
} Job;

static void step_matrix(const Job *job, const Param *p, float *momentum, float *room) {
    int64_t rows = p->n_rows, cols = p->n / rows;
    float *direction = room;
    for (int64_t i = 0; i < p->n; i++) {
        float g = p->grad[i] * job->scale;
        momentum[i] = MOMENTUM * momentum[i] + g;
        direction[i] = MOMENTUM * momentum[i] + g;
    }
    orthogonalize(direction, rows, cols, room + p->n);
    float keep = (float)(1 - job->rate * (p->decays ? job->adamw->options.weight_decay : 0));
    float rate = (float)(job->rate * 0.2 * sqrt((double)(rows > cols ? rows : cols)));
    for (int64_t i = 0; i < p->n; i++) p->value[i] = keep * p->value[i] - rate * direction[i];
}

static void step_share(void *ctx, int i_part, int n_parts, int i_thread) {
    const Job *job = ctx;
    int64_t at = 0;
    int n_seen = 0;
    (void)i_thread;
    for (int32_t i = 0; i < job->t->class->n_params(job->t); i++) {
        const Param *p = job->t->class->param(job->t, i);
        if (p->n_rows && n_seen++ % n_parts == i_part)
            step_matrix(job, p, job->adamw->mean + at, job->muon->room + i_part * job->muon->n_room);
        at += p->n;
    }
}

void muon_step(Muon *m, AdamW *a, Trainer *t, double rate, double scale) {
    Job job = {m, a, t, rate, (float)scale};
    threads_run_once(m->n_threads, step_share, &job);
}

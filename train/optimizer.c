/* optimizer.c - the learning rate, AdamW and Muon. The learning rate is computed as a function of nothing but the
 * training step, so that a resumed run needs no state for it. */
#include "base/math_functions.h"
#include "base/threads.h"
#include "base/mem.h"
#include "train/optimizer.h"
#include "train/gemm.h"

#include <math.h>
#include <string.h>

double schedule_rate(const Schedule *s, int64_t step) {
    if (step < s->n_warm_up) return s->peak * (double)(step + 1) / (double)s->n_warm_up;
    int64_t begin = s->n_warm_up + s->n_hold;
    if (step < begin) return s->peak;
    double p = step < s->n_steps ? (double)(step - begin) / (double)(s->n_steps - begin) : 1;
    double sine, cosine;
    math_sin_cos(M_PI * p, &sine, &cosine);
    double left = s->decay == SCHEDULE_LINEAR ? 1 - p : 0.5 * (1 + cosine);
    return s->peak * (s->final + (1 - s->final) * left);
}

/* The optimiser AdamW.
 *
 * For gradient g (after clipping), parameter w, step s = 1, 2, ...
 *     m = beta1 m + (1 - beta1) g               mean of the gradients
 *     v = beta2 v + (1 - beta2) g^2             mean of their squares
 *     m' = m / (1 - beta1^s),  v' = v / (1 - beta2^s)        corrects the bias of means that began at 0
 *     w = w - rate (m' / (sqrt(v') + eps) + weight_decay w)
 * The decay is decoupled: it does not go through m and v. Norms and biases do not decay.
 *
 * Threads. The concatenation of all parameters is cut into N_CUTS pieces, whose ends depend only on the number of
 * weights. A thread takes every n-th piece, and the norm's sums of squares are added in the order of the pieces, so the
 * bits are those of one thread.
 *
 *     params   | a a a a a a a a | b b b | c c c c c |    pieces   0: a a a a    1: a a a a    2: b b b c    3: c c c c
 *
 * Cost: one pass, which reads four floats and writes three for each weight. Test: test_train_ops.c computes the first
 * steps of a small case in double, and compares many threads with one.
 */

enum { N_CUTS = 64 };

static int64_t n_weights(Trainer *t) {
    int64_t n = 0;
    for (int32_t i = 0; i < t->class->n_params(t); i++) n += t->class->param(t, i)->n;
    return n;
}

/* Processes elements from .. from + n - 1 of one parameter, which lie in piece i_cut; `at` is the offset of the first
 * one in the concatenation of all parameters. */
typedef void (*SliceFn)(void *ctx, const Param *p, int64_t from, int64_t n, int64_t at, int i_cut);

typedef struct Pieces {
    Trainer *t;
    int64_t n; /* weights in all */
    SliceFn work;
    void *ctx;
} Pieces;

static void work_on_piece(const Pieces *job, int i_cut) {
    int64_t begin, end, at = 0;
    threads_split(job->n, 16, i_cut, N_CUTS, &begin, &end);
    for (int32_t i = 0; i < job->t->class->n_params(job->t) && at < end; i++) {
        const Param *p = job->t->class->param(job->t, i);
        int64_t from = begin > at ? begin - at : 0, to = end - at < p->n ? end - at : p->n;
        if (from < to) job->work(job->ctx, p, from, to - from, at + from, i_cut);
        at += p->n;
    }
}

static void work_on_share(void *ctx, int i_part, int n_parts, int i_thread) {
    (void)i_thread;
    for (int i = i_part; i < N_CUTS; i += n_parts) work_on_piece(ctx, i);
}

static void work_on_all(Trainer *t, int n_threads, SliceFn work, void *ctx) {
    Pieces job = {t, n_weights(t), work, ctx};
    threads_run_once(n_threads < N_CUTS ? n_threads : N_CUTS, work_on_share, &job);
}

int adamw_open(AdamW *a, const AdamWOptions *options, Trainer *t, fr_error *err) {
    *a = (AdamW){.options = *options, .n = n_weights(t), .n_threads = 1};
    const ArenaItem items[] = {ARENA_ITEM(&a->mean, a->n), ARENA_ITEM(&a->square, a->n)};
    return arena_take(&a->arena, items, ARENA_COUNT(items), "the optimiser's running means", err);
}

void adamw_close(AdamW *a) {
    arena_free(&a->arena);
    *a = (AdamW){0};
}

/* The factors of one step, rounded once. */
typedef struct Step {
    const AdamW *adamw;
    float beta1, beta2, eps, scale;
    float rate1;   /* rate / (1 - beta1^s) */
    float square1; /* 1 / (1 - beta2^s) */
    float keep;    /* 1 - rate * weight_decay, for parameters that decay */
} Step;

static void step_slice(void *ctx, const Param *p, int64_t from, int64_t n, int64_t at, int i_cut) {
    (void)i_cut;
    const Step *s = ctx;
    if (s->adamw->leaves_matrices && p->n_rows) return;
    float keep = p->decays ? s->keep : 1;
    float *restrict value = p->value + from, *restrict mean = s->adamw->mean + at,
                    *restrict square = s->adamw->square + at;
    const float *restrict grad = p->grad + from;
    for (int64_t i = 0; i < n; i++) {
        float g = grad[i] * s->scale;
        float m = mean[i] = s->beta1 * mean[i] + (1 - s->beta1) * g;
        float v = square[i] = s->beta2 * square[i] + (1 - s->beta2) * g * g;
        value[i] = keep * value[i] - s->rate1 * m / (sqrtf(v * s->square1) + s->eps);
    }
}

void adamw_step(AdamW *a, Trainer *t, double rate, double scale) {
    const AdamWOptions *o = &a->options;
    double s = (double)++a->n_steps;
    Step step = {.adamw = a,
                 .beta1 = (float)o->beta1,
                 .beta2 = (float)o->beta2,
                 .eps = (float)o->eps,
                 .scale = (float)scale};
    step.rate1 = (float)(rate / (1 - math_pow(o->beta1, s)));
    step.square1 = (float)(1 / (1 - math_pow(o->beta2, s)));
    step.keep = (float)(1 - rate * o->weight_decay);
    work_on_all(t, a->n_threads, step_slice, &step);
}

static void add_squares(void *ctx, const Param *p, int64_t from, int64_t n, int64_t at, int i_cut) {
    (void)at;
    double lane[8] = {0}, *sum = (double *)ctx + i_cut;
    const float *grad = p->grad + from;
    for (int64_t k = 0; k < n; k++) lane[k % 8] += (double)grad[k] * (double)grad[k];
    for (int k = 0; k < 8; k++) *sum += lane[k];
}

double trainer_gradient_norm(Trainer *t, int n_threads) {
    double sums[N_CUTS] = {0}, sum = 0;
    work_on_all(t, n_threads, add_squares, sums);
    for (int i = 0; i < N_CUTS; i++) sum += sums[i];
    return sqrt(sum);
}

void trainer_zero_gradients(Trainer *t) {
    for (int32_t i = 0; i < t->class->n_params(t); i++) {
        Param *p = t->class->param(t, i);
        memset(p->grad, 0, (size_t)p->n * sizeof *p->grad);
    }
}

double clip_scale(double norm, double max) { return max > 0 && norm > max ? max / norm : 1; }

/* The optimiser Muon, for the matrices of a network.
 *
 * AdamW scales each element of a gradient separately. But the gradient of a matrix is nearly of low rank: a few
 * directions dominate, and the others, which matter as well, hardly move. Muon replaces the momentum by the nearest
 * matrix with orthonormal rows or columns, in which all directions are equally long:
 *
 *     M = mu M + G,   D = mu M + G                    mu = 0.95 (Nesterov's momentum)
 *     X = D / |D|, and five times:                    |.|: the Frobenius norm, so all singular values are at most 1
 *         A = X X^T,   X = a X + (b A + c A A) X      a, b, c = 3.4445, -4.7750, 2.0315
 *     W = (1 - rate * weight_decay) W - rate * 0.2 sqrt(max(rows, columns)) X
 *
 * The iteration (Newton and Schulz's, with coefficients that converge fast and stop between 0.7 and 1.2) is an odd
 * polynomial, so it acts only on the singular values: U S V^T becomes U p(S) V^T. A matrix with more rows than columns
 * uses X^T X from the other side, because the square is then smaller. The factor of the step gives it the root mean
 * square of AdamW's steps, so that both take the same learning rate and weight decay.
 *
 * Norms, biases and the embedding are no maps between directions of the residual stream; AdamW does them.
 *
 * Threads take whole matrices, so the bits are those of one thread. Cost: for a matrix of m x n (m the smaller) about 5
 * (4 m^2 n + 2 m^3) operations a step; for the shipped target 6 % of a step of 12,000 tokens.
 *
 * Test: test_muon.c compares the step with one in double, and the directions with a singular value decomposition's.
 */

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

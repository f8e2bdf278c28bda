/* adamw.c - the optimiser AdamW.
 *
 * For gradient g (after clipping), parameter w, step s = 1, 2, ...
 *     m = beta1 m + (1 - beta1) g               mean of the gradients
 *     v = beta2 v + (1 - beta2) g^2             mean of their squares
 *     m' = m / (1 - beta1^s),  v' = v / (1 - beta2^s)        corrects the bias of means that began at 0
 *     w = w - rate (m' / (sqrt(v') + eps) + weight_decay w)
 * The decay is decoupled: it does not go through m and v. Norms and biases do not decay.
 *
 * Threads. The concatenation of all parameters is cut into N_CUTS pieces, whose ends depend on the number of weights
 * alone. A thread takes every n-th piece, and the norm's sums of squares are added in the order of the pieces, so the
 * bits are those of one thread.
 *
 *     params   | a a a a a a a a | b b b | c c c c c |        piece   0: a a a a    1: a a a a    2: b b b c    3: c c c c
 *
 * Cost: one pass, which reads four floats and writes three for each weight. Test: test_train_ops.c computes the first
 * steps of a small case in double, and compares many threads with one.
 */
#include "train/loop/adamw.h"

#include "base/threads.h"

#include <math.h>
#include <string.h>

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
    step.rate1 = (float)(rate / (1 - pow(o->beta1, s)));
    step.square1 = (float)(1 / (1 - pow(o->beta2, s)));
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

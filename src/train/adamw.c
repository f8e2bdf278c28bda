/* adamw.c - the optimiser.
 *
 * For gradient g (after clipping), parameter w, step s = 1, 2, ...
 *     m = beta1 m + (1 - beta1) g               mean of the gradients
 *     v = beta2 v + (1 - beta2) g^2             mean of their squares
 *     m' = m / (1 - beta1^s),  v' = v / (1 - beta2^s)        both began at 0: that bias is taken out
 *     w = w - rate (m' / (sqrt(v') + eps) + weight_decay w)
 * The decay is "decoupled": it does not go through m and v. Norms and biases do not decay.
 *
 * Cost: reads four floats and writes three for each parameter; one pass. Test: test_train_ops.c computes the first
 * steps of a small case in double, and lets it find the minimum of a parabola.
 */
#include "train/adamw.h"

#include "base/mem.h"

#include <math.h>
#include <string.h>

int adamw_open(AdamW *a, const AdamWOptions *options, Trainer *t, fr_error *err) {
    *a = (AdamW){.options = *options};
    for (int32_t i = 0; i < t->class->n_params(t); i++) a->n += t->class->param(t, i)->n;
    a->mean = mem_calloc((size_t)a->n, sizeof *a->mean);
    a->square = mem_calloc((size_t)a->n, sizeof *a->square);
    if (a->mean && a->square) return FR_OK;
    size_t bytes = 2 * (size_t)a->n * sizeof *a->mean;
    adamw_close(a);
    return error_memory(err, "the means of the optimiser", bytes);
}

void adamw_close(AdamW *a) {
    mem_free(a->mean);
    mem_free(a->square);
    *a = (AdamW){0};
}

/* The factors of one step, rounded once. */
typedef struct Step {
    float beta1, beta2, eps, scale;
    float rate1;   /* rate / (1 - beta1^s) */
    float square1; /* 1 / (1 - beta2^s) */
    float keep;    /* 1 - rate * weight_decay */
} Step;

/* value, grad, mean, square: [n] */
static void step_param(const Step *s, int64_t n, float *restrict value, const float *restrict grad,
                       float *restrict mean, float *restrict square) {
    for (int64_t i = 0; i < n; i++) {
        float g = grad[i] * s->scale;
        float m = mean[i] = s->beta1 * mean[i] + (1 - s->beta1) * g;
        float v = square[i] = s->beta2 * square[i] + (1 - s->beta2) * g * g;
        value[i] = s->keep * value[i] - s->rate1 * m / (sqrtf(v * s->square1) + s->eps);
    }
}

void adamw_step(AdamW *a, Trainer *t, double rate, double scale) {
    const AdamWOptions *o = &a->options;
    double s = (double)++a->n_steps;
    Step step = {.beta1 = (float)o->beta1, .beta2 = (float)o->beta2, .eps = (float)o->eps, .scale = (float)scale};
    step.rate1 = (float)(rate / (1 - pow(o->beta1, s)));
    step.square1 = (float)(1 / (1 - pow(o->beta2, s)));
    float *mean = a->mean, *square = a->square;
    for (int32_t i = 0; i < t->class->n_params(t); i++) {
        Param *p = t->class->param(t, i);
        step.keep = (float)(p->decays ? 1 - rate * o->weight_decay : 1);
        step_param(&step, p->n, p->value, p->grad, mean, square);
        mean += p->n, square += p->n;
    }
}

double trainer_gradient_norm(Trainer *t) {
    double sum = 0;
    for (int32_t i = 0; i < t->class->n_params(t); i++) {
        const Param *p = t->class->param(t, i);
        double lane[8] = {0};
        for (int64_t k = 0; k < p->n; k++) lane[k % 8] += (double)p->grad[k] * (double)p->grad[k];
        for (int k = 0; k < 8; k++) sum += lane[k];
    }
    return sqrt(sum);
}

void trainer_zero_gradients(Trainer *t) {
    for (int32_t i = 0; i < t->class->n_params(t); i++) {
        Param *p = t->class->param(t, i);
        memset(p->grad, 0, (size_t)p->n * sizeof *p->grad);
    }
}

double clip_scale(double norm, double max) { return max > 0 && norm > max ? max / norm : 1; }

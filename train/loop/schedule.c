/* schedule.c - the learning rate as a function of the training step alone, so that a resumed run needs no state for
 * it. */
#include "train/loop/schedule.h"

#include <math.h>

double schedule_rate(const Schedule *s, int64_t step) {
    if (step < s->n_warm_up) return s->peak * (double)(step + 1) / (double)s->n_warm_up;
    int64_t begin = s->n_warm_up + s->n_hold;
    if (step < begin) return s->peak;
    double p = step < s->n_steps ? (double)(step - begin) / (double)(s->n_steps - begin) : 1;
    double left = s->decay == SCHEDULE_LINEAR ? 1 - p : 0.5 * (1 + cos(M_PI * p));
    return s->peak * (s->final + (1 - s->final) * left);
}

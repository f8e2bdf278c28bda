/* schedule.h - the learning rate of each training step: a linear warm-up, then a decay from `peak` to `peak * final`.
 * */
#ifndef LOOP_SCHEDULE_H
#define LOOP_SCHEDULE_H

#include <stdint.h>

typedef enum ScheduleDecay {
    SCHEDULE_LINEAR, /* a straight line: 1 - p */
    SCHEDULE_COSINE, /* half a cosine: (1 + cos(pi p)) / 2 (arXiv 1608.03983 without restarts) */
} ScheduleDecay;

typedef struct Schedule {
    ScheduleDecay decay;
    double peak;       /* learning rate after the warm-up */
    double final;      /* the final rate as a fraction of the peak, 0 .. 1 */
    int64_t n_warm_up; /* steps; step s of them has the rate peak * (s + 1) / n_warm_up */
    int64_t n_hold;    /* steps at the peak before the decay begins */
    int64_t n_steps;   /* of the whole run; beyond them the rate stays at its final value */
} Schedule;

/* The learning rate of training step `step`, counted from 0. */
double schedule_rate(const Schedule *s, int64_t step);

#endif

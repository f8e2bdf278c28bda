/* speed.h - what repeated measurements show about a speed-up, and how `compare` and `bench` print it; warnings about
 * other programs. */
#ifndef CLI_SPEED_H
#define CLI_SPEED_H

#include <stdbool.h>

enum { SPEED_MAX_RUNS = 100 };

typedef enum SpeedVerdict {
    SPEED_BASELINE, /* plain decoding itself */
    SPEED_ONE_RUN,  /* a single run shows no difference */
    SPEED_EVEN,     /* within the spread, or 1 %, of plain decoding */
    SPEED_FASTER,
    SPEED_SLOWER,
    SPEED_DISTURBED, /* above the acceptance length, which is impossible */
} SpeedVerdict;

/* A speed-up over plain decoding. */
typedef struct SpeedUp {
    double value, sd; /* sd: the sample deviation (n - 1) of the runs' own speed-ups; NaN for a single run */
    SpeedVerdict verdict;
} SpeedUp;

/* Returns the sample deviation of n values; NaN if n is 1. */
double speed_deviation(const double *values, int n);
/* Judges a speed-up with this deviation. A step generates acceptance_length tokens on average and takes at least the
 * time of a step of plain decoding, so no speed-up exceeds the acceptance length. */
SpeedUp speed_up(double value, double sd, double acceptance_length);
/* Returns the name of the verdict; "" for the baseline. */
const char *speed_verdict_name(SpeedVerdict verdict);

/* Prints " 1.09x ±0.03 faster   ", SPEED_UP_COLUMNS wide. */
enum { SPEED_UP_COLUMNS = 23 };
void speed_up_print(const SpeedUp *s);
/* Prints what the verdicts of a table mean. has_disturbed: a row has the verdict SPEED_DISTURBED. */
void speed_print_legend(int n_runs, bool has_disturbed);

/* Returns the number of digits after the point with which a sentence has a rate in tokens/s: none from 10 on, otherwise
 * one. */
static inline int speed_rate_digits(double tokens_per_s) { return tokens_per_s < 9.95; }

/* Returns the number of digits after the point with which a column of six has a time in milliseconds. */
static inline int speed_ms_digits(double ms) { return ms < 99.9995 ? 3 : ms < 999.995 ? 2 : ms < 9999.95 ? 1 : 0; }

/* Returns the index of the run with the median rate; of two in the middle, the slower one. n is at most
 * SPEED_MAX_RUNS. */
int speed_median_run(const double *rates, int n);

/* Warns on standard error if other programs are running: they make the times longer, which the table does not show. */
void speed_warn_if_busy(const char *command);

#endif

/* speed.c - what repeated measurements show about a speed-up, and how it is printed.
 *
 * Every table of speed-ups uses these functions, so that the same measurements get the same words everywhere. */
#include "cli/speed.h"

#include "base/os.h"
#include "cli/cli.h"

#include <math.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static const double LEAST_MARGIN = 0.01; /* the least difference of a speed-up from 1: a few runs can agree by chance */
/* A drafter that has nothing accepted is as fast as plain decoding, give or take the noise of the measurement. Only a
 * speed-up that exceeds 1 by more than this is called impossible. */
static const double MOST_NOISE = 0.05;

double speed_deviation(const double *values, int n) {
    double sum = 0, squares = 0;
    for (int i = 0; i < n; i++) sum += values[i];
    for (int i = 0; i < n; i++) squares += (values[i] - sum / n) * (values[i] - sum / n);
    return n > 1 ? sqrt(squares / (n - 1)) : NAN;
}

static SpeedVerdict verdict_of(double value, double sd, double acceptance_length) {
    double margin = fmax(LEAST_MARGIN, sd); /* fmax ignores NaN */
    if (value > acceptance_length && value - 1 > fmin(margin, MOST_NOISE)) return SPEED_DISTURBED;
    if (!isfinite(sd)) return SPEED_ONE_RUN;
    if (value - margin > 1) return SPEED_FASTER;
    return value + margin < 1 ? SPEED_SLOWER : SPEED_EVEN;
}

SpeedUp speed_up(double value, double sd, double acceptance_length) {
    return (SpeedUp){.value = value, .sd = sd, .verdict = verdict_of(value, sd, acceptance_length)};
}

const char *speed_verdict_name(SpeedVerdict verdict) {
    static const char *const names[] = {"", "one run", "even", "faster", "slower", "disturbed"};
    return names[verdict];
}

/* Returns how many decimals of a number fit into so many digits. */
static int decimals_of(double x, int n_digits) {
    int n = 2;
    for (double limit = pow(10, n_digits - n) - 0.005; n > 0 && x >= limit; limit *= 10) n--;
    return n;
}

void speed_up_print(const SpeedUp *s) {
    static const char *const colors[] = {"", "", "", "\033[32m", "\033[31m", "\033[33m"};
    bool is_painted = cli_may_color(STDOUT_FILENO) && *colors[s->verdict];
    printf(" %5.*fx", decimals_of(s->value, 4), s->value);
    if (isfinite(s->sd) && s->verdict != SPEED_BASELINE) printf(" ±%-4.*f", decimals_of(s->sd, 3), s->sd);
    else printf("%6s", "");
    printf(" %s%-9s%s", is_painted ? colors[s->verdict] : "", speed_verdict_name(s->verdict),
           is_painted ? "\033[0m" : "");
}

void speed_print_legend(int n_runs, bool has_disturbed) {
    if (n_runs > 1) printf("even: within one standard deviation (±), or 1 %%, of plain decoding\n");
    else printf("one run cannot tell faster from slower: pass --runs 3 or more\n");
    if (has_disturbed)
        printf("disturbed: no speed-up can exceed the tokens accepted per step, so something\n"
               "else slowed down the other runs: stop other programs and measure again\n");
}

int speed_median_run(const double *rates, int n) {
    for (int i = 0; i < n; i++) {
        int rank = 0; /* the number of runs that come before run i in order of rates; ties go to the first run */
        for (int k = 0; k < n; k++) rank += rates[k] < rates[i] || (rates[k] == rates[i] && k < i);
        if (rank == (n - 1) / 2) return i;
    }
    return 0; /* a rate is NaN */
}

void speed_warn_if_busy(const char *command) {
    enum { N_LOOKS = 10 };
    int n_busy = 0;
    for (int i = 0; i < N_LOOKS; i++) {
        n_busy += os_n_runnable() > 1;
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    if (n_busy > N_LOOKS / 2)
        fprintf(stderr,
                "forerun %s: other programs are running, so the times below are too long and vary: stop them and "
                "measure again\n",
                command);
}

/* clock.h - wall time and processor time for statistics. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

double clock_s(void);     /* seconds since some fixed moment; never goes back */
double clock_cpu_s(void); /* processor time of this process, all its threads together */

#endif

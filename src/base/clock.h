/* clock.h - wall time for statistics. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

double clock_s(void); /* seconds since some fixed moment; never goes back */

#endif

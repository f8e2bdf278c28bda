/* perf_figures.h - `forerun perf --figures`: key figures of verification and the limits of this machine. */
#ifndef PERF_PERF_FIGURES_H
#define PERF_PERF_FIGURES_H

#include "cli/cli.h"

/* Measures the opened model at contexts 128 and 1024, for about one and a half times `seconds` each, and prints a
 * table, or JSON. */
int perf_figures(const CliModel *m, double seconds, bool json, fr_error *err);

#endif

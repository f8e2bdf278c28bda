/* plot.h - draws a figure as an SVG file, by gnuplot: lines with points, or grouped bars.
 *
 *     double x[] = {1, 2, 4}, y[] = {100, 180, 310}, dy[] = {3, 5, 9};
 *     PlotSeries series = {.name = "plain", .n = 3, .x = x, .y = y, .dy = dy};
 *     Plot plot = {.kind = PLOT_LINES, .title = "Throughput", .x_label = "batch size", .y_label = "tokens/s",
 *                  .series = &series, .n_series = 1, .y_from_zero = true, .x_log2 = true};
 *     if (plot_write_svg(&plot, "throughput.svg", &err)) ...
 *
 * gnuplot is a program, not a library, and may be missing: call plot_check before hours of measuring.
 */
#ifndef APP_PLOT_H
#define APP_PLOT_H

#include "base/error.h"

#include <stdbool.h>

typedef enum PlotKind { PLOT_LINES, PLOT_BARS } PlotKind;

/* All pointers are borrowed. A y that is not finite is left out of the figure. */
typedef struct PlotSeries {
    const char *name; /* in the legend */
    int n;            /* number of points; for bars, one for each category */
    const double *x;  /* [n]; unused for bars */
    const double *y;  /* [n] */
    const double *dy; /* [n] half lengths of the error bars; NULL: none; not finite: none at that point */
} PlotSeries;

typedef struct Plot {
    PlotKind kind;
    const char *title, *x_label, *y_label; /* NULL: none */
    const char *const *categories;         /* [n_categories] names of the groups of bars, from left to right */
    int n_categories;
    const PlotSeries *series;
    int n_series;
    double reference; /* y of a dashed line; 0: none */
    bool y_from_zero; /* bars always begin at zero */
    bool x_log2;      /* lines: the x axis is logarithmic, to base 2 */
    bool x_from_zero; /* lines: the x axis begins at zero */
} Plot;

/* Checks that gnuplot is installed. */
int plot_check(fr_error *err);
/* Replaces the file at `path` when the figure is complete. */
int plot_write_svg(const Plot *plot, const char *path, fr_error *err);

#endif

/* test_plot.c - figures that gnuplot draws. */
#include "testing.h"

#include "cli/plot.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static char svg[1 << 18];

static void draw(double x_max) {
    static const char path[] = "build/test-plot.svg";
    double x[] = {2, 3, x_max}, y[] = {10, 40, 20};
    const PlotSeries series = {.name = "s", .n = 3, .x = x, .y = y};
    const Plot plot = {.kind = PLOT_LINES, .x_label = "draft length", .series = &series, .n_series = 1};
    fr_error err;
    if (plot_write_svg(&plot, path, &err)) fail_msg("%s", err.message);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    svg[fread(svg, 1, sizeof svg - 1, f)] = '\0';
    fclose(f);
    unlink(path);
}

/* Draft lengths and counts of rows have no halves. */
static void whole_numbers_get_whole_marks(void **state) {
    (void)state;
    if (plot_check(NULL)) skip();
    draw(4);
    assert_non_null(strstr(svg, "> 3<"));
    assert_null(strstr(svg, "> 2.5<"));
    draw(4.5);
    assert_non_null(strstr(svg, "> 2.5<"));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(whole_numbers_get_whole_marks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* plot.c - writes a gnuplot script and runs gnuplot on it.
 *
 * gnuplot does not report a full disk. So it prints the figure into a temporary file, which replaces the old one only
 * if it is complete. The script is a file in memory.
 *
 * Every text of the caller is put into single quotes, in which gnuplot has no escapes and runs no commands; quotes are
 * doubled. The terminal is `noenhanced`, so that underscores stay underscores. Positions of bars are computed here,
 * because gnuplot's own histograms have no symmetric error bars. */
#include "cli/plot.h"

#include "base/files.h"
#include "base/os.h"

#include <errno.h>
#include <math.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ; /* unistd.h declares it on Linux only */

/* The colours of Okabe and Ito, which can be distinguished with any colour vision; then grey. */
static const char *const palette[] = {"#0072b2", "#e69f00", "#009e73", "#cc79a7",
                                      "#56b4e9", "#d55e00", "#f0e442", "#777777"};
static const char *color_of(int i_series) { return palette[i_series % (int)(sizeof palette / sizeof *palette)]; }

enum { WIDTH = 960, HEIGHT = 560, MAX_LABEL_CHARS = 90 /* as many fit side by side below the axis */ };
static const double GROUP_WIDTH = 0.8; /* width of a category's bars; categories are 1 apart */

int plot_check(fr_error *err) {
    FILE *gnuplot = popen("gnuplot --version >/dev/null 2>&1", "r");
    if (gnuplot && pclose(gnuplot) == 0) return FR_OK;
    return error_set(err, FR_ERR_UNSUPPORTED,
                     "gnuplot, which draws the figure, is not installed: apt install gnuplot-nox");
}

static void write_quoted(FILE *out, const char *text) {
    fputc('\'', out);
    for (const char *p = text; *p; p++) {
        if (*p == '\'') fputc('\'', out);
        fputc(*p == '\n' ? ' ' : *p, out);
    }
    fputc('\'', out);
}

static void write_text(FILE *out, const char *command, const char *text, const char *rest) {
    if (!text) return;
    fprintf(out, "set %s ", command);
    write_quoted(out, text);
    fprintf(out, " %s\n", rest);
}

static double top_of(const Plot *p) {
    double top = p->reference;
    for (int s = 0; s < p->n_series; s++)
        for (int i = 0; i < p->series[s].n; i++) {
            double dy = p->series[s].dy ? p->series[s].dy[i] : 0, y = p->series[s].y[i] + (isfinite(dy) ? dy : 0);
            if (isfinite(y) && y > top) top = y;
        }
    return top > 0 ? top : 1;
}

static void write_categories(FILE *out, const Plot *p) {
    size_t chars = 0;
    for (int i = 0; i < p->n_categories; i++) chars += strlen(p->categories[i]) + 2;
    fprintf(out, "set xtics %s scale 0 (", chars > MAX_LABEL_CHARS ? "rotate by -25 left" : "center");
    for (int i = 0; i < p->n_categories; i++) {
        if (i) fputs(", ", out);
        write_quoted(out, p->categories[i]);
        fprintf(out, " %d", i);
    }
    fprintf(out, ")\nset xrange [-0.6:%g]\n", p->n_categories - 0.4);
}

/* Returns whether every x is a whole number and they are so few that gnuplot would put halves on the axis. */
static bool has_few_whole_x(const Plot *p) {
    double low = HUGE_VAL, high = -HUGE_VAL;
    for (int s = 0; s < p->n_series; s++)
        for (int i = 0; i < p->series[s].n; i++) {
            double x = p->series[s].x[i];
            if (x != floor(x)) return false;
            low = fmin(low, x), high = fmax(high, x);
        }
    return high - low <= 8;
}

static void write_style(FILE *out, const Plot *p) {
    fprintf(out, "set terminal svg size %d,%d font 'Helvetica,15' background '#ffffff' noenhanced\n", WIDTH, HEIGHT);
    fputs("set encoding utf8\nset border 3 lc rgb '#444444'\nset tics nomirror out tc rgb '#222222'\n"
          "set grid ytics lt 1 lw 0.6 lc rgb '#dddddd'\nset key outside bottom center horizontal Left reverse samplen "
          "1.6 width 2 height 0.6\n"
          "set style fill solid 1 noborder\n",
          out);
    write_text(out, "title", p->title, "font ',19' tc rgb '#111111'");
    write_text(out, "xlabel", p->x_label, "tc rgb '#222222' offset 0,0.4");
    write_text(out, "ylabel", p->y_label, "tc rgb '#222222' offset -0.5,0");
    if (p->kind == PLOT_BARS) write_categories(out, p);
    else fprintf(out, "set offsets graph %s, graph 0.03, 0, 0\n", p->x_from_zero ? "0" : "0.03");
    if (p->kind == PLOT_LINES && p->x_from_zero) fputs("set xrange [0:*]\n", out);
    if (p->kind == PLOT_LINES && p->x_log2) fputs("set logscale x 2\n", out);
    else if (p->kind == PLOT_LINES && has_few_whole_x(p)) fputs("set xtics 1\n", out);
    if (p->kind == PLOT_BARS || p->y_from_zero) fprintf(out, "set yrange [0:%.9g]\n", 1.08 * top_of(p));
    if (p->reference != 0)
        fprintf(out,
                "set arrow from graph 0, first %.9g to graph 1, first %.9g nohead front dt 2 lw 1.5 lc rgb '#333333'\n",
                p->reference, p->reference);
}

/* Returns the x of the middle of a bar. The bars of a category are centred at its index. */
static double bar_x(const Plot *p, int i_series, int i_category) {
    return i_category + GROUP_WIDTH * ((i_series + 0.5) / p->n_series - 0.5);
}

static void write_data(FILE *out, const Plot *p, int i_series) {
    const PlotSeries *s = &p->series[i_series];
    fprintf(out, "$s%d << EOD\n", i_series);
    for (int i = 0; i < s->n; i++) {
        if (!isfinite(s->y[i])) continue;
        double dy = s->dy && isfinite(s->dy[i]) ? s->dy[i] : 0;
        fprintf(out, "%.9g %.9g %.9g\n", p->kind == PLOT_BARS ? bar_x(p, i_series, i) : s->x[i], s->y[i], dy);
    }
    fputs("EOD\n", out);
}

static bool has_errors(const PlotSeries *s) {
    for (int i = 0; s->dy && i < s->n; i++)
        if (isfinite(s->dy[i]) && s->dy[i] > 0) return true;
    return false;
}

static bool has_points(const PlotSeries *s) {
    for (int i = 0; i < s->n; i++)
        if (isfinite(s->y[i])) return true;
    return false;
}

static void write_script(FILE *out, const Plot *p) {
    write_style(out, p);
    for (int s = 0; s < p->n_series; s++) write_data(out, p, s);
    const char *before = "plot ";
    for (int s = 0; s < p->n_series; s++) {
        if (!has_points(&p->series[s])) continue;
        fprintf(out, "%s$s%d using 1:2 with ", before, s);
        if (p->kind == PLOT_BARS) fprintf(out, "boxes lc rgb '%s' ", color_of(s));
        else fprintf(out, "linespoints lw 2.2 pt 7 ps 0.7 lc rgb '%s' ", color_of(s));
        fputs("title ", out);
        write_quoted(out, p->series[s].name);
        before = ", ";
    }
    for (int s = 0; s < p->n_series; s++)
        if (has_errors(&p->series[s]))
            fprintf(out, ", $s%d using 1:($2-$3):(0):(2*$3) with vectors nohead lw 1.4 lc rgb '%s' notitle", s,
                    p->kind == PLOT_BARS ? "#222222" : color_of(s));
    fputs("\n", out);
}

/* Runs gnuplot with these files as its standard input and output. */
static bool run_gnuplot(int script, int figure) {
    posix_spawn_file_actions_t files;
    char *const command[] = {(char *)(uintptr_t) "gnuplot", NULL};
    pid_t child = 0;
    int state = 1;
    if (posix_spawn_file_actions_init(&files)) return false;
    bool runs = posix_spawn_file_actions_adddup2(&files, script, STDIN_FILENO) == 0 &&
                posix_spawn_file_actions_adddup2(&files, figure, STDOUT_FILENO) == 0 &&
                posix_spawnp(&child, command[0], &files, NULL, command, environ) == 0;
    posix_spawn_file_actions_destroy(&files);
    while (runs && waitpid(child, &state, 0) < 0)
        if (errno != EINTR) return false;
    return runs && WIFEXITED(state) && WEXITSTATUS(state) == 0;
}

static bool is_whole(int figure) {
    static const char end[] = "</svg>";
    char got[16] = "";
    off_t n = lseek(figure, 0, SEEK_END);
    ssize_t n_got = n < (off_t)sizeof got ? -1 : pread(figure, got, sizeof got - 1, n - (off_t)sizeof got + 1);
    return n_got > 0 && strstr(got, end);
}

static int draw(const Plot *p, FILE *script, FILE *figure, const char *path, fr_error *err) {
    fprintf(script, "set boxwidth %.9g absolute\n", 0.92 * GROUP_WIDTH / p->n_series);
    write_script(script, p);
    if (ferror(script) || fflush(script) || lseek(fileno(script), 0, SEEK_SET) != 0)
        return error_memory(err, "a figure", 1);
    if (!run_gnuplot(fileno(script), fileno(figure)))
        return error_set(err, FR_ERR_IO, "%s: gnuplot failed; its message is above", path);
    if (is_whole(fileno(figure))) return FR_OK;
    return error_set(err, FR_ERR_IO, "%s: cannot be written: gnuplot left the figure incomplete, as on a full disk",
                     path);
}

int plot_write_svg(const Plot *p, const char *path, fr_error *err) {
    bool any = false;
    for (int s = 0; s < p->n_series; s++) any = any || has_points(&p->series[s]);
    if (!any) return error_set(err, FR_ERR_ARGUMENT, "%s: there is nothing to draw", path);
    int memory = os_nameless_file();
    FILE *script = memory < 0 ? NULL : fdopen(memory, "w");
    if (!script) {
        if (memory >= 0) close(memory);
        return error_memory(err, "a figure", 1);
    }
    ReplaceFile figure;
    int status = replace_file_begin(&figure, path, err);
    if (!status) status = replace_file_end(&figure, draw(p, script, figure.file, path, err), err);
    fclose(script);
    return status;
}

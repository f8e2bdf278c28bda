/* train_plot.c - the figure of a training: the losses in its log over the steps. */
#include "cli/plot.h"
#include "cli/train/training.h"

#include <jansson.h>
#include <stdlib.h>

enum { MAX_POINTS = 100 };

typedef struct Curve {
    double *x, *y;
    int n, capacity;
} Curve;

static bool add(Curve *c, double x, double y) {
    if (c->n == c->capacity) {
        int wanted = c->capacity ? 2 * c->capacity : 256;
        double *xs = realloc(c->x, (size_t)wanted * sizeof *xs);
        if (xs) c->x = xs;
        double *ys = realloc(c->y, (size_t)wanted * sizeof *ys);
        if (ys) c->y = ys;
        if (!xs || !ys) return false;
        c->capacity = wanted;
    }
    c->x[c->n] = x;
    c->y[c->n++] = y;
    return true;
}

static int read_log(const char *path, Curve *train, Curve *valid, fr_error *err) {
    LineReader *r;
    const char *line;
    size_t n;
    int got = line_reader_open(&r, path, false, LINE_MAX_BYTES, err);
    if (got) return got;
    while ((got = line_reader_next(r, &line, &n, err)) == 1) {
        json_t *object = json_loadb(line, n, 0, NULL);
        double step = json_number_value(json_object_get(object, "step"));
        json_t *loss = json_object_get(object, "loss"), *valid_loss = json_object_get(object, "valid_loss");
        bool fits = (!json_is_number(loss) || add(train, step, json_number_value(loss))) &&
                    (!json_is_number(valid_loss) || add(valid, step, json_number_value(valid_loss)));
        json_decref(object);
        if (!fits) {
            got = error_memory(err, "a figure", 1);
            break;
        }
    }
    line_reader_close(r);
    return got;
}

/* Replaces the curve by its means over at most MAX_POINTS stretches, in place. */
static void smooth(Curve *c) {
    int n = c->n < MAX_POINTS ? c->n : MAX_POINTS;
    for (int i = 0; i < n; i++) {
        int from = (int)((int64_t)c->n * i / n), to = (int)((int64_t)c->n * (i + 1) / n);
        double x = 0, y = 0;
        for (int k = from; k < to; k++) x += c->x[k] / (to - from), y += c->y[k] / (to - from);
        c->x[i] = x; /* i <= from: the overwritten values have been read */
        c->y[i] = y;
    }
    c->n = n;
}

int train_plot(const char *log, const char *path, fr_error *err) {
    Curve train = {0}, valid = {0};
    int status = read_log(log, &train, &valid, err);
    smooth(&train);
    const PlotSeries series[] = {{.name = "training", .n = train.n, .x = train.x, .y = train.y},
                                 {.name = "held out", .n = valid.n, .x = valid.x, .y = valid.y}};
    const Plot plot = {.kind = PLOT_LINES,
                       .title = "Loss (nats per token)",
                       .x_label = "training step",
                       .series = series,
                       .n_series = 2,
                       .x_from_zero = true};
    if (!status) status = plot_write_svg(&plot, path, err);
    free(train.x), free(train.y), free(valid.x), free(valid.y);
    return status;
}

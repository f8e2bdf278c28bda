/* train_log.c - appends a line of JSON after each training step and each validation.
 *
 * A resumed run goes on from a checkpoint that may be older than the log's last lines. It truncates the log to the
 * steps of the checkpoint, so that the finished log is that of an undisturbed run. */
#include "train/loop.h"
#include "train/records.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Finds the length of the log's beginning that covers the first n_steps steps, and their processor time. It ends, at
 * the latest, before a line that a kill cut short. */
static int measure(const char *path, int64_t n_steps, off_t *out, double *cpu_seconds, fr_error *err) {
    LineReader *r;
    const char *line;
    size_t n;
    *out = 0;
    *cpu_seconds = 0;
    if (n_steps == 0 || access(path, F_OK) != 0) return FR_OK;
    int got = line_reader_open(&r, path, false, LINE_MAX_BYTES, err);
    if (got) return got;
    while ((got = line_reader_next(r, &line, &n, err)) == 1) {
        json_t *object = json_loadb(line, n, 0, NULL);
        json_t *step = json_object_get(object, "step");
        bool is_kept = json_is_integer(step) && json_integer_value(step) <= n_steps;
        if (is_kept) *cpu_seconds = json_number_value(json_object_get(object, "cpu_seconds"));
        json_decref(object);
        if (!is_kept) break;
        *out += (off_t)n + 1;
    }
    line_reader_close(r);
    return got < 0 ? got : FR_OK;
}

int train_log_open(TrainLog *log, const char *path, int64_t n_steps, fr_error *err) {
    *log = (TrainLog){.path = path};
    off_t n_bytes;
    if (!path) return FR_OK;
    int status = measure(path, n_steps, &n_bytes, &log->cpu_seconds, err);
    if (status) return status;
    log->file = fopen(path, "ab");
    if (!log->file || ftruncate(fileno(log->file), n_bytes) != 0) {
        status = error_set(err, FR_ERR_IO, "%s: the log cannot be written: %s", path, strerror(errno));
        train_log_close(log);
    }
    return status;
}

void train_log_close(TrainLog *log) {
    if (log->file) fclose(log->file);
    log->file = NULL;
}

static json_t *accuracy(const TrainSums *s) {
    json_t *list = json_array();
    for (int i = 0; i < s->n_heads; i++)
        json_array_append_new(list, json_real(s->of[i] ? (double)s->right[i] / (double)s->of[i] : 0));
    return list;
}

/* JSON has no infinity: a validation that diverges is recorded as null. The loop checks the loss of training steps. */
static json_t *real_or_null(double x) { return isfinite(x) ? json_real(x) : json_null(); }

/* Takes ownership of the object. */
static int put(TrainLog *log, json_t *object, fr_error *err) {
    bool fine = object && json_dumpf(object, log->file, JSON_REAL_PRECISION(8)) == 0 && fputc('\n', log->file) != EOF &&
                fflush(log->file) == 0;
    json_decref(object);
    return fine ? FR_OK : error_set(err, FR_ERR_IO, "%s: the log cannot be written: %s", log->path, strerror(errno));
}

int train_log_step(TrainLog *log, int64_t step, const TrainSums *sums, const TrainLogStep *figures, fr_error *err) {
    log->cpu_seconds += figures->cpu_seconds;
    if (!log->file) return FR_OK;
    return put(log,
               json_pack("{s:I, s:f, s:o, s:f, s:f, s:I, s:o, s:f}", "step", (json_int_t)step, "loss",
                         train_sums_loss(sums), "accuracy", accuracy(sums), "lr", figures->rate, "gradient_norm",
                         figures->gradient_norm, "tokens", (json_int_t)sums->n, "tokens_per_s",
                         real_or_null(figures->tokens_per_s), "cpu_seconds", log->cpu_seconds),
               err);
}

int train_log_valid(TrainLog *log, int64_t step, const TrainSums *sums, fr_error *err) {
    if (!log->file) return FR_OK;
    return put(log,
               json_pack("{s:I, s:o, s:o, s:f}", "step", (json_int_t)step, "valid_loss",
                         real_or_null(train_sums_loss(sums)), "valid_accuracy", accuracy(sums), "cpu_seconds",
                         log->cpu_seconds),
               err);
}

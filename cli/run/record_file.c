/* record_file.c - appends generations to a file of JSON lines.
 *
 * Token ids are kept, not text: they are what the model read and generated, so training needs no chat format and loses
 * nothing in a text that is not UTF-8, or in which a special token and its spelling look the same.
 *
 * Several processes share a file without a lock. A line goes out in one write to a file opened with O_APPEND, which the
 * system does not mix with other writes. A kill or a full disk can cut a line short; as nobody can tell whether such a
 * piece is still being written, it stays, the next writer ends it with a newline, and the reader passes over it. */
#include "cli/run/record_file.h"

#include "cli/json_values.h"
#include "base/error.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    MAX_FILE_BYTES = 256 << 20, /* some 45 million tokens: more than a training of a night reads */
    MAX_LINE_BYTES = 16 << 20,  /* longer lines are refused by all readers of JSON lines */
};

static int cannot_write(const RecordFile *f, const char *why, fr_error *err) {
    return error_set(err, FR_ERR_IO, "%s: cannot be written: %s", f->path, why);
}

/* ---- the file ------------------------------------------------------------------------------------- */

/* Every record begins with a brace. */
static int check_content(const RecordFile *f, fr_error *err) {
    struct stat st;
    char first = '{';
    if (fstat(f->fd, &st) != 0 || pread(f->fd, &first, 1, 0) < 0) return cannot_write(f, strerror(errno), err);
    if (!S_ISREG(st.st_mode)) return error_set(err, FR_ERR_IO, "%s: is not a regular file", f->path);
    if (first == '{' || first == '\n') return FR_OK;
    return error_set(err, FR_ERR_FORMAT, "%s: is not a file of records: choose another path for --record", f->path);
}

int record_file_open(RecordFile *f, const char *path, fr_error *err) {
    *f = (RecordFile){path, open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0600)};
    int status = f->fd < 0 ? cannot_write(f, strerror(errno), err) : check_content(f, err);
    if (status) record_file_close(f);
    return status;
}

void record_file_close(RecordFile *f) {
    if (f->fd >= 0) close(f->fd);
    f->fd = -1;
}

/* Whether there is room for the line; *last: the last byte of the file. */
static int measure(const RecordFile *f, size_t n_line, char *last, fr_error *err) {
    struct stat st;
    if (fstat(f->fd, &st) != 0 || (st.st_size > 0 && pread(f->fd, last, 1, st.st_size - 1) < 0))
        return cannot_write(f, strerror(errno), err);
    if (st.st_size + (off_t)n_line <= MAX_FILE_BYTES) return FR_OK;
    return error_set(err, FR_ERR_IO, "%s: has reached %d MiB, and nothing more is recorded: move or delete it", f->path,
                     MAX_FILE_BYTES >> 20);
}

/* text: [n], after one byte that is free. */
static int append_line(const RecordFile *f, char *text, size_t n, fr_error *err) {
    char last = '\n';
    int status = measure(f, n, &last, err);
    if (status) return status;
    bool ends_piece = last != '\n';
    text[-1] = '\n';
    const char *begin = text - ends_piece;
    n += ends_piece;
    ssize_t n_written;
    do n_written = write(f->fd, begin, n);
    while (n_written < 0 && errno == EINTR);
    if (n_written == (ssize_t)n) return FR_OK;
    return cannot_write(f, n_written < 0 ? strerror(errno) : "the disk is full", err);
}

/* ---- a record ------------------------------------------------------------------------------------- */

static int fingerprint_of(const fr_model *model, char out[17], fr_error *err) {
    uint64_t fingerprint;
    int status = fr_model_fingerprint(model, &fingerprint, err);
    snprintf(out, 17, "%016llx", (unsigned long long)fingerprint);
    return status;
}

static void append_ids(json_t *list, const int32_t *ids, int64_t n) {
    for (int64_t i = 0; i < n; i++) json_array_append_new(list, json_integer(ids[i]));
}

/* NULL: no memory. */
static json_t *make_record(const fr_model *model, const fr_request *request, const fr_request_options *o,
                           const char *fingerprint) {
    int64_t n;
    fr_stats stats = {.struct_size = sizeof stats};
    fr_model_info info = {.struct_size = sizeof info};
    char date[32] = "";
    time_t now = time(NULL);
    struct tm utc;
    const int32_t *tokens = fr_request_tokens(request, &n);
    fr_request_get_stats(request, &stats);
    fr_model_get_info(model, &info);
    json_t *ids = json_array();
    append_ids(ids, o->prompt, o->n_prompt);
    append_ids(ids, tokens, n);
    if (gmtime_r(&now, &utc)) strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &utc);
    json_t *record = json_pack("{s:o, s:I, s:s, s:s, s:o, s:o, s:I, s:s}", "tokens", ids, "prompt_tokens",
                               (json_int_t)o->n_prompt, "finish", fr_finish_name(fr_request_finish_reason(request)),
                               "target", fingerprint, "model", json_string_or_null(info.name), "temperature",
                               json_real_or_null((double)o->sampling.temperature), "seed", (json_int_t)o->sampling.seed,
                               "date", date);
    if (record && stats.is_lossy && json_object_set_new(record, "lossy", json_true()) != 0) {
        json_decref(record);
        return NULL;
    }
    return record;
}

int record_file_append(const RecordFile *f, const fr_model *model, const fr_request *request,
                       const fr_request_options *options, fr_error *err) {
    fr_finish finish = fr_request_finish_reason(request);
    if (finish == FR_FINISH_CANCELLED || finish == FR_FINISH_ERROR) return FR_OK;
    char fingerprint[17];
    int status = fingerprint_of(model, fingerprint, err);
    if (status) return status;
    json_t *record = make_record(model, request, options, fingerprint);
    const size_t flags = JSON_COMPACT | JSON_REAL_PRECISION(6);
    size_t n = record ? json_dumpb(record, NULL, 0, flags) : 0;
    char *text = n > 0 ? malloc(n + 2) : NULL; /* a newline may come before it, and one follows */
    if (!text || json_dumpb(record, text + 1, n, flags) != n) status = error_memory(err, "a record", n);
    else if (n >= MAX_LINE_BYTES)
        status = error_set(err, FR_ERR_UNSUPPORTED, "%s: the generation is too long to be recorded", f->path);
    else {
        text[n + 1] = '\n';
        status = append_line(f, text + 1, n + 1, err);
    }
    free(text);
    json_decref(record);
    return status;
}

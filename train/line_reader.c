/* line_reader.c - reads files of training data and of corpora.
 *
 * A line reader hands out a text file line by line, decompressing zstd as it goes, so that memory holds one line and
 * one chunk whatever the size of the file. */
#include "base/files.h"
#include "base/mem.h"
#include "train/records.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>
#include <zstd_errors.h>

enum {
    CHUNK = 1 << 16,
    WINDOW_LOG = 27, /* 128 MiB, the most that zstd -22 uses */
};

struct LineReader {
    char *path;
    FILE *file;
    ZSTD_DStream *zstd; /* NULL: not compressed */
    ZSTD_inBuffer in;   /* the bytes of chunk */
    size_t frame_left;  /* not 0: the current zstd frame is incomplete */
    bool whole;         /* the file is one line */
    bool is_complete;   /* the line handed out last ends with a newline */
    bool at_end;        /* all bytes of the file are in `text` */
    Buf text;           /* bytes from `begin` on have not been handed out; those before `seen` hold no newline */
    size_t begin, seen;
    int64_t n_read, n_lines;
    TextLimit *limit; /* NULL: none */
    int64_t n_text;   /* bytes of text of this file that count for the limit */
    char chunk[CHUNK], plain[CHUNK];
};

static bool ends_with(const char *s, size_t n, const char *end) {
    size_t n_end = strlen(end);
    return n >= n_end && memcmp(s + n - n_end, end, n_end) == 0;
}

/* Returns whether the name is *.jsonl or *.jsonl.zst: one JSON object per line. */
static bool line_reader_is_jsonl(const char *path) {
    size_t n = strlen(path);
    return ends_with(path, ends_with(path, n, ".zst") ? n - 4 : n, ".jsonl");
}

int line_reader_open(LineReader **out, const char *path, bool whole, size_t max_bytes, fr_error *err) {
    *out = NULL;
    LineReader *r = calloc(1, sizeof *r);
    if (!r) return error_memory(err, "a reader", sizeof *r);
    bool is_zstd = ends_with(path, strlen(path), ".zst");
    r->whole = whole;
    r->text.max_bytes = max_bytes;
    r->path = strdup(path);
    r->file = input_text_open(path, err);
    r->zstd = is_zstd ? ZSTD_createDStream() : NULL;
    int status = FR_OK;
    if (!r->file) status = FR_ERR_IO;
    else if (!r->path || (is_zstd && !r->zstd) || !buf_append(&r->text, "", 0) ||
             (is_zstd && ZSTD_isError(ZSTD_DCtx_setParameter(r->zstd, ZSTD_d_windowLogMax, WINDOW_LOG))))
        status = error_memory(err, "a reader", CHUNK);
    if (status) line_reader_close(r);
    else *out = r;
    return status;
}

void line_reader_close(LineReader *r) {
    if (!r) return;
    ZSTD_freeDStream(r->zstd);
    if (r->file) fclose(r->file);
    buf_free(&r->text);
    free(r->path);
    free(r);
}

int line_reader_refuse(const LineReader *r, const fr_error *why, fr_error *err) {
    return error_set(err, why->code, "%s: line %lld %s", r->path, (long long)r->n_lines, why->message);
}

int64_t line_reader_number(const LineReader *r) { return r->n_lines; }
int64_t line_reader_n_read(const LineReader *r) { return r->n_read; }
bool line_reader_is_complete(const LineReader *r) { return r->is_complete; }

void line_reader_limit(LineReader *r, TextLimit *limit) { r->limit = limit; }

/* A few kilobytes of zstd can hold gigabytes, so text counts after decompression, and before it is kept. */
static int count(LineReader *r, size_t n, fr_error *err) {
    TextLimit *l = r->limit;
    if (!l) return FR_OK;
    l->n_bytes += (int64_t)n;
    r->n_text += (int64_t)n;
    int64_t max = l->max_bytes ? l->max_bytes : TEXT_MAX_BYTES, of_size = TEXT_MAX_RATIO * r->n_read;
    if (l->n_bytes > max)
        return error_set(err, FR_ERR_MEMORY,
                         "%s: with this file the text exceeds the limit of %lld bytes; pass a larger --max-text=SIZE, "
                         "or less text",
                         r->path, (long long)max);
    if (!l->max_bytes && r->zstd && r->n_text > TEXT_MIN_BYTES && r->n_text > of_size)
        return error_set(err, FR_ERR_MEMORY,
                         "%s: decompresses to more than %d times its size; if that is meant, say how much text there "
                         "may be with --max-text=SIZE",
                         r->path, TEXT_MAX_RATIO);
    return FR_OK;
}

static int keep(LineReader *r, const char *bytes, size_t n, fr_error *err) {
    int status = count(r, n, err);
    if (status) return status;
    if (buf_append(&r->text, bytes, n)) return FR_OK;
    if (r->whole)
        return error_set(err, FR_ERR_MEMORY, "%s: has more than %zu bytes, or memory ran out", r->path,
                         r->text.max_bytes);
    return error_set(
        err, FR_ERR_MEMORY,
        "%s: line %lld has more than %zu bytes, the limit of one record, or memory ran out; split the record", r->path,
        (long long)r->n_lines + 1, r->text.max_bytes);
}

/* Reads the next bytes of the file into chunk; 0 bytes: the end. */
static int fill_chunk(LineReader *r, size_t *n, fr_error *err) {
    *n = fread(r->chunk, 1, sizeof r->chunk, r->file);
    r->n_read += (int64_t)*n;
    if (ferror(r->file)) return error_set(err, FR_ERR_IO, "%s: cannot be read: %s", r->path, strerror(errno));
    if (*n == 0 && r->frame_left)
        return error_set(err, FR_ERR_FORMAT, "%s: is cut off in the middle of a zstd frame", r->path);
    return FR_OK;
}

/* Appends some more bytes to `text`, or sets at_end. */
static int read_more(LineReader *r, fr_error *err) {
    size_t n;
    if (!r->zstd) {
        int status = fill_chunk(r, &n, err);
        r->at_end = n == 0;
        return status ? status : keep(r, r->chunk, n, err);
    }
    ZSTD_outBuffer out = {r->plain, sizeof r->plain, 0};
    if (r->in.pos < r->in.size || r->frame_left) { /* a frame may still yield text after all its bytes were read */
        size_t before = r->in.pos;
        r->frame_left = ZSTD_decompressStream(r->zstd, &out, &r->in);
        if (ZSTD_getErrorCode(r->frame_left) == ZSTD_error_frameParameter_windowTooLarge)
            return error_set(err, FR_ERR_UNSUPPORTED,
                             "%s: needs a window of more than %d MiB to decompress; compress it again with "
                             "--long=%d or less",
                             r->path, 1 << (WINDOW_LOG - 20), WINDOW_LOG);
        if (ZSTD_isError(r->frame_left))
            return error_set(err, FR_ERR_FORMAT, "%s: is damaged zstd data: %s", r->path,
                             ZSTD_getErrorName(r->frame_left));
        if (r->in.pos > before || out.pos) return keep(r, r->plain, out.pos, err);
    }
    int status = fill_chunk(r, &n, err);
    r->at_end = n == 0;
    r->in = (ZSTD_inBuffer){r->chunk, n, 0};
    return status;
}

/* Moves the unread bytes to the front, so that the buffer holds no more than one line and a chunk. */
static void drop_old(LineReader *r) {
    memmove(r->text.data, r->text.data + r->begin, r->text.n - r->begin + 1);
    r->text.n -= r->begin;
    r->seen -= r->begin;
    r->begin = 0;
}

int line_reader_next(LineReader *r, const char **line, size_t *n, fr_error *err) {
    for (;;) {
        char *begin = r->text.data + r->begin;
        char *newline = r->whole ? NULL : memchr(r->text.data + r->seen, '\n', r->text.n - r->seen);
        if (!newline && !r->at_end) {
            r->seen = r->text.n;
            drop_old(r);
            int status = read_more(r, err);
            if (status) return status;
            continue;
        }
        bool is_last = !newline;
        if (is_last && r->begin == r->text.n && !(r->whole && r->n_lines == 0)) return 0;
        *line = begin;
        *n = is_last ? r->text.n - r->begin : (size_t)(newline - begin);
        if (newline) *newline = '\0';
        r->begin = r->seen = is_last ? r->text.n : (size_t)(newline - r->text.data) + 1;
        r->is_complete = !is_last;
        r->n_lines++;
        return 1;
    }
}

/* Streams the documents of a corpus file to a sink, so that a corpus need not fit into memory. */

static int piece(const CorpusSink *sink, const char *text, size_t n, fr_error *err) {
    return sink->piece(sink->ctx, text, n, err);
}

static int end(const CorpusSink *sink, const LineReader *r, fr_error *err) {
    return sink->end(sink->ctx, line_reader_n_read(r), err);
}

static int emit_record(const CorpusSink *sink, const LineReader *r, const Record *record, fr_error *err) {
    int status = FR_OK;
    for (int i = 0; i < record->n_messages && !status; i++) {
        status = piece(sink, record->messages[i].content, strlen(record->messages[i].content), err);
        if (!status) status = end(sink, r, err);
    }
    if (status || record->kind == RECORD_CHAT) return status;
    if (record->kind == RECORD_TEXT) status = piece(sink, record->text, strlen(record->text), err);
    else status = piece(sink, record->prompt, strlen(record->prompt), err);
    if (!status && record->kind == RECORD_PAIR) status = piece(sink, record->response, strlen(record->response), err);
    return status ? status : end(sink, r, err);
}

static int read_records(const CorpusSink *sink, LineReader *r, fr_error *err) {
    Record record;
    int got;
    while ((got = record_next(r, &record, err)) == 1) {
        int status;
        fr_error why;
        if (record.kind == RECORD_PAIR && !record.response) {
            error_set(&why, FR_ERR_FORMAT, "must have a \"response\" to its \"prompt\"");
            status = line_reader_refuse(r, &why, err);
        } else if (record.kind == RECORD_TOKENS) {
            error_set(&why, FR_ERR_FORMAT, "has \"tokens\" and no text");
            status = line_reader_refuse(r, &why, err);
        } else {
            status = emit_record(sink, r, &record, err);
        }
        record_free(&record);
        if (status) return status;
    }
    return got;
}

static int read_whole(const CorpusSink *sink, LineReader *r, fr_error *err) {
    const char *text = NULL;
    size_t n = 0;
    int got = line_reader_next(r, &text, &n, err);
    if (got != 1) return got;
    int status = piece(sink, text, n, err);
    return status ? status : end(sink, r, err);
}

int corpus_read(const char *path, TextLimit *limit, const CorpusSink *sink, fr_error *err) {
    LineReader *r;
    bool is_jsonl = line_reader_is_jsonl(path);
    int status = line_reader_open(&r, path, !is_jsonl, is_jsonl ? LINE_MAX_BYTES : WHOLE_MAX_BYTES, err);
    if (!status) line_reader_limit(r, limit);
    if (!status) status = is_jsonl ? read_records(sink, r, err) : read_whole(sink, r, err);
    line_reader_close(r);
    return status;
}

int corpus_parse_size(const char *text, int64_t *out, fr_error *err) {
    static const char units[] = "KMG";
    char *end;
    double v = strtod(text, &end);
    const char *unit = end > text && *end ? strchr(units, *end) : NULL;
    if (unit) {
        v *= (double)(1LL << 10 * (unit - units + 1));
        end++;
    }
    if (end == text || *end || !(v >= 1 && v <= 0x1p60))
        return error_set(err, FR_ERR_ARGUMENT, "must be a number of bytes, such as 500M or 4G");
    *out = (int64_t)v;
    return FR_OK;
}

/* corpus_reader.c - streams the documents of a corpus file to a sink, so that a corpus need not fit into memory. */
#include "cli/train/corpus_reader.h"

#include "train/data/record.h"

#include <stdlib.h>
#include <string.h>

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
    const char *text;
    size_t n;
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

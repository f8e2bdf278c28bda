/* line_reader.h - the lines of a text file, compressed with zstd or not, read as a stream. */
#ifndef DATA_LINE_READER_H
#define DATA_LINE_READER_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct LineReader LineReader;

enum {
    LINE_MAX_BYTES = 16 << 20,    /* of JSON: parsed, it takes up to 100 times its length (lines of "{},{},{},...") */
    WHOLE_MAX_BYTES = 2047 << 20, /* of a file that is one document */
};

/* Lines longer than max_bytes are refused. whole: the whole file is handed out as one line. A file whose path ends with
 * ".zst" is decompressed; it may ask zstd for a window of at most 128 MiB. */
int line_reader_open(LineReader **out, const char *path, bool whole, size_t max_bytes, fr_error *err);
void line_reader_close(LineReader *r); /* NULL is fine */

/* How much text may be read in total, by all readers that share the limit; compressed text counts decompressed. */
typedef struct TextLimit {
    int64_t max_bytes; /* 0: TEXT_MAX_BYTES, and of a compressed file TEXT_MAX_RATIO times its size or TEXT_MIN_BYTES */
    int64_t n_bytes;   /* read so far */
} TextLimit;
enum { TEXT_MAX_BYTES = 1 << 30, TEXT_MAX_RATIO = 100, TEXT_MIN_BYTES = 1 << 20 };

/* From now on the reader refuses to pass the limit; its error names the option --max-text. */
void line_reader_limit(LineReader *r, TextLimit *limit);

/* 1: *line is the next line without its newline, followed by '\0' and valid until the next call; 0: end of file;
 * negative: an error, which names the file. */
int line_reader_next(LineReader *r, const char **line, size_t *n, fr_error *err);

/* Puts "PATH: line N " before the sentence in `why`, as err; returns why->code. */
int line_reader_refuse(const LineReader *r, const fr_error *why, fr_error *err);

int64_t line_reader_number(const LineReader *r);   /* of the line handed out last, from 1 */
bool line_reader_is_complete(const LineReader *r); /* whether the line handed out last ends with a newline */
int64_t line_reader_n_read(const LineReader *r);   /* bytes of the file read so far, before decompression */

/* Whether the name is *.jsonl or *.jsonl.zst: one JSON object per line. */
bool line_reader_is_jsonl(const char *path);

#endif

/* line_reader.h - the lines of a text file, compressed with zstd or not, read as a stream. */
#ifndef DATA_LINE_READER_H
#define DATA_LINE_READER_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct LineReader LineReader;

enum { LINE_MAX_BYTES = 1 << 30 };

/* Lines longer than max_bytes are refused. whole: the whole file is handed out as one line. A file whose path ends with
 * ".zst" is decompressed. */
int line_reader_open(LineReader **out, const char *path, bool whole, size_t max_bytes, fr_error *err);
void line_reader_close(LineReader *r); /* NULL is fine */

/* 1: *line is the next line without its newline, followed by '\0' and valid until the next call; 0: end of file;
 * negative: an error, which names the file. */
int line_reader_next(LineReader *r, const char **line, size_t *n, fr_error *err);

/* Puts "PATH: line N " before the sentence in `why`, as err; returns why->code. */
int line_reader_refuse(const LineReader *r, const fr_error *why, fr_error *err);

int64_t line_reader_number(const LineReader *r); /* of the line handed out last, from 1 */
int64_t line_reader_n_read(const LineReader *r); /* bytes of the file read so far, before decompression */

/* Whether the name is *.jsonl or *.jsonl.zst: one JSON object per line. */
bool line_reader_is_jsonl(const char *path);

#endif

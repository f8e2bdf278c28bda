/* corpus_reader.h - reads the documents of a corpus file as a stream: JSON lines or plain text, compressed with zstd
 * or not. */
#ifndef TRAIN_CORPUS_READER_H
#define TRAIN_CORPUS_READER_H

#include "train/data/line_reader.h"

/* Receives the documents: for each one or more pieces, which are tokenized separately, then end. A status other than
 * FR_OK ends the reading. n_read is the number of bytes of the file read so far, compressed ones as such. */
typedef struct CorpusSink {
    int (*piece)(void *ctx, const char *text, size_t n, fr_error *err);
    int (*end)(void *ctx, int64_t n_read, fr_error *err);
    void *ctx;
} CorpusSink;

/* The name decides the format: *.jsonl and *.jsonl.zst have one JSON object per line, with a string "text" (a
 * document), with "prompt" and "response" (one document in two pieces), or with "messages", each with a "content"
 * (each a document). Any other file, or the content of a *.zst, is one document. A document can have no pieces. */
int corpus_read(const char *path, TextLimit *limit, const CorpusSink *sink, fr_error *err);

/* The value of --max-text: a number of bytes, also as 64K, 512M or 4G (powers of 1024). */
int corpus_parse_size(const char *text, int64_t *out, fr_error *err);
#define CORPUS_MAX_TEXT_DEFAULT "1G, and at most 100 times the size of a compressed file"
#define CORPUS_MAX_TEXT_HELP \
    "read at most SIZE bytes of text in total, decompressed: 500M, 4G; it takes up to 30 times as much memory"

#endif

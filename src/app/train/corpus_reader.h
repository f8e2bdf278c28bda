/* corpus_reader.h - reads the documents of a corpus file as a stream: JSON lines or plain text, compressed with zstd
 * or not. */
#ifndef TRAIN_CORPUS_READER_H
#define TRAIN_CORPUS_READER_H

#include "base/error.h"

#include <stddef.h>

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
int corpus_read(const char *path, const CorpusSink *sink, fr_error *err);

#endif

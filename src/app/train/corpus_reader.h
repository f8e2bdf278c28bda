/* corpus_reader.h - documents out of corpus files: JSON lines or plain text, zstd or not, read as a stream. */
#ifndef TRAIN_CORPUS_READER_H
#define TRAIN_CORPUS_READER_H

#include "base/error.h"

#include <stddef.h>

/* A document comes in one or more pieces, which are tokenized apart; then end. Not FR_OK ends the reading. `where`
 * has the bytes of the file that have been read, compressed ones as such. */
typedef struct CorpusSink {
    int (*piece)(void *ctx, const char *text, size_t n, fr_error *err);
    int (*end)(void *ctx, int64_t n_read, fr_error *err);
    void *ctx;
} CorpusSink;

/* By name: *.jsonl and *.jsonl.zst hold a JSON object a line, with a string "text" (a document), with "prompt" and
 * "response" (one document in two pieces), or with "messages", each with a "content" (each a document). Any
 * other file, or what is compressed in a *.zst, is one document. Sinks end a document without pieces, too. */
int corpus_read(const char *path, const CorpusSink *sink, fr_error *err);

#endif

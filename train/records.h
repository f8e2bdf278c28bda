/* records.h - training data as it is read: lines of a file, records, and the documents of a corpus. */
#ifndef TRAIN_RECORDS_H
#define TRAIN_RECORDS_H

#include "base/error.h"
#include "text/chat.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct LineReader LineReader;

enum {
    LINE_MAX_BYTES = 16 << 20,    /* a line of JSON: parsed, it takes up to 100 times its length */
    WHOLE_MAX_BYTES = 2047 << 20, /* a file that is one document */
};

/* Lines longer than max_bytes are refused. whole: the whole file is read as one line. A file whose path ends with
 * ".zst" is decompressed; it may ask zstd for a window of at most 128 MiB. */
int line_reader_open(LineReader **out, const char *path, bool whole, size_t max_bytes, fr_error *err);
void line_reader_close(LineReader *r); /* NULL is fine */

/* How much text may be read in total, by all readers that share the limit; compressed text counts decompressed. */
typedef struct TextLimit {
    int64_t max_bytes; /* 0: TEXT_MAX_BYTES, and for a compressed file the larger of TEXT_MAX_RATIO times its size and
                        * TEXT_MIN_BYTES */
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

int64_t line_reader_number(const LineReader *r);   /* the number of the line handed out last, from 1 */
bool line_reader_is_complete(const LineReader *r); /* whether the line handed out last ends with a newline */
int64_t line_reader_n_read(const LineReader *r);   /* bytes of the file read so far, before decompression */

/* The four forms of a line of training data: a text, a prompt with its response, a conversation, the
 * tokens of a generation. */

typedef enum RecordKind { RECORD_TEXT, RECORD_PAIR, RECORD_CHAT, RECORD_TOKENS } RecordKind;

/* Strings belong to `object`. */
typedef struct Record {
    json_t *object; /* the whole line */
    RecordKind kind;
    const char *text;      /* RECORD_TEXT */
    const char *prompt;    /* RECORD_PAIR */
    const char *response;  /* RECORD_PAIR; NULL: there is none yet */
    ChatMessage *messages; /* [n_messages] RECORD_CHAT, n_messages >= 1; a missing role is NULL */
    int n_messages;
    const json_t *tokens;       /* RECORD_TOKENS: a list of n_tokens values of any type, which document_make checks */
    int64_t n_tokens, n_prompt; /* 0 <= n_prompt <= n_tokens */
} Record;

/* An object with a list "messages" is a conversation; else, with a string "text", a text; else, with a string "prompt"
 * (and "response"), a pair; else, with a list "tokens", of which the first "prompt_tokens" are a prompt, a generation.
 * On failure err holds a sentence without its subject, for line_reader_refuse. */
int record_parse(Record *out, const char *line, size_t n, fr_error *err);
void record_free(Record *r); /* an empty one is fine */

/* Returns whether the "finish" of a pair, or of message i, says that the answer was cut off: then its end stays out of
 * the loss. */
bool record_is_cut(const Record *r, int i);

/* Returns whether an answer is marked "lossy": true, as distill-data marks answers that do not follow their model's own
 * distribution. */
bool record_is_lossy(const Record *r);

/* Returns whether the record names this target, by its fingerprint, as `forerun run --record` writes it. */
bool record_is_of_target(const Record *r, uint64_t fingerprint);

/* Parses the next line that is not blank. 1: *out is the record; 0: end of file; negative: an error that names file and
 * line. */
int record_next(LineReader *reader, Record *out, fr_error *err);
/* The same for questions: a list "turns" of strings, as in Spec-Bench, becomes a conversation of the user's turns with
 * empty answers between them. */
int record_next_question(LineReader *reader, Record *out, fr_error *err);

/* Reads the documents of a corpus file as a stream: JSON lines or plain text, compressed with zstd
 * or not. */

/* Receives the documents: one or more pieces for each, which are tokenized separately, then end. A status other than
 * FR_OK ends the reading. n_read is the number of bytes of the file read so far, before decompression. */
typedef struct CorpusSink {
    int (*piece)(void *ctx, const char *text, size_t n, fr_error *err);
    int (*end)(void *ctx, int64_t n_read, fr_error *err);
    void *ctx;
} CorpusSink;

/* The name decides the format: *.jsonl and *.jsonl.zst have one JSON object per line, with a string "text" (a
 * document), with "prompt" and "response" (one document in two pieces), or with "messages", each with a "content"
 * (each a document). Any other file, or the content of a *.zst, is one document. A document can have no pieces. */
int corpus_read(const char *path, TextLimit *limit, const CorpusSink *sink, fr_error *err);

/* Reads the value of --max-text: a number of bytes, also as 64K, 512M or 4G (powers of 1024). */
int corpus_parse_size(const char *text, int64_t *out, fr_error *err);
#define CORPUS_MAX_TEXT_DEFAULT "1G, and at most 100 times the size of a compressed file"
#define CORPUS_MAX_TEXT_HELP \
    "read at most SIZE bytes of text in total, decompressed: 500M, 4G; it takes up to 30 times as much memory"

#endif

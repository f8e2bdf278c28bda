/* distill_records.h - the records that `forerun distill-data` answers, and continuing an earlier run. */
#ifndef TRAIN_DISTILL_RECORDS_H
#define TRAIN_DISTILL_RECORDS_H

#include "train/data/record.h"

#include <stdio.h>
#include <sys/types.h>

/* The next record of the input: 1 and the record, 0 at the end. With n_words > 0 the model continues texts: a text
 * becomes a pair whose prompt is its first n_words words, or, in a conversation written USER: ...\nASSISTANT: ...,
 * everything up to the first answer. */
int distill_next(LineReader *in, int n_words, Record *out, fr_error *err);

/* Reads the whole file and counts its records; refuses lines without a question, by number. */
int distill_count(const char *path, int n_words, int64_t *n_records, fr_error *err);

/* A file of answers that grows by whole lines. */
typedef struct AnswerFile {
    const char *path; /* borrowed */
    int fd;           /* -1: closed */
    off_t n_bytes;    /* of whole lines */
} AnswerFile;

/* Opens the file of answers for appending. Its content is compared with the input, line by line: *n_passed is the
 * number of records read from `in`, up to the last answered one, and *n_answered the number of answers. An incomplete
 * last line is removed; answers to other questions are refused. */
int distill_continue(const char *path, LineReader *in, int n_words, int64_t *n_passed, int64_t *n_answered,
                     AnswerFile *out, fr_error *err);
/* Appends the record as a line. After a failure the file ends with the line before. */
int distill_append(AnswerFile *f, const Record *r, fr_error *err);
/* status: the result so far. Syncs and closes the file. */
int distill_close(AnswerFile *f, int status, fr_error *err);

/* The next message of a conversation that the model generates, from `from` on: one of the assistant, or the one after the last;
 * -1: none is left. */
int distill_next_answer(const Record *r, int from);
/* Stores the answer as message i of a conversation or as the response of a pair (i is ignored), with "finish", which
 * says why it ended, and with "lossy": true if it does not follow the model's distribution. */
int distill_set_answer(Record *r, int i, const char *text, size_t n, const char *finish, bool is_lossy, fr_error *err);

#endif

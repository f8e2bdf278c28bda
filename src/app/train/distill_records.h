/* distill_records.h - the records that `forerun distill-data` answers, and where an earlier run of it stopped. */
#ifndef TRAIN_DISTILL_RECORDS_H
#define TRAIN_DISTILL_RECORDS_H

#include "train/data/record.h"

#include <stdio.h>

/* The next record of the input: 1 and the record, 0 at the end. With n_words > 0 a text is begun and the model asked to go
 * on: it becomes a pair whose prompt is its first n_words words, or, in a conversation written USER: ...\nASSISTANT: ...,
 * all up to the first answer. */
int distill_next(LineReader *in, int n_words, Record *out, fr_error *err);

/* Reads all of the file and refuses, by number, lines that ask nothing. */
int distill_count(const char *path, int n_words, int64_t *n_records, fr_error *err);

/* Opens the file of answers for appending. What it holds already is compared with the input, line by line: *n_passed is
 * the number of records that `in` was brought behind, the last answered one being the last of them, and *n_answered the
 * number of answers. A last line that a kill cut short is cut off; answers to something else are refused. */
int distill_continue(const char *path, LineReader *in, int n_words, int64_t *n_passed, int64_t *n_answered, FILE **out,
                     fr_error *err);

/* The next message of a conversation for the model to say, from `from` on: one of the assistant, or the one behind the
 * last; -1: there is none left. */
int distill_next_answer(const Record *r, int from);
/* Puts the answer where it belongs, message i of a conversation or the response of a pair (i is not read), with
 * "finish" beside it: why it ended; and "lossy": true where it does not follow the model's distribution. */
int distill_set_answer(Record *r, int i, const char *text, size_t n, const char *finish, bool is_lossy, fr_error *err);

#endif

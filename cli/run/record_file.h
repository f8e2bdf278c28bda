/* record_file.h - a file that keeps what was generated, as data to train a drafter on (`forerun train --from-traffic`).
 *
 * A line for each generation: {"tokens": [...], "prompt_tokens": 12, "finish": "eos", "target": "16 hexadecimal
 * digits", "model": ..., "temperature": 0.7, "seed": 3, "date": "2026-11-22T09:40:01Z"}, and "lossy": true where the
 * tokens do not follow the model's distribution. The first prompt_tokens of the tokens are the prompt. */
#ifndef RUN_RECORD_FILE_H
#define RUN_RECORD_FILE_H

#include "forerun.h"

typedef struct RecordFile {
    const char *path; /* borrowed */
    int fd;           /* -1: closed */
} RecordFile;

/* Opens the file for appending; a new one can be read by its owner alone. Refuses a file of something else. After a
 * failure f is closed. */
int record_file_open(RecordFile *f, const char *path, fr_error *err);
void record_file_close(RecordFile *f); /* a closed one is fine */

/* Appends a request that the model has finished; one that was cancelled is left out. `options`: those that the request
 * was opened with. Several processes may append to one file. */
int record_file_append(const RecordFile *f, const fr_model *model, const fr_request *request,
                       const fr_request_options *options, fr_error *err);

#endif

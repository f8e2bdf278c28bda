/* training.h - a run of `forerun train METHOD`: its state, and what surrounds the loop; and the records of `forerun
 * distill-data`. */
#ifndef CLI_TRAIN_TRAINING_H
#define CLI_TRAIN_TRAINING_H

#include "train/drafter_trainer.h"
#include "train/loop.h"
#include "train/methods.h"
#include "train/records.h"

#include <sys/types.h>

enum { SIGNATURE_BYTES = 1024, PATH_BYTES = 4096 };

typedef struct Training {
    const TrainMethod *method;
    TrainArgs args;
    char command[PATH_BYTES], run_signature[SIGNATURE_BYTES], checkpoint[PATH_BYTES], log[PATH_BYTES];
    Gguf *source;
    Traffic traffic;              /* with --from-traffic */
    DrafterTraffic traffic_state; /* is written into the drafter's file */
    Dataset data;
    Trainer *trainer;
    Ranks *ranks; /* NULL: one process */
    LoopResult result;
} Training;

/* ---- --from-traffic (train_traffic.c) ----------------------------------------------------------------------- */

/* Finds out which lines of a->traffic a training of that method for `target` reads. With a->init, these are the lines
 * added since that file was trained. Otherwise, they are all lines, and the new ones are those added since a->output
 * was written. *state is to be stored in the drafter's file. */
int traffic_open(Traffic *out, DrafterTraffic *state, const TrainArgs *a, const char *method, const Gguf *target,
                 fr_error *err);
/* Refuses a drafter that predicts held-out records worse than before the training. */
int traffic_check_gain(const TrainSums *before, const TrainSums *after, const char *output, fr_error *err);

/* ---- what a run prints and writes (train_report.c) ----------------------------------------------------------- */

void train_print_plan(const Training *t);
/* Joins the command line without options that change no byte of the result, so that a resumed run, one that replaces a
 * file, and one with another number of threads or processes write the same bytes. */
void train_join_command(char *out, size_t n, char *const *argv, int argc);
/* Writes the file of a run that has ended, prints its results, and deletes the checkpoint. */
int train_finish(Training *t, fr_error *err);

/* ---- the figure of a run (train_plot.c) ------------------------------------------------------------------------ */

/* Draws the losses in a log over the training steps: the training loss smoothed, the validation loss as it is. */
int train_plot(const char *log, const char *path, fr_error *err);

/* ---- the records of `forerun distill-data` (distill_records.c) --------------------------------------------------- */

/* A file of answers, to which whole lines are appended. */
typedef struct AnswerFile {
    const char *path; /* borrowed */
    int fd;           /* -1: closed */
    off_t n_bytes;    /* size of the whole lines */
} AnswerFile;

/* Reads the next record of the input; returns 1, or 0 at the end. With n_words > 0 a text becomes a pair, which the
 * model continues: the prompt is the first n_words words, or, if the text is a conversation written as USER:
 * ...\nASSISTANT: ..., everything up to the first answer. */
int distill_next(LineReader *in, int n_words, Record *out, fr_error *err);
/* Reads the whole file and counts its records. An error names the number of a line without a question. */
int distill_count(const char *path, int n_words, int64_t *n_records, fr_error *err);
/* Returns the index, from `from` on, of the next message that the model generates: one of the assistant's, or a new one
 * after the last; -1: there is none. */
int distill_next_answer(const Record *r, int from);
/* Stores the answer as message i of a conversation, or as the response of a pair, where i is ignored. "finish" is the
 * reason why it ended; "lossy": true marks an answer that does not follow the model's distribution. */
int distill_set_answer(Record *r, int i, const char *text, size_t n, const char *finish, bool is_lossy, fr_error *err);
/* Opens the file of answers for appending, after comparing it with the input line by line. *n_passed: the number of
 * records read from `in`, up to the last answered one. *n_answered: the number of answers. An incomplete last line is
 * removed. A file with answers to other questions is refused. */
int distill_continue(const char *path, LineReader *in, int n_words, int64_t *n_passed, int64_t *n_answered,
                     AnswerFile *out, fr_error *err);
/* Appends the record as a line. After a failure the file ends with the previous line. */
int distill_append(AnswerFile *f, const Record *r, fr_error *err);
/* Syncs and closes the file. `status` is the result so far, which a failure here does not replace. */
int distill_close(AnswerFile *f, int status, fr_error *err);

#endif

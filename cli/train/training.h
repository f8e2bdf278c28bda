/* training.h - a run of `forerun train METHOD`: its state, and what surrounds the loop. */
#ifndef CLI_TRAIN_TRAINING_H
#define CLI_TRAIN_TRAINING_H

#include "train/drafter_trainer.h"
#include "train/loop.h"
#include "train/methods.h"
#include "train/records.h"

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

#endif

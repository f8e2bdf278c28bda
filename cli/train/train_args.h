/* train_args.h - the options that all methods of `forerun train` share. */
#ifndef TRAIN_TRAIN_ARGS_H
#define TRAIN_TRAIN_ARGS_H

#include "cli/command.h"
#include "train/ops/gemm.h"
#include "train/loop/loop.h"

enum { TRAIN_MAX_FILES = 64 };

typedef struct TrainArgs {
    const char *model, *vocab, *output;
    const char *init;    /* the file to start from; NULL: none */
    const char *traffic; /* file of records; NULL: none */
    char *files[TRAIN_MAX_FILES];
    DatasetOptions data;    /* its files are the ones above */
    bool separate;          /* each document begins a sequence: data.packs is the opposite */
    const Dataset *dataset; /* the data, once it is read */
    LoopOptions loop;       /* schedule.n_steps 0: as many as `epochs` take */
    double epochs;
    int64_t warm_up;        /* steps; -1: a twentieth of all */
    const char *log, *plot; /* log NULL: OUTPUT.log.jsonl */
    int n_threads;
    bool is_idle; /* run only while nothing else wants the processor */
    GemmPrecision precision;
} TrainArgs;

/* For a TrainArgs that train_args_defaults filled: the file of a target (-m) or of a vocabulary (--vocab), and the
 * rest. */
extern const Option train_model_options[], train_vocab_options[], train_args_options[];
void train_args_defaults(TrainArgs *a);

#endif

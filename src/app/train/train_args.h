/* train_args.h - what every method of `forerun train` is told on the command line. */
#ifndef TRAIN_TRAIN_ARGS_H
#define TRAIN_TRAIN_ARGS_H

#include "train/ops/gemm.h"
#include "train/loop/loop.h"

#include <argp.h>

enum { TRAIN_MAX_FILES = 64 };

typedef struct TrainArgs {
    const char *model, *vocab, *output;
    char *files[TRAIN_MAX_FILES];
    DatasetOptions data;    /* its files are the ones above */
    const Dataset *dataset; /* what they hold, once it is read */
    LoopOptions loop;       /* schedule.n_steps 0: as many as `epochs` take */
    double epochs;
    int64_t warm_up;        /* steps; -1: a twentieth of all */
    const char *log, *plot; /* log NULL: OUTPUT.log.jsonl */
    int n_threads;
    GemmPrecision precision;
} TrainArgs;

/* To be a child of a method's argp, with a TrainArgs that train_args_defaults filled as input. */
extern const struct argp train_args_argp;
void train_args_defaults(TrainArgs *a);

/* Numbers of options, as argp errors where they are none. */
int64_t train_parse_int(struct argp_state *state, const char *option, const char *arg, int64_t min, int64_t max);
double train_parse_real(struct argp_state *state, const char *option, const char *arg, double min, double max);
/* --type: f16, f32 or q8_0. */
TensorType train_parse_type(struct argp_state *state, const char *arg);

#endif

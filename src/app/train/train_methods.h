/* train_methods.h - what `forerun train` can train. A new method is one file with a TrainMethod and one line in
 * train_methods.c. */
#ifndef TRAIN_TRAIN_METHODS_H
#define TRAIN_TRAIN_METHODS_H

#include "app/train/train_args.h"

typedef struct TrainMethod {
    const char *name, *summary; /* a line each */
    const char *help;           /* how to use it, with an example */
    const struct argp *argp;    /* its own options; the input is `settings` */
    void *settings;
    bool needs_model;           /* a drafter, trained for -m; else a new model with the vocabulary of --vocab */
    /* `source`: the file of -m or --vocab, open until the trainer is closed. `words` receives those of
     * LoopOptions.method. */
    int (*open)(Trainer **out, const TrainArgs *args, const Gguf *source, char *signature, size_t n_signature, fr_error *err);
} TrainMethod;

extern const TrainMethod train_target, train_lyanna, train_eagle, train_redrafter, train_medusa, train_hydra;

const TrainMethod *const *train_methods(void); /* NULL ends them */
const TrainMethod *train_method_find(const char *name); /* NULL: there is none */

#endif

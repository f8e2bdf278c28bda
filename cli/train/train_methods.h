/* train_methods.h - what `forerun train` can train. A new method is one file with a TrainMethod and one line in
 * train_methods.c. */
#ifndef TRAIN_TRAIN_METHODS_H
#define TRAIN_TRAIN_METHODS_H

#include "cli/train/train_args.h"

typedef struct TrainMethod {
    const char *name, *summary;           /* a line each */
    const char *about, *notes, *examples; /* for --help, as in Command */
    const OptionSet *sets;                /* its own options */
    int (*check)(fr_error *err);          /* optional: checks that involve several options */
    bool needs_model; /* a drafter, trained for -m; else a new model with the vocabulary of --vocab */
    /* `source`: the file of -m or --vocab, open until the trainer is closed. `signature` receives the words of
     * LoopOptions.method. */
    int (*open)(Trainer **out, const TrainArgs *args, const Gguf *source, char *signature, size_t n_signature,
                fr_error *err);
} TrainMethod;

extern const TrainMethod train_target, train_lyanna, train_eagle, train_redrafter, train_medusa, train_hydra,
    train_space;

const TrainMethod *const *train_methods(void);          /* ends with NULL */
const TrainMethod *train_method_find(const char *name); /* NULL: unknown */

#endif

/* checkpoint.h - the complete state of a training run in one file, from which it resumes exactly where it was.
 *
 * A GGUF file: float32 arrays as tensors, the rest as key-values, with a fingerprint (XXH3) of everything. It is
 * written to a temporary file, flushed to the disk and renamed, so that a kill at any moment leaves a complete
 * checkpoint; the one before it stays as PATH.previous. */
#ifndef LOOP_CHECKPOINT_H
#define LOOP_CHECKPOINT_H

#include "base/error.h"

#include <stdbool.h>

typedef struct CheckpointArray {
    const char *name; /* unique */
    int64_t n;        /* at least 1 */
    float *data;      /* [n] */
    bool not_negative;
} CheckpointArray;

typedef struct Checkpoint {
    int64_t step;              /* training steps done */
    int64_t n_steps;           /* of the whole run */
    uint64_t data;             /* fingerprint of the training data */
    const char *run_signature; /* all options that determine the result: "seed=1 batch=8 ..." */
    const CheckpointArray *arrays;
    int n_arrays;
} Checkpoint;

/* An existing file at `path` becomes PATH.previous; on failure it stays in place. */
int checkpoint_write(const char *path, const Checkpoint *c, fr_error *err);

/* Fills c->step and the arrays. Refuses, before it touches them, a file that is truncated or damaged, numbers that no
 * run computes (NaN, infinity, negative squares), and (FR_ERR_MISMATCH) a file whose data, run signature or arrays
 * differ from those of c, or whose step is beyond c->n_steps. */
int checkpoint_read(const char *path, Checkpoint *c, fr_error *err);

#endif

/* checkpoint.h - all that a training run needs to go on exactly where it was, in one file.
 *
 * A GGUF file: float32 arrays as tensors, the rest as key-values, with a fingerprint (XXH3) of everything. It is written
 * to a neighbour, flushed to the disk and renamed, so that a kill at any moment leaves a whole one; the one before it
 * stays as PATH.previous. */
#ifndef LOOP_CHECKPOINT_H
#define LOOP_CHECKPOINT_H

#include "base/error.h"

typedef struct CheckpointArray {
    const char *name; /* unique */
    int64_t n;        /* at least 1 */
    float *data;      /* [n] */
} CheckpointArray;

typedef struct Checkpoint {
    int64_t step;        /* steps that are done */
    uint64_t data;       /* fingerprint of the training data */
    const char *options; /* what else decides how the run goes, as words between blanks: "seed=1 batch=8 ..." */
    const CheckpointArray *arrays;
    int n_arrays;
} Checkpoint;

/* A file at `path` becomes PATH.previous; on failure it stays as it is. */
int checkpoint_write(const char *path, const Checkpoint *c, fr_error *err);

/* Fills c->step and the arrays. Refuses, before it touches them, a file that is torn or damaged, one of other data or
 * other options than those of c (FR_ERR_MISMATCH), or of other arrays. */
int checkpoint_read(const char *path, Checkpoint *c, fr_error *err);

#endif

/* importance.h - importance matrices: for each input of each matrix of a model, the mean square that it had over a
 * text. Errors of weights that meet large inputs cost most, so quantisers weight them by it.
 *
 * The file is GGUF with the keys and tensors that llama.cpp gives such files, so that either program reads the other's:
 * general.type = "imatrix", imatrix.datasets, imatrix.chunk_count, imatrix.chunk_size; for each matrix NAME the
 * tensors NAME.in_sum2 [n_in, n_matrices], sums of squares, and NAME.counts [1, n_matrices], rows that were summed.
 */
#ifndef QUANT_IMPORTANCE_H
#define QUANT_IMPORTANCE_H

#include "gguf/gguf.h"

#define IMPORTANCE_SUMS ".in_sum2"
#define IMPORTANCE_COUNTS ".counts"

typedef struct Importance {
    Gguf *gguf;
    int64_t n_entries; /* matrices */
} Importance;

/* Refuses a file that is no importance matrix, or holds anything but finite numbers that are not negative. */
int importance_open(Importance *im, const char *path, fr_error *err);
void importance_close(Importance *im);

/* Whether there is an entry for the matrix. */
bool importance_has(const Importance *im, const char *matrix);
/* The mean squares of the inputs of a matrix, out [n_matrices][n_in] (n_matrices > 1: experts). Those that read no row of
 * the text, n_unread of them, have 1 for every input. Returns 1; 0 where the file has none for the matrix, and an error
 * where they are of another shape. */
int importance_of(const Importance *im, const char *matrix, int64_t n_in, int64_t n_matrices, float *out,
                  int64_t *n_unread, fr_error *err);

#endif

/* quantize_file.h - a model file to a model file of other types, tensor by tensor. */
#ifndef QUANT_QUANTIZE_FILE_H
#define QUANT_QUANTIZE_FILE_H

#include "gguf/importance.h"
#include "gguf/quant_mix.h"

typedef struct QuantizeOptions {
    const QuantMix *mix;
    const Importance *importance; /* NULL: none */
    const char *importance_path;  /* as the user named it; kept in the new file */
    bool requantize;              /* matrices of block types are converted too, which makes them worse */
    int n_threads;
    void (*note)(void *user, const char *sentence); /* a matrix that gets another type than its mixture says */
    void (*progress)(void *user, double part);      /* part goes from 0 to 1; either may be NULL */
    void *user;
} QuantizeOptions;

typedef struct QuantizeResult {
    int64_t n_weights, n_tensors[TYPE_COUNT];
    size_t bytes_in, bytes_out;        /* of tensors */
    int64_t n_matrices, n_importances; /* matrices that were quantised, and those of them that had importances */
    int64_t n_unread;                  /* matrices of single experts that read no row of the importances' text */
} QuantizeResult;

/* Writes the new file, replacing one at `path` in the moment when all is done. Memory: a few rows of each thread and
 * 32 MiB. Refuses a file with quantised matrices (unless requantize), and numbers that are not finite. */
int quantize_file(const Gguf *in, const char *path, const QuantizeOptions *options, QuantizeResult *result,
                  fr_error *err);

#endif

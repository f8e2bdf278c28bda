/* quantize.h - model files quantised: which tensor gets which type, how much each input of a matrix matters, a
 * search for good scales, and a model file streamed into a smaller one. */
#ifndef GGUF_QUANTIZE_H
#define GGUF_QUANTIZE_H

#include "gguf/gguf.h"

/* ---- rows (quant_search.c) ----------------------------------------------------------------------------------- */

/* Writes n finite numbers (whole blocks) of a row as `type`. importance: [n] how much an error of each matters, not
 * negative; NULL: all matter alike. The weighted error of a block is never larger than that of blocks_quantize. */
void quant_row(TensorType type, const float *x, const float *importance, int64_t n, void *dst);

/* ---- mixtures of types under the names that users know, such as Q4_K_M (quant_mix.c) ------------------------- */

typedef struct QuantMix {
    const char *name, *alias; /* alias: another name, or NULL */
    TensorType type;          /* the type of most matrices */
    uint32_t file_type;       /* general.file_type */
    const char *summary;      /* for --help */
} QuantMix;

/* These return all mixtures, ending with name == NULL, and one by its name in upper or lower case, or NULL. */
const QuantMix *quant_mixes(void);
const QuantMix *quant_mix_find(const char *name);

/* The properties of the model that the choice of a type depends on. */
typedef struct QuantShape {
    int32_t n_layer, n_nextn; /* n_nextn of them, the last ones, are for multi-token prediction */
    bool shares_values;  /* 80 layers, and query heads that share their values: Llama 70B and models made from it */
    bool shares_by_four; /* four or more query heads share their keys and values */
    bool has_experts;    /* four or more */
    bool is_tied;        /* the embedding is the LM head, too */
    bool has_importance;
} QuantShape;
QuantShape quant_shape(const Gguf *g, bool has_importance);

/* Returns whether the tensor is a matrix that quantisation is for: not a norm, a bias, or the router of experts. */
bool quant_is_matrix(const GgufTensor *t);
/* Returns the type that the mixture wants for a matrix. */
TensorType quant_mix_type(const QuantMix *mix, const QuantShape *shape, const GgufTensor *t);
/* Returns whether blocks of the type are too coarse to be written without knowing which inputs matter. */
bool quant_needs_importance(TensorType type);
/* Returns the type that a matrix with rows of n elements gets instead, where these are not whole blocks of `type`. */
TensorType quant_fallback(TensorType type, int64_t n);

/* ---- importance matrices (importance.c) ---------------------------------------------------------------------- */

/* An importance matrix holds, for each input of each matrix of a model, the mean square that it had over a text. Errors
 * of weights that meet large inputs cost most, so quantisers weight them by it.
 *
 * The file is GGUF with the keys and tensors that llama.cpp gives such files, so that either program reads the other's:
 * general.type = "imatrix", imatrix.datasets, imatrix.chunk_count, imatrix.chunk_size; for each matrix NAME the
 * tensors NAME.in_sum2 [n_in, n_matrices], the sums of squares, and NAME.counts [1, n_matrices], the numbers of rows
 * that were summed. */
#define IMPORTANCE_SUMS ".in_sum2"
#define IMPORTANCE_COUNTS ".counts"

typedef struct Importance {
    Gguf *gguf;
    int64_t n_entries; /* matrices */
} Importance;

/* Refuses a file that is no importance matrix, or holds anything but finite numbers that are not negative. */
int importance_open(Importance *im, const char *path, fr_error *err);
void importance_close(Importance *im);

/* Returns whether there is an entry for the matrix. */
bool importance_has(const Importance *im, const char *matrix);
/* Reads the mean squares of the inputs of a matrix, out [n_matrices][n_in] (n_matrices > 1: experts). Every input of
 * the n_unread matrices that read no row of the text has 1. Returns 1; 0 where the file has no entry for the matrix,
 * and an error where the entry has another shape. */
int importance_of(const Importance *im, const char *matrix, int64_t n_in, int64_t n_matrices, float *out,
                  int64_t *n_unread, fr_error *err);

/* ---- files (quantize_file.c) --------------------------------------------------------------------------------- */

typedef struct QuantizeOptions {
    const QuantMix *mix;
    const Importance *importance; /* NULL: none */
    const char *importance_path;  /* as the user named it; kept in the new file */
    bool requantize;              /* matrices of block types are converted too, which makes them worse */
    int n_threads;
    void (*note)(void *user, const char *sentence); /* called for a matrix whose type differs from its mixture's */
    void (*progress)(void *user, double part);      /* part goes from 0 to 1; either function may be NULL */
    void *user;
} QuantizeOptions;

typedef struct QuantizeResult {
    int64_t n_weights, n_tensors[TYPE_COUNT];
    size_t bytes_in, bytes_out;        /* bytes of the tensors before and after */
    int64_t n_matrices, n_importances; /* matrices that were quantised, and those of them that had importances */
    int64_t n_unread;                  /* matrices of single experts that read no row of the importances' text */
} QuantizeResult;

/* Writes the new file, and replaces a file at `path` when all is done. Takes the memory of a few rows for each thread
 * and 32 MiB. Refuses a file with quantised matrices (unless requantize is set), and numbers that are not finite. */
int quantize_file(const Gguf *in, const char *path, const QuantizeOptions *options, QuantizeResult *result,
                  fr_error *err);

#endif

/* drafter_file.h - GGUF files that hold a learned drafter: its method, its weights, and for which target it was trained.
 *
 * A learned drafter is nothing without its target: it reads the target's hidden states, and uses its embedding and often
 * its LM head, which are not copied into the file. So a file names its target by a fingerprint and is refused for any
 * other.
 *
 *   general.architecture             "forerun-drafter"
 *   forerun-drafter.method           "redrafter", "medusa", ...: the drafting method
 *   forerun-drafter.target.name      for people
 *   forerun-drafter.target.fingerprint           16 hexadecimal digits
 *   forerun-drafter.target.embedding_length, forerun-drafter.target.vocabulary_size
 *   forerun-drafter.training.*       how it was trained: command, data, and numbers; precision: of the inputs of matrix
 *                                    products, "bf16" or "f32", as `forerun train --precision` takes it
 *   forerun-drafter.<method>.*       its shape: the method's file tells
 */
#ifndef DRAFTER_DRAFTER_FILE_H
#define DRAFTER_DRAFTER_FILE_H

#include "format/gguf_write.h"
#include "model/model.h"

#define DRAFTER_ARCHITECTURE "forerun-drafter"
#define DRAFTER_KEY(name) DRAFTER_ARCHITECTURE "." name

/* What tells one target from another: a hash of its shape, of all bytes of its embedding and its LM head, and of the
 * name and first bytes of every other tensor. A target quantised in another way is another target. */
uint64_t drafter_target_fingerprint(const Model *target);

typedef struct DrafterFile {
    Gguf *gguf;
    int64_t n_taken; /* tensors that the method asked for */
} DrafterFile;

/* Opens and refuses, by name, what is no drafter, is one of another method, or was trained for another target. After a
 * failure drafter_file_close is safe on a zeroed struct. */
int drafter_file_open(DrafterFile *f, const char *path, const char *method, const Model *target, fr_error *err);
void drafter_file_close(DrafterFile *f);

/* The number or string under "forerun-drafter.<name>", checked. */
int drafter_file_int(const DrafterFile *f, const char *name, int64_t min, int64_t max, int32_t *out, fr_error *err);
int drafter_file_choice(const DrafterFile *f, const char *name, const char *const *choices, int *out, fr_error *err);
/* The tokens listed under that name, an array of integers: rising, all below n_vocab, at least one. Where the key is missing
 * *out and *n stay as they are. The caller frees *out with mem_free. */
int drafter_file_tokens(const DrafterFile *f, const char *name, int32_t n_vocab, int32_t **out, int32_t *n, fr_error *err);

/* A tensor with exactly that shape, refused where it is missing or holds what is not a finite number. The matrix is a view into the
 * file ([n_out][n_in], any tensor type), the vector a copy as floats, freed with mem_free. Each tensor is to be taken once. */
int drafter_file_matrix(DrafterFile *f, const char *name, int64_t n_in, int64_t n_out, const GgufTensor **out, fr_error *err);
int drafter_file_vector(DrafterFile *f, const char *name, int64_t n, float **out, fr_error *err);
bool drafter_file_has(const DrafterFile *f, const char *name);
/* A matrix with n_rows rows of any length *n as floats, [n_rows][*n]; mem_free it. */
int drafter_file_table(DrafterFile *f, const char *name, int64_t n_rows, int64_t *n, float **out, fr_error *err);
/* After the last tensor: refuses a file that holds others, for then the method would be run wrongly. */
int drafter_file_finish(const DrafterFile *f, fr_error *err);

/* How a drafter was trained; strings may be NULL, numbers 0: then the key is left out. */
typedef struct DrafterTraining {
    const char *command, *data, *precision;
    uint64_t n_steps, n_tokens, seed;
    double loss; /* the last one on held-out text */
    const float *accuracy; /* [n_heads][n_ranks] there: how often the token of each rank was right, by step ahead; no key, but a
                            * tensor of the methods that want it. NULL: not measured */
    int32_t n_heads, n_ranks;
} DrafterTraining;

/* A writer that holds the keys above; the caller adds the method's own keys and tensors and finishes it. NULL: no
 * memory. */
GgufWriter *drafter_file_writer(const char *method, const Model *target, const DrafterTraining *training);

#endif

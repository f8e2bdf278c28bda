/* drafter_file.h - GGUF files that hold a learned drafter: its method, its weights, and the target it was trained for.
 *
 * A learned drafter is useless without its target: it reads the target's hidden states, and uses its embedding and
 * often its LM head, which are not copied into the file. So a file names its target by a fingerprint and is refused
 * for any other.
 *
 *   general.architecture             "forerun-drafter"
 *   forerun-drafter.method           the drafting method: "redrafter", "medusa", ...
 *   forerun-drafter.target.name      the target's name, for people to read
 *   forerun-drafter.target.fingerprint           16 hexadecimal digits
 *   forerun-drafter.target.embedding_length, forerun-drafter.target.vocabulary_size
 *   forerun-drafter.training.*       how it was trained: command, data, and numbers; `precision` is that of the inputs
 *                                    of matrix products, "bf16" or "f32", as in `forerun train --precision`
 *   forerun-drafter.training.traffic.lines, .hash   the records it was trained on: the number of lines, and their hash
 *                                    in 16 hexadecimal digits
 *   forerun-drafter.<method>.*       its shape (learned/learned_files.h)
 *
 * Some methods also read files that others have published in GGUF. The architecture of such a file is the name of the
 * method, its keys are "<method>.*", and it has the vocabulary of its target in the place of a fingerprint. Where
 * `forerun train` writes such a file, it has the keys target.* and training.* above, too. So has a companion of a
 * target (drafter_file_companion_writer), whose architecture is the target's.
 */
#ifndef DRAFTER_DRAFTER_FILE_H
#define DRAFTER_DRAFTER_FILE_H

#include "gguf/gguf_write.h"
#include "model/model.h"

#define DRAFTER_ARCHITECTURE "forerun-drafter"
#define ASSISTANT_ARCHITECTURE "gemma4-assistant" /* of published files that `mtp` reads beside its companions */
#define DRAFTER_KEY(name) DRAFTER_ARCHITECTURE "." name

/* ---- what identifies weights (drafter_fingerprint.c) ------------------------------------------------------------- */

/* Identifies a target: a hash of its shape, of all bytes of its embedding and its LM head, and of the name and first
 * bytes of every other tensor. A target quantised in another way is another target. */
uint64_t drafter_target_fingerprint(const Model *target);

/* Returns the name of the first tensor type of less than 16 bits in the target's layers; NULL: they have none. */
const char *drafter_target_quantisation(const Model *target);

/* ---- opening ---------------------------------------------------------------------------------------------------- */

typedef struct DrafterFile {
    Gguf *gguf;
    bool *taken;       /* for each tensor of the file: the method has read it */
    bool is_published; /* in the form in which others publish such drafters */
    bool names_target; /* by its fingerprint, which a published file lacks */
} DrafterFile;

/* Returns the method for which others published the file; NULL: it is none of those. */
const char *drafter_file_published_method(const Gguf *g);

/* Fails if the file that was given as the model is a learned drafter; the error names its target and method. */
int drafter_file_refuse_as_target(const Gguf *g, fr_error *err);

/* Opens a drafter's file. Fails if the file is not a drafter, belongs to another method, or was trained for another
 * target; the error names the reason. After a failure drafter_file_close is safe. */
int drafter_file_open(DrafterFile *f, const char *path, const char *method, const Model *target, fr_error *err);
/* The same for a companion of the target, whose layers nextn_open reads: it is refused only if it names another target,
 * which published ones do not. */
int drafter_file_open_companion(DrafterFile *f, const char *path, const Model *target, fr_error *err);
int drafter_file_check_companion(const Gguf *g, const Model *target, fr_error *err);
void drafter_file_close(DrafterFile *f);

/* ---- keys and tensors (drafter_tensors.c) ------------------------------------------------------------------------ */

/* Returns what precedes the names of keys: "forerun-drafter.", or "" in a published file. */
const char *drafter_file_prefix(const DrafterFile *f);
/* Read the number or the string under "forerun-drafter.<name>" and check it. */
int drafter_file_int(const DrafterFile *f, const char *name, int64_t min, int64_t max, int32_t *out, fr_error *err);
int drafter_file_choice(const DrafterFile *f, const char *name, const char *const *choices, int *out, fr_error *err);
/* Reads the list of tokens under "forerun-drafter.<name>": an array of at least one integer, in rising order, all below
 * n_vocab. If the key is missing, *out and *n stay as they are. The caller frees *out with mem_free. */
int drafter_file_tokens(const DrafterFile *f, const char *name, int32_t n_vocab, int32_t **out, int32_t *n,
                        fr_error *err);

/* Reads a tensor of exactly that shape. Fails if it is missing or holds a number that is not finite. The matrix is a
 * view into the file ([n_out][n_in], any tensor type), the vector a copy as floats, freed with mem_free. Each tensor
 * must be read once. */
int drafter_file_matrix(DrafterFile *f, const char *name, int64_t n_in, int64_t n_out, const GgufTensor **out,
                        fr_error *err);
int drafter_file_vector(DrafterFile *f, const char *name, int64_t n, float **out, fr_error *err);
bool drafter_file_has(const DrafterFile *f, const char *name);
/* The same for a name that is printed, such as that of a tensor of a layer. */
__attribute__((format(printf, 2, 3))) bool drafter_file_has_printed(const DrafterFile *f, const char *format, ...);
/* Reads a tensor of the shape [dims[2]][dims[1]][dims[0]] as floats. The caller frees *out with mem_free. */
int drafter_file_cube(DrafterFile *f, const char *name, const int64_t dims[3], float **out, fr_error *err);
/* Reads a matrix with n_rows rows of any length *n as floats, [n_rows][*n]. The caller frees *out with mem_free. */
int drafter_file_table(DrafterFile *f, const char *name, int64_t n_rows, int64_t *n, float **out, fr_error *err);
/* Reads the map of a vocabulary of the drafter's own (GGUF_MAP): the target's token for each of its *n > 0 tokens, all
 * different. If there is none, *out and *n stay as they are. The caller frees *out with mem_free. */
int drafter_file_map(DrafterFile *f, int32_t n_vocab, int32_t **out, int32_t *n, fr_error *err);
/* Reads the tokens of clusters (GGUF_CLUSTERS), as integers or floats: each of the n_vocab tokens once. The caller
 * frees *out with mem_free. */
int drafter_file_clusters(DrafterFile *f, int32_t n_vocab, int32_t **out, fr_error *err);
/* Call this after the last tensor was read and packed. It fails if the file has changed meanwhile, or holds tensors
 * that were not read, because the method would then run another network than the one in the file. */
int drafter_file_finish(const DrafterFile *f, fr_error *err);

/* ---- how a drafter was trained ----------------------------------------------------------------------------------- */

/* The number and the hash of the lines in a file of records (`forerun run --record`) that a drafter was trained on. */
typedef struct DrafterTraffic {
    uint64_t n_lines, hash; /* n_lines is 0 if it was not trained on records */
} DrafterTraffic;

/* Reads what traffic the drafter was trained on. *out is empty if the file has no such keys, or if it belongs to
 * another method or target. */
void drafter_file_get_traffic(const Gguf *g, const char *method, uint64_t target, DrafterTraffic *out);

/* How a drafter was trained. Strings may be NULL and numbers 0; their keys are then left out. */
typedef struct DrafterTraining {
    const char *command, *data, *precision;
    uint64_t n_steps, n_tokens, seed;
    DrafterTraffic traffic;
    double loss; /* the last loss on held-out text */
    /* [n_heads][n_ranks] For each head, how often its token of each rank was right on held-out text; NULL if it was not
     * measured. The methods that use it write it as a tensor, not as a key. */
    const float *accuracy;
    int32_t n_heads, n_ranks;
} DrafterTraining;

/* ---- writing (drafter_writer.c) ---------------------------------------------------------------------------------- */

/* Makes a writer that already holds the keys above. The caller adds the method's own keys and tensors and finishes
 * it. Returns NULL if there is no memory. */
GgufWriter *drafter_file_writer(const char *method, const Model *target, const DrafterTraining *training);
/* The same for a file as others publish it, which has the target's vocabulary, too. */
GgufWriter *drafter_file_published_writer(const char *method, const Model *target, const DrafterTraining *training);
/* The same for a companion of the target, a file of its architecture with further layers (Nextn in model.h): it has the
 * target's keys but for the numbers of layers, which the caller adds. */
GgufWriter *drafter_file_companion_writer(const char *method, const Model *target, const DrafterTraining *training);

/* ---- what the files about drafter files share ------------------------------------------------------------------- */

enum { DRAFTER_TEXT_BYTES = 96 };

/* Reads a string of the file, for messages and comparisons. It is shortened, and control characters are removed. */
void drafter_file_text(const Gguf *g, const char *key, char out[DRAFTER_TEXT_BYTES]);
/* Writes the name of a target, which is that of its file if the file gives none; and its fingerprint as digits. */
void drafter_target_name(const Model *target, char out[DRAFTER_TEXT_BYTES]);
void drafter_target_digits(const Model *target, char out[17]);

#endif

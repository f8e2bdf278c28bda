/* import.h - published drafters: reading a checkpoint and converting it into a drafter file.
 *
 * A checkpoint is one or several safetensors files, or a folder of them.
 *
 * Every tensor that an import uses is marked as taken. At the end no tensor may be left: a checkpoint with more tensors
 * is of a variant that the import does not know, and its drafter would compute something else. */
#ifndef TRAIN_IMPORT_H
#define TRAIN_IMPORT_H

#include "base/mem.h"
#include "draft/drafter_file.h"
#include "train/safetensors.h"

enum { PUBLISHED_MAX_FILES = 64 };

typedef struct Published {
    SafeTensors *files[PUBLISHED_MAX_FILES];
    bool *taken[PUBLISHED_MAX_FILES]; /* for each tensor of the file */
    int n_files;
    char folder[4096]; /* the folder of the first file, where config.json may be */
} Published;

/* paths: files, and folders, of which every *.safetensors is opened; a folder whose model.safetensors.index.json names
 * others is refused. After a failure published_close is safe. */
int published_open(Published *c, const char *const *paths, int n, fr_error *err);
void published_close(Published *c);
const char *published_path(const Published *c); /* the path of the first file, for messages */

/* Returns the tensor of that name, without taking it; NULL: there is none. */
const SafeTensor *published_find(const Published *c, const char *name);
/* Takes every tensor whose name begins with the prefix: they are known and not needed. */
void published_pass_over(Published *c, const char *prefix);
/* Reads config.json beside the checkpoint, to be freed with json_decref. NULL: there is none, or it is damaged. */
struct json_t *published_read_config(const Published *c);
/* Reads an integer of config.json; false: there is none of that key. */
bool published_config(const Published *c, const char *key, int64_t *out);

/* Converts drafters that others have trained and published into drafter files (drafter_file.h).
 *
 * import.c does what all methods share; each <method>.c has a plan, which maps the published tensors to the tensors of
 * the drafter file. */

enum { IMPORT_MAX_TENSORS = 512 };

/* How the rows of a tensor are reordered. */
typedef enum ImportRows {
    IMPORT_ROWS_SAME,
    IMPORT_ROWS_PAIRED,  /* q and k: the halves of each head become pairs, for ROPE_PAIRS; also in their vectors */
    IMPORT_ROWS_HALVED,  /* the other way round, for ROPE_HALVES */
    IMPORT_ROWS_SWAPPED, /* the two halves are exchanged */
} ImportRows;

typedef struct ImportTensor {
    char name[64];          /* in the drafter file */
    const SafeTensor *from; /* NULL: zeros */
    TensorType type;
    int64_t n_in, n_out; /* [n_out][n_in] as rows; n_out 1: a vector */
    int64_t n_outer;     /* not 0: [n_outer][n_out / n_outer][n_in] */
    ImportRows rows;
    bool swaps_columns; /* the two halves of each row are exchanged */
    const struct Import *import;
    float *row; /* [n_in] scratch; twice as much for a vector whose rows are reordered */
} ImportTensor;

/* How to read what a checkpoint does not say. */
typedef struct ImportReading {
    bool counts_outputs;  /* its list of the target's layers names outputs; false: inputs */
    bool is_other_anchor; /* where import_lacks_anchor: not the usual one */
} ImportReading;

typedef struct Import {
    const Model *target;
    Published *from;
    TensorType type; /* the type of matrices */
    GgufWriter *w;
    ImportTensor tensors[IMPORT_MAX_TENSORS];
    int n_tensors;
    ImportReading reading;
    /* For IMPORT_ROWS_PAIRED and _HALVED: the width of a head of the drafter's layer (0: that of the target), and how
     * many of its elements rotate (0: all). */
    int64_t head_dim, n_rot;
    void *kept[4]; /* [n_kept] the data of tensors that a plan made */
    int n_kept;
    Arena arena;            /* the memory of the tensors' rows */
    int64_t n_done, n_rows; /* rows written, and in all */
    void (*progress)(void *user, double part);
    void *progress_user;
} Import;

typedef struct ImportMethod {
    const char *name;   /* the drafter's name */
    const char *source; /* the published weights, for --help */
    int (*plan)(Import *x, fr_error *err);
} ImportMethod;

/* Returns whether the checkpoint's list of layers is one that names outputs as a rule: target_layer_ids. */
bool import_names_outputs(const Published *from);
/* Returns whether it is one of DSpark whose config.json does not say if the first slot of a block predicts. */
bool import_lacks_anchor(const Published *from);

/* Returns all methods, ending with name == NULL. */
const ImportMethod *import_methods(void);
const ImportMethod *import_find(const char *name); /* NULL: unknown */

typedef struct ImportOptions {
    TensorType type; /* the type of matrices; vectors stay F32 */
    ImportReading reading;
    void (*progress)(void *user, double part); /* optional */
    void *progress_user;
} ImportOptions;

/* Writes the drafter file. Refuses a checkpoint that lacks a tensor, holds tensors that the method does not have, or
 * whose shapes or embedding do not match the target. */
int import_drafter(const ImportMethod *method, const Model *target, Published *from, const ImportOptions *o,
                   const char *path, fr_error *err);

/* For plans: adds tensor `name` to the drafter file, from tensor `from` of the checkpoint, whose shape is checked.
 * n_out 0: a vector. *out (NULL is fine) may be changed until the plan ends. */
int import_add(Import *x, const char *name, const char *from, int64_t n_in, int64_t n_out, ImportTensor **out,
               fr_error *err);
/* The same for a tensor of floats [dims[0]][dims[1]][dims[2]]. */
int import_add_cube(Import *x, const char *name, const char *from, const int64_t dims[3], fr_error *err);
/* Adds a vector of zeros. */
int import_add_zeros(Import *x, const char *name, int64_t n, fr_error *err);
/* Adds a vector, or a map of tokens (GGUF_MAP), which the plan fills in. */
int import_add_floats(Import *x, const char *name, int64_t n, float **out, fr_error *err);
int import_add_map(Import *x, int64_t n, int64_t **out, fr_error *err);
/* Takes a vector of the checkpoint, which may have dimensions of 1 before its own, and reads it. */
int import_read_vector(Import *x, const char *name, int64_t n, float *out, fr_error *err);
/* If the checkpoint has an embedding of that name, takes it, and refuses one that is not the target's. */
int import_check_embedding(Import *x, const char *name, fr_error *err);
/* Takes that matrix [n_vocab][n_embd] if it is the target's LM head, which may be quantised. */
int import_take_targets_head(Import *x, const char *name, bool *is_taken, fr_error *err);
void import_set_int(Import *x, const char *name, int64_t v);
void import_set_float(Import *x, const char *name, double v);
void import_set_text(Import *x, const char *name, const char *text);

/* ---- drafters with layers and a config.json (import_config.c) ------------------------------------------------- */

/* The shape of the layers. */
typedef struct ImportShape {
    /* Borrowed: the part of config.json that describes the layers, and the part of it that describes their rope in new
     * files; NULL: there is none. */
    const struct json_t *layer, *rope;
    int64_t n_embd, n_ff, n_head, n_head_kv, head_dim, n_rot;
    bool is_gemma;   /* the layers are of Gemma 4's form (gemma_layer.c) */
    bool has_values; /* they have a value projection; those of Gemma 4 may make values of their keys */
} ImportShape;

/* Reports that the value of a key is missing or out of range. */
int import_refuse_config(const Import *x, const char *key, fr_error *err);
/* Reads a number from 1 to 2^28; `fallback` if it is missing, where 0 means that it may not be. */
int import_config_int(const Import *x, const struct json_t *from, const char *key, int64_t fallback, int64_t *out,
                      fr_error *err);
/* Checks the types and ranges of the keys of config.json that are known (import_keys.c). */
int import_check_keys(const Import *x, const struct json_t *config, fr_error *err);
/* Reads the shape from config.json (NULL: it is missing), at its top or in its transformer_layer_config. */
int import_read_shape(const Import *x, const struct json_t *config, ImportShape *out, fr_error *err);
/* Adds the tensor if the checkpoint has it. */
int import_add_optional(Import *x, const char *name, const char *from, int64_t n_in, int64_t n_out, ImportRows rows,
                        fr_error *err);
/* Sets the keys of n_layer layers, whose names begin with `method` ("eagle3."), and adds the factors of the rope as the
 * tensor `factors` if it has any. */
int import_add_shape(Import *x, const char *method, const ImportShape *s, int64_t n_layer, const char *factors,
                     fr_error *err);
/* Adds what layer i has in addition if its layers are of Gemma 4's form: the tensors whose names begin with `from`. */
int import_add_gemma_parts(Import *x, const ImportShape *s, int32_t i, const char *from, fr_error *err);
/* The part of the published name of the norm before the feed-forward part. */
const char *import_ffn_norm(const ImportShape *s);
/* Adds the LM head as the tensor `name`, with its map of tokens, if the checkpoint has one that is not the target's. */
int import_add_head(Import *x, const char *name, int64_t n_embd, fr_error *err);
/* Adds the embedding as the tensor `name`, unless it is the target's, which may be quantised. */
int import_add_embedding(Import *x, const char *name, int64_t n_embd, fr_error *err);

/* Adds a layer of the form of a Llama's, with the target's heads: the tensors that begin with `to` (learned_files.h)
 * from those that begin with `from`, and its key. Refuses a checkpoint whose config.json has other heads. */
int import_add_layer(Import *x, const char *to, const char *from, bool has_attn_norm, fr_error *err);

/* ---- plans ------------------------------------------------------------------------------------------------ */

int import_plan_eagle(Import *x, fr_error *err);
int import_plan_eagle3(Import *x, fr_error *err);
int import_plan_dflash(Import *x, fr_error *err);
int import_plan_medusa(Import *x, fr_error *err);
int import_plan_hydra(Import *x, fr_error *err);
int import_plan_redrafter(Import *x, fr_error *err);

#endif

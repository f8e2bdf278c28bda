/* import.h - converts drafters that others have trained and published into drafter files (drafter_file.h).
 *
 * import.c does what all methods share; each import_<method>.c has a plan, which says which published tensor becomes
 * which tensor of the drafter file. */
#ifndef IMPORT_IMPORT_H
#define IMPORT_IMPORT_H

#include "base/mem.h"
#include "train/import/published.h"
#include "draft/drafter_file.h"

enum { IMPORT_MAX_TENSORS = 512 };

/* How the rows of a tensor are reordered. */
typedef enum ImportRows {
    IMPORT_ROWS_SAME,
    IMPORT_ROWS_PAIRED,  /* q and k: the halves of each head become pairs, for ROPE_PAIRS */
    IMPORT_ROWS_SWAPPED, /* the two halves are exchanged */
} ImportRows;

typedef struct ImportTensor {
    char name[64];          /* in the drafter file */
    const SafeTensor *from; /* NULL: zeros */
    TensorType type;
    int64_t n_in, n_out; /* [n_out][n_in] as rows; n_out 1: a vector */
    ImportRows rows;
    bool swaps_columns; /* the two halves of each row are exchanged */
    const struct Import *import;
    float *row; /* [n_in] scratch */
} ImportTensor;

typedef struct Import {
    const Model *target;
    Published *from;
    TensorType type; /* of matrices */
    GgufWriter *w;
    ImportTensor tensors[IMPORT_MAX_TENSORS];
    int n_tensors;
    Arena arena;            /* of the tensors' rows */
    int64_t n_done, n_rows; /* rows written, and in all */
    void (*progress)(void *user, double part);
    void *progress_user;
} Import;

typedef struct ImportMethod {
    const char *name;   /* of the drafter */
    const char *source; /* of the published weights, for --help */
    int (*plan)(Import *x, fr_error *err);
} ImportMethod;

/* All methods, ending with name == NULL. */
const ImportMethod *import_methods(void);
const ImportMethod *import_find(const char *name); /* NULL: unknown */

typedef struct ImportOptions {
    TensorType type;                           /* of matrices; vectors stay F32 */
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
/* Adds a vector of zeros. */
int import_add_zeros(Import *x, const char *name, int64_t n, fr_error *err);
/* If the checkpoint has an embedding of that name, takes it, and refuses one that is not the target's. */
int import_check_embedding(Import *x, const char *name, fr_error *err);
void import_set_int(Import *x, const char *name, int64_t v);
void import_set_text(Import *x, const char *name, const char *text);

int import_plan_eagle(Import *x, fr_error *err);
int import_plan_medusa(Import *x, fr_error *err);
int import_plan_hydra(Import *x, fr_error *err);
int import_plan_redrafter(Import *x, fr_error *err);

#endif

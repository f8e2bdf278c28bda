/* published.h - a checkpoint of published weights: one or several safetensors files, or a folder of them.
 *
 * Every tensor that an import uses is marked as taken. At the end no tensor may be left: a checkpoint with more tensors
 * is of a variant that the import does not know, and its drafter would compute something else. */
#ifndef IMPORT_PUBLISHED_H
#define IMPORT_PUBLISHED_H

#include "train/import/safetensors.h"

enum { PUBLISHED_MAX_FILES = 64 };

typedef struct Published {
    SafeTensors *files[PUBLISHED_MAX_FILES];
    bool *taken[PUBLISHED_MAX_FILES]; /* for each tensor of the file */
    int n_files;
    char folder[4096]; /* of the first file, where config.json may be */
} Published;

/* paths: files, and folders, of which every *.safetensors is opened. After a failure published_close is safe. */
int published_open(Published *c, const char *const *paths, int n, fr_error *err);
void published_close(Published *c);
/* FR_ERR_IO if one of the files has been written to or cut since it was opened. */
int published_check(const Published *c, fr_error *err);
const char *published_path(const Published *c); /* the path of the first file, for messages */

/* The tensor of that name, without taking it; NULL: there is none. */
const SafeTensor *published_find(const Published *c, const char *name);
/* Takes the tensor, which must have exactly the shape [n_out][n_in] or, with n_out 0, [n_in]. */
int published_take(Published *c, const char *name, int64_t n_in, int64_t n_out, const SafeTensor **out, fr_error *err);
/* Takes every tensor whose name begins with the prefix: they are known and not needed. */
void published_pass_over(Published *c, const char *prefix);
/* Refuses a checkpoint with a tensor that was not taken. */
int published_finish(const Published *c, const char *method, fr_error *err);
/* An integer of config.json beside the checkpoint; false: there is none of that key. */
bool published_config(const Published *c, const char *key, int64_t *out);

#endif

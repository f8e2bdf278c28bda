/* hub_folder.h - a model as Hugging Face publishes it: a folder with config.json, safetensors and a tokenizer.
 *
 * Weights are in model.safetensors, or in the parts that model.safetensors.index.json lists. No file is trusted. Every tensor
 * that a conversion uses is marked as taken: one that is left over belongs to a model that computes something else. */
#ifndef CONVERT_HUB_FOLDER_H
#define CONVERT_HUB_FOLDER_H

#include "train/safetensors.h"

#include <jansson.h>

enum { HUB_MAX_FILES = 256, HUB_MAX_PATH = 4096 };

typedef struct HubFolder {
    char folder[HUB_MAX_PATH];
    SafeTensors *files[HUB_MAX_FILES];
    bool *taken[HUB_MAX_FILES]; /* for each tensor of the file */
    int n_files;
    json_t *config;                                    /* an object */
    json_t *tokenizer, *tokenizer_config, *generation; /* objects; NULL: there is no such file */
} HubFolder;

/* After a failure hub_folder_close is safe. */
int hub_folder_open(HubFolder *c, const char *folder, fr_error *err);
void hub_folder_close(HubFolder *c);
/* FR_ERR_IO if one of the weights' files has been written to or cut since it was opened. */
int hub_check(const HubFolder *c, fr_error *err);

/* The path of a file in the folder. False: it is too long. */
bool hub_path(const HubFolder *c, const char *file, char out[HUB_MAX_PATH]);
bool hub_has(const HubFolder *c, const char *file);
/* A whole file of the folder as malloc'ed memory that ends with '\0'; *out NULL: there is no such file. */
int hub_read(const HubFolder *c, const char *file, size_t max_bytes, char **out, size_t *n, fr_error *err);

/* From now on `config` is its object of that name, with what stands outside that object added to it. Does nothing where there is
 * none. */
void hub_enter_part(HubFolder *c, const char *name);

/* The tensor of that name and shape, [n_out][n_in] or with n_out 0 [n_in], which is then taken. *out NULL: there is none. */
int hub_take(HubFolder *c, const char *name, int64_t n_in, int64_t n_out, const SafeTensor **out, fr_error *err);
/* The same with any number of dimensions, in the order of the file. `bytes`: it is of the type U8. */
int hub_take_shaped(HubFolder *c, const char *name, const int64_t *dims, int n_dims, bool bytes, const SafeTensor **out,
                    fr_error *err);
/* Takes a tensor that is known not to be needed, if there is one; and all whose names begin so: returns their number. */
void hub_pass_over(HubFolder *c, const char *name);
int64_t hub_pass_over_all(HubFolder *c, const char *prefix);
/* A tensor that nobody took; NULL: there is none. */
const SafeTensor *hub_left_over(const HubFolder *c);

#endif

/* hub_folder.h - a model as Hugging Face publishes it: a folder with config.json, safetensors and a tokenizer.
 *
 * Weights are in model.safetensors, or in the parts that model.safetensors.index.json lists. No file is trusted. Every
 * tensor that a conversion uses is marked as taken; a tensor that is left over shows that the model computes something
 * else. */
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

/* Returns whether the folder has a file of that name. */
bool hub_has(const HubFolder *c, const char *file);
/* Reads a whole file of the folder as malloc'ed memory that ends with '\0'; *out NULL: there is no such file. */
int hub_read(const HubFolder *c, const char *file, size_t max_bytes, char **out, size_t *n, fr_error *err);

/* Replaces `config` by its object of that name, to which it adds the keys outside that object. Does nothing if there is
 * no such object. */
void hub_enter_part(HubFolder *c, const char *name);

/* Finds and takes the tensor of that name and shape: [n_out][n_in], or [n_in] if n_out is 0. *out NULL: there is
 * none. */
int hub_take(HubFolder *c, const char *name, int64_t n_in, int64_t n_out, const SafeTensor **out, fr_error *err);
/* The same with any number of dimensions, in the order of the file. `bytes`: the tensor must have the type U8. */
int hub_take_shaped(HubFolder *c, const char *name, const int64_t *dims, int n_dims, bool bytes, const SafeTensor **out,
                    fr_error *err);
/* Takes a tensor that is not needed, if there is one. */
void hub_pass_over(HubFolder *c, const char *name);
/* Takes all tensors whose names begin with the prefix; returns their number. */
int64_t hub_pass_over_all(HubFolder *c, const char *prefix);
/* Returns a tensor that has not been taken; NULL: there is none. */
const SafeTensor *hub_left_over(const HubFolder *c);

/* ---- the values of config.json ------------------------------------------------------------------------ */

/* Reads the values of one object and remembers the first failure. */
typedef struct ConfigReader {
    const HubFolder *c;
    const json_t *object;
    fr_error *err;
    int status;
} ConfigReader;

/* Returns whether the key is there and is not null. */
bool config_has(const ConfigReader *r, const char *key);
/* Returns a number from `low` to `high`. `fallback` replaces a missing key; a fallback below `low` means that the key
 * must be there. Returns `low` after a failure. */
int64_t config_int(ConfigReader *r, const char *key, int64_t fallback, int64_t low, int64_t high);
double config_real(ConfigReader *r, const char *key, double fallback, double low, double high);
/* Sets the error "FOLDER/config.json: what", unless there is one already. */
void config_refuse(ConfigReader *r, const char *what);
/* Returns the string of that key, or NULL. */
const char *config_text(const json_t *object, const char *key);

#endif

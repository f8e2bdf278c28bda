/* safetensors.h - reads safetensors files, the format of Hugging Face. Files are mapped, and nothing in them is
 * trusted.
 *
 * All pointers handed out belong to the SafeTensors and live until safetensors_close.
 */
#ifndef TRAIN_SAFETENSORS_H
#define TRAIN_SAFETENSORS_H

#include "base/error.h"
#include "gguf/tensor_type.h"

typedef struct SafeTensors SafeTensors;

enum { SAFETENSORS_MAX_DIMS = 4 };

typedef struct SafeTensor {
    const char *name;  /* '\0'-terminated, unique in the file */
    const char *dtype; /* as in the file */
    bool has_type;     /* dtype is F32, F16 or BF16; tensors of other types are listed but cannot be read */
    TensorType type;
    int n_dims;
    int64_t dims[SAFETENSORS_MAX_DIMS]; /* as in the file: the contiguous one last; unused ones are 1 */
    const void *data;                   /* may have any alignment */
    size_t bytes;
} SafeTensor;

/* Maps the file. Refuses a pickle, with the command that converts it, and any header whose sizes, offsets and shapes do
 * not match each other and the file. */
int safetensors_open(SafeTensors **out, const char *path, fr_error *err);
/* The same for bytes in memory, which must outlive it; messages call them `name`. */
int safetensors_open_memory(SafeTensors **out, const void *bytes, size_t n, const char *name, fr_error *err);
/* FR_ERR_IO if the file has been written to or cut since it was opened. Call it after reading tensors. */
int safetensors_check(const SafeTensors *s, fr_error *err);
void safetensors_close(SafeTensors *s); /* NULL is fine */

const char *safetensors_path(const SafeTensors *s);
int64_t safetensors_count(const SafeTensors *s);
const SafeTensor *safetensors_tensor(const SafeTensors *s, int64_t i);      /* in the order of their data */
const SafeTensor *safetensors_find(const SafeTensors *s, const char *name); /* NULL: there is none */

#endif

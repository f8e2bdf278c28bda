/* convert.h - a model as Hugging Face publishes it becomes a GGUF file.
 *
 *   hub_folder.c      the folder's files           convert_vocab.c    tokens, special tokens, chat template
 *   convert_shape.c   config.json                  tokens_json.c      tokenizer.json
 *   convert_rows.c    orders of numbers            convert_delta.c, convert_windows.c   keys of some architectures
 *   convert_arch.c    names of tensors             tokens_spm.c       tokenizer.model (wire.c reads its format)
 *   convert.c         the weights
 */
#ifndef CONVERT_CONVERT_H
#define CONVERT_CONVERT_H

#include "gguf/tensor_type.h"
#include "base/error.h"

typedef struct ConvertOptions {
    TensorType type; /* of matrices: F32, F16, BF16 or Q8_0; vectors are F32 */
    void (*note)(void *user, const char *sentence);
    void (*progress)(void *user, double part); /* part goes from 0 to 1; either may be NULL */
    void *user;
} ConvertOptions;

/* Refuses tensors that are missing, unknown, of another shape than config.json says, or hold NaN; and numbers too large for the
 * type. A file at `path` is replaced in the moment when all is done. */
int convert_folder(const char *folder, const char *path, const ConvertOptions *options, fr_error *err);

#endif

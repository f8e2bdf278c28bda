/* convert.h - converts a model as Hugging Face publishes it into a GGUF file.
 *
 *   convert.c          the plan of the tensors, and the weights
 *   hub_folder.c       the folder's files, and the values of config.json
 *   convert_shape.c    hyper-parameters: from config.json to keys
 *   convert_arch.c     the list of architectures, and the llama family; other families:
 *                      convert_windows.c, convert_hybrid.c, convert_deepseek.c
 *   convert_tensors.c  names of tensors, and the order of their elements
 *   convert_vocab.c    tokens, special tokens, chat template; tokens_json.c reads tokenizer.json, tokens_spm.c reads
 *                      tokenizer.model
 */
#ifndef CONVERT_CONVERT_H
#define CONVERT_CONVERT_H

#include "gguf/tensor_type.h"
#include "base/error.h"

typedef struct ConvertOptions {
    TensorType type; /* type of the matrices: F32, F16, BF16 or Q8_0; vectors are F32 */
    void (*note)(void *user, const char *sentence);
    void (*progress)(void *user, double part); /* part goes from 0 to 1; either may be NULL */
    void *user;
} ConvertOptions;

/* Refuses tensors that are missing, unknown, contain NaN or contradict config.json, and numbers that are too large for
 * the type. A file at `path` is replaced only when the new one is complete. */
int convert_folder(const char *folder, const char *path, const ConvertOptions *options, fr_error *err);

#endif

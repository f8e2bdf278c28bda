/* model_patch.h - changes the numbers of a GGUF file: reads it, lets the test write into its tensors, and writes it. */
#ifndef TESTS_MODEL_PATCH_H
#define TESTS_MODEL_PATCH_H

#include "gguf/gguf.h"

typedef struct ModelPatch {
    char *bytes;
    size_t n;
    Gguf *gguf; /* opened over these bytes */
} ModelPatch;

/* Each fails the running test if it cannot do its work. */
void model_patch_open(ModelPatch *p, const char *path);
/* Returns the data of a tensor, to be written to. */
void *model_patch_tensor(ModelPatch *p, const char *name);
void model_patch_write(const ModelPatch *p, const char *path);
void model_patch_close(ModelPatch *p);

#endif

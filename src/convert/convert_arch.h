/* convert_arch.h - the table of architectures that can be converted: which published tensor becomes which of a GGUF file. */
#ifndef CONVERT_CONVERT_ARCH_H
#define CONVERT_CONVERT_ARCH_H

#include "convert/convert_shape.h"

/* A dimension of a tensor, by what it counts. */
typedef enum ConvertSize { SIZE_NONE, SIZE_EMBD, SIZE_Q, SIZE_KV, SIZE_FF, SIZE_HEAD, SIZE_VOCAB } ConvertSize;

typedef struct ConvertTensor {
    const char *from, *to;   /* names; "%d" is the number of the layer, and the tensor is there once for each */
    ConvertSize n_in, n_out; /* n_out SIZE_NONE: a vector */
    bool optional;
    bool rotated; /* queries and keys: where the architecture rotates neighbours, rows are put together in pairs */
} ConvertTensor;

typedef struct ConvertArch {
    const char *published;        /* "architectures" in config.json; several are separated by spaces */
    const char *name;             /* general.architecture */
    bool rotates_pairs;           /* neighbours of a head are rotated together, not its halves */
    const ConvertTensor *tensors; /* ends with from == NULL */
} ConvertArch;

/* All of them, ending with published == NULL. */
const ConvertArch *convert_archs(void);
/* By config.json; NULL with an error that names those that are supported. */
const ConvertArch *convert_arch_find(const HubFolder *c, fr_error *err);

int64_t convert_size(const ConvertShape *s, ConvertSize size);

#endif

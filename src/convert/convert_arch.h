/* convert_arch.h - the table of architectures that can be converted: which published tensor becomes which of a GGUF file. */
#ifndef CONVERT_CONVERT_ARCH_H
#define CONVERT_CONVERT_ARCH_H

#include "convert/convert_shape.h"

/* A dimension of a tensor, by what it counts. */
typedef enum ConvertSize {
    SIZE_NONE,
    SIZE_ONE,
    SIZE_EMBD,
    SIZE_Q,
    SIZE_KV,
    SIZE_QKV,
    SIZE_FF,
    SIZE_GATE_UP,
    SIZE_HEAD,
    SIZE_VOCAB,
    SIZE_EXPERTS,
    SIZE_EXPERT_FF,
    SIZE_SHARED_FF,
} ConvertSize;

typedef struct ConvertTensor {
    const char *from, *to;   /* names; "%d" is the number of the layer, and the tensor is there once for each. A second
                              * one in `from` is that of an expert, and the matrices of all are put into one tensor */
    ConvertSize n_in, n_out; /* n_out SIZE_NONE: a vector; SIZE_ONE: a matrix of one row that becomes one */
    bool optional;
    bool rotated; /* queries and keys: where the architecture rotates neighbours, rows are put together in pairs */
} ConvertTensor;

/* What the weights of the chosen experts sum to: their architecture knows one of the two. */
typedef enum ConvertExperts { EXPERTS_NONE, EXPERTS_SUM_TO_1, EXPERTS_KEEP_PROBABILITIES } ConvertExperts;

typedef struct ConvertArch {
    const char *published;        /* "architectures" in config.json; several are separated by spaces */
    const char *name;             /* general.architecture */
    bool rotates_pairs;           /* neighbours of a head are rotated together, not its halves */
    const ConvertTensor *tensors; /* ends with from == NULL */
    ConvertExperts experts;
    /* Optional: refuses what the architecture cannot express, and writes its own keys. */
    int (*keys)(const ConvertShape *s, const HubFolder *c, GgufWriter *w, fr_error *err);
    bool has_window;      /* `keys` writes the sliding window */
    bool adds_1_to_norms; /* the published weights of norms are what is added to 1 */
    ConvertUsual usual;
} ConvertArch;

/* All of them, ending with published == NULL. */
const ConvertArch *convert_archs(void);
/* By config.json; NULL with an error that names those that are supported. */
const ConvertArch *convert_arch_find(const HubFolder *c, fr_error *err);

/* `keys` of the architectures with windows (convert_windows.c). */
int convert_gemma2_keys(const ConvertShape *s, const HubFolder *c, GgufWriter *w, fr_error *err);
int convert_gemma3_keys(const ConvertShape *s, const HubFolder *c, GgufWriter *w, fr_error *err);
int convert_phi3_keys(const ConvertShape *s, const HubFolder *c, GgufWriter *w, fr_error *err);

int64_t convert_size(const ConvertShape *s, ConvertSize size);

#endif

/* quant_mix.h - which tensor of a model gets which type: the mixtures under the names that users know (Q4_K_M, ...). */
#ifndef QUANT_QUANT_MIX_H
#define QUANT_QUANT_MIX_H

#include "gguf/gguf.h"

typedef struct QuantMix {
    const char *name, *alias; /* alias: another name, or NULL */
    TensorType type;          /* of most matrices */
    uint32_t file_type;       /* general.file_type */
    const char *summary;      /* for --help */
} QuantMix;

/* All of them, ending with name == NULL; one by its name in any case, or NULL. */
const QuantMix *quant_mixes(void);
const QuantMix *quant_mix_find(const char *name);

/* What the choice depends on besides the tensor. */
typedef struct QuantShape {
    int32_t n_layer, n_nextn; /* n_nextn of them are for multi-token prediction, the last ones */
    bool shares_values; /* 80 layers, and heads of queries that share their values: Llama 70B and what was made of it */
    bool shares_by_four; /* four or more heads of queries share their keys and values */
    bool has_experts;    /* four or more */
    bool is_tied;        /* the embedding is the LM head, too */
    bool has_importance;
} QuantShape;
QuantShape quant_shape(const Gguf *g, bool has_importance);

/* Whether the tensor is a matrix that quantisation is for: not a norm, a bias, or the router of experts. */
bool quant_is_matrix(const GgufTensor *t);
/* The type that the mixture wants for a matrix. */
TensorType quant_mix_type(const QuantMix *mix, const QuantShape *shape, const GgufTensor *t);
/* Whether blocks of the type are too coarse to be written without knowing which inputs matter. */
bool quant_needs_importance(TensorType type);
/* The type that a matrix with rows of n elements gets instead, where these are not whole blocks of `type`. */
TensorType quant_fallback(TensorType type, int64_t n);

#endif

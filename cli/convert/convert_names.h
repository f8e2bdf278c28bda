/* convert_names.h - the names of tensors, published and of a GGUF file. */
#ifndef CONVERT_CONVERT_NAMES_H
#define CONVERT_CONVERT_NAMES_H

#include "cli/convert/convert_arch.h"

enum { CONVERT_MAX_NAME = 160 };

/* The published name for that layer and expert; a layer behind the last one is that for multi-token prediction. */
void convert_name_from(const ConvertTensor *t, const ConvertShape *s, int64_t layer, int64_t expert,
                       char out[CONVERT_MAX_NAME]);
/* The name in the GGUF file. */
void convert_name_to(const ConvertTensor *t, int64_t layer, char out[CONVERT_MAX_NAME]);
/* Whether each expert has a tensor of its own. */
bool convert_is_of_experts(const ConvertTensor *t);

/* What a layer for multi-token prediction has beside the tensors of a layer with attention, ending with from == NULL. */
extern const ConvertTensor convert_nextn_tensors[];
/* Whether it is a norm whose published weights are what is added to 1. */
bool convert_is_less_1(const ConvertArch *arch, const char *name);

#endif

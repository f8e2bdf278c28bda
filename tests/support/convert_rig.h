/* convert_rig.h - compares a model with what `convert` made of its parts. */
#ifndef TESTS_CONVERT_RIG_H
#define TESTS_CONVERT_RIG_H

#include "testing.h"

#include "format/gguf.h"

/* Whether b, in `type`, has the tensors of a, which were stored as `between`. */
void convert_rig_compare_tensors(const Gguf *a, const Gguf *b, TensorType type, TensorType between);
void convert_rig_compare_vocabularies(const Gguf *a, const Gguf *b, bool same_scores);
/* A command of forerun, with "%s" for the model, must write the same for both. */
void convert_rig_same_output(const char *command, const char *model, const char *converted);

#endif

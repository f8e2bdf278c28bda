/* hub_llama4.h - takes models of Llama 4's architecture apart as their authors publish them, with code that shares nothing with
 * src/convert. */
#ifndef TESTS_HUB_LLAMA4_H
#define TESTS_HUB_LLAMA4_H

#include "hub_build.h"

/* Writes model.safetensors. All tensors are F32. With a text_part, names begin with "language_model.", and there are tensors that
 * read pictures. */
void hub_llama4_write(const Gguf *g, const char *folder, const HubBuild *options);

#endif

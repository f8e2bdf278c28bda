/* hub_deepseek.h - takes models of DeepSeek's and GLM's architectures apart as their authors publish them, with code that shares
 * nothing with src/convert. */
#ifndef TESTS_HUB_DEEPSEEK_H
#define TESTS_HUB_DEEPSEEK_H

#include "hub_build.h"

/* Whether the model is deepseek2, with attn_k_b and attn_v_b, or glm4moe. */
bool hub_deepseek_has(const Gguf *g);
/* Writes model.safetensors. All tensors are F32. */
void hub_deepseek_write(const Gguf *g, const char *folder, const HubBuild *options);

#endif

/* hub_forms.h - takes models apart whose published tensors are not those of a GGUF file: qwen3next, qwen35, qwen35moe and
 * gpt-oss. By definition of the published models and with no code of src/convert. */
#ifndef TESTS_HUB_FORMS_H
#define TESTS_HUB_FORMS_H

#include "hub_build.h"

bool hub_forms_has(const Gguf *g);
/* Writes model.safetensors. All tensors are F32; the experts of gpt-oss may be MXFP4. */
void hub_forms_write(const Gguf *g, const char *folder, const HubBuild *options);

#endif

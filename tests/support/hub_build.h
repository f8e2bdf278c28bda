/* hub_build.h - takes a GGUF model apart into a folder as Hugging Face publishes models, for tests of `convert`. */
#ifndef TESTS_HUB_BUILD_H
#define TESTS_HUB_BUILD_H

#include "testing.h"

#include "gguf/gguf.h"

typedef enum HubVocab {
    HUB_SPM,     /* tokenizer.model, written as a protocol buffer */
    HUB_MERGES,  /* tokenizer.json with merges in the order of the scores, over characters with byte tokens */
    HUB_NOTHING, /* no vocabulary */
} HubVocab;

typedef struct HubBuild {
    TensorType type; /* of the safetensors: F32, F16 or BF16 */
    int n_parts;     /* files of weights; 1: model.safetensors, more: with an index */
    HubVocab vocab;
    bool text_part; /* of a model that reads pictures: the text is in a part of config.json and in model.language_model */
    const char *config; /* appended to the keys of config.json: ", \"key\": value"; NULL: nothing */
} HubBuild;

/* The model must be llama (with experts: as Mixtral), qwen2, qwen2moe, qwen3, qwen3moe, granite, smollm3, gemma2, gemma3 or
 * phi3, with F32 tensors and a vocabulary of the model "llama"; or one that hub_forms.h or hub_deepseek.h takes apart. */
void hub_build_write(const Gguf *g, const char *folder, const HubBuild *options);

/* Questions to the model. A number of its architecture, such as "block_count"; the greatest of a list; 0: the file has none. */
bool hub_is_arch(const Gguf *g, const char *name);
int64_t hub_number(const Gguf *g, const char *key);

#endif

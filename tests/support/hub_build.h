/* hub_build.h - takes a GGUF model apart into a folder in the form in which Hugging Face publishes models, for tests of
 * `convert`. */
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
    TensorType type; /* the type in the safetensors: F32, F16 or BF16 */
    int n_parts;     /* files of weights; 1: model.safetensors, more: with an index */
    HubVocab vocab;
    bool text_part;     /* the model reads pictures: its text model is in a part of config.json and in
                     * model.language_model */
    const char *config; /* appended to the keys of config.json: ", \"key\": value"; NULL: nothing */
} HubBuild;

/* The model must be llama (with experts: published as Mixtral), qwen2, qwen2moe, qwen3, qwen3moe, granite, smollm3,
 * gemma2, gemma3 or phi3, with F32 tensors and a vocabulary of the model "llama"; or one of those below. */
void hub_build_write(const Gguf *g, const char *folder, const HubBuild *options);

/* Returns a number of the model's architecture, such as "block_count"; for a list the greatest one; 0: the file has
 * none. */
bool hub_is_arch(const Gguf *g, const char *name);
int64_t hub_number(const Gguf *g, const char *key);

/* Models whose published tensors are not those of a GGUF file. The code follows the published models, and shares
 * nothing with cli/convert. Each function writes model.safetensors, with F32 tensors. */

/* qwen3next, qwen35, qwen35moe and gpt-oss; the experts of gpt-oss may be MXFP4 (hub_forms.c). */
bool hub_forms_has(const Gguf *g);
void hub_forms_write(const Gguf *g, const char *folder, const HubBuild *options);
/* deepseek2, with attn_k_b and attn_v_b, and glm4moe (hub_deepseek.c). */
bool hub_deepseek_has(const Gguf *g);
void hub_deepseek_write(const Gguf *g, const char *folder, const HubBuild *options);
/* llama4. With a text_part, names begin with "language_model.", and there are tensors that read pictures
 * (hub_llama4.c). */
void hub_llama4_write(const Gguf *g, const char *folder, const HubBuild *options);

#endif

/* convert_arch.h - the table of architectures that can be converted: which published tensor becomes which of a GGUF file. */
#ifndef CONVERT_CONVERT_ARCH_H
#define CONVERT_CONVERT_ARCH_H

#include "cli/convert/convert_rows.h"
#include "model/tensor_table.h"

typedef struct ConvertTensor {
    /* The published name. "%d" is the number of the layer, and there is one such tensor for each layer. A second "%d" is the number of
     * the expert, and the matrices of all experts are put into one tensor. */
    const char *from;
    TensorId to; /* which gives the name in the GGUF file, and the shape */
    bool optional;
    ConvertForm form;
} ConvertTensor;

typedef struct ConvertArch {
    const char *published;        /* "architectures" in config.json; several are separated by spaces */
    const char *text_type;        /* NULL, or "model_type" of the text's part in config.json */
    const char *name;             /* general.architecture */
    bool rotates_pairs;           /* neighbours of a head are rotated together, not its halves */
    const ConvertTensor *tensors; /* ends with from == NULL */
    const ConvertTensor *packed;  /* in their place where the experts are in MXFP4; NULL: such models are refused */
    const ConvertTensor *dense;   /* in their place where config.json has no experts; NULL: it must have them */
    ConvertExperts experts;
    /* Of architectures with recurrent layers, whose tensors have this part in their names, where others have ".self_attn."; NULL:
     * there are none. `read` tells which layers they are. */
    const char *recurrent;
    int (*read)(ConvertShape *s, const HubFolder *c, fr_error *err);
    /* Optional: refuses what the architecture cannot express, and writes its own keys. */
    int (*keys)(const ConvertShape *s, const HubFolder *c, GgufWriter *w, fr_error *err);
    /* Optional: whether a layer has a tensor. */
    bool (*has)(const ConvertShape *s, const ConvertTensor *t, int64_t layer);
    bool has_window;      /* `keys` writes the sliding window */
    bool has_mtp;         /* files may have a layer for multi-token prediction */
    bool nextn_in_layers; /* likewise, as one more of the model's layers */
    bool has_text_part; /* config.json may have the model in "text_config", with names in model.language_model or language_model.model */
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
int convert_gpt_oss_keys(const ConvertShape *s, const HubFolder *c, GgufWriter *w, fr_error *err);

/* `read` and `keys` of the architectures with recurrent layers (convert_delta.c, convert_hybrid.c). */
int convert_delta_read(ConvertShape *s, const HubFolder *c, fr_error *err);
int convert_delta_keys(const ConvertShape *s, const HubFolder *c, GgufWriter *w, fr_error *err);
extern const ConvertTensor convert_lfm2_tensors[], convert_lfm2moe_tensors[];
int convert_lfm2_read(ConvertShape *s, const HubFolder *c, fr_error *err);
int convert_lfm2_keys(const ConvertShape *s, const HubFolder *c, GgufWriter *w, fr_error *err);
bool convert_lfm2moe_has(const ConvertShape *s, const ConvertTensor *t, int64_t layer);
int convert_lfm2moe_read(ConvertShape *s, const HubFolder *c, fr_error *err);
int convert_lfm2moe_keys(const ConvertShape *s, const HubFolder *c, GgufWriter *w, fr_error *err);
int convert_granite_hybrid_read(ConvertShape *s, const HubFolder *c, fr_error *err);
int convert_granite_hybrid_keys(const ConvertShape *s, const HubFolder *c, GgufWriter *w, fr_error *err);

/* DeepSeek and GLM (convert_deepseek.c): tensors, which layers have them, `read` and `keys`; and their rows of the table. */
extern const ConvertTensor convert_deepseek_tensors[], convert_glm4moe_tensors[];
bool convert_routed_has(const ConvertShape *s, const ConvertTensor *t, int64_t layer);
int convert_deepseek_read(ConvertShape *s, const HubFolder *c, fr_error *err);
int convert_deepseek_keys(const ConvertShape *s, const HubFolder *c, GgufWriter *w, fr_error *err);
int convert_glm4moe_read(ConvertShape *s, const HubFolder *c, fr_error *err);
int convert_glm4moe_keys(const ConvertShape *s, const HubFolder *c, GgufWriter *w, fr_error *err);
#define CONVERT_DEEPSEEK_ARCHS \
    {.published = "DeepseekV2ForCausalLM DeepseekV3ForCausalLM Glm4MoeLiteForCausalLM", \
     .name = "deepseek2", \
     .tensors = convert_deepseek_tensors, \
     .rotates_pairs = true, \
     .read = convert_deepseek_read, \
     .keys = convert_deepseek_keys, \
     .has = convert_routed_has, \
     .nextn_in_layers = true, \
     .usual = {.head_dim = 64}}, \
    { \
        .published = "Glm4MoeForCausalLM", .name = "glm4moe", .tensors = convert_glm4moe_tensors, \
        .read = convert_glm4moe_read, .keys = convert_glm4moe_keys, .has = convert_routed_has, \
        .nextn_in_layers = true, .usual = {.head_dim = 128, .rotated_part = 0.5}, \
    }

/* Ministral 3 and Llama 4 (convert_temperature.c). */
extern const ConvertTensor convert_llama4_tensors[];
bool convert_llama4_has(const ConvertShape *s, const ConvertTensor *t, int64_t layer);
int convert_llama4_read(ConvertShape *s, const HubFolder *c, fr_error *err);
int convert_llama4_keys(const ConvertShape *s, const HubFolder *c, GgufWriter *w, fr_error *err);
int convert_mistral3_keys(const ConvertShape *s, const HubFolder *c, GgufWriter *w, fr_error *err);

/* `keys` of single architectures (convert_keys.c). */
int convert_granite_keys(const ConvertShape *s, const HubFolder *c, GgufWriter *w, fr_error *err);
int convert_smollm3_keys(const ConvertShape *s, const HubFolder *c, GgufWriter *w, fr_error *err);

#endif

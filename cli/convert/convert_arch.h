/* convert_arch.h - the table of architectures that can be converted: which published tensor becomes which of a GGUF file. */
#ifndef CONVERT_CONVERT_ARCH_H
#define CONVERT_CONVERT_ARCH_H

#include "cli/convert/convert_rows.h"

/* A dimension of a tensor, by what it counts. */
typedef enum ConvertSize {
    SIZE_NONE,
    SIZE_ONE,
    SIZE_EMBD,
    SIZE_TWO_EMBD,
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
    SIZE_HEADS,
    SIZE_Q_AND_GATES, /* by head the queries, then the gates of what it reads */
    SIZE_DELTA_CHANNELS,
    SIZE_DELTA_VALUES,
    SIZE_DELTA_HEADS,
    SIZE_DELTA_GATES, /* two of each value head */
    SIZE_DELTA_HEAD,
    SIZE_CONV,
    SIZE_GATED_EMBD, /* two gates and what they are for */
    SIZE_MAMBA,
    SIZE_MAMBA_CHANNELS,
    SIZE_MAMBA_IN,
    SIZE_MAMBA_GROUPS,
    SIZE_MAMBA_GROUP,
    SIZE_Q_RANK, /* here and below of latent attention */
    SIZE_KV_RANK,
    SIZE_LATENT_QUERIES,
    SIZE_LATENT_VALUES,
    SIZE_PLAIN,
    SIZE_VALUE,
} ConvertSize;

typedef struct ConvertTensor {
    const char *from, *to;   /* names; "%d" is the number of the layer, and the tensor is there once for each. A second
                              * one in `from` is that of an expert, and the matrices of all are put into one tensor */
    ConvertSize n_in, n_out; /* n_out SIZE_NONE: a vector; SIZE_ONE: a matrix of one row that becomes one */
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

int64_t convert_size(const ConvertShape *s, ConvertSize size);

#endif

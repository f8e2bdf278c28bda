/* convert_shape.h - the shape of a model, from config.json, and its keys in a GGUF file. */
#ifndef CONVERT_CONVERT_SHAPE_H
#define CONVERT_CONVERT_SHAPE_H

#include "cli/convert/hub_folder.h"
#include "gguf/gguf_write.h"
#include "model/hparams.h"

enum { CONVERT_MAX_LAYER = 1024 };

typedef struct ConvertShape {
    const char *arch; /* general.architecture */
    int64_t n_layer, n_embd, n_ff, n_head, n_head_kv, head_dim, n_vocab, n_ctx;
    int64_t n_expert, n_expert_used, n_ff_expert, n_ff_shared; /* 0: none; n_ff_expert: as n_ff */
    int64_t n_rot;                                             /* components of a head that are rotated */
    bool has_head_dim;                                         /* config.json names it */
    /* Of models with recurrent layers; 0: there are none. */
    int64_t n_key_heads, n_value_heads, delta_dim, n_conv, attention_interval;
    int64_t n_nextn; /* layers for multi-token prediction: 0 or 1 */
    int64_t n_state; /* of Mamba-2; its groups are n_key_heads, its heads n_value_heads */
    /* Of latent attention (kv_rank 0: another one), whose head_dim is the width of what is cached. */
    int64_t kv_rank, q_rank, plain_dim, value_dim;
    int64_t n_dense, n_groups, n_groups_used; /* leading layers without experts; of experts, 0: none */
    int64_t expert_interval;                  /* every so many-th layer has experts; 0: all have */
    bool has_sigmoid_router;
    bool nextn_in_layers; /* the layer for multi-token prediction is published as one more layer of the model */
    bool recurrent[CONVERT_MAX_LAYER + 1]; /* which layers these are */
    bool lists_kv_heads; /* the GGUF file has a number of key-value heads for each layer, 0 for these */
    double eps, rope_base;
    json_t *scaling; /* of rope; NULL: none. Borrowed from config.json */
    char scaling_type[16];
    double scaling_factor;
    int64_t n_ctx_orig; /* of LongRoPE: the context before it was extended */
    int tied;           /* 1, 0, or -1: config.json does not say */
} ConvertShape;

/* What models of an architecture have where config.json may be silent, as transformers' configurations say. */
typedef struct ConvertUsual {
    const char *activation; /* the only one that is supported; NULL: silu */
    double rope_base;       /* 0: 10000 */
    int64_t head_dim;       /* 0: hidden_size / num_attention_heads */
    double rotated_part;    /* of a head, where the architecture may rotate a part of it; 0: it may not */
    bool is_tied;           /* the LM head is the embedding */
    const char *eps_key;    /* NULL: rms_norm_eps */
    const char *ff_key;     /* if it is there, it is taken in the place of intermediate_size; NULL: none */
    bool has_long_rope;     /* the scaling of rope may be LongRoPE */
} ConvertUsual;

/* Refuses what the architecture cannot express: another activation, biases where there are none, unknown scaling. */
int convert_shape_read(ConvertShape *s, const HubFolder *c, const ConvertUsual *usual, fr_error *err);
/* Writes the keys of the shape. `rotates_pairs`: the architecture names the rotated dimensions. */
void convert_shape_write(const ConvertShape *s, const char *arch, bool rotates_pairs, GgufWriter *w);

/* The same shape as a model has it once its file is read. */
Hparams convert_hparams(const ConvertShape *s);

/* The key ARCH.KEY. */
void convert_set_int(GgufWriter *w, const char *arch, const char *key, int64_t v);
void convert_set_real(GgufWriter *w, const char *arch, const char *key, double v);

/* What the weights of the chosen experts sum to: their architecture knows one of the two. _ALWAYS: config.json does not say it. */
typedef enum ConvertExperts {
    EXPERTS_NONE,
    EXPERTS_SUM_TO_1,
    EXPERTS_KEEP_PROBABILITIES,
    EXPERTS_ALWAYS_SUM_TO_1
} ConvertExperts;

/* The same for a mixture of experts. */
int convert_experts_read(ConvertShape *s, const HubFolder *c, ConvertExperts experts, fr_error *err);
void convert_experts_write(const ConvertShape *s, const char *arch, GgufWriter *w);

/* Writes general.* keys, for matrices of that type. */
void convert_general_write(const HubFolder *c, const char *arch, TensorType type, GgufWriter *w);

#endif

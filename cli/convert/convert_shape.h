/* convert_shape.h - the hyper-parameters of a model: read from config.json, and written as the keys of a GGUF file. */
#ifndef CONVERT_CONVERT_SHAPE_H
#define CONVERT_CONVERT_SHAPE_H

#include "cli/convert/hub_folder.h"
#include "gguf/gguf_write.h"
#include "model/hparams.h"

enum { CONVERT_MAX_LAYER = 1024 };

typedef struct ConvertShape {
    const char *arch; /* general.architecture */
    int64_t n_layer, n_embd, n_ff, n_head, n_head_kv, head_dim, n_vocab, n_ctx;
    int64_t n_expert, n_expert_used, n_ff_expert, n_ff_shared; /* 0: none; n_ff_expert 0: as n_ff */
    int64_t n_rot;                                             /* components of a head that are rotated */
    bool has_head_dim;                                         /* config.json has head_dim */
    /* Models with recurrent layers; 0: there are none. */
    int64_t n_key_heads, n_value_heads, delta_dim, n_conv, attention_interval;
    int64_t n_nextn; /* layers for multi-token prediction */
    int64_t n_state; /* Mamba-2; its groups are n_key_heads, its heads n_value_heads */
    /* Latent attention (kv_rank 0: the model has another kind); head_dim is the width of a cached row. */
    int64_t kv_rank, q_rank, plain_dim, value_dim;
    int64_t n_dense;                 /* leading layers without experts */
    int64_t n_groups, n_groups_used; /* groups of experts; 0: none */
    int64_t expert_interval;         /* one layer in this many has experts; 0: all have */
    bool has_sigmoid_router;
    bool nextn_in_layers; /* layers for multi-token prediction are published as further layers of the model */
    bool recurrent[CONVERT_MAX_LAYER + 1]; /* whether layer i is recurrent */
    bool lists_kv_heads; /* the GGUF file has a number of key-value heads for each layer, 0 for recurrent ones */
    double eps, rope_base;
    json_t *scaling; /* rope scaling; NULL: none. Borrowed from config.json */
    char scaling_type[16];
    double scaling_factor;
    int64_t n_ctx_orig; /* LongRoPE: the context before it was extended */
    int tied;           /* 1, 0, or -1: config.json does not have the key */
} ConvertShape;

/* The defaults of an architecture for keys that config.json may leave out: those of transformers. */
typedef struct ConvertUsual {
    const char *activation; /* the only one that is supported; NULL: silu */
    double rope_base;       /* 0: 10000 */
    int64_t head_dim;       /* 0: hidden_size / num_attention_heads */
    double rotated_part;    /* the part of a head that is rotated; 0: always the whole head */
    bool is_tied;           /* the LM head is the embedding */
    const char *eps_key;    /* NULL: rms_norm_eps */
    const char *ff_key;     /* replaces intermediate_size if config.json has it; NULL: none */
    bool has_long_rope;     /* the rope scaling may be LongRoPE */
} ConvertUsual;

/* What the weights of the chosen experts sum to. An architecture supports one of the two; _ALWAYS: config.json has no
 * key for it. */
typedef enum ConvertExperts {
    EXPERTS_NONE,
    EXPERTS_SUM_TO_1,
    EXPERTS_KEEP_PROBABILITIES,
    EXPERTS_ALWAYS_SUM_TO_1
} ConvertExperts;

/* Refuses what the architecture cannot express: another activation, or rope scaling of an unknown kind. */
int convert_shape_read(ConvertShape *s, const HubFolder *c, const ConvertUsual *usual, fr_error *err);
/* Reads the keys of a mixture of experts. */
int convert_experts_read(ConvertShape *s, const HubFolder *c, ConvertExperts experts, fr_error *err);

/* `rotates_pairs`: the GGUF file names the number of rotated dimensions. */
void convert_shape_write(const ConvertShape *s, const char *arch, bool rotates_pairs, GgufWriter *w);
void convert_experts_write(const ConvertShape *s, const char *arch, GgufWriter *w);
/* Writes the general.* keys of a file whose matrices have that type. */
void convert_general_write(const HubFolder *c, const char *arch, TensorType type, GgufWriter *w);

/* Writes the keys of the rope scaling; convert_shape_write calls it. */
void convert_rope_write(const ConvertShape *s, GgufWriter *w);
/* Adds the tensors of rope divisors, if the scaling has any; `room` [head_dim] must last until the file is written. */
void convert_rope_tensors(const ConvertShape *s, float *room, GgufWriter *w);

/* Returns the sizes that tensors depend on, as the model has them once its file is read. */
Hparams convert_hparams(const ConvertShape *s);

/* Sets the key ARCH.KEY. */
void convert_set_int(GgufWriter *w, const char *arch, const char *key, int64_t v);
void convert_set_real(GgufWriter *w, const char *arch, const char *key, double v);

#endif

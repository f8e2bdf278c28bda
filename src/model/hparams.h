/* hparams.h - the shape of a model, read from GGUF key-values and checked. */
#ifndef MODEL_HPARAMS_H
#define MODEL_HPARAMS_H

#include "base/error.h"
#include "base/math_functions.h"
#include "gguf/gguf.h"
#include "gguf/tensor_type.h"

#include <math.h>

/* The numbers are part of the fingerprint that binds a drafter file to its target, so new architectures come last. */
typedef enum Arch {
    ARCH_LLAMA,
    ARCH_QWEN2,
    ARCH_QWEN3,
    ARCH_QWEN2MOE,
    ARCH_QWEN3MOE,
    ARCH_GEMMA2,
    ARCH_GEMMA3,
    ARCH_PHI3,
    ARCH_SMOLLM3,
    ARCH_GRANITE,
    ARCH_QWEN35,
    ARCH_QWEN35MOE,
    ARCH_QWEN3NEXT,
    ARCH_GPT_OSS,
    ARCH_LFM2,
    ARCH_GRANITEHYBRID,
    ARCH_MAMBA2,
    ARCH_DEEPSEEK2,
    ARCH_GLM4MOE,
    ARCH_MISTRAL3,
    ARCH_LLAMA4,
    ARCH_LFM2MOE,
    ARCH_GEMMA4,
    ARCH_COUNT
} Arch;

typedef enum RopeScaling { ROPE_SCALING_NONE, ROPE_SCALING_LINEAR, ROPE_SCALING_YARN } RopeScaling;

typedef struct RopeParams {
    RopeStyle style;
    int32_t n_rot; /* components of a head that are rotated; an even number */
    double base;
    RopeScaling scaling;
    double factor;        /* the extension of the context; 1 without scaling */
    int32_t n_ctx_orig;   /* the context before extension */
    double magnitude;     /* a factor of cos and sin; 0: 1 */
    bool names_magnitude; /* the file names the magnitude of YaRN; false: it follows from the factor */
    double ext_factor, beta_fast, beta_slow; /* the parameters of YaRN (arXiv 2309.00071) */
} RopeParams;

/* The shape of layers of MIXER_DELTA_NET (DeltaNetSpec). */
typedef struct DeltaNetShape {
    int32_t n_key_heads, n_value_heads; /* several value heads may share the queries and keys of one head */
    int32_t dim;                        /* components of a query, key or value head */
} DeltaNetShape;

/* The shape of multi-head latent attention (LatentSpec). The cache then has one KV head of rank + n_rot numbers for
 * each token, and no values: n_head_kv is 1, and head_dim is the width of what is cached. */
typedef struct LatentShape {
    int32_t rank;      /* width of the latent that keys and values are made of; 0: no layer is of this kind */
    int32_t q_rank;    /* width of the latent that queries are made of; 0: there is none */
    int32_t plain_dim; /* components of a query or key head that are not rotated; rope.n_rot more are */
    int32_t value_dim; /* components of a value head */
} LatentShape;

/* Attention scores may grow with the position of the query, so that softmax stays as sharp over a long context (arXiv
 * 2501.19399, as in Llama 4 and Mistral 3). They are multiplied by 1 + scale ln(step + 1), where step = floor((position
 * + offset) / length). */
typedef struct AttnTemperature {
    float scale; /* 0: scores do not grow */
    int32_t length, offset;
} AttnTemperature;

typedef enum RouterGate { ROUTER_SOFTMAX, ROUTER_SIGMOID } RouterGate;

/* The shape of layers of MIXER_MAMBA2 (Mamba2Spec). */
typedef struct Mamba2Shape {
    int32_t n_heads, dim;      /* heads of x, and components of each */
    int32_t n_groups, n_state; /* n_heads / n_groups adjacent heads share B and C, which have n_state components */
} Mamba2Shape;

/* What a layer with a recurrent state keeps, for every kind of such layers. All of them in a model are of one kind. */
typedef struct StateShape {
    int32_t n_conv;      /* positions that the convolution sees; 0: no layer has a state */
    int32_t n_heads;     /* parts of the state that do not read each other */
    int64_t n_channels;  /* channels of the convolution */
    int64_t n_gates;     /* numbers of a position that the heads read in addition to these channels */
    int64_t n_values;    /* numbers that the output projection reads */
    int64_t head_dim;    /* how many of these values belong to a head; the last head may have fewer */
    int64_t head_floats; /* numbers in the state of a head, without the last inputs of the convolution */
} StateShape;

typedef struct Hparams {
    Arch arch;
    int32_t n_layer, n_embd, n_ff, n_vocab;
    int32_t n_head, n_head_kv, head_dim; /* if layers have different numbers, these and n_ff are the greatest */
    int32_t n_ctx_train;
    float rms_eps;
    RopeParams rope;
    int32_t n_expert, n_expert_used;  /* in each layer that has experts; 0: the model has none */
    int32_t n_ff_expert, n_ff_shared; /* inner widths of an expert, and of the shared expert; 0: none */
    RouterGate router_gate;           /* how the logits of the router become probabilities */
    bool has_router_gate;     /* whether the file names the gate; if not, a layer with a choice_bias has the sigmoid */
    bool keeps_probabilities; /* LayerSpec explains this and the next three */
    float expert_scale;       /* 0: 1 */
    int32_t n_expert_groups;  /* 0: none */
    int32_t n_expert_groups_used;
    int32_t n_dense;             /* leading layers without experts, in a model with experts */
    int32_t expert_interval;     /* one layer in this many has experts; 0: all layers but the leading ones */
    int32_t window;              /* positions that a layer with a sliding window sees; 0: no layer has one */
    int32_t window_period;       /* one layer in this many has no window; 0: all have one */
    AttnTemperature temperature; /* used by the layers that have one */
    double local_rope_base;      /* rope base of the layers with a window; 0: they share the rope of the others */
    int32_t local_n_rot;         /* with it, the components of a head that these layers rotate; 0: as the others */
    int32_t local_head_dim;      /* the head size of the layers with a window, below head_dim; 0: as the others */
    int32_t n_shared_kv;         /* the last layers, which read the keys and values of earlier ones (LayerSpec) */
    int32_t n_ple;               /* the width of the per-layer embeddings (LayerSpec); 0: there are none */
    float embedding_scale;       /* a factor of embeddings; mostly 1 */
    float attn_scale, attn_cap;  /* for all layers (LayerSpec); 0: the default */
    float residual_scale;        /* for all layers (LayerSpec) */
    float logit_cap;             /* logits become cap * tanh(logit / cap); 0: they stay as they are */
    float logit_scale;           /* a factor of logits before that; mostly 1 */
    LatentShape latent;
    StateShape state; /* the state of recurrent layers */
    DeltaNetShape delta;
    Mamba2Shape mamba;
    int32_t attention_interval; /* in a model with Gated DeltaNet one layer in this many has attention */
    bool no_rope;               /* no layer rotates queries and keys */
    int32_t n_nextn;            /* layers after the others, which only a drafter runs (Nextn in model.h) */
    bool may_have_nextn;        /* a file of the architecture may have such layers */
} Hparams;

/* Refuses unknown architectures (arch.h lists the known ones), missing keys and impossible shapes. n_vocab is the
 * number of rows of token_embd.weight. */
int hparams_read(Hparams *h, const Gguf *g, fr_error *err);

/* Reads the shape of a drafter's own layers, which are those of the architecture llama without experts, from the keys
 * "<prefix>.<name>", and attn_scale. `more` (optional) reads the method's own keys (arch.h). n_vocab is 0. */
typedef struct KeyReader KeyReader; /* the keys of a file (model_keys.c) */
int hparams_read_drafter(Hparams *h, const Gguf *g, const char *prefix, void (*more)(KeyReader *r, void *user),
                         void *user, fr_error *err);

const char *arch_name(Arch arch);
/* Queries of one step have the same temperature. */
static inline int32_t temperature_step(const AttnTemperature *t, int32_t position) {
    return t->scale > 0 ? (int32_t)(((int64_t)position + t->offset) / t->length) : 0;
}
/* Returns the factor by which the scores of a query are multiplied. */
static inline double temperature_factor(const AttnTemperature *t, int32_t position) {
    return 1 + (double)t->scale * math_log(temperature_step(t, position) + 1.0);
}
static inline int64_t hparams_q_dim(const Hparams *h) { return (int64_t)h->n_head * h->head_dim; }
/* Returns the widest inner row of a feed-forward part, or of a per-layer embedding. */
static inline int64_t hparams_max_ff(const Hparams *h) {
    int64_t n = h->n_ff > h->n_ff_expert ? h->n_ff : h->n_ff_expert;
    if (n < h->n_ple) n = h->n_ple;
    return n > h->n_ff_shared ? n : h->n_ff_shared;
}
/* Returns how many values a head of a recurrent state has. */
static inline int64_t state_head_values(const StateShape *s, int32_t head) {
    int64_t left = s->n_values - head * s->head_dim;
    return left < s->head_dim ? left : s->head_dim;
}
/* Each returns how many numbers a row has for all heads of latent attention together: in queries, before they are
 * brought into the form of what is cached, and in values. */
static inline int64_t latent_query_dim(const Hparams *h) {
    return h->latent.rank ? h->n_head * ((int64_t)h->latent.plain_dim + h->rope.n_rot) : 0;
}
static inline int64_t latent_values_dim(const Hparams *h) { return h->n_head * (int64_t)h->latent.value_dim; }
/* Returns the width of what a query head reads from the cache. */
static inline int64_t hparams_value_dim(const Hparams *h) { return h->latent.rank ? h->latent.rank : h->head_dim; }
/* Returns the most components that a rope of the model rotates. */
static inline int64_t hparams_max_rot(const Hparams *h) {
    return h->local_n_rot > h->rope.n_rot ? h->local_n_rot : h->rope.n_rot;
}
static inline int64_t hparams_kv_dim(const Hparams *h) { return (int64_t)h->n_head_kv * h->head_dim; }

#endif

/* model.h - what a model is, without saying how it is computed: hyper-parameters and, layer by layer, what a backend
 * has to run.
 *
 * A Model holds views into its GGUF file (matrices, as the file has them) and the small vectors as floats. Nothing is
 * packed or converted here: a backend makes the weights resident in its own form (backend/backend.h).
 *
 *     x  += mixer(norm(x))            attention over all earlier positions, or over a window of them; or a recurrent state
 *     x  += feed_forward(norm(x))     dense, or a mixture of experts, or not there
 *
 * A new architecture is one file, arch_NAME.c, that fills in a LayerSpec for each layer (arch.h). What only some
 * models have is a NULL or a 0 in the others' specs.
 */
#ifndef MODEL_MODEL_H
#define MODEL_MODEL_H

#include "model/hparams.h"
#include "model/rope.h"

typedef enum MixerKind {
    MIXER_ATTENTION, /* every earlier position is visible */
    MIXER_WINDOW,    /* the last `window` positions are, the row's own included; or those of its chunk */
    MIXER_LATENT,    /* every earlier position is, by a latent that all heads share (LatentSpec) */
    /* None is: a state sums them up. */
    MIXER_DELTA_NET,  /* DeltaNetSpec */
    MIXER_MAMBA2,     /* Mamba2Spec */
    MIXER_SHORT_CONV, /* ShortConvSpec: the inputs of the last positions are all of the state */
} MixerKind;

typedef enum FeedForwardKind {
    FFN_DENSE,   /* down (f(gate x) * (up x)) */
    FFN_EXPERTS, /* the same for the n_expert_used experts of greatest router probability, weighted by it */
    FFN_NONE,
} FeedForwardKind;

typedef enum Activation {
    ACTIVATION_SILU,           /* x / (1 + exp(-x)) */
    ACTIVATION_GELU,           /* by tanh: x / (1 + exp(-2 u)), u = sqrt(2 / pi) (x + 0.044715 x^3) */
    ACTIVATION_CLAMPED_SWIGLU, /* of gpt-oss: x / (1 + exp(-1.702 x)), x at most 7; and up x, within -7..7, gains 1 */
} Activation;

/* Gated DeltaNet (arXiv 2412.06464): a matrix S [dim][dim] for each value head in the place of earlier keys and values.
 *
 *     c_t        = silu(sum over j of conv[j] * x_{t - n_conv + 1 + j}),  x = qkv n: queries, keys, values; n = norm(input)
 *     q, k       = c's, each head divided by sqrt(its squares' sum + eps), and q by sqrt(dim)
 *     decay      = exp(a * log(1 + exp(alpha n + dt))),  b = 1 / (1 + exp(-beta n))
 *     S_t        = decay S_{t-1} + k (b (v - k' decay S_{t-1}))'
 *     output     = Wo (norm(S_t' q) * silu(z n)) */
typedef struct DeltaNetSpec {
    DeltaNetShape shape;
    bool shares_adjacent;           /* value head h has key head h / (values per key), not h % n_key_heads */
    const GgufTensor *qkv, *z;      /* [channels | values][n_embd] */
    const GgufTensor *beta, *alpha; /* [n_value_heads][n_embd] */
    const GgufTensor *beta_alpha;   /* [2 n_value_heads][n_embd] in their place: by key head its betas, its alphas */
    const float *dt, *a;            /* [n_value_heads] */
    const float *norm;              /* [dim] of each value head */
} DeltaNetSpec;

/* Multi-head latent attention (arXiv 2405.04434). What is cached of a position is c = norm(latent), of which every head has
 * its keys and values, and one rotated key for all heads:
 *
 *     [latent, r]   = Wkv_a n                            n = norm(input)
 *     [q_h, p_h]    = Wq n, or Wq norm(Wq_a n)           of each head: plain_dim components, then n_rot that are rotated
 *     score_h       = (Wk_b_h q_h)' c_t + rope(p_h)' rope(r_t)
 *     output        = Wo [Wv_b_h sum over t of softmax(score_h)_t c_t]
 *
 * The key of head h would be Wk_b_h' c and its value Wv_b_h c; multiplied with the query and with what was read instead
 * ("absorbed"), neither is ever computed for an earlier position. */
typedef struct LatentSpec {
    const GgufTensor *q_a;  /* [q_rank][n_embd]; NULL: queries are made of the input itself */
    const float *q_a_norm;  /* [q_rank] */
    const GgufTensor *kv_a; /* [rank + n_rot][n_embd] */
    const float *kv_a_norm; /* [rank] */
    const GgufTensor *k_b;  /* [n_head][rank][plain_dim] */
    const GgufTensor *v_b;  /* [n_head][value_dim][rank] */
} LatentSpec;

/* Of value head h: the head of its queries and keys, and its places in the rows of beta_alpha. */
static inline int32_t delta_key_head(const DeltaNetSpec *d, int32_t h) {
    const DeltaNetShape *s = &d->shape;
    return d->shares_adjacent ? h / (s->n_value_heads / s->n_key_heads) : h % s->n_key_heads;
}
static inline int32_t delta_beta_place(const DeltaNetSpec *d, int32_t h) {
    int32_t n = d->shape.n_value_heads / d->shape.n_key_heads;
    return d->beta_alpha ? h + h / n * n : h;
}
static inline int32_t delta_alpha_place(const DeltaNetSpec *d, int32_t h) {
    int32_t n = d->shape.n_value_heads / d->shape.n_key_heads;
    return d->beta_alpha ? delta_beta_place(d, h) + n : d->shape.n_value_heads + h;
}

/* Mamba-2 (arXiv 2405.21060): a matrix S [n_state][dim] for each head.
 *
 *     c_t     = silu(conv_bias + sum over j of conv[j] * u_{t - n_conv + 1 + j}),  u = xbc n: x of all heads, B and C of all groups
 *     d       = log(1 + exp(dt n + dt_bias)),  decay = exp(a d)
 *     S_t     = decay S_{t-1} + B (d x)'
 *     y       = S_t' C + skip x
 *     output  = Wo norm(y * silu(z n)),  the norm over the heads of each group */
typedef struct Mamba2Spec {
    Mamba2Shape shape;
    const GgufTensor *xbc, *z, *dt;  /* [channels | values | n_heads][n_embd] */
    const float *conv_bias;          /* [channels]; NULL: none */
    const float *dt_bias, *a, *skip; /* [n_heads] */
    const float *norm;               /* [n_groups][values / n_groups] */
} Mamba2Spec;

/* The short convolution of LFM2: output = Wo (c n * sum over j of conv[j] * (b n * x n)_{t - n_conv + 1 + j}). */
typedef struct ShortConvSpec {
    const GgufTensor *b, *c, *x; /* [n_embd][n_embd] */
} ShortConvSpec;

/* Where the outputs of a matrix that reads the normed input of a recurrent layer belong. */
typedef enum StatePlace {
    STATE_INPUTS, /* of the convolution */
    STATE_FACTOR, /* what these are multiplied by */
    STATE_Z,      /* what the values are multiplied by */
    STATE_GATES,  /* from number `at` on */
} StatePlace;
typedef struct StateProduct {
    const GgufTensor *m;
    StatePlace place;
    int64_t at;
} StateProduct;
enum { STATE_PRODUCTS_MAX = 4 };

/* Under the root, in the place of a norm's eps. */
#define DELTA_NORM_EPS 1e-6
#define SWIGLU_ALPHA 1.702f
#define SWIGLU_LIMIT 7.0f

enum { MODEL_MAX_EXPERTS = 512, MODEL_MAX_EXPERTS_USED = 64, MODEL_MAX_CONV = 16, MODEL_MAX_STATE_DIM = 512 };

/* One layer. Matrices are [n_out][n_in] tensors of the file; vectors are floats owned by the Model. NULL: the layer
 * has none. */
typedef struct LayerSpec {
    MixerKind mixer;
    int32_t window;              /* MIXER_WINDOW: positions */
    bool is_chunked;             /* the window begins at the last multiple of `window`, and is shorter there */
    int32_t i_rope;              /* which of Model.ropes rotates queries and keys; -1: none does */
    float attn_scale;            /* of scores; 0: 1 / sqrt(head_dim) */
    AttnTemperature temperature; /* by which they grow */
    float soft_cap;              /* attention scores become cap * tanh(score / cap); 0: they stay */
    const float *attn_norm;      /* [n_embd]; a drafter's layer may have none */
    const GgufTensor *q, *k, *v; /* [q_dim | kv_dim | kv_dim][n_embd] */
    bool gates_output; /* q is [2 q_dim]: each head's queries, then a gate g of what it reads: times 1 / (1 + exp(-g)) */
    const GgufTensor *o;                   /* [n_embd][q_dim]; of layers with a recurrent state [n_embd][values] */
    const float *q_bias, *k_bias, *v_bias; /* [q_dim], [kv_dim], [kv_dim] */
    const float *o_bias;                   /* [n_embd] */
    const float *q_norm, *k_norm;          /* [head_dim], of each head */
    const float *sinks;                    /* [n_head] a logit that joins each head's softmax and carries no value */
    const float *post_attn_norm;           /* [n_embd] of what attention adds to the residual stream */
    LatentSpec latent; /* MIXER_LATENT: of what stands above it, attn_norm, attn_scale, o and q of plain_dim + n_rot */
    /* Of layers with a recurrent state, which of what stands above have attn_norm and o alone: */
    const float *conv; /* [channels][n_conv], the row's own position last */
    DeltaNetSpec delta;
    Mamba2Spec mamba;
    ShortConvSpec short_conv;

    FeedForwardKind ffn;
    Activation activation;
    const float *ffn_norm;       /* [n_embd] */
    const float *post_ffn_norm;  /* [n_embd] of what the feed-forward part adds to the residual stream */
    float residual_scale;        /* of what either part adds; 0: 1 */
    const GgufTensor *gate, *up; /* [n_ff][n_embd]; of experts [n_expert][n_ff][n_embd] */
    const GgufTensor *down;      /* [n_embd][n_ff]; of experts [n_expert][n_embd][n_ff] */

    /* FFN_EXPERTS: */
    const GgufTensor *router;                     /* [n_expert][n_embd] */
    const float *router_bias;                     /* [n_expert] of its logits */
    const float *gate_bias, *up_bias, *down_bias; /* [n_expert] of n_ff, n_ff and n_embd */
    int32_t n_expert_used;
    bool keeps_probabilities; /* the weights of the chosen are their probabilities among all; false: they sum to 1 */
    RouterGate router_gate;   /* probabilities are a softmax over all experts, or a sigmoid of each */
    const float
        *choice_bias; /* [n_expert] added to probabilities where experts are chosen, not where they are weighted */
    /* Experts are chosen in the best groups alone, by their two greatest (probability + bias), or by the greatest probability
     * of a softmax; 0: among all. */
    int32_t n_groups, n_groups_used;
    float expert_scale;                                      /* of the weights; 0: 1 */
    bool weights_inputs;                                     /* the weights multiply what the experts read */
    const GgufTensor *shared_gate, *shared_up, *shared_down; /* an expert that every row passes */
    const float *shared_router; /* [n_embd] its weight is 1 / (1 + exp(-router . x)); NULL: 1 */
} LayerSpec;

bool layer_has_state(const LayerSpec *l);
/* The matrices that read the input of a layer with a recurrent state, in the order in which they stand in memory. Returns their
 * number. */
int layer_state_products(const LayerSpec *l, StateProduct out[STATE_PRODUCTS_MAX]);
/* The first of n keys that the last of these positions sees. */
static inline int64_t layer_first_key(const LayerSpec *l, int64_t n) {
    if (l->mixer != MIXER_WINDOW || n <= l->window) return 0;
    return l->is_chunked ? (n - 1) / l->window * l->window : n - l->window;
}
/* Expert i of a tensor of them, as a matrix. */
GgufTensor expert_matrix(const GgufTensor *all, int64_t i);

enum { MODEL_MAX_ROPES = 2 };

typedef struct Model {
    const Gguf *gguf; /* borrowed */
    Hparams hparams;
    Rope ropes[MODEL_MAX_ROPES];
    int n_ropes;
    Rope long_rope; /* in the place of the first for contexts beyond its n_ctx_orig (LongRoPE); freqs NULL: none */
    const GgufTensor *token_embd; /* [n_vocab][n_embd] */
    const float *output_norm;     /* [n_embd]; NULL in a drafter's layers: none */
    const GgufTensor *output;     /* [n_vocab][n_embd]; token_embd where the two are tied */
    const LayerSpec *layers;      /* [n_layer] */
    struct ModelMemory *memory;   /* vectors and specs; NULL in a model_of_layers */
} Model;

/* Layers of a kind; with a recurrent state, and with keys and values; and how many of the same kind are before layer i. */
int32_t model_n_mixers(const Model *m, MixerKind kind);
int32_t model_n_states(const Model *m);
int32_t model_n_attention(const Model *m);
int32_t model_mixer_place(const Model *m, int32_t i);
/* Rope number i where sequences have up to n_ctx tokens. */
static inline const Rope *model_rope(const Model *m, int32_t i, int32_t n_ctx) {
    return i == 0 && m->long_rope.freqs && n_ctx > m->long_rope.params.n_ctx_orig ? &m->long_rope : &m->ropes[i];
}
/* The widest window of a layer; 0: no layer has one. */
int32_t model_window(const Model *m);

/* Reads the description. The Gguf must outlive the model. Refuses missing, unknown or misshapen tensors by name. */
int model_open(Model **out, const Gguf *g, fr_error *err);
void model_close(Model *m); /* NULL is fine */

/* The error of a tensor of its file that finite_weights (finite.h) refuses. model_open checks the vectors, a backend
 * checks the matrices while it reads them. */
int model_refuse_not_finite(const Model *m, const GgufTensor *t, fr_error *err);

/* Layers of a drafter that run between the target's embedding and its LM head, with the target's heads and rope and a
 * feed-forward part of their own width; there is no final norm. Everything is borrowed, nothing is to be closed. */
Model model_of_layers(const Model *target, const LayerSpec *layers, int32_t n_layer, int32_t n_ff);

/* The embedding of a token as floats, out: [n_embd]; embedding_row for a table in any memory. */
void model_embedding(const Model *m, int32_t token, float *out);
void embedding_row(const GgufTensor *embd, int32_t token, float *out);

#endif

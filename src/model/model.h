/* model.h - what a model is, without saying how it is computed: hyper-parameters and, layer by layer, what a backend
 * has to run.
 *
 * A Model holds views of the matrices in its GGUF file and the small vectors as floats. Nothing is packed or converted
 * here: a backend makes the weights resident in its own form (compute/backend.h).
 *
 *     x  += mixer(norm(x))            attention over all earlier positions or a window of them; or a recurrent state
 *     x  += feed_forward(norm(x))     dense, or a mixture of experts, or not there
 *     x  += per_layer_embedding(x)    of the row's token (Gemma 4)
 *
 * An architecture is a function that fills in a LayerSpec for each layer, in the file of its family, arch_FAMILY.c
 * (arch.h). What a model does not have is a NULL or a 0 in its specs.
 */
#ifndef MODEL_MODEL_H
#define MODEL_MODEL_H

#include "model/hparams.h"
#include "model/rope.h"

typedef enum MixerKind {
    MIXER_ATTENTION, /* every earlier position is visible */
    MIXER_WINDOW,    /* the last `window` positions are visible, the row's own included; or those of its chunk */
    MIXER_LATENT,    /* every earlier position is visible, as a latent that all heads share (LatentSpec) */
    /* No earlier position is visible: a state sums them up. */
    MIXER_DELTA_NET, /* DeltaNetSpec */
    MIXER_MAMBA2,    /* Mamba2Spec */
    /* The short convolution of LFM2, whose state is the inputs of the last positions and nothing else:
     *     output = Wo (Wc n * sum over j of conv[j] * (Wb n * Wx n)_{t - n_conv + 1 + j})
     * Wx is MATRIX_STATE_INPUTS, Wb MATRIX_STATE_FACTOR and Wc MATRIX_STATE_Z, [n_embd][n_embd] each. */
    MIXER_SHORT_CONV,
} MixerKind;

typedef enum FeedForwardKind {
    FFN_DENSE,   /* down (f(gate x) * (up x)) */
    FFN_EXPERTS, /* the same for the n_expert_used experts with the greatest router probability, weighted by it */
    FFN_NONE,
} FeedForwardKind;

typedef enum Activation {
    ACTIVATION_SILU, /* x / (1 + exp(-x)) */
    ACTIVATION_GELU, /* the approximation by tanh: x / (1 + exp(-2 u)), u = sqrt(2 / pi) (x + 0.044715 x^3) */
    /* gpt-oss: x / (1 + exp(-1.702 x)) with x at most 7; the output of `up` is limited to -7..7, and 1 is added. */
    ACTIVATION_CLAMPED_SWIGLU,
} Activation;

/* The matrices of a layer, in the order in which a forward reads them. Files of packed weights keep them in this order,
 * too. */
typedef enum LayerMatrix {
    MATRIX_ATTN_CONV, /* [kernels][n_embd] of BlockConv, around attention */
    MATRIX_Q_A,       /* [q_rank][n_embd] of latent attention; NULL where queries are made of the input itself */
    MATRIX_KV_A,      /* [rank + n_rot][n_embd] of latent attention */
    MATRIX_Q, /* [q_dim][n_embd]; twice the rows where the output is gated; for latent attention see LatentSpec */
    MATRIX_K, /* [kv_dim][n_embd] */
    MATRIX_V, /* [kv_dim][n_embd] */
    /* A layer with a recurrent state reads its normed input through these; DeltaNetSpec, Mamba2Spec and
     * MIXER_SHORT_CONV say what each of them is. */
    MATRIX_STATE_INPUTS,     /* makes the inputs of the convolution */
    MATRIX_STATE_FACTOR,     /* makes factors that these inputs are multiplied by */
    MATRIX_STATE_Z,          /* makes factors that the values are multiplied by */
    MATRIX_STATE_GATES,      /* makes the numbers that the heads read in addition to the convolution */
    MATRIX_STATE_MORE_GATES, /* makes more such numbers, which follow those of MATRIX_STATE_GATES */
    MATRIX_O,                /* [n_embd][q_dim], or [n_embd][values] in a layer with a recurrent state */
    MATRIX_FFN_CONV,         /* [kernels][n_embd] of BlockConv, around the feed-forward part */
    /* The dense feed-forward part: [n_ff][n_embd] twice, and [n_embd][n_ff]. */
    MATRIX_GATE,
    MATRIX_UP,
    MATRIX_DOWN,
    /* The expert that every row passes, in a layer of experts: as above, n_ff_shared wide. */
    MATRIX_SHARED_GATE,
    MATRIX_SHARED_UP,
    MATRIX_SHARED_DOWN,
    MATRIX_ROUTER, /* [n_expert][n_embd] */
    /* One matrix for each head of latent attention. */
    MATRIX_K_B, /* [n_head][rank][plain_dim] */
    MATRIX_V_B, /* [n_head][value_dim][rank] */
    /* One matrix for each expert: [n_expert][n_ff_expert][n_embd] twice, and [n_expert][n_embd][n_ff_expert]. */
    MATRIX_EXPERT_GATE,
    MATRIX_EXPERT_UP,
    MATRIX_EXPERT_DOWN,
    /* The per-layer embedding (LayerSpec): [n_ple][n_embd] twice, and [n_embd][n_ple]. */
    MATRIX_PLE_INPUT,
    MATRIX_PLE_GATE,
    MATRIX_PLE_OUT,
    LAYER_MATRICES
} LayerMatrix;

/* What a matrix reads. */
typedef enum InputKind {
    INPUT_QKV,            /* the normed input of attention or of a layer with a recurrent state */
    INPUT_O,              /* what attention read */
    INPUT_STATE_O,        /* what a layer with a recurrent state read */
    INPUT_GATE_UP,        /* the normed input of the feed-forward part */
    INPUT_DOWN,           /* the inner row of a dense feed-forward part */
    INPUT_SHARED_DOWN,    /* the inner row of the expert that every row passes */
    INPUT_EXPERT_GATE_UP, /* the normed input, for each expert over the rows that chose it */
    INPUT_EXPERT_DOWN,    /* the inner row of each expert */
    INPUT_LATENT,         /* the latent that keys and values are made of */
    INPUT_Q_LATENT,       /* the latent that queries are made of */
    INPUT_LATENT_QUERIES, /* the queries of all heads, each with its n_rot rotated components at the end */
    INPUT_READ_LATENTS,   /* what each head of latent attention read */
    INPUT_LATENT_O,       /* the values of the heads of latent attention */
    INPUT_EMBEDDING,      /* the embedding of the token */
    INPUT_STREAM,         /* the residual stream after the feed-forward part */
    INPUT_PLE,            /* the gated per-layer embedding */
    INPUT_KINDS
} InputKind;

/* The part of a layer that a matrix belongs to. */
typedef enum LayerPart { PART_QKV, PART_O, PART_GATE_UP, PART_DOWN } LayerPart;

/* Whether a layer has one such matrix, or one for each head or expert. */
typedef enum MatrixCount { ONE_MATRIX, MATRIX_OF_HEADS, MATRIX_OF_EXPERTS } MatrixCount;

typedef struct LayerMatrixInfo {
    LayerPart part;
    MatrixCount count;
    InputKind inputs; /* what the matrix usually reads; layer_matrix_inputs knows the exceptions */
} LayerMatrixInfo;
extern const LayerMatrixInfo layer_matrix_info[LAYER_MATRICES];

/* Gated DeltaNet (arXiv 2412.06464): a matrix S [dim][dim] for each value head in the place of earlier keys and values.
 *
 *     c_t        = silu(sum over j of conv[j] * x_{t - n_conv + 1 + j}),  x = Wx n: q, k and v;  n = norm(input)
 *     q, k       = c's, each head divided by sqrt(its squares' sum + eps), and q by sqrt(dim)
 *     decay      = exp(a * log(1 + exp(alpha + dt))),  b = 1 / (1 + exp(-beta))
 *     S_t        = decay S_{t-1} + k (b (v - k' decay S_{t-1}))'
 *     output     = Wo (norm(S_t' q) * silu(Wz n))
 *
 * Wx is MATRIX_STATE_INPUTS [channels][n_embd], Wz is MATRIX_STATE_Z [values][n_embd]. The betas are made by
 * MATRIX_STATE_GATES and the alphas by MATRIX_STATE_MORE_GATES, [n_value_heads][n_embd] each; or MATRIX_STATE_GATES
 * makes both (joins_gates). */
typedef struct DeltaNetSpec {
    DeltaNetShape shape;
    bool shares_adjacent; /* value head h has key head h / (values per key), not h % n_key_heads */
    bool joins_gates;     /* one matrix makes, by key head, first the betas and then the alphas of its value heads */
    const float *dt, *a;  /* [n_value_heads] */
    const float *norm;    /* [dim], applied to each value head */
} DeltaNetSpec;

/* Returns the key head that value head h uses, and the places of its beta and its alpha among the gates of a row. */
static inline int32_t delta_key_head(const DeltaNetSpec *d, int32_t h) {
    const DeltaNetShape *s = &d->shape;
    return d->shares_adjacent ? h / (s->n_value_heads / s->n_key_heads) : h % s->n_key_heads;
}
static inline int32_t delta_beta_place(const DeltaNetSpec *d, int32_t h) {
    int32_t n = d->shape.n_value_heads / d->shape.n_key_heads;
    return d->joins_gates ? h + h / n * n : h;
}
static inline int32_t delta_alpha_place(const DeltaNetSpec *d, int32_t h) {
    int32_t n = d->shape.n_value_heads / d->shape.n_key_heads;
    return d->joins_gates ? delta_beta_place(d, h) + n : d->shape.n_value_heads + h;
}

/* Mamba-2 (arXiv 2405.21060): a matrix S [n_state][dim] for each head.
 *
 *     c_t     = silu(conv_bias + sum over j of conv[j] * u_{t - n_conv + 1 + j}),  u = Wu n: x, B and C of all groups
 *     d       = log(1 + exp(Wd n + dt_bias)),  decay = exp(a d)
 *     S_t     = decay S_{t-1} + B (d x)'
 *     y       = S_t' C + skip x
 *     output  = Wo norm(y * silu(Wz n)),  the norm over the heads of each group
 *
 * Wu is MATRIX_STATE_INPUTS [channels][n_embd], Wz is MATRIX_STATE_Z [values][n_embd], Wd is MATRIX_STATE_GATES
 * [n_heads][n_embd]. */
typedef struct Mamba2Spec {
    Mamba2Shape shape;
    const float *conv_bias;          /* [channels]; NULL: none */
    const float *dt_bias, *a, *skip; /* [n_heads] */
    const float *norm;               /* [n_groups][values / n_groups] */
} Mamba2Spec;

/* Multi-head latent attention (arXiv 2405.04434). The cache holds for each position c = norm(latent), from which every
 * head gets its keys and values, and one rotated key that all heads share:
 *
 *     [latent, r]   = Wkv_a n                            n = norm(input)
 *     [q_h, p_h]    = Wq n, or Wq norm(Wq_a n)           for each head: plain_dim numbers, then n_rot that are rotated
 *     score_h       = (Wk_b_h q_h)' c_t + rope(p_h)' rope(r_t)
 *     output        = Wo [Wv_b_h sum over t of softmax(score_h)_t c_t]
 *
 * The key of head h would be Wk_b_h' c and its value Wv_b_h c. Both matrices are applied to the query and to the
 * weighted sum instead ("absorbed"), so that neither keys nor values are ever computed for an earlier position. */
typedef struct LatentSpec {
    const float *q_a_norm;  /* [q_rank] */
    const float *kv_a_norm; /* [rank] */
} LatentSpec;

/* A convolution over the rows of a block, before and after a part of the layer of a drafter (DFlash 2, z-lab 2026).
 * Each row makes its kernels of the part's normed input n, one for each group of channels; W is MATRIX_ATTN_CONV or
 * MATRIX_FFN_CONV:
 *
 *     G_i         = W n_i                                             [2][n_taps][n_embd / group]
 *     conv_s(x)_i = sum over t of (base[s][t] + G_i[s][t]) * x_{i-t}  row i - t is t rows before i; 0 outside the block
 *     output      = conv_1(part(conv_0(n)))
 *
 * Each number of G_i belongs to `group` channels. */
typedef struct BlockConv {
    int32_t n_taps, group;
    const float *base; /* [2][n_taps][n_embd]; NULL: there is no convolution */
} BlockConv;

static inline int64_t block_conv_kernels(const BlockConv *c, int64_t n_embd) {
    return c->base ? 2 * c->n_taps * (n_embd / c->group) : 0;
}

/* This is added to the sum of squares under the root when the heads of Gated DeltaNet are normed. */
#define DELTA_NORM_EPS 1e-6
#define SWIGLU_ALPHA 1.702f
#define SWIGLU_LIMIT 7.0f

enum { MODEL_MAX_EXPERTS = 512, MODEL_MAX_EXPERTS_USED = 64, MODEL_MAX_CONV = 16, MODEL_MAX_STATE_DIM = 512 };

/* One layer. Matrices are tensors of the file; vectors are floats that the Model owns. A layer that lacks something has
 * NULL in its place. */
typedef struct LayerSpec {
    int32_t n_head, n_head_kv, head_dim; /* if they are not those of Hparams; otherwise 0 */
    const GgufTensor *matrices[LAYER_MATRICES];
    /* Factors of whole matrices, by which their outputs are multiplied: a number for each matrix of the slot. NULL:
     * 1. */
    const float *scales[LAYER_MATRICES];

    BlockConv attn_conv, ffn_conv; /* only with MIXER_ATTENTION or MIXER_WINDOW, and with FFN_DENSE */
    MixerKind mixer;
    int32_t window;  /* how many positions a row sees with MIXER_WINDOW */
    bool is_chunked; /* the window begins at the last multiple of `window`, and is shorter there */
    int32_t i_rope;  /* which of Model.ropes rotates queries and keys; -1: none does */
    /* The layer makes queries only, and reads the keys and values of an earlier layer of its kind, which has equally
     * many KV heads: this is the number of that layer + 1. 0: it has its own. */
    int32_t shares_kv;
    float attn_scale;            /* a factor of scores; 0: 1 / sqrt(head_dim) */
    AttnTemperature temperature; /* the growth of scores with the position */
    float soft_cap;              /* attention scores become cap * tanh(score / cap); 0: they stay as they are */
    const float *attn_norm;      /* [n_embd]; the layer of a drafter may have none */
    /* The layer of a drafter: q, k and v read a pair of vectors, [2 n_embd], that each row brings along. The input of a
     * row is [3][n_embd]: the residual stream, then the pair. */
    bool reads_pairs;
    bool is_causal; /* the layer of a drafter: a row of a block does not see the rows of the block after itself */
    /* MATRIX_Q makes for each head its queries and then a gate g; what the head reads is multiplied by 1 / (1 +
     * exp(-g)). */
    bool gates_output;
    const float *q_bias, *k_bias, *v_bias; /* [q_dim], [kv_dim], [kv_dim] */
    const float *o_bias;                   /* [n_embd] */
    const float *q_norm, *k_norm, *v_norm; /* [head_dim], applied to each head */
    const float *sinks;          /* [n_head] a logit that joins the softmax of each head and carries no value */
    const float *post_attn_norm; /* [n_embd] norm of what attention adds to the residual stream */
    LatentSpec latent;           /* MIXER_LATENT */
    const float *conv;           /* [channels][n_conv] of a layer with a recurrent state, the row's own position last */
    DeltaNetSpec delta;          /* MIXER_DELTA_NET */
    Mamba2Spec mamba;            /* MIXER_MAMBA2 */

    FeedForwardKind ffn;
    Activation activation;
    const float *ffn_norm;      /* [n_embd] */
    const float *post_ffn_norm; /* [n_embd] norm of what the feed-forward part adds to the residual stream */
    float residual_scale;       /* a factor of what each part adds; 0: 1 */
    /* FFN_DENSE: [n_ff], [n_ff] and [n_embd]; FFN_EXPERTS: [n_expert] times n_ff_expert, n_ff_expert and n_embd. */
    const float *gate_bias, *up_bias, *down_bias;

    /* FFN_EXPERTS: */
    const float *router_bias; /* [n_expert], added to the logits of the router */
    int32_t n_expert_used;
    bool keeps_probabilities; /* weights are probabilities among all experts; false: the weights sum to 1 */
    RouterGate router_gate;   /* probabilities are a softmax over all experts, or a sigmoid of each */
    /* [n_expert] Added to the probabilities when experts are chosen, but not to their weights. */
    const float *choice_bias;
    /* Experts are chosen only from the n_groups_used best groups. A group is ranked by the sum of its two greatest
     * values (probability + bias), or by its greatest probability under a softmax. 0: there are no groups. */
    int32_t n_groups, n_groups_used;
    float expert_scale;         /* a factor of the weights; 0: 1 */
    bool weights_inputs;        /* the weights multiply what the experts read, not what they give */
    const float *shared_router; /* [n_embd]; the shared expert has the weight 1 / (1 + exp(-router . x)); NULL: 1 */
    /* [n_embd] Gemma 4: ffn_norm is only for the shared expert; the router and the experts have norms of their own, and
     * what either gives has one before it is added. NULL: ffn_norm is for all of them, and nothing is normed after
     * them. */
    const float *router_norm, *expert_norm, *post_shared_norm, *post_expert_norm;

    /* The per-layer embedding of Gemma 3n and 4, "PLE", only with FFN_DENSE. Each layer has a second embedding e of the
     * token, which consists of n_ple numbers of a table and of a product of x0, the input of the first layer:
     *
     *     e   = (norm(Winput x0 / sqrt(n_embd); ple_input_norm) + sqrt(n_ple) table[token][layer]) / sqrt(2)
     *     x  += norm(Wout (gelu(Wgate x) * e); ple_norm)                          after the feed-forward part
     *
     * For a row that brings its own input, the numbers of the table are 0. */
    const float *ple_input_norm, *ple_norm; /* [n_ple], [n_embd]; NULL: there is no such embedding */
    float out_scale;                        /* a factor of x after the layer; 0: 1 */
} LayerSpec;

bool layer_has_state(const LayerSpec *l);
static inline int32_t layer_n_head(const Hparams *h, const LayerSpec *l) { return l->n_head ? l->n_head : h->n_head; }
static inline int32_t layer_n_head_kv(const Hparams *h, const LayerSpec *l) {
    return l->n_head_kv ? l->n_head_kv : h->n_head_kv;
}
static inline int32_t layer_head_dim(const Hparams *h, const LayerSpec *l) {
    return l->head_dim ? l->head_dim : h->head_dim;
}
static inline int64_t layer_q_dim(const Hparams *h, const LayerSpec *l) {
    return (int64_t)layer_n_head(h, l) * layer_head_dim(h, l);
}
static inline int64_t layer_kv_dim(const Hparams *h, const LayerSpec *l) {
    return (int64_t)layer_n_head_kv(h, l) * layer_head_dim(h, l);
}
/* Returns the size of what a query head of the layer reads from the cache. */
static inline int64_t layer_value_dim(const Hparams *h, const LayerSpec *l) {
    return h->latent.rank ? h->latent.rank : layer_head_dim(h, l);
}
/* Returns the experts of a layer; 0: it has none. */
static inline int32_t layer_n_experts(const LayerSpec *l) {
    return l->ffn == FFN_EXPERTS ? (int32_t)l->matrices[MATRIX_ROUTER]->dims[1] : 0;
}
/* Returns how many matrices a layer has in a slot: one for each head or expert, otherwise 1 or 0. */
static inline int64_t layer_matrix_count(const LayerSpec *l, LayerMatrix m) {
    return l->matrices[m] ? l->matrices[m]->dims[2] : 0;
}
/* Returns what a matrix of this layer reads. */
InputKind layer_matrix_inputs(const LayerSpec *l, LayerMatrix m);
/* Returns how many numbers of a kind a row has in the widest layer; for experts, the numbers of all experts
 * together. */
int64_t input_width(const Hparams *h, InputKind kind);
/* Returns the factor of matrix i of a slot. NVIDIA's NVFP4 checkpoints have such a float beside the scales within a
 * matrix; GGUF files have it as a tensor "NAME.scale" beside "NAME.weight" (llama.cpp's pull requests 19769 and 21095).
 * Outputs are multiplied by it before anything else is done with them. A tensor "NAME.input_scale" is the factor of the
 * inputs that a GPU's 4-bit products would use; here, as in llama.cpp, inputs are rounded in another way, and it is
 * ignored. */
static inline float layer_matrix_scale(const LayerSpec *l, LayerMatrix m, int64_t i) {
    return l->scales[m] ? l->scales[m][i] : 1;
}
/* Returns the first key that the last of n positions sees. */
static inline int64_t layer_first_key(const LayerSpec *l, int64_t n) {
    if (l->mixer != MIXER_WINDOW || n <= l->window) return 0;
    return l->is_chunked ? (n - 1) / l->window * l->window : n - l->window;
}
/* Matrix i of a tensor that has one for each expert or head. */
GgufTensor expert_matrix(const GgufTensor *all, int64_t i);

enum { MODEL_MAX_ROPES = 2 };

typedef struct Model {
    const Gguf *gguf; /* borrowed */
    Hparams hparams;
    Rope ropes[MODEL_MAX_ROPES];
    int n_ropes;
    Rope long_rope; /* replaces the first one for contexts longer than its n_ctx_orig (LongRoPE); freqs NULL: none */
    const GgufTensor *token_embd; /* [n_vocab][n_embd] */
    const float *output_norm;     /* [n_embd]; NULL for the layers of a drafter, which have none */
    const GgufTensor *ple_table;  /* [n_vocab][n_layer][n_ple] of the per-layer embeddings; NULL: there are none */
    const GgufTensor *output;     /* [n_vocab][n_embd]; the same as token_embd if the two are tied */
    const float *output_bias;     /* [n_vocab], added to its products; NULL: none */
    const LayerSpec *layers;      /* [n_layer] */
    bool takes_turns; /* a forward runs one of the layers, Context.layer, and all have one cache: for drafters */
    /* shares_kv of the layers, none of which has keys of its own, names layers of this model, whose context they read
     * (ContextOptions.reads): for drafters. NULL: it names layers of the same model. Borrowed. */
    const struct Model *kv_model;
    struct ModelMemory *memory; /* vectors and specs; NULL in a model_of_layers */
} Model;

/* Returns the width of the input of a row that has one. */
static inline int64_t model_input_width(const Model *m) {
    return (m->layers[0].reads_pairs ? 3 : 1) * (int64_t)m->hparams.n_embd;
}

/* These count the layers of a kind, those with a recurrent state, those with keys and values, and the layers before
 * layer i that are of its kind. Layers that take turns count as one with keys and values. Layers that read the keys and
 * values of another layer are not counted, and have the place of that layer, in kv_model as well. */
int32_t model_n_mixers(const Model *m, MixerKind kind);
int32_t model_n_states(const Model *m);
int32_t model_n_attention(const Model *m);
int32_t model_mixer_place(const Model *m, int32_t i);
/* Returns rope number i for sequences of up to n_ctx tokens. */
static inline const Rope *model_rope(const Model *m, int32_t i, int32_t n_ctx) {
    return i == 0 && m->long_rope.freqs && n_ctx > m->long_rope.params.n_ctx_orig ? &m->long_rope : &m->ropes[i];
}
/* Returns the widest window of a layer; 0: no layer has one. */
int32_t model_window(const Model *m);

/* Reads the description. The Gguf must outlive the model. Refuses missing, unknown or misshapen tensors by name. */
int model_open(Model **out, const Gguf *g, fr_error *err);
void model_close(Model *m); /* NULL is fine */

/* Reports a tensor that finite_weights (tensor_type.h) refuses. model_open checks the vectors, and a backend checks the
 * matrices while it reads them. */
int model_refuse_not_finite(const Model *m, const GgufTensor *t, fr_error *err);

/* Returns a model whose layers are those of a drafter, which run between the target's embedding and its LM head. They
 * have the heads and the rope of the target, a feed-forward part of their own width, and no final norm. Everything is
 * borrowed, and nothing is to be closed. */
Model model_of_layers(const Model *target, const LayerSpec *layers, int32_t n_layer, int32_t n_ff);
/* Returns whether a model is such layers, or the layer of a Nextn. */
static inline bool model_is_of_layers(const Model *m, const Model *target) {
    return m->token_embd == target->token_embd;
}

/* A layer for multi-token prediction; some model files have one or several after the others. From a hidden state of the
 * model and the token that was chosen there it predicts the token after that one.
 *
 *     x = eh_proj [ norm(E(token); enorm) ; norm(h; hnorm) ]      one layer like the model's last layer with attention
 *     h' = norm(layer(x); shared_head_norm)                       h' takes the place of h at the next token
 *     logits = head h'
 *
 * h is the model's hidden state after its final norm: Qwen 3.5 and Qwen3-Next were trained in this way (llama.cpp's
 * pull request 24025 found it by acceptance, and vLLM's forward returns that state). For DeepSeek-V3 and GLM, llama.cpp
 * (pull requests 24868, 25980 and 26534) and vLLM take the same state at the first step; at the next steps both take h'
 * after its norm for GLM. The paper of DeepSeek-V3 leaves open whether its h is the one before the norm.
 *
 * If a file has several such layers, the first one has index 0. Layer i reads h' of layer i - 1 at the same position in
 * the place of h, and the token i places later (draft/learned/draft_mtp.c).
 *
 * The tensors of layer i are called "blk.<N + i>.<name>", where N is the number of layers that the model runs. Without
 * a shared_head_norm the output norm is used, and without an embed_tokens or a shared_head_head the model's embedding
 * or LM head. "<architecture>.nextn_predict_layers" counts these layers, and block_count includes them. */
typedef struct Nextn {
    Model model; /* the layer, its norm and its head; embedding and ropes are borrowed from the model */
    LayerSpec layer;
    const GgufTensor *eh_proj;      /* [n_embd][2 n_embd] */
    const GgufTensor *embed_tokens; /* [n_vocab][n_embd]; NULL: the model's */
    const float *enorm, *hnorm;     /* [n_embd] */
} Nextn;

/* Reads the description of layer `index` into a Nextn that is not moved afterwards; the model and the file must outlive
 * it. Afterwards model.hparams.n_nextn is the number of such layers. `companion` is another file with the layers
 * (mtp-NAME.gguf): one of the same architecture that has only these and, like every model, the embedding; or NULL,
 * where the model's own file has them. Refuses a file that has no such layer, a companion of another model
 * (FR_ERR_MISMATCH), and missing, unknown, misshapen or infinite tensors by name. */
int nextn_open(Nextn *out, const Model *model, const Gguf *companion, int32_t index, fr_error *err);
void nextn_close(Nextn *n); /* may be called after a failed nextn_open, and with a zeroed Nextn */

/* Reads the embedding of a token as floats, out [n_embd]; embedding_row reads it from a table in any memory. */
void model_embedding(const Model *m, int32_t token, float *out);
void embedding_row(const GgufTensor *embd, int32_t token, float *out);

#endif

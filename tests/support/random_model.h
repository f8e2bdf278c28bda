/* random_model.h - writes small models with random weights as GGUF files: every architecture, shape, type and rope
 * scaling that the tests need. The same description gives the same file. */
#ifndef TESTS_RANDOM_MODEL_H
#define TESTS_RANDOM_MODEL_H

#include "base/error.h"
#include "gguf/tensor_type.h"

enum { MOST_LISTED = 8 };

typedef struct RandomModel {
    const char *arch; /* any that forerun runs; its biases, norms, windows, factors and caps follow from it */
    int32_t n_layer, n_embd, n_head, n_head_kv;
    int32_t head_dim; /* 0: n_embd / n_head, and no key_length in the file */
    int32_t n_ff, n_vocab;
    bool tied;        /* no output.weight */
    bool biases;      /* on q, k and v, for any architecture */
    bool more_biases; /* on the output of attention, in dense feed-forward parts, and on logits */
    /* Numbers of each layer, which the file has as lists; n_head, n_head_kv and n_ff are the greatest. All 0: no
     * list. */
    int32_t head_counts[MOST_LISTED], kv_head_counts[MOST_LISTED], ff_widths[MOST_LISTED];
    bool head_norms;     /* glm4moe: norms of query and key heads */
    TensorType types[3]; /* matrices have these in turn; all TYPE_F32 when n_types is 0 */
    int n_types;
    bool has_scales;  /* each NVFP4 matrix of the layers has a factor, and one of its inputs, which is not used */
    double rope_base; /* 0: not in the file; for granitehybrid, no layer rotates then */
    int32_t n_rot;    /* 0: not in the file, all of head_dim */
    const char *rope_scaling; /* NULL (not in the file), "none", "linear", "yarn" */
    double rope_factor;
    int32_t rope_n_ctx_orig;                      /* yarn */
    bool long_rope;                               /* tensors rope_factors_short.weight and rope_factors_long.weight */
    bool rope_factors;                            /* a tensor rope_freqs.weight like Llama 3.1's */
    int32_t n_expert, n_expert_used, n_ff_expert; /* 0: no experts */
    int32_t n_ff_shared;                          /* qwen2moe; 0: no expert that processes every row */
    int32_t window;                               /* gemma2, gemma3, gemma4, phi3, gpt-oss */
    /* gemma4: one layer in attention_interval has no window. The head size of the others; the last layers, which read
     * the keys of earlier ones; the width of per-layer embeddings, 0: none; whether the layers without a window make
     * values of their keys. */
    int32_t local_head_dim, n_shared_kv, n_ple;
    bool values_of_keys;
    /* Layers with a recurrent state. Mamba-2: the groups, the heads, and the width of a head. */
    int32_t n_key_heads, n_value_heads, delta_dim;
    int32_t n_ssm_state;        /* granitehybrid, mamba2: numbers that B and C have */
    int32_t n_conv;             /* positions that the convolution sees */
    int32_t attention_interval; /* one layer in attention_interval has attention; 0: none */
    /* qwen35, qwen35moe, qwen3next, deepseek2, glm4moe: layers for multi-token prediction, after the others */
    int32_t n_nextn;
    bool nextn_head;              /* these layers have an embedding and an LM head of their own */
    int32_t kv_rank, q_rank;      /* deepseek2: widths of the latents; q_rank 0: queries are computed from the input */
    int32_t plain_dim, value_dim; /* in a head: components that are not rotated (n_rot more are); those of a value */
    bool joins_kv_b;              /* attn_kv_b and lengths of heads, as in older files */
    double yarn_log_multiplier;   /* 0: not in the file */
    double yarn_attn_factor;      /* the same */
    int32_t n_dense;              /* leading layers without experts */
    bool has_sigmoid_router;      /* a router of sigmoids, with a bias that affects only the choice; false: a softmax */
    bool divides_by_chosen;       /* weights of experts sum to 1 before expert_scale */
    double expert_scale;          /* 0: not in the file */
    int32_t n_groups, n_groups_used;
    int32_t expert_interval;  /* llama4: one layer in expert_interval has experts */
    double temperature_scale; /* mistral3, deepseek2, llama4: the scale of scores that grow with the position; 0: not in
                               * the file */
    int32_t temperature_length; /* the length for temperature_scale; 0: not in the file */
    bool fill_marks;            /* the last three tokens mark the parts of a text that is filled in */
    /* [n_controls] The names of the last tokens, which are control tokens. With them no space precedes a text. */
    const char *const *controls;
    int n_controls;
    const char *chat_template; /* NULL: not in the file */
    const int32_t *suppressed; /* [n_suppressed] tokens that are never generated */
    int n_suppressed;
    uint64_t seed;
} RandomModel;

/* The fields of a llama with one narrow layer, for tests to which the model does not matter. */
#define SMALL_LLAMA .arch = "llama", .n_layer = 1, .n_embd = 32, .n_head = 2, .n_head_kv = 1, .n_ff = 32

/* Weights are Gaussian, scaled so that every block adds about as much as the residual stream contains, and logits have
 * an rms of about 2.8. From 260 tokens on, the file holds a SentencePiece-like vocabulary: <unk> <s> </s>, 256 byte
 * tokens, then short pieces of lower-case letters. Writes to `path`. */
int random_model_write(const RandomModel *m, const char *path, fr_error *err);

/* Small models of every architecture, with SMALL_MODELS_VOCAB tokens, for tests that run all of them through the engine
 * (small_models.c). */
enum { SMALL_MODELS_VOCAB = 300 };
extern const RandomModel small_models[];
extern const int n_small_models;

#endif

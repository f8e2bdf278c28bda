/* dflash_rig.h - files of the drafter dflash with random weights, in the published layouts and in ours. */
#ifndef TESTS_DFLASH_RIG_H
#define TESTS_DFLASH_RIG_H

#include "learned_rig.h"

/* T is the width of the target that the files are for, V its vocabulary. */
enum { T = 64, V = 300, MAX_STREAMS = 3, MAX_H = 64, MAX_LAYERS = 2, MAX_BLOCK = 6 };

typedef enum Layout { PUBLISHED, OLD, OWN, LUCEBOX } Layout;

/* H is the layers' own width, n_tokens the size of the vocabulary, and 0 that of the target. */
typedef struct DflashFile {
    const char *path;
    Layout layout;
    TensorType type;
    int32_t H, n_head, n_kv, dim, ff, n_layer, n_tokens, block, mask, window;
    int32_t rank;                                /* of the Markov head; 0: there is none */
    int32_t taps, group, selector, selector_top; /* DFlash 2: of the convolutions; rank and candidates; 0: none */
    bool has_embedding, has_head_norms, has_sinks, is_causal, from_anchor, is_gated, is_recurrent;
    bool is_narrow;                          /* the confidence head reads only the hidden state */
    bool is_confident;                       /* there is a confidence head without a Markov head */
    bool has_biases, windows_are_causal;     /* is_causal in layers with a window */
    bool is_gemma, has_values;               /* layers of Gemma 4's form; whether they have a value projection */
    float embedding_scale, logit_scale, cap; /* 0: the file does not say */
    int32_t n_streams, streams[MAX_STREAMS]; /* numbers of layers that have run */
} DflashFile;
enum { N_DFLASH_FILES = 15 };
extern const DflashFile dflash_files[N_DFLASH_FILES];

typedef struct DflashLayerWeights {
    float *norm, *q, *k, *v, *o, *q_norm, *k_norm, *sinks, *ffn_norm, *gate, *up, *down;
    float *q_bias, *k_bias, *v_bias, *o_bias;
    float *post_attn_norm, *post_ffn_norm, *out_scale; /* of Gemma 4's form; NULL: another, no scale */
    float *kernels[2], *base[2]; /* of the convolutions around attention and the feed-forward part */
} DflashLayerWeights;

typedef struct DflashWeights {
    const DflashFile *file;
    LearnedRig rig;
    Rope rope;
    DflashLayerWeights layers[MAX_LAYERS];
    float *factors; /* [dim / 2] of the rope; NULL: none */
    float *fc, *context_norm, *output_norm, *output, *embedding;
    float *before, *markov, *confidence, *confidence_bias; /* [V][rank], [n_tokens][rank], [dflash_n_confident], [1] */
    float *gate, *gate_bias;                               /* [rank][H + rank], [rank] */
    float *joint, *joint_bias;                             /* [3 rank][2 rank + H], [3 rank] */
    float *predecessor, *successor, *selector_hidden;      /* [V][selector], [V][selector], [selector][H] */
    int64_t map[V];
} DflashWeights;

/* How many numbers the confidence head reads. */
static inline int32_t dflash_n_confident(const DflashFile *f) { return f->H + (f->is_narrow ? 0 : f->rank); }
static inline bool dflash_has_confidence(const DflashFile *f) { return f->rank || f->is_confident; }
static inline int32_t dflash_n_predicted(const DflashFile *f) { return f->from_anchor ? f->block : f->block - 1; }

/* Begins a file of that layout for the target, without keys and tensors of its own. */
void dflash_rig_begin(DflashWeights *w, const DflashFile *f, const Weights *target, uint64_t seed);
/* Adds its keys but for the mask token, then that token, and its tensors, which are left in *w as floats. */
void dflash_rig_set_keys(const DflashFile *f, LearnedRig *r);
void dflash_rig_set_mask(const DflashFile *f, LearnedRig *r);
void dflash_rig_add_tensors(const DflashFile *f, DflashWeights *w);
/* Writes file i of dflash_files, and sets *w, to be freed with dflash_rig_free. */
void dflash_rig_write(DflashWeights *w, int i, const Weights *target);
void dflash_rig_free(DflashWeights *w);

#endif

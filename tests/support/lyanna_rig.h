/* lyanna_rig.h - files of the drafter lyanna with random weights, and a reference in double precision:
 * its layer, its token info, its Algorithms 1 and 2. */
#ifndef TESTS_LYANNA_RIG_H
#define TESTS_LYANNA_RIG_H

#include "learned_rig.h"
#include "plain_layer.h"

enum {
    LYANNA_H = 64,
    LYANNA_V = 300,
    LYANNA_HEADS = 4,
    LYANNA_KV_HEADS = 2,
    LYANNA_DIM = 16,
    LYANNA_KV = LYANNA_KV_HEADS * LYANNA_DIM,
    LYANNA_FF = 80,
    LYANNA_LATER_FF = 96,
    LYANNA_RIG_TOP = 16,
    LYANNA_RIG_GATE = 32
};

#define LYANNA_TARGET "build/lyanna-target.gguf"

/* The target of all files, opened once for the whole program; embeddings and output: [V][H]. */
typedef struct LyannaTarget {
    Gguf *gguf;
    Weights *model;
    float *embeddings, *output;
} LyannaTarget;
extern LyannaTarget lyanna_target;
int lyanna_rig_open_target(void **state);
int lyanna_rig_close_target(void **state);

typedef struct LyannaShape {
    const char *path;
    TensorType type;         /* type of the matrices */
    int32_t rank, n_hot;     /* 0: no token info; all tokens are hot */
    const char *first_token; /* NULL: "fused" */
    int32_t bad_hot;         /* 1: two hot tokens in the wrong order; 2: one outside the vocabulary */
    int32_t gate_rank;       /* 0: no gate; at most LYANNA_RIG_GATE */
    int32_t n_inputs;        /* inputs of a parallel chain; 0: the chain is serial */
    const char *chain;       /* NULL: "parallel" with inputs, else no key */
    int32_t bad_gate;        /* 1, 2, 3: that tensor of the gate has a wrong shape */
    const char *later;       /* what the later layer reads, "state" or "token"; NULL: there is none */
    int32_t info_step;       /* the first step with token info and gate; 0: no key, all of them */
} LyannaShape;

/* The layer of the first step, or that of the later ones. */
typedef struct LyannaRigLayer {
    float *q, *k, *v, *o, *attn_norm, *ffn_norm, *gate, *up, *down;
    int32_t n_ff;
} LyannaRigLayer;

typedef struct LyannaWeights {
    LearnedRig rig;
    LyannaShape shape;
    float *fc, *fc_bias, *later_fc, *later_fc_bias;
    LyannaRigLayer layer, later; /* q of `later` is NULL if there is no such layer */
    float *gate_state, *gate_token, *gate_up, *chain_inputs;
    LearnedRigInfo info;
    int32_t hot[LYANNA_V];
} LyannaWeights;

/* Writes a file for lyanna_target and keeps its weights until learned_rig_free(&w->rig). */
void lyanna_rig_write(LyannaWeights *w, const LyannaShape *shape, uint64_t seed);

/* A row of the layer: an entry, or a step of a chain. */
typedef struct LyannaRow {
    PlainKv kv;
    int32_t token; /* of an entry */
    double input[LYANNA_H], feature[LYANNA_H];
} LyannaRow;

/* A step of a chain, whose first step has the number 1: its logits, and P h of the gate. */
typedef struct LyannaStep {
    int32_t number;
    double logits[LYANNA_V], gate[LYANNA_RIG_GATE];
} LyannaStep;

void lyanna_rig_entry(const LyannaWeights *w, const LyannaRow *before, int32_t token, const float *hidden,
                      LyannaRow *out);
/* steps: [depth] of the chain after the last entry. */
void lyanna_rig_chain(const LyannaWeights *w, const LyannaRow *last, int32_t depth, LyannaStep *steps);
/* Computes the token info E'(token). */
void lyanna_rig_info(const LyannaWeights *w, int32_t token, double *info);
/* Adds the gate's bias after a token at a step. */
void lyanna_rig_gate(const LyannaWeights *w, const LyannaStep *step, int32_t token, double *logits);
/* Algorithm 1 over n_steps steps of a chain, below `root`. */
void lyanna_rig_subtree(const LyannaWeights *w, const LyannaStep *steps, int32_t n_steps, int32_t top, int32_t root,
                        Tree *out);

#endif

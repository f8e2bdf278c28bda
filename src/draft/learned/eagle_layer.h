/* eagle_layer.h - the common part of `eagle`, `eagle3` and `mtp`: a layer with a KV cache of its own between a linear
 * layer and an LM head. Its input is a token and the hidden state before it. The methods differ in where the weights
 * come from and in what the layer reads (draft_eagle.c, draft_eagle3.c, draft_mtp.c); the struct of each begins with an
 * Eagle. */
#ifndef LEARNED_EAGLE_LAYER_H
#define LEARNED_EAGLE_LAYER_H

#include "draft/learned/layer_entries.h"
#include "draft/learned/logit_corrections.h"
#include "tree/tree_shapes.h"

enum { EAGLE_MAX_DEPTH = 16, EAGLE_MAX_TOP = 16 };

typedef struct EagleMember EagleMember; /* a sequence in a proposal */
typedef struct EagleFront EagleFront;   /* a node that is expanded at the current level */
typedef struct EagleRow EagleRow;       /* a row of the tree in a forward */

typedef struct Eagle {
    LearnedDrafter learned;
    int32_t top, depth, n_ctx;
    bool is_static;
    StaticTree shape;
    Linear *fc;
    TokenInfo info;
    Confidence confidence;
    OneLayer layer;
    EntryQueue entries; /* its rows and pairs are also those of the tree; `mtp` may give it later layers */
    EagleMember *group; /* [max_group] */
    int32_t n_group, max_rows;
    EagleFront *front; /* [max_group * top] the nodes expanded at this level */
    EagleRow *rows;    /* [max_rows] the rows of the next forward */
    float *features;   /* [max_rows][H] the output f for each row of the layer that ran last */
    float *logits;     /* [V] */
} Eagle;

/* The options that all three methods have. */
typedef struct EaglePlan {
    int32_t depth, top;
    bool is_static;
} EaglePlan;

/* A method opens a zeroed struct in this order: eagle_plan, before or after learned_open or learned_open_target; the
 * weights, which are fc and layer.weights; and eagle_open_layer, whose `input` describes how the input of an entry is
 * made. It also opens the executors of later layers, which the method closes. */
int eagle_check_tree(const char *method, int32_t depth, int32_t top, fr_error *err); /* a part of eagle_plan */
int eagle_plan(Eagle *d, const char *method, const EaglePlan *plan, const DrafterEnv *env, fr_error *err);
int eagle_open_layer(Eagle *d, const char *method, const EntryQueueOptions *input, fr_error *err);
void eagle_release(Eagle *d); /* everything but the struct itself, after a failure as well */

enum { EAGLE3_MAX_LAYERS = 16 }; /* published drafters have 1 or 4 */

/* The keys that only the files of eagle3 have (learned_files.h). */
typedef struct Eagle3Keys {
    const Gguf *gguf;
    const Model *target;
    StreamList streams;
    bool norms_before_fc, norms_each_stream, keeps_normed, continues_normed;
    int32_t block, mask; /* block 0: the layers continue from their own output */
} Eagle3Keys;

/* Reads and checks the keys of such a file for that target; *h is the shape of its layers. */
int eagle3_read_keys(Hparams *h, Eagle3Keys *k, const DrafterFile *f, const Model *target, fr_error *err);

#endif

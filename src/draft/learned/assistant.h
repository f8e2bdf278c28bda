/* assistant.h - the assistants of Gemma 4 (draft_mtp_assistant.c): a few layers with queries only, which read keys and
 * values of the target. `mtp` opens one if its file is of the architecture gemma4-assistant. */
#ifndef LEARNED_ASSISTANT_H
#define LEARNED_ASSISTANT_H

#include "compute/executor.h"
#include "draft/learned/learned.h"

enum { ASSISTANT_MAX_LAYERS = 16 }; /* published assistants have 4 */

/* The vectors of a layer. */
typedef struct AssistantVectors {
    float *attn_norm, *q_norm, *post_attn_norm, *ffn_norm, *post_ffn_norm;
} AssistantVectors;

typedef struct AssistantMember AssistantMember; /* a sequence in a proposal */
typedef struct AssistantFront AssistantFront;   /* a node that is expanded at the current level */

/* An LM head that computes the logits of some clusters of tokens only (cluster_head.c). */
typedef struct ClusterHead {
    LearnedDrafter *learned;
    int32_t n, n_top, n_each; /* clusters; how many of them are computed; tokens of each */
    int32_t *tokens;          /* [n][n_each] */
    Linear **rows;            /* [n] the rows of the LM head for the tokens of a cluster, [n_each][H] */
    Buffer *hidden, *logits;  /* [H], [n_top][n_each] */
} ClusterHead;

/* Opens the clusters of the file on a zeroed struct: `head` is the LM head, [V][H]. *centroids [n][H] becomes the
 * matrix that scores clusters. After a failure cluster_head_close is safe. */
int cluster_head_open(ClusterHead *c, LearnedDrafter *learned, const GgufTensor *head, int32_t n_top,
                      const GgufTensor **centroids, fr_error *err);
void cluster_head_close(ClusterHead *c);
/* Computes a row of logits [V] of a state [H] and the scores [n] of the clusters for it. */
void cluster_head_logits(ClusterHead *c, const float *scores, const float *hidden, float *logits);

/* T is the width of the target, H that of the layers. */
typedef struct Assistant {
    LearnedDrafter learned;
    int32_t depth, top, max_rows;
    Model model;
    LayerSpec specs[ASSISTANT_MAX_LAYERS];
    AssistantVectors vectors[ASSISTANT_MAX_LAYERS];
    float *output_norm;
    ClusterHead clusters; /* n 0: all logits are computed */
    Weights *weights;
    Executor *executor;      /* reads the target's */
    Linear *before, *after;  /* the projections around the layers: [H][2T], [T][H] */
    AssistantMember *group;  /* [max_group] */
    AssistantFront *front;   /* [max_rows] */
    Row *rows;               /* [max_rows] */
    Buffer *pairs, *inputs;  /* [max_rows][2T], [max_rows][H] */
    Buffer *hidden, *states; /* [max_rows][H], [max_rows][T] of the level that ran last */
    float *logits;           /* [V] */
} Assistant;

/* Returns whether the file is one of an assistant. An error is reported when it is opened. */
bool assistant_is_file(const char *path);

/* Reads the shape and the layers from the open file, and binds each layer to one of the target, for forwards of
 * max_rows rows (assistant_weights.c). After a failure assistant_close_weights is safe on a zeroed struct. */
int assistant_read_weights(Assistant *a, fr_error *err);
void assistant_close_weights(Assistant *a);

typedef struct AssistantOptions {
    const char *file;
    int32_t depth, top;
    bool coupled, draws;
} AssistantOptions;

/* As DrafterClass.open; the caller fills in the class, which has the functions below. */
int assistant_open(Drafter **out, const AssistantOptions *options, const DrafterEnv *env, fr_error *err);
void assistant_close(Drafter *drafter);

#define ASSISTANT_CALLS \
    .needs_hidden = true, .close = assistant_close, .set_sampling = learned_set_sampling, .begin = learned_begin, \
    .observe_prompt = learned_observe_prompt, .take_over = learned_take_over, .observe_tree = learned_observe_tree, \
    .observe = learned_observe, .propose = learned_propose, .end = learned_end, .notice = learned_notice

#endif

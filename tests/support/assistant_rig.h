/* assistant_rig.h - targets of gemma4 and assistants for them with random weights, in the published layout of the
 * architecture gemma4-assistant, for tests of the drafter mtp. */
#ifndef TESTS_ASSISTANT_RIG_H
#define TESTS_ASSISTANT_RIG_H

#include "learned_rig.h"
#include "plain_layer.h"

/* The width of the targets, their tokens, the size of heads of layers without a window and with one, and the window. */
enum {
    ASSISTANT_WIDTH = 64,
    ASSISTANT_VOCAB = 300,
    ASSISTANT_DIM = 32,
    ASSISTANT_LOCAL_DIM = 16,
    ASSISTANT_WINDOW = 9
};
enum { ASSISTANT_LAYERS = 3, ASSISTANT_SEQUENCES = 4, ASSISTANT_TEXT = 24 }; /* the most of each */
enum { ASSISTANT_FULL, ASSISTANT_LOCAL };                                    /* layers without a window and with one */

/* A target. Of its layers with or without a window, the last one that has keys of its own is number `place` among
 * those. */
typedef struct AssistantTarget {
    const char *path;
    RandomModel model;
    int32_t place[2], n_kv[2];
    Gguf *gguf;
    Weights *weights, *exact; /* in the CPU backend and in the reference backend */
    float *embedding;         /* [ASSISTANT_VOCAB][ASSISTANT_WIDTH] */
} AssistantTarget;

enum { ASSISTANT_TARGETS = 2, ASSISTANT_FILES = 5 };
extern AssistantTarget assistant_targets[ASSISTANT_TARGETS];

/* An assistant: the number of its target, its width, and what its layers are like. */
typedef struct AssistantFile {
    const char *path;
    TensorType type;
    int32_t target, H, n_head, n_layer, window, ff[ASSISTANT_LAYERS];
    bool is_local[ASSISTANT_LAYERS], lists_ff;
    int32_t n_clusters; /* into which the LM head divides the tokens; 0: it does not */
    int32_t n_top;      /* how many of the clusters are computed; 0: the file does not say it */
} AssistantFile;

typedef struct AssistantLayer {
    float *attn_norm, *q, *q_norm, *o, *post_attn_norm, *ffn_norm, *gate, *up, *down, *post_ffn_norm, *scale;
} AssistantLayer;

typedef struct AssistantRig {
    const AssistantFile *file;
    LearnedRig rig;
    AssistantLayer layers[ASSISTANT_LAYERS];
    float *before, *after, *head, *output_norm, *centroids;
    int32_t clusters[ASSISTANT_VOCAB]; /* the tokens of all clusters */
    float listed[ASSISTANT_VOCAB];     /* the same, as the file of n_top 0 has them */
    Rope ropes[2];
} AssistantRig;
extern const AssistantFile assistant_files[ASSISTANT_FILES];
extern AssistantRig assistants[ASSISTANT_FILES];

/* For a group of tests: write and open the targets and the files above. */
int assistant_rig_open(void **state);
int assistant_rig_close(void **state);
/* Writes only the first target and the first file, to these paths. */
void assistant_rig_write_first(const char *target, const char *path);
/* Writes a file for an open target. */
void assistant_rig_write(const AssistantFile *f, AssistantRig *w, uint64_t seed);
void assistant_rig_free(AssistantRig *w);
/* Set a key of such a file, which is named without the architecture. */
void assistant_set_int(GgufWriter *w, const char *name, int32_t value);
void assistant_set_list(GgufWriter *w, const char *name, const int32_t *list, int32_t n);
void assistant_set_float(GgufWriter *w, const char *name, float value);

/* A target with the sequences 0 .. ASSISTANT_SEQUENCES - 1, and what a drafter may know about it. */
Executor *assistant_rig_reader(const Weights *w, KvType kv_type);
DrafterEnv assistant_rig_env(const Executor *e);

#endif

/* layer_entries.h - the transformer layers of `eagle`, `eagle3`, `mtp`, `lyanna` and `dflash`, and their KV entries:
 * one for each token that the target has read, computed from the target's hidden state or streams there and, in most
 * methods, from the token that follows. */
#ifndef LEARNED_LAYER_ENTRIES_H
#define LEARNED_LAYER_ENTRIES_H

#include "compute/executor.h"
#include "draft/cached_kv.h"
#include "draft/learned/learned.h"

/* ---- the layer (one_layer.c) --------------------------------------------------------------------------- */

/* A transformer layer that runs on the target's device with its own KV cache. The input of each row is [n_embd] floats;
 * the output is hidden states and, by the target's LM head, logits. A second layer may take turns with it
 * (executor_choose_layer), on the same cache. */
typedef struct OneLayer {
    Model model;        /* has one or two layers; heads, rope, embedding and LM head are the target's */
    LayerSpec specs[2]; /* the second one is empty if there is none; eagle3 and dflash have lists of their own */
    float *norms[4];    /* for each layer that of attention, which may be NULL, and that of the feed-forward */
    float *output_norm; /* NULL: the output has no norm */
    Weights *weights;
    Executor *executor;
    int32_t feature_at; /* where in the executor's hidden states the feature begins that the layer continues from */
} OneLayer;

/* What a method's layer has. */
typedef struct OneLayerParts {
    const char *first;  /* the name before the layer's tensors (learned_files.h): "eagle" */
    const char *second; /* that of a second layer, which has a norm before its attention; NULL: there is none */
    bool has_attn_norm, has_output_norm;
    bool wants_logits; /* its LM head is that of the drafter (head_tokens.c) */
} OneLayerParts;

/* Reads the layer's tensors from the open file and makes them resident on the device, on a zeroed struct. After a
 * failure one_layer_close is safe. */
int one_layer_open(OneLayer *l, LearnedDrafter *d, const OneLayerParts *parts, fr_error *err);
/* Opens the executor, for sequences of n_ctx entries and trees of n_more rows after them. A run has at most max_rows
 * rows, max_logits of which may want logits. */
int one_layer_open_executor(OneLayer *l, LearnedDrafter *d, int32_t n_ctx, int32_t n_more, int32_t max_rows,
                            int32_t max_logits, fr_error *err);
void one_layer_close(OneLayer *l);

/* ---- its entries --------------------------------------------------------------------------------------- */

enum { ENTRY_QUEUE_LENGTH = 32 };

/* A sequence in the executors of the layers. feature, input and logits are valid if all queued entries have run; they
 * are NULL in a sequence of the cache. */
typedef struct EntrySequence {
    int32_t kv; /* its id in each executor */
    bool begun;
    float *feature;     /* [n_layers][H] each layer's output for the last entry that it has run */
    float *input;       /* [H] what fc computed of the last entry */
    float *logits;      /* [V] the first layer's logits of the last entry; NULL: not wanted */
    int32_t n_masks;    /* rows of a block in the next proposal, of which the caller sets the number */
    int32_t first_mask; /* their first row in the executor, after that proposal */
    int32_t n_queued;   /* entries that a layer has not run yet */
    int32_t n_seen;     /* how many of them, from the first on, were in the last proposal */
    bool has_gap;       /* entries are missing after the first n_whole tokens */
    int32_t n_whole;
    int32_t n_kept;  /* entries of a sequence of the cache; it holds fewer if those that had run were dropped */
    int32_t *tokens; /* [ENTRY_QUEUE_LENGTH] */
    float *hidden;   /* [ENTRY_QUEUE_LENGTH][width] */
} EntrySequence;

/* How a layer that reads pairs (LayerSpec.reads_pairs) gets them from streams of the target (DrafterEnv.kept). fc makes
 * a state g of them; the pair of an entry is [norm E(token) ; norm g], and g itself is its residual stream. Below the
 * entries the layer's own feature takes the place of g. */
typedef struct EntryStreams {
    int32_t n;                   /* 0: the layer reads no pairs */
    int32_t at[MAX_KEPT_LAYERS]; /* indices of the streams in DrafterEnv.kept */
    const float *norm;           /* [n][H of the target] an RMS norm before fc; NULL: none */
    bool norms_each;             /* it is a norm of each stream, not one of all together */
    bool keeps_normed;           /* the residual stream is norm g */
    bool only_stores;            /* the layers read no pairs: each stores keys and values of norm g (executor_store) */
} EntryStreams;

/* The rows of a block (draft_eagle3.c), which follow the last entry of a sequence in the forward of a proposal. All of
 * them read this token and these streams, and have logits; the KV cache forgets them at once. */
typedef struct EntryMask {
    int32_t token;
    const float *streams; /* [n][H of the target]; NULL: there are none */
} EntryMask;

/* A layer that runs after the first one on the same entries (layer_entries.c), in the order of the list. It reads the
 * feature of the layer before it in the place of the target's hidden state, and the token one place later. */
typedef struct LaterLayer {
    OneLayer *layer;
    const Linear *fc;
    const float *token_norm, *hidden_norm;
    const GgufTensor *embedding;
} LaterLayer;

typedef struct EntryQueueOptions {
    const Linear *fc;  /* computes the input of an entry: fc [E(token) ; hidden], or fc hidden; NULL: it is hidden */
    bool reads_tokens; /* fc reads the token, too; the three pointers below need it */
    bool wants_logits;
    int32_t max_rows; /* rows of a forward; >= ENTRY_QUEUE_LENGTH, with masks enough for all that draft together */
    const float *token_norm, *hidden_norm; /* [H] RMS norms of the two parts before fc; NULL: none */
    const GgufTensor *embedding;           /* E, in memory of the caller; NULL: the embedding of the target */
    EntryStreams streams;
    EntryMask mask;          /* needs streams, and no later layers */
    const LaterLayer *later; /* [n_later] borrowed while the queue is opened */
    int32_t n_later;         /* < ENTRY_QUEUE_LENGTH / 2 */
} EntryQueueOptions;

typedef struct EntryRun EntryRun; /* a sequence in a run */

struct EntryQueue {
    LearnedDrafter *learned; /* borrowed: target, products, memory */
    EntryQueueOptions options;
    int32_t n_layers;         /* 1 + n_later */
    LaterLayer *layers;       /* [n_layers] the first layer is like the later ones here */
    CachedKv *cached;         /* [n_layers] */
    const Hparams *shape;     /* of the layers: n_embd is H, n_vocab is V */
    int64_t width;            /* floats that an entry keeps of the target's hidden state or streams */
    EntrySequence *sequences; /* [max_sequences + n_cached] */
    EntryRun *runs;           /* [max_sequences] */
    /* The next forward, which may also be one of the caller's own: */
    Row *rows;              /* [max_rows] */
    int32_t *row_ids;       /* [max_rows] */
    Buffer *pairs, *inputs; /* [max_rows][2H] the input of fc; [max_rows][H] its output */
    Buffer *streams;        /* [max_rows][width] the input of fc if it reads streams; `pairs` is then [max_rows][3H] */
};

/* Allocates in the drafter's arena, on a zeroed struct. The executors of the layers must be open. */
int entry_queue_open(EntryQueue *q, LearnedDrafter *learned, OneLayer *layer, const EntryQueueOptions *options,
                     fr_error *err);

void entry_queue_close(EntryQueue *q);

int entry_queue_begin(EntryQueue *q, int32_t sequence, fr_error *err);
void entry_queue_end(EntryQueue *q, int32_t sequence);

/* Adds n entries, given their hidden states, which are copied, and the token after each. */
int entry_queue_add(EntryQueue *q, int32_t sequence, const int32_t *tokens, const float *const *hidden, int32_t n,
                    fr_error *err);
/* Adds an entry for each token that a step accepted, the pending token included. While the drafter is idle nothing
 * runs: of more entries than the queue holds, the latest stay. */
int entry_queue_add_step(EntryQueue *q, int32_t sequence, const VerifiedTree *v, fr_error *err);

/* They implement n_held, usable and take_over of a DrafterClass. Queued entries count as held, those after a gap do
 * not. */
int32_t entry_queue_n_held(const EntryQueue *q, int32_t sequence);
int32_t entry_queue_usable(const EntryQueue *q, int32_t sequence, int32_t n_common);
void entry_queue_take_over(EntryQueue *q, int32_t from, int32_t to, int32_t n);
/* They implement save and load, for sequences of the cache. */
bool entry_queue_save(const EntryQueue *q, int32_t sequence, Buf *out);
int entry_queue_load(EntryQueue *q, int32_t sequence, ByteReader *in, fr_error *err);

/* Runs what is queued for these sequences, in as few forwards as possible. */
int entry_queue_run(EntryQueue *q, const int32_t *sequences, int32_t n, fr_error *err);

/* Returns the number of entries of a sequence. */
int32_t entry_queue_n_entries(const EntryQueue *q, const EntrySequence *s);
/* Makes room for n rows of a sequence in the next forward of each layer. */
int entry_queue_reserve(EntryQueue *q, const EntrySequence *s, int32_t n, fr_error *err);
/* Sets the pair that row i of the next forward of that layer is computed from: a token, and the hidden state or feature
 * before it. */
void entry_queue_set_pair(EntryQueue *q, int32_t layer, int32_t i, int32_t token, const float *hidden);
/* Sets the inputs of the first n rows, which fc computes from their pairs, or which are these pairs. */
void entry_queue_fuse(EntryQueue *q, int32_t layer, int32_t n);

/* The functions of a DrafterClass, for a LearnedDrafter that has entries (entry_calls.c). */
int entries_begin(Drafter *drafter, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err);
int entries_observe_prompt(Drafter *drafter, int32_t sequence, int64_t first, const float *const *hidden, int32_t n,
                           fr_error *err);
int entries_observe_tree(Drafter *drafter, int32_t sequence, const VerifiedTree *v, fr_error *err);
void entries_take_over(Drafter *drafter, int32_t from, int32_t to, int32_t n);
int32_t entries_n_held(const Drafter *drafter, int32_t sequence);
bool entries_save(const Drafter *drafter, int32_t sequence, Buf *out);
int entries_load(Drafter *drafter, int32_t sequence, ByteReader *in, fr_error *err);
void entries_end(Drafter *drafter, int32_t sequence);

#define ENTRY_CALLS \
    .needs_hidden = true, .set_sampling = learned_set_sampling, .begin = entries_begin, \
    .observe_prompt = entries_observe_prompt, .take_over = entries_take_over, .n_held = entries_n_held, \
    .save = entries_save, .load = entries_load, .observe_tree = entries_observe_tree, .observe = learned_observe, \
    .propose = learned_propose, .end = entries_end, .notice = learned_notice

/* ---- what a file may bring along (layer_ends.c) -------------------------------------------------------------- */

/* A list of streams of the target, each by the number of layers that have run before it. */
typedef struct StreamList {
    int32_t n, layers[MAX_KEPT_LAYERS];
} StreamList;

/* The option `layers` of a method whose struct of options S has counts_outputs. */
#define STREAM_OPTION_LAYERS(S) \
    { \
        .key = "layers", OPT_CHOICE(S, counts_outputs, "inputs", "outputs"), .default_value = "inputs", \
        .help = "what the file's list of the target's layers names: their inputs, as in llama.cpp's files, or their " \
                "outputs; the wrong one lowers the acceptance" \
    }

typedef struct KeyReader KeyReader;

/* Refuses a file whose key `what`, if it has one, names other widths than that of the target's hidden states. */
void stream_width_check(KeyReader *r, const Model *target, const char *what);
/* Reads the list under the key `what`, and adds `shift` to its numbers. An error says that the key `name` is needed. */
void stream_list_read(KeyReader *r, const Gguf *g, const Model *target, const char *what, const char *name,
                      int32_t shift, StreamList *out);
/* Asks the target to keep the streams; with counts_outputs the list means the outputs of layers. Sets n and `at`. */
int stream_list_ask(const StreamList *list, bool counts_outputs, const LearnedDrafter *d, EntryStreams *out,
                    fr_error *err);

enum {
    DFLASH_MAX_LAYERS = 64,              /* published drafters have 3 to 8 */
    DFLASH_MAX_SLOTS = LEARNED_MAX_BLOCK /* of a block; published drafters have 7 to 16 */
};

/* The keys that only the files of dflash have (learned_files.h). */
typedef struct DflashKeys {
    const DrafterFile *file;
    const Model *target;
    const Hparams *shape; /* of the layers */
    StreamList streams;
    int32_t block, mask, window;
    bool is_causal, from_anchor, has_window[DFLASH_MAX_LAYERS];
    bool windows_are_causal; /* is_causal holds in layers with a window */
    float embedding_scale;
    float logit_scale, logit_cap;  /* 0, -1: the file does not say */
    int32_t conv_taps, conv_group; /* 0: the layers have no convolutions */
    int32_t selector_top;          /* 0: there is no selector */
} DflashKeys;

/* Reads and checks the keys of such a file for that target (dflash_keys.c); *h is the shape of its layers. */
int dflash_read_keys(Hparams *h, DflashKeys *k, const DrafterFile *f, const Model *target, fr_error *err);

/* A copy of the embedding of a drafter's file, which may be changed while the drafter is open. */
typedef struct OwnEmbedding {
    GgufTensor tensor;
    void *memory; /* NULL: the file has none, and the target's is used */
} OwnEmbedding;

/* Reads the tensor `name`, if the file has it. Without it n_embd must be the target's. */
int own_embedding_read(OwnEmbedding *e, LearnedDrafter *d, const char *name, int64_t n_embd, fr_error *err);
void own_embedding_close(OwnEmbedding *e);
/* Makes a rope, whose frequencies are divided by the tensor `name` [n_rot / 2] if the file has it. */
int own_rope_open(Rope *rope, DrafterFile *f, const RopeParams *params, const char *name, fr_error *err);

/* ---- layers of the form of Gemma 4's (gemma_layer.c) --------------------------------------------------------- */

/* The vectors that such a layer has in addition; NULL in another layer. */
typedef struct GemmaParts {
    float *post_attn_norm, *post_ffn_norm; /* [H] */
    float *v_norm;                         /* [head_dim] ones */
} GemmaParts;

/* Returns whether that layer of the file is of this form. Such a layer need not have a value projection. */
bool gemma_layer_in(const DrafterFile *f, int32_t i_layer);
/* If it is, reads what it has in addition into *g, on a zeroed struct, and completes the spec, whose matrices must have
 * been read. After a failure gemma_layer_close is safe. */
int gemma_layer_read(GemmaParts *g, DrafterFile *f, int32_t i_layer, const Hparams *h, LayerSpec *spec, fr_error *err);
void gemma_layer_close(GemmaParts *g);
/* Reads the factor of its output, which is not 0; without it *out is not written. */
int gemma_layer_read_scale(DrafterFile *f, int32_t i_layer, float *out, fr_error *err);

#endif

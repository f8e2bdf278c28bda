/* learned.h - the common part of learned drafters: their file, the target that they were trained for, its latest
 * hidden state of each sequence, and the loop of a proposal. A method's struct begins with a LearnedDrafter, and its
 * class refers to these functions.
 *
 * Before a proposal, the target has read all of the context except the pending token. The drafter has the target's
 * hidden state at the token before it, from whose logits the pending token was chosen. The hidden state of the
 * pending token itself is not computed yet.
 *
 * Everything is computed by the target's backend (compute/backend.h), on the engine's device.
 */
#ifndef LEARNED_LEARNED_H
#define LEARNED_LEARNED_H

#include "base/mem.h"
#include "draft/drafter.h"
#include "draft/drafter_file.h"
#include "draft/feedback.h"
#include "verify/gumbel.h"
#include "tree/draft_dists.h"

/* Rows of an option table for the fields `const char *file`, `bool coupled` and `bool draws` of a struct S. The last
 * one is for methods that declare what they draw (learned_declare). */
#define LEARNED_OPTION_FILE(S) \
    { \
        .key = "file", OPT_FILE(S, file), .required = "drafter file", \
        .help = "the drafter's weights, a GGUF file trained for this target" \
    }
#define LEARNED_OPTION_COUPLED(S) \
    { \
        .key = "coupled", OPT_FLAG(S, coupled), .default_value = "1", \
        .help = \
            "1: rank tokens with the target's own noise, so that more are accepted where the temperature is above 0 " \
            "(rule sampled only); 0: rank them by their probability" \
    }
#define LEARNED_OPTION_DRAW(S) \
    { \
        .key = "draw", OPT_FLAG(S, draws), .default_value = "1", \
        .help = "rules recursive and transport: 1: draw the tokens at random; 0: rank them by their probability" \
    }

/* The draws of a proposal (learned_top.c): a node that was drawn, and a node whose children were drawn. Both are found
 * by a hash of the path to the node. */
typedef struct LearnedDraw {
    uint64_t key;
    int32_t token;
    double log_q, psi;
} LearnedDraw;
typedef struct LearnedExpanded {
    uint64_t key;
    const float *q;
    int32_t first, n; /* its children among the draws, in the order in which they were drawn */
} LearnedExpanded;
enum { LEARNED_MAX_DRAWS = 2 * TREE_MAX_NODES };

typedef struct LearnedSequence {
    int64_t n_tokens, n_hidden; /* tokens of the context, and how many hidden states of them were observed */
    float *hidden;              /* [n_embd] the latest hidden state */
    int32_t *context;           /* [n_ctx + 2 TREE_MAX_NODES] its tokens, with room for a drafted path */
    SamplingOptions sampling;   /* the request's options; without set_sampling: temperature 1 */
    bool has_noise;             /* the target draws with noise that is known: set_sampling was called */
    uint64_t position;          /* output position of the token after the context */
    bool is_coupled;            /* this proposal ranks tokens with the target's noise */
    bool is_drawing;            /* this proposal draws tokens and declares them in `dists` */
    DraftDists *dists;
    int32_t n_draws, n_expanded;
    LearnedDraw draws[LEARNED_MAX_DRAWS];
    LearnedExpanded expanded[TREE_MAX_NODES];
} LearnedSequence;

/* A sequence in a proposal. */
typedef struct LearnedMember {
    Tree *tree; /* has only the pending token */
    int32_t sequence, budget;
    const float *hidden; /* [n_embd] the target's hidden state before the pending token */
} LearnedMember;

enum { LEARNED_MAX_BUFFERS = 16 };

/* The tokens that a drafter computes logits for (head_tokens.c). */
typedef struct LearnedHead {
    int32_t *tokens; /* [n] the target's tokens; NULL: all of them */
    int32_t n;
    bool is_list;     /* they are those of a list, and matrices of the file have rows for all tokens of the target */
    Model model;      /* no layers, and these rows as its LM head; for learned_head */
    Weights *weights; /* of `model` */
    float *row;       /* [n] */
} LearnedHead;

typedef struct EntryQueue EntryQueue; /* layer_entries.h */
typedef struct LearnedDrafter LearnedDrafter;
/* Drafts for several sequences together. */
typedef int LearnedDraftFn(LearnedDrafter *d, const LearnedMember *members, int32_t n, fr_error *err);

struct LearnedDrafter {
    Drafter base;
    const Model *target;    /* its shape */
    const Weights *weights; /* the drafter uses its embedding and LM head */
    const Backend *backend;
    Device *device;
    DrafterFile file;
    LearnedHead head;
    uint64_t weights_mark; /* of the drafter's file (gguf_weights_mark); 0: it has none */
    char notice[512];      /* for learned_notice */
    int32_t n_embd, n_vocab, max_sequences, n_ctx;
    DrafterEnv env;      /* the environment that it was opened in */
    bool coupled, draws; /* options */
    Sampler *sampler;
    DrawCache *draw_cache;
    float *dist;                /* [n_vocab] */
    DrawChild *children;        /* [TOP_K_MAX] */
    LearnedSequence *sequences; /* [max_sequences] */
    LearnedMember *members;     /* [max_group] the sequences that draft together */
    int32_t max_group;
    LearnedDraftFn *draft;                /* for learned_propose */
    EntryQueue *entries;                  /* entry_queue_open sets it; NULL: the method has no layer of its own */
    Arena arena;                          /* memory of this struct and of the method's arrays */
    Buffer *buffers[LEARNED_MAX_BUFFERS]; /* [n_buffers] the buffers that the method opened */
    int32_t n_buffers;
};

/* Opens the drafter file at `path`, which must be one of that method, on a zeroed struct. After a failure
 * learned_release is safe. */
int learned_open(LearnedDrafter *d, const char *path, const char *method, const DrafterEnv *env, fr_error *err);
/* Opens a method that has no file of its own. */
int learned_open_target(LearnedDrafter *d, const char *method, const DrafterEnv *env, fr_error *err);
void learned_release(LearnedDrafter *d); /* everything but the struct itself */
/* Opens the weights of the drafter's layers (weights_open_draft). The model must outlive them. */
int learned_layers_open(LearnedDrafter *d, const Model *layers, Weights **out, fr_error *err);

/* If the target is quantised, notes for learned_notice that the file at `path`, which others published, was trained on
 * 16-bit weights. `remedy` is what the user can do. */
void learned_note_quantisation(LearnedDrafter *d, const char *path, const char *remedy);

/* "<method>.<what>", the name of a key or of a tensor in a drafter's file. */
typedef struct LearnedName {
    char text[64];
} LearnedName;
LearnedName learned_name(const char *method, const char *what);

/* Returns the hidden state to draft from, [n_embd]; NULL if there is none, because the context is a single token. */
const float *learned_hidden(const LearnedDrafter *d, int32_t sequence);

/* Call before a proposal for a sequence: decides whether its tokens are ranked with the target's noise, or drawn. */
void learned_start(LearnedDrafter *d, int32_t sequence, const Tree *tree);

/* Called once, while the drafter is opened, by methods whose sequences draft together. draft: for learned_propose;
 * NULL if the method has a `propose` of its own. */
int learned_reserve_group(LearnedDrafter *d, int32_t max_group, LearnedDraftFn *draft, fr_error *err);

/* ---- operations ------------------------------------------------------------------------------------- */

/* Opens a linear layer of the file: "<name>.weight" [n_out][n_in] and, with has_bias, "<name>.bias" [n_out]; for at
 * most max_rows rows. */
int learned_linear_open(LearnedDrafter *d, const char *name, int64_t n_in, int64_t n_out, bool has_bias,
                        int64_t max_rows, Linear **out, fr_error *err);
void learned_linear_close(LearnedDrafter *d, Linear *l); /* NULL is allowed */
/* A buffer to be opened, of n floats. */
typedef struct LearnedBuffer {
    Buffer **out;
    int64_t n;
} LearnedBuffer;
/* Opens buffers on the device. learned_release closes them. */
int learned_open_buffers(LearnedDrafter *d, const LearnedBuffer *buffers, int32_t n, fr_error *err);

/* Applies a layer to the first n_rows rows of x [n_rows][n_in]; y: [n_rows][n_out]. */
void learned_linear(LearnedDrafter *d, const Linear *l, LinearOp op, Buffer *x, int32_t n_rows, Buffer *y);
/* Computes the target's embeddings of n tokens, out [n][n_embd]. */
void learned_embed(const LearnedDrafter *d, const int32_t *tokens, int32_t n, Slice out);
/* Copies n floats from the CPU's memory into a buffer of the device, from index `first` on. */
void learned_write(Buffer *b, int64_t first, const float *floats, int64_t n);

/* ---- LM heads (head_tokens.c) ------------------------------------------------------------------------- */

/* The target's LM head: computes logits [n_rows][n_vocab] from x [n_rows][n_embd] and brings them to the CPU. Tokens
 * for which the drafter computes none get -INFINITY. learned_head_reserve first allocates memory for max_rows. */
int learned_head_reserve(LearnedDrafter *d, int64_t max_rows, fr_error *err);
void learned_head(LearnedDrafter *d, Buffer *x, int32_t n_rows, Buffer *logits);
/* The same with an LM head of the file: a linear layer with a row for each token of the target. */
int learned_output_open(LearnedDrafter *d, const char *name, int64_t n_in, bool has_bias, int64_t max_rows,
                        Linear **out, fr_error *err);
void learned_output(LearnedDrafter *d, const Linear *output, Buffer *x, int32_t n_rows, Buffer *logits);
/* Makes a row of logits [n_vocab of the target] of one [head.n] that an executor computed. */
void learned_spread(const LearnedDrafter *d, const float *logits, float *out);

/* Read the list of the drafter's tokens from its file, and free it; learned_open and learned_release call them. */
int head_tokens_read(LearnedDrafter *d, const DrafterFile *f, fr_error *err);
void head_tokens_close(LearnedDrafter *d);
/* Leaves a model of layers (model_of_layers) only the rows of its LM head for the tokens of the list, if it has one. */
int head_tokens_set(LearnedDrafter *d, Model *m, fr_error *err);
/* Reads a matrix of the file that makes logits: its rows for the drafter's tokens. */
int head_rows_read(LearnedDrafter *d, const char *name, int64_t n_in, const GgufTensor **out, fr_error *err);
/* Sets the LM head of a model of the drafter's layers and its n_vocab: the tensor `name` of the file, which has a row
 * for each token of the map (drafter_file_map), if there is one; or the target's head. */
int own_head_read(LearnedDrafter *d, Model *m, const char *name, fr_error *err);

/* Finds the k <= TOP_K_MAX tokens that the target most probably chooses after a path of n_path drafted tokens, best
 * first, and the logarithm of that probability for each (learned_top.c). It overwrites the drafter's logits [n_vocab].
 * `path` is NULL if the tokens are unknown, as in medusa, whose logits do not depend on them. Returns the number of
 * tokens, which is 0 if the logits are not finite. */
#define LEARNED_MIN_TEMPERATURE 0.5f
int32_t learned_top(LearnedDrafter *d, int32_t sequence, const int32_t *path, int32_t n_path, float *logits, int32_t k,
                    int32_t *tokens, double *log_p);
/* Finishes a proposal: keeps `budget` of the nodes and, if tokens were drawn, declares their distributions. */
void learned_prune(LearnedDrafter *d, int32_t sequence, Tree *t, int32_t budget);
/* If this proposal draws, and the rule looks at all children of a node together, returns how many children a node at
 * that depth gets, all at once or none. 0: children are added one by one. */
int32_t learned_group_size(const LearnedDrafter *d, int32_t sequence, int32_t budget, int32_t depth);
/* Only declares the distributions, for a tree whose shape was fixed before anything was drawn, or that was grown by psi
 * from the greatest down and in groups of learned_group_size. */
void learned_declare(LearnedDrafter *d, int32_t sequence, Tree *t);

/* ---- trees ------------------------------------------------------------------------------------------ */

/* Fills path with the tokens on the path to a node, without the root's. Returns their number, the node's depth. */
int32_t learned_path(const Tree *t, int32_t node, int32_t path[TREE_MAX_NODES]);

/* Finds the k nodes among [first, end) of a tree that have the greatest log_p, best first; ties go to the earlier node.
 * Returns their number, which is less than k if there are fewer nodes. */
int32_t learned_best_nodes(const double *log_p, int32_t first, int32_t end, int32_t k, int32_t *nodes);

/* The tokens of each level, best first, for drafters whose levels are independent of each other: medusa's heads,
 * space's masks. */
typedef struct ProductRanks {
    int32_t n_levels, n_ranks;
    const int32_t *tokens;   /* [n_levels][n_ranks] */
    const double *log_p;     /* [n_levels][n_ranks] */
    const int32_t *n_tokens; /* [n_levels] how many there are */
} ProductRanks;

/* Adds at most `budget` paths to the tree of a pending token, the most probable first. The probability of a path is the
 * product of its tokens' probabilities. */
void learned_grow_products(const ProductRanks *r, int32_t budget, int32_t source, Tree *t);

/* Memory for learned_grow_block. */
typedef struct BlockRanks {
    int32_t n_ranks; /* candidates of each position */
    int32_t *tokens; /* [n_levels][n_ranks] */
    double *log_p;   /* [n_levels][n_ranks] */
    float *logits;   /* [n_vocab of the target] */
} BlockRanks;
enum { LEARNED_MAX_BLOCK = 64 }; /* positions */

/* Grows such a tree from the predictions of a block: logits[i] [head.n] are those of position i, whose tokens do not
 * depend on each other. */
void learned_grow_block(LearnedDrafter *d, const LearnedMember *m, const float *const *logits, int32_t n_levels,
                        const BlockRanks *r);

/* ---- the masks of `space` (draft_space.c) ----------------------------------------------------------- */

/* Mask `mask` (from 0) of the group after a node. */
typedef struct PlannedMask {
    int32_t node, mask;
    double value; /* tokens that it is expected to add to the next step */
} PlannedMask;

/* Lists all masks of the first n_nodes nodes of a tree in `out` [n_nodes * n_masks], those of greatest value first; the
 * masks of a node come in order. gain [n_masks] is how many tokens each mask after the last accepted node adds; it
 * never rises. Returns the number of masks. */
int32_t mask_plan(const Tree *t, int32_t n_nodes, const double *gain, int32_t n_masks, PlannedMask *out);

/* Returns how many of the drafted nodes 1 .. t->n - 1 are worth their rows if nodes and masks share `budget` rows: at
 * least one. The nodes are in falling order of p_accept. scratch: [t->n * n_masks]. */
int32_t mask_plan_candidates(const Tree *t, const double *gain, int32_t n_masks, int32_t budget, PlannedMask *scratch);

/* ---- for a DrafterClass ----------------------------------------------------------------------------- */

void learned_set_sampling(Drafter *d, int32_t sequence, const SamplingOptions *sampling, uint64_t position);
int learned_begin(Drafter *d, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err);
int learned_observe_prompt(Drafter *d, int32_t sequence, int64_t first, const float *const *hidden, int32_t n,
                           fr_error *err);
/* Works for methods that keep nothing for single tokens. */
void learned_take_over(Drafter *d, int32_t from, int32_t to, int32_t n);
int learned_observe_tree(Drafter *d, int32_t sequence, const VerifiedTree *v, fr_error *err);
int learned_observe(Drafter *d, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err);
/* Calls learned_start for the sequences that have a budget and a hidden state, and the method's LearnedDraftFn
 * with at most max_group of them at a time. */
int learned_propose(Drafter *d, const int32_t *sequences, const int32_t *budgets, Tree *const *trees, int n,
                    fr_error *err);
void learned_end(Drafter *d, int32_t sequence);
const char *learned_notice(const Drafter *d);

#endif

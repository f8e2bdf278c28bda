/* cpu.h - the inside of the CPU backend: its device, weights, keys and values, and context. What the operations of a
 * forward share is in cpu_ops.h, and recurrent states are in cpu_states.h. A file uses only those below it:
 *
 *   cpu_backend.c        the table of the backend; its device
 *   forward.c            a forward: the operations of all layers, as stages of one parallel region
 *   layer.c              the operations of one layer
 *   experts.c, latent_attention.c, attention.c with attention_rows.c, recurrent.c with state_cells.c, block_conv.c,
 *   per_layer_embedding.c
 *                        the parts of layers of each kind
 *   layer_parts.c        what these parts share
 *   split.c              which part of each of them a rank computes, and the exchange of its outputs
 *   cpu_context.c        the memory of a forward
 *   cpu_weights.c        packing of the weights; packed_file.c: weights that were packed before
 *   cpu_linear.c         matrices and tables of drafters, the LM head, norms, softmax
 *   cpu_cost.c           the work of a forward and of its parts
 */
#ifndef CPU_CPU_H
#define CPU_CPU_H

#include "compute/backend.h"
#include "base/mem.h"
#include "base/threads.h"
#include "compute/cpu/cpu_states.h"
#include "compute/cpu/kernels/kernels.h"
#include "compute/cpu/kernels/scores.h"
#include "compute/ranks/ranks.h"

/* ---- device --------------------------------------------------------------------------------------- */

typedef struct CpuDevice {
    Device base;
    const Kernels *kernels;
    ThreadPool *threads;
    char *acts; /* [acts_bytes] inputs of a product of cpu_linear.c, in the form that its matrix reads */
    size_t acts_bytes;
    float *products; /* [n_products] a product before it is added to something */
    float *ones;     /* [n_ones] ones, by which silu_mul multiplies */
    size_t n_products, n_ones;
} CpuDevice;

/* Makes room for products of n_rows rows of n_in inputs with n_out outputs. */
int cpu_device_reserve(CpuDevice *d, int64_t n_in, int64_t n_out, int32_t n_rows, fr_error *err);

/* ---- weights -------------------------------------------------------------------------------------- */

/* The things [first, last) that a rank computes or keeps; all of them, if there is one rank. */
typedef struct Share {
    int64_t first, last;
} Share;
static inline int64_t share_size(Share s) { return s.last - s.first; }

struct CpuLayer {
    const LayerSpec *spec; /* the description of the layer, with its vectors */
    Share units;           /* of this rank: KV heads, heads that share a latent, or heads of a recurrent state */
    int32_t place; /* among the layers of its kind: in its group of keys and values, or among the recurrent states */
    PackedMatrix *matrices[LAYER_MATRICES]; /* an array if each head or expert has one; NULL: the layer has none */
    float *conv;                            /* [n_conv][channels] of a layer with a recurrent state; NULL: none */
    /* If the state is divided among ranks: MATRIX_STATE_INPUTS with the tiles that make the values of this rank, where
     * matrices has those that all ranks compute. */
    PackedMatrix value_inputs;
};

typedef struct CpuWeights {
    Weights base;
    const Kernels *kernels;
    PackedMatrix output;    /* [n_vocab][n_embd]; usually a submodel has that of its target */
    CpuLayer *layers;       /* [n_layer] */
    PackedMatrix *matrices; /* the matrices of all layers; each has data for the tiles of this rank only */
    size_t block_bytes;     /* bytes of these tiles; base.bytes counts only the experts that one row uses */
    void *block;            /* holds all matrices in the order in which a forward reads them; NULL: they are mapped */
    /* The embedding and the table of per-layer embeddings, in memory of their own, because nothing is read from the
     * model's file after loading. data is NULL where a model has no such table, and where the rows of the embedding are
     * those of `output`. */
    GgufTensor embedding, ple_table;
    void *tables;       /* both of them; NULL: they are the target's, or are mapped */
    int64_t n_embedded; /* the number of rows of each: those of the tokens of this rank */
} CpuWeights;

/* Writes the embedding of a token, which this rank must have, to out [n_embd]. */
void cpu_embedding_row(const CpuWeights *w, int32_t token, float *out);
/* Packs a matrix of the file into memory of its own. */
int cpu_pack(const CpuWeights *like, const GgufTensor *t, PackedMatrix *out, fr_error *err);

/* ---- keys and values ------------------------------------------------------------------------------ */

/* The keys and values of the layers of a group, of the heads of this rank. Those of one head are contiguous:
 * [layer][keys | values][head][slot][head_dim]. A layer with fewer heads leaves the last ones unused. One that reads
 * the keys of another layer has the place of that layer. Latent attention keeps latents, which are both keys and
 * values: [layer][slot][head_dim]. A context that reads another one has a copy of that one's struct. */
typedef struct CpuKv {
    KvType type;
    bool is_latent;
    int32_t n_layer, n_head_kv, head_dim;
    int64_t n_slots;
    size_t slot_bytes;
    char *data;
} CpuKv;

static inline char *cpu_kv_plane(const CpuKv *kv, int64_t i) {
    return kv->data + (size_t)i * (size_t)kv->n_slots * kv->slot_bytes;
}
/* Slot 0 of the keys (or values) of one layer and head; slot s is s * slot_bytes after it. */
static inline char *cpu_kv_keys(const CpuKv *kv, int32_t layer, int32_t head) {
    return cpu_kv_plane(kv, kv->is_latent ? layer : (int64_t)layer * 2 * kv->n_head_kv + head);
}
static inline char *cpu_kv_values(const CpuKv *kv, int32_t layer, int32_t head) {
    return cpu_kv_plane(kv, kv->is_latent ? layer : ((int64_t)layer * 2 + 1) * kv->n_head_kv + head);
}
static inline int64_t cpu_kv_n_planes(const CpuKv *kv) {
    return (kv->is_latent ? 1 : 2) * (int64_t)kv->n_layer * kv->n_head_kv;
}

/* ---- the context of a forward --------------------------------------------------------------------- */

/* The softmax and the weighted values of this many keys are sums of their own, which is a part of the numeric contract
 * (attention.c). The scores of a tile have one cache line more than they need, because with an odd number of lines
 * heads lie in different sets of the cache. */
enum { ATTN_TILE = 512, SCORE_STRIDE = ATTN_TILE + 16 };
static inline int64_t attn_n_tiles(int64_t n_keys) { return (n_keys + ATTN_TILE - 1) / ATTN_TILE; }

/* The softmax of a query head over some of its keys. */
typedef struct SoftmaxSum {
    float greatest, sum; /* the greatest score; the sum of exp(score - greatest) */
} SoftmaxSum;

/* Adjacent rows of the batch that read the same committed slots (attention_rows.c). They have at most ATTN_QUERIES
 * query heads together that share a KV head. */
enum { ATTN_QUERIES = 64 };
typedef struct RowGroup {
    int32_t first, n;
} RowGroup;

/* An expert that a row has chosen, and the place of its activations among those of all choices. */
typedef struct ExpertChoice {
    int32_t expert, place;
    float weight;
} ExpertChoice;

/* The places [first, first + n) of an expert. */
typedef struct ExpertGroup {
    int32_t expert, first, n;
} ExpertGroup;

/* The most blocks of memory that a context allocates when it is opened. */
enum { CONTEXT_BLOCKS = 64 };

struct CpuContext {
    Context base;
    void *blocks[CONTEXT_BLOCKS]; /* [n_blocks] all memory freed with the context, except logits and states.walk */
    int n_blocks;
    const Model *model;
    const CpuWeights *weights;
    const Kernels *kernels;
    const ScoreKernels *score_kernels; /* NULL unless keys are KV_Q8 */
    ThreadPool *threads;               /* the device's */
    ContextOptions options;
    CpuKv kv[KV_GROUPS];
    CpuStates states;
    const RowPlace *rows; /* [n_rows] the rows of the forward that runs */
    int32_t n_rows, n_logits;
    bool only_best;  /* of a row whose logits are wanted, only the best token is needed (RowPlace.only_best) */
    int64_t longest; /* the most keys that a row sees */
    float *cos_sin;  /* [n_ropes][max_rows][hparams_max_rot] */
    float *x, *normed, *delta; /* [max_rows][n_embd]: residual stream; its norm; what a block adds to it */
    float *conv_kernels;       /* [max_rows][block_conv_kernels] of the part of a layer that runs */
    float *convolved;          /* [max_rows][n_embd] */
    float *q, *attended;       /* [max_rows][q_dim] */
    char *rounded;             /* [max_rows][n_head] RoundedQuery, of q; only with score_kernels */
    float *q_gated;     /* [max_rows][2 q_dim] for each head its query and its gate, where layers gate their output */
    float *k, *v;       /* [max_rows][kv_dim] */
    float *queries;     /* [max_rows][heads of plain_dim + n_rot] for latent attention */
    float *ple;         /* [max_rows][n_layer][n_ple] the rows of the table of per-layer embeddings */
    void *ple_acts;     /* [max_rows] activations of the input of the first layer, for MATRIX_PLE_INPUT */
    float *q_latent;    /* [max_rows][q_rank] */
    float *head_values; /* [max_rows][heads of value_dim] */
    void *head_acts;    /* [n_head][max_rows] activations of the widest row of a head */
    float *gate, *up;   /* [max_rows][n_ff]; of experts [max_rows * n_expert_used][n_ff_expert] */
    float *router;      /* [max_rows][n_expert] router logits */
    ExpertChoice *choices; /* [max_rows][n_expert_used] */
    float *shared_weights; /* [max_rows] the weight of the shared expert */
    float *shared_out;     /* [max_rows][n_embd] the output of the shared expert */
    int32_t *n_of_expert;  /* [n_expert] */
    ExpertGroup *groups;   /* [n_expert] */
    int32_t n_groups;
    int32_t *place_rows;               /* [max_rows * n_expert_used] the row of each place */
    float *place_weights;              /* [max_rows * n_expert_used] the factor of what an expert reads */
    void *expert_acts[ACT_FORM_COUNT]; /* [max_rows * n_expert_used] activations of each place; NULL: unused */
    float *expert_out;                 /* [max_rows * n_expert_used][n_embd] */
    int32_t *tokens;                   /* [max_rows] the tokens of rows, or -1 for rows with an input of their own */
    float *hidden;                     /* [n_hidden][context_hidden_width] */
    float *logits;                     /* [max_logits][n_vocab] */
    int32_t max_logits;
    int64_t attention_dim;    /* the larger one of head_dim and of the size of a value */
    int64_t widest_group;     /* the result of attention_widest_group */
    int64_t max_queries;      /* the most queries whose scores a thread keeps: at least those of one row and KV head */
    float *scores;            /* [n_threads][max_queries][SCORE_STRIDE] the scores of a tile of keys */
    SoftmaxSum *softmax_sums; /* [n_threads][2][max_queries] of all keys so far, and of a tile */
    float *key_floats;        /* [n_threads][KEYS_PACKED][attention_dim] keys or values for a group of rows */
    KeyBlock *key_blocks;     /* [n_threads][blocks of head_dim] keys for a group of rows; only with score_kernels */
    float *row_sums;          /* [n_threads][max_queries][attention_dim] the weighted values of a tile */
    RowGroup *row_groups;     /* [n_row_groups] the groups of the forward that runs; there is room for max_rows */
    int32_t n_row_groups;
    /* [n_threads][tiles of n_ctx][heads of a group][head_dim] the weighted values of each tile of a pair of a row and a
     * KV head */
    float *tile_sums;
    SoftmaxSum *tile_softmax_sums; /* [n_threads][tiles of n_ctx][heads of a group] */
    void *acts[ACT_FORM_COUNT];    /* [max_rows][widest row] activations in each form */
    void *ff_acts;                 /* [max_rows][widest row] activations for the down projection */
    Op *ops;                       /* [OPS_PER_LAYER * n_layer + OPS_AROUND] */
    Stage *stages;                 /* a stage for each operation */
    double *stage_s;               /* the seconds of each stage */
    double *part_s;                /* [CPU_N_PARTS] for Backend.time_parts; NULL: parts are not timed */
    InputSquares *squares;         /* for Backend.sum_inputs; NULL: squares are not summed */
};

static inline size_t row_at(int64_t row, int64_t width) { return (size_t)row * (size_t)width; }

/* Returns the cosines and sines of row i for the rope of a layer. */
static inline const float *cpu_angles(const CpuContext *c, const CpuLayer *l, int64_t i) {
    int64_t n = hparams_max_rot(&c->model->hparams);
    return c->cos_sin + row_at((int64_t)l->spec->i_rope * c->options.max_rows + i, n);
}

/* Puts a block on the list of those that are freed with the context (cpu_context.c). Returns it; NULL is not put
 * there. */
void *cpu_context_keep(CpuContext *c, void *p);
/* Scales and caps n logits, if the model does so (layer_parts.c). */
void cpu_finish_logits(const Hparams *h, const Kernels *kernels, float *logits, int64_t n);
/* Runs a forward of rows (forward.c). */
void cpu_forward(Context *c, const RowPlace *rows, int32_t n_rows);
/* Returns the number of query heads of a row that are one unit of work: those that share a KV head, or a few of those
 * that share a latent. */
int64_t attention_group(const Hparams *h, const LayerSpec *l);
int64_t attention_widest_group(const Model *m); /* the largest such number of any layer */

/* ---- ranks (split.c) -------------------------------------------------------------------------------- */

/* Returns how the weights are exchanged; NULL: they are not divided. */
static inline Comm *cpu_comm(const CpuWeights *w) { return w->base.n_ranks ? w->base.options.ranks->comm : NULL; }
int cpu_rank(const CpuWeights *w); /* the rank of this process */
/* Returns the share of rank `rank` in n things; cpu_share that of this rank. */
Share cpu_share_of(const CpuWeights *w, int rank, int64_t n);
Share cpu_share(const CpuWeights *w, int64_t n);
/* These return what this rank computes of a layer: its units of attention, and its tiles of the matrices in a slot, all
 * of which have the shape of m. */
Share cpu_share_units(const CpuWeights *w, const LayerSpec *l);
Share cpu_share_tiles(const CpuWeights *w, const LayerSpec *l, LayerMatrix slot, const PackedMatrix *m);
/* Returns whether the recurrent states of a layer are divided among ranks by heads. */
bool cpu_divides_state(const CpuWeights *w, const LayerSpec *l);
/* Returns whether MATRIX_STATE_INPUTS of such a layer has tiles that all ranks compute, and others, which
 * cpu_share_value_inputs gives, that make the values of a rank. */
bool cpu_divides_inputs(const CpuWeights *w, const LayerSpec *l);
Share cpu_share_value_inputs(const CpuWeights *w, const LayerSpec *l, const PackedMatrix *m);
/* Returns the tokens whose embeddings and logits a rank has. */
Share cpu_share_tokens(const CpuWeights *w, int rank);
/* These complete logits [n_rows][n_vocab] on rank 0, and embeddings of tokens, rows [n][width], on all ranks. A rank
 * has written those of its own tokens. A token below 0 belongs to no rank. Nothing is done where there is one rank.
 * cpu_exchange_best gives rank 0 only what its rows need (RowDraw): the logit of the best token of each rank, or one
 * that is not finite. */
void cpu_exchange_logits(const CpuWeights *w, float *logits, int64_t n_rows);
void cpu_exchange_best(CpuContext *c);
void cpu_exchange_embeddings(const CpuWeights *w, const int32_t *tokens, int32_t n, int64_t width, float *rows);

/* ---- entries of the table, by file ------------------------------------------------------------------ */

int cpu_weights_open(Weights **out, const Model *model, const WeightsOptions *options, fr_error *err);
int cpu_submodel(Weights **out, const Weights *target, const Model *layers, bool is_divided, fr_error *err);
void cpu_weights_close(Weights *w);
int cpu_weights_save(const Weights *w, const char *path, fr_error *err);

int cpu_context_open(Context **out, Device *d, const Weights *w, const ContextOptions *options, fr_error *err);
void cpu_context_close(Context *c);
const float *cpu_read(Context *c, ResultKind kind, int32_t i);
int cpu_reserve_logits(Context *c, int32_t n, fr_error *err);
int cpu_keep_layers(Context *c, const KeptLayers *layers, fr_error *err);
void cpu_copy_slots(Context *c, KvGroup group, int32_t from, int32_t to, int32_t n);
void cpu_fill_slot(Context *c, KvGroup group, int32_t slot);
size_t cpu_slot_bytes(const Context *c, KvGroup group);
void cpu_read_slot(Context *c, KvGroup group, int32_t slot, void *out);
void cpu_write_slot(Context *c, KvGroup group, int32_t slot, const void *bytes);
size_t cpu_state_bytes(const Context *c);
void cpu_read_state(Context *c, int32_t state, void *out);
void cpu_write_state(Context *c, int32_t state, const void *bytes);

int cpu_buffer_open(Buffer **out, Device *d, int64_t n, fr_error *err);
void cpu_buffer_close(Buffer *b);
int cpu_linear_open(Linear **out, Device *d, const Weights *target, const GgufTensor *w, const float *bias,
                    int32_t max_rows, fr_error *err);
void cpu_linear_close(Linear *l);
void cpu_linear(Device *d, const Linear *l, LinearOp op, Slice x, int32_t n_rows, Slice y);
int cpu_head_reserve(Device *d, const Weights *w, int32_t max_rows, fr_error *err);
void cpu_head(Device *d, const Weights *w, Slice x, int32_t n_rows, Slice y);
void cpu_embed(Device *d, const Weights *w, const int32_t *tokens, int32_t n, Slice out);
void cpu_softmax(Device *d, float *x, int32_t n_rows, int64_t n);
void cpu_rmsnorm(Device *d, Slice x, int32_t n_rows, int64_t n, const float *gain, float eps);

int cpu_lookup_open(Lookup **out, Device *d, TensorType type, int64_t n_rows, int64_t n, fr_error *err);
void cpu_lookup_close(Lookup *l);
void cpu_lookup_store(Device *d, Lookup *l, int64_t first, int32_t n_rows, const float *rows);
void cpu_lookup_add(Device *d, Lookup *l, int64_t row, float *x);

enum { CPU_N_PARTS = 7 };
void cpu_work(const Weights *w, KvType kv_type, CostWork *out);
int cpu_parts(const Weights *w, KvType kv_type, const MachineSpeed *speed, int32_t n_rows, int32_t n_context,
              CostPart *out);
void cpu_time_parts(Context *c, double *seconds);
void cpu_sum_inputs(Context *c, InputSquares *to);
int cpu_speed(const Weights *w, int n_threads, MachineSpeed *out, fr_error *err);
int cpu_read_weights(Device *d, const Weights *w, double *seconds, fr_error *err);

#endif

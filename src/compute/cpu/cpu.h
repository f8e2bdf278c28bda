/* cpu.h - inside of the CPU backend: what its files share.
 *
 *   cpu_backend.c   the table              cpu_linear.c   drafters' matrices, LM head, norms, softmax
 *   cpu_weights.c   packing; packed_file.c what was packed before
 *                                          cpu_lookup.c   drafters' tables of rows
 *   cpu_device.c    threads                cpu_cost.c     the work of a forward, and its parts
 *   cpu_context.c   memory of a forward    forward.c, layer.c, attention.c, experts.c   a forward
 *                                          latent_attention.c   attention by latents
 *   input_squares.c   the inputs of its matrices           recurrent.c, state_walk.c   recurrent layers, of the kinds
 *                                                          delta_net.c, mamba2.c, short_conv.c
 */
#ifndef CPU_CPU_H
#define CPU_CPU_H

#include "compute/backend.h"
#include "base/mem.h"
#include "base/threads.h"
#include "compute/cpu/kernels/kernels.h"
#include "compute/cpu/kernels/scores.h"

/* ---- device --------------------------------------------------------------------------------------- */

typedef struct CpuDevice {
    Device base;
    const Kernels *kernels;
    ThreadPool *threads;
    char *acts; /* [acts_bytes] inputs of a product of cpu_linear.c, in the form that its matrix wants */
    size_t acts_bytes;
    float *products; /* [n_products] a product before it is added to something */
    float *ones;     /* [n_ones] what silu_mul multiplies by */
    size_t n_products, n_ones;
} CpuDevice;

/* Room for products of n_rows rows of n_in inputs with n_out outputs. */
int cpu_device_reserve(CpuDevice *d, int64_t n_in, int64_t n_out, int32_t n_rows, fr_error *err);

/* ---- weights -------------------------------------------------------------------------------------- */

typedef struct CpuLayer {
    const LayerSpec *spec; /* its vectors */
    int32_t place; /* among the layers of its kind: in its group of keys and values, or among the recurrent states */
    PackedMatrix *matrices[LAYER_MATRICES]; /* NULL: none; an array where there is one for each head or expert */
    float *conv;                            /* [n_conv][channels] of a layer with a recurrent state; NULL: none */
} CpuLayer;

typedef struct CpuWeights {
    Weights base;
    const Kernels *kernels;
    PackedMatrix output;    /* [n_vocab][n_embd]; a submodel mostly has the target's */
    CpuLayer *layers;       /* [n_layer] */
    PackedMatrix *matrices; /* those of all layers */
    size_t block_bytes;     /* of all matrices; base.bytes counts only as many experts of each layer as one row uses */
    void *block;            /* holds all matrices in the order in which a forward reads them; NULL: they are mapped */
    /* The embedding, in memory of its own, because nothing is read from the model's file after loading. data is NULL where its rows
     * are those of `output`. */
    GgufTensor embedding;
    void *embedding_memory; /* NULL: the target's, or mapped */
} CpuWeights;

/* The embedding of a token, out: [n_embd]. */
void cpu_embedding_row(const CpuWeights *w, int32_t token, float *out);
/* Packs a matrix of the file into memory of its own. */
int cpu_pack(const CpuWeights *like, const GgufTensor *t, PackedMatrix *out, fr_error *err);

/* ---- keys and values ------------------------------------------------------------------------------ */

/* Of the layers of a group. Keys of one head lie together: [layer][keys | values][head][slot][head_dim]. The latents that
 * attention by latents keeps are both keys and values: [layer][slot][head_dim]. */
typedef struct CpuKv {
    KvType type;
    bool is_latent;
    int32_t n_layer, n_head_kv;
    int64_t n_slots;
    size_t slot_bytes;
    char *data;
} CpuKv;

static inline char *cpu_kv_plane(const CpuKv *kv, int64_t i) {
    return kv->data + (size_t)i * (size_t)kv->n_slots * kv->slot_bytes;
}
/* Slot 0 of the keys (or values) of one layer and head; slot s follows s * slot_bytes further. */
static inline char *cpu_kv_keys(const CpuKv *kv, int32_t layer, int32_t head) {
    return cpu_kv_plane(kv, kv->is_latent ? layer : (int64_t)layer * 2 * kv->n_head_kv + head);
}
static inline char *cpu_kv_values(const CpuKv *kv, int32_t layer, int32_t head) {
    return cpu_kv_plane(kv, kv->is_latent ? layer : ((int64_t)layer * 2 + 1) * kv->n_head_kv + head);
}
static inline int64_t cpu_kv_n_planes(const CpuKv *kv) {
    return (kv->is_latent ? 1 : 2) * (int64_t)kv->n_layer * kv->n_head_kv;
}

/* ---- recurrent states ------------------------------------------------------------------------------ */

typedef struct Op Op;
typedef struct CpuContext CpuContext;
typedef struct CpuStates CpuStates;
/* Does items [begin, end) of the operation: rows, heads, tiles, ... */
typedef void (*OpFn)(const Op *op, int64_t begin, int64_t end, int i_thread);

/* Where the state that a row begins with lies among the scratch states, and where it leaves its own. */
enum { STATE_LEVELS = 14, STATE_COMMITTED = -1 };
typedef struct StateVisit {
    int32_t row; /* since executor_forward */
    int from;    /* STATE_COMMITTED: the state of its sequence */
    int to;
} StateVisit;

/* The visits [first, first + n) are those of a sequence. */
typedef struct StateTree {
    int32_t sequence, first, n;
} StateTree;

/* The rows that a forward must pass to give the new ones their states (state_walk.c). */
typedef struct StateWalk {
    StateVisit *visits; /* [n_visits], room for max_rows */
    StateTree *trees;   /* [n_trees], room for max_rows */
    int32_t n_visits, n_trees;
    int32_t *size, *first_child, *next, *heavy, *level, *stack; /* [max_rows] scratch */
} StateWalk;

/* The inputs that a row's convolution reads, its own last. */
typedef struct StateWindow {
    const float *x[MODEL_MAX_CONV];
} StateWindow;

/* What is special in a kind of recurrent layer (recurrent.c). NULL: nothing is to be done, but by step and finish. */
typedef struct StateCell {
    void (*open)(CpuStates *s);
    /* Of one position and head: to = from, moved on; and what it reads, unless out is NULL. from may be to. */
    void (*step)(const CpuContext *c, const CpuLayer *l, int32_t head, const StateWindow *w, const float *gates,
                 const float *from, float *to, float *out);
    /* What becomes of read [n], the values of a head, which may be overwritten; z [n]: its outputs of the product z. */
    void (*finish)(const CpuContext *c, const CpuLayer *l, float *read, int64_t n, float *z);
    void (*finish_row)(const CpuContext *c, const CpuLayer *l, float *z); /* of all heads of a row, z [n_values] */
    OpFn products; /* tiles of all products at once, which have the same shape */
} StateCell;
extern const StateCell delta_net_cell, mamba2_cell, short_conv_cell;

/* States and what a forward keeps of its rows (recurrent.c). Layers are counted among those with a state. */
struct CpuStates {
    StateShape shape;
    const StateCell *cell;
    int32_t n_layer;     /* that have a state; 0: all of the following is NULL */
    float *conv;         /* [n_layer][n_states][n_conv - 1][n_channels] inputs of the last positions, the latest last */
    float *heads;        /* [n_layer][n_states][n_heads][head_floats] */
    float *inputs;       /* [n_layer][max_rows][n_channels] of the rows since executor_forward */
    float *gates;        /* [n_layer][max_rows][n_gates] as their products give them */
    float *z;            /* [max_rows][n_values]; then what o reads */
    float *scratch;      /* [n_threads][STATE_LEVELS][head_floats] */
    float *zeros, *ones; /* [n_channels], [MODEL_MAX_STATE_DIM] */
    float *q_gain, *k_gain; /* [MODEL_MAX_STATE_DIM] of delta_net.c */
    StateWalk walk;
};

/* ---- a forward ------------------------------------------------------------------------------------ */

/* What the stages of a forward do, for measurements. */
typedef enum ForwardKind {
    FORWARD_EMBED, /* embeddings and angles */
    FORWARD_NORM,  /* norms before the products, and conversion into what these read */
    FORWARD_QKV, /* products, biases, head norms, rotation, keys and values into the cache; inputs of recurrent layers */
    FORWARD_ATTENTION, /* or recurrence; with conversion for the output projection */
    FORWARD_O,         /* product, residual */
    FORWARD_GATE_UP,   /* products, SiLU, conversion for the down projection */
    FORWARD_DOWN,      /* product, residual */
    FORWARD_OUTPUT,    /* logits */
    FORWARD_KINDS
} ForwardKind;

/* Parts per thread: enough that the others can make up for a thread that lost its core for a while. */
enum { PARTS_PER_THREAD = 4 };

/* Keys whose weighted values are one sum: part of the numeric contract (attention.c). */
enum { ATTN_TILE = 512 };
static inline int64_t attn_n_tiles(int64_t n_keys) { return (n_keys + ATTN_TILE - 1) / ATTN_TILE; }

/* Rows that follow each other in the batch and read the same committed slots (attention_rows.c), of at most ATTN_QUERIES query
 * heads that share a KV head. */
enum { ATTN_QUERIES = 64 };
typedef struct RowGroup {
    int32_t first, n;
} RowGroup;

/* One of up to five matrices over the same inputs. */
typedef struct Product {
    const PackedMatrix *m;
    float *y; /* [n_rows][n_out] */
} Product;

/* One operation of a forward: what one stage of the parallel region works on (base/threads.h). */
struct Op {
    CpuContext *c;
    OpFn fn;
    ForwardKind kind;
    int64_t n_items;
    int64_t n_rows; /* of activations that it multiplies */
    int32_t layer;
    const CpuLayer *l;        /* of that layer; NULL before and behind them */
    const float *norm;        /* [n_embd], or NULL: none */
    const float *bias;        /* [n_embd] of what is added to the residual stream, before its norm, or NULL */
    const float *post_norm;   /* [n_embd] of what is added to the residual stream, or NULL */
    int64_t n_items_of_group; /* of products of experts (experts.c) */
    const float *x;           /* what is converted, [n_rows] of the products' n_in */
    int n_products;
    Product products[5];
    InputKind inputs; /* which of InputSquares.sums x is added to */
};

/* Writes an operation: `base`, which has the products, and what it does with them. n_rows: rows that it multiplies, 0
 * if none. Returns the place behind it. */
static inline Op *put_op(Op *at, Op base, ForwardKind kind, OpFn fn, int64_t n_items, int64_t n_rows) {
    base.kind = kind, base.fn = fn, base.n_items = n_items, base.n_rows = n_rows;
    *at = base;
    return at + 1;
}

/* A layer is so many operations at most: 7, one if outputs of heads are not whole blocks of activations, three if keys are
 * split, two where what is added has a norm or a factor, 7 for experts, 4 for latents, ten if the squares of inputs are summed. */
enum { OPS_PER_LAYER = 40, OPS_AROUND = 3 };

/* A choice of a row, and where its activations lie among those of all choices. */
typedef struct ExpertChoice {
    int32_t expert, place;
    float weight;
} ExpertChoice;

/* The places [first, first + n) of an expert. */
typedef struct ExpertGroup {
    int32_t expert, first, n;
} ExpertGroup;

struct CpuContext {
    Context base;
    const Model *model;
    const CpuWeights *weights;
    const Kernels *kernels;
    const ScoreKernels *score_kernels; /* where keys are KV_Q8; else NULL */
    ThreadPool *threads;               /* the device's */
    ContextOptions options;
    CpuKv kv[KV_GROUPS];
    CpuStates states;
    const RowPlace *rows; /* [n_rows] of the forward that runs */
    int32_t n_rows, n_logits;
    int64_t longest; /* keys that a row sees at most */
    int64_t score_stride;
    float *cos_sin;            /* [n_ropes][max_rows][n_rot] */
    float *x, *normed, *delta; /* [max_rows][n_embd]: residual stream; its norm; what a block adds to it */
    float *q, *attended;       /* [max_rows][q_dim] */
    char *rounded;             /* with score_kernels: [max_rows][n_head] RoundedQuery, of q */
    float *q_gated;            /* [max_rows][2 q_dim] by head queries and gates of the output, where layers have such */
    float *k, *v;              /* [max_rows][kv_dim] */
    float *queries;            /* of latent attention: [max_rows][heads of plain_dim + n_rot] */
    float *q_latent;           /* [max_rows][q_rank] */
    float *head_values;        /* [max_rows][heads of value_dim] */
    void *head_acts;           /* [n_head][max_rows] activations of the widest row of a head */
    float *gate, *up;          /* [max_rows][n_ff]; of experts [max_rows * n_expert_used][n_ff_expert] */
    float *router;             /* [max_rows][n_expert] router logits */
    ExpertChoice *choices;     /* [max_rows][n_expert_used] */
    float *shared_weights;     /* [max_rows] of the expert that every row passes */
    float *shared_out;         /* [max_rows][n_embd] what it adds */
    int32_t *n_of_expert;      /* [n_expert] */
    ExpertGroup *groups;       /* [n_expert] */
    int32_t n_groups;
    int32_t *place_rows;               /* [max_rows * n_expert_used] the row of each place */
    float *place_weights;              /* likewise: by which what an expert reads is multiplied */
    void *expert_acts[ACT_FORM_COUNT]; /* [max_rows * n_expert_used] activations of each place; NULL: not needed */
    float *expert_out;                 /* [max_rows * n_expert_used][n_embd] */
    float *hidden;                     /* [n_hidden][n_embd] after the final norm */
    float *logits;                     /* [max_logits][n_vocab] */
    int32_t max_logits;
    int64_t attention_dim; /* the larger one of head_dim and of a value's */
    int64_t max_queries;   /* whose scores a thread keeps: at least those of one row and KV head */
    float *scores;         /* [n_threads][max_queries][score_stride] */
    float *key_floats;     /* [n_threads][KEYS_PACKED][attention_dim] keys or values for a group of rows */
    KeyBlock *key_blocks;  /* with score_kernels: [n_threads][blocks of head_dim], likewise */
    float *row_sums;       /* [n_threads][max_queries][attention_dim] */
    RowGroup *row_groups;  /* [n_row_groups] of the forward that runs, room for max_rows */
    int32_t n_row_groups;
    float *tile_sums;           /* [n_threads][tiles of n_ctx][heads of a group][head_dim] */
    void *acts[ACT_FORM_COUNT]; /* [max_rows][widest row] activations in each form */
    void *ff_acts;              /* [max_rows][widest row] those of the down projection */
    Op *ops;                    /* [OPS_PER_LAYER * n_layer + OPS_AROUND] */
    Stage *stages;              /* the same */
    double *stage_s;            /* the same: seconds of each */
    double *part_s;             /* [CPU_N_PARTS] see Backend.time_parts; NULL: not measured */
    InputSquares *squares;      /* see Backend.sum_inputs; NULL: not summed */
};

static inline size_t row_at(int64_t row, int64_t width) { return (size_t)row * (size_t)width; }

/* cos and sin of row i for the rope of a layer. */
static inline const float *cpu_angles(const CpuContext *c, const CpuLayer *l, int64_t i) {
    int64_t n_rot = c->model->hparams.rope.n_rot;
    return c->cos_sin + row_at((int64_t)l->spec->i_rope * c->options.max_rows + i, n_rot);
}

/* Multiplies rows of activations with tiles [first, last) of a matrix, as Kernels.matmul does, and with the factor of that matrix:
 * one rounding more for each output, the same in every batch and with every kernel table (forward.c). */
void cpu_multiply(const CpuContext *c, const PackedMatrix *m, const void *acts, int64_t n_rows, float *y,
                  int64_t stride, int64_t first, int64_t last);
/* The forward of rows (forward.c). */
void cpu_forward(Context *c, const RowPlace *rows, int32_t n_rows);
/* The operations of a layer, from the residual stream back into it (layer.c): writes them from `at` on, returns the
 * place behind. */
Op *layer_ops(CpuContext *c, int32_t layer, Op *at);
/* Of these: attention by latents, from normed inputs to what o reads (latent_attention.c). */
Op *latent_ops(CpuContext *c, int32_t layer, Op *at);
/* Bytes of a row of c->head_acts. */
size_t latent_act_bytes(const CpuLayer *l);
/* The query heads that are one unit of work with a row: those that share a KV head; all share a latent, and a few are a unit. */
int64_t attention_group(const Hparams *h);
/* Of these: c->attended from c->q and the cache, which holds the rows' own keys and values (attention.c). It is left
 * in the form that the output projection wants, where attention_converts. */
Op *attention_ops(CpuContext *c, int32_t layer, Op *at);
/* What attention reads of c->q beside the floats, of n heads of a row: called when they are complete. */
void attention_round_queries(const CpuContext *c, int64_t row, int64_t head, int64_t n);
/* Where it is. */
static inline size_t rounded_query_at(const CpuContext *c, int64_t row, int64_t head) {
    const Hparams *h = &c->model->hparams;
    return (size_t)(row * h->n_head + head) * rounded_query_bytes(h->head_dim);
}
bool attention_converts(const CpuContext *c);
/* Of these: recurrent layers, from normed inputs to c->states.z in the form that the output projection wants
 * (recurrent.c); their memory; and their stretch of the table. */
Op *recurrent_ops(CpuContext *c, int32_t layer, Op *at);
int cpu_states_open(CpuContext *c, fr_error *err);
void cpu_states_close(CpuContext *c);
void cpu_advance_states(Context *c, const StateStep *steps, int32_t n);
/* For the kinds: n channels of a convolution, from `first` on; and tiles of product k of an operation. */
void state_convolve(const CpuContext *c, const CpuLayer *l, const StateWindow *w, int64_t first, int64_t n, float *out);
void state_product_tiles(const Op *op, int k, int64_t begin, int64_t end);
int state_walk_open(StateWalk *w, int32_t max_rows, fr_error *err);
void state_walk_close(StateWalk *w);
/* rows [n]: of a run; in front of them those since executor_forward. */
void state_walk_plan(StateWalk *w, const RowPlace *rows, int32_t n);
/* Of these: the feed-forward part of a layer of experts (experts.c); and the expert that every row passes, which leaves
 * what it adds in shared_out (layer.c). */
Op *expert_ops(CpuContext *c, int32_t layer, Op *at);
Op *shared_expert_ops(CpuContext *c, int32_t layer, Op *at);
/* Parts of operations (layer.c). norm_rows: norm and conversion of rows. convert_rows: of x alone. activate: gate = f(gate) * up for outputs [from,
 * from + n) of row i, converted for the matrix `down`. add_to_residual: x += scale * norm(delta), row i. */
void norm_rows(const Op *op, int64_t begin, int64_t end, int i_thread);
void convert_rows(const Op *op, int64_t begin, int64_t end, int i_thread);
void activate(const Op *op, const PackedMatrix *down, int64_t i, int64_t from, int64_t n);
void add_to_residual(const Op *op, int64_t i);
/* Converts row i of the inputs x into every form that the products of the operation want. */
void convert_row(const Op *op, const float *x, int64_t i);
/* What becomes of n products with the LM head: scaled and capped, where the model wants it. */
void cpu_finish_logits(const Hparams *h, const Kernels *kernels, float *logits, int64_t n);
/* The norm of a row, or the row itself where there is none. */
void norm_row(const CpuContext *c, float *out, const float *x, const float *norm);

/* ---- entries of the table, by file ------------------------------------------------------------------ */

int cpu_weights_open(Weights **out, const Model *model, const WeightsOptions *options, fr_error *err);
int cpu_submodel(Weights **out, const Weights *target, const Model *layers, fr_error *err);
void cpu_weights_close(Weights *w);
int cpu_weights_save(const Weights *w, const char *path, fr_error *err);
void cpu_embed(const Weights *w, const int32_t *tokens, int32_t n, float *out);

int cpu_device_open(Device **out, const DeviceOptions *options, fr_error *err);
void cpu_device_close(Device *d);
void cpu_run_parts(Device *d, int n_parts, PartFn fn, void *ctx);

int cpu_context_open(Context **out, Device *d, const Weights *w, const ContextOptions *options, fr_error *err);
void cpu_context_close(Context *c);
const float *cpu_read(Context *c, ResultKind kind, int32_t i);
int cpu_reserve_logits(Context *c, int32_t n, fr_error *err);
void cpu_copy_slots(Context *c, KvGroup group, int32_t from, int32_t to, int32_t n);
void cpu_fill_slot(Context *c, KvGroup group, int32_t slot);

int cpu_linear_open(Linear **out, Device *d, const Weights *target, const GgufTensor *w, const float *bias,
                    int32_t max_rows, fr_error *err);
void cpu_linear_close(Linear *l);
void cpu_linear(Device *d, const Linear *l, LinearOp op, const float *x, int32_t n_rows, float *y);
int cpu_head_reserve(Device *d, const Weights *w, int32_t max_rows, fr_error *err);
void cpu_head(Device *d, const Weights *w, const float *x, int32_t n_rows, float *y);
void cpu_softmax(Device *d, float *x, int32_t n_rows, int64_t n);
void cpu_rmsnorm(Device *d, float *x, int32_t n_rows, int64_t n, const float *gain, float eps);

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
/* The operation that adds the squares of x [n_rows][n], inputs of a kind, if they are summed (input_squares.c). */
Op *input_squares_op(CpuContext *c, int32_t layer, InputKind kind, const float *x, int64_t n, Op *at);
/* Those that add the squares of what each chosen expert read, once its places are known and c->gate has its products. */
Op *expert_squares_ops(CpuContext *c, int32_t layer, Op *at);
/* Adds the seconds of the stages of a forward of n operations to the parts (forward.c calls it). */
void cpu_note_times(CpuContext *c, int n);
int cpu_speed(const Weights *w, int n_threads, MachineSpeed *out, fr_error *err);
int cpu_read_weights(Device *d, const Weights *w, double *seconds, fr_error *err);

#endif

/* forward.h - inside of the CPU executor: its state and the steps of a forward, shared by executor_cpu.c, forward.c, layer.c and
 * attention.c only. */
#ifndef CPU_FORWARD_H
#define CPU_FORWARD_H

#include "base/threads.h"
#include "backend/executor.h"

/* Parts per thread: enough that a thread which lost its core for a while is made up for by the others. */
enum { PARTS_PER_THREAD = 4 };

/* Keys whose weighted values are one sum: part of the numeric contract (attention.c). */
enum { ATTN_TILE = 512 };
static inline int64_t attn_n_tiles(int64_t n_keys) { return (n_keys + ATTN_TILE - 1) / ATTN_TILE; }

/* Where a row stands and what it sees: keys at logical positions 0 .. position. */
typedef struct RowPlace {
    int32_t token, position, sequence;
    const float *input;           /* instead of the token's embedding, or NULL */
    int32_t index;                /* among the rows of its sequence since executor_forward */
    int32_t slot;                 /* where its key and value go */
    int32_t n_prefix, n_path;     /* visible: n_prefix committed slots, then n_path of its path, itself last */
    const int32_t *prefix_slots, *path_slots;
    int32_t i_logits, i_hidden;   /* its place in logits, and in hidden, or -1 */
} RowPlace;

/* Up to three matrices over the same inputs. */
typedef struct Product {
    const PackedMatrix *m;
    float *y; /* [n_rows][n_out] */
} Product;

typedef struct Step Step;
/* Does items [begin, end) of the step: rows, heads, tiles, ... */
typedef void (*StepFn)(const Step *s, int64_t begin, int64_t end, int i_thread);

/* What one stage of a forward works on (base/threads.h). */
struct Step {
    Executor *e;
    StepFn fn;
    ForwardKind kind;
    int64_t n_items;
    int64_t n_rows;             /* of activations that it multiplies */
    int32_t layer;
    const LayerWeights *l;      /* of that layer; NULL before and behind them */
    const float *norm;          /* [n_embd], or NULL: none */
    const float *x;             /* what is converted, [n_rows] of the products' n_in */
    int n_products;
    Product products[3];
};

/* Writes a step: `base`, which has the products, and what it does of them. n_rows: rows that it multiplies, 0 if none. Returns the place
 * behind it. */
static inline Step *put_step(Step *at, Step base, ForwardKind kind, StepFn fn, int64_t n_items, int64_t n_rows) {
    base.kind = kind, base.fn = fn, base.n_items = n_items, base.n_rows = n_rows;
    *at = base;
    return at + 1;
}

/* A layer is so many steps at most: 7, one if outputs of heads are not whole blocks of activations, three if keys are split. */
enum { STEPS_PER_LAYER = 11, STEPS_AROUND = 3 };

struct Executor {
    const Model *model;
    ExecutorOptions options;
    KvCache kv;
    ThreadPool *threads;
    RowPlace *all_rows;           /* [max_rows] of the last forward and its extensions */
    int32_t n_before;             /* of them, those that ran before this run */
    RowPlace *rows;               /* [n_rows] those of this run: all_rows + n_before */
    int32_t n_rows, n_logits, n_hidden;
    int64_t longest;              /* keys that a row of this run sees at most */
    int32_t *path_slots;          /* [max_rows * max_rows] */
    int32_t *offsets;             /* [max_rows] scratch of commit */
    int64_t score_stride;
    float *cos_sin;               /* [max_rows][n_rot] */
    float *x, *normed, *delta;    /* [max_rows][n_embd]: residual stream; its norm; what a block adds to it */
    float *q, *attended;          /* [max_rows][q_dim] */
    float *k, *v;                 /* [max_rows][kv_dim] */
    float *gate, *up;             /* [max_rows][n_ff] */
    float *hidden;                /* [n_hidden][n_embd] after the final norm */
    float *logits;                /* [n_logits][n_vocab] */
    float *scores;                /* [n_threads][heads of a group][score_stride] */
    float *tile_sums;             /* [n_threads][tiles of n_ctx][heads of a group][head_dim] */
    void *acts[ACT_FORM_COUNT];   /* [max_rows][widest row] activations in each form */
    void *ff_acts;                /* [max_rows][widest row] those of the down projection */
    Step *steps;                  /* [STEPS_PER_LAYER * n_layer + STEPS_AROUND] */
    Stage *stages;                /* the same */
    double *stage_s;              /* the same: seconds of each */
    double *kind_s;               /* see executor_time */
};

static inline size_t row_at(int64_t row, int64_t width) { return (size_t)row * (size_t)width; }

/* The forward of e->rows (forward.c). */
void forward_run(Executor *e);
/* The steps of a layer, from the residual stream back into it (layer.c): writes them from `at` on, returns the place behind. */
Step *layer_steps(Executor *e, int32_t layer, Step *at);
/* Of these: e->attended from e->q and the cache, which holds the rows' own keys and values (attention.c). It is left in the form
 * that the output projection wants, where attention_converts. */
Step *attention_steps(Executor *e, int32_t layer, Step *at);
bool attention_converts(const Executor *e);
/* Converts row i of the inputs x into every form that the products of the step want. */
void convert_row(const Step *s, const float *x, int64_t i);
/* The norm of a row, or the row itself where there is none. */
void norm_row(const Executor *e, float *out, const float *x, const float *norm);

#endif

/* cpu_states.h - the recurrent states of the CPU backend (recurrent.c), and what each kind of layer computes with them
 * (state_cells.c). */
#ifndef CPU_CPU_STATES_H
#define CPU_CPU_STATES_H

#include "compute/backend.h"

typedef struct CpuContext CpuContext; /* these are in cpu.h and cpu_ops.h */
typedef struct CpuLayer CpuLayer;
typedef struct Op Op;
typedef struct CpuStates CpuStates;
/* Computes items [begin, end) of the operation, which are rows, heads, tiles, ... */
typedef void (*OpFn)(const Op *op, int64_t begin, int64_t end, int i_thread);

enum { STATE_LEVELS = 14, STATE_COMMITTED = -1 }; /* the number of scratch states of a thread; none of them */
/* The scratch state with which a row begins, and the one where it leaves its own. */
typedef struct StateVisit {
    int32_t row; /* counted since executor_forward */
    int from;    /* a scratch state, or STATE_COMMITTED for the state of its sequence */
    int to;
} StateVisit;

/* The visits [first, first + n) of one sequence. */
typedef struct StateTree {
    int32_t sequence, first, n;
} StateTree;

/* The rows that a forward must visit to give the new ones their states (recurrent.c). */
typedef struct StateWalk {
    StateVisit *visits; /* [n_visits], room for max_rows */
    StateTree *trees;   /* [n_trees], room for max_rows */
    int32_t n_visits, n_trees;
    int32_t *size, *first_child, *next, *heavy, *level, *stack; /* [max_rows] scratch */
} StateWalk;

/* The inputs that the convolution of a row reads; its own input is the last. */
typedef struct StateWindow {
    const float *x[MODEL_MAX_CONV];
} StateWindow;

/* What a kind of recurrent layer computes (state_cells.c). Functions other than step and finish are NULL where the
 * kind does nothing there. */
typedef struct StateCell {
    void (*open)(CpuStates *s);
    /* Moves the state of one head on by one position, from `from` to `to`, which may be the same, and writes what
     * the position reads from it to out, unless that is NULL. */
    void (*step)(const CpuContext *c, const CpuLayer *l, int32_t head, const StateWindow *w, const float *gates,
                 const float *from, float *to, float *out);
    /* Computes the outputs of a head in z [n], which holds its part of the product z, from what the head has read
     * [n]; read may be overwritten. */
    void (*finish)(const CpuContext *c, const CpuLayer *l, float *read, int64_t n, float *z);
    /* Finishes all heads of a row, z [n_values]. */
    void (*finish_row)(const CpuContext *c, const CpuLayer *l, float *z);
    OpFn products; /* computes the same tiles of all products, which have one shape */
} StateCell;
extern const StateCell delta_net_cell, mamba2_cell, short_conv_cell;

/* The states, and what a forward keeps of its rows (recurrent.c). Only layers with a state are counted. */
struct CpuStates {
    StateShape shape;
    const StateCell *cell;
    int32_t n_layer; /* the number of layers with a state; if it is 0, all pointers below are NULL */
    float *conv; /* [n_layer][n_states][n_conv - 1][n_channels] inputs of the last positions; the latest is the last */
    int64_t first_head, n_heads; /* the heads of this rank */
    float *heads;                /* [n_layer][n_states][n_heads][head_floats] */
    float *inputs;               /* [n_layer][max_rows][n_channels] of the rows since executor_forward */
    float *gates;                /* [n_layer][max_rows][n_gates] the outputs of their products */
    float *z;                    /* [max_rows][n_values] the product z, then what the output projection reads */
    float *scratch;              /* [n_threads][STATE_LEVELS][head_floats] */
    float *zeros, *ones;         /* [n_channels], [MODEL_MAX_STATE_DIM] */
    float *q_gain, *k_gain;      /* [MODEL_MAX_STATE_DIM] for DeltaNet */
    StateWalk walk;
};

/* Recurrent layers (recurrent.c), from normed inputs to c->states.z, converted for the output projection; their
 * memory; and the functions of the backend for states. */
Op *recurrent_ops(CpuContext *c, int32_t layer, Op *at);
int cpu_states_open(CpuContext *c, fr_error *err);
void cpu_advance_states(Context *c, const StateStep *steps, int32_t n);
/* state_cells.c uses these. The first computes n channels of a convolution, from `first` on; the second computes tiles
 * of product k of an operation. */
void state_convolve(const CpuContext *c, const CpuLayer *l, const StateWindow *w, int64_t first, int64_t n, float *out);
void state_product_tiles(const Op *op, int k, int64_t begin, int64_t end);
/* The working memory of a plan, and the plan. */
int state_walk_open(StateWalk *w, int32_t max_rows, fr_error *err);
void state_walk_close(StateWalk *w);
/* Plans the visits of rows [n] of a run; the earlier rows since executor_forward precede them in memory. */
void state_walk_plan(StateWalk *w, const RowPlace *rows, int32_t n);

#endif

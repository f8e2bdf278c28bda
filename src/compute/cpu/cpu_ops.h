/* cpu_ops.h - the operations of a forward of the CPU backend, and the functions that write them for the parts of a
 * layer. */
#ifndef CPU_CPU_OPS_H
#define CPU_CPU_OPS_H

#include "compute/cpu/cpu.h"

/* ---- operations ----------------------------------------------------------------------------------- */

/* What a stage of a forward does, for measurements. */
typedef enum ForwardKind {
    FORWARD_EMBED,     /* embeddings and angles */
    FORWARD_NORM,      /* norms before the products, and conversion into what these read */
    FORWARD_QKV,       /* products, biases, head norms, rotation, storing keys and values; inputs of recurrent layers */
    FORWARD_ATTENTION, /* attention or recurrence, and conversion for the output projection */
    FORWARD_O,         /* output projection, residual */
    FORWARD_GATE_UP,   /* products, SiLU, conversion for the down projection */
    FORWARD_DOWN,      /* product, residual */
    FORWARD_OUTPUT,    /* logits */
    FORWARD_KINDS
} ForwardKind;

/* A stage is cut into this many parts for each thread, so that the others can take over the parts of a thread that lost
 * its core for a while. */
enum { PARTS_PER_THREAD = 4 };

/* The product of one of up to five matrices with the same inputs. */
typedef struct Product {
    const PackedMatrix *m;
    float *y; /* [n_rows][n_out] */
} Product;

/* How the values of a row are divided among ranks: whole groups of query heads, whole blocks of activations, or whole
 * tiles. */
typedef enum Cut { CUT_HEADS, CUT_BLOCKS, CUT_TILES } Cut;

/* What of its values a rank sends: the first or the second half of its tiles or blocks, or all. */
typedef enum Portion { PORTION_ALL, PORTION_FIRST, PORTION_SECOND } Portion;

/* Rows whose values are divided among ranks, and become complete. */
typedef struct Exchange {
    void *rows;
    int64_t n_rows, n; /* n: values in a row */
    Cut cut;
    bool is_acts; /* they are activations of this form; false: floats */
    ActForm form;
} Exchange;

/* One operation of a forward, which is one stage of the parallel region (base/threads.h). */
struct Op {
    CpuContext *c;
    OpFn fn;
    ForwardKind kind;
    int64_t n_items, first_item; /* items [first_item, first_item + n_items) */
    int64_t n_rows;              /* rows of activations that it multiplies; 0: none */
    int32_t layer;
    const CpuLayer *l;      /* that layer; NULL before the first layer and after the last */
    const float *norm;      /* [n_embd] a norm; NULL: none */
    const float *bias;      /* [n_embd] is added to what is added to the residual stream, before its norm; NULL: none */
    const float *post_norm; /* [n_embd] a norm of what is added to the residual stream; NULL: none */
    float out_scale;        /* a factor of the residual stream after that; 0: 1 */
    const BlockConv *conv;  /* the convolution around the part; NULL: none */
    int64_t n_items_of_group, first_of_group; /* items of each expert, and the first of them (experts.c) */
    const float *x;                           /* [n_rows][n_in of the products] what is converted */
    int n_products;
    Product products[5];
    Exchange exchange;
    InputKind inputs; /* the index in InputSquares.sums of what the squares of x are added to */
};

/* Writes an operation at `at`: a copy of `base` with this kind, function and numbers of items and rows. Returns the
 * place after it. */
static inline Op *put_op(Op *at, Op base, ForwardKind kind, OpFn fn, int64_t n_items, int64_t n_rows) {
    base.kind = kind, base.fn = fn, base.n_items = n_items, base.n_rows = n_rows;
    *at = base;
    return at + 1;
}

/* The most operations of a layer: 7, one more if outputs of heads are not whole blocks of activations, three if keys
 * are split, two if what is added has a norm or a factor, 7 for experts and 4 for latents or for the norms of Gemma 4's
 * experts, or 5 for a per-layer embedding, ten if the squares of inputs are summed, five exchanges, six more where
 * three of them go in halves, one if the residual stream is kept. */
enum { OPS_PER_LAYER = 40, OPS_AROUND = 8 };

/* Multiplies rows of activations with tiles [first, last) of a matrix, as Kernels.matmul does, and the outputs with
 * the scale of that matrix, which is one more rounding for each output, in every batch and with every kernel table. */
void cpu_multiply(const CpuContext *c, const PackedMatrix *m, const void *acts, int64_t n_rows, float *y,
                  int64_t stride, int64_t first, int64_t last);

/* ---- functions that write operations ---------------------------------------------------------------
 *
 * Each of the following functions that returns an Op writes operations from `at` on and returns the place after them.
 *
 * The operations of a layer, from the residual stream back into it (layer.c). */
Op *layer_ops(CpuContext *c, int32_t layer, Op *at);
Op *store_ops(CpuContext *c, int32_t layer, Op *at); /* for Context.only_stores */
/* Latent attention, from normed inputs to what the output projection reads (latent_attention.c). */
Op *latent_ops(CpuContext *c, int32_t layer, Op *at);
/* Returns the number of bytes in a row of c->head_acts. */
size_t latent_act_bytes(const CpuLayer *l);
/* Attention: c->attended from c->q and the cache, which holds the keys and values of the rows, too (attention.c). Where
 * attention_converts says so, the result is converted for the output projection. */
Op *attention_ops(CpuContext *c, int32_t layer, Op *at);
/* Rounds the queries of n heads of a row for integer scores, if there are such; they must be complete in c->q, where
 * the layer has heads of head_dim numbers in rows of q_dim. */
void attention_round_queries(const CpuContext *c, int64_t q_dim, int64_t head_dim, int64_t row, int64_t head,
                             int64_t n);
/* Returns the offset of a rounded query in c->rounded. */
static inline size_t rounded_query_at(const CpuContext *c, int64_t row, int64_t head) {
    const Hparams *h = &c->model->hparams;
    return (size_t)(row * h->n_head + head) * rounded_query_bytes(h->head_dim);
}
bool attention_converts(const CpuContext *c, const LayerSpec *l);
/* The convolutions of BlockConv (block_conv.c). put_conv_inputs writes the norm op.norm of a part, the convolution
 * before it, and the conversion for the products of op; put_convolved adds the convolution of c->delta to the residual
 * stream. */
Op *put_conv_inputs(Op *at, Op op, const BlockConv *conv, LayerMatrix kernels, ForwardKind kind);
Op *put_convolved(Op *at, Op op, const BlockConv *conv);
/* Writes the feed-forward part of a layer of experts (experts.c); and the shared expert, whose output is left in
 * shared_out (layer_parts.c). */
Op *expert_ops(CpuContext *c, int32_t layer, Op *at);
Op *shared_expert_ops(CpuContext *c, int32_t layer, Op *at);
/* Each writes the last product of a mixer or of a feed-forward part, whose outputs are added to the residual stream.
 * put_down reads c->ff_acts, and is also used for the per-layer embedding; post_norm is that of what is added. */
Op *put_o(Op *at, Op o);
Op *put_down(Op *at, Op down, const float *post_norm);
/* Writes the per-layer embedding of a layer (per_layer_embedding.c), and what it needs of the rows before the first
 * layer. */
Op *ple_ops(CpuContext *c, int32_t layer, Op *at);
Op *ple_input_ops(CpuContext *c, Op *at);
/* Returns the products gate and up of a feed-forward part over c->acts: the operation, and how it is put. */
Op gate_up_op(CpuContext *c, int32_t layer, const PackedMatrix *gate, const PackedMatrix *up);
Op *put_gate_up(Op *at, Op gate_up);
/* Writes what follows gate = f(gate) * up for `down` in n_rows rows of c->ff_acts, of which each rank has its
 * blocks. */
Op *put_activated(Op *at, Op op, const PackedMatrix *down, int64_t n_rows);
/* Returns whether the output of attention or feed-forward must be finished before it is added, which is then done in a
 * stage of its own. put_added writes what follows a product, whose outputs are in the tiles of each rank of c->delta if
 * they must be finished; otherwise they have been added to c->x. */
bool op_finishes(const Op *op);
Op *put_added(Op *at, Op op);
/* Finishes row i of delta [n_embd], which has its bias, and adds it to the residual stream. */
void add_finished(const Op *op, int64_t i, float *delta);
Op *put_finish(Op *at, Op op); /* only the stage in which complete rows of c->delta are finished and added */
/* Parts of operations (layer_parts.c). norm_rows normalises and converts rows; convert_rows converts op->x. activate
 * computes gate = f(gate) * up for outputs [from, from + n) of row i and converts them for the matrix `down`. */
void norm_rows(const Op *op, int64_t begin, int64_t end, int i_thread);
void convert_rows(const Op *op, int64_t begin, int64_t end, int i_thread);
void activate(const Op *op, const PackedMatrix *down, int64_t i, int64_t from, int64_t n);
/* Converts row i of the inputs x into every form that the products of the operation want. */
void convert_row(const Op *op, const float *x, int64_t i);
/* Writes the norm of a row, or the row itself if there is no norm. */
void norm_row(const CpuContext *c, float *out, const float *x, const float *norm);

/* Writes an operation as put_op does, of which this rank computes its share of n_items. */
Op *put_split(Op *at, Op base, ForwardKind kind, OpFn fn, int64_t n_items, int64_t n_rows);
/* Writes an operation that completes rows, unless there is only one rank. */
Op *put_exchange(Op *at, Op base, ForwardKind kind, Exchange exchange);
/* Writes an operation as put_split does, whose items are the tiles or blocks of an exchange, and the exchange. Over a
 * slow network they are written in halves, so that the first half is on its way while the second is computed. */
Op *put_split_exchange(Op *at, Op base, ForwardKind kind, OpFn fn, int64_t n_items, int64_t n_rows, Exchange exchange);
/* Writes the operation that adds the squares of x [n_rows][n], which are inputs of a kind, if squares are summed
 * (layer_parts.c). */
Op *input_squares_op(CpuContext *c, int32_t layer, InputKind kind, const float *x, int64_t n, Op *at);
/* Writes the operations that add the squares of what each chosen expert read, once its places are known and c->gate has
 * its products. */
Op *expert_squares_ops(CpuContext *c, int32_t layer, Op *at);
/* Adds the seconds of the stages of a forward of n operations to those of the parts. */
void cpu_note_times(CpuContext *c, int n);

#endif

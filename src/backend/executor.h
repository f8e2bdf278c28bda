/* executor.h - what a backend does for the engine: one forward over rows of token trees, and the KV cache.
 *
 * The first and reference backend is the CPU (executor_cpu.c). Another one fuses as it likes behind the
 * same few functions and answers to the same tests.
 */
#ifndef BACKEND_EXECUTOR_H
#define BACKEND_EXECUTOR_H

#include "backend/kv_cache.h"
#include "backend/cpu/model.h"

/* One token to be run through the target. Rows of one sequence stand parents first; several rows may have
 * the same parent. Its position follows its parent's. */
typedef struct Row {
    int32_t token;
    int32_t sequence;
    int32_t parent;   /* an earlier row of the same sequence in this batch, or -1: the committed tokens */
    bool want_logits;
    bool want_hidden; /* its hidden state; a row that wants logits has it anyway */
    const float *input; /* [n_embd] what runs through the layers instead of the token's embedding; NULL: that. Borrowed
                         * for the call */
} Row;

typedef struct ExecutorOptions {
    int n_threads;
    bool pin_threads;       /* each to a core of its own, while the executor is open */
    KvType kv_type;
    int32_t page_size;      /* token slots in a KV page */
    int32_t n_ctx;          /* longest sequence */
    int32_t max_sequences;
    int64_t n_pages;        /* 0: enough for max_sequences sequences of n_ctx tokens */
    int32_t max_rows;       /* in one forward, 1 .. EXECUTOR_MAX_ROWS */
} ExecutorOptions;

enum { EXECUTOR_MAX_ROWS = 4096 };

typedef struct Executor Executor; /* used by one thread at a time */

/* The model must outlive the executor. All memory is taken here. */
int executor_open(Executor **out, const Model *model, const ExecutorOptions *options, fr_error *err);
void executor_close(Executor *e);
const ExecutorOptions *executor_options(const Executor *e); /* as it was opened with */
int32_t executor_max_rows(const Executor *e);
int32_t executor_n_vocab(const Executor *e);

/* Sequences (see kv_cache.h). */
int executor_sequence_open(Executor *e, int32_t *out, fr_error *err);
int executor_sequence_fork(Executor *e, int32_t from, int32_t *out, fr_error *err);
void executor_sequence_share(Executor *e, int32_t from, int32_t to, int32_t n);
void executor_sequence_close(Executor *e, int32_t sequence);
int32_t executor_sequence_length(const Executor *e, int32_t sequence);
void executor_sequence_truncate(Executor *e, int32_t sequence, int32_t length);
/* Lengthens the sequence by n tokens that nobody ran: all their keys and values are one constant. For measuring alone. */
int executor_sequence_pad(Executor *e, int32_t sequence, int32_t n, fr_error *err);
/* Rows of the sequence for which there are pages now. */
int32_t executor_room(const Executor *e, int32_t sequence);
/* Room for n rows of the sequence in the coming forward; failing here harms no other sequence. */
int executor_reserve(Executor *e, int32_t sequence, int32_t n_rows, fr_error *err);

/* Runs the rows (at most max_rows; each sequence reserved before). Refuses impossible batches. */
int executor_forward(Executor *e, const Row *rows, int32_t n_rows, fr_error *err);
/* Runs more rows below those of the last forward, whose keys are still in their slots, as a drafter does that grows a
 * tree level by level. Rows are numbered on, a parent may be any row since executor_forward, and reservations and
 * max_rows count all of them. Nothing may be committed in between. Results are those of the new rows alone. */
int executor_extend(Executor *e, const Row *rows, int32_t n_rows, fr_error *err);
/* What the stages of a forward do. */
typedef enum ForwardKind {
    FORWARD_EMBED,     /* embeddings and angles */
    FORWARD_NORM,      /* norms before the products, and conversion into what these read */
    FORWARD_QKV,       /* products, biases, head norms, rotation, keys and values into the cache */
    FORWARD_ATTENTION, /* with conversion for the output projection */
    FORWARD_O,         /* product, residual */
    FORWARD_GATE_UP,   /* products, SiLU, conversion for the down projection */
    FORWARD_DOWN,      /* product, residual */
    FORWARD_OUTPUT,    /* logits */
    FORWARD_KINDS
} ForwardKind;

/* From now on the seconds of a forward's stages are added to seconds [FORWARD_KINDS], borrowed, by kind. NULL: no longer. */
void executor_time(Executor *e, double *seconds);

/* Results of the last forward; valid until the next. Logits [n_vocab] of a row that wanted logits, and the hidden
 * state after the final norm [n_embd] of one that wanted either; NULL for one that did not. */
const float *executor_logits(const Executor *e, int32_t row);
const float *executor_hidden(const Executor *e, int32_t row);
/* Keeps these rows of the last forward and its extensions (all of one sequence, a chain from the committed tokens down) and
 * forgets the sequence's other rows. Once per sequence and forward. */
void executor_commit(Executor *e, int32_t sequence, const int32_t *rows, int32_t n);

#endif

/* executor.h - a model at work: sequences with their keys and values, and forwards over rows of token trees. The engine
 * and the drafters call it. It is the same for every backend; backend.h does the computing.
 */
#ifndef BACKEND_EXECUTOR_H
#define BACKEND_EXECUTOR_H

#include "base/bytes.h"
#include "base/mem.h"
#include "compute/backend.h"

/* One token to be run through the model. Of the rows of one sequence, parents come first; several rows may have the
 * same parent. The position of a row is the one after its parent's. */
typedef struct Row {
    int32_t token;
    int32_t sequence;
    int32_t parent; /* an earlier row of the same sequence in this batch, or -1: the committed tokens */
    bool in_block;  /* it also sees the rows of the block after itself; a block is a chain of adjacent rows */
    bool want_logits;
    bool only_best; /* with want_logits: they are only read to choose the token of `draw` */
    RowDraw draw;
    bool want_hidden;   /* its hidden state is wanted; a row that wants logits has it in any case */
    const float *input; /* [model_input_width] the input of the first layer; NULL: the token's embedding. Borrowed for
                         * the call */
} Row;

typedef struct SequenceTable SequenceTable; /* sequences.h */
typedef struct Executor Executor;           /* used by one thread at a time, as its device is */

typedef struct ExecutorOptions {
    KvType kv_type;
    int32_t page_size; /* token slots in a KV page */
    int32_t n_ctx;     /* longest sequence */
    int32_t max_sequences;
    int64_t n_pages; /* 0: enough for max_sequences sequences of n_ctx tokens */
    /* Pages for the layers with a window, which are given back as the windows pass. 0: these layers use the pages of
     * the others, so that every sequence can be cut anywhere */
    int64_t n_window_pages;
    int32_t max_rows;   /* in one forward, 1 .. EXECUTOR_MAX_ROWS */
    int32_t max_logits; /* the number of rows that may want logits; 0: all. executor_reserve_logits allows more */
    /* The executor of Model.kv_model on the same device, which must outlive this one: rows name its sequences, and see
     * the committed tokens of these by its keys and values. Their parent is -1, their position the one after the
     * committed tokens, of which there must be some, and each brings its input along. Such an executor has no sequences
     * of its own: it only runs executor_forward, and of the fields above, only max_rows and max_logits are used. NULL:
     * the executor has sequences and a cache of its own. */
    const Executor *reads;
} ExecutorOptions;

enum { EXECUTOR_MAX_ROWS = 4096 };

/* Device and weights are of one backend and must outlive the executor. All memory is taken here. */
int executor_open(Executor **out, Device *device, const Weights *weights, const ExecutorOptions *options,
                  fr_error *err);
void executor_close(Executor *e);                           /* NULL is fine */
const ExecutorOptions *executor_options(const Executor *e); /* the options that it was opened with */
const Weights *executor_weights(const Executor *e);
Context *executor_context(const Executor *e);   /* for measurements */
SequenceTable *executor_sequences(Executor *e); /* for tests */
int32_t executor_max_rows(const Executor *e);
int32_t executor_n_vocab(const Executor *e);

/* ---- sequences (sequences.h) ------------------------------------------------------------------------- */

int executor_sequence_open(Executor *e, int32_t *out, fr_error *err);
/* To how many of its first n tokens (or of those that it will have) a sequence can be cut, or how many another can
 * share. That is n, unless the model has a recurrent state, or gives back what windows have passed: such a sequence
 * can be cut only within the tokens of the last forward, at marks, and at 0. executor_sequence_share and _truncate
 * do no more than this, so ask for the length afterwards. */
int32_t executor_sequence_reach(const Executor *e, int32_t sequence, int32_t n);
void executor_sequence_share(Executor *e, int32_t from, int32_t to, int32_t n);
/* Keeps what is needed to cut the sequence to its first n tokens later, if it can be cut to them now and the model
 * needs anything for that. The number of marks is limited: a new one takes the place of the least recently used one. */
void executor_sequence_mark(Executor *e, int32_t sequence, int32_t n);
void executor_sequence_close(Executor *e, int32_t sequence);
int32_t executor_sequence_length(const Executor *e, int32_t sequence);
void executor_sequence_truncate(Executor *e, int32_t sequence, int32_t length);
/* Lengthens the sequence by n tokens that were never run, whose keys and values are arbitrary numbers. For
 * measurements only. */
int executor_sequence_pad(Executor *e, int32_t sequence, int32_t n, fr_error *err);
/* Returns for how many rows of the sequence in the coming forward there are pages now, if n_ahead more tokens are to
 * follow in later forwards. */
int32_t executor_room(const Executor *e, int32_t sequence, int32_t n_ahead);
/* Forgets the least recently used mark if the sequence lacks pages of windows for n rows. Returns false if it does
 * not, or if there is no mark. */
bool executor_drop_mark(Executor *e, int32_t sequence, int32_t n);
/* These return the number of all pages, and of those that no sequence holds. Layers with a window may have pages of
 * their own; otherwise their numbers are 0. */
int32_t executor_n_pages(const Executor *e);
int32_t executor_n_free_pages(const Executor *e);
int32_t executor_n_window_pages(const Executor *e);
int32_t executor_n_free_window_pages(const Executor *e);
/* Returns the number of pages that the first n sequences hold together. */
int32_t executor_n_pages_of(const Executor *e, int32_t n);
/* Makes room for n rows of the sequence in the coming forward. A failure harms no other sequence. */
int executor_reserve(Executor *e, int32_t sequence, int32_t n_rows, fr_error *err);
/* Does the same, and also takes pages for n_ahead tokens that are to be read after these, in later forwards. Windows
 * will have moved on by then, so that only the layers without a window need such pages now. */
int executor_reserve_ahead(Executor *e, int32_t sequence, int32_t n_rows, int32_t n_ahead, fr_error *err);

/* Appends the tokens of a sequence that was shared or loaded: keys, values, recurrent state and marks. False: memory
 * ran out. */
bool executor_sequence_save(Executor *e, int32_t sequence, Buf *out);
/* Replaces the content of a sequence by a saved one. Sequence -1: it is only checked. FR_ERR_FORMAT and
 * FR_ERR_MISMATCH: the bytes are damaged, or come from another kind of cache; the sequence is as before. FR_ERR_MEMORY:
 * there are no pages for it; the sequence is empty. Errors have no subject. */
int executor_sequence_load(Executor *e, int32_t sequence, ByteReader *in, fr_error *err);

/* ---- forwards ---------------------------------------------------------------------------------------- */

/* Allows n rows of a run to want logits, if fewer were allowed so far; at most max_rows. Takes memory, and forgets
 * the results of the last run. */
int executor_reserve_logits(Executor *e, int32_t n, fr_error *err);

/* Keeps, from the next forward on, the residual stream of each row whose hidden state is read, after these numbers of
 * layers. Takes memory, and forgets the results of the last run. */
int executor_keep_layers(Executor *e, const KeptLayers *layers, fr_error *err);

/* Runs the rows, at most max_rows, for which room was reserved before. Refuses impossible batches. Returns the error
 * of the device if it has failed (backend.h). */
int executor_forward(Executor *e, const Row *rows, int32_t n_rows, fr_error *err);
/* Runs more rows below those of the last forward, whose keys are still in their slots, for drafters that grow a tree
 * level by level. Row numbers continue, a parent may be any row since executor_forward, and reservations and max_rows
 * count all of them. Nothing may be committed in between. Results are those of the new rows only. */
int executor_extend(Executor *e, const Row *rows, int32_t n_rows, fr_error *err);
/* Stores keys and values for the rows without computing anything else: each layer makes them of the rows' inputs, which
 * all rows must have, and applies no norm before. For drafters that read states of the target as their context. The
 * model has only attention. */
int executor_store(Executor *e, const Row *rows, int32_t n_rows, fr_error *err);

/* Chooses the layer that forwards run from now on, for a model whose layers take turns (Model.takes_turns). */
void executor_choose_layer(Executor *e, int32_t layer);

/* Reads a result of the last forward: the logits [n_vocab] of a row that wanted them, and the hidden state after the
 * final norm [n_embd] of a row that wanted either, which is followed by the kept streams, [n_embd] each; NULL for other
 * rows. Until it is read, a result stays where the
 * backend computed it. Valid until the next forward. */
const float *executor_logits(const Executor *e, int32_t row);
const float *executor_hidden(const Executor *e, int32_t row);
/* Keeps these rows of the last forward and its extensions, which are a chain of one sequence from its committed
 * tokens down, and forgets the other rows of the sequence. May be called once for each sequence and forward. */
void executor_commit(Executor *e, int32_t sequence, const int32_t *rows, int32_t n);

#endif

/* backend.h - the table that a backend implements: where weights are kept and what computes.
 *
 *   Device    threads or an accelerator, with working memory: one for an engine, shared by the target and all drafters
 *   Weights   a Model made resident in the backend's own form; immutable, shared by engines
 *   Context   keys, values and activations of one Weights on one Device: runs forwards over rows of token trees
 *   Buffer    floats of a drafter in the device's memory
 *   Linear    one matrix of a drafter, and a bias
 *   Lookup    rows of numbers that drafters add to logits by token
 *
 * The engine and every drafter use only this header and executor.h, which turns sequences and pages into slots for all
 * backends alike. compute/cpu is the fast backend. compute/reference is the same in double precision, without packing
 * or threads, and is written to be read: start there to write another. A backend is a folder here and a line in
 * backend.c.
 *
 * The contract. A result depends only on its own inputs: the row of a forward that sees certain tokens gets the same
 * bits in every batch, chunk, tree, page layout and number of threads (docs/ARCHITECTURE.md). tests/lossless holds each
 * backend to it. The objects of one Device are used by one thread at a time.
 *
 * Failures. Functions that open or take memory return a negative code and fill in err. A function that computes cannot
 * fail on a CPU, but an accelerator may be lost at any time. It then calls device_fail and returns without a result. A
 * device that has failed stays failed: executor_forward and executor_extend return its error, before and after they
 * compute, so that fr_engine_step returns it and no token is taken from what was computed with it.
 */
#ifndef COMPUTE_BACKEND_H
#define COMPUTE_BACKEND_H

#include "base/system.h"
#include "base/files.h"
#include "base/row_kernels.h"
#include "base/threads.h"
#include "model/model.h"

typedef struct Backend Backend;
struct Ranks; /* compute/ranks/ranks.h */

/* Each backend's own structs begin with these. */
typedef struct Device {
    const Backend *backend;
    int n_threads;
    const RowKernels *rows; /* passes over rows of logits in main memory, for this CPU */
    int status;             /* negative: it has failed, and `error` says how */
    fr_error error;
} Device;

typedef struct WeightsOptions {
    const char *kernels;      /* name of a kernel table; NULL or "auto": the best of this machine */
    ActPrecision activations; /* how the inputs of block types are rounded */
    const char *packed_file;  /* packed weights, which are mapped if the file exists; NULL: none */
    int n_threads;            /* how many threads convert the weights */
    struct Ranks *ranks; /* the processes among which the weights are divided, borrowed; NULL: they are not divided */
    void (*progress)(void *user, double part); /* optional; part goes from 0 to 1 */
    void *progress_user;
} WeightsOptions;

typedef struct Weights {
    const Backend *backend;
    const Model *model;     /* borrowed */
    WeightsOptions options; /* kernels: the name of the table that was chosen */
    int n_ranks;            /* the processes of options.ranks, if each has a part of the matrices; 0: they are whole */
    int number;             /* among the models that these processes divide; 0: it is the first one, the target */
    double exchange_s;      /* the latency of an exchange between them, as measured; 0: unknown */
    double exchange_bytes_per_s; /* of what each of them receives */
    size_t bytes;                /* bytes of matrices that one forward reads */
    MappedFile *mapped;          /* options.packed_file, if it is used; each forward checks that it has not changed */
    char packed_error[508];      /* why that file is not used although it exists; "" otherwise */
} Weights;

/* The residual streams that a context keeps with each hidden state, for drafters that read them. */
enum { MAX_KEPT_LAYERS = 16 };
typedef struct KeptLayers {
    int32_t n;
    int32_t after[MAX_KEPT_LAYERS]; /* how many layers have run: 0 is the embedding, n_layer is before the final norm */
} KeptLayers;

/* Returns the index of the stream after that many layers, which is added if it is missing; -1: there is no room. */
int32_t kept_layers_add(KeptLayers *k, int32_t after);

typedef struct Context {
    const Weights *weights;
    Device *device;
    int32_t layer;    /* the layer that a forward runs, if the model's layers take turns */
    bool only_stores; /* a forward only stores keys and values, which each layer makes of the inputs of rows */
    KeptLayers kept;  /* set by keep_layers */
} Context;

/* Returns the floats of a RESULT_HIDDEN: the hidden state after the final norm [n_embd], then the kept streams in their
 * order, [n_embd] each. */
static inline int64_t context_hidden_width(const Context *c) {
    return (1 + (int64_t)c->kept.n) * c->weights->model->hparams.n_embd;
}

static inline bool context_runs(const Context *c, int32_t layer) {
    return !c->weights->model->takes_turns || layer == c->layer;
}

/* Floats in the memory of a device, which the operations for drafters read and write. The CPU sees them through
 * `floats`: where the device computes in main memory, these are the same floats; elsewhere they are a copy, and
 * buffer_push and buffer_pull bring a part of it to the device and back. Drafters call both everywhere. */
typedef struct Buffer {
    Device *device;
    int64_t n;
    float *floats; /* [n] */
} Buffer;

/* The part of a buffer from one of its floats on. */
typedef struct Slice {
    Buffer *buffer;
    int64_t first;
} Slice;

typedef struct Linear {
    int64_t n_in, n_out;
} Linear;

typedef struct Lookup {
    int64_t n_rows, n;
    TensorType type;
} Lookup;

typedef struct DeviceOptions {
    const char *kernels; /* as in WeightsOptions */
    int n_threads;
    bool pin_threads; /* each thread to a core of its own, while the device is open */
} DeviceOptions;

/* Layers that see all earlier positions and layers with a window keep keys and values in separate slots, because what a
 * window has passed is given back sooner. */
typedef enum KvGroup { KV_ALL, KV_WINDOW, KV_GROUPS } KvGroup;
static inline KvGroup kv_group_of(const LayerSpec *l) { return l->mixer == MIXER_WINDOW ? KV_WINDOW : KV_ALL; }
/* Returns the head size of the layers of a group, which all have the same. */
int32_t kv_group_head_dim(const Model *m, KvGroup group);

typedef struct ContextOptions {
    KvType kv_type;
    int32_t n_slots[KV_GROUPS]; /* token slots of the KV cache */
    int32_t n_ctx;              /* longest sequence */
    int32_t max_rows;           /* in one forward and its extensions */
    int32_t n_states; /* recurrent states, if the model has such layers: first one for each sequence, then others */
    /* The context of Model.kv_model, on the same device, whose keys and values the layers read; it must outlive this
     * one, and its weights are divided among ranks if and only if these are. kv_type and n_ctx are those of that
     * context, n_slots is 0, and nothing is ever written to it. NULL: the context has a cache of its own. */
    const Context *reads;
} ContextOptions;

/* The slots of a row in the layers of a group: that of its own key and value (-1: it has none, because the context
 * reads another one), and those that it may read. */
typedef struct RowSlots {
    int32_t own;
    const int32_t *prefix, *path; /* -1: no layer of the group sees this place any more */
} RowSlots;

/* How the token after a row is chosen, if its logits are read for nothing else: it is the argmax of
 * logit / temperature + G, where G is the noise of a position with a seed (base/gumbel_row.h), or with temperature 0
 * the argmax of the logits. Ties go to the lowest token. A backend may then leave logits out: it gives those of some
 * tokens, among them that one and one that is not finite if there is any, and the least finite number in the place of
 * the others. That number wins against no other at temperatures up to ROW_TEMPERATURE_MAX: the next float is 2e31
 * above it, and no two tokens have noise that differs by more than 60. */
#define ROW_TEMPERATURE_MAX 1e29f
typedef struct RowDraw {
    float temperature;
    uint64_t seed, position;
} RowDraw;

/* One row of a forward, placed: which slots it reads and where its own key and value go. */
typedef struct RowPlace {
    int32_t token, position, sequence;
    const float *input;       /* [model_input_width] in the place of the token's embedding, or NULL */
    int32_t row, parent;      /* its number since executor_forward, and that of its parent; -1: the committed tokens */
    int32_t index;            /* among the rows of its sequence since executor_forward */
    int32_t n_prefix, n_path; /* it sees n_prefix committed slots, then n_path slots of its path, itself last; a row of
                               * a block sees the whole block in the place of its path; in a context that reads another
                               * one, n_path is 0 and n_prefix is not */
    RowSlots slots[KV_GROUPS];
    int32_t i_logits, i_hidden; /* its place among the results, or -1: not wanted */
    bool only_best;             /* its logits are only read to choose the token of `draw` */
    RowDraw draw;
} RowPlace;

/* Returns how many keys a row sees in a layer without a window. */
static inline int64_t row_n_keys(const RowPlace *r, const LayerSpec *l) {
    return l->is_causal ? (int64_t)r->position + 1 : (int64_t)r->n_prefix + r->n_path;
}

/* Recurrent state `to` becomes state `from`, which has taken in `length` tokens (0: it is all zeros), moved on by
 * n_rows rows of the last forward and its extensions, each of which is the parent of the next. */
typedef struct StateStep {
    int32_t from, to, length, n_rows;
    const int32_t *rows;
} StateStep;

typedef enum ResultKind { RESULT_LOGITS, RESULT_HIDDEN } ResultKind;

/* A part of a forward for measurements: its work, the shortest time in which the machine could do it, and the time it
 * took. */
enum { COST_PARTS_MAX = 12 };
typedef struct CostPart {
    const char *name;
    int64_t n_out, n_in; /* sizes of the matrices of a layer that read the same inputs; 0: no matrix product */
    int32_t n_layers;    /* how many layers have this part; 0: not counted */
    double bytes;        /* read by one forward */
    double ops;          /* multiplications and additions, which count twice for 16-bit activations */
    double seconds;      /* measured, all layers together */
    double floor_s;      /* the longer of reading the bytes and computing the operations; 0: unknown */
} CostPart;

/* What a forward has to move and to compute. */
typedef struct CostWork {
    double weight_bytes; /* read once, whatever the number of rows */
    double expert_bytes; /* bytes of all experts; n rows read 1 - (1 - expert_share)^n of them, if experts are random */
    double expert_share; /* the share of the experts that one row chooses */
    double kv_bytes_per_key;        /* read for each earlier token, once for all rows of a sequence */
    double kept_bytes[KV_GROUPS];   /* kept for each token, by the layers of a group that have keys of their own */
    double ops_per_row[PEAK_COUNT]; /* multiplications and additions of matrix products, by kind */
    double attention_ops;           /* for one row and one earlier token, in float */
    double window_share;            /* the part of kv_bytes_per_key that layers with a window read */
    int32_t window;                 /* the most tokens that such a layer sees */
} CostWork;

/* Sums of the squares of what matrices read, over the rows of forwards, for importance matrices. */
typedef struct InputSquares {
    int64_t n_rows;            /* the number of rows whose squares were added */
    double *sums[INPUT_KINDS]; /* [n_layer][input_width of the kind]; of experts [n_layer][n_expert][inputs] */
    int64_t *expert_rows;      /* [n_layer][n_expert] rows that chose each expert */
} InputSquares;

/* What a linear layer does with its product p = W x + bias. */
typedef enum LinearOp {
    LINEAR_SET,      /* y = p */
    LINEAR_ADD_SILU, /* y = y + silu(p): a residual block */
    LINEAR_SUM_SILU, /* y = silu(y + p): a recurrent state */
} LinearOp;

struct Backend {
    const char *name, *summary; /* the name for --backend; one line for --help */
    bool reads_file;       /* each forward reads weights from the model's file, which is checked before and after */
    bool computes_exactly; /* inputs are not rounded, whatever WeightsOptions.activations asks for */

    /* Weights. submodel opens the layers of a drafter (model_of_layers) in the precision of the target, whose embedding
     * they share, and whose LM head, unless Model.output is another one; the Model must outlive them. With is_divided
     * they are divided among the processes of the target, otherwise whole. weights_save writes a file for
     * WeightsOptions.packed_file; NULL: the backend has no such form. kernel_names lists the kernel tables that this
     * machine can run, ending with NULL. */
    int (*weights_open)(Weights **out, const Model *model, const WeightsOptions *options, fr_error *err);
    int (*submodel)(Weights **out, const Weights *target, const Model *layers, bool is_divided, fr_error *err);
    /* See weights_open_draft. NULL: weights_open, with the options of the target. */
    int (*draft_weights)(Weights **out, Device *d, const Weights *target, const Model *model, int32_t n_rows,
                         fr_error *err);
    void (*weights_close)(Weights *w);
    int (*weights_save)(const Weights *w, const char *path, fr_error *err);
    const char *const *(*kernel_names)(void);

    /* A device. run_parts does parts 0 .. n_parts - 1 of the caller's work on the CPU, as many at a time as the device
     * has threads. */
    int (*device_open)(Device **out, const DeviceOptions *options, fr_error *err);
    void (*device_close)(Device *d);
    void (*run_parts)(Device *d, int n_parts, PartFn fn, void *ctx);

    /* A context. forward runs rows [n_rows]. The keys of earlier rows since executor_forward are in their slots, and
     * the places of these rows are before `rows` in the same array: row number 0 is rows[-rows[0].row]. read gives
     * result number i of the last forward in memory of the CPU, until the next forward: [n_vocab] or
     * [context_hidden_width]. */
    int (*context_open)(Context **out, Device *d, const Weights *w, const ContextOptions *options, fr_error *err);
    void (*context_close)(Context *c);
    void (*forward)(Context *c, const RowPlace *rows, int32_t n_rows);
    const float *(*read)(Context *c, ResultKind kind, int32_t i);
    /* Takes memory for the logits of n rows of one forward, if there is less so far: with a large vocabulary they are
     * the largest results. After a failure everything is as before. NULL: context_open takes it for max_rows. */
    int (*reserve_logits)(Context *c, int32_t n, fr_error *err);
    /* Replaces Context.kept, which later forwards follow, and takes memory for it. The results of the last forward are
     * lost. After a failure the streams are those from before. */
    int (*keep_layers)(Context *c, const KeptLayers *layers, fr_error *err);
    /* Moves different recurrent states on, none of which is `from` of another step. A forward only reads the states of
     * the committed tokens, state i for sequence i. */
    void (*advance_states)(Context *c, const StateStep *steps, int32_t n);
    /* copy_slots copies keys and values of n slots of a group to another place, which may overlap with the first.
     * fill_slot fills a slot with numbers of the usual size, for measurements. */
    void (*copy_slots)(Context *c, KvGroup group, int32_t from, int32_t to, int32_t n);
    void (*fill_slot)(Context *c, KvGroup group, int32_t slot);
    /* For saving: slot_bytes is the size of a slot in all layers of a group, and state_bytes that of a recurrent state.
     * The other functions copy a slot or a state to memory of the CPU, and back. */
    size_t (*slot_bytes)(const Context *c, KvGroup group);
    void (*read_slot)(Context *c, KvGroup group, int32_t slot, void *out);
    void (*write_slot)(Context *c, KvGroup group, int32_t slot, const void *bytes);
    size_t (*state_bytes)(const Context *c);
    void (*read_state)(Context *c, int32_t state, void *out);
    void (*write_state)(Context *c, int32_t state, const void *bytes);

    /* Memory for drafters. A new buffer holds zeros. buffer_push and buffer_pull copy n floats, from `first` on, from
     * Buffer.floats to the device and back; both are NULL if the device computes in main memory. */
    int (*buffer_open)(Buffer **out, Device *d, int64_t n, fr_error *err);
    void (*buffer_close)(Buffer *b);
    void (*buffer_push)(Buffer *b, int64_t first, int64_t n);
    void (*buffer_pull)(Buffer *b, int64_t first, int64_t n);

    /* Operations for drafters. x [n_rows][n_in], y [n_rows][n_out]; at most max_rows rows, and 0 rows are fine. head is
     * the LM head, y [n_rows][n_vocab]; head_reserve takes the memory that it needs beforehand. embed gives the
     * embeddings of n tokens, out [n][n_embd]. */
    int (*linear_open)(Linear **out, Device *d, const Weights *target, const GgufTensor *w, const float *bias,
                       int32_t max_rows, fr_error *err);
    void (*linear_close)(Linear *l);
    void (*linear)(Device *d, const Linear *l, LinearOp op, Slice x, int32_t n_rows, Slice y);
    int (*head_reserve)(Device *d, const Weights *w, int32_t max_rows, fr_error *err);
    void (*head)(Device *d, const Weights *w, Slice x, int32_t n_rows, Slice y);
    void (*embed)(Device *d, const Weights *w, const int32_t *tokens, int32_t n, Slice out);
    /* In place, for rows [n_rows][n]: x / sqrt(mean(x^2) + eps) * gain. */
    void (*rmsnorm)(Device *d, Slice x, int32_t n_rows, int64_t n, const float *gain, float eps);

    /* Drafters choose tokens on the CPU, from logits that they have pulled into main memory. softmax, in place for rows
     * [n_rows][n]: exp(x - max) / sum. A Lookup is a table of F16 or Q8_0 rows; lookup_store stores rows [first, first
     * + n_rows), given as floats, and lookup_add adds a row to x [n]. */
    void (*softmax)(Device *d, float *x, int32_t n_rows, int64_t n);
    int (*lookup_open)(Lookup **out, Device *d, TensorType type, int64_t n_rows, int64_t n, fr_error *err);
    void (*lookup_close)(Lookup *l);
    void (*lookup_store)(Device *d, Lookup *l, int64_t first, int32_t n_rows, const float *rows);
    void (*lookup_add)(Device *d, Lookup *l, int64_t row, float *x);

    /* For measurements (cost.h). parts fills out [COST_PARTS_MAX] and returns their number. After time_parts the
     * seconds of each part are added to seconds [that number]; after sum_inputs each forward adds the squares of all
     * inputs to the sums. NULL ends either. read_weights gives the time of reading all matrices once. speed and
     * read_weights may be NULL: unknown. */
    void (*work)(const Weights *w, KvType kv_type, CostWork *out);
    int (*parts)(const Weights *w, KvType kv_type, const MachineSpeed *speed, int32_t n_rows, int32_t n_context,
                 CostPart *out);
    void (*time_parts)(Context *c, double *seconds);
    void (*sum_inputs)(Context *c, InputSquares *to);
    int (*speed)(const Weights *w, int n_threads, MachineSpeed *out, fr_error *err);
    int (*read_weights)(Device *d, const Weights *w, double *seconds, fr_error *err);
};

extern const Backend backend_cpu, backend_reference;

/* backends returns all backends, the default first, and NULL after the last; backend_names has their names in the same
 * order. backend_find finds one by name (NULL: the default); its error lists the names. */
const Backend *const *backends(void);
extern const char *const backend_names[];
int backend_find(const char *name, const Backend **out, fr_error *err);

/* Returns how inputs of matrices of block types are rounded: "q16", "q8", or "exact". */
const char *weights_activations(const Weights *w);

/* Buffer.floats [first, first + n) to the device, after the CPU has written them; and back, before it reads them. */
void buffer_push(Buffer *b, int64_t first, int64_t n);
void buffer_pull(Buffer *b, int64_t first, int64_t n);

/* For backends whose logits are floats in memory: *logits has room for n rows afterwards, and *max_logits is the most
 * so far. */
int backend_reserve_logits(float **logits, int32_t *max_logits, int64_t n_vocab, int32_t n, fr_error *err);

/* For backends whose hidden states are floats in memory: *hidden has room for max_rows rows of context_hidden_width
 * afterwards. It implements keep_layers, and opens a context with no layers. */
int backend_keep_layers(Context *c, float **hidden, int32_t max_rows, const KeptLayers *layers, fr_error *err);

/* Notes that the device has failed; the reason is a whole sentence. Only the first failure is kept. Returns its
 * code. */
int device_fail(Device *d, int code, const char *reason);
/* FR_OK, or the error of a device that has failed. */
int device_check(const Device *d, fr_error *err);

/* Opens a draft model beside the target, or the layers of a drafter (model_of_layers), with the options of the target.
 * If that is divided among processes, they are whole in this one, or divided, too, whichever makes a forward of n_rows
 * rows on the device faster. Both have the same bits. Layers that read the target's keys and values (Model.kv_model)
 * are always divided then, because each process has the keys of some heads. */
int weights_open_draft(Weights **out, Device *d, const Weights *target, const Model *model, int32_t n_rows,
                       fr_error *err);

/* NULL is fine for each. */
void weights_close(Weights *w);
void device_close(Device *d);
void buffer_close(Buffer *b);

#endif

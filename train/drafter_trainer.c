/* drafter_trainer.c - trains a drafter's network against the hidden states of its frozen target.
 *
 *     batch    sequence 0 .. n-1 --> the target, one after the other, all threads on each --> hidden states
 *              then threads take whole sequences each: forward and backward through the network
 *
 * Hidden states are computed by the inference code, so the drafter is trained on the very numbers that it will read
 * when it drafts. Those of sequences that come again stay in memory (kept_states.c), which changes no bit.
 *
 * Tests: test_train_unroll.c, test_train_heads_file.c, test_kept_states.c. */
#include "base/hash.h"
#include "base/mem.h"
#include "base/rng.h"
#include "draft/learned/learned_files.h"
#include "gguf/tensor_type.h"
#include "train/drafter_trainer.h"
#include "train/ops.h"

#include <stdio.h>
#include <string.h>

enum { MAX_TENSORS = 256 };

typedef struct DrafterTrainer {
    Trainer trainer;
    DrafterTrainerOptions options;
    FrozenTarget target;
    Arena arena; /* the memory of all arrays below but `hidden` */
    int32_t n_tensors;
    NetTensor *tensors; /* [n_tensors] */
    Param *params;      /* [n_tensors] */
    float *values, *grads;
    Gradients gradients;
    void **acts;    /* [n_threads] */
    float *hidden;  /* [n_sequences][max_length][C] */
    float *streams; /* [n_sequences][max_length][n_streams][C]; NULL: none */
    float *noise;   /* [n_threads][max_length][C]; NULL: none */
    int32_t n_sequences;
    KeptStates kept;
} DrafterTrainer;

/* ---- initial values ----------------------------------------------------------------------------- */

/* Copies the first n numbers of each row from that tensor of the target or of its last layer, into rows of x; false
 * where it has none, or one of another shape. */
static bool copy_from_target(const DrafterTrainer *t, const NetTensor *x, int64_t n, float *out) {
    char name[96];
    const Model *m = t->target.model;
    snprintf(name, sizeof name, "blk.%d.%s", m->hparams.n_layer - 1, x->suffix);
    const GgufTensor *from = gguf_find_tensor(m->gguf, x->start == NET_COPY ? x->suffix : name);
    if (!from || from->dims[0] != n ||
        (x->n_rows ? from->n_dims != 2 || from->dims[1] != x->n_rows : from->n_dims != 1))
        return false;
    const char *data = from->data;
    int64_t n_rows = x->n_rows ? x->n_rows : 1;
    size_t row_bytes = from->bytes / (size_t)n_rows;
    for (int64_t r = 0; r < n_rows; r++) blocks_dequantize(from->type, data + (size_t)r * row_bytes, n, out + r * x->n);
    return true;
}

/* Copies rows of the target's LM head. */
static void copy_head(const DrafterTrainer *t, const NetTensor *x, float *out) {
    int64_t width = t->target.model->hparams.n_embd;
    for (int64_t r = 0; r < x->n_rows; r++)
        memcpy(out + r * x->n + (x->n - width), t->target.head + (x->tokens ? x->tokens[r] : r) * width,
               (size_t)width * sizeof *out);
}

static void init_values_of(const DrafterTrainer *t, int32_t i) {
    const NetTensor *x = &t->tensors[i];
    float *out = t->params[i].value;
    int64_t n = t->params[i].n;
    bool is_copy = x->start == NET_LAYER || x->start == NET_COPY;
    if (is_copy && copy_from_target(t, x, x->n, out)) return;
    if (x->start == NET_ONES || (is_copy && !x->n_rows)) {
        for (int64_t k = 0; k < n; k++) out[k] = 1;
    } else if (x->start == NET_FIRST_ROWS) {
        for (int64_t k = 0; k < n; k++) out[k] = k % (n / x->cube[2]) < x->cube[0];
    } else if (x->start == NET_CONSTANT) {
        for (int64_t k = 0; k < n; k++) out[k] = (float)x->std;
    } else if (x->std > 0) {
        start_normal(out, n, x->std, t->options.seed, (uint64_t)i);
    }
    for (int64_t r = 0; (x->start == NET_FUSE || x->start == NET_PASS) && r < x->n_rows; r++) {
        float *through = out + r * x->n + (x->start == NET_FUSE ? x->n - x->n_rows : 0);
        for (int64_t k = 0; k < x->n_rows; k++) through[k] = k == r;
    }
    if (x->start == NET_HEAD) copy_head(t, x, out);
    if (x->start == NET_PAIR) copy_from_target(t, x, x->n / 2, out + x->n / 2);
}

/* ---- learn -------------------------------------------------------------------------------------- */

typedef struct Task {
    DrafterTrainer *t;
    const TrainBatch *batch;
    double weight;
} Task;

/* Returns the noise of sequence i of the batch; none in validation. */
static const float *noise_of(const Task *task, int i_run, int32_t i) {
    const DrafterTrainer *t = task->t;
    int64_t width = t->target.model->hparams.n_embd;
    if (!t->noise || task->weight == 0) return NULL;
    float *noise = t->noise + i_run * t->options.max_length * width;
    noise_uniform(noise, task->batch->length * width, t->options.noise, t->options.seed, task->batch->i_sequence + i);
    return noise;
}

/* Returns the numbers in the streams of a sequence of that length. */
static int64_t streams_of_sequence(const DrafterTrainer *t, int32_t length) {
    return (int64_t)length * t->target.n_streams * t->target.model->hparams.n_embd;
}

static void learn_sequence(void *ctx, int i_run, int32_t i, float *grads, TrainSums *sums) {
    const Task *task = ctx;
    DrafterTrainer *t = task->t;
    const TrainBatch *b = task->batch;
    const NetClass *class = t->options.class;
    float *w[MAX_TENSORS], *dw[MAX_TENSORS];
    for (int32_t k = 0; k < t->n_tensors; k++) {
        w[k] = t->params[k].value;
        dw[k] = grads ? grads + (t->params[k].value - t->values) : NULL;
    }
    const TrainSequence seq = {.T = b->length,
                               .tokens = b->tokens + (int64_t)i * (b->length + 1),
                               .loss_mask = b->loss_mask + (int64_t)i * b->length,
                               .hidden = t->hidden + (int64_t)i * b->length * t->target.model->hparams.n_embd,
                               .embd = t->target.embd,
                               .head = t->target.head,
                               .streams = t->streams ? t->streams + i * streams_of_sequence(t, b->length) : NULL,
                               .noise = noise_of(task, i_run, i),
                               .seed = t->options.seed,
                               .i_sequence = b->i_sequence + i};
    class->learn(t->options.net, w, grads ? dw : NULL, t->acts[i_run], &seq, task->weight, sums);
}

static int check_batch(const DrafterTrainer *t, const TrainBatch *b, fr_error *err) {
    int32_t n_vocab = t->target.model->hparams.n_vocab;
    if (b->length < 1 || b->length > t->options.max_length)
        return error_set(err, FR_ERR_ARGUMENT, "a batch of sequences of %d tokens; this trainer takes 1 to %d",
                         b->length, t->options.max_length);
    for (int64_t i = 0; i < (int64_t)b->n_sequences * (b->length + 1); i++)
        if (b->tokens[i] < 0 || b->tokens[i] >= n_vocab)
            return error_set(
                err, FR_ERR_ARGUMENT,
                "token %d in the training data is outside the target's vocabulary of %d tokens; tokenize with the "
                "target's file",
                b->tokens[i], n_vocab);
    return FR_OK;
}

/* Makes room for the hidden states of n sequences. */
static int grow_hidden(DrafterTrainer *t, int32_t n, fr_error *err) {
    if (n <= t->n_sequences) return FR_OK;
    mem_free(t->hidden), mem_free(t->streams);
    size_t bytes = (size_t)n * (size_t)t->options.max_length * (size_t)t->target.model->hparams.n_embd *
                   sizeof *t->hidden;
    size_t of_streams = bytes * (size_t)t->target.n_streams;
    t->hidden = mem_alloc(bytes);
    t->streams = of_streams ? mem_alloc(of_streams) : NULL;
    bool fits = t->hidden && (t->streams || !of_streams);
    t->n_sequences = fits ? n : 0;
    return fits ? FR_OK : (int)error_memory(err, "the target's hidden states of a batch", bytes + of_streams);
}

/* Returns how many bytes the states of sequences that are learned may take: an eighth is left for those that are held
 * out, which come again more often. */
static size_t most_of_learned(const DrafterTrainer *t) { return t->kept.max_bytes - t->kept.max_bytes / 8; }

/* Keeps the states of a sequence that comes again. */
static void keep_states(DrafterTrainer *t, const int32_t *tokens, int32_t n, const float *hidden, const float *streams,
                        bool is_held_out) {
    size_t n_hidden = (size_t)n * (size_t)t->target.model->hparams.n_embd,
           n_streams = (size_t)streams_of_sequence(t, n);
    if (!is_held_out && !t->options.has_epochs) return;
    float *kept = kept_states_add(&t->kept, tokens, n, n_hidden + n_streams,
                                  is_held_out ? t->kept.max_bytes : most_of_learned(t));
    if (!kept) return;
    memcpy(kept, hidden, n_hidden * sizeof *kept);
    if (streams) memcpy(kept + n_hidden, streams, n_streams * sizeof *kept);
}

/* Gets the target's states of sequence i of the batch. */
static int get_states(DrafterTrainer *t, const TrainBatch *b, int32_t i, bool is_held_out, fr_error *err) {
    const int32_t *tokens = b->tokens + (int64_t)i * (b->length + 1);
    int64_t n_hidden = (int64_t)b->length * t->target.model->hparams.n_embd,
            n_streams = streams_of_sequence(t, b->length);
    float *hidden = t->hidden + i * n_hidden, *streams = t->streams ? t->streams + i * n_streams : NULL;
    const float *kept = kept_states_find(&t->kept, tokens, b->length);
    if (kept) {
        memcpy(hidden, kept, (size_t)n_hidden * sizeof *hidden);
        if (streams) memcpy(streams, kept + n_hidden, (size_t)n_streams * sizeof *streams);
        return FR_OK;
    }
    int status = frozen_read(&t->target, tokens, b->length, hidden, streams, err);
    if (!status) keep_states(t, tokens, b->length, hidden, streams, is_held_out);
    return status;
}

static int learn(Trainer *trainer, const TrainBatch *b, double weight, TrainSums *sums, fr_error *err) {
    DrafterTrainer *t = (DrafterTrainer *)trainer;
    int status = check_batch(t, b, err);
    if (!status) status = grow_hidden(t, b->n_sequences, err);
    for (int32_t i = 0; i < b->n_sequences && !status; i++) status = get_states(t, b, i, weight == 0, err);
    if (status) return status;
    Task task = {t, b, weight};
    return gradients_run(&t->gradients, b->n_sequences, learn_sequence, &task, weight != 0, sums, err);
}

/* ---- write -------------------------------------------------------------------------------------- */

static int write_file(const Trainer *trainer, const char *path, const DrafterTraining *record, fr_error *err) {
    const DrafterTrainer *t = (const DrafterTrainer *)trainer;
    const NetClass *class = t->options.class;
    GgufWriter *w = (class->layout == LAYOUT_OWN ? drafter_file_writer
                     : class->layout == LAYOUT_PUBLISHED
                         ? drafter_file_published_writer
                         : drafter_file_companion_writer)(class->method, t->target.model, record);
    if (!w) return error_memory(err, "a writer of GGUF files", 0);
    FloatRows rows[MAX_TENSORS];
    class->set_keys(t->options.net, w);
    if (t->options.head_tokens)
        gguf_set_i32s(w, DRAFTER_KEY(HEAD_TOKENS_KEY), t->options.head_tokens, t->options.n_head_tokens);
    for (int32_t i = 0; i < t->n_tensors; i++) {
        const NetTensor *x = &t->tensors[i];
        rows[i] = (FloatRows){x->n_rows ? t->options.type : TYPE_F32, x->n_rows, x->n, t->params[i].value};
        if (x->cube[0]) gguf_add_tensor(w, x->name, TYPE_F32, 3, x->cube, t->params[i].value);
        else float_rows_add(w, x->name, &rows[i]);
    }
    const char *accuracy = class->accuracy;
    if (accuracy && record && record->accuracy)
        gguf_add_tensor(w, accuracy, TYPE_F32, 2, (int64_t[]){record->n_ranks, record->n_heads}, record->accuracy);
    int status = gguf_writer_finish(w, path, err);
    gguf_writer_free(w);
    return status;
}

StateMemory drafter_trainer_state_memory(const Trainer *trainer, int64_t n_sequences, int32_t length) {
    const DrafterTrainer *t = (const DrafterTrainer *)trainer;
    size_t n_numbers = (size_t)length * (size_t)(t->target.model->hparams.n_embd * (1 + t->target.n_streams));
    int64_t all = n_sequences * (int64_t)kept_states_bytes(length, n_numbers), most = (int64_t)most_of_learned(t);
    return (StateMemory){all, min_i64(all, most), (all + 6) / 7 * 8};
}

bool drafter_trainer_accuracy(const TrainSums *sums, float accuracy[TRAIN_MAX_STEPS * TRAIN_RANKS]) {
    for (int32_t i = 0; i < sums->n_heads; i++) {
        if (sums->of[i] == 0) return false;
        for (int32_t r = 0; r < TRAIN_RANKS; r++)
            accuracy[i * TRAIN_RANKS + r] = (float)((double)sums->at_rank[i][r] / (double)sums->of[i]);
    }
    return sums->n_heads > 0;
}

/* ---- open and close ----------------------------------------------------------------------------- */

static int32_t n_params(const Trainer *t) { return ((const DrafterTrainer *)t)->n_tensors; }
static Param *param(Trainer *t, int32_t i) { return &((DrafterTrainer *)t)->params[i]; }
static Gradients *gradients(Trainer *t) { return &((DrafterTrainer *)t)->gradients; }

static void close_trainer(Trainer *trainer) {
    DrafterTrainer *t = (DrafterTrainer *)trainer;
    for (int i = 0; t->acts && i < t->options.n_threads; i++) t->options.class->acts_close(t->acts[i]);
    gradients_close(&t->gradients);
    frozen_close(&t->target);
    arena_free(&t->arena);
    mem_free(t->hidden);
    mem_free(t->streams);
    kept_states_free(&t->kept);
    mem_free(t->options.head_tokens);
    mem_free(t);
}

static int open_params(DrafterTrainer *t, fr_error *err) {
    const NetClass *class = t->options.class;
    t->n_tensors = class->n_tensors(t->options.net);
    if (t->n_tensors > MAX_TENSORS)
        return error_set(err, FR_ERR_ARGUMENT, "%s: a drafter of %d tensors; the trainer takes at most %d",
                         class->method, t->n_tensors, MAX_TENSORS);
    const ArenaItem lists[] = {ARENA_ITEM(&t->tensors, t->n_tensors), ARENA_ITEM(&t->params, t->n_tensors)};
    int status = arena_take(&t->arena, lists, ARENA_COUNT(lists), "a drafter's list of tensors", err);
    if (status) return status;
    int64_t n = 0, at = 0, n_vocab = t->target.model->hparams.n_vocab;
    for (int32_t i = 0; i < t->n_tensors; i++) {
        t->tensors[i] = class->tensor(t->options.net, i);
        if (t->tensors[i].start == NET_LAYER && t->target.model->hparams.latent.rank)
            return error_set(
                err, FR_ERR_UNSUPPORTED,
                "%s: a drafter with a layer of its own cannot be trained for a model with latent attention "
                "(MLA), whose cache has no keys and values of heads; train medusa, hydra or redrafter",
                gguf_path(t->target.model->gguf));
        n += net_tensor_count(&t->tensors[i]);
    }
    const ArenaItem arrays[] = {ARENA_ITEM(&t->values, n), ARENA_ITEM(&t->grads, n)};
    status = arena_take(&t->arena, arrays, ARENA_COUNT(arrays), "a drafter's parameters and gradients", err);
    if (status) return status;
    for (int32_t i = 0; i < t->n_tensors; i++) {
        const NetTensor *x = &t->tensors[i];
        bool is_head = x->n_rows == n_vocab || x->start == NET_HEAD;
        t->params[i] = (Param){x->name,       net_tensor_count(x), t->values + at,
                               t->grads + at, x->n_rows > 0,       is_head ? 0 : x->n_rows};
        at += t->params[i].n;
        init_values_of(t, i);
    }
    return gradients_open(&t->gradients, t->grads, n, t->options.n_threads, err);
}

static int open_acts(DrafterTrainer *t, fr_error *err) {
    const DrafterTrainerOptions *o = &t->options;
    int64_t n_noise = (int64_t)o->n_threads * o->max_length * t->target.model->hparams.n_embd;
    const ArenaItem items[] = {ARENA_ITEM(&t->acts, o->n_threads), ARENA_ITEM(&t->noise, n_noise)};
    size_t n_items = o->noise > 0 ? 2 : 1;
    int status = arena_take(&t->arena, items, n_items, "a drafter's activations; choose a smaller --length", err);
    if (status) return status;
    for (int i = 0; i < o->n_threads; i++)
        if (!(t->acts[i] = o->class->acts_open(o->net, o->max_length, err))) return FR_ERR_MEMORY;
    return FR_OK;
}

int drafter_trainer_open(Trainer **out, FrozenTarget *target, const DrafterTrainerOptions *options, fr_error *err) {
    static const TrainerClass class = {"drafter", n_params, param, gradients, learn, write_file, close_trainer};
    *out = NULL;
    DrafterTrainer *t = mem_calloc(1, sizeof *t);
    if (!t) {
        frozen_close(target);
        mem_free(options->head_tokens);
        return error_memory(err, "a trainer", sizeof *t);
    }
    t->trainer.class = &class;
    t->options = *options;
    t->kept.max_bytes = options->state_memory;
    t->target = *target;
    *target = (FrozenTarget){0};
    int status = open_params(t, err);
    if (!status) status = open_acts(t, err);
    if (status) {
        close_trainer(&t->trainer);
        return status;
    }
    *out = &t->trainer;
    return FR_OK;
}

/* Goes on from a trained drafter (`forerun train --init`).
 *
 * The file must be one that this run could have written itself: the same method and target, the same keys (the width of
 * the feed-forward, the rank and the hot tokens of token info, the number of heads), and the same tensors. Only what a
 * file does not depend on may differ, such as the number of steps ahead of a layer that continues from its own
 * predictions, which is how a curriculum is trained. A network of another layout than LAYOUT_OWN has taken its shape
 * from the file. Matrices are read in whatever type the file has; the optimiser
 * begins anew, because a drafter's file does not have its means. A file of another method (NetClass.begins_from) gives
 * what both have in common, and its shapes must agree.
 *
 * Test: test_train_init_cli.c. */

/* Finds the command that trained the file, for messages. */
static void get_command(const Gguf *g, char out[200]) {
    GgufString s = {"an unknown command", 18};
    gguf_get_string(g, DRAFTER_KEY("training.command"), &s);
    size_t n = s.n < 199 ? s.n : 199;
    for (size_t i = 0; i < n; i++) out[i] = s.data[i] >= ' ' && s.data[i] <= '~' ? s.data[i] : '?';
    out[n] = '\0';
}

static int check_keys(const Gguf *g, const NetClass *class, const void *net, fr_error *err) {
    char prefix[96], command[200];
    GgufWriter *w = gguf_writer_new();
    if (!w) return error_memory(err, "a drafter's keys", 0);
    class->set_keys(net, w);
    snprintf(prefix, sizeof prefix, DRAFTER_KEY("%s."), class->method);
    const char *key = gguf_writer_differs(w, g, prefix);
    int status = FR_OK;
    if (key && !*key) status = error_memory(err, "a drafter's keys", 0);
    else if (key) {
        get_command(g, command);
        status = error_set(err, FR_ERR_MISMATCH,
                           "%.100s: cannot be continued with these options: its %.60s differs; pass those that it was "
                           "trained with: %s",
                           gguf_path(g), key + strlen(DRAFTER_KEY("")), command);
    }
    gguf_writer_free(w);
    return status;
}

/* The name of a tensor of this method in a file of `method`. */
typedef struct FileName {
    char text[128];
} FileName;

static FileName name_in_file(const NetClass *class, const char *method, const char *name) {
    FileName n;
    bool is_same = strcmp(method, class->method) == 0;
    snprintf(n.text, sizeof n.text, "%s%s", is_same ? "" : method, is_same ? name : name + strlen(class->method));
    return n;
}

/* Every tensor of the file is a parameter, or the accuracy that was measured with them, or kept as it is. */
static int check_no_others(const Gguf *g, Trainer *t, const NetClass *class, const void *net, const char *method,
                           fr_error *err) {
    for (int64_t i = 0; i < gguf_n_tensors(g); i++) {
        const char *name = gguf_tensor(g, i)->name;
        bool is_known = (class->accuracy && strcmp(name, class->accuracy) == 0) ||
                        (class->keeps && class->keeps(net, name));
        for (int32_t k = 0; k < t->class->n_params(t) && !is_known; k++)
            is_known = strcmp(name, name_in_file(class, method, t->class->param(t, k)->name).text) == 0;
        if (!is_known)
            return error_set(err, FR_ERR_MISMATCH, "%s: holds the tensor %s, which these options do not train",
                             gguf_path(g), name);
    }
    return FR_OK;
}

static int read_cube(DrafterFile *f, const NetTensor *x, const char *name, float *out, fr_error *err) {
    float *cube;
    int status = drafter_file_cube(f, name, x->cube, &cube, err);
    if (status) return status;
    memcpy(out, cube, (size_t)x->n * sizeof *out);
    mem_free(cube);
    return FR_OK;
}

static int read_rows(DrafterFile *f, const NetTensor *x, const char *name, float *out, fr_error *err) {
    const GgufTensor *from;
    int status = drafter_file_matrix(f, name, x->n, x->n_rows, &from, err);
    if (!status) blocks_dequantize(from->type, from->data, net_tensor_count(x), out);
    return status;
}

static int read_params(DrafterFile *f, Trainer *t, const NetClass *class, const void *net, const char *method,
                       uint64_t *fingerprint, fr_error *err) {
    bool is_other = strcmp(method, class->method) != 0;
    *fingerprint = 0;
    for (int32_t i = 0; i < t->class->n_params(t); i++) {
        NetTensor x = class->tensor(net, i);
        Param *p = t->class->param(t, i);
        FileName name = name_in_file(class, method, x.name);
        if ((x.is_addition || is_other) && !drafter_file_has(f, name.text)) continue;
        int status = (x.cube[0] ? read_cube : read_rows)(f, &x, name.text, p->value, err);
        if (status) return status;
        *fingerprint = hash64(p->value, (size_t)p->n * sizeof *p->value, *fingerprint);
    }
    return FR_OK;
}

/* Keeps the list of the file, unless the options say something else. */
static int read_head_tokens(const DrafterFile *f, DrafterTrainer *t, fr_error *err) {
    DrafterTrainerOptions *o = &t->options;
    if (o->n_head_tokens > 0) return FR_OK;
    return drafter_file_tokens(f, HEAD_TOKENS_KEY, t->target.model->hparams.n_vocab, &o->head_tokens, &o->n_head_tokens,
                               err);
}

bool init_file_is_of(const char *path, const char *method) {
    Gguf *g = NULL;
    GgufString is = {"", 0};
    fr_error ignored;
    if (gguf_open(&g, path, &ignored)) return false;
    gguf_get_string(g, DRAFTER_KEY("method"), &is);
    bool yes = is.n == strlen(method) && memcmp(is.data, method, is.n) == 0;
    gguf_close(g);
    return yes;
}

int init_file_check(DrafterFile *f, const NetClass *class, const void *net, fr_error *err) {
    const GgufTensor *ignored;
    int status = FR_OK;
    for (int32_t i = 0; i < class->n_tensors(net) && !status; i++) {
        const NetTensor t = class->tensor(net, i);
        float *cube = NULL;
        if (t.is_addition && !drafter_file_has(f, t.name)) continue;
        status = t.cube[0] ? drafter_file_cube(f, t.name, t.cube, &cube, err)
                           : drafter_file_matrix(f, t.name, t.n, t.n_rows, &ignored, err);
        mem_free(cube);
    }
    return status;
}

int init_file_read(Trainer *t, const NetClass *class, const void *net, const Model *target, const char *path,
                   uint64_t *fingerprint, fr_error *err) {
    DrafterFile f;
    bool is_other = class->begins_from && init_file_is_of(path, class->begins_from);
    const char *method = is_other ? class->begins_from : class->method;
    int status = class->layout == LAYOUT_COMPANION ? drafter_file_open_companion(&f, path, target, err)
                                                   : drafter_file_open(&f, path, method, target, err);
    if (!status && !is_other && class->layout == LAYOUT_OWN) status = check_keys(f.gguf, class, net, err);
    if (!status) status = check_no_others(f.gguf, t, class, net, method, err);
    if (!status) status = read_params(&f, t, class, net, method, fingerprint, err);
    if (!status) status = read_head_tokens(&f, (DrafterTrainer *)t, err);
    if (!status) status = gguf_check(f.gguf, err); /* the file has not changed meanwhile */
    drafter_file_close(&f);
    return status;
}

/* Quantises a tensor row by row while the GGUF file is written, so that no second copy of it is
 * needed. */

static void fill(void *ctx, int64_t first_row, int64_t n_rows, void *dst) {
    const FloatRows *r = ctx;
    blocks_quantize(r->type, r->value + first_row * r->n, n_rows * r->n, dst);
}

void float_rows_add(GgufWriter *w, const char *name, FloatRows *rows) {
    int n_dims = rows->n_rows ? 2 : 1;
    if (rows->n % tensor_type_info(rows->type)->block_n) rows->type = TYPE_F32;
    gguf_add_tensor_filled(w, name, rows->type, n_dims, (int64_t[]){rows->n, rows->n_rows ? rows->n_rows : 1}, fill,
                           rows);
}

/* Noise from the counter-based generator (base/rng.h), keyed by seed and sequence number. A resumed run
 * therefore draws the same noise as an undisturbed one, and threads need no shared state. */

void noise_uniform(float *out, int64_t n, double width, uint64_t seed, int64_t i_sequence) {
    uint32_t words[4] = {0};
    for (int64_t k = 0; k < n; k++) {
        if (k % 4 == 0) rng_words(seed, RNG_NOISE, (uint64_t)i_sequence, (uint32_t)(k / 4), words);
        out[k] = (float)(width * (((double)words[k % 4] + 0.5) * 0x1p-31 - 1));
    }
}

/* llama_trainer.c - the trainer of a Llama-style target. Threads take whole sequences (gradients.c), so activations and
 * a gradient are all that a thread needs of its own.
 *
 * Tests: test_train_llama.c.
 */
#include "base/hash.h"
#include "base/mem.h"
#include "gguf/tensor_type.h"
#include "gguf/gguf_write.h"
#include "text/vocab.h"
#include "train/drafter_trainer.h"
#include "train/llama.h"
#include "train/ops.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct LlamaTrainer {
    Trainer trainer;
    LlamaOptions options;
    char *name;
    Arena arena; /* the memory of all arrays below */
    int64_t n_weights;
    float *values, *grads; /* [n_weights] */
    LlamaWeights weights;  /* points into values */
    int32_t n_params;
    LlamaTensor *tensors; /* [n_params] */
    Param *params;        /* [n_params] */
    Gradients gradients;
    LlamaActs *acts;     /* [n_threads] */
    LlamaLayer *dlayers; /* [n_threads][n_layer] */
} LlamaTrainer;

/* Goes on from a trained model (`forerun train target --init`).
 *
 * The file may come from anywhere, but must be a network that this trainer trains: a Llama with a tied embedding, no
 * biases, and plain RoPE. Its matrices are read in whatever type they have; the optimiser begins anew, because a
 * model's file does not have its means.
 *
 * Test: test_train_init_cli.c. */

static int check_architecture(const Gguf *g, fr_error *err) {
    GgufString name = {"none", 4};
    gguf_get_string(g, "general.architecture", &name);
    if (name.n == 5 && memcmp(name.data, "llama", 5) == 0) return FR_OK;
    return error_set(err, FR_ERR_MISMATCH,
                     "%s: cannot be trained further: 'train target' trains the architecture llama, and this is %.*s",
                     gguf_path(g), (int)(name.n < 40 ? name.n : 40), name.data);
}

/* The numbers of the file that are options, in one array for a message; 0 where the file lacks them. */
enum { LAYERS, WIDTH, HEADS, KV_HEADS, FF, N_NUMBERS };
static const char *const number_keys[N_NUMBERS] = {"llama.block_count", "llama.embedding_length",
                                                   "llama.attention.head_count", "llama.attention.head_count_kv",
                                                   "llama.feed_forward_length"};

static int check_numbers(const LlamaShape *s, const Gguf *g, fr_error *err) {
    const uint32_t wanted[N_NUMBERS] = {(uint32_t)s->n_layer, (uint32_t)s->n_embd, (uint32_t)s->n_head,
                                        (uint32_t)s->n_head_kv, (uint32_t)s->n_ff};
    uint32_t n[N_NUMBERS] = {0};
    for (int i = 0; i < N_NUMBERS; i++) gguf_get_u32(g, number_keys[i], &n[i]);
    if (!n[KV_HEADS]) n[KV_HEADS] = n[HEADS];
    if (memcmp(n, wanted, sizeof n) == 0) return FR_OK;
    return error_set(err, FR_ERR_MISMATCH,
                     "%s: has another shape than the options; pass its own: --layers %u --width %u --heads %u "
                     "--kv-heads %u --ff %u",
                     gguf_path(g), n[LAYERS], n[WIDTH], n[HEADS], n[KV_HEADS], n[FF]);
}

/* Numbers that no option sets. */
static int check_constants(const LlamaShape *s, const Gguf *g, fr_error *err) {
    float base = 10000, eps = 0;
    uint32_t rotated = (uint32_t)s->head_dim;
    gguf_get_f32(g, "llama.rope.freq_base", &base);
    gguf_get_f32(g, "llama.attention.layer_norm_rms_epsilon", &eps);
    gguf_get_u32(g, "llama.rope.dimension_count", &rotated);
    if (base == (float)s->rope_base && eps == s->rms_eps && rotated == (uint32_t)s->head_dim &&
        gguf_find_key(g, "llama.rope.scaling.type") < 0)
        return FR_OK;
    return error_set(err, FR_ERR_MISMATCH,
                     "%s: cannot be trained further: its RoPE or the epsilon of its norms is not what 'train target' "
                     "trains (base %g, all of a head, no scaling; epsilon %g)",
                     gguf_path(g), s->rope_base, (double)s->rms_eps);
}

static int read_tensor(const Gguf *g, const LlamaTensor *x, float *values, fr_error *err) {
    const GgufTensor *t = gguf_find_tensor(g, x->name);
    if (!t || t->n_dims != (x->is_norm ? 1 : 2) || t->dims[0] != x->n || t->dims[1] != x->n_rows)
        return error_set(err, FR_ERR_MISMATCH, "%s: tensor %s is missing or has the wrong shape", gguf_path(g),
                         x->name);
    int64_t n = x->n_rows * x->n;
    if (!finite_weights(t->type, t->data, n))
        return error_set(err, FR_ERR_FORMAT, "%s: tensor %s holds NaN or infinity", gguf_path(g), x->name);
    blocks_dequantize(t->type, t->data, n, values);
    return FR_OK;
}

static int read_tensors(const LlamaShape *s, const Gguf *g, float *values, fr_error *err) {
    int32_t n_tensors = llama_n_tensors(s);
    if (gguf_n_tensors(g) != n_tensors)
        return error_set(err, FR_ERR_MISMATCH,
                         "%s: cannot be trained further: it has %lld tensors where a Llama with a tied embedding and "
                         "no biases has %d",
                         gguf_path(g), (long long)gguf_n_tensors(g), n_tensors);
    for (int32_t i = 0; i < n_tensors; i++) {
        LlamaTensor x = llama_tensor(s, i);
        int status = read_tensor(g, &x, values, err);
        if (status) return status;
        values += x.n_rows * x.n;
    }
    return FR_OK;
}

/* Writes the weights in the file, converted to floats, to values ([llama_n_weights(s)], in the order of llama_tensor).
 * The file must hold exactly the network that `s` describes, with the vocabulary of `vocabulary`; else the message
 * names what differs and the options that fit, and the values are undefined. *fingerprint is that of the values. */
static int llama_init_read(const LlamaShape *s, const Gguf *vocabulary, const char *path, float *values,
                           uint64_t *fingerprint, fr_error *err) {
    Gguf *g;
    int status = gguf_open(&g, path, err);
    if (status) return status;
    status = check_architecture(g, err);
    if (!status) status = check_numbers(s, g, err);
    if (!status) status = check_constants(s, g, err);
    if (!status) status = vocab_match(g, vocabulary, err);
    if (!status) status = read_tensors(s, g, values, err);
    if (!status) status = gguf_check(g, err); /* the file has not changed meanwhile */
    if (!status) *fingerprint = hash64(values, (size_t)llama_n_weights(s) * sizeof *values, 0);
    gguf_close(g);
    return status;
}

/* ---- initial values ---------------------------------------------------------------------------------- */

static void init_values(LlamaTrainer *t) {
    for (int32_t i = 0; i < t->n_params; i++) {
        Param *p = &t->params[i];
        double std = t->tensors[i].adds_to_residual ? 0.02 / sqrt(2.0 * t->options.shape.n_layer) : 0.02;
        if (!t->tensors[i].is_norm) start_normal(p->value, p->n, std, t->options.seed, (uint64_t)i);
        for (int64_t k = 0; t->tensors[i].is_norm && k < p->n; k++) p->value[k] = 1;
    }
}

int llama_trainer_init(Trainer *trainer, const char *path, uint64_t *fingerprint, fr_error *err) {
    LlamaTrainer *t = (LlamaTrainer *)trainer;
    return llama_init_read(&t->options.shape, t->options.vocabulary, path, t->values, fingerprint, err);
}

/* ---- learn ------------------------------------------------------------------------------------------- */

typedef struct Task {
    LlamaTrainer *t;
    const TrainBatch *batch;
    double weight;
} Task;

static void learn_sequence(void *ctx, int i_run, int32_t i, float *grads, TrainSums *sums) {
    const Task *task = ctx;
    LlamaTrainer *t = task->t;
    const LlamaShape *s = &t->options.shape;
    const TrainBatch *b = task->batch;
    const int32_t *tokens = b->tokens + (int64_t)i * (b->length + 1);
    LlamaWeights dw;
    if (grads) dw = llama_place_weights(s, t->dlayers + (int64_t)i_run * s->n_layer, grads);
    llama_forward(s, &t->weights, &t->acts[i_run], tokens, b->length);
    LlamaResult r = llama_learn(s, &t->weights, grads ? &dw : NULL, &t->acts[i_run], tokens,
                                b->loss_mask + (int64_t)i * b->length, b->length, task->weight);
    sums->n_heads = 1;
    sums->loss += r.loss, sums->n += r.n;
    sums->right[0] += r.right, sums->of[0] += r.n;
}

static int check_batch(const LlamaTrainer *t, const TrainBatch *b, fr_error *err) {
    if (b->length < 1 || b->length > t->options.max_length)
        return error_set(err, FR_ERR_ARGUMENT, "a batch of sequences of %d tokens; this trainer takes 1 to %d",
                         b->length, t->options.max_length);
    for (int64_t i = 0; i < (int64_t)b->n_sequences * (b->length + 1); i++)
        if (b->tokens[i] < 0 || b->tokens[i] >= t->options.shape.n_vocab)
            return error_set(err, FR_ERR_ARGUMENT,
                             "token %d in the training data is outside the vocabulary of %d tokens; tokenize with the "
                             "same vocabulary",
                             b->tokens[i], t->options.shape.n_vocab);
    return FR_OK;
}

static int learn(Trainer *trainer, const TrainBatch *batch, double weight, TrainSums *sums, fr_error *err) {
    LlamaTrainer *t = (LlamaTrainer *)trainer;
    int status = check_batch(t, batch, err);
    if (status) return status;
    Task task = {t, batch, weight};
    return gradients_run(&t->gradients, batch->n_sequences, learn_sequence, &task, weight != 0, sums, err);
}

/* ---- write ------------------------------------------------------------------------------------------- */

/* The types that matrices of a file can have, with their numbers in general.file_type. */
static const struct {
    TensorType type;
    uint32_t file_type;
} file_types[] = {{TYPE_F32, 0}, {TYPE_F16, 1}, {TYPE_Q8_0, 7}};
enum { N_FILE_TYPES = sizeof file_types / sizeof *file_types };

static int find_file_type(TensorType type) {
    for (int i = 0; i < N_FILE_TYPES; i++)
        if (file_types[i].type == type) return i;
    return -1;
}

static void set_keys(const LlamaTrainer *t, GgufWriter *w) {
    const LlamaShape *s = &t->options.shape;
    gguf_set_string(w, "general.architecture", "llama", 5);
    gguf_set_string(w, "general.name", t->name, strlen(t->name));
    gguf_set_u32(w, "general.file_type", file_types[find_file_type(t->options.type)].file_type);
    gguf_set_u32(w, "llama.context_length", (uint32_t)t->options.n_ctx);
    gguf_set_u32(w, "llama.embedding_length", (uint32_t)s->n_embd);
    gguf_set_u32(w, "llama.block_count", (uint32_t)s->n_layer);
    gguf_set_u32(w, "llama.feed_forward_length", (uint32_t)s->n_ff);
    gguf_set_u32(w, "llama.attention.head_count", (uint32_t)s->n_head);
    gguf_set_u32(w, "llama.attention.head_count_kv", (uint32_t)s->n_head_kv);
    gguf_set_u32(w, "llama.attention.key_length", (uint32_t)s->head_dim);
    gguf_set_u32(w, "llama.attention.value_length", (uint32_t)s->head_dim);
    gguf_set_f32(w, "llama.attention.layer_norm_rms_epsilon", s->rms_eps);
    gguf_set_u32(w, "llama.rope.dimension_count", (uint32_t)s->head_dim);
    gguf_set_f32(w, "llama.rope.freq_base", (float)s->rope_base);
    gguf_set_u32(w, "llama.vocab_size", (uint32_t)s->n_vocab);
    const char *precision = gemm_precision_name(gemm_precision());
    gguf_set_string(w, "forerun.training.precision", precision, strlen(precision));
    const Gguf *g = t->options.vocabulary;
    for (int64_t i = 0; i < gguf_n_kv(g); i++)
        if (strncmp(gguf_key(g, i), "tokenizer.", 10) == 0) gguf_copy_kv(w, g, i);
}

static int write_file(const Trainer *trainer, const char *path, const DrafterTraining *record, fr_error *err) {
    (void)record;
    const LlamaTrainer *t = (const LlamaTrainer *)trainer;
    FloatRows *rows = mem_calloc((size_t)t->n_params, sizeof *rows);
    GgufWriter *w = gguf_writer_new();
    int status;
    if (!rows || !w) {
        status = error_memory(err, "a writer of GGUF files", (size_t)t->n_params * sizeof *rows);
        goto done;
    }
    set_keys(t, w);
    for (int32_t i = 0; i < t->n_params; i++) {
        const LlamaTensor *x = &t->tensors[i];
        rows[i] = (FloatRows){x->is_norm ? TYPE_F32 : t->options.type, x->is_norm ? 0 : x->n_rows, x->n,
                              t->params[i].value};
        float_rows_add(w, x->name, &rows[i]);
    }
    status = gguf_writer_finish(w, path, err);
done:
    gguf_writer_free(w);
    mem_free(rows);
    return status;
}

/* ---- open and close ---------------------------------------------------------------------------------- */

static int32_t n_params(const Trainer *t) { return ((const LlamaTrainer *)t)->n_params; }
static Param *param(Trainer *t, int32_t i) { return &((LlamaTrainer *)t)->params[i]; }
static Gradients *gradients(Trainer *t) { return &((LlamaTrainer *)t)->gradients; }
int64_t llama_trainer_n_weights(const Trainer *t) { return ((const LlamaTrainer *)t)->n_weights; }

static void close_trainer(Trainer *trainer) {
    LlamaTrainer *t = (LlamaTrainer *)trainer;
    if (!t) return;
    for (int i = 0; t->acts && i < t->options.n_threads; i++) llama_acts_close(&t->acts[i]);
    gradients_close(&t->gradients);
    arena_free(&t->arena);
    mem_free(t);
}

static const TrainerClass llama_class = {"target", n_params, param, gradients, learn, write_file, close_trainer};

static int check_options(LlamaOptions *o, fr_error *err) {
    LlamaShape *s = &o->shape;
    int64_t tokens = gguf_find_key(o->vocabulary, "tokenizer.ggml.tokens");
    if (tokens < 0)
        return error_set(err, FR_ERR_FORMAT, "%s: has no vocabulary (tokenizer.ggml.tokens)", gguf_path(o->vocabulary));
    int64_t n_vocab = gguf_kv_count(o->vocabulary, tokens);
    if (n_vocab < 1 || n_vocab > 1 << 24)
        return error_set(err, FR_ERR_FORMAT, "%s: a vocabulary of %lld tokens cannot be used; 1 to 16777216 can",
                         gguf_path(o->vocabulary), (long long)n_vocab);
    s->n_vocab = (int32_t)n_vocab;
    if (s->n_layer < 1 || s->n_layer > 1024 || s->n_embd < 2 || s->n_embd > 1 << 14 || s->n_ff < 1 ||
        s->n_ff > 1 << 16 || s->n_head < 1 || s->n_head > 1 << 10 || s->head_dim < 2 || s->head_dim > 1 << 10)
        return error_set(
            err, FR_ERR_ARGUMENT,
            "a model of %d layers, width %d, feed-forward %d and %d heads of width %d is too small or too large",
            s->n_layer, s->n_embd, s->n_ff, s->n_head, s->head_dim);
    if (s->head_dim % 2)
        return error_set(err, FR_ERR_ARGUMENT, "heads of width %d: the width of a head must be even", s->head_dim);
    if (s->n_head_kv < 1 || s->n_head % s->n_head_kv)
        return error_set(err, FR_ERR_ARGUMENT, "%d heads cannot share %d key-value heads evenly", s->n_head,
                         s->n_head_kv);
    if (o->max_length < 1 || o->max_length > 1 << 16 || o->n_ctx < o->max_length)
        return error_set(err, FR_ERR_ARGUMENT,
                         "sequences of up to %d tokens in a context of %d: the length must be 1 to 65536, and the "
                         "context no shorter",
                         o->max_length, o->n_ctx);
    if (find_file_type(o->type) < 0)
        return error_set(err, FR_ERR_ARGUMENT, "the type of the file must be F32, F16 or Q8_0");
    int64_t block = tensor_type_info(o->type)->block_n;
    if (s->n_embd % block || s->n_ff % block || (int64_t)s->n_head * s->head_dim % block)
        return error_set(err, FR_ERR_ARGUMENT, "type Q8_0 needs all widths to be multiples of %lld", (long long)block);
    return FR_OK;
}

static int open_weights(LlamaTrainer *t, fr_error *err) {
    const LlamaShape *s = &t->options.shape;
    size_t name_bytes = strlen(t->options.name) + 1;
    t->n_weights = llama_n_weights(s);
    t->n_params = llama_n_tensors(s);
    const ArenaItem items[] = {
        ARENA_ITEM(&t->values, t->n_weights),       ARENA_ITEM(&t->grads, t->n_weights),
        ARENA_ITEM(&t->tensors, t->n_params),       ARENA_ITEM(&t->params, t->n_params),
        ARENA_ITEM(&t->weights.layers, s->n_layer), ARENA_ITEM(&t->name, name_bytes),
    };
    int status = arena_take(&t->arena, items, ARENA_COUNT(items), "a model's weights and gradients", err);
    if (status) return status;
    memcpy(t->name, t->options.name, name_bytes);
    t->weights = llama_place_weights(s, t->weights.layers, t->values);
    int64_t at = 0;
    for (int32_t i = 0; i < t->n_params; i++) {
        LlamaTensor *x = &t->tensors[i];
        *x = llama_tensor(s, i);
        t->params[i] = (Param){x->name,       x->n_rows * x->n, t->values + at,
                               t->grads + at, !x->is_norm,      i > 0 && !x->is_norm ? x->n_rows : 0};
        at += t->params[i].n;
    }
    return FR_OK;
}

static int open_acts(LlamaTrainer *t, fr_error *err) {
    const LlamaOptions *o = &t->options;
    const ArenaItem items[] = {ARENA_ITEM(&t->acts, o->n_threads),
                               ARENA_ITEM(&t->dlayers, (int64_t)o->n_threads * o->shape.n_layer)};
    int status = arena_take(&t->arena, items, ARENA_COUNT(items), "a trainer's threads", err);
    for (int i = 0; i < o->n_threads && !status; i++)
        status = llama_acts_open(&t->acts[i], &o->shape, o->max_length, err);
    return status;
}

int llama_trainer_open(Trainer **out, const LlamaOptions *options, fr_error *err) {
    *out = NULL;
    LlamaOptions o = *options;
    int status = check_options(&o, err);
    if (status) return status;
    LlamaTrainer *t = mem_calloc(1, sizeof *t);
    if (!t) return error_memory(err, "a trainer", sizeof *t);
    t->trainer.class = &llama_class;
    t->options = o;
    status = open_weights(t, err);
    if (!status) status = open_acts(t, err);
    if (!status) status = gradients_open(&t->gradients, t->grads, t->n_weights, o.n_threads, err);
    if (status) {
        close_trainer(&t->trainer);
        return status;
    }
    init_values(t);
    *out = &t->trainer;
    return FR_OK;
}

/* draft_eagle3.c - the drafter `eagle3`: EAGLE-3 (Li et al. 2025, "EAGLE-3: Scaling up Inference Acceleration of Large
 * Language Models via Training-Time Test", arXiv 2503.01840), and EAGLE-3.1, which adds norms.
 *
 * The problem. EAGLE's layer has to predict the target's hidden state, although only the token matters, so more
 * training data helps it little. And the last hidden state knows the next token, but less about those after it.
 *
 * The idea. The layer f reads residual streams of several layers of the target, and its output is free: it was trained
 * on its own outputs for several steps, and only its tokens had to be right.
 *
 *     g_t = fc [s_1 ; s_2 ; s_3]                        streams at token t after some early, middle and late layers
 *     f_t = f([norm E(x_{t+1}) ; norm g_t])             q, k and v read both; g_t is the residual stream
 *     distribution of x_{t+2} = softmax(W norm f_t)     over a vocabulary of the drafter's own, mostly a smaller one
 *
 * Below the pending token f_t takes the place of g_t, before the final norm. The layer has a width, heads and a rope
 * of its own; embedding and LM head may be its own or the target's. Entries, trees, noise, draws and calibrated chances
 * are those of `eagle` (eagle_layer.c).
 *
 *     entry      0             1             2
 *     input   E(x1) g0      E(x2) g1      E(x3) g2        x3 is the pending token
 *                                          gives f_2, the distribution of x4
 *
 * Files. A GGUF file of the architecture eagle3, as llama.cpp's converter writes it, is read as it is. A file of
 * `forerun import-drafter` has the same tensors, and the same keys after a prefix (learned_files.h).
 *
 * The trap. A published list of layers counts either layers that have run, or layers whose output is meant. The second
 * is the same number minus one. A file with the wrong one drafts, but its tokens are accepted far less often; --draft
 * eagle3:layers=outputs reads a list in the second way.
 *
 * Cost: as for `eagle`, and fc reads streams that the target copies. A head over 32,000 tokens costs less than the
 * target's; tokens that it does not have are never drafted. When it loses: as `eagle`. Proof:
 * tests/draft/test_draft_eagle3.c, against the layer in double precision, each path by itself. */
#include "base/mem.h"
#include "draft/learned/eagle_layer.h"
#include "draft/learned/learned_files.h"
#include "model/arch.h"

#include <string.h>

typedef struct Eagle3Options {
    const char *file;
    bool coupled, draws;
    int32_t depth, top;
    bool is_static, counts_outputs;
} Eagle3Options;

static const Option option_table[] = {
    LEARNED_OPTION_FILE(Eagle3Options),
    {.key = "depth",
     OPT_INT(Eagle3Options, depth, 1, EAGLE_MAX_DEPTH),
     .default_value = "5",
     .help = "maximal length of a path"},
    {.key = "top",
     OPT_INT(Eagle3Options, top, 1, EAGLE_MAX_TOP),
     .default_value = "8",
     .help = "children of a node, and nodes expanded at each level"},
    {.key = "tree",
     OPT_CHOICE(Eagle3Options, is_static, "dynamic", "static"),
     .default_value = "dynamic",
     .help = "dynamic: EAGLE-2's tree; static: EAGLE-1's, whose shape is fixed in advance"},
    STREAM_OPTION_LAYERS(Eagle3Options),
    LEARNED_OPTION_COUPLED(Eagle3Options),
    LEARNED_OPTION_DRAW(Eagle3Options),
    {.key = NULL},
};

typedef struct Eagle3 {
    Eagle eagle;
    Rope rope;
    float *token_norm, *hidden_norm, *stream_norm, *ffn_norm, *output_norm;
    OwnEmbedding embedding;
} Eagle3;

static void close_eagle3(Drafter *drafter) {
    Eagle3 *e = (Eagle3 *)drafter;
    float *const vectors[] = {e->token_norm, e->hidden_norm, e->stream_norm, e->ffn_norm, e->output_norm};
    eagle_release(&e->eagle);
    rope_free(&e->rope);
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) mem_free(vectors[i]);
    own_embedding_close(&e->embedding);
    mem_free(e);
}

/* ---- keys ----------------------------------------------------------------------------------------------- */

static void read_more(KeyReader *r, void *user) {
    Eagle3Keys *k = user;
    stream_width_check(r, k->target, EAGLE3_KEY_TARGET_WIDTH);
    const char *list = key_index(r, EAGLE3_KEY_LAYERS) >= 0 ? EAGLE3_KEY_LAYERS : EAGLE3_KEY_OLD_LAYERS;
    stream_list_read(r, k->gguf, k->target, list, EAGLE3_KEY_LAYERS, 0, &k->streams);
    k->norms_before_fc = key_bool(r, EAGLE3_KEY_NORM_BEFORE_FC, false);
    k->norms_each_stream = key_bool(r, EAGLE3_KEY_NORM_EACH_STREAM, false);
    k->keeps_normed = key_bool(r, EAGLE3_KEY_NORM_BEFORE_RESIDUAL, false);
    k->continues_normed = key_bool(r, EAGLE3_KEY_NORM_OUTPUT, false);
}

int eagle3_read_keys(Hparams *h, Eagle3Keys *k, const DrafterFile *f, const Model *target, fr_error *err) {
    char prefix[64];
    *k = (Eagle3Keys){.gguf = f->gguf, .target = target};
    snprintf(prefix, sizeof prefix, "%seagle3", drafter_file_prefix(f));
    int status = hparams_read_drafter(h, f->gguf, prefix, read_more, k, err);
    if (status || h->n_layer == 1) return status;
    return error_set(err, FR_ERR_UNSUPPORTED, "%s: has %d layers, and EAGLE-3 drafters have one", gguf_path(f->gguf),
                     h->n_layer);
}

/* ---- weights -------------------------------------------------------------------------------------------- */

static int read_vectors(Eagle3 *e, const Eagle3Keys *k, const Hparams *h, fr_error *err) {
    DrafterFile *f = &e->eagle.learned.file;
    int64_t n_streams = k->streams.n * (int64_t)e->eagle.learned.n_embd;
    const struct {
        const char *name;
        int64_t n;
        float **out;
        bool is_there;
    } vectors[] = {
        {EAGLE3_TOKEN_NORM, h->n_embd, &e->token_norm, true},
        {EAGLE3_HIDDEN_NORM, h->n_embd, &e->hidden_norm, true},
        {EAGLE3_FFN_NORM, h->n_embd, &e->ffn_norm, true},
        {EAGLE3_OUTPUT_NORM, h->n_embd, &e->output_norm, true},
        {EAGLE3_STREAM_NORM, n_streams, &e->stream_norm, k->norms_before_fc || k->norms_each_stream},
    };
    int status = FR_OK;
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors && !status; i++)
        if (vectors[i].is_there) status = drafter_file_vector(f, vectors[i].name, vectors[i].n, vectors[i].out, err);
    return status ? status : own_rope_open(&e->rope, &e->eagle.learned, &h->rope, EAGLE3_ROPE_FACTORS, err);
}

static int read_matrices(Eagle3 *e, const Hparams *h, fr_error *err) {
    LayerSpec *spec = &e->eagle.layer.specs[0];
    int64_t n = h->n_embd, q_dim = hparams_q_dim(h), kv_dim = hparams_kv_dim(h);
    const struct {
        const char *name;
        int64_t n_in, n_out;
        LayerMatrix to;
    } matrices[] = {
        {EAGLE3_ATTN_Q, 2 * n, q_dim, MATRIX_Q},    {EAGLE3_ATTN_K, 2 * n, kv_dim, MATRIX_K},
        {EAGLE3_ATTN_V, 2 * n, kv_dim, MATRIX_V},   {EAGLE3_ATTN_OUTPUT, q_dim, n, MATRIX_O},
        {EAGLE3_FFN_GATE, n, h->n_ff, MATRIX_GATE}, {EAGLE3_FFN_UP, n, h->n_ff, MATRIX_UP},
        {EAGLE3_FFN_DOWN, h->n_ff, n, MATRIX_DOWN},
    };
    int status = FR_OK;
    for (size_t i = 0; i < sizeof matrices / sizeof *matrices && !status; i++)
        status = drafter_file_matrix(&e->eagle.learned.file, matrices[i].name, matrices[i].n_in, matrices[i].n_out,
                                     &spec->matrices[matrices[i].to], err);
    return status;
}

/* Reads the layer, and everything around it. */
static int read_weights(Eagle3 *e, Eagle3Keys *k, fr_error *err) {
    Eagle *d = &e->eagle;
    LearnedDrafter *l = &d->learned;
    Hparams h;
    int status = eagle3_read_keys(&h, k, &l->file, l->target, err);
    d->layer.model = (Model){.gguf = l->file.gguf, .hparams = h, .n_ropes = 1, .token_embd = l->target->token_embd};
    if (!status) status = read_vectors(e, k, &h, err);
    if (!status) status = read_matrices(e, &h, err);
    if (!status) status = own_head_read(l, &d->layer.model, EAGLE3_OUTPUT, err);
    if (!status) status = own_embedding_read(&e->embedding, l, EAGLE3_EMBEDDING, h.n_embd, err);
    if (!status)
        status = learned_linear_open(l, EAGLE3_FC, k->streams.n * (int64_t)l->n_embd, h.n_embd,
                                     drafter_file_has(&l->file, EAGLE3_FC ".bias"), d->max_rows, &d->fc, err);
    if (status) return status;
    d->layer.specs[0].reads_pairs = true;
    d->layer.specs[0].ffn_norm = e->ffn_norm;
    d->layer.model.layers = d->layer.specs;
    d->layer.model.ropes[0] = e->rope;
    d->layer.model.output_norm = e->output_norm;
    return l->backend->submodel(&d->layer.weights, l->weights, &d->layer.model, err);
}

/* ---- opening -------------------------------------------------------------------------------------------- */

static int open_layer(Eagle3 *e, const Eagle3Options *o, const Eagle3Keys *k, fr_error *err) {
    Eagle *d = &e->eagle;
    EntryQueueOptions input = {
        .reads_tokens = true,
        .token_norm = e->token_norm,
        .hidden_norm = e->hidden_norm,
        .embedding = e->embedding.memory ? &e->embedding.tensor : NULL,
        .streams = {.norm = e->stream_norm, .norms_each = k->norms_each_stream, .keeps_normed = k->keeps_normed}};
    int status = stream_list_ask(&k->streams, o->counts_outputs, &d->learned, &input.streams, err);
    if (!status) status = eagle_open_layer(d, "eagle3", &input, err);
    if (status || k->continues_normed) return status;
    d->layer.feature_at = d->layer.model.hparams.n_embd;
    return executor_keep_layers(d->layer.executor, &(KeptLayers){1, {1}}, err); /* the output before the final norm */
}

static int open_eagle3(Drafter **out, const void *options, const DrafterEnv *env, fr_error *err) {
    const Eagle3Options *o = options;
    Eagle3Keys keys;
    Eagle3 *e = mem_calloc(1, sizeof *e);
    if (!e) return error_memory(err, "eagle3", sizeof *e);
    Eagle *d = &e->eagle;
    const EaglePlan plan = {.depth = o->depth, .top = o->top, .is_static = o->is_static};
    int status = eagle_plan(d, "eagle3", &plan, env, err);
    d->learned.coupled = o->coupled;
    d->learned.draws = o->draws;
    if (!status) status = learned_open(&d->learned, o->file, "eagle3", env, err);
    if (!status) status = read_weights(e, &keys, err);
    if (!status) status = drafter_file_finish(&d->learned.file, err);
    if (!status) status = open_layer(e, o, &keys, err);
    if (!status && !d->learned.file.names_target)
        learned_note_quantisation(&d->learned, o->file,
                                  "adapt it with forerun train eagle3 -m TARGET --init FILE --from-traffic RECORDS "
                                  "-o ADAPTED");
    if (status) {
        close_eagle3(&d->learned.base);
        return status;
    }
    *out = &d->learned.base;
    return FR_OK;
}

extern const DrafterClass draft_eagle3_class;
const DrafterClass draft_eagle3_class = {
    .name = "eagle3",
    .summary = "one layer reads several layers of the target and continues from its own outputs: EAGLE-3",
    .option_table = option_table,
    .options_size = sizeof(Eagle3Options),
    .open = open_eagle3,
    .close = close_eagle3,
    EAGLE_CALLS,
};

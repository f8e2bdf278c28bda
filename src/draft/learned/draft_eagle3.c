/* draft_eagle3.c - the drafter `eagle3`: EAGLE-3 (Li et al. 2025, "EAGLE-3: Scaling up Inference Acceleration of Large
 * Language Models via Training-Time Test", arXiv 2503.01840), EAGLE-3.1, which adds norms, and P-EAGLE (AWS and NVIDIA
 * 2026, arXiv 2602.01469), which drafts in one forward.
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
 * of its own; embedding and LM head may be its own or the target's. Further layers may follow it, which are those of a
 * Llama; f_t is then the output of the last one. Entries, trees, noise, draws and calibrated chances are those of
 * `eagle` (eagle_layer.c).
 *
 *     entry      0             1             2
 *     input   E(x1) g0      E(x2) g1      E(x3) g2        x3 is the pending token
 *                                          gives f_2, the distribution of x4
 *
 * P-EAGLE. A file with the key block_size K predicts K tokens in one forward. Each row after the last entry reads the
 * embedding of a mask token m in the place of a token that is not known yet, and streams that were learned and are the
 * same for all such rows in the place of the target's. A row attends to all before it. The rows run together with the
 * entries of the tokens that were accepted last (layer_entries.c), so a proposal is a single forward.
 *
 *     entry, row     0        1        2     |   3      4
 *     input       E(x1) g0  E(x2) g1  E(x3) g2  E(m) g  E(m) g        g = fc of the learned streams
 *     predicts                         x4       x5      x6
 *
 * The distributions of the rows do not depend on each other's tokens. The tree consists of the `budget` paths with the
 * greatest products, as that of `dflash` (learned_grow_block), and its tokens are ranked, not drawn.
 *
 * Files. A GGUF file of the architecture eagle3, as llama.cpp's converter writes it, is read as it is. A file of
 * `forerun import-drafter` has the same tensors, and the same keys after a prefix (learned_files.h). llama.cpp reads
 * neither further layers nor P-EAGLE.
 *
 * The trap. A published list of layers counts either layers that have run, or layers whose output is meant. The second
 * is the same number minus one. A file with the wrong one drafts, but its tokens are accepted far less often; --draft
 * eagle3:layers=outputs reads a list in the second way.
 *
 * Cost: as for `eagle`, and fc reads streams that the target copies. A head over 32,000 tokens costs less than the
 * target's; tokens that it does not have are never drafted. When it loses: as `eagle`; P-EAGLE where a token depends
 * strongly on the one before it, which later rows do not know. Proof: tests/draft/test_draft_eagle3.c, against the
 * layers in double precision, each path by itself. */
#include "base/mem.h"
#include "draft/learned/eagle_layer.h"
#include "draft/learned/learned_files.h"
#include "model/arch.h"

#include <stdio.h>

typedef struct Eagle3Options {
    const char *file;
    bool coupled, draws;
    int32_t depth, top;
    bool is_static, counts_outputs;
} Eagle3Options;

static const Option option_table[] = {
    LEARNED_OPTION_FILE(Eagle3Options),
    {.key = "depth",
     OPT_INT(Eagle3Options, depth, 0, EAGLE_MAX_DEPTH),
     .default_value = "0",
     .help = "maximal length of a path; 0: 5, or as many tokens as a forward predicts"},
    {.key = "top",
     OPT_INT(Eagle3Options, top, 1, EAGLE_MAX_TOP),
     .default_value = "8",
     .help = "children of a node, and nodes expanded at each level; in a file that predicts several tokens in one "
             "forward, tokens of each position that are candidates for the tree"},
    {.key = "tree",
     OPT_CHOICE(Eagle3Options, is_static, "dynamic", "static"),
     .default_value = "dynamic",
     .help = "dynamic: EAGLE-2's tree; static: EAGLE-1's, whose shape is fixed in advance, for files that predict one "
             "token in a forward"},
    STREAM_OPTION_LAYERS(Eagle3Options),
    LEARNED_OPTION_COUPLED(Eagle3Options),
    LEARNED_OPTION_DRAW(Eagle3Options),
    {.key = NULL},
};

typedef struct Eagle3 {
    Eagle eagle;
    Eagle3Keys keys;
    Rope rope;
    LayerSpec specs[EAGLE3_MAX_LAYERS];
    float *attn_norms[EAGLE3_MAX_LAYERS]; /* the first one is that of the embedding */
    float *ffn_norms[EAGLE3_MAX_LAYERS];
    float *head_vectors[EAGLE3_MAX_LAYERS][EAGLE3_HEAD_VECTORS]; /* biases and norms of heads; NULL: none */
    GemmaParts gemma[EAGLE3_MAX_LAYERS];
    float *hidden_norm, *stream_norm, *output_norm;
    float *mask_hidden; /* [S T] P-EAGLE: the streams of all rows of a block but the first */
    OwnEmbedding embedding;
    BlockRanks ranks; /* P-EAGLE */
} Eagle3;

enum {
    MAX_BLOCK_ROWS = 128, /* of all blocks together, because each row has logits */
    MIN_ROWS = 64,        /* of a piece of a prompt */
    DEFAULT_DEPTH = 5
};

static void close_eagle3(Drafter *drafter) {
    Eagle3 *e = (Eagle3 *)drafter;
    float *const vectors[] = {e->hidden_norm, e->stream_norm, e->output_norm, e->mask_hidden};
    eagle_release(&e->eagle);
    rope_free(&e->rope);
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) mem_free(vectors[i]);
    for (int32_t i = 0; i < EAGLE3_MAX_LAYERS; i++) {
        mem_free(e->attn_norms[i]);
        mem_free(e->ffn_norms[i]);
        for (int k = 0; k < EAGLE3_HEAD_VECTORS; k++) mem_free(e->head_vectors[i][k]);
        gemma_layer_close(&e->gemma[i]);
    }
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
    key_int(r, "block_count", -1, 1, EAGLE3_MAX_LAYERS);
    k->block = key_int(r, EAGLE3_KEY_BLOCK, 0, 0, EAGLE_MAX_DEPTH);
    if (k->block) k->mask = key_int(r, EAGLE3_KEY_MASK, -1, 0, k->target->hparams.n_vocab - 1);
}

int eagle3_read_keys(Hparams *h, Eagle3Keys *k, const DrafterFile *f, const Model *target, fr_error *err) {
    char prefix[64];
    *k = (Eagle3Keys){.gguf = f->gguf, .target = target};
    snprintf(prefix, sizeof prefix, "%seagle3", drafter_file_prefix(f));
    return hparams_read_drafter(h, f->gguf, prefix, read_more, k, err);
}

/* ---- weights -------------------------------------------------------------------------------------------- */

static int read_vectors(Eagle3 *e, const Hparams *h, fr_error *err) {
    DrafterFile *f = &e->eagle.learned.file;
    const Eagle3Keys *k = &e->keys;
    int64_t n_streams = k->streams.n * (int64_t)e->eagle.learned.n_embd;
    const struct {
        const char *name;
        int64_t n;
        float **out;
        bool is_there;
    } vectors[] = {
        {EAGLE3_HIDDEN_NORM, h->n_embd, &e->hidden_norm, true},
        {EAGLE3_OUTPUT_NORM, h->n_embd, &e->output_norm, true},
        {EAGLE3_STREAM_NORM, n_streams, &e->stream_norm, k->norms_before_fc || k->norms_each_stream},
        {EAGLE3_MASK_HIDDEN, n_streams, &e->mask_hidden, k->block > 0},
    };
    int status = FR_OK;
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors && !status; i++)
        if (vectors[i].is_there) status = drafter_file_vector(f, vectors[i].name, vectors[i].n, vectors[i].out, err);
    return status ? status : own_rope_open(&e->rope, &e->eagle.learned.file, &h->rope, EAGLE3_ROPE_FACTORS, err);
}

/* Reads what the attention of layer i may have in addition. */
static int read_head_vectors(Eagle3 *e, const Hparams *h, int32_t i, fr_error *err) {
    static const char *const names[EAGLE3_HEAD_VECTORS] = {EAGLE3_HEAD_VECTOR_NAMES};
    const int64_t n[] = {hparams_q_dim(h), hparams_kv_dim(h), hparams_kv_dim(h), h->n_embd, h->head_dim, h->head_dim};
    float **v = e->head_vectors[i];
    LayerSpec *spec = &e->specs[i];
    int status = FR_OK;
    for (int k = 0; k < EAGLE3_HEAD_VECTORS && !status; k++) {
        char name[64];
        snprintf(name, sizeof name, EAGLE3_LAYER, i, names[k]);
        if (drafter_file_has(&e->eagle.learned.file, name))
            status = drafter_file_vector(&e->eagle.learned.file, name, n[k], &v[k], err);
    }
    spec->q_bias = v[0], spec->k_bias = v[1], spec->v_bias = v[2], spec->o_bias = v[3];
    spec->q_norm = v[4], spec->k_norm = v[5];
    return status;
}

/* Reads layer i. The first one reads pairs, whose norms are made with the pairs. */
static int read_layer(Eagle3 *e, const Hparams *h, int32_t i, fr_error *err) {
    LayerSpec *spec = &e->specs[i];
    int64_t n = h->n_embd, n_qkv = i ? n : 2 * n, q_dim = hparams_q_dim(h), kv_dim = hparams_kv_dim(h);
    const struct {
        const char *name;
        int64_t n_in, n_out;
        LayerMatrix to;
    } matrices[] = {
        {LAYER_ATTN_Q, n_qkv, q_dim, MATRIX_Q},    {LAYER_ATTN_K, n_qkv, kv_dim, MATRIX_K},
        {LAYER_ATTN_V, n_qkv, kv_dim, MATRIX_V},   {LAYER_ATTN_OUTPUT, q_dim, n, MATRIX_O},
        {LAYER_FFN_GATE, n, h->n_ff, MATRIX_GATE}, {LAYER_FFN_UP, n, h->n_ff, MATRIX_UP},
        {LAYER_FFN_DOWN, h->n_ff, n, MATRIX_DOWN},
    };
    char name[64];
    snprintf(name, sizeof name, EAGLE3_LAYER, i, LAYER_ATTN_NORM);
    int status = drafter_file_vector(&e->eagle.learned.file, name, n, &e->attn_norms[i], err);
    snprintf(name, sizeof name, EAGLE3_LAYER, i, LAYER_FFN_NORM);
    if (!status) status = drafter_file_vector(&e->eagle.learned.file, name, n, &e->ffn_norms[i], err);
    for (size_t k = 0; k < sizeof matrices / sizeof *matrices && !status; k++) {
        snprintf(name, sizeof name, EAGLE3_LAYER, i, matrices[k].name);
        status = drafter_file_matrix(&e->eagle.learned.file, name, matrices[k].n_in, matrices[k].n_out,
                                     &spec->matrices[matrices[k].to], err);
    }
    if (!status) status = read_head_vectors(e, h, i, err);
    if (!status) status = gemma_layer_read(&e->gemma[i], &e->eagle.learned.file, i, h, spec, err);
    spec->attn_scale = h->attn_scale;
    spec->reads_pairs = i == 0;
    spec->attn_norm = i ? e->attn_norms[i] : NULL;
    spec->ffn_norm = e->ffn_norms[i];
    return status;
}

/* Reads the layers, and everything around them. */
static int read_weights(Eagle3 *e, const Hparams *h, fr_error *err) {
    Eagle *d = &e->eagle;
    LearnedDrafter *l = &d->learned;
    d->layer.model = (Model){.gguf = l->file.gguf, .hparams = *h, .n_ropes = 1, .token_embd = l->target->token_embd};
    int status = read_vectors(e, h, err);
    for (int32_t i = 0; i < h->n_layer && !status; i++) status = read_layer(e, h, i, err);
    if (!status) status = own_head_read(l, &d->layer.model, EAGLE3_OUTPUT, err);
    if (!status) status = own_embedding_read(&e->embedding, l, EAGLE3_EMBEDDING, h->n_embd, err);
    if (!status)
        status = learned_linear_open(l, EAGLE3_FC, e->keys.streams.n * (int64_t)l->n_embd, h->n_embd,
                                     drafter_file_has(&l->file, EAGLE3_FC ".bias"), d->max_rows, &d->fc, err);
    if (status) return status;
    d->layer.model.layers = e->specs;
    d->layer.model.ropes[0] = e->rope;
    d->layer.model.output_norm = e->output_norm;
    return learned_layers_open(l, &d->layer.model, &d->layer.weights, err);
}

/* ---- P-EAGLE ------------------------------------------------------------------------------------------- */

static int draft_blocks(LearnedDrafter *learned, const LearnedMember *members, int32_t n, fr_error *err) {
    Eagle3 *e = (Eagle3 *)learned;
    Eagle *d = &e->eagle;
    int32_t sequences[MAX_BLOCK_ROWS] = {0}, n_levels[MAX_BLOCK_ROWS];
    for (int32_t r = 0; r < n; r++) {
        sequences[r] = members[r].sequence;
        n_levels[r] = members[r].budget < d->depth ? members[r].budget : d->depth;
        d->entries.sequences[sequences[r]].n_masks = n_levels[r] - 1;
    }
    int status = entry_queue_run(&d->entries, sequences, n, err);
    for (int32_t r = 0; r < n && !status; r++) {
        const EntrySequence *s = &d->entries.sequences[sequences[r]];
        const float *logits[EAGLE_MAX_DEPTH] = {s->logits};
        for (int32_t i = 1; i < n_levels[r]; i++) logits[i] = executor_logits(d->layer.executor, s->first_mask + i - 1);
        learned_grow_block(learned, &members[r], logits, n_levels[r], &e->ranks);
    }
    return status;
}

/* Sets how long a path is, and how many sequences draft together: their queues and blocks fit into one forward. */
static int plan_blocks(Eagle3 *e, const Eagle3Options *o, fr_error *err) {
    Eagle *d = &e->eagle;
    int32_t block = e->keys.block, n = MAX_BLOCK_ROWS / block;
    int32_t max_group = n < d->learned.max_sequences ? n : d->learned.max_sequences;
    if (o->is_static)
        return error_set(err, FR_ERR_ARGUMENT,
                         "%s: predicts several tokens in one forward, and has no static trees; leave tree=static out",
                         o->file);
    d->depth = o->depth && o->depth < block ? o->depth : block;
    d->max_rows = max_group * (ENTRY_QUEUE_LENGTH + block - 1);
    if (d->max_rows < MIN_ROWS) d->max_rows = MIN_ROWS;
    d->learned.draws = false;
    e->ranks.n_ranks = o->top;
    return learned_reserve_group(&d->learned, max_group, draft_blocks, err);
}

static int open_blocks(Eagle3 *e, const EntryQueueOptions *input, fr_error *err) {
    Eagle *d = &e->eagle;
    LearnedDrafter *l = &d->learned;
    BlockRanks *r = &e->ranks;
    int64_t n = (int64_t)d->depth * r->n_ranks;
    const ArenaItem items[] = {ARENA_ITEM(&r->tokens, n), ARENA_ITEM(&r->log_p, n), ARENA_ITEM(&r->logits, l->n_vocab)};
    EntryQueueOptions entries = *input;
    entries.fc = d->fc, entries.wants_logits = true, entries.max_rows = d->max_rows;
    entries.mask = (EntryMask){e->keys.mask, e->mask_hidden};
    int status = arena_take(&l->arena, items, ARENA_COUNT(items), "eagle3", err);
    if (!status)
        status = one_layer_open_executor(&d->layer, l, l->n_ctx, e->keys.block, d->max_rows, l->max_group * d->depth,
                                         err);
    return status ? status : entry_queue_open(&d->entries, l, &d->layer, &entries, err);
}

/* ---- opening -------------------------------------------------------------------------------------------- */

static int plan(Eagle3 *e, const Eagle3Options *o, const DrafterEnv *env, fr_error *err) {
    const EaglePlan of_tree = {o->depth ? o->depth : DEFAULT_DEPTH, o->top, o->is_static};
    e->eagle.learned.coupled = o->coupled;
    e->eagle.learned.draws = o->draws;
    return e->keys.block ? plan_blocks(e, o, err) : eagle_plan(&e->eagle, "eagle3", &of_tree, env, err);
}

static int open_layers(Eagle3 *e, const Eagle3Options *o, fr_error *err) {
    Eagle *d = &e->eagle;
    const Eagle3Keys *k = &e->keys;
    int32_t n_layer = d->layer.model.hparams.n_layer;
    EntryQueueOptions input = {
        .reads_tokens = true,
        .token_norm = e->attn_norms[0],
        .hidden_norm = e->hidden_norm,
        .embedding = e->embedding.memory ? &e->embedding.tensor : NULL,
        .streams = {.norm = e->stream_norm, .norms_each = k->norms_each_stream, .keeps_normed = k->keeps_normed}};
    int status = stream_list_ask(&k->streams, o->counts_outputs, &d->learned, &input.streams, err);
    if (!status && k->block) return open_blocks(e, &input, err);
    if (!status) status = eagle_open_layer(d, "eagle3", &input, err);
    if (status || k->continues_normed) return status;
    d->layer.feature_at = d->layer.model.hparams.n_embd;
    return executor_keep_layers(d->layer.executor, &(KeptLayers){1, {n_layer}}, err); /* before the final norm */
}

static int open_eagle3(Drafter **out, const void *options, const DrafterEnv *env, fr_error *err) {
    const Eagle3Options *o = options;
    Hparams h;
    Eagle3 *e = mem_calloc(1, sizeof *e);
    if (!e) return error_memory(err, "eagle3", sizeof *e);
    LearnedDrafter *l = &e->eagle.learned;
    int status = learned_open(l, o->file, "eagle3", env, err);
    if (!status) status = eagle3_read_keys(&h, &e->keys, &l->file, l->target, err);
    if (!status) status = plan(e, o, env, err);
    if (!status) status = read_weights(e, &h, err);
    if (!status) status = drafter_file_finish(&l->file, err);
    if (!status) status = open_layers(e, o, err);
    if (!status && !l->file.names_target)
        learned_note_quantisation(l, o->file,
                                  "adapt it with forerun train eagle3 -m TARGET --init FILE --from-traffic RECORDS "
                                  "-o ADAPTED");
    if (status) {
        close_eagle3(&l->base);
        return status;
    }
    *out = &l->base;
    return FR_OK;
}

extern const DrafterClass draft_eagle3_class;
const DrafterClass draft_eagle3_class = {
    .name = "eagle3",
    .summary = "one layer reads several layers of the target and continues from its own outputs: EAGLE-3, P-EAGLE",
    .option_table = option_table,
    .options_size = sizeof(Eagle3Options),
    .open = open_eagle3,
    .close = close_eagle3,
    ENTRY_CALLS,
};

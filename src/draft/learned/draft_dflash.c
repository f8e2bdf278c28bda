/* draft_dflash.c - the drafter `dflash`: DFlash (z-lab 2026, "DFlash: Block Diffusion for Flash Speculative Decoding"),
 * which predicts a block of tokens in one forward.
 *
 * The problem. A drafter that continues from its own outputs runs once for each level of a tree. On long paths its
 * forwards cost more than the target's, although each of them is small.
 *
 * The idea. A few transformer layers read a block of slots at once: the embedding of the pending token, then those of a
 * mask token. Nothing in the block follows from anything drafted before it. What the slots know of the text comes from
 * the target: each layer makes keys and values of a state g of every token of the context, and the slots attend to
 * these and to each other, in both directions.
 *
 *     g_t = norm(fc [s_1 ; ... ; s_S])             streams at token t after S layers of the target
 *     k_t, v_t = norm_k(Wk g_t), Wv g_t            in each layer, with no norm of the layer before them
 *     slots    = E(x_n), E(mask), E(mask), ...     the layers, then the final norm and the target's LM head
 *
 *     context        g0  g1  g2 |  x3  mask  mask  mask        x3 is the pending token
 *     predictions                       x4    x5    x6         slot i predicts the token in its own place
 *
 * In a file with sample_from_anchor, slot i predicts the token after its place, so the pending token's slot predicts,
 * too. If the pending token is not in slot 0, a drafter loses most of its acceptance: it was always given there.
 *
 * The tree. The distributions of the slots do not depend on each other's tokens, as those of medusa's heads: the tree
 * consists of the `budget` paths with the greatest products (learned_grow_products). A file of DSpark has a Markov
 * head, by which each position depends on the token before it (markov_head.c), and one of DFlash 2 a selector among the
 * best tokens (token_selector.c). Then each node has children of its own, and the tree is grown in the same way. Under
 * ratio rules that take them the children are drawn at random (learned_top.c).
 *
 * In DFlash 2 the layers have convolutions over the slots of the block, from the pending token's on (BlockConv in
 * model.h).
 *
 * The keys and values of the context are entries (layer_entries.c): they are computed once for each token that the
 * target has read, in all layers together (executor_store), and a request takes them over with its prefix. The rows of
 * the block are forgotten after each proposal.
 *
 * Files. A GGUF file of the architecture dflash, as llama.cpp's converter writes it, is read as it is, and so is one of
 * the older architecture dflash-draft. The list of layers is as explained in draft_eagle3.c.
 *
 * Cost: a forward of the layers over the block, whatever the depth; an LM head for each position that the budget can
 * reach. When it loses: where a token depends strongly on the one before it, which later slots do not know. Proof:
 * tests/draft/test_draft_dflash.c, against the layers in double precision. */
#include "base/math_functions.h"
#include "base/mem.h"
#include "draft/learned/logit_corrections.h"
#include "draft/learned/learned_files.h"
#include "model/arch.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    MAX_BLOCK = DFLASH_MAX_SLOTS,
    MAX_LAYERS = DFLASH_MAX_LAYERS,
    MAX_ROWS = 128, /* of all blocks together, because each row may have logits */
    MIN_ROWS = 64,  /* of a piece of a prompt */
};

typedef struct DflashOptions {
    const char *file;
    bool coupled, draws, counts_outputs;
    int32_t depth, top;
} DflashOptions;

static const Option option_table[] = {
    LEARNED_OPTION_FILE(DflashOptions),
    {.key = "depth",
     OPT_INT(DflashOptions, depth, 0, MAX_BLOCK),
     .default_value = "0",
     .help = "maximal length of a path; 0: as many tokens as a block predicts"},
    {.key = "top",
     OPT_INT(DflashOptions, top, 1, TOP_K_MAX),
     .default_value = "10",
     .help = "tokens of each position that are candidates for the tree"},
    STREAM_OPTION_LAYERS(DflashOptions),
    LEARNED_OPTION_COUPLED(DflashOptions),
    {.key = "draw",
     OPT_FLAG(DflashOptions, draws),
     .default_value = "1",
     .help = "rules recursive and transport, with a file that has a Markov head or a selector: 1: draw the tokens at "
             "random; 0: rank them by their probability"},
    {.key = NULL},
};

typedef struct LayerVectors {
    float *attn_norm, *q_norm, *k_norm, *sinks, *ffn_norm, *attn_conv, *ffn_conv;
} LayerVectors;

typedef struct Dflash {
    LearnedDrafter learned;
    DflashKeys keys;
    int32_t depth, n_ranks, max_rows;
    Linear *fc;
    OneLayer layers; /* its model has all layers of the drafter, `specs` */
    LayerSpec specs[MAX_LAYERS];
    LayerVectors vectors[MAX_LAYERS];
    float *context_norm, *output_norm;
    Rope rope;
    OwnEmbedding embedding;
    EntryQueue entries;
    MarkovHead markov;
    TokenSelector selector;
    int32_t *slots;  /* [max_rows] the tokens of the blocks */
    float *logits;   /* [V] */
    int32_t *tokens; /* [][n_ranks] the most probable tokens of each position, or with a Markov head after each node */
    double *log_p;   /* [][n_ranks] */
} Dflash;

static void close_dflash(Drafter *drafter) {
    Dflash *d = (Dflash *)drafter;
    learned_linear_close(&d->learned, d->fc);
    markov_head_close(&d->markov);
    token_selector_close(&d->selector);
    entry_queue_close(&d->entries);
    one_layer_close(&d->layers);
    for (int32_t i = 0; i < MAX_LAYERS; i++) {
        LayerVectors *v = &d->vectors[i];
        float *const all[] = {v->attn_norm, v->q_norm, v->k_norm, v->sinks, v->ffn_norm, v->attn_conv, v->ffn_conv};
        for (size_t k = 0; k < sizeof all / sizeof *all; k++) mem_free(all[k]);
    }
    mem_free(d->context_norm);
    mem_free(d->output_norm);
    rope_free(&d->rope);
    own_embedding_close(&d->embedding);
    learned_release(&d->learned);
    mem_free(d);
}

/* ---- weights -------------------------------------------------------------------------------------------- */

/* Returns the first of two names that the file has as a tensor, or the first name. */
static const char *tensor_named(const LearnedDrafter *l, const char *name, const char *old) {
    return !drafter_file_has(&l->file, name) && drafter_file_has(&l->file, old) ? old : name;
}

static int read_layer_vectors(Dflash *d, int32_t i, fr_error *err) {
    LearnedDrafter *l = &d->learned;
    const Hparams *h = &d->layers.model.hparams;
    LayerVectors *v = &d->vectors[i];
    const struct {
        const char *name;
        int32_t n;
        bool is_optional;
        float **out;
    } vectors[] = {{DFLASH_ATTN_NORM, h->n_embd, false, &v->attn_norm},
                   {DFLASH_Q_NORM, h->head_dim, true, &v->q_norm},
                   {DFLASH_K_NORM, h->head_dim, true, &v->k_norm},
                   {DFLASH_SINKS, h->n_head, true, &v->sinks},
                   {DFLASH_FFN_NORM, h->n_embd, false, &v->ffn_norm}};
    int status = FR_OK;
    for (size_t k = 0; k < sizeof vectors / sizeof *vectors && !status; k++) {
        char name[64], old[64];
        snprintf(name, sizeof name, DFLASH_LAYER, i, vectors[k].name);
        snprintf(old, sizeof old, DFLASH_LAYER, i,
                 vectors[k].out == &v->ffn_norm ? "post_attention_norm" : vectors[k].name);
        const char *found = tensor_named(l, name, old);
        if (vectors[k].is_optional && !drafter_file_has(&l->file, found)) continue;
        status = drafter_file_vector(&l->file, found, vectors[k].n, vectors[k].out, err);
    }
    return status;
}

/* Reads the convolution around a part of a layer, `part` being attn or ffn, and the matrix that makes its kernels. */
static int read_conv(Dflash *d, int32_t i, const char *part, const char *kernels, const GgufTensor **matrix,
                     float **base, BlockConv *out, fr_error *err) {
    const DflashKeys *k = &d->keys;
    int64_t n = d->layers.model.hparams.n_embd;
    const int64_t dims[] = {n, k->conv_taps, 2};
    char name[64];
    if (k->conv_taps == 0) return FR_OK;
    if (n % k->conv_group)
        return error_set(err, FR_ERR_FORMAT, "%s: groups of %d channels do not divide a width of %lld evenly",
                         gguf_path(d->learned.file.gguf), k->conv_group, (long long)n);
    snprintf(name, sizeof name, DFLASH_CONV_BASE, i, part);
    int status = drafter_file_cube(&d->learned.file, name, dims, base, err);
    if (status) return status;
    *out = (BlockConv){.n_taps = k->conv_taps, .group = k->conv_group, .base = *base};
    snprintf(name, sizeof name, DFLASH_LAYER, i, kernels);
    return drafter_file_matrix(&d->learned.file, name, n, block_conv_kernels(out, n), matrix, err);
}

static int read_layer(Dflash *d, int32_t i, fr_error *err) {
    const Hparams *h = &d->layers.model.hparams;
    LayerVectors *v = &d->vectors[i];
    LayerSpec *spec = &d->specs[i];
    int64_t n = h->n_embd, q_dim = hparams_q_dim(h), kv_dim = hparams_kv_dim(h);
    const struct {
        const char *name;
        int64_t n_in, n_out;
        LayerMatrix to;
    } matrices[] = {
        {DFLASH_ATTN_Q, n, q_dim, MATRIX_Q},        {DFLASH_ATTN_K, n, kv_dim, MATRIX_K},
        {DFLASH_ATTN_V, n, kv_dim, MATRIX_V},       {DFLASH_ATTN_OUTPUT, q_dim, n, MATRIX_O},
        {DFLASH_FFN_GATE, n, h->n_ff, MATRIX_GATE}, {DFLASH_FFN_UP, n, h->n_ff, MATRIX_UP},
        {DFLASH_FFN_DOWN, h->n_ff, n, MATRIX_DOWN},
    };
    int status = read_layer_vectors(d, i, err);
    for (size_t k = 0; k < sizeof matrices / sizeof *matrices && !status; k++) {
        char name[64];
        snprintf(name, sizeof name, DFLASH_LAYER, i, matrices[k].name);
        status = drafter_file_matrix(&d->learned.file, name, matrices[k].n_in, matrices[k].n_out,
                                     &spec->matrices[matrices[k].to], err);
    }
    if (!status)
        status = read_conv(d, i, "attn", DFLASH_ATTN_CONV, &spec->matrices[MATRIX_ATTN_CONV], &v->attn_conv,
                           &spec->attn_conv, err);
    if (!status)
        status = read_conv(d, i, "ffn", DFLASH_FFN_CONV, &spec->matrices[MATRIX_FFN_CONV], &v->ffn_conv,
                           &spec->ffn_conv, err);
    spec->attn_norm = v->attn_norm;
    spec->q_norm = v->q_norm;
    spec->k_norm = v->k_norm;
    spec->sinks = v->sinks;
    spec->ffn_norm = v->ffn_norm;
    spec->mixer = d->keys.has_window[i] ? MIXER_WINDOW : MIXER_ATTENTION;
    spec->window = d->keys.has_window[i] ? d->keys.window : 0;
    return status;
}

static int read_shape(Dflash *d, fr_error *err) {
    LearnedDrafter *l = &d->learned;
    Hparams h;
    int status = dflash_read_keys(&h, &d->keys, &l->file, l->target, err);
    if (status) return status;
    d->layers.model = (Model){.gguf = l->file.gguf, .hparams = h, .n_ropes = 1, .token_embd = l->target->token_embd};
    return FR_OK;
}

/* Reads the layers, and everything around them. */
static int read_weights(Dflash *d, fr_error *err) {
    LearnedDrafter *l = &d->learned;
    Model *m = &d->layers.model;
    const Hparams *h = &m->hparams;
    int64_t n_streams = d->keys.streams.n * (int64_t)l->n_embd;
    const char *norm = tensor_named(l, DFLASH_CONTEXT_NORM,
                                    tensor_named(l, "hidden_norm.weight", "dflash_hidden_norm.weight"));
    const GgufTensor *fc;
    int status = drafter_file_vector(&l->file, norm, h->n_embd, &d->context_norm, err);
    if (!status) status = drafter_file_vector(&l->file, DFLASH_OUTPUT_NORM, h->n_embd, &d->output_norm, err);
    for (int32_t i = 0; i < h->n_layer && !status; i++) status = read_layer(d, i, err);
    if (!status) status = own_head_read(l, m, DFLASH_OUTPUT, err);
    if (!status) status = own_embedding_read(&d->embedding, l, DFLASH_EMBEDDING, h->n_embd, err);
    if (!status) status = markov_head_open(&d->markov, l, h->n_embd, h->n_vocab, err);
    if (!status) status = token_selector_open(&d->selector, l, h->n_embd, d->keys.selector_top, err);
    if (!status)
        status = drafter_file_matrix(&l->file, tensor_named(l, DFLASH_FC, "dflash_fc.weight"), n_streams, h->n_embd,
                                     &fc, err);
    if (!status) status = l->backend->linear_open(&d->fc, l->device, l->weights, fc, NULL, d->max_rows, err);
    if (!status) status = own_rope_open(&d->rope, l, &h->rope, DFLASH_ROPE_FACTORS, err);
    if (status) return status;
    m->layers = d->specs;
    m->ropes[0] = d->rope;
    m->output_norm = d->output_norm;
    return l->backend->submodel(&d->layers.weights, l->weights, m, err);
}

/* ---- opening -------------------------------------------------------------------------------------------- */

static LearnedDraftFn draft_together; /* below */

/* Returns whether the distribution of a position depends on the token before it. */
static bool is_conditioned(const Dflash *d) { return d->markov.rank || d->selector.rank; }

/* Sets how many tokens a path has, and how many sequences draft together. */
static int plan(Dflash *d, const DflashOptions *o, fr_error *err) {
    int32_t block = d->keys.block, n_predicted = d->keys.from_anchor ? block : block - 1, n = MAX_ROWS / block;
    int32_t max_group = n < d->learned.max_sequences ? n : d->learned.max_sequences;
    d->depth = o->depth && o->depth < n_predicted ? o->depth : n_predicted;
    d->n_ranks = d->keys.selector_top && d->keys.selector_top < o->top ? d->keys.selector_top : o->top;
    d->max_rows = max_group * block > MIN_ROWS ? max_group * block : MIN_ROWS;
    return learned_reserve_group(&d->learned, max_group, draft_together, err);
}

static int open_layers(Dflash *d, const DflashOptions *o, fr_error *err) {
    LearnedDrafter *l = &d->learned;
    int64_t ranks = (int64_t)(is_conditioned(d) ? TREE_MAX_NODES : d->depth) * d->n_ranks;
    EntryQueueOptions input = {.fc = d->fc,
                               .max_rows = d->max_rows,
                               .hidden_norm = d->context_norm,
                               .streams = {.only_stores = true}};
    const ArenaItem items[] = {ARENA_ITEM(&d->slots, d->max_rows), ARENA_ITEM(&d->logits, l->n_vocab),
                               ARENA_ITEM(&d->tokens, ranks), ARENA_ITEM(&d->log_p, ranks)};
    int status = stream_list_ask(&d->keys.streams, o->counts_outputs, l, &input.streams, err);
    if (!status) status = arena_take(&l->arena, items, ARENA_COUNT(items), "dflash", err);
    if (!status)
        status = one_layer_open_executor(&d->layers, l, l->n_ctx, d->keys.block, d->max_rows, l->max_group * d->depth,
                                         err);
    return status ? status : entry_queue_open(&d->entries, l, &d->layers, &input, err);
}

static int open_dflash(Drafter **out, const void *options, const DrafterEnv *env, fr_error *err) {
    const DflashOptions *o = options;
    Dflash *d = mem_calloc(1, sizeof *d);
    if (!d) return error_memory(err, "dflash", sizeof *d);
    d->learned.coupled = o->coupled;
    int status = learned_open(&d->learned, o->file, "dflash", env, err);
    if (!status) status = read_shape(d, err);
    if (!status) status = plan(d, o, err);
    if (!status) status = read_weights(d, err);
    if (!status) status = drafter_file_finish(&d->learned.file, err);
    if (!status) status = open_layers(d, o, err);
    d->learned.draws = o->draws && is_conditioned(d);
    if (!status && !d->learned.file.names_target)
        learned_note_quantisation(&d->learned, o->file, "a target of more bits accepts more");
    if (status) {
        close_dflash(&d->learned.base);
        return status;
    }
    *out = &d->learned.base;
    return FR_OK;
}

/* ---- observations ------------------------------------------------------------------------------------ */

static int begin(Drafter *drafter, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err) {
    int status = learned_begin(drafter, sequence, tokens, n, err);
    return status ? status : entry_queue_begin(&((Dflash *)drafter)->entries, sequence, err);
}

static int observe_prompt(Drafter *drafter, int32_t sequence, int64_t first, const float *const *hidden, int32_t n,
                          fr_error *err) {
    Dflash *d = (Dflash *)drafter;
    int status = learned_observe_prompt(drafter, sequence, first, hidden, n, err);
    const int32_t *tokens = d->learned.sequences[sequence].context + first;
    return status ? status : entry_queue_add(&d->entries, sequence, tokens, hidden, n, err);
}

static void take_over(Drafter *drafter, int32_t from, int32_t to, int32_t n) {
    Dflash *d = (Dflash *)drafter;
    if (to < d->learned.max_sequences) learned_take_over(drafter, from, to, n);
    entry_queue_take_over(&d->entries, from, to, n);
}

static int32_t n_held(const Drafter *drafter, int32_t sequence) {
    return entry_queue_n_held(&((const Dflash *)drafter)->entries, sequence);
}

static bool save(const Drafter *drafter, int32_t sequence, Buf *out) {
    return entry_queue_save(&((const Dflash *)drafter)->entries, sequence, out);
}

static int load(Drafter *drafter, int32_t sequence, ByteReader *in, fr_error *err) {
    return entry_queue_load(&((Dflash *)drafter)->entries, sequence, in, err);
}

static int observe_tree(Drafter *drafter, int32_t sequence, const VerifiedTree *v, fr_error *err) {
    int status = learned_observe_tree(drafter, sequence, v, err);
    return status ? status : entry_queue_add_step(&((Dflash *)drafter)->entries, sequence, v, err);
}

static void end(Drafter *drafter, int32_t sequence) {
    entry_queue_end(&((Dflash *)drafter)->entries, sequence);
    learned_end(drafter, sequence);
}

/* ---- a proposal --------------------------------------------------------------------------------- */

/* Returns how many positions of a member can be in its tree. */
static int32_t levels_of(const Dflash *d, const LearnedMember *m) {
    return m->budget < d->depth ? m->budget : d->depth;
}

/* Sets the inputs of the rows: the embeddings of their tokens. */
static void embed_slots(Dflash *d, int32_t n_rows) {
    Buffer *inputs = d->entries.inputs;
    int64_t n = d->entries.shape->n_embd;
    float scale = d->learned.target->hparams.embedding_scale;
    if (d->embedding.memory)
        for (int32_t i = 0; i < n_rows; i++) embedding_row(&d->embedding.tensor, d->slots[i], inputs->floats + i * n);
    else learned_embed(&d->learned, d->slots, n_rows, (Slice){inputs, 0});
    if (!d->embedding.memory) buffer_pull(inputs, 0, n_rows * n);
    for (int64_t i = 0; scale != 1 && i < n_rows * n; i++) inputs->floats[i] *= scale;
    for (int32_t i = 0; i < n_rows; i++) d->entries.rows[i].input = inputs->floats + i * n;
}

/* Runs the block of each member. */
static int run_blocks(Dflash *d, const LearnedMember *members, int32_t n, fr_error *err) {
    int32_t block = d->keys.block, first = d->keys.from_anchor ? 0 : 1;
    int status = FR_OK;
    for (int32_t r = 0; r < n && !status; r++) {
        const EntrySequence *entries = &d->entries.sequences[members[r].sequence];
        int32_t n_levels = levels_of(d, &members[r]);
        status = entry_queue_reserve(&d->entries, entries, block, err);
        for (int32_t i = 0; i < block; i++) {
            int32_t row = r * block + i;
            d->slots[row] = i ? d->keys.mask : members[r].tree->nodes[0].token;
            d->entries.rows[row] = (Row){.sequence = entries->kv,
                                         .parent = i ? row - 1 : -1,
                                         .in_block = !d->keys.is_causal,
                                         .want_logits = i >= first && i < first + n_levels};
        }
    }
    if (status) return status;
    embed_slots(d, n * block);
    return executor_forward(d->layers.executor, d->entries.rows, n * block, err);
}

/* Finds the `n_most` tokens that are most probable at a position after a path, best first, from d->logits. They go to
 * place i of d->tokens and d->log_p. `path` is NULL if the tokens on it are unknown. Returns their number. */
static int32_t find_top(Dflash *d, const LearnedMember *m, const int32_t *path, int32_t n_path, int32_t i,
                        int32_t n_most) {
    return learned_top(&d->learned, m->sequence, path, n_path, d->logits, n_most, d->tokens + i * d->n_ranks,
                       d->log_p + i * d->n_ranks);
}

/* Grows the tree of products. Position i is row `first` + i. */
static void grow_products(Dflash *d, const LearnedMember *m, int32_t first) {
    int32_t n_tokens[MAX_BLOCK], n_levels = levels_of(d, m);
    for (int32_t i = 0; i < n_levels; i++) {
        learned_spread(&d->learned, executor_logits(d->layers.executor, first + i), d->logits);
        n_tokens[i] = find_top(d, m, NULL, i, i, d->n_ranks);
    }
    const ProductRanks ranks = {.n_levels = n_levels,
                                .n_ranks = d->n_ranks,
                                .tokens = d->tokens,
                                .log_p = d->log_p,
                                .n_tokens = n_tokens};
    learned_grow_products(&ranks, m->budget, d->learned.base.source, m->tree);
}

/* Finds at most n_most children for a node, with the Markov head or the selector. Returns their number. */
static int32_t expand(Dflash *d, const LearnedMember *m, int32_t first, int32_t node, int32_t n_most) {
    const Executor *e = d->layers.executor;
    int32_t path[TREE_MAX_NODES], n_path = learned_path(m->tree, node, path), token = m->tree->nodes[node].token;
    const float *hidden = executor_hidden(e, first + n_path);
    const float *logits = executor_logits(e, first + n_path);
    if (d->markov.rank) logits = markov_head_logits(&d->markov, token, hidden, logits);
    learned_spread(&d->learned, logits, d->logits);
    if (d->selector.rank) token_selector_apply(&d->selector, token, hidden, d->logits);
    int32_t n = find_top(d, m, path, n_path, node, n_most);
    if (d->markov.rank &&
        !d->learned.sequences[m->sequence].is_drawing) /* drawn tokens have psi, which is not an estimate */
        markov_head_correct(&d->markov, token, hidden, d->log_p + node * d->n_ranks, n);
    return n;
}

/* A tree that grows with the Markov head or the selector, best first. A node that is not expanded has as much as its
 * best child can have. */
typedef struct Growth {
    double log_p[TREE_MAX_NODES];       /* of the path; psi if tokens are drawn */
    int32_t n_children[TREE_MAX_NODES]; /* that the node offers; NOT_EXPANDED */
    int32_t next[TREE_MAX_NODES];       /* how many of them are in the tree */
} Growth;
enum { NOT_EXPANDED = -1 };

static double log_p_of_next(const Dflash *d, const Growth *g, int32_t node) {
    return g->log_p[node] + (g->n_children[node] < 0 ? 0 : d->log_p[node * d->n_ranks + g->next[node]]);
}

/* Returns the node that is expanded or gets a child next; -1: there is none. */
static int32_t best_node(const Dflash *d, const Growth *g, const Tree *t, int32_t n_levels) {
    int32_t best = -1;
    double best_log_p = -INFINITY;
    for (int32_t i = 0; i < t->n; i++) {
        if (t->nodes[i].depth == n_levels || g->next[i] == g->n_children[i]) continue;
        double log_p = log_p_of_next(d, g, i);
        if (log_p > best_log_p) best = i, best_log_p = log_p;
    }
    return best;
}

static void add_child(const Dflash *d, Growth *g, Tree *t, int32_t node) {
    double log_p = log_p_of_next(d, g, node);
    int32_t token = d->tokens[node * d->n_ranks + g->next[node]++];
    int32_t child = tree_add(t, node, token, (float)math_exp(log_p), d->learned.base.source);
    g->log_p[child] = log_p;
    g->n_children[child] = NOT_EXPANDED;
    g->next[child] = 0;
}

/* Grows such a tree: of the children that nodes offer by rank, the one with the greatest product is
 * added. A child is at most as probable as its parent, so a node is expanded only when it is the most probable one of
 * all. The same holds for psi of drawn tokens, so that the tree is the one that learned_prune would leave of a larger
 * one. For a rule that looks at whole groups, a node gets all its children when it is expanded. */
static void grow_conditioned(Dflash *d, const LearnedMember *m, int32_t first) {
    Growth g = {.n_children = {NOT_EXPANDED}};
    Tree *t = m->tree;
    int32_t n_levels = levels_of(d, m), node;
    while (t->n - 1 < m->budget && t->n < TREE_MAX_NODES && (node = best_node(d, &g, t, n_levels)) >= 0) {
        if (g.n_children[node] >= 0) {
            add_child(d, &g, t, node);
            continue;
        }
        int32_t group = learned_group_size(&d->learned, m->sequence, m->budget, t->nodes[node].depth);
        int32_t left = m->budget - (t->n - 1), n_most = d->n_ranks;
        if (group && group < n_most) n_most = group;
        if (group && left < n_most) n_most = left;
        g.n_children[node] = expand(d, m, first, node, n_most);
        while (group && g.next[node] < g.n_children[node] && t->n < TREE_MAX_NODES) add_child(d, &g, t, node);
    }
    learned_declare(&d->learned, m->sequence, t);
}

static int draft_together(LearnedDrafter *learned, const LearnedMember *members, int32_t n, fr_error *err) {
    Dflash *d = (Dflash *)learned;
    int32_t sequences[MAX_ROWS] = {0};
    for (int32_t r = 0; r < n; r++) sequences[r] = members[r].sequence;
    int status = entry_queue_run(&d->entries, sequences, n, err);
    if (!status) status = run_blocks(d, members, n, err);
    for (int32_t r = 0; r < n && !status; r++) {
        (is_conditioned(d) ? grow_conditioned : grow_products)(d, &members[r],
                                                               r * d->keys.block + !d->keys.from_anchor);
        executor_commit(d->layers.executor, d->entries.sequences[sequences[r]].kv, NULL, 0); /* forgets the block */
    }
    return status;
}

extern const DrafterClass draft_dflash_class;
const DrafterClass draft_dflash_class = {
    .name = "dflash",
    .summary = "a few layers predict a block of tokens at once from several layers of the target: DFlash",
    .option_table = option_table,
    .options_size = sizeof(DflashOptions),
    .needs_hidden = true,
    .open = open_dflash,
    .close = close_dflash,
    .set_sampling = learned_set_sampling,
    .begin = begin,
    .observe_prompt = observe_prompt,
    .take_over = take_over,
    .n_held = n_held,
    .save = save,
    .load = load,
    .observe_tree = observe_tree,
    .observe = learned_observe,
    .propose = learned_propose,
    .end = end,
    .notice = learned_notice,
};

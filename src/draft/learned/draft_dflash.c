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
 * the older architectures dflash-draft and qwen35-dflash-draft. The list of layers is as explained in draft_eagle3.c.
 *
 * Cost: a forward of the layers over the block, whatever the depth; an LM head for each position that the budget can
 * reach. When it loses: where a token depends strongly on the one before it, which later slots do not know. Proof:
 * tests/draft/test_draft_dflash.c, against the layers in double precision. */
#include "draft/learned/dflash.h"

#include "base/mem.h"

enum {
    MAX_ROWS = 128, /* of all blocks together, because each row may have logits */
    MIN_ROWS = 64,  /* of a piece of a prompt */
};

typedef enum Anchor { ANCHOR_OF_FILE, ANCHOR_PREDICTS, ANCHOR_IS_SILENT } Anchor;

typedef struct DflashOptions {
    const char *file;
    bool coupled, draws, counts_outputs;
    int32_t depth, top;
    Anchor anchor;
} DflashOptions;

static const Option option_table[] = {
    LEARNED_OPTION_FILE(DflashOptions),
    {.key = "depth",
     OPT_INT(DflashOptions, depth, 0, DFLASH_MAX_SLOTS),
     .default_value = "0",
     .help = "maximal length of a path; 0: as many tokens as a block predicts"},
    {.key = "top",
     OPT_INT(DflashOptions, top, 1, TOP_K_MAX),
     .default_value = "10",
     .help = "tokens of each position that are candidates for the tree"},
    STREAM_OPTION_LAYERS(DflashOptions),
    {.key = "anchor",
     OPT_CHOICE(DflashOptions, anchor, "file", "predicts", "silent"),
     .default_value = "file",
     .help = "whether the first slot of a block, that of the pending token, predicts a token: as the file says, which "
             "some files do not; the wrong one lowers the acceptance to almost nothing"},
    LEARNED_OPTION_COUPLED(DflashOptions),
    {.key = "draw",
     OPT_FLAG(DflashOptions, draws),
     .default_value = "1",
     .help = "rules recursive and transport, with a file that has a Markov head or a selector: 1: draw the tokens at "
             "random; 0: rank them by their probability"},
    {.key = NULL},
};

static void close_dflash(Drafter *drafter) {
    Dflash *d = (Dflash *)drafter;
    entry_queue_close(&d->entries);
    dflash_close_weights(d);
    learned_release(&d->learned);
    mem_free(d);
}

/* ---- opening -------------------------------------------------------------------------------------------- */

static LearnedDraftFn draft_together; /* below */

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
    int64_t ranks = (int64_t)(dflash_is_conditioned(d) ? TREE_MAX_NODES : d->depth) * d->n_ranks;
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
    if (!status) status = dflash_read_shape(d, err);
    if (o->anchor != ANCHOR_OF_FILE) d->keys.from_anchor = o->anchor == ANCHOR_PREDICTS;
    if (!status) status = plan(d, o, err);
    if (!status) status = dflash_read_weights(d, err);
    if (!status) status = drafter_file_finish(&d->learned.file, err);
    if (!status) status = open_layers(d, o, err);
    d->learned.draws = o->draws && dflash_is_conditioned(d);
    if (!status && !d->learned.file.names_target)
        learned_note_quantisation(&d->learned, o->file, "a target of more bits accepts more");
    if (status) {
        close_dflash(&d->learned.base);
        return status;
    }
    *out = &d->learned.base;
    return FR_OK;
}

/* ---- a proposal --------------------------------------------------------------------------------- */

/* Sets the inputs of the rows: the embeddings of their tokens. */
static void embed_slots(Dflash *d, int32_t n_rows) {
    Buffer *inputs = d->entries.inputs;
    int64_t n = d->entries.shape->n_embd;
    float scale = d->keys.embedding_scale;
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
        int32_t n_levels = dflash_n_levels(d, &members[r]);
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

static int draft_together(LearnedDrafter *learned, const LearnedMember *members, int32_t n, fr_error *err) {
    Dflash *d = (Dflash *)learned;
    int32_t sequences[MAX_ROWS] = {0};
    for (int32_t r = 0; r < n; r++) sequences[r] = members[r].sequence;
    int status = entry_queue_run(&d->entries, sequences, n, err);
    if (!status) status = run_blocks(d, members, n, err);
    for (int32_t r = 0; r < n && !status; r++) {
        dflash_grow(d, &members[r], r * d->keys.block + !d->keys.from_anchor);
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
    .open = open_dflash,
    .close = close_dflash,
    ENTRY_CALLS,
};

/* draft_medusa.c - the drafter `medusa`: several heads, each of which predicts one position ahead (Cai et al. 2024,
 * "Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads", arXiv 2401.10774).
 *
 * The problem. The target's hidden state h at a token determines the next token. It also contains information about
 * the tokens after that, which plain decoding does not use.
 *
 * The idea. Head i (from 0) is trained to predict the token 2 + i positions on from h and nothing else. f_i(h) is a
 * number of blocks x + SiLU(A x + a), then a matrix [V][H], which is the head's own or the target's LM head, depending
 * on the file. h belongs to the token before the pending one, so head i predicts the tokens at depth i + 1 of the tree.
 * All heads read the same h: there is no recurrence, and each head is one product for all sequences.
 *
 * The tree. The heads are independent of each other, so a path's probability is the product of its tokens'
 * probabilities, and the token of rank r at depth i + 1 has the same probability below every node. The tree of the
 * `budget` nodes with the greatest products is grown best first: each node offers its next child, by rank.
 *
 *     head 0   cat .6  dog .3         the ── cat .6 ── sat .42       the four greatest products;
 *     head 1   sat .7  ran .2          └─ dog .3 ── sat .21          the next would be cat ran .12
 *
 * The paper's trees are fixed in advance from the average accuracy of each rank (tree=static; tree_shapes.c): the
 * accuracies measured in training, which the file holds, or a prior. tree=dynamic, the default, makes the same choice
 * anew for each h. Nothing is drawn at random: under a ratio rule all groups are points. The paper's typical
 * acceptance is the rule `typical` (rule_typical.c).
 *
 * Cost: as many LM heads as heads. When it loses: from the second depth on, where the token depends strongly on the one
 * before. Proof: tests/draft/test_draft_medusa.c, against all products of the heads' distributions in double
 * precision. */
#include "base/math_functions.h"
#include "base/mem.h"
#include "draft/learned/learned.h"
#include "draft/learned/learned_files.h"
#include "tree/tree_shapes.h"
#include "draft/feedback.h"

#include <stdio.h>
#include <string.h>

enum { MAX_ROWS = 64 };

typedef struct Head {
    Linear *blocks[MEDUSA_MAX_BLOCKS], *output;
} Head;

typedef struct Medusa {
    LearnedDrafter learned;
    int32_t n_heads, n_blocks, n_ranks, max_rows;
    bool has_own_output, is_static;
    StaticTree shape; /* the shape, if the tree is static */
    Head heads[MEDUSA_MAX_HEADS];
    Buffer *x, *logits; /* [max_rows] rows of H, V */
    int32_t *tokens;    /* [max_rows][n_heads][n_ranks] the most probable tokens of each head, best first */
    double *log_p;      /* [max_rows][n_heads][n_ranks] */
    int32_t *n_tokens;  /* [max_rows][n_heads] */
} Medusa;

typedef struct MedusaOptions {
    const char *file;
    bool coupled;
    int32_t top;
    bool is_static;
} MedusaOptions;

static const Option option_table[] = {
    LEARNED_OPTION_FILE(MedusaOptions),
    {.key = "top",
     OPT_INT(MedusaOptions, top, 1, TOP_K_MAX),
     .default_value = "10",
     .help = "tokens of each head that are candidates for the tree"},
    {.key = "tree",
     OPT_CHOICE(MedusaOptions, is_static, "dynamic", "static"),
     .default_value = "dynamic",
     .help = "dynamic: the shape follows the heads' probabilities; static: it is fixed by the average accuracy of each "
             "head and rank"},
    LEARNED_OPTION_COUPLED(MedusaOptions),
    {.key = NULL},
};

/* ---- opening ------------------------------------------------------------------------------------ */

static void close_medusa(Drafter *drafter) {
    Medusa *d = (Medusa *)drafter;
    for (int32_t i = 0; i < MEDUSA_MAX_HEADS; i++) {
        for (int32_t k = 0; k < MEDUSA_MAX_BLOCKS; k++) learned_linear_close(&d->learned, d->heads[i].blocks[k]);
        learned_linear_close(&d->learned, d->heads[i].output);
    }
    learned_release(&d->learned);
    mem_free(d);
}

static int read_head(Medusa *d, int32_t i, fr_error *err) {
    LearnedDrafter *l = &d->learned;
    char name[64];
    int status = FR_OK;
    for (int32_t k = 0; k < d->n_blocks && !status; k++) {
        snprintf(name, sizeof name, MEDUSA_BLOCK, i, k);
        status = learned_linear_open(l, name, l->n_embd, l->n_embd, true, d->max_rows, &d->heads[i].blocks[k], err);
    }
    if (status || !d->has_own_output) return status;
    snprintf(name, sizeof name, MEDUSA_OUTPUT, i);
    return learned_output_open(l, name, l->n_embd, false, d->max_rows, &d->heads[i].output, err);
}

/* Builds the shape of a static tree, from the accuracies in the file or a prior. */
static int read_accuracy(Medusa *d, fr_error *err) {
    static const char name[] = MEDUSA_ACCURACY;
    float *table = NULL;
    int64_t n_ranks = d->n_ranks;
    bool is_measured = drafter_file_has(&d->learned.file, name);
    int status = is_measured ? drafter_file_table(&d->learned.file, name, d->n_heads, &n_ranks, &table, err) : FR_OK;
    int32_t n = n_ranks < d->n_ranks ? (int32_t)n_ranks : d->n_ranks;
    double chance[MEDUSA_MAX_HEADS * TOP_K_MAX];
    static_tree_prior(chance, d->n_heads, n);
    for (int32_t i = 0; i < d->n_heads * n && is_measured && !status; i++) {
        chance[i] = (double)table[i / n * n_ranks + i % n];
        if (!(chance[i] >= 0 && chance[i] <= 1))
            status = error_set(err, FR_ERR_FORMAT, "%s: tensor %s holds %g, but an accuracy must be from 0 to 1",
                               gguf_path(d->learned.file.gguf), name, chance[i]);
    }
    mem_free(table);
    if (!status) static_tree_build(&d->shape, chance, d->n_heads, n, INT32_MAX);
    return status;
}

static int read_weights(Medusa *d, fr_error *err) {
    static const char *const outputs[] = {"own", "target", NULL};
    int output = 0,
        status = drafter_file_int(&d->learned.file, MEDUSA_KEY_HEAD_COUNT, 1, MEDUSA_MAX_HEADS, &d->n_heads, err);
    if (!status)
        status = drafter_file_int(&d->learned.file, MEDUSA_KEY_BLOCK_COUNT, 0, MEDUSA_MAX_BLOCKS, &d->n_blocks, err);
    if (!status) status = drafter_file_choice(&d->learned.file, MEDUSA_KEY_OUTPUT, outputs, &output, err);
    d->has_own_output = output == 0;
    for (int32_t i = 0; i < d->n_heads && !status; i++) status = read_head(d, i, err);
    if (!status) status = read_accuracy(d, err);
    return status ? status : drafter_file_finish(&d->learned.file, err);
}

static LearnedDraftFn draft_together; /* below */

static int allocate(Medusa *d, fr_error *err) {
    LearnedDrafter *l = &d->learned;
    int64_t rows = d->max_rows, ranks = rows * d->n_heads * d->n_ranks;
    const ArenaItem items[] = {ARENA_ITEM(&d->tokens, ranks), ARENA_ITEM(&d->log_p, ranks),
                               ARENA_ITEM(&d->n_tokens, rows * d->n_heads)};
    const LearnedBuffer buffers[] = {{&d->x, rows * l->n_embd}, {&d->logits, rows * l->n_vocab}};
    int status = arena_take(&l->arena, items, ARENA_COUNT(items), "medusa", err);
    if (!status) status = learned_open_buffers(l, buffers, ARENA_COUNT(buffers), err);
    if (!status) status = learned_head_reserve(l, rows, err);
    return status ? status : learned_reserve_group(l, d->max_rows, draft_together, err);
}

static int open_medusa(Drafter **out, const void *options, const DrafterEnv *env, fr_error *err) {
    const MedusaOptions *o = options;
    Medusa *d = mem_calloc(1, sizeof *d);
    if (!d) return error_memory(err, "medusa", sizeof *d);
    d->n_ranks = o->top;
    d->is_static = o->is_static;
    d->max_rows = env->max_sequences < MAX_ROWS ? env->max_sequences : MAX_ROWS;
    d->learned.coupled = o->coupled;
    int status = learned_open(&d->learned, o->file, "medusa", env, err);
    if (!status) status = read_weights(d, err);
    if (!status) status = allocate(d, err);
    if (status) {
        close_medusa(&d->learned.base);
        return status;
    }
    *out = &d->learned.base;
    return FR_OK;
}

/* ---- a proposal --------------------------------------------------------------------------------- */

/* Returns the index of rank 0 of a head in d->tokens and d->log_p, for a row. */
static int64_t ranks_at(const Medusa *d, int32_t row, int32_t head) {
    return ((int64_t)row * d->n_heads + head) * d->n_ranks;
}

/* Finds the tokens that head i makes most probable, for the hidden state of each member. */
static void run_head(Medusa *d, int32_t i, const LearnedMember *members, int32_t n) {
    LearnedDrafter *l = &d->learned;
    const Head *head = &d->heads[i];
    for (int32_t r = 0; r < n; r++) learned_write(d->x, (int64_t)r * l->n_embd, members[r].hidden, l->n_embd);
    for (int32_t k = 0; k < d->n_blocks; k++) learned_linear(l, head->blocks[k], LINEAR_ADD_SILU, d->x, n, d->x);
    if (d->has_own_output) learned_output(l, head->output, d->x, n, d->logits);
    else learned_head(l, d->x, n, d->logits);
    for (int32_t r = 0; r < n; r++)
        d->n_tokens[r * d->n_heads + i] = learned_top(l, members[r].sequence, NULL, i,
                                                      d->logits->floats + (int64_t)r * l->n_vocab, d->n_ranks,
                                                      d->tokens + ranks_at(d, r, i), d->log_p + ranks_at(d, r, i));
}

/* Drafts the `budget` nodes of greatest probability. */
static void grow_tree(const Medusa *d, int32_t row, int32_t budget, Tree *t) {
    const ProductRanks ranks = {.n_levels = d->n_heads,
                                .n_ranks = d->n_ranks,
                                .tokens = d->tokens + ranks_at(d, row, 0),
                                .log_p = d->log_p + ranks_at(d, row, 0),
                                .n_tokens = d->n_tokens + row * d->n_heads};
    learned_grow_products(&ranks, budget, d->learned.base.source, t);
}

/* Drafts the first `budget` nodes of the shape, with this row's tokens. Paths end at a head that has no tokens because
 * its logits are not finite. */
static void fill_tree(const Medusa *d, int32_t row, int32_t budget, Tree *t) {
    int32_t node_of[TREE_MAX_NODES] = {0};
    double log_p[TREE_MAX_NODES] = {0};
    for (int32_t i = 1; i < d->shape.n && i <= budget; i++) {
        const StaticNode *s = &d->shape.nodes[i];
        int64_t at = ranks_at(d, row, s->depth - 1) + s->rank;
        node_of[i] = -1;
        if (node_of[s->parent] < 0 || s->rank >= d->n_tokens[row * d->n_heads + s->depth - 1]) continue;
        log_p[i] = log_p[s->parent] + d->log_p[at];
        node_of[i] = tree_add(t, node_of[s->parent], d->tokens[at], (float)math_exp(log_p[i]), d->learned.base.source);
    }
}

static int draft_together(LearnedDrafter *learned, const LearnedMember *members, int32_t n, fr_error *err) {
    (void)err;
    Medusa *d = (Medusa *)learned;
    for (int32_t i = 0; i < d->n_heads; i++) run_head(d, i, members, n);
    for (int32_t r = 0; r < n; r++) (d->is_static ? fill_tree : grow_tree)(d, r, members[r].budget, members[r].tree);
    return FR_OK;
}

extern const DrafterClass draft_medusa_class;
const DrafterClass draft_medusa_class = {
    .name = "medusa",
    .summary = "heads on the target's hidden state, trained for it, each of which predicts one position ahead",
    .option_table = option_table,
    .options_size = sizeof(MedusaOptions),
    .needs_hidden = true,
    .open = open_medusa,
    .close = close_medusa,
    .set_sampling = learned_set_sampling,
    .begin = learned_begin,
    .observe_prompt = learned_observe_prompt,
    .take_over = learned_take_over,
    .observe_tree = learned_observe_tree,
    .observe = learned_observe,
    .propose = learned_propose,
    .end = learned_end,
};

/* draft_space.c - the drafter `space`: mask tokens that the target reads together with the candidates it verifies (Yi
 * et al. 2024, "Generation Meets Verification: Accelerating Large Language Model Inference with Smart Parallel
 * Auto-Correct Decoding", SPACE).
 *
 * The problem. A drafter costs forwards of its own. Could the target draft in the same forward in which it verifies?
 *
 * The idea: semi-autoregressive decoding. After a token the target reads k masks, vectors that are no token's
 * embedding, and is trained to predict at mask s the token s places further on than the one that it predicts at the
 * token itself. The last accepted token is not known beforehand, so a group of masks follows each candidate and the
 * pending token. Only the group after the last accepted node is used. One pass therefore verifies the last candidates,
 * corrects the first wrong one ("auto-correct"), and generates the next ones.
 *
 *     the ─┬─ cat ─┬─ sat ── m1 ── m2        tree: the, cat, sat; six masks. Accepted: cat, and then the target's own
 *          │       └─ m1 ── m2               choice ran. m1 after cat drafts what follows ran, m2 what follows that.
 *          └─ m1 ── m2
 *
 * Masks are rows of the target with an input of their own (DrafterClass.add_rows). No node sees them, and they are not
 * in the tree, so no verification rule can accept one.
 *
 * Differences from the paper. (1) There the whole target is fine-tuned, which changes its text and with it every other
 * drafter trained for it. Here the target stays as it is, bit for bit, and the masks are trained for it: one vector for
 * each place instead of one for all, as in PaSS (Monea et al. 2023) and BiTA (Lin et al. 2024), and a residual block x
 * + SiLU(A x + a) on the target's hidden state at mask s, as in Medusa. A frozen target was never taught to predict
 * ahead, and its masks predict worse than those of a target that was. (2) The paper drafts a chain; here the best
 * products of the masks' top tokens become a tree (learned_grow_products), and ranks follow the target's noise
 * (learned_top.c). (3) The paper gives k masks to each of k + 1 nodes. Here candidates and masks share --tree-budget,
 * which counts rows, according to the tokens that each is expected to bring. (4) The paper's sampling is not exact,
 * because it draws the corrected token from p and not from the residual; here only the verification rule chooses
 * tokens.
 *
 * Only the hidden state of a mask's row is read. The LM head runs at the next proposal, over the masks after the last
 * accepted node: k rows instead of one for each mask.
 *
 * A request begins without candidates: its first step has the pending token and its masks. If a step had no masks after
 * the last accepted node, the next one has no candidates. A request with an automatic budget never drafts, since the
 * budget is chosen by acceptance, and rows of masks have none.
 *
 * Cost: rows of the target, and an LM head over k rows. When it loses: where rows are not free; and a mask does not
 * know which token was chosen before its own, as in medusa. Proof: tests/draft/test_draft_space.c. */
#include "base/mem.h"
#include "draft/learned/learned.h"
#include "draft/learned/learned_files.h"
#include "tree/tree_shapes.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ROWS = 64, MAX_CANDIDATES = 64 };

/* The masks of a sequence. */
typedef struct SpaceSequence {
    int32_t n_ready;              /* masks after the last accepted node whose hidden states are known */
    float *hidden;                /* [n_masks][n_embd] */
    int32_t n_rows;               /* masks in this step */
    int32_t node[TREE_MAX_NODES]; /* [n_rows] the node that each belongs to */
    int32_t mask[TREE_MAX_NODES];
} SpaceSequence;

typedef struct Space {
    LearnedDrafter learned;
    int32_t n_masks, n_blocks, n_ranks, max_rows;
    double gain[SPACE_MAX_MASKS]; /* tokens that mask j is expected to add to a step (mask_plan) */
    float *masks;                 /* [n_masks][n_embd] */
    Linear *blocks[SPACE_MAX_MASKS][SPACE_MAX_BLOCKS];
    SpaceSequence *sequences; /* [max_sequences] */
    PlannedMask *plan;        /* [TREE_MAX_NODES * n_masks] */
    Buffer *x, *logits;       /* [max_rows] rows of H, V */
    int32_t *row_of;          /* [max_rows] the member of each row */
    int32_t *tokens;          /* [max_rows][n_masks][n_ranks] the most probable tokens at each mask, best first */
    double *log_p;            /* [max_rows][n_masks][n_ranks] */
    int32_t *n_tokens;        /* [max_rows][n_masks] */
} Space;

typedef struct SpaceOptions {
    const char *file;
    bool coupled;
    int32_t top;
} SpaceOptions;

static const Option option_table[] = {
    LEARNED_OPTION_FILE(SpaceOptions),
    {.key = "top",
     OPT_INT(SpaceOptions, top, 1, TOP_K_MAX),
     .default_value = "10",
     .help = "tokens of each mask that are candidates for the tree"},
    LEARNED_OPTION_COUPLED(SpaceOptions),
    {.key = NULL},
};

/* ---- opening ------------------------------------------------------------------------------------ */

static void close_space(Drafter *drafter) {
    Space *d = (Space *)drafter;
    for (int32_t i = 0; i < SPACE_MAX_MASKS; i++)
        for (int32_t k = 0; k < SPACE_MAX_BLOCKS; k++) learned_linear_close(&d->learned, d->blocks[i][k]);
    mem_free(d->masks);
    learned_release(&d->learned);
    mem_free(d);
}

static int read_masks(Space *d, fr_error *err) {
    LearnedDrafter *l = &d->learned;
    int64_t n;
    int status = drafter_file_table(&l->file, SPACE_MASKS, d->n_masks, &n, &d->masks, err);
    if (status || n == l->n_embd) return status;
    return error_set(err, FR_ERR_FORMAT, "%s: tensor " SPACE_MASKS " has rows of %lld numbers instead of %d",
                     gguf_path(l->file.gguf), (long long)n, l->n_embd);
}

/* A mask's token is accepted if it and all tokens before it are right. The two best tokens of each mask are counted,
 * because they have a chance of getting a row. */
static void set_gain(Space *d, const float *accuracy, int64_t n_ranks) {
    double chance[SPACE_MAX_MASKS], all = 1;
    static_tree_prior(chance, d->n_masks, 1);
    for (int32_t i = 0; i < d->n_masks; i++) {
        if (accuracy) chance[i] = (double)accuracy[i * n_ranks];
        if (accuracy && n_ranks > 1) chance[i] += (double)accuracy[i * n_ranks + 1];
        d->gain[i] = all *= chance[i] < 1 ? chance[i] : 1;
    }
}

static int read_accuracy(Space *d, fr_error *err) {
    static const char name[] = SPACE_ACCURACY;
    float *table = NULL;
    int64_t n_ranks = 0;
    int status = FR_OK;
    if (drafter_file_has(&d->learned.file, name))
        status = drafter_file_table(&d->learned.file, name, d->n_masks, &n_ranks, &table, err);
    for (int64_t i = 0; i < d->n_masks * n_ranks && !status; i++)
        if (!(table[i] >= 0 && table[i] <= 1))
            status = error_set(err, FR_ERR_FORMAT, "%s: tensor %s holds %g, but an accuracy must be from 0 to 1",
                               gguf_path(d->learned.file.gguf), name, (double)table[i]);
    if (!status) set_gain(d, table, n_ranks);
    mem_free(table);
    return status;
}

static int read_weights(Space *d, fr_error *err) {
    LearnedDrafter *l = &d->learned;
    char name[64];
    int status = drafter_file_int(&l->file, SPACE_KEY_MASK_COUNT, 1, SPACE_MAX_MASKS, &d->n_masks, err);
    if (!status) status = drafter_file_int(&l->file, SPACE_KEY_BLOCK_COUNT, 0, SPACE_MAX_BLOCKS, &d->n_blocks, err);
    if (!status) status = read_masks(d, err);
    for (int32_t i = 0; i < d->n_masks * d->n_blocks && !status; i++) {
        int32_t mask = i / d->n_blocks, k = i % d->n_blocks;
        snprintf(name, sizeof name, SPACE_BLOCK, mask, k);
        status = learned_linear_open(l, name, l->n_embd, l->n_embd, true, d->max_rows, &d->blocks[mask][k], err);
    }
    if (!status) status = read_accuracy(d, err);
    return status ? status : drafter_file_finish(&l->file, err);
}

static int allocate(Space *d, fr_error *err) {
    LearnedDrafter *l = &d->learned;
    int64_t rows = d->max_rows, ranks = rows * d->n_masks * d->n_ranks, n = l->max_sequences;
    float *hidden;
    const ArenaItem items[] = {ARENA_ITEM(&d->sequences, n),
                               ARENA_ITEM(&hidden, n * d->n_masks * l->n_embd),
                               ARENA_ITEM(&d->plan, TREE_MAX_NODES * d->n_masks),
                               ARENA_ITEM(&d->row_of, rows),
                               ARENA_ITEM(&d->tokens, ranks),
                               ARENA_ITEM(&d->log_p, ranks),
                               ARENA_ITEM(&d->n_tokens, rows * d->n_masks)};
    const LearnedBuffer buffers[] = {{&d->x, rows * l->n_embd}, {&d->logits, rows * l->n_vocab}};
    int status = arena_take(&l->arena, items, ARENA_COUNT(items), "space", err);
    if (!status) status = learned_open_buffers(l, buffers, ARENA_COUNT(buffers), err);
    for (int32_t i = 0; i < l->max_sequences && !status; i++)
        d->sequences[i].hidden = hidden + (int64_t)i * d->n_masks * l->n_embd;
    if (!status) status = learned_head_reserve(l, rows, err);
    return status ? status : learned_reserve_group(l, d->max_rows, NULL, err);
}

static int open_space(Drafter **out, const void *options, const DrafterEnv *env, fr_error *err) {
    const SpaceOptions *o = options;
    Space *d = mem_calloc(1, sizeof *d);
    if (!d) return error_memory(err, "space", sizeof *d);
    d->n_ranks = o->top;
    d->max_rows = env->max_sequences < MAX_ROWS ? env->max_sequences : MAX_ROWS;
    d->learned.coupled = o->coupled;
    int status = learned_open(&d->learned, o->file, "space", env, err);
    if (!status) status = read_weights(d, err);
    if (!status) status = allocate(d, err);
    if (status) {
        close_space(&d->learned.base);
        return status;
    }
    *out = &d->learned.base;
    return FR_OK;
}

/* ---- candidates now, or masks for the next step? ------------------------------------------------ */

/* The problem. A row of the target either verifies a candidate or reads a mask. Masks are useful only after the node
 * that turns out to be the last accepted one, which nobody knows beforehand. SPACE gives every node of its chain a full
 * group: k candidates and (k + 1) k masks.
 *
 * The idea: measure both in tokens. A candidate adds p_accept tokens to this step. Mask j after node v adds gain[j]
 * tokens to the next step if v is the last accepted node, which has the probability
 *
 *     last(v) = p_accept(v) - sum over its children of p_accept
 *
 * so it is worth last(v) gain[j]. For a given set of candidates the best masks are those of greatest value; the number
 * of candidates is the one with the greatest sum of both. It is at least one, so that a wrong estimate does not end
 * drafting.
 *
 *     budget 5, gain .6 .3:   the ── cat .5       candidate cat .5; masks after `the` .5 * .6 and .5 * .3, and the same
 *                                                 after `cat`: .5 + .9 = 1.4; without the candidate .6 + .3 = .9
 *
 * Gains are means over held-out text, so they are right on average; a step at which little was drafted is worth less
 * than its gain. Test: tests/draft/test_draft_space.c, against all sets of masks. */
static int better_first(const void *a, const void *b) {
    const PlannedMask *x = a, *y = b;
    if (x->value != y->value) return x->value > y->value ? -1 : 1;
    return x->node != y->node ? x->node - y->node : x->mask - y->mask;
}

int32_t mask_plan(const Tree *t, int32_t n_nodes, const double *gain, int32_t n_masks, PlannedMask *out) {
    double last[TREE_MAX_NODES];
    int32_t n = 0;
    for (int32_t i = 0; i < n_nodes; i++) {
        last[i] = (double)t->nodes[i].p_accept;
        if (i > 0) last[t->nodes[i].parent] -= (double)t->nodes[i].p_accept;
    }
    for (int32_t i = 0; i < n_nodes; i++)
        for (int32_t j = 0; j < n_masks; j++) out[n++] = (PlannedMask){i, j, last[i] > 0 ? last[i] * gain[j] : 0};
    qsort(out, (size_t)n, sizeof *out, better_first);
    return n;
}

int32_t mask_plan_candidates(const Tree *t, const double *gain, int32_t n_masks, int32_t budget, PlannedMask *scratch) {
    int32_t best = 0;
    double best_sum = -1, accepted = 0;
    for (int32_t c = 1; c < t->n && c <= budget; c++) {
        int32_t n = mask_plan(t, c + 1, gain, n_masks, scratch);
        double sum = accepted += (double)t->nodes[c].p_accept;
        for (int32_t i = 0; i < n && i < budget - c; i++) sum += scratch[i].value;
        if (sum > best_sum) best = c, best_sum = sum;
    }
    return best;
}

/* ---- sequences ---------------------------------------------------------------------------------- */

static SpaceSequence *sequence_of(const Drafter *drafter, int32_t sequence) {
    const Space *d = (const Space *)drafter;
    fr_assert(sequence >= 0 && sequence < d->learned.max_sequences);
    return &d->sequences[sequence];
}

static int begin(Drafter *drafter, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err) {
    SpaceSequence *s = sequence_of(drafter, sequence);
    s->n_ready = s->n_rows = 0;
    return learned_begin(drafter, sequence, tokens, n, err);
}

/* Adds the best masks for the nodes that the target is to run. */
static int32_t add_rows(Drafter *drafter, int32_t sequence, const Tree *tree, int32_t room, ExtraRow *rows) {
    const Space *d = (const Space *)drafter;
    SpaceSequence *s = sequence_of(drafter, sequence);
    int32_t last_row[TREE_MAX_NODES], n = mask_plan(tree, tree->n, d->gain, d->n_masks, d->plan);
    for (s->n_rows = 0; s->n_rows < n && s->n_rows < room && s->n_rows < TREE_MAX_NODES; s->n_rows++) {
        const PlannedMask *m = &d->plan[s->n_rows];
        rows[s->n_rows] = (ExtraRow){m->mask == 0 ? m->node : last_row[m->node],
                                     d->masks + (int64_t)m->mask * d->learned.n_embd};
        last_row[m->node] = tree->n + s->n_rows;
        s->node[s->n_rows] = m->node;
        s->mask[s->n_rows] = m->mask;
    }
    return s->n_rows;
}

/* Keeps the hidden states at the masks after the last accepted node. */
static int observe_tree(Drafter *drafter, int32_t sequence, const VerifiedTree *v, fr_error *err) {
    (void)err;
    const Space *d = (const Space *)drafter;
    SpaceSequence *s = sequence_of(drafter, sequence);
    int32_t last = feedback_node(v, v->verdict->n_path);
    s->n_ready = 0;
    for (int32_t i = 0; i < v->n_extra; i++) {
        if (s->node[i] != last) continue;
        memcpy(s->hidden + (int64_t)s->mask[i] * d->learned.n_embd, v->extra_hidden[i],
               (size_t)d->learned.n_embd * sizeof *s->hidden);
        s->n_ready++;
    }
    return FR_OK;
}

/* ---- a proposal --------------------------------------------------------------------------------- */

/* Returns the index of rank 0 of a member's mask in d->tokens and d->log_p. */
static int64_t ranks_at(const Space *d, int32_t member, int32_t mask) {
    return ((int64_t)member * d->n_masks + mask) * d->n_ranks;
}

/* Finds the most probable tokens at mask i, for each member that has this mask. */
static void run_mask(Space *d, int32_t i, const LearnedMember *members, int32_t n) {
    LearnedDrafter *l = &d->learned;
    int32_t n_rows = 0;
    for (int32_t k = 0; k < n; k++) {
        const SpaceSequence *s = &d->sequences[members[k].sequence];
        d->n_tokens[k * d->n_masks + i] = 0;
        if (i >= s->n_ready) continue;
        learned_write(d->x, (int64_t)n_rows * l->n_embd, s->hidden + (int64_t)i * l->n_embd, l->n_embd);
        d->row_of[n_rows++] = k;
    }
    for (int32_t k = 0; k < d->n_blocks; k++) learned_linear(l, d->blocks[i][k], LINEAR_ADD_SILU, d->x, n_rows, d->x);
    learned_head(l, d->x, n_rows, d->logits);
    for (int32_t r = 0; r < n_rows; r++) {
        int32_t k = d->row_of[r];
        d->n_tokens[k * d->n_masks + i] = learned_top(l, members[k].sequence, NULL, i,
                                                      d->logits->floats + (int64_t)r * l->n_vocab, d->n_ranks,
                                                      d->tokens + ranks_at(d, k, i), d->log_p + ranks_at(d, k, i));
    }
}

/* Drafts the best products, as many as are worth their rows. */
static void grow_tree(const Space *d, int32_t member, int32_t budget, Tree *t) {
    const ProductRanks ranks = {.n_levels = d->n_masks,
                                .n_ranks = d->n_ranks,
                                .tokens = d->tokens + ranks_at(d, member, 0),
                                .log_p = d->log_p + ranks_at(d, member, 0),
                                .n_tokens = d->n_tokens + member * d->n_masks};
    learned_grow_products(&ranks, budget < MAX_CANDIDATES ? budget : MAX_CANDIDATES, d->learned.base.source, t);
    t->n = 1 + mask_plan_candidates(t, d->gain, d->n_masks, budget, d->plan);
}

static void draft_together(Space *d, int32_t n) {
    const LearnedMember *members = d->learned.members;
    for (int32_t i = 0; i < d->n_masks; i++) run_mask(d, i, members, n);
    for (int32_t k = 0; k < n; k++) grow_tree(d, k, members[k].budget, members[k].tree);
}

static int propose(Drafter *drafter, const int32_t *sequences, const int32_t *budgets, Tree *const *trees, int n,
                   fr_error *err) {
    (void)err;
    Space *d = (Space *)drafter;
    LearnedDrafter *l = &d->learned;
    int32_t n_members = 0;
    for (int i = 0; i < n; i++) {
        if (budgets[i] < 1 || sequence_of(drafter, sequences[i])->n_ready == 0) continue;
        learned_start(l, sequences[i], trees[i]);
        l->members[n_members++] = (LearnedMember){.tree = trees[i], .sequence = sequences[i], .budget = budgets[i]};
        if (n_members < l->max_group) continue;
        draft_together(d, n_members);
        n_members = 0;
    }
    draft_together(d, n_members);
    return FR_OK;
}

extern const DrafterClass draft_space_class;
const DrafterClass draft_space_class = {
    .name = "space",
    .summary = "SPACE: masks that the target reads while it verifies, trained for it, draft for the next step",
    .option_table = option_table,
    .options_size = sizeof(SpaceOptions),
    .open = open_space,
    .close = close_space,
    .set_sampling = learned_set_sampling,
    .begin = begin,
    .add_rows = add_rows,
    .extra_name = "masks",
    .observe_tree = observe_tree,
    .observe = learned_observe,
    .propose = propose,
    .end = learned_end,
};

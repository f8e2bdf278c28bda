/* draft_redrafter.c - the drafter `redrafter`: Recurrent Drafter (Cheng et al. 2024, "Recurrent Drafter for Fast
 * Speculative Decoding in Large Language Models", arXiv 2403.09919).
 *
 * The problem. Heads that predict the tokens ahead independently (medusa) do not know what the head before them
 * predicted. A draft model does, but must run all its layers for each token.
 *
 * The idea. The target's hidden state h represents the text, and a small recurrent state summarises what was drafted
 * since:
 *
 *     s_1 = E(x_1)                                       x_1 the pending token, E the target's embedding
 *     s_t = SiLU(W E(x_t) + U s_{t-1} + b)
 *     distribution of x_{t+1} = softmax(O f([s_t, h]))            f: blocks x + SiLU(A x + a) of width 2H; O: [V][2H]
 *
 * h stays the same for the whole draft. `start` in the file selects how s begins: "embedding" as above and in the
 * paper; "zero" as in the released code, which runs the recurrence on x_1 from s_0 = 0.
 *
 * Beam search. For each sequence, the `width` candidates with the greatest sum of log-probabilities are kept at each
 * of `length` steps. Candidates share the nodes of their common prefix (tree_shapes.c). The p_accept of a node is the
 * product of the probabilities along its path. If there are more nodes than the budget, those of greatest p_accept are
 * kept. The beam is no wider and no longer than the budget.
 *
 *     x_1 = "the"   cat .5  sat .8  = .40       the ── cat ── sat
 *                   cat .5  ran .1  = .05                  └─ ran    (width 3, length 2)
 *                   dog .4  ran .9  = .36          └─ dog ── ran
 *
 * packed=0 measures what this sharing saves: every token that packing left out gets a row all the same (add_copies).
 *
 * Under the rules `recursive` and `transport` the beams are drawn: continuations are chosen by psi instead of their
 * log-probability, which makes it a stochastic beam search (learned_top.c). Candidates that end before the last level
 * are the last draws of their node, since a first draw has its parent's psi. Under other ratio rules nothing is
 * drawn, and all groups are points.
 *
 * If the drafter was trained with token info (logit_corrections.h), the info of a candidate's last token is added to
 * its logits.
 *
 * Invariants: all rows of a level, of all sequences, are one product each with W, U, the blocks and O; the draft of a
 * sequence does not depend on the other sequences. Cost: `length` products with O, each of up to `width` rows a
 * sequence; O is twice as large as the target's LM head. When it loses: if O costs as much as the target's layers, as
 * in small targets with large vocabularies. Proof: tests/draft/test_draft_redrafter.c, against a beam search in double
 * precision. */
#include "base/math_functions.h"
#include "base/mem.h"
#include "tree/tree_shapes.h"
#include "draft/learned/learned.h"
#include "draft/learned/learned_files.h"
#include "draft/learned/logit_corrections.h"
#include "draft/feedback.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_WIDTH = TOP_K_MAX, MAX_LENGTH = 16, MAX_ROWS = 128 };

/* A candidate of the beam search: a path below the pending token. */
typedef struct Beam {
    int32_t tokens[MAX_LENGTH];
    float p_accept[MAX_LENGTH]; /* the product of the probabilities up to each token */
    double log_p;               /* the sum over the whole path */
    int32_t row;                /* the row of the previous level that its last token comes from */
} Beam;

/* A sequence in a proposal. */
typedef struct Member {
    Tree *tree;
    int32_t sequence;
    const float *hidden;
    int32_t width, length, budget;
    int32_t n_beams, first_row; /* each beam has a row of this level, from first_row on */
    Beam *beams, *next;         /* [width] each */
} Member;

typedef struct Redrafter {
    LearnedDrafter learned;
    int32_t width, length, n_blocks, max_rows;
    bool starts_at_embedding, is_packed;
    Linear *w, *u, *blocks[REDRAFTER_MAX_BLOCKS], *output;
    TokenInfo info;
    Member *group; /* [max_group] sequences that draft together */
    int32_t n_group;
    int32_t *tokens;                  /* [max_rows] each beam's last token */
    Buffer *embedded, *states, *last; /* [max_rows][H] each; `states` are those of this level, `last` those before */
    Buffer *x;                        /* [max_rows][2H] */
    Buffer *logits;                   /* [max_rows][V] */
    int32_t *top;                     /* [max_rows][width] most probable tokens of each row */
    double *top_log_p;
    int32_t *n_top; /* [max_rows] */
    int32_t *pack;  /* 6 arrays of [width * length], working memory for the functions of tree_shapes.h */
} Redrafter;

typedef struct RedrafterOptions {
    const char *file;
    bool coupled, draws, packed;
    int32_t width, length;
} RedrafterOptions;

static const Option option_table[] = {
    LEARNED_OPTION_FILE(RedrafterOptions),
    {.key = "width",
     OPT_INT(RedrafterOptions, width, 1, MAX_WIDTH),
     .default_value = "4",
     .help = "candidates kept by the beam search"},
    {.key = "length",
     OPT_INT(RedrafterOptions, length, 1, MAX_LENGTH),
     .default_value = "5",
     .help = "tokens of a candidate"},
    {.key = "packed",
     OPT_FLAG(RedrafterOptions, packed),
     .default_value = "1",
     .help = "1: candidates share the rows of their common beginnings; 0: each has its own rows, which is slower and "
             "accepts no more (for comparison)"},
    LEARNED_OPTION_COUPLED(RedrafterOptions),
    LEARNED_OPTION_DRAW(RedrafterOptions),
    {.key = NULL},
};

/* ---- opening ------------------------------------------------------------------------------------ */

static void close_redrafter(Drafter *drafter) {
    Redrafter *d = (Redrafter *)drafter;
    learned_linear_close(&d->learned, d->w);
    learned_linear_close(&d->learned, d->u);
    learned_linear_close(&d->learned, d->output);
    token_info_close(&d->info);
    for (int32_t i = 0; i < REDRAFTER_MAX_BLOCKS; i++) learned_linear_close(&d->learned, d->blocks[i]);
    learned_release(&d->learned);
    mem_free(d);
}

static int read_weights(Redrafter *d, fr_error *err) {
    static const char *const starts[] = {"embedding", "zero", NULL};
    LearnedDrafter *l = &d->learned;
    int64_t h = l->n_embd;
    int start = 0,
        status = drafter_file_int(&l->file, REDRAFTER_KEY_BLOCK_COUNT, 0, REDRAFTER_MAX_BLOCKS, &d->n_blocks, err);
    if (!status) status = drafter_file_choice(&l->file, REDRAFTER_KEY_START, starts, &start, err);
    if (!status) status = learned_linear_open(l, REDRAFTER_W, h, h, false, d->max_rows, &d->w, err);
    if (!status) status = learned_linear_open(l, REDRAFTER_U, h, h, true, d->max_rows, &d->u, err);
    for (int32_t i = 0; i < d->n_blocks && !status; i++) {
        char name[64];
        snprintf(name, sizeof name, REDRAFTER_BLOCK, i);
        status = learned_linear_open(l, name, 2 * h, 2 * h, true, d->max_rows, &d->blocks[i], err);
    }
    if (!status) status = learned_output_open(l, REDRAFTER_OUTPUT, 2 * h, false, d->max_rows, &d->output, err);
    d->starts_at_embedding = start == 0;
    return status;
}

static int allocate(Redrafter *d, fr_error *err) {
    LearnedDrafter *l = &d->learned;
    int64_t rows = d->max_rows, h = l->n_embd, width = d->width;
    Beam *beams; /* [max_group][2][width] */
    const ArenaItem items[] = {
        ARENA_ITEM(&d->group, l->max_group),
        ARENA_ITEM(&beams, l->max_group * 2 * width),
        ARENA_ITEM(&d->tokens, rows),
        ARENA_ITEM(&d->top, rows * width),
        ARENA_ITEM(&d->top_log_p, rows * width),
        ARENA_ITEM(&d->n_top, rows),
        ARENA_ITEM(&d->pack, 6 * width * d->length),
    };
    const LearnedBuffer buffers[] = {{&d->embedded, rows * h},
                                     {&d->states, rows * h},
                                     {&d->last, rows * h},
                                     {&d->x, rows * 2 * h},
                                     {&d->logits, rows * l->n_vocab}};
    int status = arena_take(&l->arena, items, ARENA_COUNT(items), "redrafter", err);
    if (!status) status = learned_open_buffers(l, buffers, ARENA_COUNT(buffers), err);
    for (int32_t i = 0; i < l->max_group && !status; i++) {
        d->group[i].beams = beams + i * 2 * width;
        d->group[i].next = d->group[i].beams + width;
    }
    return status;
}

static LearnedDraftFn draft_group; /* below */

static int apply_options(Redrafter *d, const RedrafterOptions *o, const DrafterEnv *env, fr_error *err) {
    if (o->width * o->length >= TREE_MAX_NODES)
        return error_set(err, FR_ERR_ARGUMENT,
                         "redrafter: a beam of width %d and length %d is more than the %d nodes of a "
                         "tree; make one of them smaller",
                         o->width, o->length, TREE_MAX_NODES - 1);
    d->width = o->width;
    d->length = o->length;
    d->is_packed = o->packed;
    int32_t max_group = MAX_ROWS / d->width < env->max_sequences ? MAX_ROWS / d->width : env->max_sequences;
    d->max_rows = max_group * d->width;
    return learned_reserve_group(&d->learned, max_group, draft_group, err);
}

static int open_redrafter(Drafter **out, const void *options, const DrafterEnv *env, fr_error *err) {
    const RedrafterOptions *o = options;
    Redrafter *d = mem_calloc(1, sizeof *d);
    if (!d) return error_memory(err, "redrafter", sizeof *d);
    int status = apply_options(d, o, env, err);
    d->learned.coupled = o->coupled;
    d->learned.draws = o->draws;
    if (!status) status = learned_open(&d->learned, o->file, "redrafter", env, err);
    if (!status) status = read_weights(d, err);
    if (!status) status = token_info_open(&d->info, &d->learned, "redrafter", TOKEN_INFO_F16, err);
    if (!status) status = drafter_file_finish(&d->learned.file, err);
    if (!status) status = allocate(d, err);
    if (status) {
        close_redrafter(&d->learned.base);
        return status;
    }
    *out = &d->learned.base;
    return FR_OK;
}

/* ---- one level of the search -------------------------------------------------------------------- */

static float *row_of(const Buffer *matrix, int32_t row, int64_t width) { return matrix->floats + (int64_t)row * width; }

/* Makes a row for each beam: the embedding of its last token, and the state before it. Returns the number of rows. */
static int32_t gather_rows(Redrafter *d, int32_t level) {
    const LearnedDrafter *l = &d->learned;
    int64_t h = l->n_embd;
    int32_t n = 0;
    for (int32_t i = 0; i < d->n_group; i++) {
        Member *m = &d->group[i];
        m->first_row = n;
        for (int32_t b = 0; b < m->n_beams && level < m->length; b++, n++) {
            const Beam *beam = &m->beams[b];
            d->tokens[n] = level ? beam->tokens[level - 1] : m->tree->nodes[0].token;
            float *last = row_of(d->last, n, h);
            if (level) memcpy(last, row_of(d->states, beam->row, h), (size_t)h * sizeof *last);
            else memset(last, 0, (size_t)h * sizeof *last);
            learned_write(d->x, (int64_t)n * 2 * h + h, m->hidden, h);
        }
    }
    learned_embed(l, d->tokens, n, (Slice){d->embedded, 0});
    buffer_push(d->last, 0, n * h);
    return n;
}

/* Computes the state s_t of every row, into d->states and the first half of d->x. */
static void advance_states(Redrafter *d, int32_t level, int32_t n_rows) {
    LearnedDrafter *l = &d->learned;
    int64_t h = l->n_embd;
    if (level == 0 && d->starts_at_embedding) {
        learned_embed(l, d->tokens, n_rows, (Slice){d->states, 0});
    } else {
        learned_linear(l, d->w, LINEAR_SET, d->embedded, n_rows, d->states);
        learned_linear(l, d->u, LINEAR_SUM_SILU, d->last, n_rows, d->states);
    }
    buffer_pull(d->states, 0, n_rows * h);
    for (int32_t r = 0; r < n_rows; r++) learned_write(d->x, (int64_t)r * 2 * h, row_of(d->states, r, h), h);
}

/* Computes the logits of all rows. */
static void run_head(Redrafter *d, int32_t n_rows) {
    LearnedDrafter *l = &d->learned;
    for (int32_t i = 0; i < d->n_blocks; i++) learned_linear(l, d->blocks[i], LINEAR_ADD_SILU, d->x, n_rows, d->x);
    learned_output(l, d->output, d->x, n_rows, d->logits);
    for (int32_t r = 0; r < n_rows; r++) token_info_add(&d->info, &d->tokens[r], 1, row_of(d->logits, r, l->n_vocab));
}

/* Finds the most probable tokens of each of the sequence's rows, and their log-probabilities. */
static void rank_tokens(Redrafter *d, const Member *m, int32_t level) {
    LearnedDrafter *l = &d->learned;
    for (int32_t r = m->first_row; r < m->first_row + m->n_beams; r++)
        d->n_top[r] = learned_top(l, m->sequence, m->beams[r - m->first_row].tokens, level,
                                  row_of(d->logits, r, l->n_vocab), d->width, d->top + (int64_t)r * d->width,
                                  d->top_log_p + (int64_t)r * d->width);
}

/* Replaces the beams by the `width` best of all continuations; ties go to the earlier beam. The tokens of each row are
 * sorted, so the best continuation left is the first unused one of some row. */
static void choose_beams(const Redrafter *d, Member *m, int32_t level) {
    int32_t used[MAX_WIDTH] = {0}, n = 0;
    for (; n < m->width; n++) {
        int32_t best = -1;
        double best_log_p = -INFINITY;
        for (int32_t b = 0; b < m->n_beams; b++) {
            int32_t row = m->first_row + b;
            if (used[b] == d->n_top[row]) continue;
            double log_p = m->beams[b].log_p + d->top_log_p[(int64_t)row * d->width + used[b]];
            if (log_p > best_log_p) best = b, best_log_p = log_p;
        }
        if (best < 0) break;
        int32_t row = m->first_row + best;
        Beam *beam = &m->next[n];
        *beam = m->beams[best];
        beam->tokens[level] = d->top[(int64_t)row * d->width + used[best]++];
        beam->p_accept[level] = (float)math_exp(best_log_p);
        beam->log_p = best_log_p;
        beam->row = row;
    }
    if (n == 0) { /* no logit is finite, so the candidates end here */
        m->length = level;
        return;
    }
    Beam *old = m->beams;
    m->beams = m->next;
    m->next = old;
    m->n_beams = n;
}

/* ---- a proposal --------------------------------------------------------------------------------- */

/* Gives each token that packing left out a row of its own: the shared beginning of each candidate becomes a chain below
 * the pending token. The packed nodes already offer these tokens, and siblings must differ, so a copy has another
 * token, and is expected never to be accepted. Its row costs what the token's own would. */
static void add_copies(const Redrafter *d, const Member *m, const int32_t *beam, const int32_t *prefix) {
    int32_t n_vocab = d->learned.n_vocab;
    if (n_vocab < 2 * d->width) return; /* the children of the pending token might need them all */
    for (int32_t b = 0; b < m->n_beams; b++)
        for (int32_t j = 0, at = 0; j < m->length && prefix[b * m->length + j] != b; j++) {
            int32_t token = beam[b * m->length + j];
            while (tree_child(m->tree, at, token) >= 0) token = (token + 1) % n_vocab;
            at = tree_add(m->tree, at, token, 0, d->learned.base.source);
        }
}

static void write_tree(Redrafter *d, const Member *m) {
    int32_t n_all = d->width * d->length, *beam = d->pack, *prefix = beam + n_all, node[TREE_MAX_NODES];
    PackedBeam packed = {.tokens = prefix + n_all,
                         .parents = prefix + 2 * n_all,
                         .depths = prefix + 3 * n_all,
                         .places = prefix + 4 * n_all};
    float p_accept[TREE_MAX_NODES] = {0};
    for (int32_t b = 0; b < m->n_beams; b++)
        memcpy(beam + b * m->length, m->beams[b].tokens, (size_t)m->length * sizeof *beam);
    beam_dedup_prefix(beam, m->n_beams, m->length, prefix);
    beam_pack(beam, prefix, m->n_beams, m->length, &packed);
    for (int32_t b = 0; b < m->n_beams; b++)
        for (int32_t j = 0; j < m->length; j++) p_accept[packed.places[b * m->length + j]] = m->beams[b].p_accept[j];
    for (int32_t i = 0; i < packed.n; i++)
        node[i] = tree_add(m->tree, packed.parents[i] < 0 ? 0 : node[packed.parents[i]], packed.tokens[i], p_accept[i],
                           d->learned.base.source);
    if (!d->is_packed && !d->learned.sequences[m->sequence].is_drawing) add_copies(d, m, beam, prefix);
    learned_prune(&d->learned, m->sequence, m->tree, m->budget);
}

static void search_beams(Redrafter *d) {
    for (int32_t level = 0, n_rows; level < d->length && (n_rows = gather_rows(d, level)) > 0; level++) {
        advance_states(d, level, n_rows);
        run_head(d, n_rows);
        for (int32_t i = 0; i < d->n_group; i++) {
            Member *m = &d->group[i];
            if (level >= m->length) continue;
            rank_tokens(d, m, level);
            choose_beams(d, m, level);
        }
    }
    for (int32_t i = 0; i < d->n_group; i++)
        if (d->group[i].length > 0) write_tree(d, &d->group[i]);
}

static int draft_group(LearnedDrafter *learned, const LearnedMember *members, int32_t n, fr_error *err) {
    (void)err;
    Redrafter *d = (Redrafter *)learned;
    d->n_group = n;
    for (int32_t i = 0; i < n; i++) {
        Member *m = &d->group[i];
        m->tree = members[i].tree;
        m->sequence = members[i].sequence;
        m->hidden = members[i].hidden;
        m->budget = members[i].budget;
        m->width = m->budget < d->width ? m->budget : d->width;
        m->length = m->budget < d->length ? m->budget : d->length;
        m->n_beams = 1;
        m->beams[0].log_p = 0;
    }
    search_beams(d);
    return FR_OK;
}

extern const DrafterClass draft_redrafter_class;
const DrafterClass draft_redrafter_class = {
    .name = "redrafter",
    .summary = "a recurrent head on the target's hidden state, trained for it: the candidates of a beam search",
    .option_table = option_table,
    .options_size = sizeof(RedrafterOptions),
    .needs_hidden = true,
    .open = open_redrafter,
    .close = close_redrafter,
    .set_sampling = learned_set_sampling,
    .begin = learned_begin,
    .observe_prompt = learned_observe_prompt,
    .take_over = learned_take_over,
    .observe_tree = learned_observe_tree,
    .observe = learned_observe,
    .propose = learned_propose,
    .end = learned_end,
};

/* draft_lyanna.c - the drafter `lyanna`: hidden states are drafted, and tokens only read off them ("Make Every Draft Count:
 * Hidden State based Speculative Decoding", Chen et al.).
 *
 * The problem. Of the tokens that a drafter tries most are refused, and with a token all that was computed from it.
 *
 * The idea. Draft hidden states, which do not depend on the tokens tried, and bring the tokens in last. A proposal is
 *
 *     1 the chain          h_1 .. h_N from the target's last hidden state and the pending token      lyanna_layer.c
 *     2 one-pass logits    l_i = W_head h_i: one product of N rows (times all sequences), not N of one; nothing waits for a token
 *     3 sampling           a tree from l_1 .. l_N, with the info of each node's token                lyanna_tree.c, token_info.c
 *     4 pruning            to the budget, by joint probability
 *
 * After the verification the rows behind the target's own token still hold: re-sampling makes a second tree of them, without a
 * forward, where more than R rows are left (`resample=R`).
 *
 *     fusion=on    it is united with the next fresh tree, which has the same root; one verification for both
 *     fusion=off   it is a proposal by itself, and the fresh one comes a step later: what the paper's Fig. 12 calls re-sampling
 *                  alone; for measuring
 *
 *     step 1   chain l_1..l_5 at "the"; accepted: cat; the target says: likes          2 tokens of 5 rows used, 3 are left
 *     step 2   fresh chain at "likes", united with the tree that l_3 l_4 l_5 give below "likes"
 *
 * A sequence remembers for which place of its text chain and trees were made. A proposal that is asked for again at the same
 * place is the same tree, at the price of the union; a place that was passed without a proposal is no harm, for rows are counted
 * from the tokens that came. Nodes found by re-sampling alone have the tag LYANNA_RESAMPLED: statistics tell how many were
 * accepted. Nothing is drawn: under a ratio rule all groups are points.
 *
 * Files: lyanna.h. Memory: depth rows of V floats a sequence, and the table of token_info.c.
 *
 * Cost: depth forwards of one layer for all sequences together, one LM head of depth rows each, and for 1 + (depth - 1) top nodes
 * a softmax over V. When it loses: where the target has few layers, as eagle does; deep in the tree, where eagle has seen its own
 * tokens and lyanna has not. Proof: tests/test_draft_lyanna.c. */
#include "base/mem.h"
#include "spec/drafters/learned/lyanna.h"
#include "spec/drafters/learned/lyanna_layer.h"
#include "spec/drafters/learned/lyanna_tree.h"
#include "spec/drafter/feedback.h"
#include "spec/tree/union.h"

#include <string.h>

extern const DrafterClass draft_lyanna_class;

enum { MAX_DEPTH = 16, MAX_GROUP_ROWS = 256, MAX_LOGIT_BYTES = 32 << 20 };

typedef struct LyannaSequence {
    int32_t *prompt;       /* [n_ctx] what it began with */
    float *logits;         /* [depth][V] of the last chain */
    int64_t logits_at;     /* tokens of the context when it was made; -1: there is none */
    bool is_spent;         /* a tree of its own was made of what was left of it */
    Tree fresh, resampled; /* joint probabilities, all that was found */
    int64_t fresh_at, resampled_at;
    LyannaHitRate fresh_hit_rate, resampled_hit_rate;
} LyannaSequence;

typedef struct Lyanna {
    LearnedDrafter learned;
    LyannaLayer layer;
    TokenInfo info;
    LyannaSampler sampler;
    int32_t n_ctx, depth, max_group, n_group;
    int32_t threshold;         /* rows that must be left, and one more, to re-sample; depth: never */
    bool is_fusing;
    LyannaSequence *sequences; /* [max_sequences] */
    int32_t *group;            /* [max_group] sequences whose chains are made together */
    float *product;            /* [max_group][depth][V] */
    Tree scratch;
} Lyanna;

static const DrafterOption options[] = {
    LEARNED_OPTION_FILE,
    {"depth", "5", "hidden states drafted: tokens of a path at most"},
    {"top", "4", "children of a node, and nodes expanded at each level"},
    {"resample", "1", "re-sample where more than that many logits are left after a step, or off"},
    {"fusion", "on", "re-sampled trees are verified with the next fresh one, or (off) by themselves"},
    {"table", "f16", "token info: f16 or q8, a table made at open, or factors, multiplied when needed"},
    {NULL, NULL, NULL},
};

/* ---- opening ------------------------------------------------------------------------------------ */

static void close_lyanna(Drafter *drafter) {
    Lyanna *d = (Lyanna *)drafter;
    lyanna_layer_close(&d->layer);
    token_info_close(&d->info);
    learned_release(&d->learned);
    mem_free(d);
}

/* The place of the option's value among the choices. */
static int read_choice(const DraftSpec *spec, const char *key, const char *const *choices, int *out, fr_error *err) {
    const char *value = draft_spec_get(spec, &draft_lyanna_class, key);
    char names[64] = "";
    for (int i = 0; choices[i]; i++) {
        if (strcmp(value, choices[i]) == 0) {
            *out = i;
            return FR_OK;
        }
        strcat(strcat(names, i ? ", " : ""), choices[i]);
    }
    return error_set(err, FR_ERR_ARGUMENT, "lyanna: '%s=%.40s' where one of these is wanted: %s", key, value, names);
}

static int read_threshold(Lyanna *d, const DraftSpec *spec, fr_error *err) {
    int64_t threshold = d->depth;
    int status = FR_OK;
    if (strcmp(draft_spec_get(spec, &draft_lyanna_class, "resample"), "off") != 0)
        status = draft_spec_get_int(spec, &draft_lyanna_class, "resample", 0, MAX_DEPTH, &threshold, err);
    d->threshold = (int32_t)threshold;
    return status;
}

static int read_options(Lyanna *d, const DraftSpec *spec, fr_error *err) {
    static const char *const on_off[] = {"off", "on", NULL}, *const forms[] = {"f16", "q8", "factors", NULL};
    int64_t depth = 1, top = 1;
    int fusion = 1, form = TOKEN_INFO_F16;
    int status = draft_spec_get_int(spec, &draft_lyanna_class, "depth", 1, MAX_DEPTH, &depth, err);
    if (!status) status = draft_spec_get_int(spec, &draft_lyanna_class, "top", 1, LYANNA_MAX_TOP, &top, err);
    if (!status) status = read_choice(spec, "fusion", on_off, &fusion, err);
    if (!status) status = read_choice(spec, "table", forms, &form, err);
    d->depth = (int32_t)depth;
    d->sampler.top = (int32_t)top;
    d->is_fusing = fusion == 1;
    d->info.form = (TokenInfoForm)form;
    if (!status) status = read_threshold(d, spec, err);
    if (status || top + (depth - 1) * top * top < TREE_MAX_NODES) return status;
    return error_set(err, FR_ERR_ARGUMENT, "lyanna: depth %d with top %d finds more than the %d nodes of a tree; make one of "
                     "them smaller", (int)depth, (int)top, TREE_MAX_NODES - 1);
}

/* How many chains are made at once: by rows, and by the memory of their logits. */
static int32_t choose_group(const Lyanna *d) {
    int64_t chain_bytes = (int64_t)d->depth * d->learned.n_vocab * (int64_t)sizeof(float);
    int64_t n = MAX_GROUP_ROWS / d->depth, fits = MAX_LOGIT_BYTES / chain_bytes;
    if (n > fits) n = fits > 1 ? fits : 1;
    return n < d->learned.max_sequences ? (int32_t)n : d->learned.max_sequences;
}

static int allocate(Lyanna *d, fr_error *err) {
    LearnedDrafter *l = &d->learned;
    int64_t chain = (int64_t)d->depth * l->n_vocab, n = l->max_sequences;
    int32_t *prompts;
    float *logits;
    const ArenaItem items[] = {ARENA_ITEM(&d->sequences, n),  ARENA_ITEM(&prompts, n * d->n_ctx),
                               ARENA_ITEM(&logits, n * chain), ARENA_ITEM(&d->group, d->max_group),
                               ARENA_ITEM(&d->product, d->max_group * chain),
                               ARENA_ITEM(&d->sampler.rows, (int64_t)d->sampler.top * l->n_vocab)};
    int status = arena_take(&l->arena, items, ARENA_COUNT(items), "lyanna", err);
    for (int64_t i = 0; i < n && !status; i++) {
        d->sequences[i].prompt = prompts + i * d->n_ctx;
        d->sequences[i].logits = logits + i * chain;
    }
    return status ? status : learned_head_reserve(l, (int64_t)d->max_group * d->depth, err);
}

static int open_lyanna(Drafter **out, const DraftSpec *spec, const DrafterEnv *env, fr_error *err) {
    Lyanna *d = mem_calloc(1, sizeof *d);
    if (!d) return error_memory(err, "lyanna", sizeof *d);
    d->sampler.learned = &d->learned;
    d->sampler.info = &d->info;
    d->n_ctx = env->n_ctx;
    int status = read_options(d, spec, err);
    if (!status) status = learned_open(&d->learned, spec, &draft_lyanna_class, env, err);
    if (!status) {
        d->max_group = choose_group(d);
        status = lyanna_layer_open(&d->layer, &d->learned, env, d->depth, d->max_group, err);
    }
    if (!status)
        status = token_info_open(&d->info, &d->learned, "lyanna", d->info.form, err);
    if (!status) status = drafter_file_finish(&d->learned.file, err);
    if (!status) status = allocate(d, err);
    if (status) {
        close_lyanna(&d->learned.base);
        return status;
    }
    *out = &d->learned.base;
    return FR_OK;
}

/* ---- what the target has read --------------------------------------------------------------------- */

static LyannaSequence *sequence_of(const Drafter *drafter, int32_t sequence) { return &((const Lyanna *)drafter)->sequences[sequence]; }

static int64_t n_tokens_of(const Lyanna *d, int32_t sequence) { return d->learned.sequences[sequence].n_tokens; }

static int begin(Drafter *drafter, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err) {
    Lyanna *d = (Lyanna *)drafter;
    LyannaSequence *s = sequence_of(drafter, sequence);
    s->logits_at = s->fresh_at = s->resampled_at = -1;
    s->fresh_hit_rate = s->resampled_hit_rate = (LyannaHitRate){0};
    int status = learned_begin(drafter, sequence, tokens, n, err);
    if (status) return status;
    if (n > d->n_ctx) return error_set(err, FR_ERR_CONTEXT, "lyanna: its context of %d tokens is full", d->n_ctx);
    memcpy(s->prompt, tokens, (size_t)n * sizeof *tokens);
    return lyanna_layer_begin(&d->layer, sequence, err);
}

/* The trees of this place are judged by what came. */
static int observe(Drafter *drafter, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err) {
    LyannaSequence *s = sequence_of(drafter, sequence);
    int64_t at = n_tokens_of((const Lyanna *)drafter, sequence);
    if (s->fresh_at == at) lyanna_update_hit_rate(&s->fresh_hit_rate, &s->fresh, NULL, tokens, n);
    if (s->fresh_at == at && s->resampled_at == at) lyanna_update_hit_rate(&s->resampled_hit_rate, &s->resampled, &s->fresh, tokens, n);
    return learned_observe(drafter, sequence, tokens, n, err);
}

static int observe_prompt(Drafter *drafter, int32_t sequence, int64_t first, const float *const *hidden, int32_t n, fr_error *err) {
    Lyanna *d = (Lyanna *)drafter;
    const int32_t *after = sequence_of(drafter, sequence)->prompt + first + 1;
    int status = learned_observe_prompt(drafter, sequence, first, hidden, n, err);
    for (int32_t i = 0; i < n && !status; i++) status = lyanna_layer_add(&d->layer, sequence, after[i], hidden[i], err);
    return status;
}

static int observe_tree(Drafter *drafter, int32_t sequence, const VerifiedTree *v, fr_error *err) {
    Lyanna *d = (Lyanna *)drafter;
    int status = learned_observe_tree(drafter, sequence, v, err);
    for (int32_t depth = 0; depth <= v->verdict->n_path && !status; depth++)
        status = lyanna_layer_add(&d->layer, sequence, feedback_after(v, depth), v->hidden[feedback_node(v, depth)], err);
    return status;
}

static void end(Drafter *drafter, int32_t sequence) {
    lyanna_layer_end(&((Lyanna *)drafter)->layer, sequence);
    learned_end(drafter, sequence);
}

/* ---- a proposal ----------------------------------------------------------------------------------- */

/* Once for each place: a tree below the pending token from what is left of the last chain (Algorithm 2). */
static void resample(const Lyanna *d, int32_t sequence, int32_t pending) {
    LyannaSequence *s = &d->sequences[sequence];
    int64_t at = n_tokens_of(d, sequence), n_used = at - s->logits_at, n_left = d->depth - n_used;
    if (s->resampled_at == at) return;
    s->resampled_at = at;
    tree_reset(&s->resampled, pending);
    if (s->logits_at < 0 || s->is_spent || n_used < 1 || n_left <= d->threshold) return;
    lyanna_build_subtree(&d->sampler, sequence, s->logits + n_used * d->learned.n_vocab, (int32_t)n_left, LYANNA_RESAMPLED, &s->resampled);
    s->is_spent = !d->is_fusing;
}

/* Its own proposal without a fresh tree beside it. */
static bool is_alone(const Lyanna *d, const LyannaSequence *s) { return !d->is_fusing && s->resampled.n > 1; }

/* The chains of the group, and their logits in one product. */
static int make_chains(Lyanna *d, fr_error *err) {
    int64_t chain = (int64_t)d->depth * d->learned.n_vocab;
    int status = d->n_group > 0 ? lyanna_layer_chain(&d->layer, d->group, d->n_group, err) : FR_OK;
    if (status) return status;
    learned_head(&d->learned, d->layer.chains, d->n_group * d->depth, d->product);
    for (int32_t i = 0; i < d->n_group; i++) {
        LyannaSequence *s = &d->sequences[d->group[i]];
        memcpy(s->logits, d->product + i * chain, (size_t)chain * sizeof *s->logits);
        s->logits_at = n_tokens_of(d, d->group[i]);
        s->is_spent = false;
    }
    d->n_group = 0;
    return FR_OK;
}

static void write_proposal(Lyanna *d, int32_t sequence, int32_t budget, Tree *tree) {
    LyannaSequence *s = &d->sequences[sequence];
    int64_t at = n_tokens_of(d, sequence);
    if (is_alone(d, s)) {
        union_merge(tree, &s->resampled);
        union_prune(tree, budget);
        return;
    }
    if (s->fresh_at != at) {
        tree_reset(&s->fresh, tree->nodes[0].token);
        lyanna_build_subtree(&d->sampler, sequence, s->logits, d->depth, LYANNA_FRESH, &s->fresh);
        s->fresh_at = at;
    }
    union_merge(tree, &s->fresh);
    union_prune(tree, budget);
    if (s->resampled.n == 1) return;
    lyanna_weigh(&s->resampled, &s->fresh, lyanna_trust(&s->resampled_hit_rate, &s->fresh_hit_rate), &d->scratch);
    union_prune(&d->scratch, budget); /* then both fit into one tree, whatever is among the best of both */
    union_merge(tree, &d->scratch);
    union_prune(tree, budget);
}

static int propose(Drafter *drafter, const int32_t *sequences, const int32_t *budgets, Tree *const *trees, int n, fr_error *err) {
    Lyanna *d = (Lyanna *)drafter;
    int status = FR_OK;
    d->n_group = 0;
    for (int i = 0; i < n && !status; i++) {
        const LyannaSequence *s = &d->sequences[sequences[i]];
        if (budgets[i] < 1 || !learned_hidden(&d->learned, sequences[i])) continue;
        resample(d, sequences[i], trees[i]->nodes[0].token);
        if (is_alone(d, s) || s->logits_at == n_tokens_of(d, sequences[i])) continue;
        d->group[d->n_group++] = sequences[i];
        if (d->n_group == d->max_group) status = make_chains(d, err);
    }
    if (!status) status = make_chains(d, err);
    for (int i = 0; i < n && !status; i++)
        if (budgets[i] > 0 && learned_hidden(&d->learned, sequences[i])) write_proposal(d, sequences[i], budgets[i], trees[i]);
    return status;
}

static const char *const tags[] = {"resampled", NULL};

const DrafterClass draft_lyanna_class = {
    .name = "lyanna",
    .summary = "drafts hidden states and reads tokens off them last; what is left of a refused draft makes the next one",
    .options = options,
    .needs_hidden = true,
    .tags = tags,
    .open = open_lyanna,
    .close = close_lyanna,
    .set_sampling = learned_set_sampling,
    .begin = begin,
    .observe_prompt = observe_prompt,
    .observe_tree = observe_tree,
    .observe = observe,
    .propose = propose,
    .end = end,
};

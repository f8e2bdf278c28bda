/* draft_lyanna.c - the drafter `lyanna`: hidden states are drafted, and tokens are sampled from them last ("Make
 * Every Draft Count: Hidden State based Speculative Decoding", Chen et al.).
 *
 * The problem. Most tokens that a drafter proposes are rejected, and everything that was computed from a rejected
 * token is lost.
 *
 * The idea. Draft hidden states, which do not depend on the proposed tokens, and introduce the tokens last. A
 * proposal is
 *
 *     1 the chain          h_1 .. h_N from the target's last hidden state and the pending token (lyanna_layer.c)
 *     2 one-pass logits    l_i = W_head h_i: one product of N rows (times all sequences) instead of N products in turn
 *     3 sampling           a tree from l_1 .. l_N, with the info of each node's token (lyanna_tree.c)
 *     4 pruning            to the budget, by joint probability
 *
 * After verification, the rows after the target's own token are still valid. If more than R rows are left
 * (`resample=R`), re-sampling makes a second tree from them without a forward.
 *
 *     fusion=on    the second tree is merged with the next fresh tree, which has the same root, and both are verified
 *                  together
 *     fusion=off   the second tree is a proposal of its own, and the fresh tree follows in the next step; the paper's
 *                  Fig. 12 calls this re-sampling alone. It is for measurements
 *     fusion=auto  as with `off` where that promises more tokens per time, otherwise as with `on` (lyanna_tree.c)
 *
 *     step 1   chain l_1..l_5 at "the"; accepted: cat; the target's token: likes       2 of 5 rows are used, 3 are left
 *     step 2   fresh chain at "likes", merged with the tree that l_3 l_4 l_5 give below "likes"
 *
 * A sequence records at which context length its chain and trees were made. A second proposal at the same length is the
 * same tree and costs only the merging. A step without a proposal is harmless, because rows are counted from the tokens
 * committed. Nodes found only by re-sampling have the tag LYANNA_RESAMPLED, so that statistics count them separately.
 * Under the ratio rules `recursive` and `transport` the tokens are drawn at random (learned_top.c), and only from fresh
 * rows: a token drawn from either of two distributions would follow neither.
 *
 * Memory: `depth` rows of V floats a sequence, and the table of token info.
 *
 * A file may have a second layer for the steps after the first, and token info that begins with them (lyanna_layer.c,
 * lyanna_tree.c).
 *
 * Cost: `depth` forwards of one layer for all sequences together (2 if the file has a parallel chain), one LM head over
 * `depth` rows of each sequence, and a softmax over V for 1 + (depth - 1) top nodes. When it loses: like eagle, if the
 * target has few layers; and deep in the tree, where lyanna's states do not depend on the drafted tokens and eagle's
 * do. Proof: tests/draft/test_draft_lyanna.c. */
#include "base/system.h"
#include "base/mem.h"
#include "draft/learned/learned_files.h"
#include "draft/learned/lyanna.h"
#include "draft/feedback.h"
#include "tree/tree.h"

#include <string.h>

enum { MAX_DEPTH = 16, MAX_GROUP_ROWS = 256, MAX_LOGIT_BYTES = 32 << 20 };

typedef enum Fusion { FUSION_OFF, FUSION_ON, FUSION_AUTO } Fusion;

typedef struct LyannaSequence {
    float *logits;         /* [depth][V] logits of the last chain */
    float *states;         /* [depth][rank] the gate's states of the last chain */
    float *confidence;     /* [depth] confidence_of_state for each state of the last chain */
    int64_t logits_at;     /* length of the context at which the last chain was made; -1: there is none */
    bool is_spent;         /* fusion=off: the remaining rows of the last chain were used for a proposal */
    Tree fresh, resampled; /* all nodes found, with their joint probabilities */
    int64_t fresh_at, resampled_at;
    LyannaHitRate fresh_hit_rate, resampled_hit_rate;
    LyannaChoice choice;
    bool is_alone; /* the re-sampled tree is the proposal at resampled_at, without a fresh one */
} LyannaSequence;

typedef struct Lyanna {
    LearnedDrafter learned;
    LyannaLayer layer;
    TokenInfo info;
    InfoGate gate;
    Confidence confidence;
    LyannaSampler sampler;
    int32_t depth, max_group, n_group;
    int32_t max_fresh; /* nodes of a fresh tree that are verified; the rest of the budget is for re-sampled ones */
    int32_t threshold; /* re-samples if more rows than this are left; equal to the depth: never */
    Fusion fusion;
    LyannaTimes times;
    LyannaSequence *sequences; /* [max_sequences] */
    int32_t *group;            /* [max_group] sequences whose chains are computed together */
    Buffer *product;           /* [max_group][depth][V] */
    Tree scratch;
} Lyanna;

typedef struct LyannaOptions {
    const char *file;
    bool coupled, draws;
    int32_t depth, top, fresh;
    int32_t resample; /* -1: off */
    bool is_live;
    int fusion; /* a value of enum Fusion */
    int form;   /* a value of enum TokenInfoForm */
} LyannaOptions;

static const Option option_table[] = {
    LEARNED_OPTION_FILE(LyannaOptions),
    {.key = "depth",
     OPT_INT(LyannaOptions, depth, 1, MAX_DEPTH),
     .default_value = "5",
     .help = "hidden states drafted, and maximal length of a path"},
    {.key = "top",
     OPT_INT(LyannaOptions, top, 1, LYANNA_MAX_TOP),
     .default_value = "4",
     .help = "children of a node, and nodes expanded at each level"},
    {.key = "resample",
     OPT_INT(LyannaOptions, resample, 0, MAX_DEPTH),
     .word = "off",
     .word_value = -1,
     .default_value = "1",
     .help = "re-sample if more than that many rows of logits are left after a step"},
    {.key = "fusion",
     OPT_CHOICE(LyannaOptions, fusion, "off", "on", "auto"),
     .default_value = "on",
     .help =
         "on: re-sampled trees are verified with the next fresh tree; off: by themselves; auto: by themselves where "
         "they promise more tokens per time (rule sampled only)"},
    {.key = "fresh",
     OPT_INT(LyannaOptions, fresh, 1, TREE_MAX_NODES - 1),
     .word = "all",
     .word_value = TREE_MAX_NODES - 1,
     .default_value = "all",
     .help = "verify at most that many nodes of a fresh tree, so that the rest of the budget is left for re-sampled "
             "nodes; all: both compete for the whole budget"},
    {.key = "table",
     OPT_CHOICE(LyannaOptions, form, "f16", "q8", "factors"),
     .default_value = "f16",
     .help = "token info: f16 and q8 are tables computed at open; factors are multiplied on demand"},
    {.key = "live",
     OPT_FLAG(LyannaOptions, is_live),
     .default_value = "1",
     .help = "1: correct the token info by what the target chose in this text; 0: leave it as it was trained"},
    LEARNED_OPTION_COUPLED(LyannaOptions),
    LEARNED_OPTION_DRAW(LyannaOptions),
    {.key = NULL},
};

/* ---- opening ------------------------------------------------------------------------------------ */

static void close_lyanna(Drafter *drafter) {
    Lyanna *d = (Lyanna *)drafter;
    lyanna_layer_close(&d->layer);
    token_info_close(&d->info);
    info_gate_close(&d->gate);
    confidence_close(&d->confidence);
    learned_release(&d->learned);
    mem_free(d);
}

static int apply_options(Lyanna *d, const LyannaOptions *o, fr_error *err) {
    d->depth = o->depth;
    d->sampler.top = o->top;
    d->max_fresh = o->fresh;
    d->fusion = (Fusion)o->fusion;
    d->threshold = o->resample < 0 ? o->depth : o->resample;
    if (o->top + (o->depth - 1) * o->top * o->top < TREE_MAX_NODES) return FR_OK;
    return error_set(err, FR_ERR_ARGUMENT,
                     "lyanna: depth %d with top %d finds more than the %d nodes of a tree; make one of "
                     "them smaller",
                     o->depth, o->top, TREE_MAX_NODES - 1);
}

/* Returns how many chains are computed at once. Their rows and the memory of their logits limit the number. */
static int32_t choose_group(const Lyanna *d) {
    int64_t chain_bytes = (int64_t)d->depth * d->learned.n_vocab * (int64_t)sizeof(float);
    int64_t n = MAX_GROUP_ROWS / d->depth, fits = MAX_LOGIT_BYTES / chain_bytes;
    if (n > fits) n = fits > 1 ? fits : 1;
    return n < d->learned.max_sequences ? (int32_t)n : d->learned.max_sequences;
}

static int allocate(Lyanna *d, bool is_live, fr_error *err) {
    LearnedDrafter *l = &d->learned;
    int64_t chain = (int64_t)d->depth * l->n_vocab, n = l->max_sequences, of_gate = (int64_t)d->depth * d->gate.rank;
    float *logits, *states, *confidence;
    const ArenaItem items[] = {ARENA_ITEM(&d->sequences, n),
                               ARENA_ITEM(&logits, n * chain),
                               ARENA_ITEM(&d->group, d->max_group),
                               ARENA_ITEM(&states, n * of_gate),
                               ARENA_ITEM(&confidence, n * d->depth),
                               ARENA_ITEM(&d->sampler.rows, (int64_t)d->sampler.top * l->n_vocab),
                               ARENA_ITEM(&d->sampler.live, is_live ? n : 0)};
    const LearnedBuffer product = {&d->product, d->max_group * chain};
    int status = arena_take(&l->arena, items, ARENA_COUNT(items), "lyanna", err);
    if (!status) status = learned_open_buffers(l, &product, 1, err);
    if (!is_live) d->sampler.live = NULL;
    for (int64_t i = 0; i < n && !status; i++) {
        d->sequences[i].logits = logits + i * chain;
        d->sequences[i].states = states + i * of_gate;
        d->sequences[i].confidence = confidence + i * d->depth;
    }
    return status ? status : learned_head_reserve(l, (int64_t)d->max_group * d->depth, err);
}

/* Reads with which step of a chain token info and gate begin. A file without the key has them at all steps. */
static int read_info_step(Lyanna *d, fr_error *err) {
    d->sampler.info_step = 1;
    if (gguf_find_key(d->learned.file.gguf, DRAFTER_KEY(LYANNA_KEY_INFO_STEP)) < 0) return FR_OK;
    return drafter_file_int(&d->learned.file, LYANNA_KEY_INFO_STEP, 1, 2, &d->sampler.info_step, err);
}

static int open_lyanna(Drafter **out, const void *options, const DrafterEnv *env, fr_error *err) {
    const LyannaOptions *o = options;
    Lyanna *d = mem_calloc(1, sizeof *d);
    if (!d) return error_memory(err, "lyanna", sizeof *d);
    d->sampler.learned = &d->learned;
    d->sampler.info = &d->info;
    d->sampler.gate = &d->gate;
    d->sampler.confidence = &d->confidence;
    int status = apply_options(d, o, err);
    d->learned.coupled = o->coupled;
    d->learned.draws = o->draws;
    if (!status) status = learned_open(&d->learned, o->file, "lyanna", env, err);
    if (!status) {
        d->max_group = choose_group(d);
        status = lyanna_layer_open(&d->layer, &d->learned, env, d->depth, d->max_group, err);
    }
    if (!status) status = token_info_open(&d->info, &d->learned, "lyanna", (TokenInfoForm)o->form, err);
    if (!status) status = read_info_step(d, err);
    if (!status) status = info_gate_open(&d->gate, &d->learned, d->max_group * d->depth, LYANNA_MAX_TOP, err);
    if (!status) status = confidence_open(&d->confidence, &d->learned, "lyanna", err);
    if (!status) status = drafter_file_finish(&d->learned.file, err);
    if (!status) status = allocate(d, o->is_live, err);
    if (status) {
        close_lyanna(&d->learned.base);
        return status;
    }
    *out = &d->learned.base;
    return FR_OK;
}

/* ---- observations ------------------------------------------------------------------------------- */

static LyannaSequence *sequence_of(const Drafter *drafter, int32_t sequence) {
    return &((const Lyanna *)drafter)->sequences[sequence];
}

static int64_t n_tokens_of(const Lyanna *d, int32_t sequence) { return d->learned.sequences[sequence].n_tokens; }

static int begin(Drafter *drafter, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err) {
    Lyanna *d = (Lyanna *)drafter;
    LyannaSequence *s = sequence_of(drafter, sequence);
    s->logits_at = s->fresh_at = s->resampled_at = -1;
    s->fresh_hit_rate = s->resampled_hit_rate = (LyannaHitRate){0};
    s->choice = (LyannaChoice){0};
    if (d->sampler.live) live_info_reset(&d->sampler.live[sequence]);
    return entries_begin(drafter, sequence, tokens, n, err);
}

/* Updates the hit rates of the trees that were proposed for this position. */
static int observe(Drafter *drafter, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err) {
    LyannaSequence *s = sequence_of(drafter, sequence);
    int64_t at = n_tokens_of((const Lyanna *)drafter, sequence);
    if (s->fresh_at == at) lyanna_update_hit_rate(&s->fresh_hit_rate, &s->fresh, NULL, tokens, n);
    if (s->fresh_at == at && s->resampled_at == at)
        lyanna_update_hit_rate(&s->resampled_hit_rate, &s->resampled, &s->fresh, tokens, n);
    if (s->fresh_at == at) lyanna_choice_observe_fresh(&s->choice, n);
    if (s->resampled_at == at) lyanna_choice_observe_resampled(&s->choice, &s->resampled, tokens, n);
    return learned_observe(drafter, sequence, tokens, n, err);
}

static int observe_tree(Drafter *drafter, int32_t sequence, const VerifiedTree *v, fr_error *err) {
    Lyanna *d = (Lyanna *)drafter;
    const LyannaSequence *s = sequence_of(drafter, sequence);
    int64_t n_used = n_tokens_of(d, sequence) - s->logits_at, n_vocab = d->learned.n_vocab;
    int status = learned_observe_tree(drafter, sequence, v, err);
    if (!status && s->logits_at >= 0 && n_used < d->depth)
        lyanna_learn(&d->sampler, sequence, 1 + (int32_t)n_used, s->logits + n_used * n_vocab,
                     s->states + n_used * d->gate.rank, d->depth - (int32_t)n_used, v);
    return status ? status : entry_queue_add_step(&d->layer.entries, sequence, v, err);
}

/* ---- a proposal ----------------------------------------------------------------------------------- */

/* Returns whether the re-sampled tree is a proposal of its own, without a fresh tree. n sequences draft together. */
static bool choose_alone(Lyanna *d, const LyannaSequence *s, int32_t budget, const Tree *tree, int32_t n) {
    if (d->fusion != FUSION_AUTO || tree->dists) return d->fusion == FUSION_OFF && s->resampled.n > 1;
    d->scratch = s->resampled;
    union_prune(&d->scratch, budget);
    return lyanna_choice_is_resampled(&s->choice, &d->scratch, lyanna_times_draft_share(&d->times, n));
}

/* Makes the re-sampled tree below the pending token from the remaining rows of the last chain (Algorithm 2), once for
 * each context length. */
static void resample(Lyanna *d, int32_t sequence, int32_t budget, const Tree *tree, int32_t n) {
    LyannaSequence *s = &d->sequences[sequence];
    int64_t at = n_tokens_of(d, sequence), n_used = at - s->logits_at, n_left = d->depth - n_used;
    if (s->resampled_at == at) return;
    s->resampled_at = at;
    s->is_alone = false;
    tree_reset(&s->resampled, tree->nodes[0].token);
    if (d->learned.sequences[sequence].is_drawing) return;
    if (s->logits_at < 0 || s->is_spent || n_used < 1 || n_left <= d->threshold) return;
    lyanna_build_subtree(&d->sampler, sequence, 1 + (int32_t)n_used, s->logits + n_used * d->learned.n_vocab,
                         s->states + n_used * d->gate.rank, s->confidence + n_used, (int32_t)n_left, LYANNA_RESAMPLED,
                         &s->resampled);
    s->is_spent = d->fusion == FUSION_OFF;
    s->is_alone = choose_alone(d, s, budget, tree, n);
}

/* Computes the chains of the group, and their logits in one product. */
static int make_chains(Lyanna *d, fr_error *err) {
    int64_t chain = (int64_t)d->depth * d->learned.n_vocab, of_gate = (int64_t)d->depth * d->gate.rank;
    int status = d->n_group > 0 ? lyanna_layer_chain(&d->layer, d->group, d->n_group, err) : FR_OK;
    if (status) return status;
    learned_head(&d->learned, d->layer.chains, d->n_group * d->depth, d->product);
    if (d->gate.rank) info_gate_states(&d->gate, d->layer.chains, d->n_group * d->depth);
    for (int32_t i = 0; i < d->n_group; i++) {
        LyannaSequence *s = &d->sequences[d->group[i]];
        memcpy(s->logits, d->product->floats + i * chain, (size_t)chain * sizeof *s->logits);
        if (d->gate.rank) memcpy(s->states, d->gate.states->floats + i * of_gate, (size_t)of_gate * sizeof *s->states);
        for (int32_t k = 0; k < d->depth; k++)
            s->confidence[k] = confidence_of_state(&d->confidence, d->layer.chains->floats +
                                                                       ((int64_t)i * d->depth + k) * d->learned.n_embd);
        s->logits_at = n_tokens_of(d, d->group[i]);
        s->is_spent = false;
    }
    d->n_group = 0;
    return FR_OK;
}

static void write_proposal(Lyanna *d, int32_t sequence, int32_t budget, Tree *tree) {
    LyannaSequence *s = &d->sequences[sequence];
    int64_t at = n_tokens_of(d, sequence);
    if (s->is_alone) {
        union_merge(tree, &s->resampled);
        union_prune(tree, budget);
        return;
    }
    if (s->fresh_at != at || d->learned.sequences[sequence].is_drawing) {
        tree_reset(&s->fresh, tree->nodes[0].token);
        lyanna_build_subtree(&d->sampler, sequence, 1, s->logits, s->states, s->confidence, d->depth, LYANNA_FRESH,
                             &s->fresh);
        s->fresh_at = at;
    }
    union_merge(tree, &s->fresh);
    learned_prune(&d->learned, sequence, tree, budget < d->max_fresh ? budget : d->max_fresh);
    if (s->resampled.n == 1) return;
    lyanna_reweight(&s->resampled, &s->fresh, lyanna_trust(&s->resampled_hit_rate, &s->fresh_hit_rate), &d->scratch);
    union_prune(&d->scratch, budget); /* both together must fit into one tree */
    union_merge(tree, &d->scratch);
    union_prune(tree, budget);
}

static int propose(Drafter *drafter, const int32_t *sequences, const int32_t *budgets, Tree *const *trees, int n,
                   fr_error *err) {
    Lyanna *d = (Lyanna *)drafter;
    double began_s = clock_s();
    int32_t n_fresh = 0;
    int status = FR_OK;
    lyanna_times_begin(&d->times, began_s);
    d->n_group = 0;
    for (int i = 0; i < n && !status; i++) {
        const LyannaSequence *s = &d->sequences[sequences[i]];
        if (budgets[i] < 1 || !learned_hidden(&d->learned, sequences[i])) continue;
        learned_start(&d->learned, sequences[i], trees[i]);
        resample(d, sequences[i], budgets[i], trees[i], n);
        if (s->is_alone || s->logits_at == n_tokens_of(d, sequences[i])) continue;
        n_fresh++;
        d->group[d->n_group++] = sequences[i];
        if (d->n_group == d->max_group) status = make_chains(d, err);
    }
    if (!status) status = make_chains(d, err);
    for (int i = 0; i < n && !status; i++)
        if (budgets[i] > 0 && learned_hidden(&d->learned, sequences[i]))
            write_proposal(d, sequences[i], budgets[i], trees[i]);
    lyanna_times_end(&d->times, clock_s(), began_s, n_fresh);
    return status;
}

static const char *const tags[] = {"resampled", NULL};

extern const DrafterClass draft_lyanna_class;
const DrafterClass draft_lyanna_class = {
    .name = "lyanna",
    .summary =
        "drafts hidden states and samples tokens from them last; after a rejection the rest of the draft is used again",
    .option_table = option_table,
    .options_size = sizeof(LyannaOptions),
    .needs_hidden = true,
    .tags = tags,
    .open = open_lyanna,
    .close = close_lyanna,
    .set_sampling = learned_set_sampling,
    .begin = begin,
    .observe_prompt = entries_observe_prompt,
    .take_over = entries_take_over,
    .n_held = entries_n_held,
    .save = entries_save,
    .load = entries_load,
    .observe_tree = observe_tree,
    .observe = observe,
    .propose = propose,
    .end = entries_end,
    .needs_logits = true,
};

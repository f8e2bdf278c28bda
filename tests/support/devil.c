/* devil.c - drafters that a sound engine must survive: random, always right, always wrong, malformed. */
#include "devil.h"

#include "base/rng.h"

#include <math.h>
#include <stdbool.h>

static uint32_t draw(Devil *d, uint32_t below) {
    uint32_t words[4];
    rng_words(d->seed, RNG_TEST, d->n_proposed++, 0, words);
    return words[0] % below;
}

static void close_devil(Drafter *drafter) { (void)drafter; } /* the caller owns the memory */

static int begin(Drafter *drafter, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err) {
    (void)tokens, (void)err;
    fr_assert(sequence >= 0 && sequence < DEVIL_MAX_SEQUENCES);
    ((Devil *)drafter)->n_seen[sequence] = n;
    return FR_OK;
}

static int observe(Drafter *drafter, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err) {
    (void)tokens, (void)err;
    ((Devil *)drafter)->n_seen[sequence] += n;
    return FR_OK;
}

static void end(Drafter *drafter, int32_t sequence) { ((Devil *)drafter)->n_seen[sequence] = 0; }

/* Returns the oracle's token `ahead` positions after the pending one, or -1. */
static int32_t foreseen(const Devil *d, int32_t sequence, int32_t ahead) {
    int64_t i = d->n_seen[sequence] - 1 + ahead;
    return d->oracle[sequence] && i < d->n_oracle[sequence] ? d->oracle[sequence][i] : -1;
}

static void propose_random(Devil *d, Tree *t, int32_t budget) {
    int32_t n = (int32_t)draw(d, (uint32_t)budget + 1);
    for (int32_t i = 0; i < n; i++) {
        int32_t parent = (int32_t)draw(d, (uint32_t)t->n);
        float p_accept = t->nodes[parent].p_accept * (0.5f + 0.5f * (float)draw(d, 100) / 100);
        tree_add(t, parent, (int32_t)draw(d, (uint32_t)d->n_vocab), p_accept, d->base.source);
    }
}

static void propose_right(Devil *d, int32_t sequence, Tree *t, int32_t budget) {
    int32_t parent = 0, token;
    for (int32_t i = 1; i <= budget && (token = foreseen(d, sequence, i)) >= 0; i++)
        parent = tree_add(t, parent, token, 1, d->base.source);
}

/* Children of node 0 differ from the oracle; the oracle's later tokens below them can therefore not be accepted. */
static void propose_wrong(Devil *d, int32_t sequence, Tree *t, int32_t budget) {
    int32_t truth = foreseen(d, sequence, 1), parent = 0;
    for (int32_t i = 1; i <= budget; i++) {
        bool top = parent == 0 || draw(d, 3) == 0;
        int32_t token = top ? (int32_t)draw(d, (uint32_t)d->n_vocab) : foreseen(d, sequence, i);
        if (top && token == truth) token = (token + 1) % d->n_vocab;
        if (token >= 0) parent = tree_add(t, top ? 0 : parent, token, 1, d->base.source);
    }
}

void devil_break(Tree *t, DevilFault fault, int32_t n_vocab, int32_t budget) {
    tree_add(t, 0, 0, 0.5f, 0);
    tree_add(t, 1, 1, 0.25f, 0);
    TreeNode *root = &t->nodes[0], *last = &t->nodes[2];
    switch (fault) {
    case DEVIL_ROOT_TOKEN: root->token = root->token ? 0 : 1; break;
    case DEVIL_ROOT_PARENT: root->parent = 0; break;
    case DEVIL_ROOT_DEPTH: root->depth = 1; break;
    case DEVIL_ROOT_P_ACCEPT: root->p_accept = 0.5f; break;
    case DEVIL_NO_NODES: t->n = 0; break;
    case DEVIL_TOO_MANY:
        while (t->n < budget + 2 && t->n < TREE_MAX_NODES) tree_add(t, t->n - 1, 1, 0.25f, 0);
        t->n = budget + 2;
        break;
    case DEVIL_PARENT_LATER: last->parent = 2; break;
    case DEVIL_PARENT_NEGATIVE: last->parent = -1; break;
    case DEVIL_DEPTH: last->depth = 1; break;
    case DEVIL_TOKEN_HIGH: last->token = n_vocab; break;
    case DEVIL_TOKEN_NEGATIVE: last->token = -1; break;
    case DEVIL_DUPLICATE: *last = t->nodes[1]; break;
    case DEVIL_P_ACCEPT_NAN: last->p_accept = NAN; break;
    case DEVIL_P_ACCEPT_HIGH: t->nodes[1].p_accept = 1.5f; break;
    case DEVIL_P_ACCEPT_NEGATIVE: last->p_accept = -0.1f; break;
    case DEVIL_P_ACCEPT_RISES: last->p_accept = 0.75f; break;
    case DEVIL_TAG: last->tag = TREE_N_TAGS; break;
    case DEVIL_FAULT_NONE:
    case DEVIL_N_FAULTS: break;
    }
}

static int propose(Drafter *drafter, const int32_t *sequences, const int32_t *budgets, Tree *const *trees, int n,
                   fr_error *err) {
    (void)err;
    Devil *d = (Devil *)drafter;
    for (int i = 0; i < n; i++) switch (d->kind) {
        case DEVIL_RANDOM: propose_random(d, trees[i], budgets[i]); break;
        case DEVIL_RIGHT: propose_right(d, sequences[i], trees[i], budgets[i]); break;
        case DEVIL_WRONG: propose_wrong(d, sequences[i], trees[i], budgets[i]); break;
        case DEVIL_MALFORMED: devil_break(trees[i], d->fault, d->n_vocab, budgets[i]); break;
        }
    return FR_OK;
}

static const DrafterClass devil_class = {
    .name = "devil",
    .summary = "tests only",

    .close = close_devil,
    .begin = begin,
    .observe = observe,
    .propose = propose,
    .end = end,
};

Devil devil_make(DevilKind kind, DevilFault fault, int32_t n_vocab, uint64_t seed) {
    return (Devil){.base = {.class = &devil_class}, .kind = kind, .fault = fault, .n_vocab = n_vocab, .seed = seed};
}

void devil_oracle(Devil *d, int32_t sequence, const int32_t *stream, int64_t n) {
    fr_assert(sequence >= 0 && sequence < DEVIL_MAX_SEQUENCES);
    d->oracle[sequence] = stream;
    d->n_oracle[sequence] = n;
}

/* draft_ngram_trie.c - the drafter `ngram-trie`: its options, its sequences, and the choice between its two rules.
 *
 * The draft comes from the text itself, so there is no model, no training and no state beyond the text. Each sequence keeps
 * its tokens with chains of equal ones (ngram_text.h): 8 bytes a token and 12 a slot of the table of distinct tokens. That is
 * 15.5 bytes a token of a usual text of 32K tokens, 60 at most (all tokens distinct, just after growing), 14 KB at least. A
 * proposal reads the tree off the positions where the end of the text occurred before. Which tree that is depends on the
 * rule: ngram_rule_paper.c is the paper's, ngram_rule_best.c ours.
 *
 * Invariants: sequences share nothing but working memory; with rule=best and live=1 a text observed token by token
 * gives the same drafts as the same text given to begin. Cost: O(1) for each token observed; a proposal walks the
 * positions of the last token. When it loses: texts that repeat nothing. */
#include "draft/text/draft_ngram_trie.h"

#include "base/mem.h"
#include "draft/text/ngram_rules.h"
#include "draft/text/text_drafter.h"

typedef struct NgramTrie {
    TextDrafter text;
    NgramOptions options;
    NgramScratch scratch;
} NgramTrie;

static const Option option_table[] = {
    {.key = "rule",
     OPT_CHOICE(NgramOptions, rule, "best", "paper"),
     .default_value = "best",
     .help = "best: long and frequent matches vote, and common words fill the tree; paper: the paper's rule"},
    {.key = "n",
     OPT_INT(NgramOptions, n, 2, 512),
     .default_value = "13",
     .help = "rule=paper: tokens of a window, prefix and draft together; above prefix"},
    {.key = "prefix",
     OPT_INT(NgramOptions, prefix, 1, 64),
     .default_value = "3",
     .help = "rule=paper: tokens of the longest prefix looked up"},
    {.key = "live",
     OPT_FLAG(NgramOptions, live),
     .default_value = "1",
     .help = "1: also drafts from generated tokens; 0: from the prompt alone"},
    {.key = NULL},
};

static void close_trie(Drafter *drafter) {
    NgramTrie *d = (NgramTrie *)drafter;
    text_drafter_release(&d->text);
    ngram_scratch_close(&d->scratch);
    mem_free(d);
}

static int open_trie(Drafter **out, const void *options, const DrafterEnv *env, fr_error *err) {
    const NgramOptions *o = options;
    if (o->n <= o->prefix)
        return error_set(err, FR_ERR_ARGUMENT, "ngram-trie: 'n=%d' must be above 'prefix=%d'", o->n, o->prefix);
    NgramTrie *d = mem_calloc(1, sizeof *d);
    if (!d) return error_memory(err, "ngram-trie", sizeof *d);
    d->options = *o;
    int status = text_drafter_init(&d->text, env, err);
    if (!status) status = ngram_scratch_open(&d->scratch, env->n_vocab, err);
    if (status) {
        close_trie(&d->text.base);
        return status;
    }
    *out = &d->text.base;
    return FR_OK;
}

static int observe(Drafter *drafter, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err) {
    if (((NgramTrie *)drafter)->options.live) return text_drafter_observe(drafter, sequence, tokens, n, err);
    return text_drafter_observe_unindexed(drafter, sequence, tokens, n, err);
}

static int propose(Drafter *drafter, const int32_t *sequences, const int32_t *budgets, Tree *const *trees, int n,
                   fr_error *err) {
    NgramTrie *d = (NgramTrie *)drafter;
    for (int i = 0; i < n; i++) {
        const NgramText *t = text_drafter_text(&d->text, sequences[i]);
        fr_assert(t->n > 0 && trees[i]->nodes[0].token == t->tokens[t->n - 1]);
        int status = d->options.rule == NGRAM_RULE_PAPER
                         ? ngram_rule_paper(&d->scratch, t, &d->options, drafter->source, budgets[i], trees[i], err)
                         : ngram_rule_best(&d->scratch, t, drafter->source, budgets[i], trees[i], err);
        if (status) return status;
    }
    return FR_OK;
}

size_t draft_ngram_trie_bytes(const Drafter *drafter, int32_t sequence) {
    return ngram_text_bytes(text_drafter_text((const TextDrafter *)drafter, sequence));
}

const DrafterClass draft_ngram_trie_class = {
    .name = "ngram-trie",
    .summary = "a tree of what followed earlier occurrences of the last tokens in the text",
    .option_table = option_table,
    .options_size = sizeof(NgramOptions),
    .open = open_trie,
    .close = close_trie,
    .begin = text_drafter_begin,
    .observe = observe,
    .propose = propose,
    .end = text_drafter_end,
};

/* draft_ngram_trie.c - the drafter `ngram-trie`: options, sequences, and the way to its rules.
 *
 * The draft comes from the text itself, so there is no model, no training and no state beyond the text.
 * Each sequence keeps its tokens with chains of equal ones (ngram_text.h): 8 bytes a token and 12 a slot of
 * the table of distinct tokens. That is 15.5 bytes a token of a usual text of 32K tokens, 60 at most (all
 * tokens distinct, just after growing), 14 KB at least. A proposal
 * reads the tree off the places where the end of the text occurred before. Which tree: ngram_rule_paper.c
 * is the paper's rule, ngram_rule_best.c ours.
 *
 * Invariants: sequences share nothing but working memory; with rule=best and live=1 a text observed token
 * by token drafts exactly what the same text given to begin drafts. Cost: O(1) a token observed; a proposal
 * walks the places of the last token. When it loses: texts that repeat nothing. */
#include "spec/drafters/text/draft_ngram_trie.h"

#include "base/mem.h"
#include "spec/drafters/text/ngram_rules.h"

#include <string.h>

typedef struct NgramTrie {
    Drafter base;
    NgramOptions options;
    NgramScratch scratch;
    int32_t n_vocab, max_sequences, n_ctx;
    NgramText *texts; /* [max_sequences] */
} NgramTrie;

static const DrafterOption options[] = {
    {"rule", "best", "best: long and frequent matches vote, common words fill up; paper: the paper's rule"},
    {"n", "13", "rule=paper: tokens in a window, prefix and draft together"},
    {"prefix", "3", "rule=paper: tokens of the longest prefix looked up"},
    {"live", "1", "1: generated tokens are drafted from too; 0: the prompt alone"},
    {NULL, NULL, NULL},
};

static void close_trie(Drafter *drafter) {
    NgramTrie *d = (NgramTrie *)drafter;
    if (d->texts)
        for (int32_t i = 0; i < d->max_sequences; i++) ngram_text_free(&d->texts[i]);
    mem_free(d->texts);
    ngram_scratch_close(&d->scratch);
    mem_free(d);
}

static int parse_options(const DraftSpec *spec, NgramOptions *out, fr_error *err) {
    const DrafterClass *class = &draft_ngram_trie_class;
    const char *rule = draft_spec_get(spec, class, "rule");
    int64_t prefix, n, live;
    if (strcmp(rule, "paper") != 0 && strcmp(rule, "best") != 0)
        return error_set(err, FR_ERR_ARGUMENT, "ngram-trie: 'rule=%.40s' must be paper or best", rule);
    int status = draft_spec_get_int(spec, class, "prefix", 1, 64, &prefix, err);
    if (!status) status = draft_spec_get_int(spec, class, "n", prefix + 1, 512, &n, err);
    if (!status) status = draft_spec_get_int(spec, class, "live", 0, 1, &live, err);
    if (status) return status;
    *out = (NgramOptions){
        .n = (int32_t)n, .prefix = (int32_t)prefix, .paper = strcmp(rule, "paper") == 0, .live = live == 1};
    return FR_OK;
}

static int open_trie(Drafter **out, const DraftSpec *spec, const DrafterEnv *env, fr_error *err) {
    NgramOptions parsed;
    int status = parse_options(spec, &parsed, err);
    if (status) return status;
    fr_assert(env->n_vocab > 0 && env->max_sequences > 0);
    NgramTrie *d = mem_calloc(1, sizeof *d);
    if (!d) return error_memory(err, "ngram-trie", sizeof *d);
    d->options = parsed;
    d->n_vocab = env->n_vocab;
    d->max_sequences = env->max_sequences;
    d->n_ctx = env->n_ctx;
    d->texts = mem_calloc((size_t)env->max_sequences, sizeof *d->texts);
    if (!d->texts) status = error_memory(err, "ngram-trie", (size_t)env->max_sequences * sizeof *d->texts);
    if (!status) status = ngram_scratch_open(&d->scratch, env->n_vocab, err);
    if (status) {
        close_trie(&d->base);
        return status;
    }
    *out = &d->base;
    return FR_OK;
}

static NgramText *text_of(const NgramTrie *d, int32_t sequence) {
    fr_assert(sequence >= 0 && sequence < d->max_sequences);
    return &d->texts[sequence];
}

static int begin(Drafter *drafter, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err) {
    NgramTrie *d = (NgramTrie *)drafter;
    NgramText *t = text_of(d, sequence);
    ngram_text_free(t);
    int status = ngram_text_reserve(t, d->n_ctx, d->n_vocab, err);
    if (!status) status = ngram_text_append(t, tokens, n, d->n_vocab, true, err);
    t->n_prompt = t->n;
    return status;
}

static int observe(Drafter *drafter, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err) {
    NgramTrie *d = (NgramTrie *)drafter;
    return ngram_text_append(text_of(d, sequence), tokens, n, d->n_vocab, d->options.live, err);
}

static int propose(Drafter *drafter, const int32_t *sequences, const int32_t *budgets, Tree *const *trees,
                   int n, fr_error *err) {
    NgramTrie *d = (NgramTrie *)drafter;
    for (int i = 0; i < n; i++) {
        const NgramText *t = text_of(d, sequences[i]);
        fr_assert(t->n > 0 && trees[i]->nodes[0].token == t->tokens[t->n - 1]);
        int status =
            d->options.paper
                ? ngram_rule_paper(&d->scratch, t, &d->options, drafter->source, budgets[i], trees[i], err)
                : ngram_rule_best(&d->scratch, t, drafter->source, budgets[i], trees[i], err);
        if (status) return status;
    }
    return FR_OK;
}

static void end(Drafter *drafter, int32_t sequence) {
    NgramTrie *d = (NgramTrie *)drafter;
    ngram_text_free(text_of(d, sequence));
}

size_t draft_ngram_trie_bytes(const Drafter *drafter, int32_t sequence) {
    return ngram_text_bytes(text_of((const NgramTrie *)drafter, sequence));
}

const DrafterClass draft_ngram_trie_class = {
    .name = "ngram-trie",
    .summary = "copies what followed the last words where they stood before in the text",
    .options = options,
    .open = open_trie,
    .close = close_trie,
    .begin = begin,
    .observe = observe,
    .propose = propose,
    .end = end,
};

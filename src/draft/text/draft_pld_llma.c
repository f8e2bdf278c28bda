/* draft_pld_llma.c - the drafters `pld` and `llma`, which find where the end of the text occurred before and copy what
 * followed it. They differ in the shortest match, in the length of the copy, and in which part of the text is indexed.
 *
 * `pld` is prompt lookup decoding (Saxena 2023), the simplest drafter there is.
 *
 * The problem: answers quote. A summary repeats names and half sentences of its source, an edit repeats all but a few
 * words. A text that has just repeated three words of the source will probably repeat the fourth.
 *
 * The idea: look for the last n tokens of the text earlier in the text; where they occur, propose the next `length`
 * tokens. Try the longest n-gram first (3), then 2, then 1; the first match is taken. There is no paper, only the
 * author's repository (github.com/apoorvumang/prompt-lookup-decoding). The figures usually quoted (Spec-Bench) are for
 * n-grams of 3 to 1 tokens, copies of 10 tokens, and the earliest of several matches.
 *
 *     text   the cat sat on the mat . the cat|          last 3 ". the cat": not found
 *            0   1   2   3  4   5   6 7   8             last 2 "the cat": ends at 1
 *     draft  sat on the mat . the cat                   a chain: all that follows position 1, at most 10
 *
 * Where we differ: the search covers prompt and answer, as the original's does, but is not repeated for each n: the
 * positions of the last token are chained (text_index.h), and one walk over them counts how many tokens match at each
 * and keeps the best. If fewer than `length` tokens follow a match, the original goes on to the next match; we take the
 * tokens that are there, like its later versions. match=latest takes the latest of equal matches instead, which is
 * nearer in topic. `p_accept` is the product along the chain of m / (m + 2), where m is the number of tokens that match
 * before a token, counted beyond n: a single match of m tokens is continued about that often on recorded answers
 * (`forerun replay --calibration`).
 *
 * Invariants: a draft is a chain of at most min(length, budget) nodes; p_accept falls along it; sequences share
 * nothing. Memory: 8 bytes for each token of the text and 12 for each slot of the table of its distinct tokens. Cost:
 * O(1) for each token observed; a proposal walks all positions of the last token for the earliest match, fewer for the
 * latest: 0.1 us on recorded answers. When it loses: on texts that repeat nothing; and it follows only one match, where
 * ngram-trie drafts from all of them. Proof: tests/draft/test_draft_pld.c compares it with a naive search on random
 * texts. */
#include "base/mem.h"
#include "draft/text/text_drafter.h"

/* A match of more than MAX_TRUSTED tokens is practically certain to continue. */
enum { MAX_TRUSTED = 16 };

typedef struct CopyRule {
    int32_t shortest, longest; /* tokens of a match; the longest match wins, counted up to `longest` */
    int32_t length;            /* tokens copied at most */
    bool latest;               /* the latest of equally long matches is taken, instead of the earliest */
} CopyRule;

typedef struct CopyDrafter {
    TextDrafter text;
    CopyRule rule;
} CopyDrafter;

/* Returns the position of the last token of the best match, or -1 if there is none. Only indexed positions that another
 * token follows are searched. */
static int32_t find_match(const NgramText *t, const CopyRule *rule) {
    int32_t best = -1, best_match = rule->shortest - 1;
    for (int32_t p = ngram_text_last(t, t->tokens[t->n - 1]); p >= 0; p = t->previous[p]) {
        if (p + 1 >= t->n_indexed) continue; /* no token follows */
        int32_t match = ngram_text_match(t, p, rule->longest);
        if (match < best_match || match < rule->shortest) continue;
        if (match == best_match && rule->latest) continue; /* positions come latest first */
        best = p;
        best_match = match;
        if (rule->latest && match == rule->longest) break;
    }
    return best;
}

/* Adds the span as a chain below node 0, of at most `budget` nodes. */
static void copy_span(const NgramText *t, const CopyRule *rule, int32_t source, int32_t budget, Tree *tree) {
    int32_t at = find_match(t, rule);
    if (at < 0) return;
    int32_t match = ngram_text_match(t, at, MAX_TRUSTED), length = rule->length < budget ? rule->length : budget;
    double p_accept = 1;
    for (int32_t i = 1, node = 0; i <= length && at + i < t->n_indexed && node >= 0; i++, match++) {
        p_accept *= text_drafter_share(1, 1, match, TEXT_SMOOTHING);
        node = tree_add(tree, node, t->tokens[at + i], (float)p_accept, source);
    }
}

static void close_copy(Drafter *d) {
    text_drafter_release((TextDrafter *)d);
    mem_free(d);
}

static int open_copy(Drafter **out, CopyRule rule, const char *method, const DrafterEnv *env, fr_error *err) {
    CopyDrafter *d = mem_calloc(1, sizeof *d);
    if (!d) return error_memory(err, method, sizeof *d);
    d->rule = rule;
    *out = &d->text.base;
    int status = text_drafter_init(&d->text, env, err);
    if (status) close_copy(*out);
    return status;
}

static int propose(Drafter *drafter, const int32_t *sequences, const int32_t *budgets, Tree *const *trees, int n,
                   fr_error *err) {
    (void)err;
    const CopyDrafter *d = (CopyDrafter *)drafter;
    for (int i = 0; i < n; i++)
        copy_span(text_drafter_text(&d->text, sequences[i]), &d->rule, drafter->source, budgets[i], trees[i]);
    return FR_OK;
}

/* ---- pld ------------------------------------------------------------------------------------------------- */

enum { EARLIEST, LATEST };

typedef struct PldOptions {
    int32_t n, length;
    int match; /* EARLIEST, LATEST */
} PldOptions;

static const Option pld_options[] = {
    {.key = "n",
     OPT_INT(PldOptions, n, 1, 64),
     .default_value = "3",
     .help = "length of the longest n-gram looked up; then one token less, down to 1"},
    {.key = "length",
     OPT_INT(PldOptions, length, 1, TREE_MAX_NODES - 1),
     .default_value = "10",
     .help = "maximal number of tokens proposed"},
    {.key = "match",
     OPT_CHOICE(PldOptions, match, "earliest", "latest"),
     .default_value = "earliest",
     .help = "earliest or latest: which of several equally long matches is copied from"},
    {.key = NULL},
};

static int open_pld(Drafter **out, const void *options, const DrafterEnv *env, fr_error *err) {
    const PldOptions *o = options;
    CopyRule rule = {.shortest = 1, .longest = o->n, .length = o->length, .latest = o->match == LATEST};
    return open_copy(out, rule, "pld", env, err);
}

extern const DrafterClass draft_pld_class;
const DrafterClass draft_pld_class = {
    .name = "pld",
    .summary = "prompt lookup: copies the span that followed an earlier occurrence of the last tokens",
    .option_table = pld_options,
    .options_size = sizeof(PldOptions),
    .open = open_pld,
    .close = close_copy,
    .begin = text_drafter_begin,
    .observe = text_drafter_observe,
    .propose = propose,
    .end = text_drafter_end,
};

/* ---- llma ------------------------------------------------------------------------------------------------ */

/* `llma` copies from a reference (Yang et al. 2023, arXiv 2304.04487).
 *
 * The problem: the prompt contains a retrieved document, the previous version of a text or the previous turn, and the
 * answer repeats whole passages of it word for word.
 *
 * The idea: the reference is known before the first token, so it is indexed once. As soon as the last n tokens of the
 * answer are found in it (the trigger), the next k tokens of the reference are copied into the step and checked
 * together; after the first disagreement plain decoding continues until the next trigger. The paper's symbols are our
 * options: n is the trigger's length, k the number of copied tokens. Its released program uses n = 1 and k = 20, and
 * prefers longer triggers, up to 5 tokens; among equal ones it takes the first in the reference.
 *
 *     reference (the prompt)   ... Ada Lovelace wrote the first program for ...
 *     answer so far            It was Ada|      "Ada" occurs in the reference: copy
 *     draft                    Lovelace wrote the first program for ...      k tokens, a chain
 *
 * Where we differ: the reference is the whole prompt, since nothing in the request marks the documents; so the
 * trigger may extend back into the end of the prompt. The released program counts the pending token among the k and
 * so copies k - 1; we copy k. llma differs from pld in that nothing is copied from the answer itself, in longer
 * triggers (5 instead of 3) and in longer copies (20 instead of 10).
 *
 * Layout and p_accept are those of pld, but only the prompt is in the chains of equal tokens; the answer is stored to
 * be matched. Invariants: every drafted token occurs in the prompt; a draft is a chain; p_accept falls along it;
 * sequences share nothing. Memory: 8 bytes for each token, 12 for each slot of the table of the prompt's distinct
 * tokens. Cost: one walk over the positions of the last token in the prompt, 0.1 us on recorded answers. When it loses:
 * whenever the answer does not quote. A trigger of one token is mostly a false one, and then k rows are verified for
 * nothing (the cost shows in "drafted/st"). Proof: tests/draft/test_draft_llma.c compares it with a naive search on
 * random texts. */
enum { LONGEST = 5 }; /* the released program's max_n; a longer n replaces it */

typedef struct LlmaOptions {
    int32_t n, k;
} LlmaOptions;

static const Option llma_options[] = {
    {.key = "n",
     OPT_INT(LlmaOptions, n, 1, 64),
     .default_value = "1",
     .help = "how many of the last tokens must be found in the prompt before anything is copied"},
    {.key = "k",
     OPT_INT(LlmaOptions, k, 1, TREE_MAX_NODES - 1),
     .default_value = "20",
     .help = "maximal number of tokens copied"},
    {.key = NULL},
};

static int open_llma(Drafter **out, const void *options, const DrafterEnv *env, fr_error *err) {
    const LlmaOptions *o = options;
    CopyRule rule = {.shortest = o->n, .longest = o->n > LONGEST ? o->n : LONGEST, .length = o->k};
    return open_copy(out, rule, "llma", env, err);
}

extern const DrafterClass draft_llma_class;
const DrafterClass draft_llma_class = {
    .name = "llma",
    .summary = "copies a long span of the prompt as soon as the last token occurs in it",
    .option_table = llma_options,
    .options_size = sizeof(LlmaOptions),
    .open = open_llma,
    .close = close_copy,
    .begin = text_drafter_begin,
    .observe = text_drafter_observe_unindexed,
    .propose = propose,
    .end = text_drafter_end,
};

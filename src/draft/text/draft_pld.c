/* draft_pld.c - the drafter `pld`: prompt lookup decoding (Saxena 2023), the simplest drafter there is.
 *
 * The problem: answers quote. A summary repeats names and half sentences of its source, an edit repeats all but a few
 * words. A text that has just repeated three words of the source will probably repeat the fourth.
 *
 * The idea: look for the last n tokens of the text earlier in the text; where they occur, propose the next `length`
 * tokens. Try the longest n-gram first (3), then 2, then 1; the first match is taken. There is no paper but the
 * author's repository (github.com/apoorvumang/prompt-lookup-decoding); the figures usually quoted (Spec-Bench) are
 * for n-grams 3 to 1, 10 tokens, and of several matches the earliest.
 *
 *     text   the cat sat on the mat . the cat|          last 3 ". the cat": not found
 *            0   1   2   3  4   5   6 7   8             last 2 "the cat": ends at 1
 *     draft  sat on the mat . the cat                   a chain: all that follows position 1, at most 10
 *
 * Where we differ: the search covers prompt and answer, as the original's does, but is not repeated for each n: the positions
 * of the last token are chained (ngram_text.h), and one walk over them counts how many tokens match at each and keeps the
 * best. The original requires all `length` tokens to be there and goes on to the next match otherwise; we take the tokens
 * there are, as its later versions do. match=latest takes the latest of equal matches instead, which is nearer in topic.
 * `p_accept` of the i-th token is the product over the chain of m / (m + 2), m being the number of tokens that match before
 * it, counted beyond n: a single match of m tokens is continued about that often on recorded answers (`forerun replay
 * --calibration`).
 *
 * Invariants: a chain of at most min(length, budget) nodes; p_accept falls along it; sequences share nothing. Memory:
 * 8 bytes a token of the text and 12 a slot of the table of its distinct tokens. Cost: O(1) for each token observed;
 * a proposal walks all positions of the last token for the earliest match, fewer for the latest: 0.1 us on recorded
 * answers. When it loses: texts that repeat nothing; and it follows one match only, where ngram-trie drafts from all
 * of them. Proof: tests/draft/test_draft_pld.c compares it with a naive search on random texts. */
#include "base/mem.h"
#include "draft/text/copy_span.h"
#include "draft/text/text_drafter.h"

typedef struct Pld {
    TextDrafter text;
    CopyRule rule;
} Pld;

enum { EARLIEST, LATEST };

typedef struct PldOptions {
    int32_t n, length;
    int match; /* EARLIEST, LATEST */
} PldOptions;

static const Option option_table[] = {
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

static void close_pld(Drafter *d) {
    text_drafter_release((TextDrafter *)d);
    mem_free(d);
}

static int open_pld(Drafter **out, const void *options, const DrafterEnv *env, fr_error *err) {
    const PldOptions *o = options;
    Pld *d = mem_calloc(1, sizeof *d);
    if (!d) return error_memory(err, "pld", sizeof *d);
    d->rule = (CopyRule){.shortest = 1, .longest = o->n, .length = o->length, .latest = o->match == LATEST};
    *out = &d->text.base;
    int status = text_drafter_init(&d->text, env, err);
    if (status) close_pld(*out);
    return status;
}

static int propose(Drafter *drafter, const int32_t *sequences, const int32_t *budgets, Tree *const *trees, int n,
                   fr_error *err) {
    (void)err;
    const Pld *d = (Pld *)drafter;
    for (int i = 0; i < n; i++)
        copy_span_draft(text_drafter_text(&d->text, sequences[i]), &d->rule, drafter->source, budgets[i], trees[i]);
    return FR_OK;
}

extern const DrafterClass draft_pld_class;
const DrafterClass draft_pld_class = {
    .name = "pld",
    .summary = "prompt lookup: copies the span that followed an earlier occurrence of the last tokens",
    .option_table = option_table,
    .options_size = sizeof(PldOptions),
    .open = open_pld,
    .close = close_pld,
    .begin = text_drafter_begin,
    .observe = text_drafter_observe,
    .propose = propose,
    .end = text_drafter_end,
};

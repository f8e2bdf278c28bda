/* draft_pld.c - the drafter `pld`: prompt lookup decoding (Saxena 2023), the simplest drafter there is.
 *
 * The problem: answers quote. A summary repeats names and half sentences of its source, an edit repeats all
 * but a few words. Whoever has just written three words of the source will probably write the fourth.
 *
 * The idea: look for the last n tokens of the text earlier in the text; where they stand, propose the next
 * `length` tokens. Try the longest n-gram first (3), then 2, then 1; what matches first is taken. There is no
 * paper but the author's repository (github.com/apoorvumang/prompt-lookup-decoding); the figures everybody
 * quotes (Spec-Bench) are for n-grams 3 to 1, 10 tokens, and of several places the earliest.
 *
 *     text   the cat sat on the mat . the cat|          last 3 ". the cat": nowhere
 *            0   1   2   3  4   5   6 7   8             last 2 "the cat": ends at 1
 *     draft  sat on the mat . the cat                   a chain: all that follows place 1, at most 10
 *
 * Where we differ: the search covers prompt and answer, as the original's does, but is not repeated for each
 * n: the places of the last token are chained (ngram_text.h), one walk over them counts how many tokens
 * match at each and keeps the best. The original wants all `length` tokens to be there and passes on to the
 * next place otherwise; we take the tokens there are, as its later versions do. match=latest takes the
 * latest of equal places instead: what was said last is nearer in topic. `p_accept` of the i-th token is the
 * product over the chain of m / (m + 2), m tokens matching before it, matches counted beyond n: a lone match
 * of m tokens is continued about that often on recorded answers (`forerun replay --calibration`).
 *
 * Invariants: a chain, at most min(length, budget) nodes; p_accept falls along it; sequences share nothing.
 * Memory: 8 bytes a token of the text and 12 a slot of the table of its distinct tokens. Cost: O(1) a token
 * observed; a proposal walks all places of the last token for the earliest, fewer for the latest: 0.1
 * us on recorded answers. When it loses: texts that repeat nothing; and one place is only one
 * guess, where ngram-trie drafts all of them. Proof: tests/test_draft_pld.c compares it with a naive search
 * on random texts. */
#include "base/mem.h"
#include "spec/drafters/text/copy_span.h"
#include "spec/drafters/text/text_drafter.h"

#include <string.h>

extern const DrafterClass draft_pld_class;

typedef struct Pld {
    TextDrafter text;
    CopyRule rule;
} Pld;

static const DrafterOption options[] = {
    {"n", "3", "tokens of the longest n-gram looked up; then one fewer, down to 1"},
    {"length", "10", "tokens proposed at most"},
    {"match", "earliest", "of several places the earliest or the latest"},
    {NULL, NULL, NULL},
};

static int parse_options(const DraftSpec *spec, CopyRule *out, fr_error *err) {
    const char *match = draft_spec_get(spec, &draft_pld_class, "match");
    bool latest = strcmp(match, "latest") == 0;
    if (!latest && strcmp(match, "earliest") != 0)
        return error_set(err, FR_ERR_ARGUMENT, "pld: 'match=%.40s' must be earliest or latest", match);
    int64_t n, length;
    int status = draft_spec_get_int(spec, &draft_pld_class, "n", 1, 64, &n, err);
    if (!status) status = draft_spec_get_int(spec, &draft_pld_class, "length", 1, TREE_MAX_NODES - 1, &length, err);
    if (status) return status;
    *out = (CopyRule){.shortest = 1, .longest = (int32_t)n, .length = (int32_t)length, .latest = latest};
    return FR_OK;
}

static void close_pld(Drafter *d) {
    text_drafter_release((TextDrafter *)d);
    mem_free(d);
}

static int open_pld(Drafter **out, const DraftSpec *spec, const DrafterEnv *env, fr_error *err) {
    CopyRule rule;
    int status = parse_options(spec, &rule, err);
    if (status) return status;
    Pld *d = mem_calloc(1, sizeof *d);
    if (!d) return error_memory(err, "pld", sizeof *d);
    d->rule = rule;
    *out = &d->text.base;
    status = text_drafter_init(&d->text, env, err);
    if (status) close_pld(*out);
    return status;
}

static int propose(Drafter *drafter, const int32_t *sequences, const int32_t *budgets, Tree *const *trees,
                   int n, fr_error *err) {
    (void)err;
    const Pld *d = (Pld *)drafter;
    for (int i = 0; i < n; i++)
        copy_span_draft(text_drafter_text(&d->text, sequences[i]), &d->rule, drafter->source, budgets[i],
                        trees[i]);
    return FR_OK;
}

const DrafterClass draft_pld_class = {
    .name = "pld",
    .summary = "prompt lookup: one span after the last words' earlier place in the text",
    .options = options,
    .open = open_pld,
    .close = close_pld,
    .begin = text_drafter_begin,
    .observe = text_drafter_observe,
    .propose = propose,
    .end = text_drafter_end,
};

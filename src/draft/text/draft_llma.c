/* draft_llma.c - the drafter `llma`: copying from a reference (Yang et al. 2023, arXiv 2304.04487).
 *
 * The problem: the prompt contains a retrieved document, the previous version of a text or the previous turn, and the
 * answer repeats whole passages of it word for word.
 *
 * The idea: the reference is known before the first token, so it is indexed once. As soon as the last n tokens of the
 * answer are found in it (the trigger), the next k tokens of the reference are copied into the step and checked
 * together; after the first disagreement plain decoding continues until the next trigger. The paper's symbols are our
 * options: n the trigger's length, k the number of copied tokens. Its released program uses n = 1 and k = 20, and
 * prefers longer triggers, up to 5 tokens; of equal ones the first in the reference.
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
 * Layout and p_accept are those of pld (draft_pld.c, copy_span.h): only the prompt is in the chains of equal tokens,
 * the answer is stored to match against. Invariants: every drafted token occurs in the prompt; a chain; p_accept
 * falls along it; sequences share nothing. Memory: 8 bytes a token, 12 a slot of the table of the prompt's distinct
 * tokens. Cost: one walk over the positions of the last token in the prompt, 0.1 us on recorded answers. When it
 * loses: whenever the answer does not quote; a trigger of one token is mostly a false one, and then k rows are
 * verified for nothing (the cost shows in "drafted/st"). Proof: tests/draft/test_draft_llma.c compares it with a naive
 * search on random texts. */
#include "base/mem.h"
#include "draft/text/copy_span.h"
#include "draft/text/text_drafter.h"

enum { LONGEST = 5 }; /* the released program's max_n; a longer n replaces it */

typedef struct Llma {
    TextDrafter text;
    CopyRule rule;
} Llma;

typedef struct LlmaOptions {
    int32_t n, k;
} LlmaOptions;

static const Option option_table[] = {
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

static void close_llma(Drafter *d) {
    text_drafter_release((TextDrafter *)d);
    mem_free(d);
}

static int open_llma(Drafter **out, const void *options, const DrafterEnv *env, fr_error *err) {
    const LlmaOptions *o = options;
    Llma *d = mem_calloc(1, sizeof *d);
    if (!d) return error_memory(err, "llma", sizeof *d);
    d->rule = (CopyRule){.shortest = o->n, .longest = o->n > LONGEST ? o->n : LONGEST, .length = o->k};
    *out = &d->text.base;
    int status = text_drafter_init(&d->text, env, err);
    if (status) close_llma(*out);
    return status;
}

static int propose(Drafter *drafter, const int32_t *sequences, const int32_t *budgets, Tree *const *trees, int n,
                   fr_error *err) {
    (void)err;
    const Llma *d = (Llma *)drafter;
    for (int i = 0; i < n; i++)
        copy_span_draft(text_drafter_text(&d->text, sequences[i]), &d->rule, drafter->source, budgets[i], trees[i]);
    return FR_OK;
}

extern const DrafterClass draft_llma_class;
const DrafterClass draft_llma_class = {
    .name = "llma",
    .summary = "copies a long span of the prompt as soon as the last token occurs in it",
    .option_table = option_table,
    .options_size = sizeof(LlmaOptions),
    .open = open_llma,
    .close = close_llma,
    .begin = text_drafter_begin,
    .observe = text_drafter_observe_unindexed,
    .propose = propose,
    .end = text_drafter_end,
};

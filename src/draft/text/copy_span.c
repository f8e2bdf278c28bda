/* copy_span.c - shared by pld and llma: finds where the end of the text occurred before, and copies what followed it.
 *
 * One walk over the earlier positions of the last token (ngram_text.h) counts how many tokens match at each and keeps
 * the best. The two drafters differ in the shortest match, in the length of the copy, and in which part of the text
 * is indexed. */
#include "draft/text/copy_span.h"

#include "draft/text/text_drafter.h"

enum { MAX_TRUSTED = 16 }; /* a longer match is practically certain */

int32_t copy_span_find(const NgramText *t, const CopyRule *rule) {
    int32_t best = -1, best_match = rule->shortest - 1;
    for (int32_t p = ngram_text_last(t, t->tokens[t->n - 1]); p >= 0; p = t->previous[p]) {
        if (p + 1 >= t->n_indexed) continue; /* nothing follows */
        int32_t match = ngram_text_match(t, p, rule->longest);
        if (match < best_match || match < rule->shortest) continue;
        if (match == best_match && rule->latest) continue; /* positions come latest first */
        best = p;
        best_match = match;
        if (rule->latest && match == rule->longest) break;
    }
    return best;
}

void copy_span_draft(const NgramText *t, const CopyRule *rule, int32_t source, int32_t budget, Tree *tree) {
    int32_t at = copy_span_find(t, rule);
    if (at < 0) return;
    int32_t match = ngram_text_match(t, at, MAX_TRUSTED), length = rule->length < budget ? rule->length : budget;
    double p_accept = 1;
    for (int32_t i = 1, node = 0; i <= length && at + i < t->n_indexed && node >= 0; i++, match++) {
        p_accept *= text_drafter_share(1, 1, match, TEXT_SMOOTHING);
        node = tree_add(tree, node, t->tokens[at + i], (float)p_accept, source);
    }
}

/* copy_span.h - the step pld and llma share: find where the end of the text stood before, copy what followed.
 */
#ifndef TEXT_COPY_SPAN_H
#define TEXT_COPY_SPAN_H

#include "spec/drafters/text/ngram_text.h"
#include "spec/tree/tree.h"

#include <stdbool.h>

typedef struct CopyRule {
    int32_t shortest, longest; /* tokens of a match: the longest found counts, up to `longest` */
    int32_t length;            /* tokens copied at most */
    bool latest;               /* of equal matches the latest; else the earliest */
} CopyRule;

/* The place of the last token of the match, among the indexed ones with an indexed token after them; -1:
 * none. */
int32_t copy_span_find(const NgramText *t, const CopyRule *rule);

/* Adds the span as a chain below node 0: at most `budget` nodes. */
void copy_span_draft(const NgramText *t, const CopyRule *rule, int32_t source, int32_t budget, Tree *tree);

#endif

/* copy_span.h - shared by pld and llma: finds where the end of the text occurred before, and copies what followed it.
 */
#ifndef TEXT_COPY_SPAN_H
#define TEXT_COPY_SPAN_H

#include "draft/text/ngram_text.h"
#include "tree/tree.h"

#include <stdbool.h>

typedef struct CopyRule {
    int32_t shortest, longest; /* tokens of a match; the longest match wins, counted up to `longest` */
    int32_t length;            /* tokens copied at most */
    bool latest;               /* of equally long matches the latest; else the earliest */
} CopyRule;

/* The position of the last token of the best match, among the indexed positions that are followed by another one; -1:
 * there is no match. */
int32_t copy_span_find(const NgramText *t, const CopyRule *rule);

/* Adds the span as a chain below node 0, of at most `budget` nodes. */
void copy_span_draft(const NgramText *t, const CopyRule *rule, int32_t source, int32_t budget, Tree *tree);

#endif

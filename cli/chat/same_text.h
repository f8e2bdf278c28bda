/* same_text.h - one text, cut into tokens in two ways. */
#ifndef CHAT_SAME_TEXT_H
#define CHAT_SAME_TEXT_H

#include "forerun.h"

/* Where in the tokens b, [n_b], the text of all of a, [n_a], ends: b may cut the same bytes into other tokens, and have
 * other white space. -1: b does not begin with the text of a, or has no token that ends there. Special tokens equal
 * themselves alone. */
int64_t same_text_end(const fr_model *model, const int32_t *a, int64_t n_a, const int32_t *b, int64_t n_b);

#endif

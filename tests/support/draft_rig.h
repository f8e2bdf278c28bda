/* draft_rig.h - drafters in tests: random texts over tiny alphabets, fed in pieces, and validated proposals. */
#ifndef TESTS_DRAFT_RIG_H
#define TESTS_DRAFT_RIG_H

#include "testing.h"

#include "draft/drafter.h"

int32_t rig_below(int32_t n); /* the next of a fixed stream of random numbers, 0..n-1 */
/* Writes a random text that repeats earlier passages. */
void rig_fill_text(int32_t *tokens, int32_t n, int32_t alphabet);

Drafter *rig_open_drafter(const char *spec, int32_t n_vocab, int32_t n_sequences);
/* Calls begin with n_prompt tokens, and then observe with the other tokens in pieces of 1 to 4. */
void rig_feed(Drafter *d, int32_t sequence, const int32_t *text, int32_t n_prompt, int32_t n);
/* Proposes a tree and validates it. */
void rig_propose(Drafter *d, int32_t sequence, int32_t pending, int32_t budget, int32_t n_vocab, Tree *t);
/* Fails unless the trees are the same, node by node. */
void rig_assert_same_tree(const Tree *want, const Tree *got, const char *what);

/* Checks that several sequences that are fed in turns get the drafts that each gets by itself. The drafter must not
 * learn across sequences. */
void rig_check_sequences_are_independent(const char *spec);
/* Checks that tokens outside the vocabulary are refused. */
void rig_check_refuses_unknown_tokens(const char *spec);

#endif

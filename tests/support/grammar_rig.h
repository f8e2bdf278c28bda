/* grammar_rig.h - grammars in tests: compiled from text or from expressions, and a matcher that tries everything. */
#ifndef TESTS_GRAMMAR_RIG_H
#define TESTS_GRAMMAR_RIG_H

#include "testing.h"

#include "grammar/grammar.h"
#include "grammar/readers.h"

typedef struct GrammarRig {
    Work w;
    ExprGrammar g;
    Automaton *automaton;
    GrammarStates *states;
    char notice[GRAMMAR_NOTICE];
    fr_error err; /* the reason why the grammar was refused */
} GrammarRig;

/* False: the grammar was refused, for the reason in err, and there is nothing to close. */
bool grammar_rig_open(GrammarRig *r, GrammarKind kind, const char *text);
/* The same with rules that `make` writes. */
bool grammar_rig_make(GrammarRig *r, void (*make)(ExprGrammar *g, void *user), void *user);
void grammar_rig_close(GrammarRig *r);

/* Returns the state after one more byte, without a quota. NULL: it failed. */
const GrammarState *state_after(GrammarStates *s, const GrammarState *state, uint8_t byte, fr_error *err);
/* Returns the state after n bytes of text. */
const GrammarState *grammar_rig_read(GrammarRig *r, const char *text, size_t n);
bool grammar_rig_matches(GrammarRig *r, const char *text);
/* Returns whether the text matches the expressions, found by trying everything; n <= 31. */
bool grammar_rig_naive(const GrammarRig *r, const char *text, size_t n);
/* Returns whether some text can follow that ends in a match. */
bool grammar_rig_can_end(GrammarRig *r, const GrammarState *from);

#endif

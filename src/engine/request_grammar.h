/* request_grammar.h - the grammar of a request: its state, and what it does to the tree of a step. Without a grammar each
 * function does nothing. */
#ifndef ENGINE_REQUEST_GRAMMAR_H
#define ENGINE_REQUEST_GRAMMAR_H

#include "forerun.h"
#include "grammar/grammar.h"
#include "tree/tree.h"
#include "verify/verifier.h"

typedef struct RequestGrammar {
    GrammarText text;            /* text.grammar NULL: the request has none */
    const GrammarState **states; /* [TREE_MAX_NODES] after each node of a tree, in this step */
    VerifyMasks masks;
    int status; /* why a state or a mask could not be found in this step */
    fr_error error;
} RequestGrammar;

int request_grammar_begin(fr_request *r, const fr_request_options *o, fr_error *err);
void request_grammar_end(fr_request *r);
/* Whether the draft of what the grammar forces joins those of the options, which r has. */
bool request_grammar_wants_draft(const fr_request *r, const fr_request_options *o, bool has_auto);
/* Before a step. */
void request_grammar_refresh(fr_request *r);
/* Removes the nodes that the grammar forbids, with all below them. Not under a rule that needs its trees, where a forbidden
 * node has no probability and is rejected. */
void request_grammar_prune(fr_request *r, Tree *t);
/* Before verification: finds the state after each node. Fails where no token is allowed behind the text. */
int request_grammar_enter(fr_request *r, fr_error *err);
/* For VerifyInput.masks. */
const VerifyMasks *request_grammar_masks(const fr_request *r);
/* After it: cuts the verdict before a node behind which no token is allowed, where plain decoding ends too. */
int request_grammar_check(const fr_request *r, VerifyResult *v, fr_error *err);
/* A token was generated: FR_FINISH_EOS if nothing can follow, FR_FINISH_ERROR with r->error set, else FR_FINISH_NONE. */
fr_finish request_grammar_advance(fr_request *r, int32_t token);

#endif

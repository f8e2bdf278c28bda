/* request_grammar.h - the grammar of a request: its state, and what it does to the tree of a step. Without a grammar
 * each function does nothing. */
#ifndef ENGINE_REQUEST_GRAMMAR_H
#define ENGINE_REQUEST_GRAMMAR_H

#include "forerun.h"
#include "grammar/grammar.h"
#include "tree/tree.h"
#include "verify/verifier.h"

/* The work of all grammars in one step, in the units of grammar/states.h: two to three milliseconds. Most masks take
 * less than a tenth of that. */
enum { GRAMMAR_STEP_WORK = 400000 };

typedef struct RequestGrammar {
    GrammarText text;            /* text.grammar NULL: the request has none */
    const GrammarState **states; /* [TREE_MAX_NODES] after each node of a tree, in this step */
    VerifyMasks masks;
    int status; /* why a state or a mask could not be found in this step */
    fr_error error;
    GrammarQuota quota;         /* of work in this step */
    const GrammarState *wanted; /* a state that the request waits for something of; NULL: it does not wait */
    int32_t wanted_token;       /* it waits for the state after this token; -1: for the mask of `wanted` */
    bool sits_out;              /* it waits, and has no rows in this step */
    bool is_behind;             /* it sat out the last step, or its verdict was dropped */
} RequestGrammar;

int request_grammar_begin(fr_request *r, const fr_request_options *o, fr_error *err);
void request_grammar_end(fr_request *r);
/* Whether the draft of what the grammar forces joins those of the options, which r has. */
bool request_grammar_wants_draft(const fr_request *r, const fr_request_options *o, bool has_auto);
/* Begins a step in which the grammar may do that much work. A request that waits goes on with what it waits for, and
 * sits out the step if it still is not there. */
void request_grammar_begin_step(fr_request *r, int64_t quota);
/* Whether the request's tree may have rows in this step. Under a rule that needs its trees, a tree that is smaller
 * because the quota ran out may not. */
bool request_grammar_is_ready(fr_request *r);
/* Removes the nodes that the grammar forbids, with all nodes below them. It does nothing under a rule that needs its
 * trees, where a forbidden node has no probability and is rejected. */
void request_grammar_prune(fr_request *r, Tree *t);
/* Before verification: finds the state after each node. Fails where no token is allowed after the text. STATES_WAIT:
 * the quota ran out; the verdict is dropped, and the step is done again when the request no longer waits. */
int request_grammar_enter(fr_request *r, fr_error *err);
/* For VerifyInput.masks. */
const VerifyMasks *request_grammar_masks(const fr_request *r);
/* After it: cuts the verdict before a node after which no token is allowed, where plain decoding ends too, and
 * before one whose mask is not known yet, which then begins the next step. STATES_WAIT: as above. */
int request_grammar_check(fr_request *r, VerifyResult *v, fr_error *err);
/* A token was generated: FR_FINISH_EOS if nothing can follow, FR_FINISH_ERROR with r->error set, else
 * FR_FINISH_NONE. */
fr_finish request_grammar_advance(fr_request *r, int32_t token);

#endif

/* request_drafts.h - what the drafters of a request are called for.
 *
 * A drafter that fails is switched off for the request in which it failed (fr_request_draft_error); the text does not
 * depend on it, so nothing here returns an error.
 */
#ifndef ENGINE_REQUEST_DRAFTS_H
#define ENGINE_REQUEST_DRAFTS_H

#include "compute/executor.h"
#include "forerun.h"
#include "verify/verifier.h"

/* Shows the drafters the prompt. The request has its sequence, and its drafts are acquired. */
void request_drafts_begin(fr_request *r);
/* Shows them the last tokens and ends their sequences. Calling it again does nothing. */
void request_drafts_end(fr_request *r);
/* For each of n decoding requests: makes r->tree, the pending token and what its drafters propose below it, at most
 * r->step_budget nodes. */
void request_drafts_propose(fr_engine *e, fr_request *const *requests, int n);
/* Rows behind the tree that drafters may add (DrafterClass.add_rows). */
int32_t request_drafts_extra_room(const fr_request *r);
/* Whether one of them adds rows (DrafterClass.add_rows), which have no place in an automatic budget. */
bool request_drafts_want_rows(const fr_request *r);
/* Lets them add at most `room` rows behind those of the final tree, which begin at r->first_row. Returns their
 * number. */
int32_t request_drafts_add_rows(fr_request *r, int32_t room, Row *rows);
/* Shows the drafters the target's logits and hidden states at every node of r->tree, which are in step.row_logits and
 * step.row_hidden from r->first_row on, and what was accepted. */
void request_drafts_observe_tree(fr_request *r, const VerifyResult *verdict);
/* Shows those that read prompts that the target has read the context tokens first .. first + n - 1; the hidden states
 * are in step.row_hidden from r->first_row on, if one needs them. */
void request_drafts_observe_prompt(fr_request *r, int64_t first, int32_t n);
/* What drafters keep of the tokens of a prompt (DrafterClass.take_over), for prefix_cache.c. How many first tokens r
 * may take over from a sequence of the executor that begins with its first n, as far as its drafters are concerned;
 * and from a request that is about to read on, with all that it will have read. */
int32_t request_drafts_limit(const fr_request *r, int32_t sequence, int32_t n);
int32_t request_drafts_limit_behind(const fr_request *r, const fr_request *reader);
/* The drafters take over what a sequence holds of r's first n tokens. */
void request_drafts_take_over(fr_request *r, int32_t sequence, int32_t n);
/* The sequence of an entry of the prefix cache holds what the drafters keep of r's first n tokens. same_behind: of
 * the token behind them the entry knows that it is r's. */
void request_drafts_keep(const fr_request *r, int32_t sequence, int32_t n, bool same_behind);
/* Counts the nodes of r->tree by their tags (fr_draft_stats.counters). The first n_emitted nodes of the accepted
 * path became part of the text. */
void request_drafts_count_tags(fr_request *r, const VerifyResult *verdict, int64_t n_emitted);

#endif

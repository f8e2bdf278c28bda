/* kv_policy.h - which request gets the pages of the KV cache where they do not suffice for all: the older one. */
#ifndef ENGINE_KV_POLICY_H
#define ENGINE_KV_POLICY_H

#include "forerun.h"

/* At the start of a step: lists the running requests in step.by_age. */
void kv_policy_begin_step(fr_engine *e);
/* Claims slots for n more rows of r in this step, at least n_least, and for n_ahead tokens that it reads later,
 * taking pages from the prefix cache and from younger requests where needed. Requests claim in the order of
 * step.by_age. Returns how many slots r got for this step; 0: r sits out this step, or has failed. */
int32_t kv_policy_claim(fr_request *r, int32_t n, int32_t n_least, int32_t n_ahead);

#endif

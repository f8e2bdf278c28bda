/* prompts.h - which prompts are read in a step, how much of each, and where their sequences are marked. */
#ifndef ENGINE_PROMPTS_H
#define ENGINE_PROMPTS_H

#include "forerun.h"

#include <stdint.h>

/* Sets is_prefill_step of all running requests, and n_step_rows of those that read their context: prefill_chunk rows in
 * all at most. */
void prompt_plan(fr_engine *e);

/* The tokens from number `from` on, before number `to`, have just been committed: marks what should be marked among
 * them. */
void prompt_marks_set(const fr_request *r, int32_t from, int32_t to);

#endif

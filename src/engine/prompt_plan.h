/* prompt_plan.h - which prompts are read in a step, and how much of each. */
#ifndef ENGINE_PROMPT_PLAN_H
#define ENGINE_PROMPT_PLAN_H

#include "forerun.h"

/* Sets is_prefill_step of all running requests, and n_step_rows of those that read their context: prefill_chunk rows in
 * all at most. */
void prompt_plan(fr_engine *e);

#endif

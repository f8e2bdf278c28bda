/* prompt_marks.h - where in its prompt a request marks its sequence. */
#ifndef ENGINE_PROMPT_MARKS_H
#define ENGINE_PROMPT_MARKS_H

#include "forerun.h"

#include <stdint.h>

/* The tokens from number `from` on, before number `to`, have just been committed: marks what should be marked among them. */
void prompt_marks_set(const fr_request *r, int32_t from, int32_t to);

#endif

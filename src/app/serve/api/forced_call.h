/* forced_call.h - tool_choice that leaves no choice: the answer is a call, of one function or of any. */
#ifndef SERVE_FORCED_CALL_H
#define SERVE_FORCED_CALL_H

#include "app/serve/api/answers.h"

/* Where f forces a call: holds the text to its form by plan->grammar, and adds the mark of calls to the prompt of the plan.
 * *mark: what each reader has to read before the answer, or NULL. Within json_memory_limit. */
int forced_call_prepare(ApiCall *call, Answers *a, const ChatMessages *f, const char **mark);

#endif

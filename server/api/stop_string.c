/* stop_string.c - which of several stop strings ended a text.
 *
 * The engine cuts a text off before its stop string and does not say which one it was. It is found again in the text of all
 * tokens, which the plan keeps for that (Plan.tells_stop): the one that comes first. */
#include "server/api/stop_string.h"

#include <string.h>

const char *stop_string_of(const Choice *c) {
    const Plan *plan = &c->call->plan;
    const char *first = NULL, *found = NULL;
    Buf ids = {.max_bytes = 64 << 20};
    char *text = NULL;
    size_t n;
    fr_error why;
    if (c->result->finish != FR_FINISH_STOP || plan->n_stops == 0) return NULL;
    for (size_t i = 0; i < c->tokens.n; i++)
        if (!buf_append(&ids, &c->tokens.tokens[i].token, sizeof(int32_t))) break;
    if (plan->n_stops > 1 && !fr_detokenize(plan->model->model, (const int32_t *)(const void *)ids.data,
                                            (int64_t)(ids.n / sizeof(int32_t)), &text, &n, &why))
        for (int i = 0; i < plan->n_stops; i++) {
            const char *at = strstr(text, plan->stops[i]);
            if (!at || (first && at >= first)) continue;
            first = at;
            found = plan->stops[i];
        }
    fr_free(text);
    buf_free(&ids);
    return found ? found : plan->stops[0];
}

/* chat_sampling.c - how a conversation samples, unless the user says so.
 *
 * `run` is greedy, because its text is compared and repeated. A conversation is neither, and greedy answers of a chat model
 * fall into loops that sampling leaves; nor could /regenerate give another answer. So `chat` samples, as llama-cli and
 * ollama do: each value is the user's, else the one that the file recommends under general.sampling (converters write the
 * publisher's generation_config.json there), else that of llama.cpp. A value outside the range of its option is no
 * recommendation. */
#include "cli/chat/chat_sampling.h"

#include <stdint.h>

/* Values outside the ranges of the options. */
#define REAL_NOT_GIVEN (-1.0f)
#define INT_NOT_GIVEN INT32_MIN

void chat_sampling_begin(fr_sampling *s) {
    s->temperature = s->top_p = s->min_p = s->repeat_penalty = REAL_NOT_GIVEN;
    s->top_k = s->penalty_last_n = INT_NOT_GIVEN;
}

void chat_sampling_complete(fr_sampling *s, const fr_model *model) {
    fr_sampling otherwise = fr_sampling_default();
    otherwise.temperature = 0.8f;
    otherwise.top_k = 40;
    otherwise.top_p = 0.95f;
    otherwise.min_p = 0.05f;
    (void)fr_model_recommended_sampling(model, &otherwise);
    if (s->temperature == REAL_NOT_GIVEN) s->temperature = otherwise.temperature;
    if (s->top_k == INT_NOT_GIVEN) s->top_k = otherwise.top_k;
    if (s->top_p == REAL_NOT_GIVEN) s->top_p = otherwise.top_p;
    if (s->min_p == REAL_NOT_GIVEN) s->min_p = otherwise.min_p;
    if (s->repeat_penalty == REAL_NOT_GIVEN) s->repeat_penalty = otherwise.repeat_penalty;
    if (s->penalty_last_n == INT_NOT_GIVEN) s->penalty_last_n = otherwise.penalty_last_n;
}

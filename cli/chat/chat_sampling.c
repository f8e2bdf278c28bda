/* chat_sampling.c - how a conversation samples, unless the user says so.
 *
 * `run` is greedy, because its text is compared and repeated. A conversation is neither, and greedy answers of a chat model
 * fall into loops that sampling leaves; nor could /regenerate give another answer. So `chat` samples, as llama-cli and
 * ollama do: each value is the user's, else the one that the file recommends under general.sampling (converters write the
 * publisher's generation_config.json there), else that of llama.cpp. A value outside the range of its option is no
 * recommendation. */
#include "cli/chat/chat_sampling.h"

#include <float.h>
#include <stdint.h>

/* Values outside the ranges of the options. */
#define REAL_NOT_GIVEN (-1.0f)
#define INT_NOT_GIVEN INT32_MIN

void chat_sampling_begin(fr_sampling *s) {
    s->temperature = s->top_p = s->min_p = s->repeat_penalty = REAL_NOT_GIVEN;
    s->top_k = s->penalty_last_n = INT_NOT_GIVEN;
}

static void complete_real(float *value, const Gguf *file, const char *key, float lo, float hi, float otherwise) {
    float recommended;
    if (*value != REAL_NOT_GIVEN) return;
    bool has = gguf_get_f32(file, key, &recommended) && recommended >= lo && recommended <= hi;
    *value = has ? recommended : otherwise;
}

static void complete_int(int32_t *value, const Gguf *file, const char *key, int32_t lo, int32_t otherwise) {
    int64_t recommended;
    if (*value != INT_NOT_GIVEN) return;
    bool has = gguf_get_i64(file, key, &recommended) && recommended >= lo && recommended <= INT32_MAX;
    *value = has ? (int32_t)recommended : otherwise;
}

void chat_sampling_complete(fr_sampling *s, const Gguf *file) {
    const fr_sampling none = fr_sampling_default();
    complete_real(&s->temperature, file, "general.sampling.temp", 0, FLT_MAX, 0.8f);
    complete_int(&s->top_k, file, "general.sampling.top_k", 0, 40);
    complete_real(&s->top_p, file, "general.sampling.top_p", 1e-6f, 1, 0.95f);
    complete_real(&s->min_p, file, "general.sampling.min_p", 0, 1, 0.05f);
    complete_real(&s->repeat_penalty, file, "general.sampling.penalty_repeat", 1e-6f, FLT_MAX, none.repeat_penalty);
    complete_int(&s->penalty_last_n, file, "general.sampling.penalty_last_n", -1, none.penalty_last_n);
}

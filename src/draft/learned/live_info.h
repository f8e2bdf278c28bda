/* live_info.h - what a text teaches about its tokens while it is generated: a sparse correction of a drafter's token
 * info. One for each sequence; it ends with the request. */
#ifndef LEARNED_LIVE_INFO_H
#define LEARNED_LIVE_INFO_H

#include <stdint.h>

enum { LIVE_INFO_SETS = 64, LIVE_INFO_WAYS = 4, LIVE_INFO_ENTRIES = 16 };

/* The correction of the logits after one token. */
typedef struct LiveInfoRow {
    int64_t last_used; /* 0: the row is free */
    int32_t token, n;
    int32_t ids[LIVE_INFO_ENTRIES];
    float deltas[LIVE_INFO_ENTRIES];
} LiveInfoRow;

typedef struct LiveInfo {
    LiveInfoRow rows[LIVE_INFO_SETS][LIVE_INFO_WAYS];
    int64_t n_learned;
} LiveInfo;

void live_info_reset(LiveInfo *l);
/* Adds the correction of what follows `token` to the logits. */
void live_info_add(const LiveInfo *l, int32_t token, float *logits);
/* Learns from the logits of the target after `token` and from those that were drafted there, which include the
 * correction so far, both [n_vocab]; softmax(logits / temperature) is compared. */
void live_info_learn(LiveInfo *l, int32_t token, const float *target, const float *draft, int32_t n_vocab,
                     double temperature);

#endif

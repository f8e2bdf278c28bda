/* gumbel_max.h - the token of greatest z + G in a row of logits: the draw of sampler.c. */
#ifndef SAMPLING_GUMBEL_MAX_H
#define SAMPLING_GUMBEL_MAX_H

#include "verify/filters.h"
#include "verify/gumbel.h"

enum { DRAW_CHUNK = 2048 }; /* tokens that are looked at together */
typedef struct DrawScratch {
    uint32_t blocks[DRAW_CHUNK / 4], words[DRAW_CHUNK];
    int32_t at[DRAW_CHUNK];
} DrawScratch;

/* argmax of row[i] / temperature + G_i over the tokens that the filters kept; ties go to the lowest id. max_id: the
 * lowest id among the greatest logits, of which there are finite ones only; the temperature is above 0. */
int32_t gumbel_max(const RowKernels *rows, DrawScratch *scratch, const SamplingOptions *o, const float *row,
                   int32_t n_vocab, uint64_t position, int32_t max_id, const Kept *kept);

#endif

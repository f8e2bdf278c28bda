/* evex_scores.h - a table of scores that only tests have. */
#ifndef TESTS_EVEX_SCORES_H
#define TESTS_EVEX_SCORES_H

#include "compute/cpu/kernels/scores.h"

#if defined(__x86_64__)
extern const ScoreKernels score_kernels_evex_vnni; /* AVX-512 VL, VNNI */
#endif

#endif

/* all_tables.h - the kernel tables to test: those this CPU can run, and those that only tests have. */
#ifndef TESTS_ALL_TABLES_H
#define TESTS_ALL_TABLES_H

#include "compute/cpu/kernels/scores.h"

#if defined(__x86_64__)
extern const Kernels kernels_evex_vnni; /* AVX-512 VL, VNNI */
extern const ScoreKernels score_kernels_evex_vnni;
#endif

/* "ref" is the first; *n is their number. */
const Kernels *const *all_tables(int *n);

#endif

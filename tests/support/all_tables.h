/* all_tables.h - the kernel tables to test: those this CPU can run, and those that only tests have. */
#ifndef TESTS_ALL_TABLES_H
#define TESTS_ALL_TABLES_H

#include "compute/cpu/kernels/scores.h"

#if defined(__x86_64__)
extern const Kernels kernels_evex_vnni; /* AVX-512 VL, VNNI */
extern const ScoreKernels score_kernels_evex_vnni;
#endif

/* Copies a row of activations [n_in] that "ref" converted, in the form that this table has. */
void acts_for_table(const Kernels *t, ActForm form, int64_t n_in, const void *of_ref, void *out);

/* "ref" is the first; *n is their number. */
const Kernels *const *all_tables(int *n);

#endif

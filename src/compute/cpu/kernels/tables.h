/* tables.h - the tables of this build, for select.c. Each is defined in the file of its name. */
#ifndef KERNELS_TABLES_H
#define KERNELS_TABLES_H

#include "compute/cpu/kernels/kernels.h"

extern const Kernels kernels_ref;
#if defined(__x86_64__)
extern const RowKernels row_kernels_avx2, row_kernels_avx512;
extern const Kernels kernels_avx2;        /* AVX2, FMA, F16C */
extern const Kernels kernels_avx_vnni;    /* and AVX-VNNI */
extern const Kernels kernels_avx512;      /* AVX-512 F, BW, VL, DQ, VNNI */
extern const Kernels kernels_avx512_bf16; /* and BF16 */
/* And AMX tiles of bytes. Writes the table. False where the compiler lacks them. */
bool kernels_amx_open(Kernels *out);
#elif defined(__aarch64__)
extern const RowKernels row_kernels_neon;
extern const Kernels kernels_neon;      /* what every such CPU has */
extern const Kernels kernels_neon_dot;  /* and dot products of bytes */
extern const Kernels kernels_neon_i8mm; /* and products of matrices of bytes */
#endif

#endif

/* tables.h - the tables of this build. Each is defined in the file that has its name; select.c chooses among them. */
#ifndef KERNELS_TABLES_H
#define KERNELS_TABLES_H

#include "compute/cpu/kernels/kernels.h"

extern const Kernels kernels_ref;
#if defined(__x86_64__)
extern const RowKernels row_kernels_avx2, row_kernels_avx512;
extern const Kernels kernels_avx2;        /* AVX2, FMA, F16C */
extern const Kernels kernels_avx_vnni;    /* AVX2 and AVX-VNNI */
extern const Kernels kernels_avx512;      /* AVX-512 F, BW, VL, DQ, VNNI */
extern const Kernels kernels_avx512_bf16; /* the same and BF16 */
/* Fills in table "amx", which also needs AMX tiles of bytes. Returns false if the compiler lacks them. */
bool kernels_amx_open(Kernels *out);
#elif defined(__aarch64__)
extern const RowKernels row_kernels_neon;
extern const Kernels kernels_neon;      /* needs nothing that a CPU of this architecture may lack */
extern const Kernels kernels_neon_dot;  /* needs dot products of bytes */
extern const Kernels kernels_neon_i8mm; /* needs products of matrices of bytes, too */
#endif

#endif

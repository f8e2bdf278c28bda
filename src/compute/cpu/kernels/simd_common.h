/* simd_common.h - INLINE and UNROLL, with which the vector files get code without calls and loops: their arrays of
 * vectors become registers where every index is a constant. */
#ifndef KERNELS_SIMD_COMMON_H
#define KERNELS_SIMD_COMMON_H

#include <stdbool.h>
#include <stdint.h>

#define INLINE static inline __attribute__((always_inline))

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif

#endif

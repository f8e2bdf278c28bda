/* simd_common.h - how the vector files ask the compiler for code without calls and without loops: their
 * arrays of vectors are meant to be registers, which they are when every index is a constant. */
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

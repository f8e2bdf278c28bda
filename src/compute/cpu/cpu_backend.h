/* cpu_backend.h - the backend for the CPU: weights packed in tiles, SIMD kernels chosen at run time, one pool of
 * threads. */
#ifndef CPU_CPU_BACKEND_H
#define CPU_CPU_BACKEND_H

#include "compute/backend.h"

extern const Backend backend_cpu;

#endif

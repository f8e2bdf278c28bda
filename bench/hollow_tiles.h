/* hollow_tiles.h - products by tiles without their products, for bench_tiles.c on CPUs without AMX. */
#ifndef BENCH_HOLLOW_TILES_H
#define BENCH_HOLLOW_TILES_H

#include "compute/cpu/kernels/kernels.h"
#include "compute/cpu/kernels/product_ways.h"

/* Table "avx512" with the code of table "amx", in which a tile's load is a vector load for each of its rows, its store a vector
 * store for each, and its product nothing. So the time is that of everything but the products, which the CPU
 * computes in a unit of their own; the results mean nothing. */
const Kernels *kernels_hollow_tiles(void);

#endif

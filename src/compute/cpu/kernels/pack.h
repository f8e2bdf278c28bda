/* pack.h - what packing (pack.c), reading packed rows (unpack.c) and the lattice types (pack_lattice.c) share. */
#ifndef KERNELS_PACK_H
#define KERNELS_PACK_H

#include "compute/cpu/kernels/layout.h"

/* A slice of a row as eight words of four codes each: word g holds inputs 4g to 4g+3, a byte each. Words are
 * loaded and stored as bytes, and shifts are masked to stay within them, so their byte order does not matter. */
typedef struct Codes {
    uint32_t word[8];
} Codes;

/* The codes of row `row` into, or out of, the vectors of its slice, each of which has one word for each row. */
void codes_write(TensorType type, const Codes *c, int row, unsigned char *slice);
void codes_of_row(TensorType type, const unsigned char *slice, int row, Codes *c);

/* One block of 256 weights of a lattice type into the record of its tile, and back. */
void lattice_pack(TensorType type, const unsigned char *block, int row, unsigned char *record);
void lattice_unpack(TensorType type, const unsigned char *record, int row, unsigned char *block);

#endif

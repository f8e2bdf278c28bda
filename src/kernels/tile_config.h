/* tile_config.h - the configuration of tile registers, as `ldtilecfg` reads it from memory. */
#ifndef KERNELS_TILE_CONFIG_H
#define KERNELS_TILE_CONFIG_H

#include <stdint.h>

enum { TILE_REGISTERS = 8, TILE_MAX_ROWS = 16, TILE_MAX_BYTES = 64 };

/* A register that has no rows cannot be used. */
typedef struct TileConfig {
    uint8_t palette; /* 1: eight registers of up to 16 rows of up to 64 bytes */
    uint8_t start_row;
    uint8_t reserved[14];
    uint16_t row_bytes[16]; /* of each register; only the first eight may be set */
    uint8_t rows[16];       /* likewise */
} TileConfig;
_Static_assert(sizeof(TileConfig) == 64, "the layout is the CPU's");

#endif

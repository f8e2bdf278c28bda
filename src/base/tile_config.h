/* tile_config.h - the tile registers of AMX: whether this process may use them, and their configuration as `ldtilecfg`
 * reads it from memory. */
#ifndef BASE_TILE_CONFIG_H
#define BASE_TILE_CONFIG_H

#include <stdbool.h>
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

/* Whether this CPU has tiles with products of bytes and of BF16, and the system lets this process use them: it is asked,
 * once, by the first call. */
bool tiles_available(void);

#endif

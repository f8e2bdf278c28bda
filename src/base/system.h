/* system.h - clocks, the floating-point environment, the peak rates of the machine, and the tile registers of AMX. */
#ifndef BASE_SYSTEM_H
#define BASE_SYSTEM_H

#include <stdbool.h>
#include <stdint.h>

/* ---- clocks, for statistics ---------------------------------------------------------------------------------- */

double clock_s(void);     /* seconds since some fixed moment; never goes back */
double clock_cpu_s(void); /* processor time of this process, all its threads together */

/* ---- the floating-point environment in which the library computes, whatever the caller's is ------------------ */

#if !defined(__x86_64__) && !defined(__aarch64__)
#include <fenv.h>
#endif

/* One thread's rounding mode, flushing of subnormal numbers, and traps. */
typedef struct FpEnv {
#if defined(__x86_64__) || defined(__aarch64__)
    uint64_t control;
#else
    fenv_t control;
#endif
} FpEnv;

/* Sets the default environment for the calling thread: round to nearest, subnormal numbers as they are, no traps. */
void fp_env_set_default(void);
/* Does the same, and returns what was set before. */
FpEnv fp_env_enter(void);
/* Sets what fp_env_enter returned. */
void fp_env_leave(const FpEnv *before);

/* ---- what a machine can do at best: the limits that a forward is measured against ----------------------- */

/* The kinds of arithmetic whose peak is measured. PEAK_INT16, products of words, is only for kernels that multiply
 * 16-bit activations so; others have these as two planes of bytes. */
typedef enum PeakKind { PEAK_INT8, PEAK_INT16, PEAK_BF16, PEAK_F32, PEAK_COUNT } PeakKind;

typedef struct MachineSpeed {
    double read_gb_s;              /* reading a buffer far larger than the caches, all threads together */
    double peak_gop_s[PEAK_COUNT]; /* multiplications and additions per second / 1e9, all threads together; infinite:
                                    * no product is of that kind */
    double tile_gop_s[PEAK_COUNT]; /* the same with AMX tiles, for PEAK_INT8 and PEAK_BF16; 0: not on this machine */
    char reads[400];               /* how the kernels read weights, as a text of six lines; empty: in one way only */
    int pair_rows[2]; /* rows from which on products of Q8_0 take two tiles of outputs at a time; 0: none do */
    int tile_rows[2]; /* rows from which on AMX tiles multiply bytes, for 16- and 8-bit activations; 0: none do */
} MachineSpeed;

/* Raises the peaks to those of a second measurement where these are higher: time that other programs took during one of
 * the measurements is not a limit of the machine. */
void machine_speed_keep_peaks(MachineSpeed *speed, const MachineSpeed *second);

/* ---- the tile registers of AMX -------------------------------------------------------------------------------- */

enum { TILE_REGISTERS = 8, TILE_MAX_ROWS = 16, TILE_MAX_BYTES = 64 };

/* Their configuration, as the instruction ldtilecfg reads it from memory. A register that has no rows cannot be
 * used. */
typedef struct TileConfig {
    uint8_t palette; /* 1: eight registers of up to 16 rows of up to 64 bytes */
    uint8_t start_row;
    uint8_t reserved[14];
    uint16_t row_bytes[16]; /* bytes in a row of each register; only the first eight may be set */
    uint8_t rows[16];       /* likewise */
} TileConfig;
_Static_assert(sizeof(TileConfig) == 64, "the layout is the CPU's");

/* Returns whether this CPU has tiles with products of bytes and of BF16, and the system lets this process use them. The
 * first call asks the system, once. */
bool tiles_available(void);

#endif

/* machine_speed.h - what a machine can do at best: the limits that a forward pass is measured against. */
#ifndef BASE_MACHINE_SPEED_H
#define BASE_MACHINE_SPEED_H

/* The kinds of arithmetic whose peak is measured. */
typedef enum PeakKind { PEAK_INT8, PEAK_BF16, PEAK_F32, PEAK_COUNT } PeakKind;

typedef struct MachineSpeed {
    double read_gb_s;              /* reading a buffer far larger than the caches, all threads together */
    double peak_gop_s[PEAK_COUNT]; /* multiplications and additions per second / 1e9, all threads together */
    double tile_gop_s[PEAK_COUNT]; /* the same of AMX tiles, PEAK_INT8 and PEAK_BF16; 0: not on this machine */
    char reads[400];  /* how the kernels read weights, as a text of two lines; empty: in one way only */
    int tile_rows[2]; /* rows from which on AMX tiles multiply bytes, for 16- and 8-bit activations; 0: none do */
} MachineSpeed;

/* Raises the peaks to those of a second measurement where these are higher: what other programs took during one of them is
 * not a limit of the machine. */
void machine_speed_keep_peaks(MachineSpeed *speed, const MachineSpeed *second);

/* The name of the CPU as /proc/cpuinfo has it; "unknown" where that cannot be read. */
enum { MACHINE_NAME_BYTES = 96 };
void machine_cpu_name(char out[MACHINE_NAME_BYTES]);

#endif

/* machine_speed.h - what a machine can do at best: the limits that a forward pass is measured against. */
#ifndef BASE_MACHINE_SPEED_H
#define BASE_MACHINE_SPEED_H

/* The kinds of arithmetic whose peak is measured. */
typedef enum PeakKind { PEAK_INT8, PEAK_BF16, PEAK_F32, PEAK_COUNT } PeakKind;

typedef struct MachineSpeed {
    double read_gb_s;              /* reading a buffer far larger than the caches, all threads together */
    double peak_gop_s[PEAK_COUNT]; /* multiplications and additions per second / 1e9, all threads together */
} MachineSpeed;

/* The name of the CPU as /proc/cpuinfo has it; "unknown" where that cannot be read. */
enum { MACHINE_NAME_BYTES = 96 };
void machine_cpu_name(char out[MACHINE_NAME_BYTES]);

#endif

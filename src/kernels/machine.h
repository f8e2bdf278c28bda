/* machine.h - the two limits of this machine, with which the time of a forward pass is compared. */
#ifndef KERNELS_MACHINE_H
#define KERNELS_MACHINE_H

#include "kernels/kernels.h"

typedef struct MachineSpeed {
    double read_gb_s;              /* reading a buffer far larger than the caches, all threads together */
    double peak_gop_s[PEAK_COUNT]; /* multiplications and additions per second / 1e9, all threads together */
} MachineSpeed;

/* Takes about half a second. Fails only where memory runs out. */
int machine_measure(const Kernels *kernels, int n_threads, MachineSpeed *out, fr_error *err);

/* The name of the CPU in /proc/cpuinfo; "unknown" where it cannot be read. */
enum { MACHINE_NAME_BYTES = 96 };
void machine_cpu_name(char out[MACHINE_NAME_BYTES]);

#endif

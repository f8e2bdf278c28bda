/* machine.h - the two limits of this machine, with which the time of a forward pass is compared. */
#ifndef KERNELS_MACHINE_H
#define KERNELS_MACHINE_H

#include "base/system.h"
#include "compute/cpu/kernels/kernels.h"

/* Takes about half a second. Fails only where memory runs out. */
int machine_measure(const Kernels *kernels, int n_threads, MachineSpeed *out, fr_error *err);

#endif

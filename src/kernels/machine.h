/* machine.h - what this machine can do at best: the two limits that a forward pass is held against. */
#ifndef KERNELS_MACHINE_H
#define KERNELS_MACHINE_H

#include "base/machine_speed.h"
#include "kernels/kernels.h"

/* Takes about half a second. Fails on memory only. */
int machine_measure(const Kernels *kernels, int n_threads, MachineSpeed *out, fr_error *err);

#endif

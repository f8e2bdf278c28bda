/* reference_backend.h - the same computation in double precision, without packing or threads: slow, and written to be
 * read. Golden files, kernels and new architectures are held against it; a new backend can begin as a copy of it. */
#ifndef REFERENCE_REFERENCE_BACKEND_H
#define REFERENCE_REFERENCE_BACKEND_H

#include "compute/backend.h"

extern const Backend backend_reference;

#endif

/* all_tables.c - the kernel tables that this CPU can run, and those that only tests have. */
#include "all_tables.h"
#include "plain_tiles.h"

#include <string.h>

const Kernels *const *all_tables(int *n) {
    static const Kernels *all[16];
    const Kernels *const *available = kernels_available(n);
    memcpy(all, available, (size_t)*n * sizeof *all);
#if defined(__x86_64__)
    if (kernels_select("avx512")) {
        all[(*n)++] = &kernels_evex_vnni;
        all[(*n)++] = kernels_plain_tiles();
    }
#endif
    return all;
}

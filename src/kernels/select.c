/* select.c - which tables this CPU can run. The compiler's cpuid support also asks whether the system saves
 * the wide registers. */
#include "kernels/tables.h"

#include <string.h>

/* Each table needs what the one before it needs, and more. */
static const Kernels *const tables[] = {
    &kernels_ref,
#if defined(__x86_64__)
    &kernels_avx2,
    &kernels_avx512,
    &kernels_avx512_bf16,
#endif
};

static int n_available(void) {
#if defined(__x86_64__)
    /* Every CPU with AVX2 converts half floats (F16C) too, which not all compilers can ask for. */
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 1;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq") ||
        !__builtin_cpu_supports("avx512vnni"))
        return 2;
    return __builtin_cpu_supports("avx512bf16") ? 4 : 3;
#else
    return 1;
#endif
}

const Kernels *const *kernels_available(int *n) {
    *n = n_available();
    return tables;
}

const Kernels *kernels_select(const char *name) {
    int n = n_available();
    if (!name || strcmp(name, "auto") == 0) return tables[n - 1];
    for (int i = 0; i < n; i++)
        if (strcmp(tables[i]->name, name) == 0) return tables[i];
    return NULL;
}

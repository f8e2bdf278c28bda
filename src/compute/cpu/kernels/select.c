/* select.c - finds the tables that this CPU can run, and chooses one. The compiler's support for cpuid also checks
 * that the system saves the wide registers. */
#include "compute/cpu/kernels/product_ways.h"
#include "compute/cpu/kernels/tables.h"

#include "base/os.h"
#include "base/system.h"

#include <pthread.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>

/* F16C is not tested for, because not all compilers have a test for it and every CPU with AVX2 has it. */
static bool has_avx2(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

/* Not all compilers have a test for AVX-VNNI. It is bit 4 of EAX in leaf 7, subleaf 1; subleaf 0 holds the number of
 * subleaves. */
static bool has_avx_vnni(void) {
    unsigned a, b, c, d;
    return has_avx2() && __get_cpuid_count(7, 0, &a, &b, &c, &d) && a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d) &&
           (a >> 4 & 1);
}

static bool has_avx512(void) {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni");
}

static bool has_avx512_bf16(void) { return has_avx512() && __builtin_cpu_supports("avx512bf16"); }

static Kernels kernels_amx;
static bool has_amx(void) { return has_avx512_bf16() && tiles_available() && kernels_amx_open(&kernels_amx); }

#elif defined(__aarch64__)
static bool has_i8mm(void) { return os_arm_has_dot() && os_arm_has_i8mm(); }
#endif

static bool always(void) { return true; }

/* The tables from the slowest to the fastest. The last one that this CPU runs is the best, unless is_slow returns true
 * for it. */
static const struct {
    const Kernels *table;
    bool (*runs)(void);
} known[] = {
    {&kernels_ref, always},
#if defined(__x86_64__)
    {&kernels_avx2, has_avx2},     {&kernels_avx_vnni, has_avx_vnni},
    {&kernels_avx512, has_avx512}, {&kernels_avx512_bf16, has_avx512_bf16},
    {&kernels_amx, has_amx},
#elif defined(__aarch64__)
    {&kernels_neon, always},
    {&kernels_neon_dot, os_arm_has_dot},
    {&kernels_neon_i8mm, has_i8mm},
#endif
};
enum { N_KNOWN = sizeof known / sizeof *known };

/* Returns whether an earlier table is faster than this one on this CPU. Intel's vdpbf16ps does half as many operations
 * a cycle as two fused multiply-adds, which give the same bits; AMD's does twice as many. */
static bool is_slow(const Kernels *table) {
#if defined(__x86_64__)
    return table == &kernels_avx512_bf16 && __builtin_cpu_is("intel");
#else
    (void)table;
    return false;
#endif
}

static const Kernels *available[N_KNOWN];
static int n_available;

static void find_available(void) {
    for (int i = 0; i < N_KNOWN; i++)
        if (known[i].runs()) available[n_available++] = known[i].table;
}

const Kernels *const *kernels_available(int *n) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find_available);
    *n = n_available;
    return available;
}

const Kernels *kernels_select(const char *name) {
    int n;
    const Kernels *const *tables = kernels_available(&n);
    const Kernels *found = NULL;
    if (!name) name = "auto";
    if (strcmp(name, "auto") == 0) {
        while (is_slow(tables[n - 1])) n--;
        found = tables[n - 1];
    }
    for (int i = 0; i < n && !found; i++)
        if (strcmp(tables[i]->name, name) == 0) found = tables[i];
    if (found) product_ways_measure(found);
    return found;
}

/* Returns what a table needs in addition to the CPU, for the error message about a missing table. */
static const char *further_need(const char *name) {
    return strcmp(name, "amx") == 0
               ? " and system (they need AMX, Linux 5.16 or newer, and its permission to use tiles)"
               : "";
}

int kernels_find(const char *name, const Kernels **out, fr_error *err) {
    char names[200] = "";
    *out = kernels_select(name);
    for (int i = 0; i < n_available; i++) {
        if (i) strcat(names, ", ");
        strcat(names, available[i]->name);
    }
    return *out ? FR_OK
                : error_set(err, FR_ERR_ARGUMENT, "there are no kernels '%s' for this CPU%s; choose from %s", name,
                            further_need(name), names);
}

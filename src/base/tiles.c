/* tiles.c - asks the CPU and the system for the tile registers of AMX. */
#include "base/tile_config.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

static bool are_available;

/* Bits 22, 24 and 25 of EDX in leaf 7: AMX-BF16, AMX-TILE, AMX-INT8. */
static bool cpu_has_tiles(void) {
    const unsigned bits = 1u << 22 | 1u << 24 | 1u << 25;
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & bits) == bits;
}

/* The permission is of the process, and its threads have it too. Linux before 5.16 knows no such request, and a sandbox
 * may refuse it. */
static void ask(void) {
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    are_available = cpu_has_tiles() && syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

bool tiles_available(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, ask);
    return are_available;
}

#else
bool tiles_available(void) { return false; }
#endif

/* system.c - clocks in seconds; the floating-point environment of a thread; the peaks of a machine; and whether it has
 * the tile registers of AMX. */
#include "base/system.h"

#include "base/os.h"

#include <stdbool.h>
#include <time.h>

/* ---- clocks -------------------------------------------------------------------------------------------------- */

static double read_clock(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double clock_s(void) { return read_clock(CLOCK_MONOTONIC); }

double clock_cpu_s(void) { return read_clock(CLOCK_PROCESS_CPUTIME_ID); }

/* ---- the floating-point environment --------------------------------------------------------------------------- */

/* The numeric contract (kernels.h) fixes every rounding, so it holds only in the default environment. A program that
 * calls the library may have changed it: another rounding mode, or subnormal numbers flushed to zero, which a library
 * compiled with -ffast-math sets for the thread that loads it. The setting belongs to a thread and is inherited by the
 * threads it creates, so that different threads of one forward could compute in different environments. Every public
 * function that computes therefore enters the default environment, and restores the caller's before it returns and
 * while it calls back; every thread of a pool sets the default once. Proof: tests/base/test_fp_env.c. */

#if defined(__x86_64__)

#include <xmmintrin.h>

enum { MXCSR_DEFAULT = 0x1f80 }; /* all exceptions masked, round to nearest, neither FTZ nor DAZ */

static uint64_t read_control(void) { return _mm_getcsr(); }
static void write_control(uint64_t control) { _mm_setcsr((unsigned)control); }
void fp_env_set_default(void) { write_control(MXCSR_DEFAULT); }

#elif defined(__aarch64__)

static uint64_t read_control(void) {
    uint64_t control;
    __asm__ volatile("mrs %0, fpcr" : "=r"(control) : : "memory");
    return control;
}
static void write_control(uint64_t control) { __asm__ volatile("msr fpcr, %0" : : "r"(control) : "memory"); }
void fp_env_set_default(void) { write_control(0); }

#else

static fenv_t read_control(void) {
    fenv_t control;
    (void)fegetenv(&control);
    return control;
}
static void write_control(fenv_t control) { (void)fesetenv(&control); }
void fp_env_set_default(void) { (void)fesetenv(FE_DFL_ENV); }

#endif

FpEnv fp_env_enter(void) {
    FpEnv before = {read_control()};
    fp_env_set_default();
    return before;
}

void fp_env_leave(const FpEnv *before) { write_control(before->control); }

/* ---- the machine --------------------------------------------------------------------------------------------- */

void machine_speed_keep_peaks(MachineSpeed *speed, const MachineSpeed *second) {
    for (int k = 0; k < PEAK_COUNT; k++) {
        if (second->peak_gop_s[k] > speed->peak_gop_s[k]) speed->peak_gop_s[k] = second->peak_gop_s[k];
        if (second->tile_gop_s[k] > speed->tile_gop_s[k]) speed->tile_gop_s[k] = second->tile_gop_s[k];
    }
}

/* ---- tiles --------------------------------------------------------------------------------------------------- */

#if defined(__x86_64__)
#include <cpuid.h>
#include <pthread.h>

static bool are_available;

/* Bits 22, 24 and 25 of EDX in leaf 7: AMX-BF16, AMX-TILE, AMX-INT8. */
static bool cpu_has_tiles(void) {
    const unsigned bits = 1u << 22 | 1u << 24 | 1u << 25;
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & bits) == bits;
}

static void ask(void) { are_available = cpu_has_tiles() && os_allow_tiles(); }

bool tiles_available(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, ask);
    return are_available;
}

#else
bool tiles_available(void) { return false; }
#endif

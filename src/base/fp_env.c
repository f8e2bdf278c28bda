/* fp_env.c - saves, sets and restores the floating-point environment of a thread.
 *
 * The numeric contract (kernels.h) fixes every rounding, so it holds only in the default environment. A program that
 * calls the library may have changed it: another rounding mode, or subnormal numbers flushed to zero, which a library
 * compiled with -ffast-math sets for the thread that loads it. The setting belongs to a thread and is inherited by the
 * threads it creates, so that different threads of one forward could compute in different environments. Every public
 * function that computes therefore enters the default environment and restores the caller's before it returns, and for
 * the time of a callback; every thread of a pool sets the default once. Proof: tests/base/test_fp_env.c. */
#include "base/fp_env.h"

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

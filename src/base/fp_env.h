/* fp_env.h - the floating-point environment in which the library computes, whatever the caller's is. */
#ifndef BASE_FP_ENV_H
#define BASE_FP_ENV_H

#include <stdint.h>

#if !defined(__x86_64__) && !defined(__aarch64__)
#include <fenv.h>
#endif

/* Rounding, flushing of subnormal numbers and traps of one thread. */
typedef struct FpEnv {
#if defined(__x86_64__) || defined(__aarch64__)
    uint64_t control;
#else
    fenv_t control;
#endif
} FpEnv;

/* Sets the default environment for the calling thread: round to nearest, subnormal numbers as they are, no traps. */
void fp_env_set_default(void);
/* The same, and returns what was set before. */
FpEnv fp_env_enter(void);
/* Sets what fp_env_enter returned. */
void fp_env_leave(const FpEnv *before);

#endif

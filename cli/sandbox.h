/* sandbox.h - takes away all rights that a command which only reads files does not need.
 *
 * A file from a stranger may be made to exploit a fault in a parser. After sandbox_enter the process can read the given
 * files and the files that it has open, compute, and write to open files (standard output and standard error). It can
 * no longer open a file for writing, start a program or a process, open a socket, or signal or trace other processes.
 * Attempts fail with "Operation not permitted".
 *
 * There is no way back, so it is for commands that end when they have read their files: inspect, tokenize. */
#ifndef CLI_SANDBOX_H
#define CLI_SANDBOX_H

#include "base/error.h"
#include "base/options.h"

/* Whether this build has a sanitizer. */
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
#define SANDBOX_SANITIZED true
#elif defined __has_feature
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define SANDBOX_SANITIZED true
#endif
#endif
#ifndef SANDBOX_SANITIZED
#define SANDBOX_SANITIZED false
#endif

typedef struct SandboxOptions {
    bool off;
} SandboxOptions;

/* The row of --no-sandbox, and the struct that it fills. */
extern const Option sandbox_option_table[];
extern SandboxOptions sandbox_options;

/* Enters the sandbox, in which only the files `readable` [n] (NULL ones are skipped) can be opened. If the kernel has
 * no Landlock, any file can be opened for reading. If it has no seccomp, or with --no-sandbox, nothing changes. Nor is
 * there a sandbox with LD_PRELOAD, as under valgrind, or in builds with a sanitizer, because both need system calls
 * that it denies; for LD_PRELOAD, a note is printed. */
int sandbox_enter(const char *const *readable, int n, fr_error *err);

#endif

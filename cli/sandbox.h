/* sandbox.h - commands that only read give up everything else before they read.
 *
 * A file from somebody else may be made to exploit a fault in a parser. After sandbox_enter the process can read the
 * files that were named and what it has open, compute, and write to what it has open (standard output and standard
 * error); it can no longer open a file for writing, start a program or a process, open a socket, signal or trace others.
 * What it tries nevertheless fails with "Operation not permitted".
 *
 * There is no way back, so it is for commands that end when they have read: inspect, tokenize.
 */
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

/* The row of --no-sandbox, and what it fills in. */
extern const Option sandbox_option_table[];
extern SandboxOptions sandbox_options;

/* Enters the sandbox, in which the files `readable` [n] (NULL ones are skipped) can be opened. Where the kernel has
 * no Landlock, any file can be opened for reading; where it has no seccomp, or with --no-sandbox, nothing changes. With
 * LD_PRELOAD, as under valgrind, there is no sandbox, which a note on standard error says, and neither is there in
 * builds with a sanitizer: both need system calls that it denies. */
int sandbox_enter(const char *const *readable, int n, fr_error *err);

#endif

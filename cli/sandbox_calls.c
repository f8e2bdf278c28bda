/* sandbox_calls.c - a seccomp filter as a table of BPF instructions.
 *
 * The kernel runs the filter for each system call, over its number and its arguments. It is a list of calls that are
 * allowed, so that those which future kernels add are denied, and a constant: libseccomp, which writes such filters,
 * crashes when its memory ends, and the sandbox is for input that may have used it up.
 *
 *     is it this architecture?    no: EPERM
 *     is it call A?               yes: allow        two instructions for each call
 *     is it openat?               no: skip; yes: allow if its flags only read, else EPERM
 *     EPERM
 *
 * Arguments are compared in their lower 32 bits, which is what the kernel takes of flags, commands and process ids. */
#include "cli/sandbox_calls.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#define THIS_ARCHITECTURE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define THIS_ARCHITECTURE AUDIT_ARCH_AARCH64
#endif

#ifdef THIS_ARCHITECTURE

enum { OPEN_FOR_WRITING = O_ACCMODE | O_CREAT | O_TRUNC | O_APPEND | (O_TMPFILE & ~O_DIRECTORY) };

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)offsetof(struct seccomp_data, field))
#define LOAD_ARGUMENT(i) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)offsetof(struct seccomp_data, args) + 8 * (i))
#define UNLESS_EQUAL_SKIP(value, n) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)(value), 0, (n))
#define RETURN_ALLOWED BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
#define RETURN_DENIED BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM)
/* The call whatever its arguments; or if argument i, masked, has a value. The accumulator holds the number before. */
#define ALLOW(call) UNLESS_EQUAL_SKIP(SYS_##call, 1), RETURN_ALLOWED
#define ALLOW_IF(call, i, mask, value) \
    UNLESS_EQUAL_SKIP(SYS_##call, 5), LOAD_ARGUMENT(i), BPF_STMT(BPF_ALU | BPF_AND | BPF_K, (uint32_t)(mask)), \
        UNLESS_EQUAL_SKIP(value, 1), RETURN_ALLOWED, RETURN_DENIED

int sandbox_restrict_calls(void) {
    const struct sock_filter filter[] = {
        LOAD(arch),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, THIS_ARCHITECTURE, 1, 0),
        RETURN_DENIED,
        LOAD(nr),
        ALLOW(read),
        ALLOW(readv),
        ALLOW(pread64),
        ALLOW(write),
        ALLOW(writev),
        ALLOW(lseek),
        ALLOW(close),
        ALLOW(dup),
        ALLOW(fcntl),
        ALLOW(fstat),
        ALLOW(newfstatat),
        ALLOW(statx),
        ALLOW(ppoll),
        ALLOW(mmap),
        ALLOW(munmap),
        ALLOW(mremap),
        ALLOW(mprotect),
        ALLOW(madvise),
        ALLOW(brk),
        ALLOW(futex),
        ALLOW(sched_yield),
        ALLOW(sched_getaffinity),
        ALLOW(set_robust_list),
        ALLOW(rseq),
        ALLOW(rt_sigaction),
        ALLOW(rt_sigprocmask),
        ALLOW(rt_sigreturn),
        ALLOW(sigaltstack),
        ALLOW(restart_syscall),
        ALLOW(getpid),
        ALLOW(gettid),
        ALLOW(getrandom),
        ALLOW(sysinfo),
        ALLOW(clock_gettime),
        ALLOW(clock_getres),
        ALLOW(clock_nanosleep),
        ALLOW(gettimeofday),
        ALLOW(exit),
        ALLOW(exit_group),
#ifdef __x86_64__ /* calls that newer architectures do not have */
        ALLOW(stat),
        ALLOW(lstat),
        ALLOW(poll),
        ALLOW_IF(open, 1, OPEN_FOR_WRITING, O_RDONLY),
#endif
        ALLOW_IF(openat, 2, OPEN_FOR_WRITING, O_RDONLY),
        /* Abort signals the process itself. */
        ALLOW_IF(tgkill, 0, UINT32_MAX, getpid()),
        /* What a terminal is: two commands, so without ALLOW_IF. */
        UNLESS_EQUAL_SKIP(SYS_ioctl, 5),
        LOAD_ARGUMENT(1),
        UNLESS_EQUAL_SKIP(TCGETS, 1),
        RETURN_ALLOWED,
        UNLESS_EQUAL_SKIP(TIOCGWINSZ, 1),
        RETURN_ALLOWED,
        RETURN_DENIED,
    };
    const struct sock_fprog program = {.len = sizeof filter / sizeof *filter, .filter = (struct sock_filter *)filter};
    long failed = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program);
    if (failed > 0) return EBUSY; /* the number of a thread that could not be synchronised */
    return failed ? errno : 0;
}

#else
int sandbox_restrict_calls(void) { return ENOSYS; }
#endif

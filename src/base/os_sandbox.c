/* os_sandbox.c - the sandbox of os.h: restricts files with Landlock, and system calls with seccomp.
 *
 * Landlock decides by file, seccomp by system call and its numeric arguments. Neither needs privileges. Landlock comes
 * first, because the seccomp filter denies its system calls. The C library has no functions for Landlock, so it is
 * called directly. Other systems than Linux have no sandbox.
 *
 * Proof: tests/cli/test_sandbox.c tries what must fail. */
#include "base/os.h"

#if defined(__linux__)

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- files: Landlock --------------------------------------------------------------------------------- */

/* Returns the mask of all file rights that this version of Landlock knows; newer versions have added higher bits. */
static uint64_t all_rights(long version) {
    int n = version >= 5 ? 16 : version >= 3 ? 15 : version == 2 ? 14 : 13;
    return ((uint64_t)1 << n) - 1;
}

int os_sandbox_begin(OsSandbox *s) {
    s->rules = -1;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return errno;
    long version = syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);
    if (version < 1) return 0; /* an old kernel, or one that was booted without Landlock */
    const struct landlock_ruleset_attr attributes = {.handled_access_fs = all_rights(version)};
    s->rules = (int)syscall(SYS_landlock_create_ruleset, &attributes, sizeof attributes, 0);
    return s->rules < 0 ? errno : 0;
}

int os_sandbox_allow_reading(const OsSandbox *s, const char *path) {
    struct landlock_path_beneath_attr rule = {.allowed_access = LANDLOCK_ACCESS_FS_READ_FILE};
    rule.parent_fd = s->rules < 0 ? -1 : open(path, O_PATH | O_CLOEXEC);
    if (rule.parent_fd < 0) return 0; /* opening a file that does not exist will fail later */
    bool added = syscall(SYS_landlock_add_rule, s->rules, LANDLOCK_RULE_PATH_BENEATH, &rule, 0) == 0;
    int number = errno;
    close(rule.parent_fd);
    return added || number == EBADFD ? 0 : number; /* EBADFD: an open pipe, such as /dev/fd/N */
}

void os_sandbox_cancel(OsSandbox *s) {
    if (s->rules >= 0) close(s->rules);
    s->rules = -1;
}

/* ---- system calls: seccomp ---------------------------------------------------------------------------
 *
 * The filter is a table of BPF instructions, which the kernel runs for each system call on its number and arguments. It
 * lists the allowed calls, so that calls of future kernels are denied. It is a constant table, because libseccomp,
 * which can build such filters, crashes when memory runs out, and the input of a sandboxed command may cause that.
 *
 *     is it this architecture?    no: EPERM
 *     is it call A?               yes: allow        two instructions for each call
 *     is it openat?               no: skip; yes: allow if its flags only read, else EPERM
 *     EPERM
 *
 * Arguments are compared in their lower 32 bits, which is what the kernel takes of flags, commands and process ids. */

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
/* Allow a call with any arguments, or if the masked argument i has a value. Before, the accumulator holds the call's
 * number. */
#define ALLOW(call) UNLESS_EQUAL_SKIP(SYS_##call, 1), RETURN_ALLOWED
#define ALLOW_IF(call, i, mask, value) \
    UNLESS_EQUAL_SKIP(SYS_##call, 5), LOAD_ARGUMENT(i), BPF_STMT(BPF_ALU | BPF_AND | BPF_K, (uint32_t)(mask)), \
        UNLESS_EQUAL_SKIP(value, 1), RETURN_ALLOWED, RETURN_DENIED

/* Restricts all threads of the process to system calls for memory, open files, opening files for reading, time, and
 * ending. Others fail with EPERM. Needs PR_SET_NO_NEW_PRIVS. Returns 0 or an errno; allocates no memory. */
static int restrict_all_threads(void) {
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
#ifdef __x86_64__ /* newer architectures do not have these calls */
        ALLOW(stat),
        ALLOW(lstat),
        ALLOW(poll),
        ALLOW_IF(open, 1, OPEN_FOR_WRITING, O_RDONLY),
#endif
        ALLOW_IF(openat, 2, OPEN_FOR_WRITING, O_RDONLY),
        /* abort() signals the process itself. */
        ALLOW_IF(tgkill, 0, UINT32_MAX, getpid()),
        /* Two commands of ioctl that isatty and the width of a terminal need. */
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
static int restrict_all_threads(void) { return ENOSYS; }
#endif

/* ---- both ----------------------------------------------------------------------------------------------- */

int os_sandbox_enter(OsSandbox *s) {
    int number = s->rules >= 0 && syscall(SYS_landlock_restrict_self, s->rules, 0) != 0 ? errno : 0;
    os_sandbox_cancel(s);
    if (number) return number;
    number = restrict_all_threads();
    /* The errors mean a kernel without seccomp, or an emulator. */
    return number == EINVAL || number == ENOSYS || number == EOPNOTSUPP ? 0 : number;
}

#else

int os_sandbox_begin(OsSandbox *s) {
    s->rules = -1;
    return 0;
}
int os_sandbox_allow_reading(const OsSandbox *s, const char *path) {
    (void)s, (void)path;
    return 0;
}
int os_sandbox_enter(OsSandbox *s) {
    (void)s;
    return 0;
}
void os_sandbox_cancel(OsSandbox *s) { (void)s; }

#endif

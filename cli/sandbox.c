/* sandbox.c - restricts files with Landlock, and system calls with seccomp.
 *
 * Landlock decides by file, seccomp by system call and its numeric arguments. Neither needs privileges. Landlock comes
 * first, because the seccomp filter denies its system calls. The C library has no functions for Landlock, so it is
 * called directly.
 *
 * Proof: tests/cli/test_sandbox.c tries what must fail; tests/cli/test_inspect.c compares the output with and without
 * the sandbox. */
#include "cli/sandbox.h"
#include "gguf/gguf.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

SandboxOptions sandbox_options;

const Option sandbox_option_table[] = {
    {.key = "no-sandbox",
     OPT_FLAG(SandboxOptions, off),
     .help = "do not give up rights; without this option, the process gives up all rights that it does not need before "
             "it reads a file"},
    {.key = NULL},
};

static int refuse(int number, fr_error *err) {
    return error_set(err, FR_ERR_INTERNAL, "the sandbox cannot be set up: %s; --no-sandbox runs without it",
                     strerror(number));
}

/* ---- files: Landlock --------------------------------------------------------------------------------- */

/* Returns the mask of all file rights that this version of Landlock knows; newer versions have added higher bits. */
static uint64_t all_rights(long version) {
    int n = version >= 5 ? 16 : version >= 3 ? 15 : version == 2 ? 14 : 13;
    return ((uint64_t)1 << n) - 1;
}

static int allow_reading(int rules, const char *path, fr_error *err) {
    struct landlock_path_beneath_attr rule = {.allowed_access = LANDLOCK_ACCESS_FS_READ_FILE};
    rule.parent_fd = path ? open(path, O_PATH | O_CLOEXEC) : -1;
    if (rule.parent_fd < 0) return FR_OK; /* opening a file that does not exist will fail later */
    bool added = syscall(SYS_landlock_add_rule, rules, LANDLOCK_RULE_PATH_BENEATH, &rule, 0) == 0;
    int number = errno;
    close(rule.parent_fd);
    return added || number == EBADFD ? FR_OK : refuse(number, err); /* EBADFD: an open pipe, such as /dev/fd/N */
}

/* Allows reading a file, and if it is named like the first part of a split model, the other parts. */
static int allow_reading_parts(int rules, const char *path, fr_error *err) {
    char part[GGUF_MAX_PATH];
    int n = path ? gguf_split_count(path) : 1, status = allow_reading(rules, path, err);
    for (int i = 1; i < n && !status; i++)
        if (gguf_split_path(path, i, part)) status = allow_reading(rules, part, err);
    return status;
}

static int restrict_files(const char *const *readable, int n, fr_error *err) {
    long version = syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);
    if (version < 1) return FR_OK; /* an old kernel, or one that was booted without Landlock */
    const struct landlock_ruleset_attr attributes = {.handled_access_fs = all_rights(version)};
    int rules = (int)syscall(SYS_landlock_create_ruleset, &attributes, sizeof attributes, 0);
    if (rules < 0) return refuse(errno, err);
    int status = FR_OK;
    for (int i = 0; i < n && !status; i++) status = allow_reading_parts(rules, readable[i], err);
    if (!status && syscall(SYS_landlock_restrict_self, rules, 0) != 0) status = refuse(errno, err);
    close(rules);
    return status;
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

static int restrict_calls(fr_error *err) {
    int number = restrict_all_threads();
    /* The errors mean a kernel without seccomp, or an emulator. */
    if (number == 0 || number == EINVAL || number == ENOSYS || number == EOPNOTSUPP) return FR_OK;
    return refuse(number, err);
}

/* ---- both ----------------------------------------------------------------------------------------------- */

int sandbox_enter(const char *const *readable, int n, fr_error *err) {
    if (sandbox_options.off || SANDBOX_SANITIZED) return FR_OK;
    const char *preloaded = getenv("LD_PRELOAD");
    if (preloaded && *preloaded) {
        fprintf(stderr, "forerun: note: LD_PRELOAD is set, so this command runs without its sandbox\n");
        return FR_OK;
    }
    json_object_seed(0); /* reads /dev/urandom, which must happen before the sandbox */
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return refuse(errno, err);
    int status = restrict_files(readable, n, err);
    return status ? status : restrict_calls(err);
}

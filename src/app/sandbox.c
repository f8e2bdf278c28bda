/* sandbox.c - Landlock for files, seccomp for system calls.
 *
 * Landlock decides by file, seccomp by system call and its numeric arguments; neither needs privileges. Landlock comes
 * first, because its own system calls are not among those that seccomp allows. It is called directly: the C library has
 * no functions for it. The list of system calls is one of those that are allowed, so that calls which future kernels
 * add are denied.
 *
 * Proof: tests/unit/test_sandbox.c tries what must fail; tests/cli/test_inspect.c compares the output with that without
 * sandbox. */
#include "app/sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <linux/landlock.h>
#include <seccomp.h>
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
     .help = "keep all rights of the process; without this option it gives up those that it does not need before it "
             "reads a file"},
    {.key = NULL},
};

static int refuse(int number, fr_error *err) {
    return error_set(err, FR_ERR_INTERNAL, "the sandbox cannot be set up: %s; --no-sandbox does without it",
                     strerror(number));
}

/* ---- files: Landlock --------------------------------------------------------------------------------- */

/* All rights over files that this version of Landlock knows; each version added bits at the upper end. */
static uint64_t all_rights(long version) {
    int n = version >= 5 ? 16 : version >= 3 ? 15 : version == 2 ? 14 : 13;
    return ((uint64_t)1 << n) - 1;
}

static int allow_reading(int rules, const char *path, fr_error *err) {
    struct landlock_path_beneath_attr rule = {.allowed_access = LANDLOCK_ACCESS_FS_READ_FILE};
    rule.parent_fd = path ? open(path, O_PATH | O_CLOEXEC) : -1;
    if (rule.parent_fd < 0) return FR_OK; /* a file that does not exist is refused when it is opened */
    bool added = syscall(SYS_landlock_add_rule, rules, LANDLOCK_RULE_PATH_BENEATH, &rule, 0) == 0;
    int number = errno;
    close(rule.parent_fd);
    return added || number == EBADFD ? FR_OK : refuse(number, err); /* EBADFD: a pipe, open already, as /dev/fd/N */
}

static int restrict_files(const char *const *readable, int n, fr_error *err) {
    long version = syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);
    if (version < 1) return FR_OK; /* an old kernel, or one that was booted without it */
    const struct landlock_ruleset_attr attributes = {.handled_access_fs = all_rights(version)};
    int rules = (int)syscall(SYS_landlock_create_ruleset, &attributes, sizeof attributes, 0);
    if (rules < 0) return refuse(errno, err);
    int status = FR_OK;
    for (int i = 0; i < n && !status; i++) status = allow_reading(rules, readable[i], err);
    if (!status && syscall(SYS_landlock_restrict_self, rules, 0) != 0) status = refuse(errno, err);
    close(rules);
    return status;
}

/* ---- system calls: seccomp --------------------------------------------------------------------------- */

/* Memory, descriptors that are open, time, and the end of the process. A call that an architecture does not have is
 * translated or passed over by libseccomp. */
static const int allowed_calls[] = {
    SCMP_SYS(read),
    SCMP_SYS(readv),
    SCMP_SYS(pread64),
    SCMP_SYS(write),
    SCMP_SYS(writev),
    SCMP_SYS(lseek),
    SCMP_SYS(close),
    SCMP_SYS(dup),
    SCMP_SYS(fcntl),
    SCMP_SYS(stat),
    SCMP_SYS(lstat),
    SCMP_SYS(fstat),
    SCMP_SYS(newfstatat),
    SCMP_SYS(statx),
    SCMP_SYS(poll),
    SCMP_SYS(ppoll),
    SCMP_SYS(mmap),
    SCMP_SYS(munmap),
    SCMP_SYS(mremap),
    SCMP_SYS(mprotect),
    SCMP_SYS(madvise),
    SCMP_SYS(brk),
    SCMP_SYS(futex),
    SCMP_SYS(sched_yield),
    SCMP_SYS(sched_getaffinity),
    SCMP_SYS(set_robust_list),
    SCMP_SYS(rseq),
    SCMP_SYS(rt_sigaction),
    SCMP_SYS(rt_sigprocmask),
    SCMP_SYS(rt_sigreturn),
    SCMP_SYS(sigaltstack),
    SCMP_SYS(restart_syscall),
    SCMP_SYS(getpid),
    SCMP_SYS(gettid),
    SCMP_SYS(getrandom),
    SCMP_SYS(sysinfo),
    SCMP_SYS(clock_gettime),
    SCMP_SYS(clock_getres),
    SCMP_SYS(clock_nanosleep),
    SCMP_SYS(gettimeofday),
    SCMP_SYS(exit),
    SCMP_SYS(exit_group),
};

/* Opening for reading; asking a terminal what it is; and abort, which signals the process itself. */
static int allow_some(scmp_filter_ctx filter) {
    const scmp_datum_t writing = O_ACCMODE | O_CREAT | O_TRUNC | O_APPEND | (O_TMPFILE & ~O_DIRECTORY);
    int failed = seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(openat), 1,
                                  SCMP_A2(SCMP_CMP_MASKED_EQ, writing, O_RDONLY));
    if (!failed)
        failed = seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(open), 1,
                                  SCMP_A1(SCMP_CMP_MASKED_EQ, writing, O_RDONLY));
    if (!failed) failed = seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(ioctl), 1, SCMP_A1(SCMP_CMP_EQ, TCGETS, 0));
    if (!failed)
        failed = seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(ioctl), 1, SCMP_A1(SCMP_CMP_EQ, TIOCGWINSZ, 0));
    if (!failed)
        failed = seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(tgkill), 1,
                                  SCMP_A0(SCMP_CMP_EQ, (scmp_datum_t)getpid(), 0));
    return failed;
}

static int restrict_calls(fr_error *err) {
    scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ERRNO(EPERM));
    if (!filter) return refuse(ENOMEM, err);
    int failed = seccomp_attr_set(filter, SCMP_FLTATR_CTL_TSYNC, 1); /* all threads */
    for (size_t i = 0; i < sizeof allowed_calls / sizeof *allowed_calls && !failed; i++)
        failed = seccomp_rule_add(filter, SCMP_ACT_ALLOW, allowed_calls[i], 0);
    if (!failed) failed = allow_some(filter);
    bool is_set_up = !failed;
    if (is_set_up) failed = seccomp_load(filter);
    seccomp_release(filter);
    if (!failed) return FR_OK;
    bool is_missing = is_set_up && (failed == -EINVAL || failed == -ENOSYS || failed == -EOPNOTSUPP);
    return is_missing ? FR_OK : refuse(-failed, err); /* missing: a kernel without seccomp, or an emulator */
}

int sandbox_enter(const char *const *readable, int n, fr_error *err) {
    if (sandbox_options.off || SANDBOX_SANITIZED) return FR_OK;
    const char *preloaded = getenv("LD_PRELOAD");
    if (preloaded && *preloaded) {
        fprintf(stderr, "forerun: note: LD_PRELOAD is set, so this command runs without its sandbox\n");
        return FR_OK;
    }
    json_object_seed(0); /* reads /dev/urandom, now or later */
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return refuse(errno, err);
    int status = restrict_files(readable, n, err);
    return status ? status : restrict_calls(err);
}

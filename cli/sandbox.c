/* sandbox.c - Landlock for files, seccomp for system calls.
 *
 * Landlock decides by file, seccomp (sandbox_calls.c) by system call and its numeric arguments; neither needs privileges.
 * Landlock comes first, because its own system calls are not among those that seccomp allows. It is called directly: the
 * C library has no functions for it.
 *
 * Proof: tests/cli/test_sandbox.c tries what must fail; tests/cli/test_inspect.c compares the output with that without
 * sandbox. */
#include "cli/sandbox.h"

#include "cli/sandbox_calls.h"
#include "gguf/gguf.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <linux/landlock.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

/* A file, and where its name is that of the first part of a model, the other parts. */
static int allow_reading_parts(int rules, const char *path, fr_error *err) {
    char part[GGUF_MAX_PATH];
    int n = path ? gguf_split_count(path) : 1, status = allow_reading(rules, path, err);
    for (int i = 1; i < n && !status; i++)
        if (gguf_split_path(path, i, part)) status = allow_reading(rules, part, err);
    return status;
}

static int restrict_files(const char *const *readable, int n, fr_error *err) {
    long version = syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);
    if (version < 1) return FR_OK; /* an old kernel, or one that was booted without it */
    const struct landlock_ruleset_attr attributes = {.handled_access_fs = all_rights(version)};
    int rules = (int)syscall(SYS_landlock_create_ruleset, &attributes, sizeof attributes, 0);
    if (rules < 0) return refuse(errno, err);
    int status = FR_OK;
    for (int i = 0; i < n && !status; i++) status = allow_reading_parts(rules, readable[i], err);
    if (!status && syscall(SYS_landlock_restrict_self, rules, 0) != 0) status = refuse(errno, err);
    close(rules);
    return status;
}

static int restrict_calls(fr_error *err) {
    int number = sandbox_restrict_calls();
    /* A kernel without seccomp, or an emulator: */
    if (number == 0 || number == EINVAL || number == ENOSYS || number == EOPNOTSUPP) return FR_OK;
    return refuse(number, err);
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

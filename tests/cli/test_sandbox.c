/* test_sandbox.c - in the sandbox of `inspect` and `tokenize`, the system calls that they need work, and all others are
 * refused. */
#include "testing.h"

#include "cli/sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define MODEL "models/draft.gguf"
static char planted[] = "build/sandbox-XXXXXX";

/* Each returns a negative number and sets errno if the system refuses. */
static long open_to_write(void) { return open(planted, O_WRONLY); }
static long open_to_read_and_write(void) { return open(MODEL, O_RDWR); }
static long create(void) { return open("build/sandbox-created", O_RDONLY | O_CREAT, 0600); }
static long create_without_a_name(void) { return open("build", O_TMPFILE | O_RDWR, 0600); }
static long cut(void) { return open(planted, O_RDONLY | O_TRUNC); }
static long cut_by_path(void) { return truncate(planted, 0); }
static long removing(void) { return unlink(planted); }
static long renaming(void) { return rename(planted, "build/sandbox-renamed"); }
static long link_it(void) { return symlink("/etc/passwd", "build/sandbox-linked"); }
static long change_mode(void) { return chmod(planted, 0777); }
static long make_folder(void) { return mkdir("build/sandbox-folder", 0700); }
static long open_socket(void) { return socket(AF_UNIX, SOCK_STREAM, 0); }
static long open_internet_socket(void) { return socket(AF_INET, SOCK_STREAM, 0); }
static long start_a_program(void) { return execl("/bin/true", "true", (char *)NULL); }
static long start_a_process(void) {
    pid_t child = fork();
    if (child == 0) _exit(0);
    return child;
}
static long trace(void) { return ptrace(PTRACE_ATTACH, getppid(), NULL, NULL); }
static long signal_another(void) { return kill(getppid(), 0); }
static long change_user(void) { return setuid(getuid()); }
static long mount_something(void) { return syscall(SYS_unshare, 0x10000000); }

static const struct {
    const char *name;
    long (*call)(void);
} forbidden[] = {
    {"open to write", open_to_write},
    {"open to read and write", open_to_read_and_write},
    {"create", create},
    {"create without a name", create_without_a_name},
    {"cut", cut},
    {"cut by path", cut_by_path},
    {"remove", removing},
    {"rename", renaming},
    {"link", link_it},
    {"change the mode", change_mode},
    {"make a folder", make_folder},
    {"open a socket", open_socket},
    {"open an internet socket", open_internet_socket},
    {"start a program", start_a_program},
    {"start a process", start_a_process},
    {"trace", trace},
    {"signal another process", signal_another},
    {"change the user", change_user},
    {"enter a namespace", mount_something},
};
enum { N_FORBIDDEN = sizeof forbidden / sizeof *forbidden };

static int enter(void) {
    const char *const readable[] = {MODEL, NULL};
    fr_error err;
    int status = sandbox_enter(readable, 2, &err);
    if (status) fprintf(stderr, "%s\n", err.message);
    return status;
}

/* Returns the exit status of a child that runs `body`. */
static int in_child(int (*body)(void)) {
    int status;
    pid_t child = fork();
    if (child == 0) _exit(body());
    assert_int_equal(waitpid(child, &status, 0), child);
    if (!WIFEXITED(status)) fail_msg("the child ended with status %x", (unsigned)status);
    return WEXITSTATUS(status);
}

/* Returns whether the kernel has filters (it looks for one at NULL), and this build uses them. */
static bool has_filters(void) {
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    return !SANDBOX_SANITIZED && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, NULL, 0, 0) != 0 && errno == EFAULT;
}

static int i_case;
static int try_case(void) {
    if (enter()) return 100;
    errno = 0;
    long got = forbidden[i_case].call();
    return got >= 0 ? 101 : errno;
}

static void what_is_not_needed_is_refused(void **state) {
    (void)state;
    if (!has_filters()) {
        print_message("skipped: no seccomp here, or a build with a sanitizer\n");
        skip();
    }
    for (i_case = 0; i_case < N_FORBIDDEN; i_case++) {
        int got = in_child(try_case);
        if (got != EPERM && got != EACCES) fail_msg("%s: status %d instead of EPERM", forbidden[i_case].name, got);
    }
}

static int read_and_write(void) {
    char bytes[4] = "";
    if (enter()) return 1;
    int fd = open(MODEL, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || read(fd, bytes, 4) != 4 || memcmp(bytes, "GGUF", 4) != 0) return 2;
    void *memory = malloc(64 << 20);
    if (!memory) return 3;
    memset(memory, 1, 64 << 20);
    free(memory);
    if (write(STDERR_FILENO, "", 0) != 0) return 4;
    return isatty(0) && errno == EPERM ? 5 : 0;
}

static void the_named_files_can_be_read(void **state) {
    (void)state;
    assert_int_equal(in_child(read_and_write), 0);
}

static int read_another(void) {
    if (enter()) return 1;
    return open("/etc/passwd", O_RDONLY) >= 0 ? 2 : 0;
}

static void other_files_cannot_be_read(void **state) {
    (void)state;
    if (SANDBOX_SANITIZED || syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION) < 1) {
        print_message("skipped: no Landlock here\n");
        skip();
    }
    assert_int_equal(in_child(read_another), 0);
}

static int abort_in_it(void) {
    signal(SIGABRT, SIG_DFL);
    if (enter()) return 1;
    pid_t self = getpid();
    return syscall(SYS_tgkill, self, syscall(SYS_gettid), 0) == 0 ? 0 : 2;
}

static void a_failed_assertion_can_still_abort(void **state) {
    (void)state;
    assert_int_equal(in_child(abort_in_it), 0);
}

static int stay_out(void) {
    sandbox_options.off = true;
    return enter() || open_to_write() < 0;
}

static int stay_out_with_preload(void) {
    setenv("LD_PRELOAD", "/lib/some_checker.so", 1);
    if (!freopen("/dev/null", "w", stderr)) return 2;
    return enter() || open_to_write() < 0;
}

static void it_can_be_switched_off(void **state) {
    (void)state;
    assert_int_equal(in_child(stay_out), 0);
    assert_int_equal(in_child(stay_out_with_preload), 0);
}

static int begin(void **state) {
    (void)state;
    int fd = mkstemp(planted);
    return fd < 0 ? -1 : close(fd);
}

static int end(void **state) {
    (void)state;
    return unlink(planted);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_not_needed_is_refused), cmocka_unit_test(the_named_files_can_be_read),
        cmocka_unit_test(other_files_cannot_be_read),    cmocka_unit_test(a_failed_assertion_can_still_abort),
        cmocka_unit_test(it_can_be_switched_off),
    };
    return cmocka_run_group_tests(tests, begin, end);
}

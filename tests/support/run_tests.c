/* run_tests.c [-j N] [-l SECONDS] PROGRAM... - runs the test programs named on its command line, N at a time, and
 * counts what they report.
 *
 * It prints the output of a program that fails and one line for a program that passes, and closes with "N passed, N
 * failed, N skipped". A program that dies or reports nothing counts as one failure, and so does one that has not ended
 * after the limit of -l: it is killed, and the report lists the processes that were running.
 *
 * Tests name their inputs relative to the root of the project (models/target.gguf, ../shared) and write below build/.
 * So that no file remains, not even after a crash, each program runs in a scratch folder that looks like the root and
 * is removed afterwards:
 *
 *     build/tmp/run-PID/                 PID: of this runner; the next runner removes the folder of a killed one
 *         shared -> ROOT/../shared
 *         test_x/                        the working directory of test_x
 *             models, src, ... -> ROOT/models, ROOT/src, ...
 *             build/MODE/                a folder with links to the programs and libraries in ROOT/build/MODE
 *             build/MODE/tests/          likewise, with links to the test programs
 *
 * A test program that is started by hand in the root runs in the same way and leaves its files in build/. */
#define _XOPEN_SOURCE 700
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PATH_SIZE = 4096 };

/* ---- scratch folders ----------------------------------------------------------------------------------- */

static char root[PATH_SIZE], scratch[PATH_SIZE]; /* absolute paths: the project, build/tmp/run-PID */

static void die(const char *what, const char *path) {
    fprintf(stderr, "run_tests: %s %s: %s\n", what, path, strerror(errno));
    exit(2);
}

static void join(char *out, const char *folder, const char *name) {
    if (snprintf(out, PATH_SIZE, "%s/%s", folder, name) >= PATH_SIZE) {
        errno = ENAMETOOLONG;
        die("cannot name a file in", folder);
    }
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at) {
    (void)st, (void)kind, (void)at;
    return remove(path);
}

static void remove_tree(const char *path) { nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS); }

static void make_folder(const char *path) {
    if (mkdir(path, 0777) != 0 && errno != EEXIST) die("cannot create", path);
}

static bool is_folder(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* Calls `each` with the absolute paths of every entry of `from` and of its place in `to`. */
static void for_every_entry(const char *from, const char *to,
                            void (*each)(const char *from, const char *to, const char *name)) {
    DIR *folder = opendir(from);
    if (!folder) die("cannot read", from);
    for (struct dirent *entry; (entry = readdir(folder));) {
        char a[PATH_SIZE], b[PATH_SIZE];
        if (entry->d_name[0] == '.') continue;
        join(a, from, entry->d_name);
        join(b, to, entry->d_name);
        each(a, b, entry->d_name);
    }
    closedir(folder);
}

static void link_file(const char *from, const char *to, const char *name) {
    (void)name;
    if (symlink(from, to) != 0) die("cannot create the link", to);
}

/* In build/MODE/tests only the programs are linked, and no folder of objects. */
static void link_program(const char *from, const char *to, const char *name) {
    if (!is_folder(from) && access(from, X_OK) == 0) link_file(from, to, name);
}

static void link_in_mode(const char *from, const char *to, const char *name) {
    if (strcmp(name, "tests") != 0) {
        link_file(from, to, name);
        return;
    }
    make_folder(to);
    for_every_entry(from, to, link_program);
}

/* In build only the modes are linked, and not the files of `make torture`. A file that a test wrote there, run by hand,
 * must not be written again through a link. */
static void link_mode(const char *from, const char *to, const char *name) {
    if (!is_folder(from) || strcmp(name, "tmp") == 0 || strcmp(name, "torture") == 0) return;
    make_folder(to);
    for_every_entry(from, to, link_in_mode);
}

static void link_in_root(const char *from, const char *to, const char *name) {
    if (strcmp(name, "build") != 0) {
        link_file(from, to, name);
        return;
    }
    make_folder(to);
    for_every_entry(from, to, link_mode);
}

/* Removes run-PID if no process PID is alive. */
static void remove_stale(const char *from, const char *to, const char *name) {
    int pid;
    (void)to;
    if (sscanf(name, "run-%d", &pid) == 1 && kill((pid_t)pid, 0) != 0 && errno == ESRCH) remove_tree(from);
}

static void scratch_begin(void) {
    char folder[PATH_SIZE], from[PATH_SIZE], to[PATH_SIZE], name[32];
    if (!getcwd(root, sizeof root)) die("cannot find", "the working directory");
    join(folder, root, "build");
    make_folder(folder);
    join(folder, root, "build/tmp");
    make_folder(folder);
    for_every_entry(folder, folder, remove_stale);
    snprintf(name, sizeof name, "run-%d", (int)getpid());
    join(scratch, folder, name);
    make_folder(scratch);
    join(from, root, "../shared");
    join(to, scratch, "shared");
    if (is_folder(from)) link_file(from, to, "shared");
}

static void scratch_end(void) {
    char folder[PATH_SIZE];
    remove_tree(scratch);
    join(folder, root, "build/tmp");
    (void)rmdir(folder); /* another runner may still be in it */
}

/* ---- running and counting -------------------------------------------------------------------------------- */

typedef struct Counts {
    int passed, failed, skipped;
} Counts;

/* Reads cmocka's closing lines: "[  PASSED  ] 8 test(s).", "[  SKIPPED ] 1 test(s), ...", "[  FAILED  ] ...". */
static void count_line(const char *line, Counts *c) {
    int n;
    if (sscanf(line, "[  PASSED  ] %d test(s)", &n) == 1) c->passed += n;
    else if (sscanf(line, "[  SKIPPED ] %d test(s)", &n) == 1) c->skipped += n;
    else if (sscanf(line, "[  FAILED  ] %d test(s)", &n) == 1) c->failed += n;
}

static double seconds_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A program that runs. It leads a process group, so that a signal reaches what it has started as well. */
typedef struct Child {
    pid_t pid;
    int out; /* reads what the program prints */
} Child;

enum { MAX_JOBS = 64 };

/* The process groups that run, or 0, by job. */
static volatile pid_t groups[MAX_JOBS];

/* Without this the groups would go on when the user presses Ctrl-C, because they are not the terminal's. */
static void stop_all(int signal_number) {
    for (int i = 0; i < MAX_JOBS; i++)
        if (groups[i] > 0) kill(-groups[i], SIGKILL);
    _exit(128 + signal_number);
}

static _Noreturn void become(const char *folder, const char *program, int out) {
    char command[PATH_SIZE + 8];
    int in = open("/dev/null", O_RDONLY);
    snprintf(command, sizeof command, "exec %s", program);
    setpgid(0, 0);
    if (in < 0 || chdir(folder) != 0 || dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(out, 2) < 0) _exit(126);
    execl("/bin/sh", "sh", "-c", command, (char *)NULL);
    _exit(127);
}

static Child start(const char *folder, const char *program) {
    /* No other program may inherit this pipe, or its end would be seen only when that program ends. */
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    int ends[2];
    pthread_mutex_lock(&lock);
    if (pipe(ends) != 0) die("cannot run", program);
    fcntl(ends[0], F_SETFD, FD_CLOEXEC);
    fcntl(ends[1], F_SETFD, FD_CLOEXEC);
    pid_t pid = fork();
    if (pid < 0) die("cannot run", program);
    if (pid == 0) become(folder, program, ends[1]);
    setpgid(pid, pid); /* the child does the same; it is done when the first of the two is */
    close(ends[1]);
    pthread_mutex_unlock(&lock);
    return (Child){pid, ends[0]};
}

/* Copies what comes from `fd` to `kept` until its end, or until `deadline_s`. Returns whether the end was reached. */
static bool copy_until(int fd, FILE *kept, double deadline_s) {
    char piece[4096];
    for (;;) {
        double left_s = deadline_s - seconds_now();
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        if (left_s <= 0) return false;
        if (poll(&ready, 1, (int)(left_s * 1000) + 1) <= 0) continue;
        ssize_t n = read(fd, piece, sizeof piece);
        if (n == 0 || (n < 0 && errno != EINTR)) return true;
        if (n > 0) fwrite(piece, 1, (size_t)n, kept);
    }
}

/* The processes of this session: what the program that hangs has started, and what runs beside it. */
static void list_processes(FILE *kept) {
    char command[160], line[4096];
    snprintf(command, sizeof command, "ps -s %d -o pid,ppid,pgid,stat,wchan:24,time,args 2>&1", (int)getsid(0));
    FILE *list = popen(command, "r");
    while (list && fgets(line, sizeof line, list)) fputs(line, kept);
    if (list) pclose(list);
}

/* Runs `program` in `folder` for at most limit_s seconds, counts its tests, and returns its status. *text is its whole
 * output, malloc'ed. */
static int run_in(const char *folder, const char *program, int job, int limit_s, Counts *c, char **text) {
    enum { AFTER_KILL_S = 5 }; /* a process outside of the group may keep the pipe open */
    size_t text_bytes = 0;
    int status = 0;
    *text = NULL;
    FILE *kept = open_memstream(text, &text_bytes);
    if (!kept) die("cannot run", program);
    Child child = start(folder, program);
    groups[job] = child.pid;
    if (!copy_until(child.out, kept, seconds_now() + limit_s)) {
        fprintf(kept, "\nno end after %d seconds; killed. The processes of this session:\n", limit_s);
        list_processes(kept);
        kill(-child.pid, SIGKILL);
        (void)copy_until(child.out, kept, seconds_now() + AFTER_KILL_S);
        c->failed++;
    }
    close(child.out);
    while (waitpid(child.pid, &status, 0) < 0 && errno == EINTR) {}
    groups[job] = 0;
    fclose(kept);
    for (const char *line = *text; line && *line; line = strchr(line, '\n'), line += line != NULL) count_line(line, c);
    return status;
}

/* The first line of the output that begins with "skipped", which gives the reason. */
static void print_line_beginning(char *text, const char *beginning) {
    for (char *l = strtok(text, "\n"); l; l = strtok(NULL, "\n"))
        if (strncmp(l, beginning, strlen(beginning)) == 0) {
            printf("     %s\n", l);
            return;
        }
}

/* The programs that have not begun, the counts so far, and the program that prints next. */
static struct {
    pthread_mutex_t lock;
    char **next; /* ends with NULL */
    Counts all;
    int limit_s; /* for one program */
} work = {.lock = PTHREAD_MUTEX_INITIALIZER, .limit_s = 3600};

static void report(const char *program, const char *name, Counts c, double seconds, int status, char *text) {
    printf("%-4s %-32s %4d passed %3d failed %3d skipped  %6.1f s\n", c.failed ? "FAIL" : "ok", name, c.passed,
           c.failed, c.skipped, seconds);
    if (c.failed) printf("---- output of %s (status %d)\n%s----\n", program, status, text);
    else if (c.skipped) print_line_beginning(text, "skipped:");
    fflush(stdout);
    work.all.passed += c.passed, work.all.failed += c.failed, work.all.skipped += c.skipped;
}

static void run(const char *program, int job) {
    Counts c = {0, 0, 0};
    const char *slash = strrchr(program, '/'), *name = slash ? slash + 1 : program;
    char folder[PATH_SIZE], *text;
    join(folder, scratch, name);
    make_folder(folder);
    for_every_entry(root, folder, link_in_root);
    double start = seconds_now();
    int status = run_in(folder, program, job, work.limit_s, &c, &text);
    double seconds = seconds_now() - start;
    remove_tree(folder);
    if (status != 0 && c.failed == 0) c.failed = 1;
    if (c.passed + c.failed + c.skipped == 0) c.failed = 1;
    pthread_mutex_lock(&work.lock);
    report(program, name, c, seconds, status, text);
    pthread_mutex_unlock(&work.lock);
    free(text);
}

static void *run_what_is_left(void *job) {
    for (;;) {
        pthread_mutex_lock(&work.lock);
        const char *program = *work.next ? *work.next++ : NULL;
        pthread_mutex_unlock(&work.lock);
        if (!program) return NULL;
        run(program, *(const int *)job);
    }
}

/* Reads the options and returns what follows them. */
static char **read_options(char **args, int *n_jobs) {
    while (args[0] && args[1] && (strcmp(args[0], "-j") == 0 || strcmp(args[0], "-l") == 0)) {
        *(args[0][1] == 'j' ? n_jobs : &work.limit_s) = atoi(args[1]);
        args += 2;
    }
    if (*n_jobs < 1) *n_jobs = 1;
    if (*n_jobs > MAX_JOBS) *n_jobs = MAX_JOBS;
    return args;
}

int main(int argc, char **argv) {
    pthread_t threads[MAX_JOBS];
    int n_jobs = 1, numbers[MAX_JOBS];
    (void)argc;
    work.next = read_options(argv + 1, &n_jobs);
    signal(SIGINT, stop_all);
    signal(SIGTERM, stop_all);
    signal(SIGHUP, stop_all);
    scratch_begin();
    for (int i = 0; i < n_jobs; i++) numbers[i] = i;
    for (int i = 1; i < n_jobs; i++)
        if (pthread_create(&threads[i], NULL, run_what_is_left, &numbers[i]) != 0) n_jobs = i;
    run_what_is_left(&numbers[0]);
    for (int i = 1; i < n_jobs; i++) pthread_join(threads[i], NULL);
    scratch_end();
    printf("%d passed, %d failed, %d skipped\n", work.all.passed, work.all.failed, work.all.skipped);
    return work.all.failed || work.all.passed == 0;
}

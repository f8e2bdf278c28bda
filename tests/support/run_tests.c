/* run_tests.c [-j N] PROGRAM... - runs the test programs named on its command line, N at a time, and counts what they
 * report.
 *
 * It prints the output of a program that fails and one line for a program that passes, and closes with "N passed, N
 * failed, N skipped". A program that dies or reports nothing counts as one failure.
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
#include <ftw.h>
#include <limits.h>
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

/* Runs `program` in `folder`, counts its tests, and returns its status. *text is its whole output, malloc'ed. */
static int run_in(const char *folder, const char *program, Counts *c, char **text) {
    char command[3 * PATH_SIZE], line[4096];
    size_t text_bytes = 0;
    *text = NULL;
    snprintf(command, sizeof command, "cd '%s' && %s 2>&1", folder, program);
    FILE *out = popen(command, "r"), *kept = open_memstream(text, &text_bytes);
    if (!out || !kept) die("cannot run", program);
    while (fgets(line, sizeof line, out)) {
        count_line(line, c);
        fputs(line, kept);
    }
    fclose(kept);
    return pclose(out);
}

static double seconds_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
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
} work = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void report(const char *program, const char *name, Counts c, double seconds, int status, char *text) {
    printf("%-4s %-32s %4d passed %3d failed %3d skipped  %6.1f s\n", c.failed ? "FAIL" : "ok", name, c.passed,
           c.failed, c.skipped, seconds);
    if (c.failed) printf("---- output of %s (status %d)\n%s----\n", program, status, text);
    else if (c.skipped) print_line_beginning(text, "skipped:");
    fflush(stdout);
    work.all.passed += c.passed, work.all.failed += c.failed, work.all.skipped += c.skipped;
}

static void run(const char *program) {
    Counts c = {0, 0, 0};
    const char *slash = strrchr(program, '/'), *name = slash ? slash + 1 : program;
    char folder[PATH_SIZE], *text;
    join(folder, scratch, name);
    make_folder(folder);
    for_every_entry(root, folder, link_in_root);
    double start = seconds_now();
    int status = run_in(folder, program, &c, &text);
    double seconds = seconds_now() - start;
    remove_tree(folder);
    if (status != 0 && c.failed == 0) c.failed = 1;
    if (c.passed + c.failed + c.skipped == 0) c.failed = 1;
    pthread_mutex_lock(&work.lock);
    report(program, name, c, seconds, status, text);
    pthread_mutex_unlock(&work.lock);
    free(text);
}

static void *run_what_is_left(void *arg) {
    (void)arg;
    for (;;) {
        pthread_mutex_lock(&work.lock);
        const char *program = *work.next ? *work.next++ : NULL;
        pthread_mutex_unlock(&work.lock);
        if (!program) return NULL;
        run(program);
    }
}

int main(int argc, char **argv) {
    enum { MAX_JOBS = 64 };
    pthread_t threads[MAX_JOBS];
    int n_jobs = 1;
    if (argc > 2 && strcmp(argv[1], "-j") == 0) n_jobs = atoi(argv[2]), argv += 2;
    if (n_jobs < 1 || n_jobs > MAX_JOBS) n_jobs = n_jobs < 1 ? 1 : MAX_JOBS;
    work.next = argv + 1;
    scratch_begin();
    for (int i = 1; i < n_jobs; i++)
        if (pthread_create(&threads[i], NULL, run_what_is_left, NULL) != 0) n_jobs = i;
    run_what_is_left(NULL);
    for (int i = 1; i < n_jobs; i++) pthread_join(threads[i], NULL);
    scratch_end();
    printf("%d passed, %d failed, %d skipped\n", work.all.passed, work.all.failed, work.all.skipped);
    return work.all.failed || work.all.passed == 0;
}

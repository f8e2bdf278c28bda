/* test_join_mpi.c - ranks over MPI whose others do not come: the start ends after its limit with a sentence that names
 * the missing rank and the machine that speaks. A rank that has not called comm_open_mpi is to the others what one of
 * another machine is: it counts no beats in the memory that they share. Skipped without mpirun.
 *
 *   test_join_mpi WAY    what the test starts with mpirun, as two ranks */
#include "testing.h"

#include "base/system.h"
#include "compute/ranks/comm.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static char own_path[700], library[720];

/* ---- a rank ----------------------------------------------------------------------------------------------- */

/* Seconds in which all ranks must have come. MPI has to start in those of a rank that does not answer. */
static double limit_s(const char *way) { return strcmp(way, "late") == 0 ? 1 : strcmp(way, "silent") == 0 ? 3 : 30; }

static void wait_s(time_t seconds) { nanosleep(&(struct timespec){.tv_sec = seconds}, NULL); }

/* Starts MPI as another program would, which says nothing to forerun. */
static int only_start_mpi(void) {
    int (*init)(int *, char ***) = NULL;
    if (dlopen(library, RTLD_NOW | RTLD_GLOBAL)) *(void **)&init = dlsym(RTLD_DEFAULT, "MPI_Init");
    if (!init || init(NULL, NULL)) return 1;
    wait_s(20);
    return 0;
}

static int be_rank(const char *way) {
    Comm *c;
    fr_error err;
    bool is_second = getenv("OMPI_COMM_WORLD_RANK") && atoi(getenv("OMPI_COMM_WORLD_RANK")) == 1;
    if (is_second && strcmp(way, "late") == 0) wait_s(20);
    if (is_second && strcmp(way, "silent") == 0) return only_start_mpi();
    double start_s = clock_s();
    int status = comm_open_mpi(&c, limit_s(way), &err);
    if (status) {
        printf("error after %.1f s: %s\n", clock_s() - start_s, err.message);
        return 1;
    }
    printf("rank %d of %d has joined\n", comm_rank(c), comm_size(c));
    comm_close(c);
    return 0;
}

/* ---- the test --------------------------------------------------------------------------------------------- */

static int start(const char *launcher, const char *way, char *text, size_t size) {
    char command[2000];
    if (access(library, R_OK) != 0 || system("command -v mpirun >/dev/null 2>&1") != 0) {
        print_message("skipped: mpirun is not installed, or forerun was built without Open MPI\n");
        skip();
    }
    snprintf(command, sizeof command,
             "env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 ASAN_OPTIONS=detect_leaks=0 "
             "TSAN_OPTIONS=$TSAN_OPTIONS:detect_deadlocks=0 %s %s %s 2>&1 </dev/null",
             launcher, own_path, way);
    FILE *out = popen(command, "r");
    assert_non_null(out);
    size_t n = fread(text, 1, size - 1, out);
    text[n] = '\0';
    return pclose(out);
}

#define TWO_RANKS "timeout -k 1 30 mpirun --oversubscribe -n 2"

static void ranks_that_come_join(void **state) {
    (void)state;
    char text[6000];
    int status = start(TWO_RANKS, "soon", text, sizeof text);
    if (status || !strstr(text, "rank 0 of 2 has joined") || !strstr(text, "rank 1 of 2 has joined"))
        fail_msg("%s", text);
}

/* Checks that the error of rank 0 came in time, and what is in it. */
static void expect_error(const char *way, const char *words) {
    char text[6000], host[65] = "", named[200];
    double seconds = 0;
    gethostname(host, sizeof host - 1);
    int status = start(TWO_RANKS, way, text, sizeof text);
    const char *error = strstr(text, "error after ");
    snprintf(named, sizeof named, "rank 0 on %s ", host);
    if (!status || !error || sscanf(error, "error after %lf", &seconds) != 1) fail_msg("%s", text);
    print_message("%.*s\n", (int)strcspn(error, "\n"), error);
    if (seconds < limit_s(way) || seconds > limit_s(way) + 10 || !strstr(error, named) || !strstr(error, words))
        fail_msg("%s", text);
}

static void a_rank_that_does_not_start_is_named(void **state) {
    (void)state;
    expect_error("late", "still waits for rank 1 of 2 to start MPI: find out whether forerun runs there");
}

static void a_rank_that_does_not_answer_is_named(void **state) {
    (void)state;
    expect_error("silent", "has no message from rank 1 of 2: it was stopped, or MPI uses a network");
}

/* A launcher that Open MPI does not know. */
static void processes_that_see_only_themselves_are_refused(void **state) {
    (void)state;
    char text[6000];
    int status = start("env PMI_SIZE=3 PMI_RANK=1 timeout 30", "soon", text, sizeof text);
    if (!status || !strstr(text, "the launcher has started 3 processes, and each of them is alone for Open MPI"))
        fail_msg("%s", text);
}

int main(int argc, char **argv) {
    ssize_t n = readlink("/proc/self/exe", own_path, sizeof own_path - 1);
    snprintf(library, sizeof library, "%.*slibforerun-mpi.so", (int)(strrchr(own_path, '/') + 1 - own_path), own_path);
    if (n > 0 && argc > 1) return be_rank(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_that_come_join),
        cmocka_unit_test(a_rank_that_does_not_start_is_named),
        cmocka_unit_test(a_rank_that_does_not_answer_is_named),
        cmocka_unit_test(processes_that_see_only_themselves_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

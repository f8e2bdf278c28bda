/* test_deploy_mpi.c - deploy/forerun-mpi as the leader: it waits for workers, starts mpirun over all hosts, hands
 * SIGTERM to rank 0, and ends an mpirun that does not end. ssh, mpirun, the clock and the ranks are small programs. */
#include "testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[] = "/tmp/forerun-deploy-XXXXXX";

static void write_program(const char *name, const char *script) {
    char path[100];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f, "#!/bin/sh\n%s\n", script);
    fclose(f);
    assert_int_equal(chmod(path, 0755), 0);
}

/* A clock of which each reading is 100 seconds later, and a rank, which is a program with the name of ours. */
static int make_programs(void **state) {
    (void)state;
    char rank[100];
    if (!mkdtemp(folder)) return -1;
    write_program("ssh", "case \"$*\" in *lost*) exit 255; esac");
    write_program("sleep", "exec /bin/sleep 0.02");
    write_program("date", "cd ${0%/*}; echo >> readings; echo $(($(wc -l < readings) * 100))");
    snprintf(rank, sizeof rank, "%s/forerun", folder);
    return symlink("/bin/sleep", rank);
}

static int remove_programs(void **state) {
    (void)state;
    char command[100];
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command);
}

/* Runs a script with this mpirun, and returns its exit status; `text` is all that it printed. */
static int run(const char *hosts, const char *mpirun, const char *script, char *text, size_t size) {
    char command[1000];
    write_program("mpirun", mpirun);
    snprintf(command, sizeof command, "export PATH=%s:$PATH FORERUN_HOSTS=%s; { %s; } 2>&1", folder, hosts, script);
    FILE *out = popen(command, "r");
    assert_non_null(out);
    size_t n = fread(text, 1, size - 1, out);
    text[n] = '\0';
    int status = pclose(out);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

#define LEADER "timeout 30 sh deploy/forerun-mpi leader serve -m x"

static void mpirun_gets_all_hosts_and_the_command(void **state) {
    (void)state;
    char text[4000];
    int status = run("first,second", "echo \"$*\"; exit 3", LEADER, text, sizeof text);
    if (status != 3 || !strstr(text, "-n 2 --host first:1,second:1 ") || !strstr(text, " forerun serve -m x\n"))
        fail_msg("status %d: %s", status, text);
}

static void a_worker_that_does_not_answer_is_named(void **state) {
    (void)state;
    char text[4000];
    int status = run("first,lost", "exit 0", LEADER, text, sizeof text);
    if (status != 1 || !strstr(text, "forerun-mpi: lost could not be reached by SSH on port 2222 for five minutes"))
        fail_msg("status %d: %s", status, text);
}

static void a_wrong_role_is_refused(void **state) {
    (void)state;
    char text[4000];
    static const char *const scripts[] = {"sh deploy/forerun-mpi", "sh deploy/forerun-mpi lead serve"};
    for (int i = 0; i < 2; i++) {
        int status = run("first", "exit 0", scripts[i], text, sizeof text);
        if (status != 2 || !strstr(text, "usage: forerun-mpi worker, or forerun-mpi leader COMMAND"))
            fail_msg("status %d: %s", status, text);
    }
}

/* The clock stands, so that the leader would wait forever. */
static void a_signal_ends_the_waiting(void **state) {
    (void)state;
    char text[4000];
    write_program("date", "echo 0");
    int status = run("first,lost", "exit 0",
                     "sh deploy/forerun-mpi leader serve & p=$!; /bin/sleep 0.3; kill -TERM $p; wait $p", text,
                     sizeof text);
    if (status != 143 || *text) fail_msg("status %d: %s", status, text);
}

static void skip_without_children(void) {
    if (system("test -r /proc/self/task/$$/children -o -r /proc/thread-self/children") == 0) return;
    print_message("skipped: /proc does not list children\n");
    skip();
}

/* It ignores SIGTERM, too. */
static void an_mpirun_that_does_not_end_is_killed(void **state) {
    (void)state;
    char text[4000];
    skip_without_children();
    int status = run("first,second", "trap '' TERM; forerun 0.3; while :; do /bin/sleep 0.1; done", LEADER, text,
                     sizeof text);
    if (status != 128 + 9 || !strstr(text, "rank 0 has ended and mpirun has not, so it is killed"))
        fail_msg("status %d: %s", status, text);
}

static void a_signal_to_end_is_for_rank_0(void **state) {
    (void)state;
    char text[4000];
    skip_without_children();
    int status = run(
        "first,second", "trap 'echo mpirun has got it' TERM; forerun 9 & wait $!; echo the rank ended with $?",
        "sh deploy/forerun-mpi leader serve & p=$!; /bin/sleep 0.5; kill -TERM $p; wait $p", text, sizeof text);
    if (status != 0 || !strstr(text, "the rank ended with 143") || strstr(text, "mpirun has got it"))
        fail_msg("status %d: %s", status, text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mpirun_gets_all_hosts_and_the_command),
        cmocka_unit_test(a_worker_that_does_not_answer_is_named),
        cmocka_unit_test(a_wrong_role_is_refused),
        cmocka_unit_test(a_signal_ends_the_waiting),
        cmocka_unit_test(an_mpirun_that_does_not_end_is_killed),
        cmocka_unit_test(a_signal_to_end_is_for_rank_0),
    };
    return cmocka_run_group_tests(tests, make_programs, remove_programs);
}

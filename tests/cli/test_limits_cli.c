/* test_limits_cli.c - the program where the system grants little: a limit on its address space, no further threads, no
 * OpenBLAS. Whatever it is granted, it does its work or ends with a sentence; it neither hangs nor dies. */
#define DIR "build/test-limits"
#include "train_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define RUN "run -m models/target.gguf -p Once -n 8 --threads 2"
#define TRAIN \
    "train target --vocab " VOCAB " --data " DATA \
    " --valid 0 --layers 1 --width 16 --heads 2 --length 16 --batch 4 --steps 2 --threads 2 -o " OUT " --precision "

static char got[1 << 18];

/* Runs "BEFORE exec timeout 20 forerun ARGS" in a shell; its output is in `got`. */
static int run_after(const char *before, const char *args) {
    char command[2000];
    snprintf(command, sizeof command, "ulimit -c 0; %s exec timeout 20 %s/../forerun %s 2>&1", before, cli_rig_folder(),
             args);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    got[fread(got, 1, sizeof got - 1, f)] = 0;
    int status = pclose(f);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void it_works_or_ends_with_a_sentence(const char *before, const char *args) {
    int status = run_after(before, args);
    if (status != 0 && !(status == 1 && strncmp(got, "forerun: ", 9) == 0))
        fail_msg("%s %s: status %d, '%s'", before, args, status, got);
}

static int make_files(void **state) {
    (void)state;
    return train_rig_make_files(DIR);
}

static int drop_files(void **state) {
    (void)state;
    return train_rig_drop_files(DIR);
}

static void only_training_in_float_needs_openblas(void **state) {
    (void)state;
    char command[600];
    snprintf(command, sizeof command, "ldd %s/../forerun > " DIR "/libraries", cli_rig_folder());
    train_rig_shell(command);
    train_rig_shell("grep -q libjansson " DIR "/libraries && ! grep -qE 'blas|gfortran' " DIR "/libraries");
    train_rig_shell("mkdir -p " DIR "/lib && echo no library > " DIR "/lib/libopenblas.so.0");
    const char *broken = "LD_LIBRARY_PATH=" DIR "/lib";
    assert_int_equal(run_after(broken, RUN), 0);
    assert_int_equal(run_after(broken, TRAIN "bf16"), 0);
    assert_int_equal(run_after(broken, TRAIN "f32"), 1);
    assert_non_null(strstr(got, "needs OpenBLAS, which cannot be loaded"));
    assert_non_null(strstr(got, "install libopenblas0-pthread, or pass --precision bf16"));
    assert_int_equal(run_after("", TRAIN "f32"), 0);
}

static void any_limit_on_the_address_space_is_handled(void **state) {
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip(); /* the sanitizers reserve terabytes */
#endif
    const char *small = "ulimit -v 60000;";
    assert_int_equal(run_after(small, "--help"), 0);
    assert_int_equal(run_after(small, "inspect models/target.gguf"), 0);
    assert_int_equal(run_after("ulimit -v 200000;", RUN), 0);
    for (int kib = 16000; kib <= 160000; kib += 9000) {
        char before[80];
        snprintf(before, sizeof before, "ulimit -v %d;", kib);
        it_works_or_ends_with_a_sentence(before, RUN);
        it_works_or_ends_with_a_sentence(before, "inspect --json models/target.gguf");
        it_works_or_ends_with_a_sentence(before, "index --vocab models/target.gguf " DATA " -o " DIR "/index");
        it_works_or_ends_with_a_sentence(before, TRAIN "f32");
    }
    assert_int_equal(run_after("ulimit -v 160000;", TRAIN "f32"), 1);
    assert_non_null(strstr(got, "address space for OpenBLAS with 2 threads"));
    assert_int_equal(run_after("ulimit -v 160000;", TRAIN "bf16"), 0);
}

/* The limit holds for users, and not for root, who therefore runs the program as another user. */
static void no_further_thread_is_a_sentence(void **state) {
    (void)state;
    const char *become = geteuid() == 0 ? "setpriv --reuid=54321 --clear-groups" : "";
    char command[1200];
    snprintf(command, sizeof command, "%s test -x %s/../forerun -a -r models/target.gguf", become, cli_rig_folder());
    if (system(command) != 0) skip(); /* the other user may not read this folder */
    snprintf(command, sizeof command, "exec prlimit --nproc=1 --core=0 %s %s/../forerun " RUN " 2>&1", become,
             cli_rig_folder());
    FILE *f = popen(command, "r");
    assert_non_null(f);
    got[fread(got, 1, sizeof got - 1, f)] = 0;
    if (WEXITSTATUS(pclose(f)) != 1 || !strstr(got, "the system does not grant 2 threads; use fewer (-t)"))
        fail_msg("got '%s'", got);
}

int main(int argc, char **argv) {
    (void)argc;
    cli_rig_begin(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_training_in_float_needs_openblas),
        cmocka_unit_test(any_limit_on_the_address_space_is_handled),
        cmocka_unit_test(no_further_thread_is_a_sentence),
    };
    return cmocka_run_group_tests(tests, make_files, drop_files);
}

/* test_train_ranks.c - `forerun train` on several ranks: the file has the bytes that one process writes, also after a
 * run that was stopped or has lost a process and goes on with another number of them; what is refused; and mpirun. */
#define DIR "build/test-train-ranks"
#include "train_rig.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* The precision is given because the default one is measured, and must be that of the run before. */
#define COMMON " --data " DATA " --precision bf16 --length 16 --force "
#define TARGET "train target --vocab " VOCAB " --layers 1 --width 16 --heads 2" COMMON
#define DRAFTER(method) "train " method " -m " VOCAB COMMON
#define WHOLE DIR "/whole.gguf"
#define ENDLESS RUN "--steps 100000 --lr 1e-9 "
#define RUN DRAFTER("medusa") "--lm-head target --valid 0 --batch 5 --steps 24 -o " OUT " --checkpoint-every 2 "

static int make_files(void **state) {
    (void)state;
    return train_rig_make_files(DIR);
}

static int drop_files(void **state) {
    (void)state;
    return train_rig_drop_files(DIR);
}

/* The losses in two logs are the same numbers. */
static void compare_losses(const char *a, const char *b) {
    static const char script[] = "for f in %s %s; do grep -o '\"[a-z_]*loss\": [^,}]*' $f > $f.losses; done; "
                                 "test -s %s.losses && cmp %s.losses %s.losses";
    char command[1000];
    snprintf(command, sizeof command, script, a, b, a, a, b);
    train_rig_shell(command);
}

/* Odd batches, several micro-batches, fewer sequences than ranks; noise; an optimiser for whole matrices. */
static void any_number_of_ranks_writes_the_same_file(void **state) {
    (void)state;
    static const char *const runs[] = {
        TARGET "--batch 5 --accumulate 3 --optimizer muon --steps 4 --valid 0.1 ",
        DRAFTER("eagle") "--batch 7 --noise 0.1 --steps 4 --valid 0.1 ",
        DRAFTER("medusa") "--batch 1 --steps 4 --valid 0 ",
        DRAFTER("dflash") "--batch 2 --depth 1 --block 4 --anchors 3 --mask-token 9 --steps 4 --valid 0.05 ",
    };
    static const char *const ranks[] = {"--ranks 2 -t 1", "--ranks=3 --threads 2", "--threads=3"};
    char command[1000];
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        snprintf(command, sizeof command, "%s -o " OUT " -t1", runs[i]);
        cli_expect(command, 0, " tokens/s");
        train_rig_shell("mv " OUT " " WHOLE "; mv " OUT ".log.jsonl " WHOLE ".log.jsonl");
        for (size_t k = 0; k < sizeof ranks / sizeof *ranks; k++) {
            snprintf(command, sizeof command, "%s %s -o " OUT, runs[i], ranks[k]);
            cli_expect(command, 0, k < 2 ? " processes\n" : " tokens/s");
            train_rig_shell("cmp " OUT " " WHOLE);
            compare_losses(OUT ".log.jsonl", WHOLE ".log.jsonl");
        }
    }
}

/* Four ranks on one method; the file of another seed is another one. */
static void more_ranks_than_cores(void **state) {
    (void)state;
    cli_expect(DRAFTER("medusa") "--batch 6 --steps 3 -o " OUT, 0, " tokens/s");
    train_rig_shell("mv " OUT " " WHOLE);
    cli_expect(DRAFTER("medusa") "--batch 6 --steps 3 --ranks 4 -o " OUT, 0, "4 processes");
    train_rig_shell("cmp " OUT " " WHOLE);
    cli_expect(DRAFTER("medusa") "--batch 6 --steps 3 --ranks 2 --seed 1 -o " OUT, 0, "2 processes");
    assert_int_not_equal(system("cmp -s " OUT " " WHOLE), 0);
}

/* Begins on 2 ranks, is killed, and goes on with 3 until it is killed again or finishes. */
static void a_run_resumes_with_another_number_of_ranks(void **state) {
    (void)state;
    cli_expect(RUN, 0, " tokens/s");
    train_rig_shell("mv " OUT " " WHOLE);
    assert_true(train_rig_run_with_kills(DIR, RUN "--ranks 2 -t 1", OUT ".checkpoint", "--ranks 3 --resume") > 0);
    train_rig_shell("cmp " OUT " " WHOLE);
    train_rig_shell("sleep 0.3; ! pgrep -f '[t]rain medusa .* -o " OUT "' > /dev/null"); /* of killed ones, too */
}

/* Ctrl-C reaches all processes of a terminal, and only rank 0 heeds it. */
static void a_stopped_run_writes_its_checkpoint(void **state) {
    (void)state;
    char command[200];
    if (system("command -v pgrep >/dev/null 2>&1") != 0) skip();
    train_rig_shell("rm -f " OUT "*");
    pid_t child = train_rig_start(DIR, ENDLESS "--ranks 2 -t 1");
    for (int k = 0; k < 60000 && !train_rig_exists(OUT ".checkpoint"); k++) usleep(1000);
    snprintf(command, sizeof command, "pkill -INT -P %d; pkill -TERM -P %d", (int)child, (int)child);
    train_rig_shell(command);
    train_rig_interrupt(child, OUT ".checkpoint");
    train_rig_shell("grep -q 'the same command with --resume continues' " DIR "/stderr");
    assert_true(train_rig_exists(OUT ".checkpoint"));
    train_rig_shell("rm -f " OUT "*");
}

/* Sends SIGKILL to a child of the process, which is the i-th one by age; waits until its parent has ended and returns
 * its status. */
static int kill_child(pid_t parent, int i) {
    char command[200];
    for (int k = 0; k < 60000 && !train_rig_exists(OUT ".checkpoint"); k++) usleep(1000);
    snprintf(command, sizeof command, "kill -9 $(pgrep -P %d | sort -n | sed -n %dp)", (int)parent, i);
    train_rig_shell(command);
    int status;
    assert_int_equal(waitpid(parent, &status, 0), parent);
    return status;
}

/* The other processes end with the sentence and leave the checkpoint. */
static void a_killed_rank_ends_the_run(void **state) {
    (void)state;
    if (system("command -v pgrep >/dev/null 2>&1") != 0) skip();
    for (int i = 1; i < 3; i++) {
        char wanted[200];
        train_rig_shell("rm -f " OUT "*");
        int status = kill_child(train_rig_start(DIR, ENDLESS "--ranks 3 -t 1"), i);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 1);
        snprintf(wanted, sizeof wanted,
                 "grep -q '^forerun: rank %d of 3 has died (signal 9); the other ranks have ended, too$' " DIR
                 "/stderr && test $(wc -l < " DIR "/stderr) = 1",
                 i);
        train_rig_shell(wanted);
        assert_true(train_rig_exists(OUT ".checkpoint") && !train_rig_exists(OUT));
    }
    train_rig_shell("rm -f " OUT "*");
}

static void wrong_options_are_refused(void **state) {
    (void)state;
    cli_expect(RUN "--ranks 0", 2, "'--ranks=0' must be numa or an integer from 1 to 64");
    cli_expect(RUN "--ranks 65", 2, "'--ranks=65' must be numa or an integer from 1 to 64");
    cli_expect(RUN "--ranks many", 2, "'--ranks=many' must be numa or an integer from 1 to 64");
    cli_expect(RUN "--ranks 2 --idle", 2, "--idle: a process that waits for the processor");
    cli_expect(RUN "--ranks 2 --hot-tokens 3", 2, "unknown option '--hot-tokens'");
    cli_expect(RUN "--ranks 2 --head-tokens 301", 2,
               "forerun: rank 0: --head-tokens=301 is more than the 300 tokens of the target");
    setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
    cli_expect(RUN "--ranks 2", 2, "--ranks: mpirun has started the processes of this training already");
    cli_expect("train auto -m " VOCAB " " DATA " -o " OUT, 2, "this command runs in one: start it without mpirun");
    unsetenv("OMPI_COMM_WORLD_SIZE");
}

/* ---- mpirun --------------------------------------------------------------------------------------------- */

/* See test_ranks_mpi.c. */
#define MPIRUN \
    "env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 ASAN_OPTIONS=detect_leaks=0 " \
    "TSAN_OPTIONS=$TSAN_OPTIONS:detect_deadlocks=0 timeout -k 1 60 mpirun --oversubscribe "

static void skip_without_mpirun(void) {
    char library[700];
    snprintf(library, sizeof library, "%s/../libforerun-mpi.so", cli_rig_folder());
    if (access(library, R_OK) == 0 && system("command -v mpirun >/dev/null 2>&1") == 0) return;
    print_message("skipped: mpirun is not installed, or forerun was built without Open MPI\n");
    skip();
}

static void processes_of_mpirun_write_the_same_file(void **state) {
    (void)state;
    char command[3000];
    skip_without_mpirun();
#define SHORT DRAFTER("redrafter") "--valid 0.1 --batch 5 --steps 4 -o " OUT
    cli_expect(SHORT, 0, " tokens/s");
    train_rig_shell("mv " OUT " " WHOLE);
    snprintf(command, sizeof command, MPIRUN "-n 3 %s/../forerun " SHORT " -t 1 > " DIR "/said 2>&1 </dev/null",
             cli_rig_folder());
    if (system(command) != 0) train_rig_shell("cat " DIR "/said >&2; false");
    train_rig_shell("cmp " OUT " " WHOLE "; test $(grep -c '3 processes' " DIR "/said) = 1");
}

/* Rank 1 has other options, or lacks the data. */
static void a_rank_that_differs_is_named(void **state) {
    (void)state;
    static const struct {
        const char *options, *words;
    } cases[] = {{"--seed 1", "rank 1: another target, or other options, than rank 0"},
                 {"--data " DIR "/none.jsonl", "rank 1: " DIR "/none.jsonl: "}};
    char command[3000];
    skip_without_mpirun();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(command, sizeof command,
                 MPIRUN "-n 1 %s/../forerun " SHORT " -t 1 : -n 1 %s/../forerun " SHORT " -t 1 %s > " DIR
                        "/said 2>&1 </dev/null",
                 cli_rig_folder(), cli_rig_folder(), cases[i].options);
        assert_int_not_equal(system(command), 0);
        snprintf(command, sizeof command, "grep -qF 'forerun: %s' " DIR "/said || ! cat " DIR "/said >&2",
                 cases[i].words);
        train_rig_shell(command);
    }
}

int main(int argc, char **argv) {
    (void)argc;
    cli_rig_begin(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_number_of_ranks_writes_the_same_file),
        cmocka_unit_test(more_ranks_than_cores),
        cmocka_unit_test(a_run_resumes_with_another_number_of_ranks),
        cmocka_unit_test(a_stopped_run_writes_its_checkpoint),
        cmocka_unit_test(a_killed_rank_ends_the_run),
        cmocka_unit_test(wrong_options_are_refused),
        cmocka_unit_test(processes_of_mpirun_write_the_same_file),
        cmocka_unit_test(a_rank_that_differs_is_named),
    };
    return cmocka_run_group_tests(tests, make_files, drop_files);
}

/* test_ranks_mpi.c - `mpirun forerun run`: the processes divide the model, and logits and text are those of one
 * process, also with each drafter of the shipped model; a process that fails or has another build ends all of them with
 * its rank; without the shared object for MPI the error names a package. Skipped without mpirun. `--ranks` needs none:
 * --stats says what was measured for a drafter. */
#include "cli_rig.h"

#include "random_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A process of this test may be root in a container, with fewer cores than ranks. After its ranks have died, the mpirun
 * of Open MPI 4.1 sometimes waits for a lock forever and ignores SIGTERM, so it is killed a second later. Its library
 * takes two of its own locks in both orders, which ThreadSanitizer would report. */
#define MPIRUN_FOR(seconds) \
    "env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 ASAN_OPTIONS=detect_leaks=0 " \
    "TSAN_OPTIONS=$TSAN_OPTIONS:detect_deadlocks=0 timeout -k 1 " seconds " mpirun --oversubscribe -n %d %s "
#define MPIRUN MPIRUN_FOR("60")
#define RUN "run -m %s/mpi.gguf -p 'Once upon a time' -n 6 -t 1 -c 64 --seed 1 --ignore-eos --stats --draft %s"

static const char *program;

/* Runs a command line and returns its exit status; `text` is all that it printed. */
static int run(const char *command, char *text, size_t size) {
    FILE *out = popen(command, "r");
    assert_non_null(out);
    size_t n = fread(text, 1, size - 1, out);
    text[n] = '\0';
    return pclose(out);
}

static void skip_without_mpirun(void) {
    char library[700];
    snprintf(library, sizeof library, "%s/../libforerun-mpi.so", cli_rig_folder());
    if (access(library, R_OK) == 0 && system("command -v mpirun >/dev/null 2>&1") == 0) return;
    print_message("skipped: mpirun is not installed, or forerun was built without Open MPI\n");
    skip();
}

/* Copies the hash from the line of --stats. */
static void find_hash(const char *text, char hash[17]) {
    const char *at = strstr(text, "logits ");
    if (!at || sscanf(at, "logits %16[0-9a-f]", hash) != 1) fail_msg("no hash of logits in '%s'", text);
}

static void processes_of_mpirun_give_the_same_logits(void **state) {
    (void)state;
    /* llama; qwen3moe in Q8_0; qwen35, which has recurrent layers */
    static const struct {
        int model, n_ranks;
        const char *draft;
    } cases[] = {{0, 4, "none"}, {5, 3, "ngram-trie"}, {11, 2, "none"}};
    char command[3000], args[900], text[6000], one[17], several[17], path[700];
    fr_error err;
    skip_without_mpirun();
    snprintf(path, sizeof path, "%s/mpi.gguf", cli_rig_folder());
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (random_model_write(&small_models[cases[i].model], path, &err)) fail_msg("%s", err.message);
        snprintf(args, sizeof args, RUN " 2>&1", cli_rig_folder(), cases[i].draft);
        snprintf(command, sizeof command, "%s %s", program, args);
        assert_int_equal(run(command, text, sizeof text), 0);
        find_hash(text, one);
        snprintf(command, sizeof command, MPIRUN "%s", cases[i].n_ranks, program, args);
        if (run(command, text, sizeof text) != 0) fail_msg("%s", text);
        find_hash(text, several);
        assert_string_equal(one, several);
    }
    unlink(path);
}

/* Compares drafters on two processes of mpirun. `compare` ends with status 1 if the tokens of one, or the hash of its
 * logits, are not those of plain decoding. */
static void compare_over_mpi(const char *drafts, const char *args) {
    static char text[100000];
    char command[3000];
    int n_drafts = 0, n_same = 0, n_accepting = 0, n_accepted;
    for (const char *at = drafts; (at = strstr(at, "--draft ")); at++) n_drafts++;
    snprintf(command, sizeof command, MPIRUN "compare %s --runs 1 --json %s 2>&1", 2, program, args, drafts);
    if (run(command, text, sizeof text) != 0) fail_msg("%s", text);
    for (const char *at = text; (at = strstr(at, "\"identical\": true")); at++) n_same++;
    for (const char *at = text; (at = strstr(at, "\"accepted\": ")); at++)
        n_accepting += sscanf(at, "\"accepted\": %d", &n_accepted) == 1 && n_accepted > 0;
    assert_int_equal(n_same, n_drafts + 1); /* plain decoding is a row, too */
    assert_true(n_accepting > n_drafts / 2);
}

/* Returns the number of exchanges from the lines of --stats. */
static int n_exchanges(const char *text) {
    int n = 0;
    const char *at = strstr(text, "2 ranks: ");
    if (!at || sscanf(at, "2 ranks: %d exchanges", &n) != 1) fail_msg("no exchanges in '%s'", text);
    return n;
}

/* The second time over a network of 50 Mbit/s, where exchanges go in halves. */
static void every_shipped_drafter_gives_the_text_of_one_process(void **state) {
    (void)state;
    static const char of_texts[] = "--draft ngram-trie --draft pld --draft llma --draft suffix --draft lookahead-trie "
                                   "--draft recycling --draft lookahead";
    static const char learned[] = "--draft sps:model=models/draft.gguf --draft eagle:file=models/eagle.gguf "
                                  "--draft hydra:file=models/hydra.gguf --draft lyanna:file=models/lyanna.gguf "
                                  "--draft medusa:file=models/medusa.gguf --draft redrafter:file=models/redrafter.gguf";
    static const char *const samplings[] = {"", "--temp 0.8 --seed 3"};
    char command[3000], args[900], text[6000], one[17], several[17];
    int n[2];
    skip_without_mpirun();
    for (size_t i = 0; i < sizeof samplings / sizeof *samplings; i++) {
        snprintf(args, sizeof args,
                 "-m models/target.gguf -p 'one two one two one two one' -n 24 -t 1 -c 64 --ignore-eos %s",
                 samplings[i]);
        if (i > 0) setenv("FORERUN_RANKS_NETWORK", "0,50", 1);
        compare_over_mpi(learned, args);
        if (i == 0) compare_over_mpi(of_texts, args);
        snprintf(command, sizeof command, MPIRUN "run %s --draft none --stats 2>&1", 2, program, args);
        if (run(command, text, sizeof text) != 0) fail_msg("%s", text);
        find_hash(text, several);
        n[i] = n_exchanges(text);
        snprintf(command, sizeof command, "%s run %s --draft none --stats 2>&1", program, args);
        assert_int_equal(run(command, text, sizeof text), 0);
        find_hash(text, one);
        assert_string_equal(one, several);
    }
    unsetenv("FORERUN_RANKS_NETWORK");
    assert_true(n[1] > n[0] * 3 / 2);
}

/* Stops a process that has begun to join the others, which is when it maps the memory in which ranks that join count
 * beats. The others wait in MPI_Init then. The time ends when a rank names the one that was stopped. */
static void a_rank_that_is_stopped_while_ranks_join_is_named(void **state) {
    (void)state;
    static const char script[] = MPIRUN_FOR("15") RUN
        " > %s/join.txt 2>&1 </dev/null & m=$!; "
        "for i in $(seq 2000); do "
        "  for p in $(pgrep -P $(pgrep -P $m) 2>/dev/null); do "
        "    grep -qs /forerun-ranks- /proc/$p/maps && break 2; "
        "  done; sleep 0.002; "
        "done; "
        "r=$(tr '\\0' '\\n' < /proc/$p/environ | sed -n 's/^OMPI_COMM_WORLD_RANK=//p'); "
        "kill -STOP $p; s=$(date +%%s%%N); "
        "while kill -0 $m && ! grep -q 'does not respond' %s/join.txt; do sleep 0.02; done; "
        "echo stopped $r for $((($(date +%%s%%N) - s) / 1000000)) ms; wait $m; cat %s/join.txt";
    char command[3000], text[6000], wanted[100], path[700];
    int rank, ms;
    fr_error err;
    skip_without_mpirun();
    if (system("command -v pgrep >/dev/null 2>&1") != 0) skip();
    snprintf(path, sizeof path, "%s/mpi.gguf", cli_rig_folder());
    if (random_model_write(&small_models[0], path, &err)) fail_msg("%s", err.message);
    snprintf(command, sizeof command, script, 3, program, cli_rig_folder(), "none", cli_rig_folder(), cli_rig_folder(),
             cli_rig_folder());
    run(command, text, sizeof text);
    if (sscanf(text, "stopped %d for %d ms", &rank, &ms) != 2) fail_msg("%s", text);
    print_message("rank %d was stopped; it was named after %d ms\n", rank, ms);
    snprintf(wanted, sizeof wanted, "rank %d of 3 has died or does not respond", rank);
    if (!strstr(text, wanted) || ms > 4000) fail_msg("%s", text);
    unlink(path);
}

/* Rank 1 runs a program with one more byte at its end. It is told by its build, before any rank opens the model, which
 * is no model here. */
static void another_build_is_refused_by_name(void **state) {
    (void)state;
    char command[4000], text[6000];
    skip_without_mpirun();
    snprintf(command, sizeof command,
             "d=%s/other-build; mkdir -p $d && cp %s $d/forerun && echo >> $d/forerun && "
             "ln -sfn $(realpath %s/../libforerun-mpi.so) $d/libforerun-mpi.so && " MPIRUN
             "run -m README.md -p A -n 1 : -n 1 $d/forerun run -m README.md -p A -n 1 2>&1; s=$?; rm -r $d; exit $s",
             cli_rig_folder(), program, cli_rig_folder(), 1, program);
    int status = run(command, text, sizeof text);
    if (!status || !strstr(text, "forerun: rank 1: another build of forerun than rank 0") || strstr(text, "GGUF"))
        fail_msg("%s", text);
}

/* mpirun and --ranks together would divide the model twice. */
static void ranks_are_started_once(void **state) {
    (void)state;
    static const char *const commands[] = {"run -p A --ranks 2", "serve --ranks=numa", "chat --ranks 2"};
    char command[2000], text[6000];
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        snprintf(command, sizeof command, "env OMPI_COMM_WORLD_SIZE=2 %s %s -m models/target.gguf 2>&1 </dev/null",
                 program, commands[i]);
        if (run(command, text, sizeof text) == 0 ||
            !strstr(text, "--ranks: mpirun has started the processes that divide the model already"))
            fail_msg("%s", text);
    }
    snprintf(command, sizeof command,
             "env OMPI_COMM_WORLD_SIZE=2 %s run -m models/target.gguf -p A -n 1 --draft none --ranks 1 2>&1", program);
    if (run(command, text, sizeof text) != 0) fail_msg("%s", text);
}

/* With exchanges of a millisecond, a small draft model is whole without a measurement of the divided one. */
static void what_was_measured_for_a_drafter_is_printed(void **state) {
    (void)state;
    char command[2000], text[6000];
    snprintf(command, sizeof command,
             "env FORERUN_RANKS_NETWORK=1000,0 %s run -m models/target.gguf -p A -n 2 -t 1 --ranks 2 --stats "
             "--draft sps:model=models/target.gguf 2>&1",
             program);
    if (run(command, text, sizeof text) != 0 ||
        !strstr(text, "the drafter's model is whole in rank 0: a forward takes ") ||
        !strstr(text, " ms, so the divided one was not measured\n"))
        fail_msg("%s", text);
}

/* The program by another name in a folder without the shared object, as mpirun would start it. */
static void a_missing_library_is_named(void **state) {
    (void)state;
    char command[3000], text[6000], folder[600], path[700];
    snprintf(folder, sizeof folder, "%s/ranks-alone", cli_rig_folder());
    snprintf(path, sizeof path, "%s/forerun", folder);
    if (system("/sbin/ldconfig -p | grep -q libforerun-mpi") == 0) {
        print_message("skipped: forerun is installed on this machine, and its shared object for MPI would be found\n");
        skip();
    }
    (void)mkdir(folder, 0777);
    unlink(path);
    char *real = realpath(program, NULL); /* not a link to it, beside whose target the shared object would be found */
    int linked = real ? link(real, path) : -1;
    free(real);
    if (linked != 0) {
        print_message("skipped: the program cannot be linked into another folder\n");
        skip();
    }
    snprintf(command, sizeof command,
             "env OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0 %s run -m models/target.gguf -p A -n 1 2>&1", path);
    assert_true(run(command, text, sizeof text) != 0);
    if (!strstr(text, "install the packages forerun-mpi and openmpi-bin")) fail_msg("%s", text);
    unlink(path);
    rmdir(folder);
}

int main(int argc, char **argv) {
    (void)argc;
    static char path[700];
    cli_rig_begin(argv[0]);
    snprintf(path, sizeof path, "%s/../forerun", cli_rig_folder());
    program = path;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processes_of_mpirun_give_the_same_logits),
        cmocka_unit_test(every_shipped_drafter_gives_the_text_of_one_process),
        cmocka_unit_test(a_rank_that_is_stopped_while_ranks_join_is_named),
        cmocka_unit_test(another_build_is_refused_by_name),
        cmocka_unit_test(ranks_are_started_once),
        cmocka_unit_test(what_was_measured_for_a_drafter_is_printed),
        cmocka_unit_test(a_missing_library_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

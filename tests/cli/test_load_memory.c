/* test_load_memory.c - the peak of memory while a model is loaded, as the system counts it for a separate process: it
 * contains the packed weights without the file; so does a process that maps them (`forerun repack`). Of several ranks,
 * each has its part of the weights. */
#include "cli_rig.h"

#include "cli/sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char model[600], cache[640];

/* Writes a random model of more than 130 MB, which is large compared with the few megabytes of the program itself. */
static void write_model(const char *options) {
    char command[1400];
    snprintf(model, sizeof model, "%s/load-memory.gguf", cli_rig_folder());
    snprintf(command, sizeof command, "%s/../make_model --dim 1024 --heads 16 --kv-heads 4 --ffn 3072 %s -o %s",
             cli_rig_folder(), options, model);
    if (system(command) != 0) fail_msg("%s", command);
}

static void remove_files(void) {
    char command[1400];
    snprintf(command, sizeof command, "rm -rf '%s/forerun' '%s'", cache, model);
    if (system(command) != 0) fail_msg("%s", command);
}

/* Returns the peak of the resident memory of `forerun COMMAND`, as a fraction of the size of the model; if it has
 * started processes, that of the largest one. The child of a fork begins with the peak of its parent, which is
 * small. */
static double peak(const char *const *command) {
    char program[600];
    struct rusage used;
    struct stat st;
    int status;
    snprintf(program, sizeof program, "%s/../forerun", cli_rig_folder());
    assert_int_equal(stat(model, &st), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(open("/dev/null", O_WRONLY), STDOUT_FILENO);
        execv(program, (char *const *)(uintptr_t)command);
        _exit(127);
    }
    assert_int_equal(wait4(child, &status, 0, &used), child);
    assert_int_equal(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 0);
    return (double)used.ru_maxrss * 1024 / (double)st.st_size;
}

static void the_peak_is_near_the_size_of_the_file(void **state) {
    (void)state;
    if (SANDBOX_SANITIZED) {
        print_message("skipped: a sanitizer takes memory of its own\n");
        skip();
    }
    static const char *const kinds[] = {"--type Q8_0 --layers 15 --vocab 8192", "--type Q4_K --layers 27 --vocab 8192",
                                        "--type Q8_0 --layers 7 --vocab 60000 --tie"};
    const char *const logits[] = {"forerun", "logits", "-m", model, "--tokens", "1,2,3", "-o", "-", NULL};
    const char *const repack[] = {"forerun", "repack", "-m", model, NULL};
    for (int i = 0; i < 3; i++) {
        write_model(kinds[i]);
        double packing = peak(logits), writing = peak(repack), mapping = peak(logits);
        print_message("%s: the peak is %.3f of the file if it is packed, %.3f in repack, %.3f if it is mapped\n",
                      kinds[i], packing, writing, mapping);
        assert_in_range((int)(packing * 1000), 900, 1150);
        assert_in_range((int)(writing * 1000), 900, 1150);
        assert_in_range((int)(mapping * 1000), 900, 1150);
        remove_files();
    }
}

/* Returns the peak of the largest rank of a text. */
static double peak_of_ranks(const char *n) {
    const char *const run[] = {"forerun", "run", "-m", model,     "-p",   "a",       "-n", "1", "-c",
                               "64",      "-t",  "1",  "--draft", "none", "--ranks", n,    NULL};
    return peak(run);
}

static void a_rank_has_its_part_of_the_weights(void **state) {
    (void)state;
    enum { N_RANKS = 2 };
    const char *const repack[] = {"forerun", "repack", "-m", model, NULL};
    if (SANDBOX_SANITIZED) skip();
    write_model("--type Q8_0 --layers 11 --vocab 40000"); /* the hash of an embedding reads all of it */
    double one = peak_of_ranks("1"), most = 1.1 / N_RANKS + one - 1, packing = peak_of_ranks("2");
    peak(repack);
    double copying = peak_of_ranks("2");
    print_message("the peak of one process is %.3f of the file; that of a rank of two is %.3f if it packs its weights, "
                  "%.3f if it copies them, and must be below %.3f\n",
                  one, packing, copying, most);
    assert_true(packing < most);
    assert_true(copying < most);
    remove_files();
}

int main(int argc, char **argv) {
    (void)argc;
    cli_rig_begin(argv[0]);
    snprintf(cache, sizeof cache, "%s/load-memory-cache", getenv("XDG_CACHE_HOME"));
    if (mkdir(cache, 0700) != 0 && errno != EEXIST) return 1;
    setenv("XDG_CACHE_HOME", cache, 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_peak_is_near_the_size_of_the_file),
        cmocka_unit_test(a_rank_has_its_part_of_the_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

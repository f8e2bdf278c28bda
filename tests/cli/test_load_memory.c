/* test_load_memory.c - the peak of memory while a model is loaded, as the system counts it for a process of its own: the
 * packed weights, and not the file beside them. */
#include "cli_rig.h"

#include "app/sandbox.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char model[600];

/* A random model of more than 130 MB: large beside the few megabytes that the program itself takes. */
static void write_model(const char *options) {
    char command[1400];
    snprintf(model, sizeof model, "%s/load-memory.gguf", cli_rig_folder());
    snprintf(command, sizeof command,
             "%s/../make_model --dim 1024 --heads 16 --kv-heads 4 --ffn 3072 --vocab 8192 %s -o %s", cli_rig_folder(),
             options, model);
    if (system(command) != 0) fail_msg("%s", command);
}

/* The peak of the program's resident memory in bytes. The child of a fork begins with the peak of its parent, which is
 * small. */
static double peak_bytes(void) {
    char program[600];
    struct rusage used;
    int status;
    snprintf(program, sizeof program, "%s/../forerun", cli_rig_folder());
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(open("/dev/null", O_WRONLY), STDOUT_FILENO);
        execl(program, program, "logits", "-m", model, "--tokens", "1,2,3", "-o", "-", (char *)NULL);
        _exit(127);
    }
    assert_int_equal(wait4(child, &status, 0, &used), child);
    assert_int_equal(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 0);
    return (double)used.ru_maxrss * 1024;
}

static void the_peak_is_near_the_size_of_the_file(void **state) {
    (void)state;
    if (SANDBOX_SANITIZED) {
        print_message("skipped: a sanitizer takes memory of its own\n");
        skip();
    }
    static const char *const kinds[] = {"--type Q8_0 --layers 10", "--type BF16 --layers 6", "--type Q4_K --layers 18"};
    for (int i = 0; i < 3; i++) {
        struct stat st;
        write_model(kinds[i]);
        assert_int_equal(stat(model, &st), 0);
        double ratio = peak_bytes() / (double)st.st_size;
        print_message("%s: the peak is %.3f of the file's %.1f MB\n", kinds[i], ratio, (double)st.st_size / 1e6);
        assert_in_range((int)(ratio * 1000), 900, 1150);
        unlink(model);
    }
}

int main(int argc, char **argv) {
    (void)argc;
    cli_rig_begin(argv[0]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_peak_is_near_the_size_of_the_file)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

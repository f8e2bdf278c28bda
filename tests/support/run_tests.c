/* run_tests.c - runs the test programs named on its command line and counts what they report.
 *
 * Prints the output of a program that fails, one line for one that passes, and closes with
 * "N passed, N failed, N skipped". A program that dies or reports nothing counts as one failure. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

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

static Counts run(const char *program) {
    Counts c = {0, 0, 0};
    char command[4096], line[4096];
    snprintf(command, sizeof command, "%s 2>&1", program);
    struct timespec t0, t1;
    clock_gettime(CLOCK_MONOTONIC, &t0);
    FILE *out = popen(command, "r");
    if (!out) return (Counts){0, 1, 0};
    char *text = NULL;
    size_t text_bytes = 0;
    FILE *kept = open_memstream(&text, &text_bytes);
    while (fgets(line, sizeof line, out)) {
        count_line(line, &c);
        fputs(line, kept);
    }
    fclose(kept);
    int status = pclose(out);
    clock_gettime(CLOCK_MONOTONIC, &t1);
    if (status != 0 && c.failed == 0) c.failed = 1;
    if (c.passed + c.failed + c.skipped == 0) c.failed = 1;
    const char *name = strrchr(program, '/');
    printf("%-4s %-32s %4d passed %3d failed %3d skipped  %6.1f s\n", c.failed ? "FAIL" : "ok",
           name ? name + 1 : program, c.passed, c.failed, c.skipped,
           (double)(t1.tv_sec - t0.tv_sec) + 1e-9 * (double)(t1.tv_nsec - t0.tv_nsec));
    if (c.failed) printf("---- output of %s (status %d)\n%s----\n", program, status, text);
    else if (c.skipped) {
        for (char *l = strtok(text, "\n"); l; l = strtok(NULL, "\n"))
            if (strncmp(l, "skipped:", 8) == 0) {
                printf("     %s\n", l);
                break;
            }
    }
    fflush(stdout);
    free(text);
    return c;
}

int main(int argc, char **argv) {
    Counts all = {0, 0, 0};
    for (int i = 1; i < argc; i++) {
        Counts c = run(argv[i]);
        all.passed += c.passed, all.failed += c.failed, all.skipped += c.skipped;
    }
    printf("%d passed, %d failed, %d skipped\n", all.passed, all.failed, all.skipped);
    return all.failed || all.passed == 0;
}

/* replay_main.c - runs a fuzz target over its committed corpus without libFuzzer, as a part of `make test`.
 *
 * The program replay_NAME reads tests/fuzz/corpus/NAME, or the files and folders named on its command line, and reports
 * in the format that run_tests.c counts. */
#define _DEFAULT_SOURCE
#include "base/mem.h"

#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

/* Returns the number of inputs, or -1 after printing an error. */
static int replay_file(const char *path) {
    FILE *f = fopen(path, "rb");
    struct stat st;
    if (!f || fstat(fileno(f), &st) != 0) {
        printf("%s: cannot be opened\n", path);
        return -1;
    }
    size_t n = (size_t)st.st_size;
    uint8_t *bytes = malloc(n ? n : 1); /* the exact size, so that a sanitizer detects an access past the end */
    bool whole = bytes && fread(bytes, 1, n, f) == n;
    fclose(f);
    printf("%s\n", path); /* the last line before a crash names the input */
    fflush(stdout);
    if (whole) LLVMFuzzerTestOneInput(bytes, n);
    free(bytes);
    return whole ? 1 : -1;
}

static int replay(const char *path) {
    DIR *folder = opendir(path);
    if (!folder) return replay_file(path);
    int n = 0;
    for (struct dirent *entry; n >= 0 && (entry = readdir(folder));) {
        char file[4096];
        if (entry->d_name[0] == '.') continue;
        snprintf(file, sizeof file, "%s/%s", path, entry->d_name);
        int got = replay_file(file);
        n = got < 0 ? -1 : n + got;
    }
    closedir(folder);
    return n;
}

int main(int argc, char **argv) {
    const char *name = strstr(argv[0], "replay_");
    char folder[256];
    snprintf(folder, sizeof folder, "tests/fuzz/corpus/%s", name ? name + strlen("replay_") : "");
    int n = argc > 1 ? 0 : replay(folder);
    for (int i = 1; i < argc && n >= 0; i++) {
        int got = replay(argv[i]);
        n = got < 0 ? -1 : n + got;
    }
    bool passed = n > 0;
    printf("%d inputs\n[  %s  ] 1 test(s).\n", n, passed ? "PASSED" : "FAILED");
    return passed ? 0 : 1;
}

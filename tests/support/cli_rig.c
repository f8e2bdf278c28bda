/* cli_rig.c - runs the program in a shell and checks its exit status and output. */
#include "cli_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

static char folder[512];

void cli_rig_begin(const char *argv0) {
    const char *slash = strrchr(argv0, '/');
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - argv0) : 1, slash ? argv0 : ".");
    char *whole = realpath(folder, NULL); /* everything that the programs store stays below build/ */
    if (!whole || setenv("XDG_CACHE_HOME", whole, 1)) fail_msg("%s: no place for a cache", folder);
    free(whole);
}

const char *cli_rig_folder(void) { return folder; }

int cli_run(const char *args, char *text, size_t size) {
    char command[4096];
    snprintf(command, sizeof command, "%s/../forerun %s", folder, args);
    FILE *out = popen(command, "r");
    if (!out) fail_msg("%s: cannot be run", command);
    size_t n = fread(text, 1, size - 1, out);
    text[n] = 0;
    return WEXITSTATUS(pclose(out));
}

void cli_expect(const char *args, int status, const char *fragment) {
    static char got[1 << 18];
    char both[4000];
    snprintf(both, sizeof both, "%s 2>&1", args);
    int s = cli_run(both, got, sizeof got);
    if (s != status || !strstr(got, fragment))
        fail_msg("forerun %s: want status %d and '%s', got %d and '%s'", args, status, fragment, s, got);
}

/* sandbox.c - which files a command may read in the sandbox of the system (base/os.h), and when there is none.
 *
 * Proof: tests/cli/test_sandbox.c tries what must fail; tests/cli/test_inspect.c compares the output with and without
 * the sandbox. */
#include "cli/sandbox.h"

#include "base/os.h"
#include "gguf/gguf.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

SandboxOptions sandbox_options;

const Option sandbox_option_table[] = {
    {.key = "no-sandbox",
     OPT_FLAG(SandboxOptions, off),
     .help = "do not give up rights; without this option, the process gives up all rights that it does not need before "
             "it reads a file"},
    {.key = NULL},
};

static int refuse(int number, fr_error *err) {
    return error_set(err, FR_ERR_INTERNAL, "the sandbox cannot be set up: %s; --no-sandbox runs without it",
                     strerror(number));
}

/* Allows reading a file, and if it is named like the first part of a split model, the other parts. */
static int allow_reading_parts(const OsSandbox *s, const char *path) {
    char part[GGUF_MAX_PATH];
    int n = gguf_split_count(path), number = os_sandbox_allow_reading(s, path);
    for (int i = 1; i < n && !number; i++)
        if (gguf_split_path(path, i, part)) number = os_sandbox_allow_reading(s, part);
    return number;
}

int sandbox_enter(const char *const *readable, int n, fr_error *err) {
    if (sandbox_options.off || SANDBOX_SANITIZED) return FR_OK;
    const char *preloaded = getenv("LD_PRELOAD");
    if (preloaded && *preloaded) {
        fprintf(stderr, "forerun: note: LD_PRELOAD is set, so this command runs without its sandbox\n");
        return FR_OK;
    }
    json_object_seed(0); /* reads /dev/urandom, which must happen before the sandbox */
    OsSandbox s;
    int number = os_sandbox_begin(&s);
    for (int i = 0; i < n && !number; i++)
        if (readable[i]) number = allow_reading_parts(&s, readable[i]);
    if (!number) number = os_sandbox_enter(&s);
    os_sandbox_cancel(&s);
    return number ? refuse(number, err) : FR_OK;
}

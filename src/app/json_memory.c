/* json_memory.c - ends the program when jansson finds no memory.
 *
 * When an allocation fails inside jansson, its parser and its containers crash or leave out what did not fit, and
 * report success: `index` and `train` ended with status 0 and another output. Nothing that the callers check can
 * prevent that, so the failure must not reach jansson. The process ends at once with a sentence, by _exit: handlers of
 * exit and buffers of files could need memory too, and what was to be written is incomplete: temporary files are removed.
 *
 * A server must not end because one request was too large. It will need a limit for each request: an allocator that
 * counts, and a longjmp out of the request with all of jansson's blocks released together. */
#include "app/json_memory.h"

#include "app/command.h"
#include "base/replace_file.h"

#include <jansson.h>
#include <stdlib.h>
#include <unistd.h>

static _Noreturn void end_process(void) {
    static const char text[] = "forerun: memory ran out while JSON was read or written\n";
    ssize_t n = write(STDERR_FILENO, text, sizeof text - 1);
    (void)n; /* there is no other place to report to */
    replace_file_abandon_all();
    _exit(CLI_FAILED);
}

static void *allocate(size_t n) {
    void *p = malloc(n);
    if (!p) end_process();
    return p;
}

void json_memory_install(void) { json_set_alloc_funcs(allocate, free); }

/* bus_error.c - the handler of SIGBUS, which the system raises when a page of a mapped file cannot be read: the file was
 * cut short, or its disk failed.
 *
 * Files are checked before they are read (base/mapped_file.h), so this is for the moment between check and reading. Only
 * functions that are allowed in a signal handler are called; output buffers are not flushed, because their owner may be
 * in the middle of using them. A library must not take a signal from its program, so this is here and not in libforerun. */
#include "cli/bus_error.h"

#include "cli/command.h"
#include "base/files.h"

#include <signal.h>
#include <unistd.h>

static struct sigaction before;

static size_t append(char *line, size_t n, size_t room, const char *text) {
    while (*text && n < room) line[n++] = *text++;
    return n;
}

static void on_bus_error(int number, siginfo_t *info, void *context) {
    (void)context;
    const char *path = mapped_file_at(info->si_addr);
    if (!path) { /* a fault of another kind: it happens again after the return, and is handled as before */
        sigaction(number, &before, NULL);
        return;
    }
    char line[400];
    size_t n = append(line, 0, sizeof line, "forerun: ");
    n = append(line, n, sizeof line, path);
    n = append(line, n, sizeof line,
               ": a part of the file can no longer be read: it was cut short while it was in use, or its disk failed; "
               "start again with the whole file\n");
    (void)!write(STDERR_FILENO, line, n);
    replace_file_abandon_all();
    _exit(CLI_BUS_ERROR);
}

void bus_error_install(void) {
    struct sigaction action = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO};
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, &before);
}

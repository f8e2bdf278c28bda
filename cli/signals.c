/* signals.c - signal handlers that remove unfinished outputs, request a stop, or report a mapped file that was cut
 * short.
 *
 * Outputs are written under temporary names (base/files.h), which would stay in the user's folder when Ctrl-C ends the
 * program. So a handler removes them and raises the signal again with its default effect, so that the parent process
 * sees what ended the program. The handler also restores the mode that the shell expects of the terminal, because a
 * line editor turns echo and line ends off.
 *
 * SIGBUS is raised when a page of a mapped file cannot be read: the file was cut short, or its disk failed. Files are
 * checked before they are read, so the handler covers the moment between check and reading. It calls only functions
 * that are allowed in a signal handler, and flushes no output buffers, because the interrupted code may be in the
 * middle of using them. It is not in libforerun, because a library must not take a signal from its program. */
#include "base/files.h"
#include "cli/signals.h"
#include "cli/command.h"

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

static int terminal = -1; /* -1: none is kept */
static struct termios terminal_mode;
static const char *terminal_farewell;

/* Restores the terminal if the program is in the foreground: the system stops a background program that touches the
 * terminal. */
static void restore_terminal(void) {
    if (terminal < 0 || tcgetpgrp(terminal) != getpgrp()) return;
    tcsetattr(terminal, TCSANOW, &terminal_mode);
    ssize_t n = write(terminal, terminal_farewell, strlen(terminal_farewell));
    (void)n; /* the program ends anyway */
}

static void end_program(int signal_number) {
    restore_terminal();
    replace_file_abandon_all();
    signal(signal_number, SIG_DFL);
    raise(signal_number); /* takes effect when the handler returns */
}

static void set(int signal_number, void (*handler)(int)) {
    const struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    sigaction(signal_number, &action, NULL);
}

void signals_begin(void) {
    static const int ending[] = {SIGHUP, SIGINT, SIGTERM, SIGPIPE};
    for (size_t i = 0; i < sizeof ending / sizeof *ending; i++) {
        struct sigaction before;
        bool is_ignored = sigaction(ending[i], NULL, &before) == 0 && before.sa_handler == SIG_IGN; /* as by nohup */
        if (!is_ignored) set(ending[i], end_program);
    }
    signal(SIGXFSZ, SIG_IGN);
}

void signals_keep_terminal(int fd, const char *farewell) {
    if (tcgetattr(fd, &terminal_mode) != 0) return;
    terminal = fd;
    terminal_farewell = farewell;
    set(SIGQUIT, end_program);
}

static volatile sig_atomic_t *stop_flag;

static void request_stop(int signal_number) {
    *stop_flag = 1;
    set(signal_number, end_program);
}

void signals_request_stop(int signal_number, volatile sig_atomic_t *stop) {
    stop_flag = stop;
    set(signal_number, request_stop);
}

/* ---- SIGBUS -------------------------------------------------------------------------------------------- */

static struct sigaction before;

static size_t append(char *line, size_t n, size_t room, const char *text) {
    while (*text && n < room) line[n++] = *text++;
    return n;
}

static void on_bus_error(int number, siginfo_t *info, void *context) {
    (void)context;
    const char *path = mapped_file_at(info->si_addr);
    if (!path) { /* another fault: it is raised again after the return, and handled as before */
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

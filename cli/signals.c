/* signals.c - handlers that remove unfinished outputs, and stops that were asked for.
 *
 * Outputs are written under temporary names (base/replace_file.c), which would stay in the user's folder when Ctrl-C
 * ends the program. A handler therefore removes them and raises the signal once more with its usual effect, so that
 * the caller sees what ended the program. While a line is edited, the terminal neither echoes nor ends lines: the handler
 * also restores the mode that the shell expects. */
#include "cli/signals.h"

#include "base/files.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

static int terminal = -1; /* -1: none is kept */
static struct termios terminal_mode;
static const char *terminal_farewell;

/* Only in the foreground: the system would stop a program in the background that touches the terminal. */
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
    raise(signal_number); /* it is blocked until the handler returns */
}

static void set(int signal_number, void (*handler)(int)) {
    const struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    sigaction(signal_number, &action, NULL);
}

void signals_begin(void) {
    static const int ending[] = {SIGHUP, SIGINT, SIGTERM, SIGPIPE};
    for (size_t i = 0; i < sizeof ending / sizeof *ending; i++) {
        struct sigaction before;
        bool is_ignored = sigaction(ending[i], NULL, &before) == 0 && before.sa_handler == SIG_IGN; /* nohup */
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

/* signals.c - handlers that remove unfinished outputs, and stops that were asked for.
 *
 * Outputs are written under temporary names (base/replace_file.c), which would stay in the user's folder when Ctrl-C
 * ends the program. A handler therefore removes them and raises the signal once more with its usual effect, so that
 * the caller sees what ended the program. */
#include "app/signals.h"

#include "base/replace_file.h"

#include <stdbool.h>
#include <stddef.h>

static void end_program(int signal_number) {
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

static volatile sig_atomic_t *stop_flag;

static void request_stop(int signal_number) {
    *stop_flag = 1;
    set(signal_number, end_program);
}

void signals_request_stop(int signal_number, volatile sig_atomic_t *stop) {
    stop_flag = stop;
    set(signal_number, request_stop);
}

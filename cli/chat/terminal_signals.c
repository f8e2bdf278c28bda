/* terminal_signals.c - handlers that set a flag and write a byte to a pipe.
 *
 * The thread that waits for a key must notice a signal whichever thread of the program handles it: hence the pipe, which
 * it polls together with the terminal. System calls are restarted, so that no output is lost to a signal. */
#include "cli/chat/terminal_signals.h"

#include "base/error.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

static volatile sig_atomic_t was_interrupted, was_resized, was_continued;
static int wake[2] = {-1, -1}; /* read here, written by the handler */

static void note(int signal_number) {
    int saved = errno;
    if (signal_number == SIGINT) was_interrupted = 1;
    if (signal_number == SIGWINCH) was_resized = 1;
    if (signal_number == SIGCONT) was_continued = 1;
    ssize_t n = write(wake[1], "", 1);
    (void)n; /* a full pipe wakes as well */
    errno = saved;
}

int terminal_signals_begin(fr_error *err) {
    if (pipe2(wake, O_CLOEXEC | O_NONBLOCK) != 0)
        return error_set(err, FR_ERR_IO, "no pipe for signals can be opened: %s", strerror(errno));
    static const int signals[] = {SIGINT, SIGWINCH, SIGCONT};
    const struct sigaction action = {.sa_handler = note, .sa_flags = SA_RESTART};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) sigaction(signals[i], &action, NULL);
    return FR_OK;
}

bool terminal_signals_interrupted(void) { return was_interrupted; }
void terminal_signals_forget_interrupt(void) { was_interrupted = 0; }

static bool take(volatile sig_atomic_t *flag) {
    bool is_set = *flag;
    *flag = 0;
    return is_set;
}

bool terminal_signals_take_resize(void) { return take(&was_resized); }
bool terminal_signals_take_continue(void) { return take(&was_continued); }

bool terminal_signals_wait(int fd) {
    struct pollfd files[] = {{.fd = wake[0], .events = POLLIN}, {.fd = fd, .events = POLLIN}};
    char bytes[64];
    if (poll(files, 2, -1) < 0) return false;
    if (!files[0].revents) return true;
    while (read(wake[0], bytes, sizeof bytes) > 0) {}
    return false;
}

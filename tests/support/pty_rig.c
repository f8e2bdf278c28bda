/* pty_rig.c - a child process with a pseudo-terminal. */
#include "pty_rig.h"

#include "cli_rig.h"

#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifdef __SANITIZE_THREAD__
enum { TIMEOUT_S = 600 };
#else
enum { TIMEOUT_S = 60 };
#endif

void pty_open(Pty *p, const char *command) {
    char program[600], line[2000];
    const struct winsize size = {.ws_row = 24, .ws_col = 80};
    snprintf(program, sizeof program, "%s/../forerun", cli_rig_folder());
    int n = snprintf(line, sizeof line, "exec ");
    snprintf(line + n, sizeof line - (size_t)n, command, program);
    *p = (Pty){.fd = -1};
    p->pid = forkpty(&p->fd, NULL, NULL, &size);
    assert_true(p->pid >= 0);
    if (p->pid > 0) return;
    setenv("TERM", "xterm", 1);
    signal(SIGHUP, SIG_DFL); /* if the tests run under nohup, the program would ignore it */
    execl("/bin/sh", "sh", "-c", line, (char *)NULL);
    _exit(127);
}

/* libedit shows its prompt shortly before it takes over the terminal; a line that is typed in between and followed by
 * Ctrl-C would be dropped by the terminal. */
void pty_send(Pty *p, const char *keys) {
    const struct timespec moment = {.tv_nsec = 200000000};
    nanosleep(&moment, NULL);
    assert_int_equal(write(p->fd, keys, strlen(keys)), (ssize_t)strlen(keys));
}

/* Reads what there is, waiting at most a tenth of a second. False: the terminal is closed. */
static int read_some(Pty *p) {
    struct pollfd ready = {.fd = p->fd, .events = POLLIN};
    if (poll(&ready, 1, 100) <= 0) return 1;
    assert_true(p->n + 1 < sizeof p->text);
    ssize_t got = read(p->fd, p->text + p->n, sizeof p->text - 1 - p->n);
    if (got <= 0) return 0;
    p->n += (size_t)got;
    p->text[p->n] = '\0';
    return 1;
}

void pty_expect(Pty *p, const char *text) {
    time_t end = time(NULL) + TIMEOUT_S;
    int is_open = 1;
    for (;;) {
        const char *found = strstr(p->text + p->n_seen, text);
        if (found) {
            p->n_seen = (size_t)(found - p->text) + strlen(text);
            return;
        }
        if (!is_open || time(NULL) > end)
            fail_msg("want '%s', got '%s' after '%.*s'", text, p->text + p->n_seen,
                     p->n_seen > 2000 ? 2000 : (int)p->n_seen, p->text + (p->n_seen > 2000 ? p->n_seen - 2000 : 0));
        is_open = read_some(p);
    }
}

int pty_close(Pty *p) {
    time_t end = time(NULL) + TIMEOUT_S;
    int status = 0;
    while (read_some(p) && time(NULL) <= end) {}
    if (time(NULL) > end) fail_msg("the program does not end: '%s'", p->text + p->n_seen);
    close(p->fd);
    waitpid(p->pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

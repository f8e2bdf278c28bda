/* pty_rig.h - runs the program in a terminal: types text, and reads the text that appears. */
#ifndef TESTS_PTY_RIG_H
#define TESTS_PTY_RIG_H

#include "testing.h"

#include <stddef.h>
#include <sys/types.h>

typedef struct Pty {
    int fd;
    pid_t pid;
    char text[1 << 18]; /* everything that has appeared, [n] and a '\0' */
    size_t n, n_seen;   /* n_seen: the end of the text that was expected last */
} Pty;

/* Runs a command of a shell in a terminal of 80 columns; %s in it is the program. Call cli_rig_begin before. */
void pty_open(Pty *p, const char *command);
/* Types the text, after a moment. */
void pty_send(Pty *p, const char *keys);
/* Waits until this text appears after the text that was expected before; fails after a minute. */
void pty_expect(Pty *p, const char *text);
/* Waits until the program ends, and returns its exit status. */
int pty_close(Pty *p);

#endif

/* pty_rig.h - the program in a terminal: what is typed, and what appears. */
#ifndef TESTS_PTY_RIG_H
#define TESTS_PTY_RIG_H

#include "testing.h"

#include <stddef.h>
#include <sys/types.h>

typedef struct Pty {
    int fd;
    pid_t pid;
    char text[1 << 18]; /* all that has appeared, [n] and a '\0' */
    size_t n, n_seen;   /* n_seen: up to the end of what was expected last */
} Pty;

/* Runs a command of a shell in a terminal of 80 columns; %s in it is the program. Call cli_rig_begin before. */
void pty_open(Pty *p, const char *command);
/* Types, after a moment. */
void pty_send(Pty *p, const char *keys);
/* Waits until this text appears behind what was expected before; fails after a minute. */
void pty_expect(Pty *p, const char *text);
/* Waits until the program ends, and returns its exit status. */
int pty_close(Pty *p);

#endif

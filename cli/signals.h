/* signals.h - what signals do to the program: nothing unfinished stays behind. */
#ifndef APP_SIGNALS_H
#define APP_SIGNALS_H

#include <signal.h>

/* From now on SIGHUP, SIGINT, SIGTERM and SIGPIPE remove the outputs that are being written, and then end the program
 * as they would have; a file that reaches the size limit of the process is an error like a full disk. */
void signals_begin(void);

/* The mode that a terminal has now is restored, and `farewell` is written to it, before one of these signals, or SIGQUIT,
 * ends the program: whoever sets another mode, as a line editor does, calls this first. Nothing happens where fd is no
 * terminal. */
void signals_keep_terminal(int fd, const char *farewell);

/* The first of these signals will only set *stop; the second one ends the program. */
void signals_request_stop(int signal_number, volatile sig_atomic_t *stop);

#endif

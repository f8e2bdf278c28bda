/* signals.h - what signals do to the program: nothing unfinished stays behind. */
#ifndef CLI_SIGNALS_H
#define CLI_SIGNALS_H

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

/* Ends the program with a sentence where a mapped file was cut short under it. */

/* From now on SIGBUS at an address of a mapped file prints which file it was and ends the process with the status
 * CLI_BUS_ERROR; elsewhere it does what it did before. */
void bus_error_install(void);

#endif

/* signals.h - ends the program on a signal without leaving unfinished outputs behind. */
#ifndef CLI_SIGNALS_H
#define CLI_SIGNALS_H

#include <signal.h>

/* From now on SIGHUP, SIGINT, SIGTERM and SIGPIPE remove the outputs that are being written before they end the
 * program. A file that reaches the process's size limit becomes a write error, like a full disk. */
void signals_begin(void);

/* Remembers the terminal's mode. Before one of these signals or SIGQUIT ends the program, the mode is restored, and
 * `farewell` is written to the terminal. Call it before setting another mode, as a line editor does. Does nothing if fd
 * is not a terminal. */
void signals_keep_terminal(int fd, const char *farewell);

/* From now on the first such signal only sets *stop; the second one ends the program. */
void signals_request_stop(int signal_number, volatile sig_atomic_t *stop);

/* From now on SIGBUS at an address of a mapped file (the file was cut short) prints the file's name and ends the
 * process with the status CLI_BUS_ERROR. At any other address SIGBUS does what it did before. */
void bus_error_install(void);

#endif

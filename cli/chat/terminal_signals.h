/* terminal_signals.h - Ctrl-C, and changes of the terminal, as facts that the conversation asks for.
 *
 * Before terminal_signals_begin nothing is caught, and none of these facts is ever true. */
#ifndef CHAT_TERMINAL_SIGNALS_H
#define CHAT_TERMINAL_SIGNALS_H

#include "forerun.h"

#include <stdbool.h>

/* From now on Ctrl-C does not end the program. */
int terminal_signals_begin(fr_error *err);

/* Whether Ctrl-C was pressed since terminal_signals_forget_interrupt was called last. */
bool terminal_signals_interrupted(void);
void terminal_signals_forget_interrupt(void);
/* Whether the terminal has a new size, or the program was stopped and goes on; true once for each. */
bool terminal_signals_take_resize(void);
bool terminal_signals_take_continue(void);

/* Waits until a byte can be read from fd. False: a signal came first, or poll failed. */
bool terminal_signals_wait(int fd);

#endif

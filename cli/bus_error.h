/* bus_error.h - ends the program with a sentence where a mapped file was cut short under it. */
#ifndef APP_BUS_ERROR_H
#define APP_BUS_ERROR_H

/* From now on SIGBUS at an address of a mapped file prints which file it was and ends the process with the status
 * CLI_BUS_ERROR; elsewhere it does what it did before. */
void bus_error_install(void);

#endif

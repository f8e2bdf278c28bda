/* sandbox_calls.h - the filter of system calls of the sandbox (sandbox.h). */
#ifndef APP_SANDBOX_CALLS_H
#define APP_SANDBOX_CALLS_H

/* From now on all threads of the process may use memory, open descriptors, files for reading, time, and end; other
 * system calls fail with EPERM. Needs PR_SET_NO_NEW_PRIVS. Returns 0, or an errno; takes no memory. */
int sandbox_restrict_calls(void);

#endif

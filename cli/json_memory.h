/* json_memory.h - the allocator of jansson in the program. */
#ifndef APP_JSON_MEMORY_H
#define APP_JSON_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

/* From now on jansson never sees an allocation fail: the process ends with a sentence and the status CLI_FAILED. Call it
 * at the start of main, before anything uses jansson. */
void json_memory_install(void);

/* Calls work(user). What jansson allocates meanwhile in this thread comes from a region of at most max_bytes, which is
 * released as a whole when the function returns, so `work` keeps no JSON and passes nothing of it to free(). False: that
 * memory did not suffice. `work` was then left at the allocation that failed (longjmp), and what it had allocated
 * otherwise must be reachable from `user`. Calls are not nested. */
bool json_memory_limit(size_t max_bytes, void (*work)(void *user), void *user);

#endif

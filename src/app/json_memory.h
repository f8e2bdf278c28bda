/* json_memory.h - the allocator of jansson in the program. */
#ifndef APP_JSON_MEMORY_H
#define APP_JSON_MEMORY_H

/* From now on jansson never sees an allocation fail: the process ends with a sentence and the status CLI_FAILED. Call it
 * at the start of main, before anything uses jansson. */
void json_memory_install(void);

#endif

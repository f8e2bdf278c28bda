/* memory_file.h - bytes as a file that lives in memory, for what opens files by name alone. */
#ifndef TESTS_MEMORY_FILE_H
#define TESTS_MEMORY_FILE_H

#include <stddef.h>
#include <stdint.h>

/* The path of a file with these bytes; the next call replaces them. */
const char *memory_file(const uint8_t *bytes, size_t n);
/* The same with the bytes of an existing file, the first `skip` left out. */
const char *memory_file_of(const char *path, size_t skip);

#endif

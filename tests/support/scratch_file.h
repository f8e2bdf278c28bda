/* scratch_file.h - bytes as a file, for functions that open files by name. All files are in memory. */
#ifndef TESTS_SCRATCH_FILE_H
#define TESTS_SCRATCH_FILE_H

#include <stddef.h>
#include <stdint.h>

/* Returns a folder below build/ that is removed, with its files, when the program ends. */
const char *scratch_folder(void);
/* Writes the file `name` of that folder, replacing an earlier one; returns its path. */
const char *scratch_file(const char *name, const uint8_t *bytes, size_t n);

/* Returns the path of a file with these bytes, for readers to which its name does not matter; the next call replaces
 * them. */
const char *memory_file(const uint8_t *bytes, size_t n);
/* The same with the bytes of an existing file, without its first `skip` bytes. */
const char *memory_file_of(const char *path, size_t skip);

#endif

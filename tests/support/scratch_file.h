/* scratch_file.h - bytes as a file with a name of one's choice, for readers that go by the name or the folder. */
#ifndef TESTS_SCRATCH_FILE_H
#define TESTS_SCRATCH_FILE_H

#include <stddef.h>
#include <stdint.h>

/* A folder below build/ that is removed, with its files, when the program ends. */
const char *scratch_folder(void);
/* Writes the file `name` of that folder, replacing an earlier one; returns its path. */
const char *scratch_file(const char *name, const uint8_t *bytes, size_t n);

#endif

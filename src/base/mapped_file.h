/* mapped_file.h - a regular file, mapped into memory for reading, and what can go wrong with it afterwards.
 *
 * A mapping shows the file as it is now, not as it was: a file that is overwritten in place changes under its reader, and
 * reading what was cut off raises SIGBUS, which ends the process. Files that are replaced by renaming another over
 * them, or are removed, do no harm: the mapping keeps the old one.
 *
 *   What is read once (weights to be packed) is read between mapped_file_open and mapped_file_check, which fails if the
 *   file has changed since. mapped_file_check reads no page, only size and times.
 *   What stays mapped (a corpus index, the reference backend's weights) is checked before each use, which leaves the
 *   moment between check and use. mapped_file_at names the file of an address to a program's SIGBUS handler, so
 *   that it can end with a sentence (cli/bus_error.c). The library installs no handler itself.
 *
 * Times have the resolution of the system's clock tick, some milliseconds: a change within a tick of the change before is
 * noticed only by the size.
 */
#ifndef BASE_MAPPED_FILE_H
#define BASE_MAPPED_FILE_H

#include "base/error.h"

#include <stddef.h>

typedef struct MappedFile MappedFile;

/* Maps a regular file (input_file.h). An empty file is mapped as 0 bytes at NULL. */
int mapped_file_open(MappedFile **out, const char *path, fr_error *err);
void mapped_file_close(MappedFile *f); /* NULL is fine */
const void *mapped_file_bytes(const MappedFile *f, size_t *n);

/* Gives the pages of [at, at + n) back to the system: what of them was read no longer counts as memory of the process, and
 * is read from the file again (usually from the system's cache) if it is needed again. For who copies a file piece by
 * piece. Memory that is in no mapped file, and files beyond the first 64, are left alone. */
void mapped_file_release(const void *at, size_t n);

/* FR_ERR_IO if the file has been written to or cut since it was opened; NULL is never changed. */
int mapped_file_check(const MappedFile *f, fr_error *err);

/* The path, shortened where it is long, of the mapped file that the address lies in; NULL: in none. A signal handler may call it:
 * it takes no lock and no memory. The first 64 files are known. */
const char *mapped_file_at(const void *address);

#endif

/* byte_map.h - the alphabet of byte-level BPE: every byte is written as one visible character.
 *
 * GPT-2 wrote its pieces so that a JSON file can hold them: the printable bytes of Latin-1 stand for
 * themselves, and the other 68 are written as U+0100 + k in the order of their values (space is U+0120). */
#ifndef TEXT_BYTE_MAP_H
#define TEXT_BYTE_MAP_H

#include <stdbool.h>
#include <stddef.h>

/* The bytes that a spelling stands for, into out (room for n; never more than n). Characters outside the
 * alphabet are copied unchanged, and *pure is false then: no text encodes to such a piece. */
size_t byte_map_decode(const char *spelling, size_t n, char *out, bool *pure);

#endif

/* byte_map.h - the alphabet of byte-level BPE: every byte is spelled as one visible character.
 *
 * GPT-2 wrote its pieces so that a JSON file can hold them: the printable bytes of Latin-1 stand for
 * themselves, the other 68 are spelled U+0100 + k in the order of their value (space is U+0120). */
#ifndef TEXT_BYTE_MAP_H
#define TEXT_BYTE_MAP_H

#include <stdbool.h>
#include <stddef.h>

/* The bytes that a spelling stands for, into out (room for n; never more than n). Characters outside the
 * alphabet are copied as they are, and *pure then says false: no text can be made of such a piece. */
size_t byte_map_decode(const char *spelling, size_t n, char *out, bool *pure);

#endif

/* name_index.h - from a name to its number in O(1): a hash table that is filled once and then read. */
#ifndef FORMAT_NAME_INDEX_H
#define FORMAT_NAME_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct NameSlot {
    const char *name; /* NULL: free */
    int64_t id;
} NameSlot;

/* Open addressing with linear steps over 2^k slots, at most half of them full. */
typedef struct NameIndex {
    NameSlot *slots;
    size_t n_slots;
} NameIndex;

/* Room for n names; false when memory is short. Freed with name_index_free, also when zeroed. */
bool name_index_init(NameIndex *index, size_t n);
void name_index_free(NameIndex *index);

/* Adds a name, which is borrowed; false when it is there already. No more than n may be added. */
bool name_index_add(NameIndex *index, const char *name, int64_t id);
int64_t name_index_find(const NameIndex *index, const char *name); /* its id, or -1 */

#endif

/* piece_table.h - a hash table from byte strings to ids. Keys are borrowed and must outlive the table. */
#ifndef TEXT_PIECE_TABLE_H
#define TEXT_PIECE_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct PieceSlot {
    const char *key; /* NULL: free */
    uint32_t n;
    int32_t id;
} PieceSlot;

/* Zero-initialise. Open addressing, a power of two of slots, at most half of them taken. */
typedef struct PieceTable {
    PieceSlot *slots;
    size_t n_slots, n_taken;
} PieceTable;

/* Adds key -> id unless the key is there already; *got is the id that stands. False: no memory. */
bool piece_table_add(PieceTable *t, const char *key, size_t n, int32_t id, int32_t *got);
int32_t piece_table_find(const PieceTable *t, const char *key, size_t n); /* -1: not there */
void piece_table_close(PieceTable *t);

#endif

/* beam_tree.h - candidates of equal length with each shared prefix stored once: ReDrafter's dynamic tree attention. */
#ifndef TREE_BEAM_TREE_H
#define TREE_BEAM_TREE_H

#include <stdint.h>

/* beam: [n][length] tokens. prefix[i][j] = the least k such that candidates k and i have the same first j + 1 tokens.
 * */
void beam_dedup_prefix(const int32_t *beam, int32_t n, int32_t length, int32_t *prefix);

/* The packed sequence of a beam, parents first; arrays of the caller with room for n * length. */
typedef struct PackedBeam {
    int32_t n;        /* tokens in it */
    int32_t *tokens;  /* [n] */
    int32_t *parents; /* [n] indices into the packed sequence; -1: the token before all candidates */
    int32_t *depths;  /* [n] position after the context: 0 for the first token of a candidate */
    int32_t *places;  /* [beam n][length] index of each token of each candidate */
} PackedBeam;

void beam_pack(const int32_t *beam, const int32_t *prefix, int32_t n, int32_t length, PackedBeam *out);

#endif

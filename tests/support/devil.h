/* devil.h - drafters that the engine must survive: random, always right, always wrong, malformed.
 *
 * They are created directly (without the registry) and implement the Drafter interface, so that they can be used
 * wherever a drafter can. An oracle is the whole text of a sequence, prompt and output; a devil counts the tokens that
 * it has observed, so it knows the next ones. */
#ifndef TESTS_DEVIL_H
#define TESTS_DEVIL_H

#include "draft/drafter.h"

typedef enum DevilKind {
    DEVIL_RANDOM,    /* random trees of random tokens, from empty to the whole budget */
    DEVIL_RIGHT,     /* the oracle's next tokens as a chain */
    DEVIL_WRONG,     /* chains and fans whose first nodes all differ from the oracle's next token */
    DEVIL_MALFORMED, /* a tree with `fault` */
} DevilKind;

typedef enum DevilFault {
    DEVIL_FAULT_NONE,
    DEVIL_ROOT_TOKEN,
    DEVIL_ROOT_PARENT,
    DEVIL_ROOT_DEPTH,
    DEVIL_ROOT_P_ACCEPT,
    DEVIL_NO_NODES,
    DEVIL_TOO_MANY, /* one node more than the budget */
    DEVIL_PARENT_LATER,
    DEVIL_PARENT_NEGATIVE,
    DEVIL_DEPTH,
    DEVIL_TOKEN_HIGH,
    DEVIL_TOKEN_NEGATIVE,
    DEVIL_DUPLICATE,
    DEVIL_P_ACCEPT_NAN,
    DEVIL_P_ACCEPT_HIGH,
    DEVIL_P_ACCEPT_NEGATIVE,
    DEVIL_P_ACCEPT_RISES,
    DEVIL_TAG,
    DEVIL_N_FAULTS,
} DevilFault;

enum { DEVIL_MAX_SEQUENCES = 64 };

typedef struct Devil {
    Drafter base; /* the first member, so that a Devil * is a Drafter * */
    DevilKind kind;
    DevilFault fault;
    int32_t n_vocab;
    uint64_t seed;
    const int32_t *oracle[DEVIL_MAX_SEQUENCES]; /* borrowed; NULL: not known */
    int64_t n_oracle[DEVIL_MAX_SEQUENCES];
    int64_t n_seen[DEVIL_MAX_SEQUENCES];
    uint64_t n_proposed;
} Devil;

Devil devil_make(DevilKind kind, DevilFault fault, int32_t n_vocab, uint64_t seed);
void devil_oracle(Devil *d, int32_t sequence, const int32_t *stream, int64_t n);
/* Writes a malformed tree below node 0 of `t`; apart from the fault it has at most `budget` valid nodes. */
void devil_break(Tree *t, DevilFault fault, int32_t n_vocab, int32_t budget);

#endif

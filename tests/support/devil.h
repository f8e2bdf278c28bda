/* devil.h - drafters that a sound engine must survive: random, always right, always wrong, malformed.
 *
 * They are made by hand (no registry) and obey the Drafter interface, so that they fit wherever a drafter
 * does. An oracle is the whole stream of a sequence, prompt and output; a devil counts the tokens it was
 * shown (begin and observe) and so knows what comes next. */
#ifndef TESTS_DEVIL_H
#define TESTS_DEVIL_H

#include "spec/drafter/drafter.h"

typedef enum DevilKind {
    DEVIL_RANDOM,    /* random trees of random tokens, from empty to the whole budget */
    DEVIL_RIGHT,     /* the oracle's next tokens as a chain */
    DEVIL_WRONG,     /* chains and fans that miss the oracle's next token at every first node */
    DEVIL_MALFORMED, /* a tree that breaks `fault` */
} DevilKind;

typedef enum DevilFault {
    DEVIL_FAULT_NONE,
    DEVIL_ROOT_TOKEN,
    DEVIL_ROOT_PARENT,
    DEVIL_ROOT_DEPTH,
    DEVIL_ROOT_EST,
    DEVIL_NO_NODES,
    DEVIL_TOO_MANY, /* one node more than the budget */
    DEVIL_PARENT_LATER,
    DEVIL_PARENT_NEGATIVE,
    DEVIL_DEPTH,
    DEVIL_TOKEN_HIGH,
    DEVIL_TOKEN_NEGATIVE,
    DEVIL_TWIN,
    DEVIL_EST_NAN,
    DEVIL_EST_HIGH,
    DEVIL_EST_NEGATIVE,
    DEVIL_EST_RISES,
    DEVIL_TAG,
    DEVIL_N_FAULTS,
} DevilFault;

enum { DEVIL_MAX_SEQUENCES = 64 };

typedef struct Devil {
    Drafter base; /* first: a Devil * is a Drafter * */
    DevilKind kind;
    DevilFault fault;
    int32_t n_vocab;
    uint64_t seed;
    const int32_t *oracle[DEVIL_MAX_SEQUENCES]; /* borrowed; NULL: nothing known */
    int64_t n_oracle[DEVIL_MAX_SEQUENCES];
    int64_t n_seen[DEVIL_MAX_SEQUENCES];
    uint64_t n_proposed;
} Devil;

Devil devil_make(DevilKind kind, DevilFault fault, int32_t n_vocab, uint64_t seed);
void devil_oracle(Devil *d, int32_t sequence, const int32_t *stream, int64_t n);
/* Writes a malformed tree below node 0 of `t`, which holds at most `budget` sound nodes otherwise. */
void devil_break(Tree *t, DevilFault fault, int32_t n_vocab, int32_t budget);

#endif

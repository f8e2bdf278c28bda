/* ranks_rig.h - a group of ranks for tests, which are threads of this process, and draft models beside its target. Rank
 * 0 is the thread that opens the group. A failure of the rig fails the test. */
#ifndef RANKS_RIG_H
#define RANKS_RIG_H

#include "compute/ranks/ranks.h"
#include "model_rig.h"

#include <pthread.h>

enum { MOST_RANKS = 4 };

typedef struct Rank {
    const Gguf *gguf;
    uint64_t fingerprint;
    Ranks *ranks;
    Weights *weights;
    int n_threads, status;
    fr_error err;
    pthread_t thread;
} Rank;

typedef struct Group {
    CommMemory *memory;
    int n;
    Rank ranks[MOST_RANKS];
} Group;

/* How the ranks of the next groups load their weights. */
typedef struct GroupLoading {
    const char *packed_files[MOST_RANKS]; /* of packed weights; NULL: the rank packs the model's file */
    const char *table_name;               /* the kernel table of all ranks; NULL: that of the processor */
} GroupLoading;
extern GroupLoading group_loading;
extern _Thread_local int group_rank_of_thread; /* once the thread has begun to load */

/* Opens a group in which rank `other` has the fingerprint 2 and all others 1. Returns the status of rank 0. */
int group_open(Group *g, const Gguf *gguf, int n, int other);
void group_close(Group *g);
/* Makes all ranks believe that exchanges are so expensive that half of a product is sent before the other half is
 * computed. */
void group_send_halves(Group *g);

/* A draft model beside the target of a group. */
typedef struct Draft {
    char path[32];
    Gguf *gguf;
    Device *device;
    Weights *weights;
} Draft;

Draft draft_open_from(Group *g, const char *path, const Gguf *gguf, DraftPlace place); /* the caller keeps gguf */
Draft draft_open(Group *g, const RandomModel *m, DraftPlace place);
void draft_close(Draft *d);

#endif

/* executor_internal.h - inside of the executor: what executor.c (rows of a forward) and executor_sequences.c share. */
#ifndef BACKEND_EXECUTOR_INTERNAL_H
#define BACKEND_EXECUTOR_INTERNAL_H

#include "compute/executor.h"
#include "compute/sequence_states.h"

struct Executor {
    const Backend *backend;
    const Weights *weights;
    Context *context;
    ExecutorOptions options;
    KvPages kv[KV_GROUPS]; /* [n_tables] */
    int n_tables;          /* 1: layers with a window stand on the pages of the others */
    SequenceMarks marks;
    SequenceStates states;
    Arena arena;
    RowPlace *rows;   /* [max_rows] of the last forward and its extensions */
    int32_t n_before; /* of them, those that ran before the last run */
    int32_t n_rows;   /* of the last run: rows + n_before */
    int32_t n_logits, n_hidden, max_logits;
    int32_t *path_slots[KV_GROUPS]; /* [n_tables][max_rows * max_rows] */
    int32_t *offsets;               /* [max_rows] scratch of commit */
};

#endif

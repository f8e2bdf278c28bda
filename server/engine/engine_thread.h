/* engine_thread.h - for requests that want to see it: the tree that each step proposed, and what became of it. */
#ifndef SERVER_ENGINE_ENGINE_THREAD_H
#define SERVER_ENGINE_ENGINE_THREAD_H

#include "server/engine/generation.h"

/* Its request is open: notes the names of its drafts. The caller holds the lock of the mailbox. */
void step_notes_begin(Generation *g);
/* After a step of the engine: adds a StepRecord to `fresh` if the step added tokens. */
void step_notes_add(Generation *g);
/* Seconds of a token of plain decoding, by what its own forwards took, how much less T(n) says one row takes, and by what sampling took. */
double step_notes_plain_s(const Generation *g, const fr_stats *s);

/* The one thread that steps the engines of all models. */

typedef struct EngineThread {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    Generation *submitted, **submitted_last; /* under the lock */
    bool is_running, stops;
    ServedModel *models; /* [n_models] */
    int n_models;
    Mailbox *mailbox;
} EngineThread;

int engine_thread_start(EngineThread *t, ServedModel *models, int n_models, Mailbox *mailbox, fr_error *err);
/* Cancels what is running and waits for the thread; the generations are told that they have ended. */
void engine_thread_stop(EngineThread *t);
/* Hands n generations of one model over, all or none. False: they do not fit into its queue. Called by the event loop. */
bool engine_thread_submit(EngineThread *t, Generation *const *generations, int n);

#endif

/* engine_thread.h - for requests that want to see it: the tree that each step proposed, and what became of it. */
#ifndef SERVER_ENGINE_ENGINE_THREAD_H
#define SERVER_ENGINE_ENGINE_THREAD_H

#include "server/engine/generation.h"

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

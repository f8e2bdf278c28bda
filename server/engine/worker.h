/* worker.h - a thread for work that would hold up the event loop: parsing bodies, running templates, tokenizing.
 *
 * A request of megabytes takes seconds here, and meanwhile the streams of others go on. Jobs run one after the other, in
 * the order in which they came. */
#ifndef SERVE_WORKER_H
#define SERVE_WORKER_H

#include "server/engine/mailbox.h"

#include <stdatomic.h>

typedef struct Job Job;
struct Job {
    Message message; /* first: its deliver is called in the event loop when the job is done */
    Job *next;
    void (*run)(Job *job);  /* in the worker's thread */
    atomic_bool wants_stop; /* the job may end early: nobody waits for its result */
};

typedef struct Worker {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    Job *first, **last;
    Job *running; /* NULL: none */
    Mailbox *mailbox;
    bool is_running, stops;
} Worker;

int worker_start(Worker *w, Mailbox *mailbox, fr_error *err);
/* Asks the job that is running to stop and waits for it; those that wait are not run. */
void worker_stop(Worker *w);
void worker_submit(Worker *w, Job *job);

#endif

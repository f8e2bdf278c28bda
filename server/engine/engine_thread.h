/* engine_thread.h - the threads of the server besides the one of the event loop, and how they report to it. */
#ifndef SERVER_ENGINE_ENGINE_THREAD_H
#define SERVER_ENGINE_ENGINE_THREAD_H

#include "base/error.h"
#include "base/os.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

typedef struct Generation Generation;
typedef struct ServedModel ServedModel;

/* ---- the mailbox: messages from other threads to the event loop --------------------------------------------
 *
 * A message is part of the object that it is about. Posting a message that already waits does nothing, so an object
 * costs one delivery however much happens to it meanwhile. */

typedef struct Message Message;
struct Message {
    Message *next;
    bool is_posted;
    void (*deliver)(Message *m); /* runs in the event loop; it may post messages, even this one, and may free it */
};

typedef struct Mailbox {
    pthread_mutex_t lock;
    Message *first, **last;
    OsEvent wake; /* is set while messages wait */
} Mailbox;

int mailbox_open(Mailbox *m, fr_error *err);
void mailbox_close(Mailbox *m);
/* Posts a message. Any thread may call it. */
void mailbox_post(Mailbox *m, Message *message);
/* The same in two parts, for callers that change the object of the message under the mailbox's lock: mailbox_add is
 * called under the lock, and if it returns true, mailbox_wake is called after it. The message may be delivered and
 * freed in between. */
bool mailbox_add(Mailbox *m, Message *message);
void mailbox_wake(Mailbox *m);
/* Delivers the waiting messages. The event loop calls it when the event is set. */
void mailbox_deliver(Mailbox *m);

/* ---- the worker: work that would hold up the event loop -----------------------------------------------------
 *
 * Parsing a body of megabytes, running its template and tokenizing it takes seconds, and meanwhile the streams of other
 * requests go on. Jobs run one after the other, in the order in which they came. */

typedef struct Job Job;
struct Job {
    Message message; /* the first member; its deliver runs in the event loop when the job is done */
    Job *next;
    void (*run)(Job *job);  /* runs in the worker's thread */
    atomic_bool wants_stop; /* the job may end early, because its result is no longer needed */
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
/* Asks the running job to stop and waits for it. Jobs that wait are not run. */
void worker_stop(Worker *w);
void worker_submit(Worker *w, Job *job);

/* ---- the engine thread, which steps the engines of all models ----------------------------------------------- */

/* Work on an engine that the engine thread does between two steps, while another thread waits for it. */
typedef struct EngineTask {
    void (*run)(void *user);
    void *user;
    bool is_done, was_run;
    struct EngineTask *next;
} EngineTask;

typedef struct EngineThread {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake, task_done;
    EngineTask *tasks;                       /* protected by the lock */
    Generation *submitted, **submitted_last; /* protected by the lock */
    bool is_running, stops;
    ServedModel *models; /* [n_models] */
    int n_models;
    Mailbox *mailbox;
    Message failed; /* is posted when the processes of a divided model have ended; `why` has the reason then */
    fr_error why;
} EngineThread;

int engine_thread_start(EngineThread *t, ServedModel *models, int n_models, Mailbox *mailbox, fr_error *err);
/* Cancels all generations, which are then reported as ended, and waits for the thread. */
void engine_thread_stop(EngineThread *t);
/* Call it when no other thread uses the struct any more. A zeroed struct is fine. */
void engine_thread_close(EngineThread *t);
/* Submits n generations of one model, all or none. False: they do not fit into its queue. Only the event loop calls
 * it. */
bool engine_thread_submit(EngineThread *t, Generation *const *generations, int n);
/* Runs a function in the engine thread and waits for it. False: the engine thread stops, and the function did not run.
 * Only the worker calls it. */
bool engine_thread_run(EngineThread *t, void (*run)(void *user), void *user);

#endif

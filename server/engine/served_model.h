/* served_model.h - messages from other threads to the thread that runs the event loop.
 *
 * A message is part of the object that it is about. Posting one that is waiting already does nothing, so that an object
 * costs one delivery however much happens to it meanwhile. */
#ifndef SERVER_ENGINE_SERVED_MODEL_H
#define SERVER_ENGINE_SERVED_MODEL_H

#include "base/error.h"
#include "forerun.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct Message Message;
struct Message {
    Message *next;
    bool is_posted;
    void (*deliver)(Message *m); /* in the event loop's thread; may post, also this message, and may free it */
};

typedef struct Mailbox {
    pthread_mutex_t lock;
    Message *first, **last;
    int fd; /* an eventfd: readable while messages wait */
} Mailbox;

int mailbox_open(Mailbox *m, fr_error *err);
void mailbox_close(Mailbox *m);
/* From any thread. */
void mailbox_post(Mailbox *m, Message *message);
/* The same in two parts, for who changes what the message is about under the mailbox's lock: adds under that lock, which the
 * caller holds; wakes after it, if adding returned true. In between the message may be delivered, and be gone. */
bool mailbox_add(Mailbox *m, Message *message);
void mailbox_wake(Mailbox *m);
/* In the event loop, when fd is readable: delivers what waits. */
void mailbox_deliver(Mailbox *m);

/* A thread for work that would hold up the event loop: parsing bodies, running templates, tokenizing.
 *
 * A request of megabytes takes seconds here, and meanwhile the streams of others go on. Jobs run one after the other, in
 * the order in which they came. */

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

/* A model that the server offers under a name, with the engine and the drafters that the operator gave it. */

enum {
    SERVED_MAX_DRAFTS = 6,
    SERVED_MAX_MODELS = 8,
    SERVED_COST_ROWS = 32
}; /* `auto` counts twice, and `prediction` comes on top: 8 */

typedef struct Generation Generation;

typedef struct ServedModel {
    char name[128]; /* what clients call it */
    const char *path;
    fr_model *model;
    fr_engine *engine; /* used by the engine thread alone, once that runs */
    fr_model_info info;
    int n_ctx, max_requests, max_queued, tree_budget;
    const char *drafts[SERVED_MAX_DRAFTS]; /* as given by the operator; what requests use unless they choose */
    int n_drafts;
    int64_t created_s;                      /* since 1970 */
    int64_t cost_context;                   /* tokens */
    double forward_s[SERVED_COST_ROWS + 1]; /* T(n) behind so many tokens, when it was opened; 0: not known */
    double context_s;                       /* what each token of context adds to T(1) */

    /* Of the engine thread: */
    Generation *waiting, **waiting_last; /* in order of arrival */
    Generation *running;
    int n_running;

    /* Of the event loop: */
    int n_active; /* generations that were submitted and have not ended */
} ServedModel;

typedef struct ServedModelOptions {
    const char *spec; /* FILE or NAME=FILE */
    const char *backend, *kernels, *activations, *cost_cache;
    fr_engine_options engine; /* without drafts */
    const char *const *drafts;
    int n_drafts, tree_budget, max_queued;
} ServedModelOptions;

/* Reads name and path, which served_model_open does, too. */
int served_model_read_spec(ServedModel *m, const char *spec, fr_error *err);
/* Opens model and engine, and measures what forwards cost. After a failure nothing is left open. */
int served_model_open(ServedModel *m, const ServedModelOptions *o, fr_error *err);
void served_model_close(ServedModel *m);
/* The drafter of the operator's that a client calls `name`: a whole spec of --draft, or its method where one spec alone has
 * it. NULL: there is none. */
const char *served_model_draft(const ServedModel *m, const char *name);

#endif

/* mailbox.h - messages from other threads to the thread that runs the event loop.
 *
 * A message is part of the object that it is about. Posting one that is waiting already does nothing, so that an object
 * costs one delivery however much happens to it meanwhile. */
#ifndef SERVE_MAILBOX_H
#define SERVE_MAILBOX_H

#include "base/error.h"

#include <pthread.h>
#include <stdbool.h>

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

#endif

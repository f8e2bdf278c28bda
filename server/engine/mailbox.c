/* mailbox.c - a list under a lock, and an eventfd that wakes the event loop. */
#include "server/engine/mailbox.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

int mailbox_open(Mailbox *m, fr_error *err) {
    *m = (Mailbox){.last = &m->first, .fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
    if (m->fd < 0) return error_set(err, FR_ERR_IO, "eventfd: %s", strerror(errno));
    pthread_mutex_init(&m->lock, NULL);
    return FR_OK;
}

void mailbox_close(Mailbox *m) {
    if (m->fd < 0) return;
    close(m->fd);
    pthread_mutex_destroy(&m->lock);
    m->fd = -1;
}

bool mailbox_add(Mailbox *m, Message *message) {
    bool is_first = !m->first;
    if (message->is_posted) return false;
    message->is_posted = true;
    message->next = NULL;
    *m->last = message;
    m->last = &message->next;
    return is_first;
}

void mailbox_wake(Mailbox *m) {
    const uint64_t one = 1;
    (void)!write(m->fd, &one, sizeof one); /* it cannot fail before 2^64 - 1 writes */
}

void mailbox_post(Mailbox *m, Message *message) {
    pthread_mutex_lock(&m->lock);
    bool wakes = mailbox_add(m, message);
    pthread_mutex_unlock(&m->lock);
    if (wakes) mailbox_wake(m);
}

static Message *take(Mailbox *m) {
    pthread_mutex_lock(&m->lock);
    Message *first = m->first;
    if (first) {
        m->first = first->next;
        if (!m->first) m->last = &m->first;
        first->is_posted = false;
    }
    pthread_mutex_unlock(&m->lock);
    return first;
}

void mailbox_deliver(Mailbox *m) {
    uint64_t n;
    (void)!read(m->fd, &n, sizeof n);
    for (Message *message; (message = take(m));) message->deliver(message);
}

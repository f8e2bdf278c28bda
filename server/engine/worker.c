/* worker.c - a queue of jobs and the thread that runs them. */
#include "server/engine/worker.h"

#include <string.h>

static Job *take(Worker *w) {
    pthread_mutex_lock(&w->lock);
    while (!w->first && !w->stops) pthread_cond_wait(&w->wake, &w->lock);
    Job *job = w->stops ? NULL : w->first;
    if (job) {
        w->first = job->next;
        if (!w->first) w->last = &w->first;
    }
    w->running = job;
    pthread_mutex_unlock(&w->lock);
    return job;
}

static void *run_jobs(void *arg) {
    Worker *w = arg;
    for (Job *job; (job = take(w));) {
        job->run(job);
        pthread_mutex_lock(&w->lock);
        w->running = NULL; /* once it is posted, the job may be gone */
        pthread_mutex_unlock(&w->lock);
        mailbox_post(w->mailbox, &job->message);
    }
    return NULL;
}

int worker_start(Worker *w, Mailbox *mailbox, fr_error *err) {
    *w = (Worker){.last = &w->first, .mailbox = mailbox};
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->wake, NULL);
    int failure = pthread_create(&w->thread, NULL, run_jobs, w);
    if (failure) return error_set(err, FR_ERR_MEMORY, "no thread for the server's requests: %s", strerror(failure));
    w->is_running = true;
    return FR_OK;
}

void worker_stop(Worker *w) {
    if (!w->is_running) return;
    pthread_mutex_lock(&w->lock);
    w->stops = true;
    if (w->running) atomic_store(&w->running->wants_stop, true);
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->wake);
    pthread_mutex_destroy(&w->lock);
    w->is_running = false;
}

void worker_submit(Worker *w, Job *job) {
    pthread_mutex_lock(&w->lock);
    job->next = NULL;
    *w->last = job;
    w->last = &job->next;
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->lock);
}

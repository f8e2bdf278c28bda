/* engine_thread.c - opens waiting generations, steps the engines and reports tokens; and the mailbox and the worker.
 *
 * In each turn of its loop the engine thread takes over submitted generations, closes cancelled ones, opens waiting
 * ones while the engine has places, runs one step of each engine that has running requests, and reports. So when a
 * client hangs up, its place and its pages are free within one step, and nothing but steps happens between two tokens
 * of a stream: files, templates and tokenization are left to other threads. Engines take turns, because each uses all
 * cores for its step. */
#include "base/system.h"
#include "server/engine/engine_thread.h"
#include "server/engine/generation.h"
#include "server/engine/kv_events.h"
#include "server/engine/slots.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- the trees of a request ------------------------------------------------------------------------
 *
 * Trees are copied from the engine if the client asks for them: a tree is as large as some hundred tokens of text. A
 * tree for which there is no memory is left out; the text does not depend on it. */

enum { MAX_NODES = FR_TREE_BUDGET_MAX + 1, MAX_STEP_BYTES = 4 << 20 };

/* Notes the names of the drafts of a request that has just been opened. The caller holds the lock of the mailbox. */
static void step_notes_begin(Generation *g) {
    for (int i = 0; i < (int)(sizeof g->sources.names / sizeof *g->sources.names); i++) {
        const char *spec = fr_request_draft(g->request, i);
        if (!spec) break;
        snprintf(g->sources.names[i], sizeof g->sources.names[i], "%.*s", (int)strcspn(spec, ":"), spec);
    }
}

/* The tokens of the step lead from node 0 along the nodes that were accepted. */
static void mark_accepted(StepNode *nodes, int n, const int32_t *tokens, int64_t n_tokens) {
    int at = 0;
    for (int64_t k = 0; k < n_tokens; k++) {
        int child = at + 1;
        while (child < n && (nodes[child].node.parent != at || nodes[child].node.token != tokens[k])) child++;
        if (child >= n) return;
        nodes[child].is_accepted = 1;
        at = child;
    }
}

/* Adds a StepRecord to `fresh` after a step of the engine that added tokens. */
static void step_notes_add(Generation *g) {
    fr_tree_node tree[MAX_NODES];
    StepNode nodes[MAX_NODES];
    int64_t n_tokens;
    const int32_t *tokens = fr_request_tokens(g->request, &n_tokens);
    if (n_tokens == g->n_noted) return;
    const StepRecord record = {.n_tokens = (int32_t)(n_tokens - g->n_noted),
                               .n_nodes = fr_request_tree(g->request, tree, MAX_NODES)};
    for (int i = 0; i < record.n_nodes; i++) nodes[i] = (StepNode){.node = tree[i]};
    mark_accepted(nodes, record.n_nodes, tokens + g->n_noted, record.n_tokens);
    g->n_noted = n_tokens;
    size_t n_bytes = (size_t)record.n_nodes * sizeof *nodes;
    pthread_mutex_lock(&g->mailbox->lock);
    Buf *steps = &g->fresh.steps;
    steps->max_bytes = MAX_STEP_BYTES;
    if (buf_reserve(steps, sizeof record + n_bytes)) {
        (void)buf_append(steps, &record, sizeof record);
        (void)buf_append(steps, nodes, n_bytes);
    }
    pthread_mutex_unlock(&g->mailbox->lock);
}

/* ---- one generation -------------------------------------------------------------------------------- */

/* fr_request_options.on_token, called within fr_engine_step. */
static int add_token(void *user, const fr_token_event *event) {
    Generation *g = user;
    const TokenRecord record = {.token = event->token,
                                .source = event->source,
                                .n_text = (uint32_t)event->n_bytes,
                                .n_top = (uint32_t)event->n_top_logprobs,
                                .logprob = event->logprob,
                                .made_s = clock_s()};
    if (g->result->first_token_s <= 0) g->result->first_token_s = record.made_s;
    pthread_mutex_lock(&g->mailbox->lock);
    bool fits = token_batch_append(&g->fresh, &record, event->text, event->top_logprobs);
    pthread_mutex_unlock(&g->mailbox->lock);
    if (!fits) error_set(&g->result->error, FR_ERR_MEMORY, "memory for the text ran out");
    return !fits || atomic_load(&g->wants_cancel);
}

static void fail(GenerationResult *out, const fr_error *why) {
    out->finish = FR_FINISH_ERROR;
    out->error = *why;
}

/* Fills in the result from the request, which is then closed. */
static void read_result(Generation *g) {
    GenerationResult *out = g->result;
    fr_error err;
    (void)fr_request_get_stats(g->request, &out->stats);
    (void)fr_request_get_draft_stats(g->request, &out->drafts);
    if (out->finish == FR_FINISH_ERROR && !out->error.code) out->error = *fr_request_error(g->request);
    if (out->finish != FR_FINISH_ERROR && out->embedding && fr_request_embedding(g->request, out->embedding, &err))
        fail(out, &err);
    fr_request_close(g->request);
    g->request = NULL;
}

/* Reports the end of a generation, which belongs to the event loop from then on. `why` is an error other than the
 * request's own; it may be NULL. */
static void end_generation(Generation *g, fr_finish finish, const fr_error *why) {
    GenerationResult *out = g->result;
    out->finish = finish;
    if (why) fail(out, why);
    else if (finish == FR_FINISH_CANCELLED && out->error.code)
        out->finish = FR_FINISH_ERROR; /* add_token ran out of memory */
    g->model->n_changes++;
    if (g->request) {
        slot_end(g->model, g);
        read_result(g);
    }
    generation_end(g);
}

static int open_request(Generation *g, fr_error *err) {
    fr_request_options options = g->options;
    options.on_token = add_token;
    options.user = g;
    return fr_request_open(&g->request, g->model->engine, &options, err);
}

/* ---- the queue of a model -------------------------------------------------------------------------- */

static void open_waiting(ServedModel *m) {
    while (m->waiting && m->n_running < m->max_requests) {
        Generation *g = m->waiting;
        fr_error err;
        m->waiting = g->next;
        if (!m->waiting) m->waiting_last = &m->waiting;
        if (open_request(g, &err)) {
            end_generation(g, FR_FINISH_ERROR, &err);
            continue;
        }
        int slot = slot_begin(m, g);
        pthread_mutex_lock(&g->mailbox->lock);
        g->is_open = true;
        g->slot = slot;
        step_notes_begin(g);
        pthread_mutex_unlock(&g->mailbox->lock);
        g->result->opened_s = clock_s();
        g->next = m->running;
        m->running = g;
        m->n_running++;
    }
}

/* Ends the cancelled generations of a list, or all of them. Returns how many it ended. */
static int end_cancelled(Generation **list, bool all) {
    int n = 0;
    while (*list) {
        Generation *g = *list;
        if (!all && !atomic_load(&g->wants_cancel)) {
            list = &g->next;
            continue;
        }
        *list = g->next;
        end_generation(g, FR_FINISH_CANCELLED, NULL);
        n++;
    }
    return n;
}

static void drop_cancelled(ServedModel *m, bool all) {
    m->n_running -= end_cancelled(&m->running, all);
    end_cancelled(&m->waiting, all);
    m->waiting_last = &m->waiting;
    while (*m->waiting_last) m->waiting_last = &(*m->waiting_last)->next;
}

static void end_reasonings(ServedModel *m) {
    for (Generation *g = m->running; g; g = g->next)
        if (atomic_exchange(&g->wants_reasoning_end, false)) (void)fr_request_end_reasoning(g->request, NULL);
}

/* Returns whether there are new tokens, or more of the prompt has been read and the statistics are kept. */
static bool has_news(Generation *g) {
    fr_stats stats = {.struct_size = sizeof stats};
    if (g->keeps_stats) (void)fr_request_get_stats(g->request, &stats);
    pthread_mutex_lock(&g->mailbox->lock);
    bool any = g->fresh.n > 0 || g->fresh.steps.n > 0 || stats.n_prompt_read > g->stats.n_prompt_read;
    if (g->keeps_stats) g->stats = stats;
    pthread_mutex_unlock(&g->mailbox->lock);
    return any;
}

/* Reports the new tokens and the ends of the last step. */
static void report(ServedModel *m) {
    for (Generation **at = &m->running; *at;) {
        Generation *g = *at;
        if (g->keeps_trees) step_notes_add(g);
        fr_finish finish = fr_request_finish_reason(g->request);
        if (finish == FR_FINISH_NONE) {
            if (has_news(g)) mailbox_post(g->mailbox, &g->message);
            at = &g->next;
            continue;
        }
        *at = g->next;
        m->n_running--;
        end_generation(g, finish, NULL);
    }
}

static void fail_running(ServedModel *m, const fr_error *why) {
    while (m->running) {
        Generation *g = m->running;
        m->running = g->next;
        m->n_running--;
        end_generation(g, FR_FINISH_ERROR, why);
    }
}

/* Ends the generations of a model whose step has failed. A model that was divided among processes cannot go on. */
static void fail_model(EngineThread *t, ServedModel *m, const fr_error *why) {
    fail_running(m, why);
    if (!m->is_divided || t->why.code) return;
    t->why = *why;
    mailbox_post(t->mailbox, &t->failed);
}

static void run_model(EngineThread *t, ServedModel *m) {
    fr_error err;
    drop_cancelled(m, false);
    open_waiting(m);
    end_reasonings(m);
    if (!m->running && !m->is_divided) return;
    if (fr_engine_step(m->engine, &err) < 0) fail_model(t, m, &err);
    else report(m);
    fr_engine_stats stats = {.struct_size = sizeof stats};
    (void)fr_engine_get_stats(m->engine, &stats);
    atomic_store(&m->kv_tokens_running, stats.kv_tokens_running);
    atomic_store(&m->n_ranks, stats.n_ranks);
    atomic_store(&m->n_divided_drafts, stats.n_divided_drafts);
    atomic_store(&m->n_exchanges, stats.n_exchanges);
    atomic_store(&m->exchanged_bytes, stats.exchanged_bytes);
    atomic_store(&m->exchange_us, (int64_t)(stats.exchange_s * 1e6));
}

/* ---- the thread ------------------------------------------------------------------------------------- */

static bool has_work(const EngineThread *t) {
    bool any = t->submitted != NULL || t->tasks != NULL;
    for (int i = 0; i < t->n_models; i++) any = any || t->models[i].running || t->models[i].waiting;
    return any;
}

enum { WATCH_MS = 200 };

/* Waits until the thread is woken. A model that is divided among processes is looked at now and then, because one of
 * them may have died. Returns whether it is time for that. */
static bool wait_to_be_woken(EngineThread *t) {
    struct timespec until;
    bool any = false;
    for (int i = 0; i < t->n_models; i++) any = any || t->models[i].is_divided;
    if (!any) return pthread_cond_wait(&t->wake, &t->lock) != 0;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += WATCH_MS * 1000000L;
    if (until.tv_nsec >= 1000000000L) until.tv_sec++, until.tv_nsec -= 1000000000L;
    return pthread_cond_timedwait(&t->wake, &t->lock, &until) == ETIMEDOUT;
}

static Generation *wait_for_work(EngineThread *t, bool *stops) {
    pthread_mutex_lock(&t->lock);
    for (bool is_time = false; !t->stops && !has_work(t) && !is_time;) is_time = wait_to_be_woken(t);
    Generation *list = t->submitted;
    t->submitted = NULL;
    t->submitted_last = &t->submitted;
    *stops = t->stops;
    pthread_mutex_unlock(&t->lock);
    return list;
}

static void enqueue(Generation *list) {
    for (Generation *g = list, *next; g; g = next) {
        next = g->next;
        g->next = NULL;
        *g->model->waiting_last = g;
        g->model->waiting_last = &g->next;
    }
}

/* Runs the tasks, or drops them if the thread stops. */
static void run_tasks(EngineThread *t, bool stops) {
    pthread_mutex_lock(&t->lock);
    for (EngineTask *task; (task = t->tasks) != NULL;) {
        t->tasks = task->next;
        pthread_mutex_unlock(&t->lock);
        if (!stops) task->run(task->user);
        pthread_mutex_lock(&t->lock);
        task->was_run = !stops;
        task->is_done = true;
    }
    pthread_cond_broadcast(&t->task_done);
    pthread_mutex_unlock(&t->lock);
}

bool engine_thread_run(EngineThread *t, void (*run)(void *user), void *user) {
    EngineTask task = {.run = run, .user = user};
    pthread_mutex_lock(&t->lock);
    EngineTask **last = &t->tasks;
    while (*last) last = &(*last)->next;
    if (t->stops) task.is_done = true;
    else *last = &task;
    pthread_cond_signal(&t->wake);
    while (!task.is_done) pthread_cond_wait(&t->task_done, &t->lock);
    pthread_mutex_unlock(&t->lock);
    return task.was_run;
}

static void *run(void *arg) {
    EngineThread *t = arg;
    for (bool stops = false; !stops;) {
        enqueue(wait_for_work(t, &stops));
        run_tasks(t, stops);
        for (int i = 0; i < t->n_models; i++) {
            if (stops) drop_cancelled(&t->models[i], true);
            else run_model(t, &t->models[i]);
            if (t->models[i].events) kv_events_update(t->models[i].events, &t->models[i]);
        }
    }
    return NULL;
}

int engine_thread_start(EngineThread *t, ServedModel *models, int n_models, Mailbox *mailbox, fr_error *err) {
    *t = (EngineThread){.models = models,
                        .n_models = n_models,
                        .mailbox = mailbox,
                        .failed = t->failed,
                        .submitted_last = &t->submitted};
    for (int i = 0; i < n_models; i++) models[i].waiting_last = &models[i].waiting;
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->wake, NULL);
    pthread_cond_init(&t->task_done, NULL);
    int failure = pthread_create(&t->thread, NULL, run, t);
    if (failure)
        return error_set(err, FR_ERR_MEMORY, "the thread of the engines cannot be started: %s", strerror(failure));
    t->is_running = true;
    return FR_OK;
}

void engine_thread_stop(EngineThread *t) {
    if (!t->is_running) return;
    pthread_mutex_lock(&t->lock);
    t->stops = true;
    pthread_cond_signal(&t->wake);
    pthread_mutex_unlock(&t->lock);
    pthread_join(t->thread, NULL);
    t->is_running = false;
}

void engine_thread_close(EngineThread *t) {
    if (!t->models) return;
    pthread_cond_destroy(&t->task_done);
    pthread_cond_destroy(&t->wake);
    pthread_mutex_destroy(&t->lock);
}

bool engine_thread_submit(EngineThread *t, Generation *const *generations, int n) {
    ServedModel *m = generations[0]->model;
    if (m->n_active + n > m->max_requests + m->max_queued) return false;
    m->n_active += n;
    pthread_mutex_lock(&t->lock);
    for (int i = 0; i < n; i++) {
        generations[i]->next = NULL;
        *t->submitted_last = generations[i];
        t->submitted_last = &generations[i]->next;
    }
    pthread_cond_signal(&t->wake);
    pthread_mutex_unlock(&t->lock);
    return true;
}

/* ---- the mailbox: a list under a lock, and an event that wakes the event loop ------------------------ */

int mailbox_open(Mailbox *m, fr_error *err) {
    *m = (Mailbox){.last = &m->first};
    if (!os_event_open(&m->wake))
        return error_set(err, FR_ERR_IO, "the event of the server cannot be opened: %s", strerror(errno));
    pthread_mutex_init(&m->lock, NULL);
    return FR_OK;
}

void mailbox_close(Mailbox *m) {
    if (m->wake.fd < 0) return;
    os_event_close(&m->wake);
    pthread_mutex_destroy(&m->lock);
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

void mailbox_wake(Mailbox *m) { os_event_set(&m->wake); }

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
    (void)os_event_take(&m->wake);
    for (Message *message; (message = take(m));) message->deliver(message);
}

/* ---- the worker ------------------------------------------------------------------------------------- */

static Job *take_job(Worker *w) {
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
    for (Job *job; (job = take_job(w));) {
        job->run(job);
        pthread_mutex_lock(&w->lock);
        w->running = NULL; /* the job may be freed once it is posted */
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
    if (failure)
        return error_set(err, FR_ERR_MEMORY, "the thread for the server's requests cannot be started: %s",
                         strerror(failure));
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

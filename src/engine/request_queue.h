/* request_queue.h - which open requests run, and which wait for a place. */
#ifndef ENGINE_REQUEST_QUEUE_H
#define ENGINE_REQUEST_QUEUE_H

#include "forerun.h"

/* Refuses one more request where the engine holds as many as its options allow. */
int request_queue_check(const fr_engine *e, fr_error *err);
/* Takes memory for the logits of all trees that this request and those that are open may have in one step. */
int request_queue_reserve(const fr_request *r, fr_error *err);
/* Adds a request for which there is room. It runs from the next step on where a sequence is free and no other request
 * waits; otherwise it waits. */
void request_queue_add(fr_request *r);
/* Gives free sequences to waiting requests, in order of arrival. To be called at the start of a step. */
void request_queue_admit(fr_engine *e);
/* A request has ended: it waits no more, and its sequence, which holds nothing, is free. */
void request_queue_leave(fr_request *r);
/* How many run. */
int request_queue_n_running(const fr_engine *e);
/* Forgets a request that has ended, or was never added. */
void request_queue_remove(const fr_request *r);

#endif

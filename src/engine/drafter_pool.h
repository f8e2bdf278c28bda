/* drafter_pool.h - the open drafters of an engine.
 *
 * All requests that name the same spec share one drafter, so that a draft model runs one forward for all of them. A
 * drafter stays open when its last request ends, so that methods which learn from one request for the next keep what
 * they have learned. A request whose text depends on its trees (under a ratio or lossy rule) does not share drafters
 * that remember: it has drafters of its own instead. If all places are taken, a drafter that no request uses is closed
 * to make room.
 */
#ifndef ENGINE_DRAFTER_POOL_H
#define ENGINE_DRAFTER_POOL_H

#include "forerun.h"
#include "draft/calibration.h"
#include "draft/drafter.h"

enum { ENGINE_MAX_DRAFTERS = 32 };

typedef struct EngineDrafter {
    char *spec; /* NULL: the place is free */
    Drafter *drafter;
    int32_t n_users;         /* open requests that use it */
    Calibration calibration; /* learned from all requests */
    double proposal_s;       /* recent time of one proposal, including feeding the drafter; 0: it has made none */
    /* The fields below belong to draft_policy.c. */
    int64_t n_gains, n_trials, n_starts; /* proposals in gain_s; steps in which it was tried; prompts it was shown */
    double gain_s;         /* the mean time that a recent proposal saved, if it had been shown the prompt */
    double prompt_token_s; /* recent time for a token of a prompt */
    double trial_credit_s; /* the time that it may spend on proposals that do not pay, */
    double start_credit_s; /* and on prompts; */
    double start_cost_s;   /* which credit the last prompt that it was not shown would have needed */
    bool is_tried;         /* in this step every request that uses it lets it propose */
} EngineDrafter;

/* Opens the drafter of a spec unless it is open already. "none" opens nothing. */
int drafter_pool_open_draft(fr_engine *e, const char *spec, fr_error *err);
/* Returns what the open drafter of a spec has to note (DrafterClass.notice); "" if it is not open. */
const char *drafter_pool_notice(const fr_engine *e, const char *spec);
/* Opens a drafter with the spec of a pooled one for a single request, in which it has sequence 0
 * (DrafterClass.remembers). */
int drafter_pool_open_own(EngineDrafter *own, const EngineDrafter *pooled, fr_engine *e, fr_error *err);
/* Closes such a drafter. Nothing happens if it is not open. */
void drafter_pool_close_own(EngineDrafter *own);
/* Returns the open drafter of a spec, with one more user until drafter_pool_release. NULL: the spec is not open. */
EngineDrafter *drafter_pool_acquire(fr_engine *e, const char *spec);
/* NULL is allowed. */
void drafter_pool_release(EngineDrafter *d);
/* Empties a sequence in all drafters, because its entry of the prefix cache was dropped. */
void drafter_pool_forget(fr_engine *e, int32_t sequence);
void drafter_pool_close(fr_engine *e);

#endif

/* drafter_pool.h - the open drafters of an engine.
 *
 * All requests that name the same spec share one drafter, so that a draft model runs one forward for all of them. A
 * drafter stays open when the last of its requests ends, so that methods which learn from one request for the next keep
 * what they have learned. A request whose text depends on its trees (a ratio or lossy rule) does not share drafters
 * that remember: it has drafters of its own instead. Where places run out, a drafter that no request uses makes room.
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
    int32_t n_users;         /* open requests */
    Calibration calibration; /* learned from all requests */
    double proposal_s;       /* recent time of one proposal, with feeding the drafter before it; 0: none was made */
} EngineDrafter;

/* Opens the drafter of a spec unless it is open already. "none" opens nothing. */
int drafter_pool_open_draft(fr_engine *e, const char *spec, fr_error *err);
/* Opens a drafter like the pooled one, for sequence 0 of one request alone (DrafterClass.remembers). */
int drafter_pool_open_own(EngineDrafter *own, const EngineDrafter *pooled, fr_engine *e, fr_error *err);
/* Closes it; one that is not open is fine. */
void drafter_pool_close_own(EngineDrafter *own);
/* The open drafter of a spec, which counts one more user until it is released; NULL where the spec is not open. */
EngineDrafter *drafter_pool_acquire(fr_engine *e, const char *spec);
/* NULL is fine. */
void drafter_pool_release(EngineDrafter *d);
/* An entry of the prefix cache is dropped: its sequence holds nothing in any drafter. */
void drafter_pool_forget(fr_engine *e, int32_t sequence);
/* Closes all drafters. */
void drafter_pool_close(fr_engine *e);

#endif

/* work.h - the memory, the limits and the errors of one compilation or one render.
 *
 * An interpreter makes many small values whose lifetimes nobody wants to follow. They all lie in the blocks of a
 * Work and are freed together when it ends, so an error may leave from any depth: work_fail jumps back to work_run,
 * and nothing is lost. Functions that take a Work therefore return values and no status; nothing below work_run may
 * own memory from elsewhere. */
#ifndef TEMPLATE_WORK_H
#define TEMPLATE_WORK_H

#include "base/error.h"

#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { WORK_LOOK_STEPS = 65536 };

typedef struct Work {
    struct WorkBlock *blocks; /* the newest first */
    char *last;               /* the allocation made last, which work_grow can extend in place */
    size_t n_bytes, max_bytes;
    int64_t n_steps, max_steps;
    int n_rest;        /* bytes and items that were counted and are less than a step */
    int64_t next_look; /* the step at which should_stop is asked next */
    /* May be NULL. Called every WORK_LOOK_STEPS steps; where it returns anything but 0, the work ends with
     * FR_ERR_CANCELLED. */
    int (*should_stop)(void *user);
    void *stop_user;
    int depth, max_depth;
    int line; /* of the template, for errors; 0: errors name none */
    fr_error *err;
    int status;
    jmp_buf on_error;
} Work;

/* Calls body(subject); returns FR_OK, or the code of the work_fail that ended it. */
int work_run(Work *w, void (*body)(void *subject), void *subject, fr_error *err);
void work_free(Work *w); /* a zeroed Work is fine */

/* Writes "chat template, line N: ..." into the error and leaves work_run. */
__attribute__((noreturn, format(printf, 3, 4))) void work_fail(Work *w, fr_code code, const char *fmt, ...);

void *work_alloc(Work *w, size_t bytes);                        /* zeroed, aligned for any type */
void *work_array(Work *w, size_t n, size_t each);               /* n elements */
void *work_grow(Work *w, void *p, size_t bytes, size_t wanted); /* p with its `bytes` bytes, in `wanted` bytes */

/* Counts n bytes or items that an operation is about to walk over: 16 of them are a step. It is called before the
 * work is done, so that an operation which is too expensive is refused and not carried out. */
void work_count(Work *w, size_t n);
void work_spend(Work *w, size_t n); /* the same, and one step for the operation itself */
void work_enter(Work *w);           /* one level deeper; work_fail need not leave it */
void work_leave(Work *w);

#endif

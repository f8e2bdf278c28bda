/* work.h - the memory, the limits and the errors of one bounded computation: a template or a grammar that is compiled,
 * or a template that is rendered.
 *
 * An interpreter makes many small values, and following the lifetime of each would be tedious. They are all
 * allocated in the blocks of a Work, which are freed together when it ends. So an error may occur at any depth:
 * work_fail jumps back to work_run, and no memory leaks. Functions that take a Work therefore return values and no
 * status, and nothing that is called from work_run may own memory of another kind. */
#ifndef BASE_WORK_H
#define BASE_WORK_H

#include "base/error.h"

#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { WORK_LOOK_STEPS = 65536 };

typedef struct Work {
    struct WorkBlock *blocks; /* a list that begins with the newest */
    char *last;               /* the last allocation, which work_grow can extend in place */
    size_t n_bytes, max_bytes;
    int64_t n_steps, max_steps;
    int n_rest;        /* what was counted beyond whole steps */
    int64_t next_look; /* the number of steps at which should_stop is called next */
    /* Called every WORK_LOOK_STEPS steps unless it is NULL. If it does not return 0, the work ends with
     * FR_ERR_CANCELLED. */
    int (*should_stop)(void *user);
    void *stop_user;
    int depth, max_depth;
    int line; /* the line of the template that errors name; 0: they name none */
    fr_error *err;
    int status;
    jmp_buf on_error;
} Work;

/* Calls body(subject). Returns FR_OK, or the code of the work_fail that ended it. */
int work_run(Work *w, void (*body)(void *subject), void *subject, fr_error *err);
void work_free(Work *w); /* a Work of zeros may be freed, too */

/* Writes "chat template, line N: ..." into the error and leaves work_run. */
__attribute__((noreturn, format(printf, 3, 4))) void work_fail(Work *w, fr_code code, const char *fmt, ...);

void *work_alloc(Work *w, size_t bytes);                        /* zeros, aligned for any type */
void *work_array(Work *w, size_t n, size_t each);               /* n elements, zeros */
void *work_grow(Work *w, void *p, size_t bytes, size_t wanted); /* like realloc: p has `bytes` bytes */
/* Returns the array of n elements of `each` bytes, with room for one more; a full array is doubled. */
void *work_room(Work *w, void *array, size_t n, int32_t *capacity, size_t each);

/* Counts n bytes or items that an operation is about to walk over: 16 of them are a step. It is called before the
 * work is done, so that an operation which is too expensive is refused and not carried out. */
void work_count(Work *w, size_t n);
void work_spend(Work *w, size_t n); /* counts one step for the operation itself as well */
void work_enter(Work *w); /* goes one level deeper, within the limit; after a work_fail no work_leave is needed */
void work_leave(Work *w);

#endif

/* work.c - memory in blocks of growing size. Each allocation is taken from the newest block. */
#include "base/work.h"

#include "base/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_BLOCK = 16 << 10, LARGEST_BLOCK = 1 << 20, ALIGN = 16, STEP = 16 /* bytes or items are one step */ };

typedef struct WorkBlock {
    struct WorkBlock *next;
    size_t used, size; /* bytes after the head */
} WorkBlock;

_Static_assert(sizeof(WorkBlock) % 8 == 0, "allocations after the head of a block are aligned");
enum { HEAD = (sizeof(WorkBlock) + ALIGN - 1) / ALIGN * ALIGN };

int work_run(Work *w, void (*body)(void *subject), void *subject, fr_error *err) {
    w->err = err;
    w->status = FR_OK;
    if (setjmp(w->on_error) == 0) body(subject);
    return w->status;
}

void work_free(Work *w) {
    for (WorkBlock *b = w->blocks, *next; b; b = next) {
        next = b->next;
        free(b);
    }
    w->blocks = NULL;
}

void work_fail(Work *w, fr_code code, const char *fmt, ...) {
    char text[sizeof w->err->message];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (w->line > 0) error_set(w->err, code, "chat template, line %d: %s", w->line, text);
    else error_set(w->err, code, "%s", text);
    w->status = code;
    longjmp(w->on_error, 1);
}

static WorkBlock *add_block(Work *w, size_t bytes) {
    size_t size = w->blocks ? 2 * w->blocks->size : FIRST_BLOCK;
    if (size > LARGEST_BLOCK) size = LARGEST_BLOCK;
    if (size < bytes) size = bytes;
    if (size > w->max_bytes - w->n_bytes) size = bytes;
    if (bytes > w->max_bytes - w->n_bytes)
        work_fail(w, FR_ERR_MEMORY, "more than %zu bytes of memory are needed, which is the limit", w->max_bytes);
    WorkBlock *b = malloc(HEAD + size);
    if (!b) work_fail(w, FR_ERR_MEMORY, "out of memory: cannot allocate %zu bytes", size);
    *b = (WorkBlock){w->blocks, 0, size};
    w->blocks = b;
    w->n_bytes += size;
    return b;
}

static void *take(Work *w, size_t bytes) {
    size_t padded;
    if (!size_add(bytes, ALIGN - 1, &padded))
        work_fail(w, FR_ERR_MEMORY, "more than %zu bytes of memory are needed, which is the limit", w->max_bytes);
    padded -= padded % ALIGN;
    WorkBlock *b = w->blocks;
    if (!b || padded > b->size - b->used) b = add_block(w, padded);
    w->last = (char *)b + HEAD + b->used;
    b->used += padded;
    return w->last;
}

void *work_alloc(Work *w, size_t bytes) { return memset(take(w, bytes), 0, bytes); }

void *work_array(Work *w, size_t n, size_t each) {
    size_t bytes;
    if (!size_mul(n, each, &bytes)) bytes = SIZE_MAX;
    return bytes == SIZE_MAX ? take(w, bytes) : work_alloc(w, bytes);
}

void *work_grow(Work *w, void *p, size_t bytes, size_t wanted) {
    WorkBlock *b = w->blocks;
    if (p && p == w->last) {
        size_t at = (size_t)(w->last - ((char *)b + HEAD));
        if (wanted <= b->size - at && wanted < SIZE_MAX - ALIGN) {
            b->used = at + (wanted + ALIGN - 1) / ALIGN * ALIGN;
            if (b->used > b->size) b->used = b->size;
            return p;
        }
    }
    void *bigger = take(w, wanted);
    if (p && bytes) memcpy(bigger, p, bytes);
    return bigger;
}

void *work_room(Work *w, void *array, size_t n, int32_t *capacity, size_t each) {
    if (n < (size_t)*capacity) return array;
    int32_t wanted = *capacity ? 2 * *capacity : 256;
    void *bigger = work_grow(w, array, n * each, (size_t)wanted * each);
    *capacity = wanted;
    return bigger;
}

void work_count(Work *w, size_t n) {
    int64_t steps = (int64_t)(n / STEP);
    w->n_rest += (int)(n % STEP);
    steps += w->n_rest / STEP;
    w->n_rest %= STEP;
    if (steps > w->max_steps - w->n_steps)
        work_fail(w, FR_ERR_MEMORY, "more than %lld steps are needed, which is the limit", (long long)w->max_steps);
    w->n_steps += steps;
    if (!w->should_stop || w->n_steps < w->next_look) return;
    w->next_look = w->n_steps + WORK_LOOK_STEPS;
    if (w->should_stop(w->stop_user)) work_fail(w, FR_ERR_CANCELLED, "the work was stopped by its caller");
}

void work_spend(Work *w, size_t n) {
    work_count(w, STEP);
    work_count(w, n);
}

void work_enter(Work *w) {
    if (++w->depth > w->max_depth)
        work_fail(w, FR_ERR_MEMORY, "expressions, blocks and calls are nested deeper than %d, which is the limit",
                  w->max_depth);
}

void work_leave(Work *w) { w->depth--; }

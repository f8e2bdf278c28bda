/* progress.h - a progress bar for long work: drawn only on a terminal, and erased at the end. */
#ifndef BASE_PROGRESS_H
#define BASE_PROGRESS_H

#include <stdint.h>
#include <stdio.h>

typedef struct Progress {
    FILE *out; /* NULL: silent */
    const char *what;
    int64_t n_total, n_before; /* n_before: done by an earlier run */
    double start_s, drawn_s;
    char note[80]; /* shown after the time left */
} Progress;

/* Begins a bar, which is drawn on `out` if that is a terminal, and not at all otherwise. `what` must outlive the
 * bar. */
void progress_begin(Progress *p, FILE *out, const char *what, int64_t n_total);
/* Call this after progress_begin for resumed work, of which n_before was done earlier: the time left is then estimated
 * from what was done since. */
void progress_resume(Progress *p, int64_t n_before);
void progress_note(Progress *p, const char *note); /* shown from the next update on; cut where it is too long */
void progress_update(Progress *p, int64_t n_done); /* at most ten times a second; cheap to call often */
void progress_end(Progress *p);

#endif

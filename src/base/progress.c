/* progress.c - draws the bar over itself, at most ten times a second. */
#include "base/progress.h"

#include "base/system.h"

#include <unistd.h>

enum { WIDTH = 30 };

void progress_begin(Progress *p, FILE *out, const char *what, int64_t n_total) {
    *p = (Progress){.out = out && isatty(fileno(out)) ? out : NULL, .what = what, .n_total = n_total};
    p->start_s = clock_s();
    p->drawn_s = p->start_s; /* work that ends within a tenth of a second draws nothing */
}

void progress_resume(Progress *p, int64_t n_before) { p->n_before = n_before; }

void progress_note(Progress *p, const char *note) { snprintf(p->note, sizeof p->note, "  %s", note); }

void progress_update(Progress *p, int64_t n_done) {
    if (!p->out || p->n_total <= 0) return;
    double now = clock_s();
    if (now - p->drawn_s < 0.1) return;
    p->drawn_s = now;
    double part = (double)n_done / (double)p->n_total;
    if (part > 1) part = 1;
    int n_full = (int)(part * WIDTH);
    int64_t n_here = n_done - p->n_before;
    double left_s = n_here > 0 ? (now - p->start_s) * (double)(p->n_total - n_done) / (double)n_here : 0;
    fprintf(p->out, "\r\033[K%s [%.*s%.*s] %3.0f%%  %.0f s left%s", p->what, n_full, "##############################",
            WIDTH - n_full, "..............................", part * 100, left_s > 0 ? left_s : 0, p->note);
    fflush(p->out);
}

void progress_end(Progress *p) {
    if (p->out && p->drawn_s > p->start_s) fprintf(p->out, "\r\033[K");
    p->out = NULL;
}

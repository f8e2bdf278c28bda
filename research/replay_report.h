/* replay_report.h - what `forerun replay` counts, by category, and how it is printed. */
#ifndef STUDY_REPLAY_REPORT_H
#define STUDY_REPLAY_REPORT_H

#include "cli/cli.h"
#include "research/replay.h"

enum { REPLAY_MAX_CATEGORIES = 64 };

typedef struct ReplayCategory {
    char name[64];
    ReplayStats stats;
    int64_t n_records;
    double *step_s; /* [n_steps] times of the proposals */
    int64_t capacity;
} ReplayCategory;

typedef struct ReplayReport {
    ReplayCategory all, categories[REPLAY_MAX_CATEGORIES];
    int n_categories;
} ReplayReport;

/* The category of that name, added if it is new. NULL: refused. */
ReplayCategory *replay_category(ReplayReport *r, const char *name, fr_error *err);
int replay_add(ReplayCategory *c, const ReplayStats *s, const double *step_s, fr_error *err);
void replay_print_table(ReplayReport *r, bool calibration);
int replay_print_json(ReplayReport *r, fr_error *err);
void replay_report_free(ReplayReport *r);

#endif

/* study.h - the experiments of Recursive Speculative Decoding (Jeon et al. 2024), as `forerun study` runs them. */
#ifndef STUDY_STUDY_H
#define STUDY_STUDY_H

#include "cli/cli.h"

#include <jansson.h>

/* The four methods that the paper compares, each a drafter under the verification rule of its paper; and RSD-S under
 * the rule `transport`. */
typedef enum StudyMethod {
    STUDY_SD,
    STUDY_SPECTR,
    STUDY_RSD_C,
    STUDY_RSD_S,
    STUDY_RSD_S_TRANSPORT,
    STUDY_N_METHODS
} StudyMethod;
const char *study_method_name(StudyMethod m);
const char *study_method_rule(StudyMethod m);

/* One tree of the appendix. `group` is the x axis of the plots: the draft length (D.3.1) or the budget of
 * nodes (D.3.2). shape: "5" for a chain, "KxL" for K paths or a beam of K, "b0-b1-..." for branching factors. */
typedef struct StudyTree {
    int32_t group;
    StudyMethod method;
    const char *shape;
} StudyTree;

typedef struct StudyPlan {
    const char *name, *group_name;
    const StudyTree *trees;
    int32_t n_trees;
} StudyPlan;
extern const StudyPlan study_by_length, study_by_budget; /* D.3.1 and D.3.2, as printed */

/* Returns the levels and nodes of a tree, and its value of --draft, which is written to out[n_out]. */
int32_t study_tree_depth(const StudyTree *t);
int32_t study_tree_nodes(const StudyTree *t);

enum { STUDY_MAX_RUNS = 64, STUDY_MAX_ROWS = 64 };

/* The results of one tree under one sampling, run by run. A run is one seed over all prompts. Row 0 is plain
 * decoding. */
typedef struct StudyRow {
    const StudyTree *tree; /* NULL: plain decoding */
    int64_t n_tokens[STUDY_MAX_RUNS], n_steps[STUDY_MAX_RUNS];
    double decode_s[STUDY_MAX_RUNS];
} StudyRow;

/* Mean over runs, and its standard error. */
typedef struct StudyFigure {
    double mean, error;
} StudyFigure;

typedef enum StudyMetric { STUDY_EFFICIENCY, STUDY_MBSU, STUDY_RATE, STUDY_N_METRICS } StudyMetric;

/* One temperature of an experiment. */
typedef struct StudyResult {
    const StudyPlan *plan;
    double temperature, top_p;
    double size_ratio; /* bytes of the draft model over bytes of the target */
    int n_runs, n_rows;
    StudyRow rows[STUDY_MAX_ROWS];
} StudyResult;

typedef struct StudyArgs {
    const char *model, *draft_model, *prompts; /* prompts: JSONL of {"prompt": ...} */
    int n_runs, n_threads;
    int64_t n_tokens;   /* tokens of each answer */
    double temperature; /* the only one to run; 0: all */
    const char *json, *plot;
} StudyArgs;

/* Runs every tree of the plan and plain decoding in turn, for each prompt and seed. */
int study_run(const StudyArgs *a, const StudyPlan *plan, double temperature, double top_p, StudyResult *out,
              fr_error *err);

void study_print(const StudyResult *r);
json_t *study_json(const StudyResult *r);
/* PREFIX-t0.3-efficiency.svg and so on: the best tree of each method in each group. */
int study_plot(const StudyResult *r, const char *prefix, fr_error *err);
enum { STUDY_MAX_PATH = 4200, STUDY_MAX_PREFIX = 4096 };
void study_plot_path(const char *prefix, double temperature, StudyMetric metric, char out[STUDY_MAX_PATH]);

/* Fig. 1: two draws from Bernoulli distributions. */
int study_toy(double target, const char *json, const char *plot, fr_error *err);

#endif

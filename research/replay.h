/* replay.h - runs drafters against a recorded answer: exact greedy acceptance without the model.
 *
 * The recorded answer takes the place of the target. A step proposes a tree below the pending token, accepts the path
 * along the answer as far as the tree contains it, and commits one token more, the target's own. The pending token of
 * the first step is the last of the context, so the answer's first token can be drafted too.
 */
#ifndef RESEARCH_REPLAY_H
#define RESEARCH_REPLAY_H

#include "cli/cli.h"
#include "draft/calibration.h"
#include "draft/drafter.h"

typedef struct ReplayInput {
    const int32_t *context; /* [n_context], at least one token: BOS and the prompt */
    int64_t n_context;
    const int32_t *output; /* [n_output]: the answer and EOS */
    int64_t n_output;
    int32_t budget; /* maximal number of nodes below node 0; less than TREE_MAX_NODES */
    int32_t n_vocab;
    int32_t bound; /* tokens that replay_copy_steps copies at most; 0: it is not called */
} ReplayInput;

/* A reliability table: the estimate p_accept of every drafted node, and how often the answer contained its path. */
enum { REPLAY_N_BINS = 10 };
typedef struct ReplayBin { /* the nodes with p_accept in [i, i + 1) / REPLAY_N_BINS */
    int64_t n, n_right;
    double sum_p_accept;
} ReplayBin;

enum { REPLAY_N_LENGTHS = 16 };
typedef struct ReplayStats {
    int64_t n_tokens, n_steps, n_drafted;
    int64_t n_copy_steps;                  /* the steps of the oracle (replay_copy_steps) */
    int64_t n_of_length[REPLAY_N_LENGTHS]; /* steps of 1, 2, .. tokens; the last counts all longer ones, too */
    double propose_s, build_s;             /* time of propose over all steps; time of begin */
    ReplayBin bins[REPLAY_N_BINS];         /* the drafters' own estimates, each proposal by itself */
    ReplayBin calibrated[REPLAY_N_BINS];   /* the same nodes, with p_accept calibrated as it was at that step */
} ReplayStats;

typedef struct ReplayDraft {
    Drafter *drafter;
    Calibration shared; /* kept from record to record; the caller calls calibration_init before the first */
    Calibration own;    /* estimates for this record */
} ReplayDraft;

enum { REPLAY_MAX_DRAFTS = 8 };

/* Runs sequence 0 of the drafters over the input; without drafters this is plain decoding. The proposals of several
 * drafters are merged under the budget by their calibrated estimates. If step_s is not NULL, it receives the time of
 * each step's proposals and has room for n_output numbers. Fails if a tree is malformed. */
int replay_run(ReplayDraft *drafts, int n_drafts, const ReplayInput *in, ReplayStats *out, double *step_s,
               fr_error *err);

/* Returns the steps of an oracle that knows the answer and copies, in each step, that passage of the context of at most
 * in->bound tokens which the answer follows furthest. No drafter that copies passages of the prompt takes fewer steps,
 * however many of them its tree holds: a longer copy never makes a later step worse, because the end of a passage is a
 * passage. */
int64_t replay_copy_steps(const ReplayInput *in);

/* The counts of `forerun replay`, by category, and their output. */

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

/* Returns the category of that name, added if it is new. NULL: refused. */
ReplayCategory *replay_category(ReplayReport *r, const char *name, fr_error *err);
int replay_add(ReplayCategory *c, const ReplayStats *s, const double *step_s, fr_error *err);
void replay_print_table(ReplayReport *r, bool calibration);
int replay_print_json(ReplayReport *r, fr_error *err);
void replay_report_free(ReplayReport *r);

#endif

/* replay.h - a drafter against a recorded answer: exact greedy acceptance without the model.
 *
 * The recorded answer stands in for the target. A step proposes a tree below the pending token, takes the
 * path along the answer as far as the tree has it, and one token more, the target's own. The pending token
 * of the first step is the last of the context, so the answer's first token can be drafted too.
 */
#ifndef LAB_REPLAY_H
#define LAB_REPLAY_H

#include "spec/drafter/calibration.h"
#include "spec/drafter/drafter.h"

typedef struct ReplayInput {
    const int32_t *context; /* [n_context], at least one: BOS and the prompt */
    int64_t n_context;
    const int32_t *output; /* [n_output]: the answer and EOS */
    int64_t n_output;
    int32_t budget; /* nodes a tree may have below node 0; below TREE_MAX_NODES */
    int32_t n_vocab;
} ReplayInput;

/* Every drafted node says how likely its path is (p_accept), and the answer says whether it was so. */
enum { REPLAY_N_BINS = 10 };
typedef struct ReplayBin { /* the nodes with p_accept in [i, i + 1) / REPLAY_N_BINS */
    int64_t n, n_right;
    double sum_p_accept;
} ReplayBin;

typedef struct ReplayStats {
    int64_t n_tokens, n_steps, n_drafted;
    double propose_s, build_s; /* propose over all steps; begin */
    ReplayBin bins[REPLAY_N_BINS];     /* of the drafters' own estimates, every proposal by itself */
    ReplayBin calibrated[REPLAY_N_BINS]; /* of the same nodes, their p_accept calibrated as it was then */
} ReplayStats;

typedef struct ReplayDraft {
    Drafter *drafter;
    Calibration shared; /* kept over records; calibration_init before the first */
    Calibration own;    /* of this record */
} ReplayDraft;

enum { REPLAY_MAX_DRAFTS = 8 };

/* Runs sequence 0 of the drafters over the input; none: plain decoding. Several are united under the budget by
 * their calibrated estimates. Where step_s is given, it gets the time of each step's proposals
 * ([n_output] at least). A malformed tree is refused. */
int replay_run(ReplayDraft *drafts, int n_drafts, const ReplayInput *in, ReplayStats *out, double *step_s, fr_error *err);

#endif

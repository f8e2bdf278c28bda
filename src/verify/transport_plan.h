/* transport_plan.h - how the rule `transport` divides the target's distribution between a draft and those after it. */
#ifndef VERIFY_TRANSPORT_PLAN_H
#define VERIFY_TRANSPORT_PLAN_H

#include "verify/ratio.h"

enum { TRANSPORT_LOOK = 8 }; /* drafts that are planned for, this one included */

/* For one draft of a node. p is what the rule has left for tokens that are not drafted yet, q the distribution of the
 * draft given those before it. The plan estimates; any plan gives the right output distribution. */
typedef struct TransportPlan {
    const DistDraw *draws; /* this draft and those after it */
    int32_t n;             /* how many of them are planned for */
    double share[TRANSPORT_LOOK],
        rate[TRANSPORT_LOOK]; /* draft j accepts a token with at most share[j] of the chance that it draws it; rate: of
                               * drawing without replacement, see the file */
    double w_sum;
    double v_floor, v_sum, v_rest; /* row weights, their sum, and their sum without the greatest */
    int32_t v_max;                 /* the token of the greatest row weight */
    double tau;                    /* estimate of sum m */
} TransportPlan;

void transport_plan(const RatioNode *n, int32_t i_draw, TransportPlan *out);

/* v of a token, by its q; and the sum of v over the other tokens. */
double transport_weight(const TransportPlan *plan, double q);
double transport_others(const TransportPlan *plan, int32_t token, double v);
/* The mass of a token's p that the drafts after this one can probably accept. */
double transport_capacity(const TransportPlan *plan, int32_t token, double q);

#endif

/* confidence.h - a head that predicts from a drafter's state whether its best token will be accepted; of `eagle` and
 * `lyanna`, if they were trained with one.
 *
 *   H hidden size
 *
 * Tensor, after the method's name and a dot:
 *   confidence [H + 2]   w, b, a: the logit of the chance is  w state + b + (1 + a) logit(p),  p the drafter's own estimate
 */
#ifndef LEARNED_CONFIDENCE_H
#define LEARNED_CONFIDENCE_H

#include "draft/learned/learned.h"

#define CONFIDENCE "confidence"
enum { CONFIDENCE_BIAS, CONFIDENCE_SLOPE, CONFIDENCE_SCALARS }; /* after the H weights */
#define CONFIDENCE_MAX_MARGIN 12.0                              /* of logit(p), in both directions */

typedef struct Confidence {
    int32_t n_embd;
    float *weights; /* [H + 2]; NULL: the file has no such head */
} Confidence;

/* Reads the head from the open file, if it has one, on a zeroed struct. After a failure confidence_close is safe. */
int confidence_open(Confidence *c, LearnedDrafter *learned, const char *method, fr_error *err);
void confidence_close(Confidence *c);

/* What a state [H] contributes; 0 without a head. */
float confidence_of_state(const Confidence *c, const float *state);
/* Corrects the log probabilities of a node's n most probable children, best first: the best one's is what the head
 * predicts; the others' sum changes as that of all others. Without a head nothing changes. */
void confidence_correct(const Confidence *c, float of_state, double *log_p, int32_t n);

#endif

/* rope.h - the rotation angles of a position: rope base, linear and YaRN scaling, Llama-3 factors. */
#ifndef MODEL_ROPE_H
#define MODEL_ROPE_H

#include "model/hparams.h"

typedef struct Rope {
    RopeParams params;
    double *freqs;    /* [n_rot/2] the angle between neighbouring positions, after every scaling */
    double magnitude; /* a factor of cos and sin */
} Rope;

/* Returns 1 + 0.1 m ln factor, or 1 if the factor is not above 1. With m = 1, YaRN multiplies cos and sin by it. */
double rope_yarn_magnitude(double factor, double m);

/* factors: [n_rot/2] divisors of the frequencies (tensor rope_freqs.weight), or NULL. */
int rope_init(Rope *rope, const RopeParams *params, const float *factors, fr_error *err);
void rope_free(Rope *rope);
/* Writes the pairs of cos and sin of a position, [n_rot/2][2], which are computed in double and rounded once. */
void rope_angles(const Rope *rope, int32_t position, float *cos_sin);

#endif

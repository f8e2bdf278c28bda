/* quant_super.h - the search for the scales of super-blocks: 256 numbers in sub-blocks, whose scales are small integers over
 * one or two halves. */
#ifndef QUANT_QUANT_SUPER_H
#define QUANT_QUANT_SUPER_H

enum { SUPER_N = 256, SUPER_SUBS_MAX = 16 };

/* x is about (d s) q - dmin m. */
typedef struct RangeSuper {
    const float *x, *w;
    int sub, s_max; /* numbers in a sub-block; the largest s and m */
    float most;     /* the largest code; the smallest is 0 */
    float d, dmin;  /* found: halves */
    int s[SUPER_SUBS_MAX], m[SUPER_SUBS_MAX];
    float q[SUPER_N];
} RangeSuper;

/* x is about (d s) q. */
typedef struct ScaleSuper {
    const float *x, *w;
    int sub, s_least, s_most;
    float least, most;   /* the codes are the integers in between, */
    const float *values; /* or, unless NULL, these 16 ascending numbers */
    float d;             /* found: a half */
    int s[SUPER_SUBS_MAX];
    float q[SUPER_N];
} ScaleSuper;

/* Fill in what is found; the rest is given. */
void range_super_search(RangeSuper *k);
void scale_super_search(ScaleSuper *k);

#endif

/* math_functions.c - how math_functions.h is computed.
 *
 * Each function reduces its argument to a short interval, sums a Taylor series there, and undoes the reduction. What
 * must be more precise than a double is a pair: the unevaluated sum of a double and of what its rounding left over
 * (Dekker, "A floating-point technique for extending the available precision", 1971; Knuth, TAOCP 2, 4.2.2).
 *
 *   exp      x = (32 e + j) ln2/32 + r,     e^x = 2^e 2^(j/32) e^r,     |r| <= ln2/64; the powers 2^(j/32) are a table
 *   log      x = 2^e m, 1/sqrt2 < m <= sqrt2, c = j/32 nearest to m:   log x = e ln2 + log c + 2 atanh s,
 *            s = (m - c)/(m + c), |s| < 1/90; the logarithms of all c are a table
 *   sin, cos x = q pi/2 + r,                |r| <= pi/4: q pi/2 is subtracted (Cody and Waite, 1980); where x is
 *            large or r tiny, the product of x and 2/pi is computed in integers instead, with as many bits of 2/pi as
 *            leave r precise for every double (Payne and Hanek, 1983)
 *   pow      e^(y log x), with the logarithm and the product as pairs
 *
 * The compiler must neither contract a * b + c nor reorder sums: the Makefile says -ffp-contract=off.
 */
#include "base/math_functions.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* These are the bits of a double's fraction, and the fraction of the square root of 2. */
#define FRACTION ((UINT64_C(1) << 52) - 1)
#define SQRT_2_FRACTION UINT64_C(0x6a09e667f3bcd)

/* ---- pairs of doubles ------------------------------------------------------------------------------------ */

typedef struct Pair {
    double high, low; /* the number is high + low, and high is that sum rounded to a double */
} Pair;

/* Returns a + b where |a| >= |b|, exactly. */
static Pair sum_of_ordered(double a, double b) {
    double high = a + b;
    return (Pair){high, b - (high - a)};
}

/* Returns a + b, exactly. */
static Pair sum(double a, double b) {
    double high = a + b, b_part = high - a;
    return (Pair){high, (a - (high - b_part)) + (b - b_part)};
}

/* Returns a * b, exactly if nothing over- or underflows: each factor is split in halves of at most 26 bits, whose
 * products are doubles. */
static Pair product(double a, double b) {
    const double split = 0x1p27 + 1;
    double a_high = split * a - (split * a - a), a_low = a - a_high;
    double b_high = split * b - (split * b - b), b_low = b - b_high;
    double high = a * b;
    return (Pair){high, ((a_high * b_high - high) + a_high * b_low + a_low * b_high) + a_low * b_low};
}

/* The relative error of these three is below 2^-100; a sum needs |a| >= |b|. */
static Pair pair_sum(Pair a, Pair b) {
    Pair s = sum_of_ordered(a.high, b.high);
    return sum_of_ordered(s.high, s.low + (a.low + b.low));
}

static Pair pair_product(Pair a, Pair b) {
    Pair p = product(a.high, b.high);
    return sum_of_ordered(p.high, p.low + (a.high * b.low + a.low * b.high));
}

static Pair pair_quotient(Pair a, Pair b) {
    double q = a.high / b.high;
    Pair p = product(q, b.high);
    return sum_of_ordered(q, (((a.high - p.high) - p.low) + a.low - q * b.low) / b.high);
}

/* Returns c[0] + c[1] x + ... + c[n - 1] x^(n - 1). */
static double polynomial(const double *c, int n, double x) {
    double y = c[n - 1];
    for (int i = n - 2; i >= 0; i--) y = y * x + c[i];
    return y;
}
#define POLYNOMIAL(c, x) polynomial(c, (int)(sizeof(c) / sizeof *(c)), x)

/* Returns 2^e for a normal result: -1022 <= e <= 1023. */
static double power_of_two(int e) {
    uint64_t bits = (uint64_t)(e + 1023) << 52;
    double y;
    memcpy(&y, &bits, sizeof y);
    return y;
}

/* Returns x 2^e for |e| <= 2044; only a subnormal result is rounded. */
static double scaled(double x, int e) { return x * power_of_two(e / 2) * power_of_two(e - e / 2); }

/* ---- exponential ----------------------------------------------------------------------------------------- */

/* 2^(j/32) */
static const Pair roots_of_two[32] = {
    {0x1.0000000000000p+0, 0x0.0p+0},
    {0x1.059b0d3158574p+0, 0x1.d73e2a475b465p-55},
    {0x1.0b5586cf9890fp+0, 0x1.8a62e4adc610bp-54},
    {0x1.11301d0125b51p+0, -0x1.6c51039449b3ap-54},
    {0x1.172b83c7d517bp+0, -0x1.19041b9d78a76p-55},
    {0x1.1d4873168b9aap+0, 0x1.e016e00a2643cp-54},
    {0x1.2387a6e756238p+0, 0x1.9b07eb6c70573p-54},
    {0x1.29e9df51fdee1p+0, 0x1.612e8afad1255p-55},
    {0x1.306fe0a31b715p+0, 0x1.6f46ad23182e4p-55},
    {0x1.371a7373aa9cbp+0, -0x1.63aeabf42eae2p-54},
    {0x1.3dea64c123422p+0, 0x1.ada0911f09ebcp-55},
    {0x1.44e086061892dp+0, 0x1.89b7a04ef80d0p-59},
    {0x1.4bfdad5362a27p+0, 0x1.d4397afec42e2p-56},
    {0x1.5342b569d4f82p+0, -0x1.07abe1db13cadp-55},
    {0x1.5ab07dd485429p+0, 0x1.6324c054647adp-54},
    {0x1.6247eb03a5585p+0, -0x1.383c17e40b497p-54},
    {0x1.6a09e667f3bcdp+0, -0x1.bdd3413b26456p-54},
    {0x1.71f75e8ec5f74p+0, -0x1.16e4786887a99p-55},
    {0x1.7a11473eb0187p+0, -0x1.41577ee04992fp-55},
    {0x1.82589994cce13p+0, -0x1.d4c1dd41532d8p-54},
    {0x1.8ace5422aa0dbp+0, 0x1.6e9f156864b27p-54},
    {0x1.93737b0cdc5e5p+0, -0x1.75fc781b57ebcp-57},
    {0x1.9c49182a3f090p+0, 0x1.c7c46b071f2bep-56},
    {0x1.a5503b23e255dp+0, -0x1.d2f6edb8d41e1p-54},
    {0x1.ae89f995ad3adp+0, 0x1.7a1cd345dcc81p-54},
    {0x1.b7f76f2fb5e47p+0, -0x1.5584f7e54ac3bp-56},
    {0x1.c199bdd85529cp+0, 0x1.11065895048ddp-55},
    {0x1.cb720dcef9069p+0, 0x1.503cbd1e949dbp-56},
    {0x1.d5818dcfba487p+0, 0x1.2ed02d75b3707p-55},
    {0x1.dfc97337b9b5fp+0, -0x1.1a5cd4f184b5cp-54},
    {0x1.ea4afa2a490dap+0, -0x1.e9c23179c2893p-54},
    {0x1.f50765b6e4540p+0, 0x1.9d3e12dd8a18bp-54},
};

/* Returns e^x / 2^*exponent, between 0.99 and 2, for |x| <= 760. Its relative error is below 2^-57. */
static Pair exp_parts(Pair x, int *exponent) {
    /* ln2/32: the product of an integer and the first part, which has 36 bits, is exact. */
    const double log_root = 0x1.62e42fefa0000p-6, log_root_rest = 0x1.cf79abc9e3b3ap-45;
    static const double series[] = {1.0 / 2, 1.0 / 6, 1.0 / 24, 1.0 / 120, 1.0 / 720, 1.0 / 5040}; /* 1/(i + 2)! */
    double n = (x.high * 0x1.71547652b82fep+5 + 0x1.8p52) - 0x1.8p52; /* the nearest integer */
    double r = (x.high - n * log_root) + (x.low - n * log_root_rest);
    double e_r_less_1 = r + r * r * POLYNOMIAL(series, r);
    int steps = (int)n, j = steps & 31;
    *exponent = (steps - j) / 32;
    const Pair *root = &roots_of_two[j];
    return sum_of_ordered(root->high, root->low + root->high * e_r_less_1);
}

static double exp_of_pair(Pair x) {
    if (!(x.high < 709.79)) return isnan(x.high) ? x.high : INFINITY;
    if (x.high < -745.2) return 0;
    int exponent;
    Pair y = exp_parts(x, &exponent);
    return scaled(y.high, exponent);
}

double math_exp(double x) { return exp_of_pair((Pair){x, 0}); }

/* tanh x = (e^2x - 1) / (e^2x + 1) */
double math_tanh(double x) {
    double size = fabs(x);
    if (!(size < 20)) return isnan(x) ? x : copysign(1, x);
    if (size < 0x1p-28) return x; /* tanh x = x - x^3/3 + ... */
    int exponent;
    Pair e = exp_parts((Pair){2 * size, 0}, &exponent);
    e = (Pair){scaled(e.high, exponent), scaled(e.low, exponent)};
    Pair less = sum_of_ordered(e.high - 1, e.low), more = pair_sum(e, (Pair){1, 0});
    return copysign(pair_quotient(less, more).high, x);
}

/* ---- logarithm ------------------------------------------------------------------------------------------- */

/* log(j/32) for j = 23 .. 45 */
enum { FIRST_LOG = 23 };
static const Pair logs[] = {
    {-0x1.522ae0738a3d8p-2, 0x1.8f7e9b38a6979p-57},  /* 23/32 */
    {-0x1.269621134db92p-2, -0x1.e0efadd9db02bp-56}, /* 24/32 */
    {-0x1.f991c6cb3b379p-3, -0x1.f665066f980a2p-57}, /* 25/32 */
    {-0x1.a93ed3c8ad9e3p-3, -0x1.bcafa9de97203p-57}, /* 26/32 */
    {-0x1.5bf406b543db2p-3, 0x1.1f5b44c0df7e7p-61},  /* 27/32 */
    {-0x1.1178e8227e47cp-3, 0x1.0e63a5f01c691p-58},  /* 28/32 */
    {-0x1.9335e5d594989p-4, 0x1.478a85704ccb7p-58},  /* 29/32 */
    {-0x1.08598b59e3a07p-4, 0x1.dd7009902bf32p-58},  /* 30/32 */
    {-0x1.0415d89e74444p-5, -0x1.c05cf1d753622p-59}, /* 31/32 */
    {0x0.0p+0, 0x0.0p+0},                            /* 32/32 */
    {0x1.f829b0e783300p-6, 0x1.33e3f04f1ef23p-60},   /* 33/32 */
    {0x1.f0a30c01162a6p-5, 0x1.85f325c5bbacdp-59},   /* 34/32 */
    {0x1.6f0d28ae56b4cp-4, -0x1.906d99184b992p-58},  /* 35/32 */
    {0x1.e27076e2af2e6p-4, -0x1.61578001e0162p-60},  /* 36/32 */
    {0x1.29552f81ff523p-3, 0x1.301771c407dbfp-57},   /* 37/32 */
    {0x1.5ff3070a793d4p-3, -0x1.bc60efafc6f6ep-58},  /* 38/32 */
    {0x1.9525a9cf456b4p-3, 0x1.d904c1d4e2e26p-57},   /* 39/32 */
    {0x1.c8ff7c79a9a22p-3, -0x1.4f689f8434012p-57},  /* 40/32 */
    {0x1.fb9186d5e3e2bp-3, -0x1.caaae64f21acbp-57},  /* 41/32 */
    {0x1.1675cababa60ep-2, 0x1.ce63eab883717p-61},   /* 42/32 */
    {0x1.2e8e2bae11d31p-2, -0x1.8f4cdb95ebdf9p-56},  /* 43/32 */
    {0x1.4618bc21c5ec2p-2, 0x1.f42decdeccf1dp-56},   /* 44/32 */
    {0x1.5d1bdbf5809cap-2, 0x1.4236383dc7fe1p-56},   /* 45/32 */
};

/* Returns log x for a finite x > 0. The relative error is below 2^-63. */
static Pair log_of_pair(Pair x) {
    static const double series[] = {1.0 / 3, 1.0 / 5, 1.0 / 7, 1.0 / 9};
    const double ln2 = 0x1.62e42fefa3800p-1, ln2_rest = 0x1.ef35793c76730p-45; /* e ln2 is exact in the first */
    int subnormal = x.high < 0x1p-1022 ? 54 : 0;
    if (subnormal) x.high *= 0x1p54;
    uint64_t bits;
    memcpy(&bits, &x.high, sizeof bits);
    int e = (int)(bits >> 52) - 1023;
    if ((bits & FRACTION) > SQRT_2_FRACTION) e++;
    Pair m = {scaled(x.high, -e), scaled(x.low, -e)};

    int j = (int)(m.high * 32 + 0.5);
    double c = j * 0x1p-5;
    Pair below = sum(m.high - c, m.low), above = sum(m.high, c);
    above.low += m.low;
    /* s = below / above: q is its first digits, and what q leaves over is divided as well. */
    double inverse = 1 / above.high, q = below.high * inverse;
    Pair p = product(q, above.high);
    double rest = ((below.high - p.high) - p.low) + (below.low - q * above.low);
    double square = q * q, after = rest * inverse + q * square * POLYNOMIAL(series, square);
    e -= subnormal;
    Pair whole = pair_sum(sum_of_ordered(e * ln2, e * ln2_rest), logs[j - FIRST_LOG]);
    return pair_sum(whole, sum_of_ordered(2 * q, 2 * after));
}

double math_log(double x) {
    if (!(x > 0)) return isnan(x) ? x : x == 0 ? -INFINITY : NAN;
    return isinf(x) ? x : log_of_pair((Pair){x, 0}).high;
}

double math_log1p(double x) {
    if (!(x > -1)) return isnan(x) ? x : x == -1 ? -INFINITY : NAN;
    if (isinf(x) || fabs(x) < 0x1p-54) return x;
    return log_of_pair(sum(1, x)).high;
}

double math_pow(double x, double y) {
    double size = fabs(x);
    if (y == 0 || x == 1) return 1;
    if (isnan(x) || isnan(y)) return NAN;
    if (isinf(y)) return size == 1 ? 1 : (size > 1) == (y > 0) ? INFINITY : 0;
    bool is_integer = floor(y) == y, is_odd = is_integer && fabs(y) < 0x1p53 && ((int64_t)y & 1);
    double sign = signbit(x) && is_odd ? -1 : 1;
    if (size == 0 || isinf(x)) return sign * ((size == 0) == (y < 0) ? INFINITY : 0);
    if (x < 0 && !is_integer) return NAN;
    /* A greater y changes no result: |log x| is at least 2^-53 or 0. */
    y = fmin(fmax(y, -0x1p70), 0x1p70);
    Pair log_x = log_of_pair((Pair){size, 0}), z = product(y, log_x.high);
    return sign * exp_of_pair(sum_of_ordered(z.high, z.low + y * log_x.low));
}

/* ---- sine and cosine --------------------------------------------------------------------------------------- */

/* This is 2/pi as a binary fraction, from the bit that is worth 1/2 on. */
static const uint64_t two_over_pi[] = {0xa2f9836e4e441529, 0xfc2757d1f534ddc0, 0xdb6295993c439041, 0xfe5163abdebbc561,
                                       0xb7246e3a424dd2e0, 0x06492eea09d1921c, 0xfe1deb1cb129a73e, 0xe88235f52ebb4484,
                                       0xe99c7026b45f7e41, 0x3991d639835339f4, 0x9c845f8bbdf9283b, 0x1ff897ffde05980f,
                                       0xef2f118b5a0a6d1f, 0x6d367ecf27cb09b7, 0x4f463f669e5fea2d, 0x7527bac7ebe5f17b,
                                       0x3d0739f78a5292ea, 0x6bfb5fb11f8d5d08, 0x56033046fc7b6bab, 0xf0cfbc209af4361d};

/* Returns 64 bits of 2/pi from bit `first` on; bit 0 is worth 1/2, and bits before it are 0. */
static uint64_t bits_of_two_over_pi(int first) {
    int shift = first & 63, word = (first - shift) / 64;
    uint64_t high = word < 0 ? 0 : two_over_pi[word], low = word < -1 ? 0 : two_over_pi[word + 1];
    return shift ? high << shift | low >> (64 - shift) : high;
}

/* *high:*low = a b + add, in 128 bits; the sum must not overflow, as b < 2^53 ensures. */
static uint64_t multiply_add(uint64_t a, uint64_t b, uint64_t add, uint64_t *high) {
    uint64_t a_low = a & UINT32_MAX, a_high = a >> 32, b_low = b & UINT32_MAX, b_high = b >> 32;
    uint64_t low = a_low * b_low, middle = a_high * b_low + (low >> 32), other = a_low * b_high + (middle & UINT32_MAX);
    uint64_t result = (other << 32 | (low & UINT32_MAX)) + add;
    *high = a_high * b_high + (middle >> 32) + (other >> 32) + (result < add);
    return result;
}

/* Returns r = x - quadrant pi/2 with |r| <= pi/4 (1 + 2^-50), and the quadrant modulo 4, for finite |x| >= 2^-2. */
static Pair reduce_angle(double x, unsigned *quadrant) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    int e = (int)(bits >> 52 & 2047) - 1075;
    uint64_t m = (bits & FRACTION) | (FRACTION + 1); /* |x| = m 2^e */

    /* Bits of 2/pi that are worth more than 2^(1 - e) contribute multiples of 4 to m 2^e 2/pi. With the following 192
     * bits the product is a multiple of 2^-190, which is cut to 192 bits: two for the quadrant, 190 for its part. */
    int first = e - 2;
    uint64_t carry, w[3], unused;
    w[0] = multiply_add(bits_of_two_over_pi(first + 128), m, 0, &carry);
    w[1] = multiply_add(bits_of_two_over_pi(first + 64), m, carry, &carry);
    w[2] = multiply_add(bits_of_two_over_pi(first), m, carry, &unused);
    *quadrant = (unsigned)(w[2] >> 62);
    w[2] &= UINT64_MAX >> 2;
    bool above_half = w[2] >> 61;
    if (above_half) { /* the next quadrant, and what is missing to it */
        *quadrant += 1;
        w[0] = ~w[0] + 1;
        w[1] = ~w[1] + (w[0] == 0);
        w[2] = (~w[2] + (w[0] == 0 && w[1] == 0)) & UINT64_MAX >> 2;
    }
    Pair part = {0, 0};
    for (int i = 0; i < 6; i++) { /* 32 bits at a time, from the last ones on */
        double digits = (double)(w[i / 2] >> 32 * (i % 2) & UINT32_MAX) * power_of_two(32 * i - 190);
        part = pair_sum((Pair){digits, 0}, part);
    }
    Pair r = pair_product(part, (Pair){0x1.921fb54442d18p+0, 0x1.1a62633145c07p-54});
    if (signbit(x)) *quadrant = 0 - *quadrant;
    *quadrant &= 3;
    return signbit(x) != above_half ? (Pair){-r.high, -r.low} : r;
}

/* The same for |x| < 2^20, faster: the multiple of pi/2 is subtracted in three parts, of which the first two have 33
 * bits, so that their products are exact. The error is below 2^-98, which is not little enough for the tiniest r. */
static Pair reduce_small_angle(double x, unsigned *quadrant) {
    double n = (x * 0x1.45f306dc9c883p-1 + 0x1.8p52) - 0x1.8p52; /* the nearest integer */
    Pair r = sum(x - n * 0x1.921fb544p+0, -n * 0x1.0b4611a6p-34);
    *quadrant = (unsigned)(int)n & 3;
    return sum_of_ordered(r.high, r.low - n * 0x1.3198a2e037073p-69);
}

void math_sin_cos(double x, double *sine, double *cosine) {
    static const double sine_series[] = {
        /* (-1)^i / (2i + 3)!, negative ones first */
        -1.0 / 6,        1.0 / 120,        -1.0 / 5040,          1.0 / 362880,
        -1.0 / 39916800, 1.0 / 6227020800, -1.0 / 1307674368000, 1.0 / 355687428096000};
    static const double cosine_series[] = {
        /* (-1)^i / (2i + 4)! */
        1.0 / 24,        -1.0 / 720,         1.0 / 40320,          -1.0 / 3628800,
        1.0 / 479001600, -1.0 / 87178291200, 1.0 / 20922789888000, -1.0 / 6402373705728000};
    if (!isfinite(x)) {
        *sine = *cosine = NAN;
        return;
    }
    if (fabs(x) < 0x1p-28) { /* sin x = x - x^3/6 + ..., cos x = 1 - x^2/2 + ... */
        *sine = x, *cosine = 1;
        return;
    }
    unsigned quadrant = 0;
    Pair r = {x, 0};
    if (fabs(x) >= 0.5) {
        if (fabs(x) < 0x1p20) r = reduce_small_angle(x, &quadrant);
        if (fabs(x) >= 0x1p20 || fabs(r.high) < 0x1p-20) r = reduce_angle(x, &quadrant);
    }
    Pair square = product(r.high, r.high);
    double z = square.high;
    double s = r.high + (r.high * z * POLYNOMIAL(sine_series, z) + r.low * (1 - z / 2));
    Pair c = sum_of_ordered(1, -z / 2);
    c.high += c.low - square.low / 2 - r.high * r.low + z * z * POLYNOMIAL(cosine_series, z);
    *sine = quadrant == 0 ? s : quadrant == 1 ? c.high : quadrant == 2 ? -s : -c.high;
    *cosine = quadrant == 0 ? c.high : quadrant == 1 ? -s : quadrant == 2 ? -c.high : s;
}

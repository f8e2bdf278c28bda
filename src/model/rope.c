/* rope.c - rotary position embedding (arXiv 2104.09864): pair i of a head turns by position * freq_i with freq_i =
 * base^(-2i/n_rot).
 *
 * Scalings change freq_i once, at open:
 *   factors  freq_i / factor_i               Llama 3.1 and later: the file holds the factors
 *   linear   freq_i / factor                 position interpolation
 *   YaRN     blends freq_i (fast pairs, which turn more than beta_fast times over the original context)
 *            with freq_i / factor (slow pairs, fewer than beta_slow turns), linearly in i between them.
 *            Fast pairs keep the share ext_factor of their frequency. cos and sin are multiplied by
 *            1 + 0.1 ln factor where the factor is above 1, unless the file has another number
 *            (arXiv 2309.00071, eq. 23, and its published code)
 * LongRoPE freq_i / factor_i with two sets of factors (arXiv 2402.13753). The long ones are used where the context of a
 *            sequence may exceed the original one, whether it does or not, so that no key must be rotated again
 *            (model_rope). cos and sin are multiplied by a number of the file.
 */
#include "model/rope.h"

#include "base/math_functions.h"
#include "base/mem.h"

#include <math.h>

/* Returns the pair index whose rotation completes `turns` turns over the original context. */
static double pair_of_turns(const RopeParams *p, double turns) {
    return p->n_rot * math_log(p->n_ctx_orig / (turns * 2 * M_PI)) / (2 * math_log(p->base));
}

static double yarn_share_of_fast(const RopeParams *p, int32_t i) {
    double low = floor(pair_of_turns(p, p->beta_fast)), high = ceil(pair_of_turns(p, p->beta_slow));
    if (low < 0) low = 0;
    if (high > p->n_rot - 1) high = p->n_rot - 1;
    if (high == low) high += 0.001;
    double y = (i - low) / (high - low);
    return (1 - fmin(1, fmax(0, y))) * p->ext_factor;
}

int rope_init(Rope *rope, const RopeParams *params, const float *factors, fr_error *err) {
    const RopeParams *p = params;
    *rope = (Rope){.params = *p, .magnitude = p->magnitude > 0 ? p->magnitude : 1};
    rope->freqs = mem_calloc((size_t)p->n_rot / 2, sizeof *rope->freqs);
    if (!rope->freqs) return error_memory(err, "rope frequencies", (size_t)p->n_rot / 2 * sizeof *rope->freqs);
    for (int32_t i = 0; i < p->n_rot / 2; i++) {
        double freq = math_pow(p->base, -2.0 * i / p->n_rot);
        if (factors) freq /= (double)factors[i];
        double slow = freq / p->factor;
        if (p->scaling == ROPE_SCALING_YARN) {
            double fast = yarn_share_of_fast(p, i);
            freq = slow * (1 - fast) + freq * fast;
        } else {
            freq = slow;
        }
        rope->freqs[i] = freq;
    }
    return FR_OK;
}

double rope_yarn_magnitude(double factor, double m) { return factor > 1 ? 1 + 0.1 * m * math_log(factor) : 1; }

void rope_free(Rope *rope) {
    mem_free(rope->freqs);
    rope->freqs = NULL;
}

void rope_angles(const Rope *rope, int32_t position, float *cos_sin) {
    for (int32_t i = 0; i < rope->params.n_rot / 2; i++) {
        double sine, cosine;
        math_sin_cos(position * rope->freqs[i], &sine, &cosine);
        cos_sin[2 * i] = (float)(cosine * rope->magnitude);
        cos_sin[2 * i + 1] = (float)(sine * rope->magnitude);
    }
}

/* op_rope.c - pair i of a head, (a, b), is rotated by the angle position * freq_i, whose cosine and sine are c and s:
 *
 *     a' = c a - s b         da =  c da' + s db'
 *     b' = s a + c b         db = -s da' + c db'           backward rotates by minus the angle
 *
 * Pairs are those of the inference code: (2i, 2i + 1) for llama files, (i, i + n_rot / 2) for qwen files.
 */
#include "train/ops/op_rope.h"

/* direction: 1 rotates forward, -1 backward */
REAL_CLONES static void rotate(RopeStyle style, real *x, const real *cos_sin, real direction, int64_t n_rows,
                               int64_t n_heads, int64_t head_dim, int64_t n_rot) {
    int64_t step = style == ROPE_PAIRS ? 2 : 1, apart = style == ROPE_PAIRS ? 1 : n_rot / 2;
    for (int64_t t = 0; t < n_rows; t++, cos_sin += n_rot)
        for (int64_t h = 0; h < n_heads; h++, x += head_dim)
            for (int64_t i = 0; i < n_rot / 2; i++) {
                real c = cos_sin[2 * i], s = direction * cos_sin[2 * i + 1];
                real *a = x + i * step, *b = a + apart, a_old = *a;
                *a = c * a_old - s * *b;
                *b = s * a_old + c * *b;
            }
}

void rope_forward(RopeStyle style, real *x, const real *cos_sin, int64_t n_rows, int64_t n_heads, int64_t head_dim,
                  int64_t n_rot) {
    rotate(style, x, cos_sin, 1, n_rows, n_heads, head_dim, n_rot);
}

void rope_backward(RopeStyle style, real *dx, const real *cos_sin, int64_t n_rows, int64_t n_heads, int64_t head_dim,
                   int64_t n_rot) {
    rotate(style, dx, cos_sin, -1, n_rows, n_heads, head_dim, n_rot);
}

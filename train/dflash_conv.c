/* dflash_conv.c - the convolution of DFlash 2 around a part of a layer (BlockConv in model.h), forward and backward.
 * Each slot adds up its own channels and those of the slots before it in its block, with kernels that it makes of the
 * normed input n, one for each group of channels:
 *
 *     G        = W n                                                        [2][taps][C / group]
 *     x'_i     = sum over t of k_i,t * x_{i-t},   k_i,t = base[s][t] + G_i[s][t]      s = 0 before the part, 1 after it
 *
 *     dx_{i-t} += k_i,t * dx'_i
 *     dbase[s][t] += dx'_i * x_{i-t},   dG_i[s][t] = the sum of that over the channels of a group
 *     dW += dG n^T,   dn += W^T dG
 *
 * Both convolutions have kernels from the same product, so that dG is complete, and passed on to W and n, only at the
 * end of the backward pass, with the convolution of the inputs.
 *
 * Initial values: each slot reads only itself, with the factor 1, and W is zeros. So a drafter to which convolutions
 * are added begins with what it predicted before.
 *
 * Rows. Slot i of anchor a of N is row i N + a, so the row t slots before it is t N rows before it. Test:
 * test_train_drafters.c by finite differences in double, test_train_dflash.c against the drafter. */
#include "draft/learned/learned_files.h"
#include "train/dflash_net.h"

#include <stdio.h>
#include <string.h>

static int64_t n_groups(const DflashNet *n) { return n->C / n->conv_group; }
static int64_t n_kernels(const DflashNet *n) { return 2 * n->conv_taps * n_groups(n); }

NetTensor dflash_conv_tensor(const DflashNet *n, int32_t layer, const char *part, int32_t i) {
    NetTensor t = {.n_rows = n_kernels(n), .n = n->C, .start = NET_ZEROS, .is_addition = n->adds_conv};
    bool is_ffn = part[0] == 'f';
    if (i == CONV_KERNELS) {
        snprintf(t.name, sizeof t.name, DFLASH_LAYER, layer, is_ffn ? DFLASH_FFN_CONV : DFLASH_ATTN_CONV);
        return t;
    }
    t.n_rows = 0, t.n = 2 * (int64_t)n->conv_taps * n->C;
    t.start = NET_FIRST_ROWS;
    t.cube[0] = n->C, t.cube[1] = n->conv_taps, t.cube[2] = 2;
    snprintf(t.name, sizeof t.name, DFLASH_CONV_BASE, layer, part);
    return t;
}

/* ---- activations -------------------------------------------------------------------------------- */

int dflash_conv_open(DflashConv *c, const DflashNet *n, int64_t R, Arena *arena, const char *name, fr_error *err) {
    const ArenaItem items[] = {ARENA_ITEM(&c->kernels, R * n_kernels(n)), ARENA_ITEM(&c->in, R * n->C),
                               ARENA_ITEM(&c->out, R * n->C)};
    return arena_take(arena, items, ARENA_COUNT(items), name, err);
}

int dflash_conv_open_back(DflashConvBack *b, const DflashNet *n, int64_t R, Arena *arena, const char *name,
                          fr_error *err) {
    const ArenaItem items[] = {ARENA_ITEM(&b->dkernels, R * n_kernels(n)), ARENA_ITEM(&b->din, R * n->C),
                               ARENA_ITEM(&b->dout, R * n->C)};
    return arena_take(arena, items, ARENA_COUNT(items), name, err);
}

/* ---- one convolution ---------------------------------------------------------------------------- */

/* out [C] += (base + own, one of them for each group) * x */
REAL_CLONES static void add_tap(const DflashNet *n, real *out, const real *base, const real *own, const real *x) {
    int64_t size = n->conv_group;
    for (int64_t g = 0, c = 0; g < n_groups(n); g++)
        for (int64_t end = c + size; c < end; c++) out[c] += (base[c] + own[g]) * x[c];
}

/* Adds to dx, dbase and dkernels. */
REAL_CLONES static void tap_back(const DflashNet *n, real *dx, real *dbase, real *down, const real *base,
                                 const real *own, const real *x, const real *dout) {
    int64_t size = n->conv_group;
    for (int64_t g = 0, c = 0; g < n_groups(n); g++) {
        down[g] += real_dot(dout + c, x + c, size);
        for (int64_t end = c + size; c < end; c++) {
            dx[c] += (base[c] + own[g]) * dout[c];
            dbase[c] += dout[c] * x[c];
        }
    }
}

/* Returns how many taps of a slot lie within its block. */
static int32_t n_taps_of(const DflashNet *n, int32_t slot) { return slot < n->conv_taps ? slot + 1 : n->conv_taps; }

/* out = convolution number s of x, both [R][C]. */
static void convolve(const DflashNet *n, const real *base, const real *kernels, int s, const real *x, real *out,
                     int32_t n_anchors) {
    int64_t C = n->C, G = n_groups(n), N = n_anchors;
    memset(out, 0, (size_t)(n->block * N * C) * sizeof *out);
    for (int32_t slot = 0; slot < n->block; slot++)
        for (int64_t row = slot * N; row < (slot + 1) * N; row++)
            for (int32_t t = 0; t < n_taps_of(n, slot); t++) {
                int64_t tap = s * n->conv_taps + t;
                add_tap(n, out + row * C, base + tap * C, kernels + row * n_kernels(n) + tap * G,
                        x + (row - t * N) * C);
            }
}

/* From dout: adds to dx [R][C], dbase and dkernels. */
static void convolve_back(const DflashNet *n, const real *base, const real *kernels, int s, const real *x, real *dx,
                          real *dbase, real *dkernels, const real *dout, int32_t n_anchors) {
    int64_t C = n->C, G = n_groups(n), N = n_anchors;
    for (int32_t slot = 0; slot < n->block; slot++)
        for (int64_t row = slot * N; row < (slot + 1) * N; row++)
            for (int32_t t = 0; t < n_taps_of(n, slot); t++) {
                int64_t tap = s * n->conv_taps + t, at = row * n_kernels(n) + tap * G, from = (row - t * N) * C;
                tap_back(n, dx + from, dbase + tap * C, dkernels + at, base + tap * C, kernels + at, x + from,
                         dout + row * C);
            }
}

/* ---- around a part ------------------------------------------------------------------------------ */

void dflash_conv_inputs(const DflashNet *n, real *const *w, DflashConv *c, const real *normed, int32_t n_anchors) {
    linear_forward(c->kernels, normed, w[CONV_KERNELS], NULL, (int64_t)n->block * n_anchors, n->C, n_kernels(n));
    convolve(n, w[CONV_BASE], c->kernels, 0, normed, c->in, n_anchors);
}

void dflash_conv_outputs(const DflashNet *n, real *const *w, const DflashConv *c, real *out, int32_t n_anchors) {
    convolve(n, w[CONV_BASE], c->kernels, 1, c->out, out, n_anchors);
}

void dflash_conv_outputs_back(const DflashNet *n, real *const *w, real *const *dw, const DflashConv *c,
                              DflashConvBack *b, const real *dout, int32_t n_anchors) {
    int64_t R = (int64_t)n->block * n_anchors;
    memset(b->dkernels, 0, (size_t)(R * n_kernels(n)) * sizeof(real));
    memset(b->din, 0, (size_t)(R * n->C) * sizeof(real));
    memset(b->dout, 0, (size_t)(R * n->C) * sizeof(real));
    convolve_back(n, w[CONV_BASE], c->kernels, 1, c->out, b->dout, dw[CONV_BASE], b->dkernels, dout, n_anchors);
}

void dflash_conv_inputs_back(const DflashNet *n, real *const *w, real *const *dw, const DflashConv *c,
                             DflashConvBack *b, const real *normed, real *dnormed, int32_t n_anchors) {
    convolve_back(n, w[CONV_BASE], c->kernels, 0, normed, dnormed, dw[CONV_BASE], b->dkernels, b->din, n_anchors);
    linear_backward(dnormed, dw[CONV_KERNELS], NULL, b->dkernels, normed, w[CONV_KERNELS],
                    (int64_t)n->block * n_anchors, n->C, n_kernels(n));
}

/* scores.h - attention scores over a cache of type KV_Q8 by integer products. They have a table of function pointers of
 * their own, which follows the rules of kernels.h.
 *
 * A query is rounded to 16-bit integers with one scale, as activations are; a key is a scale and 32 signed bytes for
 * each block. The 32 products of a block and their sum are exact in 32 bits, whichever way an instruction set groups
 * them. So only the order of the sums over blocks has to be the same in all tables:
 *
 *     t[b]  = sum of q[32b + i] * k[32b + i]               exact; at most 32 * 32512 * 128 < 2^27
 *     s     = fma(d[b], (float)t[b], s)                    from zero, in ascending b; d[b] is the key's scale
 *     score = s * (query's scale * scale of attention)
 *
 * With amax = max|x| of a query: q = x * (32512/amax) to the nearest integer (ties to even), scale = amax/32512. A
 * query whose amax is below 2^-100 becomes zeros; one that holds NaN or infinity becomes zeros with a scale of NaN. */
#ifndef KERNELS_SCORES_H
#define KERNELS_SCORES_H

#include "compute/cpu/kernels/kernels.h"

/* A query of one head, rounded to integers. Each table has its own order of the integers of a block. */
typedef struct RoundedQuery {
    float scale;
    int16_t q[];
} RoundedQuery;

/* The integer that the largest magnitude of a query becomes. */
#define SCORE_LEVELS (127.0f * 256)

static inline int64_t score_blocks(int64_t head_dim) { return (head_dim + KV_BLOCK - 1) / KV_BLOCK; }
static inline size_t rounded_query_bytes(int64_t head_dim) {
    return (sizeof(RoundedQuery) + (size_t)score_blocks(head_dim) * KV_BLOCK * sizeof(int16_t) + 15) / 16 * 16;
}

/* One block of up to KEYS_PACKED keys, transposed, so that a vector holds the same element of many keys. */
typedef struct KeyBlock {
    float scale[KEYS_PACKED];
    int16_t k[KV_BLOCK][KEYS_PACKED]; /* in an order that depends on the table */
} KeyBlock;

typedef struct ScoreKernels {
    const char *name;
    /* Rounds one query of head_dim numbers into rounded_query_bytes(head_dim) bytes. */
    void (*round_query)(const float *q, int64_t head_dim, RoundedQuery *out);
    /* Transposes the n keys of `slots`, 0 < n <= KEYS_PACKED, into out [score_blocks(head_dim)]. The key of slot s
     * starts at k + s*slot_bytes. The rest of `out` is unspecified. */
    void (*pack)(int64_t head_dim, const void *k, size_t slot_bytes, const int32_t *slots, int64_t n, KeyBlock *out);
    /* Computes scores[h][i] for h < n_q and i < n. */
    void (*scores)(const RoundedQuery *const *q, int64_t n_q, int64_t head_dim, const KeyBlock *keys, int64_t n,
                   float scale, float *const *scores);
} ScoreKernels;

extern const ScoreKernels score_kernels_ref;
#if defined(__x86_64__)
extern const ScoreKernels score_kernels_avx2, score_kernels_avx_vnni, score_kernels_avx512;
#elif defined(__aarch64__)
extern const ScoreKernels score_kernels_neon, score_kernels_neon_dot;
#endif
/* Returns the table of scores that belongs to a table of kernels. */
const ScoreKernels *score_kernels_of(const Kernels *k);

#endif

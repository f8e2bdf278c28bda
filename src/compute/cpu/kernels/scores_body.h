/* scores_body.h - the scores of scores.h for a vector table; included once by a kernels_*.c for each table of scores,
 * after its simd_*.h, with SCORE_TABLE (the variable), SCORE_TABLE_NAME, and possibly SCORES_BY_BYTES defined.
 *
 * The problem. With floats a score of head size 64 takes 64 multiply-adds and 15 additions that fold its 16 running
 * sums; a key of type Q8 is also converted from bytes. Row by row it is worse, because the running sums are the lanes
 * of a vector.
 *
 * The idea. One instruction multiplies two 16-bit integers in each lane and adds both products. So 32 elements of LANES
 * keys and a query are 16 instructions, a conversion, and one multiply-add with the scales of the keys: 18 for 32
 * elements where floats need 40. Keys are transposed while they are bytes, four elements to a lane, which takes a
 * quarter of the moves that floats take; so it pays for one row, too.
 *
 * Why words. Byte products (vpdpbusd) multiply the two planes of a query in the same 16 instructions, but the planes
 * must be joined and the bias of the keys must be subtracted: 21 instructions instead of 18. Words cost the widening of
 * the keys, 3 operations for 4 elements of LANES keys, which all queries share.
 *
 * Why bytes on ARM (SCORES_BY_BYTES). There sdot multiplies signed bytes, four of them in a lane, where the product of
 * words takes two instructions for two elements. So the two planes of a query, q = 256 high + low with both in
 * -128..127, are 16 instructions for 32 elements instead of 32, without a bias, and keys stay bytes: the first half of
 * the steps sums the high plane, a shift multiplies by 256, and the second half adds the low plane.
 *
 * Costs are in research/DIARY.md. Proof: test_scores.c (against plain C, and the formula in double precision),
 * test_attention.c. */
#include "compute/cpu/kernels/ref.h"
#include "compute/cpu/kernels/scores.h"

/* A step multiplies a unit of each key, 4 bytes in a lane, with 4 bytes of a query. */
enum { QUERIES_AT_ONCE = 4, STEPS = KV_BLOCK / 2 };
#ifdef SCORES_BY_BYTES
enum { UNITS = KV_BLOCK / 4 };

/* Stores the integers i .. i + LANES - 1 of a block, all high bytes of the block before all low ones. */
INLINE void store_integers(int16_t *block, int64_t i, const int32_t *t) {
    int8_t *planes = (int8_t *)block;
    UNROLL for (int k = 0; k < LANES; k++) {
        int32_t low = (int8_t)t[k];
        planes[i + k] = (int8_t)((t[k] - low) / 256);
        planes[KV_BLOCK + i + k] = (int8_t)low;
    }
}
INLINE void store_unit(int32_t *k, int u, Vi unit) { v_store_int(k + u * KEYS_PACKED, unit); }
#define v_dot_units v_dot_bytes
#else
enum { UNITS = STEPS };

/* Stores the integers i .. i + LANES - 1 of a block in the order 0, 2, 1, 3 in which v_to_words leaves the keys. */
INLINE void store_integers(int16_t *block, int64_t i, const int32_t *t) {
    UNROLL for (int k = 0; k < LANES; k += 4) {
        block[i + k] = (int16_t)t[k], block[i + k + 1] = (int16_t)t[k + 2];
        block[i + k + 2] = (int16_t)t[k + 1], block[i + k + 3] = (int16_t)t[k + 3];
    }
}
INLINE void store_unit(int32_t *k, int u, Vi unit) {
    Vi even, odd;
    v_to_words(unit, &even, &odd);
    v_store_int(k + 2 * u * KEYS_PACKED, even);
    v_store_int(k + (2 * u + 1) * KEYS_PACKED, odd);
}
#define v_dot_units v_dot_words
#endif

/* ---- queries ----------------------------------------------------------------------------------------------- */

/* Sets *amax to the largest magnitude of a query, and returns whether all its numbers are finite. Elements that the
 * last vector lacks are zeros. */
INLINE bool query_amax(const float *q, int64_t n, float *amax) {
    Vf max = v_zero(), zeros = v_zero();
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        max = v_max(v_abs(v_load(q + i)), max);
        zeros = v_fma(v_load(q + i), v_zero(), zeros);
    }
    if (i < n) {
        max = v_max(v_abs(v_load_n(q + i, n - i)), max);
        zeros = v_fma(v_load_n(q + i, n - i), v_zero(), zeros);
    }
    *amax = v_max_all(max);
    return v_fold(zeros) == 0;
}

static void round_query(const float *q, int64_t head_dim, RoundedQuery *out) {
    float amax;
    int64_t n = score_blocks(head_dim) * KV_BLOCK;
    if (!query_amax(q, head_dim, &amax)) {
        memset(out->q, 0, (size_t)n * sizeof *out->q);
        out->scale = NAN;
        return;
    }
    Vf inverse = v_set(amax >= ACT_TINY ? SCORE_LEVELS / amax : 0.0f);
    out->scale = amax / SCORE_LEVELS;
    for (int64_t i = 0; i < n; i += LANES) {
        int32_t t[LANES];
        v_store_int(t, v_round(v_mul(v_load_n(q + i, head_dim - i), inverse)));
        store_integers(out->q + i / KV_BLOCK * KV_BLOCK, i % KV_BLOCK, t);
    }
}

/* ---- keys -------------------------------------------------------------------------------------------------- */

/* Returns the number of keys that are computed when n are needed: one vector, or a multiple of KEY_VECTORS vectors. */
INLINE int64_t score_width(int64_t n) {
    enum { WIDE = KEY_VECTORS * LANES };
    return n <= LANES ? LANES : (n + WIDE - 1) / WIDE * WIDE;
}

static void pack_key_blocks(int64_t head_dim, const void *k, size_t slot_bytes, const int32_t *slots, int64_t n,
                            KeyBlock *out) {
    const unsigned char *rows[KEYS_PACKED];
    int64_t width = score_width(n);
    for (int64_t i = 0; i < width; i++)
        rows[i] = (const unsigned char *)k + (size_t)slots[i < n ? i : n - 1] * slot_bytes;
    for (int64_t b = 0; b < score_blocks(head_dim); b++, out++) {
        uint16_t halves[KEYS_PACKED];
        for (int64_t i = 0; i < width; i++) memcpy(&halves[i], rows[i], sizeof *halves);
        for (int64_t i = 0; i < width; i += LANES) {
            Vi units[8];
            v_turn_blocks(rows + i, 2, units);
            UNROLL for (int u = 0; u < 8; u++) store_unit((int32_t *)(void *)out->k + i, u, units[u]);
        }
        for (int64_t i = 0; i < width; i += LANES) v_store(out->scale + i, v_load_half(halves + i));
        for (int64_t i = 0; i < width; i++) rows[i] += KV_BLOCK_BYTES;
    }
}

/* ---- scores ------------------------------------------------------------------------------------------------ */

/* Computes the scores of n_q queries with n_vectors vectors of packed keys from key `at` on, of which the first n keys
 * exist. */
INLINE void key_block_scores_of(int n_q, int n_vectors, const RoundedQuery *const *q, int64_t n_blocks,
                                const KeyBlock *keys, int64_t at, int64_t n, float scale, float *const *scores) {
    enum { N = QUERIES_AT_ONCE * KEY_VECTORS };
    Vf sum[N];
    UNROLL for (int i = 0; i < n_q * n_vectors; i++) sum[i] = v_zero();
    for (int64_t b = 0; b < n_blocks; b++, keys++) {
        Vi t[N];
        UNROLL for (int i = 0; i < n_q * n_vectors; i++) t[i] = v_set_int(0);
        UNROLL for (int p = 0; p < STEPS; p++) {
            Vi key[KEY_VECTORS];
            const int32_t *units = (const int32_t *)(const void *)keys->k + p % UNITS * KEYS_PACKED + at;
            UNROLL for (int v = 0; v < n_vectors; v++) key[v] = v_load_int(units + v * LANES);
#ifdef SCORES_BY_BYTES
            if (p == UNITS) UNROLL for (int i = 0; i < n_q * n_vectors; i++) t[i] = v_times_256(t[i]);
#endif
            UNROLL for (int h = 0; h < n_q; h++) {
                Vi x = v_set_4_bytes(q[h]->q + b * KV_BLOCK + 2 * p);
                UNROLL for (int v = 0; v < n_vectors; v++)
                    t[h * n_vectors + v] = v_dot_units(t[h * n_vectors + v], key[v], x);
            }
        }
        UNROLL for (int h = 0; h < n_q; h++) UNROLL for (int v = 0; v < n_vectors; v++) {
            int i = h * n_vectors + v;
            sum[i] = v_fma(v_load(keys->scale + at + v * LANES), v_from_int(t[i]), sum[i]);
        }
    }
    UNROLL for (int h = 0; h < n_q; h++) UNROLL for (int v = 0; v < n_vectors; v++) {
        Vf s = v_mul(sum[h * n_vectors + v], v_set(q[h]->scale * scale));
        float *out = scores[h] + at + v * LANES;
        if (n - v * LANES >= LANES) v_store(out, s);
        else v_store_n(out, n - v * LANES, s);
    }
}

INLINE void key_block_scores_all(int n_q, const RoundedQuery *const *q, int64_t n_blocks, const KeyBlock *keys,
                                 int64_t n, float scale, float *const *scores) {
    for (int64_t i = 0; i < n; i += KEY_VECTORS * LANES) {
        if (n <= LANES) key_block_scores_of(n_q, 1, q, n_blocks, keys, i, n - i, scale, scores);
        else key_block_scores_of(n_q, KEY_VECTORS, q, n_blocks, keys, i, n - i, scale, scores);
    }
}

static void key_block_scores(const RoundedQuery *const *q, int64_t n_q, int64_t head_dim, const KeyBlock *keys,
                             int64_t n, float scale, float *const *scores) {
    int64_t h = 0, n_blocks = score_blocks(head_dim);
    for (; h + QUERIES_AT_ONCE <= n_q; h += QUERIES_AT_ONCE)
        key_block_scores_all(QUERIES_AT_ONCE, q + h, n_blocks, keys, n, scale, scores + h);
    for (; h < n_q; h++) key_block_scores_all(1, q + h, n_blocks, keys, n, scale, scores + h);
}

const ScoreKernels SCORE_TABLE = {
    .name = SCORE_TABLE_NAME, .round_query = round_query, .pack = pack_key_blocks, .scores = key_block_scores};

/* attention_body.h - attention of many rows over the same keys, for every vector table; included once by each
 * kernels_*.c, after vector_body.h. Each score and each output has the operations of attn_scores and attn_mix, and so
 * the same bits.
 *
 * The problem. attn_scores reads a key as it is stored, with its elements side by side. So the 16 running sums of a
 * score are the lanes of a vector, and folding them takes two thirds as many instructions as the products do (head size
 * 64). It also converts each key again for every row.
 *
 * The idea. A block of KEYS_PACKED keys is converted once and transposed, so that a vector holds one element of LANES
 * keys:
 *
 *     packed[d][i] = K[slots[i]][d]     for running sum j: s_j[keys] = fma(q[j], packed[j][keys], 0), then j + 16, ...
 *
 * Now each running sum is a vector over the keys, and a fold is 15 plain additions for LANES scores.
 *
 * Folding goes 16 -> 8 -> 4 -> 2 -> 1 and adds s_j and s_(j+8) first. The running sums are therefore computed in pairs,
 * in the order (0, 8), (4, 12), (2, 10), ..., whose numbers are a counter with its bits reversed; whenever a bit of the
 * counter is set, the sum that waits on that level is added. So at most three sums wait instead of 16. ROWS_AT_ONCE
 * queries with one vector of keys, two sums each, make eight independent chains, and with the sums that wait they fit
 * into 32 registers: a second vector would save loads, but sums would be stored and loaded again. A single query has
 * as many chains by KEY_VECTORS vectors of keys. */

enum { ROWS_AT_ONCE = 4 };

/* Returns the number of keys that are computed when n are needed: one vector, or a multiple of KEY_VECTORS vectors. */
INLINE int64_t packed_width(int64_t n) {
    enum { WIDE = KEY_VECTORS * LANES };
    return n <= LANES ? LANES : (n + WIDE - 1) / WIDE * WIDE;
}

INLINE void pack_as(KvType type, int64_t head_dim, const Keys *k, float *out) {
    for (int64_t i = 0; i < packed_width(k->n); i += LANES) {
        const unsigned char *rows[LANES];
        for (int64_t l = 0; l < LANES; l++) rows[l] = key_row(k, i + l < k->n ? i + l : k->n - 1);
        for (int64_t d = 0; d < head_dim; d += LANES) {
            Vf a[LANES];
            UNROLL for (int l = 0; l < LANES; l++) a[l] = kv_load(type, rows[l], d, LANES);
            v_transpose(a);
            UNROLL for (int l = 0; l < LANES; l++) v_store(out + (d + l) * KEYS_PACKED + i, a[l]);
        }
    }
}

static void pack_keys(KvType type, int64_t head_dim, const void *k, size_t slot_bytes, const int32_t *slots, int64_t n,
                      float *out) {
    Keys keys = {k, slot_bytes, slots, n};
    if (type == KV_F16) pack_as(KV_F16, head_dim, &keys, out);
    else pack_as(KV_F32, head_dim, &keys, out);
}

INLINE void unpack_as(KvType type, int64_t head_dim, const Keys *k, float *out) {
    for (int64_t i = 0; i < k->n; i++)
        for (int64_t d = 0; d < head_dim; d += LANES)
            v_store(out + i * head_dim + d, kv_load(type, key_row(k, i), d, LANES));
}

static void unpack_values(KvType type, int64_t head_dim, const void *v, size_t slot_bytes, const int32_t *slots,
                          int64_t n, float *out) {
    Keys keys = {v, slot_bytes, slots, n};
    if (type == KV_F16) unpack_as(KV_F16, head_dim, &keys, out);
    else if (type == KV_Q8) unpack_as(KV_Q8, head_dim, &keys, out);
    else unpack_as(KV_F32, head_dim, &keys, out);
}

/* Computes the scores of n_q queries with n_vectors vectors of packed keys, of which the first n keys exist. */
INLINE void packed_scores_of(int n_q, int n_vectors, const float *const *q, int64_t head_dim, const float *keys,
                             int64_t n, float scale, float *const *scores, int64_t at) {
    enum { N = (int)ROWS_AT_ONCE > (int)KEY_VECTORS ? (int)ROWS_AT_ONCE : (int)KEY_VECTORS };
    static const uint8_t order[8][2] = {{0, 8}, {4, 12}, {2, 10}, {6, 14}, {1, 9}, {5, 13}, {3, 11}, {7, 15}};
    Vf waiting[3][N], sum[N], second[N];
    UNROLL for (int k = 0; k < 8; k++) {
        UNROLL for (int i = 0; i < n_q * n_vectors; i++) sum[i] = second[i] = v_zero();
        for (int64_t d = 0; d < head_dim; d += 16) UNROLL for (int j = 0; j < 2; j++) {
                int64_t element = d + order[k][j];
                Vf key[KEY_VECTORS], *to = j ? second : sum;
                UNROLL for (int v = 0; v < n_vectors; v++) key[v] = v_load(keys + element * KEYS_PACKED + v * LANES);
                UNROLL for (int h = 0; h < n_q; h++) {
                    Vf x = v_set(q[h][element]);
                    UNROLL for (int v = 0; v < n_vectors; v++)
                        to[h * n_vectors + v] = v_fma(x, key[v], to[h * n_vectors + v]);
                }
            }
        UNROLL for (int i = 0; i < n_q * n_vectors; i++) sum[i] = v_add(sum[i], second[i]);
        UNROLL for (int level = 0; level < 3; level++) {
            int below = (1 << level) - 1;
            if ((k & below) != below) continue;
            UNROLL for (int i = 0; i < n_q * n_vectors; i++) {
                if (k >> level & 1) sum[i] = v_add(waiting[level][i], sum[i]);
                else waiting[level][i] = sum[i];
            }
        }
    }
    UNROLL for (int h = 0; h < n_q; h++) UNROLL for (int v = 0; v < n_vectors; v++) {
        Vf s = v_mul(sum[h * n_vectors + v], v_set(scale));
        float *out = scores[h] + at + v * LANES;
        if (n - v * LANES >= LANES) v_store(out, s);
        else v_store_n(out, n - v * LANES, s);
    }
}

INLINE void packed_scores_all(int n_q, int n_vectors, const float *const *q, int64_t head_dim, const float *keys,
                              int64_t n_keys, float scale, float *const *scores) {
    for (int64_t i = 0; i < n_keys; i += n_vectors * LANES)
        packed_scores_of(n_q, n_vectors, q, head_dim, keys + i, n_keys - i, scale, scores, i);
}

static void packed_scores(const float *const *q, int64_t n_q, int64_t head_dim, const float *keys, int64_t n_keys,
                          float scale, float *const *scores) {
    int64_t h = 0;
    for (; h + ROWS_AT_ONCE <= n_q; h += ROWS_AT_ONCE)
        packed_scores_all(ROWS_AT_ONCE, 1, q + h, head_dim, keys, n_keys, scale, scores + h);
    for (; h < n_q; h++) {
        if (n_keys <= LANES) packed_scores_all(1, 1, q + h, head_dim, keys, n_keys, scale, scores + h);
        else packed_scores_all(1, KEY_VECTORS, q + h, head_dim, keys, n_keys, scale, scores + h);
    }
}

/* Adds n weighted values to n_q outputs, in the n_columns vectors from element d on. */
INLINE void mix_unpacked(int n_q, int n_columns, const float *const *w, int64_t head_dim, const float *v, int64_t n,
                         float *const *out, int64_t d) {
    Vf acc[ROWS_AT_ONCE * MIX_COLUMNS], value[MIX_COLUMNS];
    UNROLL for (int h = 0; h < n_q; h++) UNROLL for (int c = 0; c < n_columns; c++)
        acc[h * n_columns + c] = v_load(out[h] + d + c * LANES);
    for (int64_t i = 0; i < n; i++, v += head_dim) {
        UNROLL for (int c = 0; c < n_columns; c++) value[c] = v_load(v + d + c * LANES);
        UNROLL for (int h = 0; h < n_q; h++) {
            Vf x = v_set(w[h][i]);
            UNROLL for (int c = 0; c < n_columns; c++)
                acc[h * n_columns + c] = v_fma(x, value[c], acc[h * n_columns + c]);
        }
    }
    UNROLL for (int h = 0; h < n_q; h++) UNROLL for (int c = 0; c < n_columns; c++)
        v_store(out[h] + d + c * LANES, acc[h * n_columns + c]);
}

INLINE void mix_unpacked_all(int n_q, const float *const *w, int64_t head_dim, const float *v, int64_t n,
                             float *const *out) {
    int64_t d = 0;
    for (; d + MIX_COLUMNS * LANES <= head_dim; d += MIX_COLUMNS * LANES)
        mix_unpacked(n_q, MIX_COLUMNS, w, head_dim, v, n, out, d);
    for (; d < head_dim; d += LANES) mix_unpacked(n_q, 1, w, head_dim, v, n, out, d);
}

static void mix_values(const float *const *w, int64_t n_q, int64_t head_dim, const float *v, int64_t n_keys,
                       float *const *out) {
    int64_t h = 0;
    for (; h + ROWS_AT_ONCE <= n_q; h += ROWS_AT_ONCE)
        mix_unpacked_all(ROWS_AT_ONCE, w + h, head_dim, v, n_keys, out + h);
    for (; h < n_q; h++) mix_unpacked_all(1, w + h, head_dim, v, n_keys, out + h);
}

/* scores.c - the scores of scores.h in plain C, which is the specification for every other table, and the choice of
 * the table that belongs to a table of kernels. */
#include "compute/cpu/kernels/scores.h"

#include "gguf/tensor_type.h"
#include "compute/cpu/kernels/ref.h"

static void ref_round_query(const float *q, int64_t head_dim, RoundedQuery *out) {
    int64_t n = score_blocks(head_dim) * KV_BLOCK;
    float amax = 0;
    memset(out->q, 0, (size_t)n * sizeof *out->q);
    out->scale = NAN;
    if (!ref_is_finite(q, head_dim)) return;
    for (int64_t i = 0; i < head_dim; i++) amax = fabsf(q[i]) > amax ? fabsf(q[i]) : amax;
    float inverse = amax >= ACT_TINY ? SCORE_LEVELS / amax : 0.0f;
    for (int64_t i = 0; i < head_dim; i++) out->q[i] = (int16_t)lrintf(q[i] * inverse);
    out->scale = amax / SCORE_LEVELS;
}

static void ref_pack(int64_t head_dim, const void *k, size_t slot_bytes, const int32_t *slots, int64_t n,
                     KeyBlock *out) {
    for (int64_t i = 0; i < n; i++) {
        const unsigned char *block = (const unsigned char *)k + (size_t)slots[i] * slot_bytes;
        for (int64_t b = 0; b < score_blocks(head_dim); b++, block += KV_BLOCK_BYTES) {
            uint16_t scale;
            memcpy(&scale, block, sizeof scale);
            out[b].scale[i] = half_to_float(scale);
            for (int64_t d = 0; d < KV_BLOCK; d++)
                out[b].k[d][i] = (int16_t)((block[2 + d] ^ 0x80) - 0x80); /* signed */
        }
    }
}

static float score_of(const RoundedQuery *q, int64_t n_blocks, const KeyBlock *keys, int64_t i) {
    float s = 0;
    for (int64_t b = 0; b < n_blocks; b++) {
        int32_t t = 0;
        for (int64_t d = 0; d < KV_BLOCK; d++) t += q->q[b * KV_BLOCK + d] * keys[b].k[d][i];
        s = fmaf(keys[b].scale[i], (float)t, s);
    }
    return s;
}

static void ref_scores(const RoundedQuery *const *q, int64_t n_q, int64_t head_dim, const KeyBlock *keys, int64_t n,
                       float scale, float *const *scores) {
    for (int64_t h = 0; h < n_q; h++)
        for (int64_t i = 0; i < n; i++)
            scores[h][i] = score_of(q[h], score_blocks(head_dim), keys, i) * (q[h]->scale * scale);
}

const ScoreKernels score_kernels_ref = {
    .name = "ref", .round_query = ref_round_query, .pack = ref_pack, .scores = ref_scores};

const ScoreKernels *score_kernels_of(const Kernels *k) {
    static const struct {
        const char *name;
        const ScoreKernels *scores;
    } known[] = {
#if defined(__x86_64__)
        {"avx2", &score_kernels_avx2},
        {"avx-vnni", &score_kernels_avx_vnni},
        {"avx512", &score_kernels_avx512},
        {"avx512-bf16", &score_kernels_avx512},
        {"amx", &score_kernels_avx512},
#elif defined(__aarch64__)
        {"neon", &score_kernels_neon},
        {"neon-dot", &score_kernels_neon_dot},
        {"neon-i8mm", &score_kernels_neon_dot},
#endif
        {"ref", &score_kernels_ref},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(k->name, known[i].name) == 0) return known[i].scores;
    return &score_kernels_ref; /* k is a table that only tests have */
}

/* test_lattice.c - the types whose weights are points of a list: compares every point and every combination of signs
 * with the numbers that ggml reads (tests/golden/data/lattice.txt, by make_blocks.py), reads and writes blocks, and
 * compares the search for the nearest point with a search over all points. */
#include "testing.h"

#include "base/rng.h"
#include "gguf/tensor_type.h"
#include "gguf/codebook.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { ONE = 0x3c00 }; /* as a half */

static double uniform(uint64_t stream, uint64_t i) { return rng_uniform(71, RNG_TEST, stream, (uint32_t)i); }

/* FNV-1a of bytes. */
static uint64_t fnv(uint64_t hash, const void *p, size_t n) {
    const uint8_t *bytes = p;
    for (size_t i = 0; i < n; i++) hash = (hash ^ bytes[i]) * UINT64_C(0x100000001b3);
    return hash;
}

/* ---- the lists ----------------------------------------------------------------------------------------- */

/* Returns the first eight weights of a block, as floats. */
static uint64_t hash_first(TensorType type, const LatticeBlock *b, uint64_t hash) {
    uint8_t bytes[128];
    float x[LATTICE_N];
    lattice_write(lattice_of(type), b, bytes);
    blocks_dequantize(type, bytes, LATTICE_N, x);
    return fnv(hash, x, 8 * sizeof *x);
}

/* Puts each point at the beginning of a block whose scale is one and that is otherwise empty; then each combination of
 * signs of the first eight weights that the format has, or both shifts. */
static uint64_t hash_of_list(TensorType type) {
    const Lattice *l = lattice_of(type);
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (int p = 0; p < l->n_points; p++) {
        LatticeBlock b = {.d = ONE, .point = {(uint16_t)p}};
        hash = hash_first(type, &b, hash);
    }
    for (unsigned s = 0; s < (l->shift_n ? 2u : l->even_signs ? 128u : 256u); s++) {
        LatticeBlock b = {.d = ONE};
        memset(b.sign, l->shift_n ? (s ? 0xff : 0) : 0, sizeof b.sign);
        if (!l->shift_n) b.sign[0] = (uint8_t)s;
        hash = hash_first(type, &b, hash);
    }
    return hash;
}

static void every_point_equals_that_of_ggml(void **state) {
    (void)state;
    char name[16];
    uint64_t wanted;
    int n = 0;
    FILE *f = fopen("tests/golden/data/lattice.txt", "r");
    assert_non_null(f);
    for (; fscanf(f, "%15s %" SCNx64, name, &wanted) == 2; n++) {
        TensorType type;
        assert_true(tensor_type_from_name(name, &type) && lattice_of(type));
        uint64_t got = hash_of_list(type);
        if (got != wanted) fail_msg("%s: %016" PRIx64 ", not %016" PRIx64, name, got, wanted);
    }
    fclose(f);
    assert_int_equal(n, 7);
}

static void points_are_found_by_their_keys(void **state) {
    (void)state;
    for (int type = 0; type < TYPE_COUNT; type++) {
        const Lattice *l = lattice_of((TensorType)type);
        if (!l) continue;
        for (int p = 0; p < l->n_points; p++) assert_int_equal(lattice_find(l, l->points[p]), p);
        assert_int_equal(lattice_find(l, UINT32_MAX), l->n_points - 1);
    }
}

/* ---- blocks ---------------------------------------------------------------------------------------------- */

static void what_is_read_is_written(void **state) {
    (void)state;
    for (int type = 0; type < TYPE_COUNT; type++)
        for (uint64_t seed = 0; seed < 50 && lattice_of((TensorType)type); seed++) {
            uint8_t bytes[128], again[128];
            size_t n = tensor_type_info((TensorType)type)->block_bytes;
            LatticeBlock b;
            for (size_t i = 0; i < n; i++) bytes[i] = (uint8_t)(256 * uniform(seed, i));
            memset(again, 0xaa, sizeof again);
            lattice_read(lattice_of((TensorType)type), bytes, &b);
            lattice_write(lattice_of((TensorType)type), &b, again);
            assert_memory_equal(bytes, again, n);
            assert_int_equal(again[n], 0xaa);
        }
}

/* ---- the search ------------------------------------------------------------------------------------------ */

/* Returns the least error of weights [i, i + n) with these signs or this shift, over all points. */
static double least_error(const Lattice *l, const float *x, const float *w, int i, int n, float scale,
                          LatticeBlock *b) {
    double sum = 0;
    for (int at = i; at < i + n; at += l->dim) {
        double least = INFINITY;
        for (int p = 0; p < l->n_points; p++) {
            double error = 0;
            b->point[at / l->dim] = (uint16_t)p;
            for (int j = at; j < at + l->dim; j++) {
                double d = (double)x[j] - (double)scale * l->values[lattice_code(l, b, j)];
                error += (double)w[j] * d * d;
            }
            least = fmin(least, error);
        }
        sum += least;
    }
    return sum;
}

static double error_of(const Lattice *l, const float *x, const float *w, int i, float scale, const LatticeBlock *b) {
    double sum = 0;
    for (int j = i * l->sub; j < (i + 1) * l->sub; j++) {
        double d = (double)x[j] - (double)scale * l->values[lattice_code(l, b, j)];
        sum += (double)w[j] * d * d;
    }
    return sum;
}

static void make_weights(uint64_t seed, float *x, float *w) {
    for (int i = 0; i < LATTICE_N; i++) {
        double u = uniform(100 + seed, (uint64_t)i), v = uniform(200 + seed, (uint64_t)i);
        x[i] = (float)(sqrt(-2 * log(u)) * cos(2 * M_PI * v));
        w[i] = (float)uniform(300 + seed, (uint64_t)i) + 0.1f;
    }
}

static void the_nearest_points_are_found(void **state) {
    (void)state;
    for (int type = 0; type < TYPE_COUNT; type++)
        for (uint64_t seed = 0; seed < 4 && lattice_of((TensorType)type); seed++) {
            const Lattice *l = lattice_of((TensorType)type);
            float x[LATTICE_N], w[LATTICE_N];
            LatticeBlock b, other;
            make_weights(seed, x, w);
            lattice_choose_signs(l, x, w, &b);
            other = b;
            for (int i = 0; i < LATTICE_N / l->sub; i++) {
                float scale = (0.5f + (float)(seed * 4 + (uint64_t)i) / 16) * 2 /
                              (float)l->values[l->bits == 2 ? 2 : 7];
                double got = lattice_choose_points(l, x, w, i, scale, &b), wanted = 0;
                int n = l->shift_n ? l->shift_n : l->sub;
                for (int at = i * l->sub; at < (i + 1) * l->sub; at += n) {
                    double up = least_error(l, x, w, at, n, scale, &other);
                    if (l->shift_n) {
                        memset(other.sign + at / 8, 0xff, (size_t)n / 8);
                        up = fmin(up, least_error(l, x, w, at, n, scale, &other));
                        memset(other.sign + at / 8, 0, (size_t)n / 8);
                    }
                    wanted += up;
                }
                if (fabs(got - wanted) > 1e-4 * wanted ||
                    fabs(error_of(l, x, w, i, scale, &b) - wanted) > 1e-4 * wanted)
                    fail_msg("%s: %g, and %g by its points; possible are %g", tensor_type_info((TensorType)type)->name,
                             got, error_of(l, x, w, i, scale, &b), wanted);
            }
        }
}

/* An even number of each eight weights is negative, and at most one weight has the wrong sign: the least important
 * one. */
static void signs_are_even_where_they_must_be(void **state) {
    (void)state;
    for (int type = 0; type < TYPE_COUNT; type++) {
        const Lattice *l = lattice_of((TensorType)type);
        float x[LATTICE_N], w[LATTICE_N];
        LatticeBlock b;
        if (!l || l->shift_n) continue;
        make_weights(9, x, w);
        lattice_choose_signs(l, x, w, &b);
        for (int g = 0; g < LATTICE_N / 8; g++) {
            int n_wrong = 0;
            for (int i = 8 * g; i < 8 * g + 8; i++) {
                if ((b.sign[g] >> i % 8 & 1) == (x[i] < 0)) continue;
                n_wrong++;
                for (int j = 8 * g; j < 8 * g + 8; j++) assert_true(w[i] * fabsf(x[i]) <= w[j] * fabsf(x[j]));
            }
            assert_true(n_wrong <= l->even_signs);
            if (l->even_signs) assert_int_equal(__builtin_parity(b.sign[g]), 0);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_point_equals_that_of_ggml),   cmocka_unit_test(points_are_found_by_their_keys),
        cmocka_unit_test(what_is_read_is_written),           cmocka_unit_test(the_nearest_points_are_found),
        cmocka_unit_test(signs_are_even_where_they_must_be),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

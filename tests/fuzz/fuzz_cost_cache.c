/* fuzz_cost_cache.c - arbitrary bytes as a cost file: it is ignored, or it is a curve that can be used.
 *
 * If byte 0 of an input is even, the other bytes are the file; if it is odd, they are the file without its last line,
 * the hash, which is added here, because a fuzzer cannot guess it. */
#include "scratch_file.h"

#include "compute/cost.h"
#include "base/hash.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static const char key[] = "cpu Any; backend cpu; 1 threads";

static void use(CostCurve *c) {
    static const int32_t rows[] = {1, 2, 7, 32, 511, 4096};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        double seconds = cost_curve_at(c, rows[i]);
        fr_assert(isfinite(seconds) && seconds >= 0);
        cost_curve_observe(c, rows[i], 1e-3);
    }
    double seconds = cost_curve_at(c, 8);
    fr_assert(isfinite(seconds) && seconds >= 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
    char name[64];
    CostCurve c = {.n = -1};
    if (n == 0) return 0;
    bool is_hashed = bytes[0] % 2;
    uint8_t *file = malloc(n + 32);
    fr_assert(file);
    memcpy(file, bytes + 1, --n);
    if (is_hashed) n += (size_t)snprintf((char *)file + n, 32, "%016" PRIx64 "\n", hash64(file, n, 0));
    snprintf(name, sizeof name, "cost-%016" PRIx64, hash64(key, strlen(key), 0));
    (void)scratch_file(name, file, n);
    if (cost_cache_load(scratch_folder(), key, &c)) {
        fr_assert(c.n >= 1 && c.n <= COST_CURVE_MAX && c.rows[0] == 1);
        use(&c);
    } else fr_assert(c.n == -1);
    free(file);
    return 0;
}

/* fuzz_config.c - any bytes as the config.json beside published weights: a key is an integer, or it is missing. */
#include "scratch_file.h"

#include "base/error.h"
#include "train/import.h"

#include <stdio.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
    static Published c;
    int64_t v = -7;
    (void)scratch_file("config.json", bytes, n);
    snprintf(c.folder, sizeof c.folder, "%s", scratch_folder());
    if (!published_config(&c, "num_attention_heads", &v)) fr_assert(v == -7);
    (void)published_config(&c, "num_key_value_heads", &v);
    return 0;
}

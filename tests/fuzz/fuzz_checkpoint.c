/* fuzz_checkpoint.c - any bytes as a checkpoint: it is refused and nothing of it is taken over, or all of it is. */
#include "memory_file.h"

#include "base/error.h"
#include "train/loop/checkpoint.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

enum { N_A = 3, N_B = 5, UNTOUCHED = 7 };

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
    float values[N_A + N_B];
    for (int i = 0; i < N_A + N_B; i++) values[i] = UNTOUCHED;
    const CheckpointArray arrays[] = {{"a", N_A, values}, {"b", N_B, values + N_A}};
    Checkpoint c = {.step = -1, .data = 12, .options = "seed=1 batch=8", .arrays = arrays, .n_arrays = 2};
    fr_error err = {0};
    if (checkpoint_read(memory_file(bytes, n), &c, &err) == FR_OK) {
        fr_assert(c.step >= 0);
        return 0;
    }
    fr_assert(c.step == -1 && err.code != FR_OK && err.message[0] != '\0');
    for (int i = 0; i < N_A + N_B; i++) fr_assert((int)values[i] == UNTOUCHED);
    return 0;
}

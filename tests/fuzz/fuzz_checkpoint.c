/* fuzz_checkpoint.c - any bytes as a checkpoint: it is refused and changes nothing, or all of it is read. */
#include "scratch_file.h"

#include "base/error.h"
#include "train/loop.h"

#include <stdbool.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

enum { N_A = 3, N_B = 5, UNTOUCHED = 7 };

static int read_checkpoint(const char *path) {
    float values[N_A + N_B];
    for (int i = 0; i < N_A + N_B; i++) values[i] = UNTOUCHED;
    const CheckpointArray arrays[] = {{"a", N_A, values, false}, {"b", N_B, values + N_A, false}};
    Checkpoint c =
        {.step = -1, .n_steps = 1000, .data = 12, .run_signature = "seed=1 batch=8", .arrays = arrays, .n_arrays = 2};
    fr_error err = {0};
    int status = checkpoint_read(path, &c, &err);
    if (!status) fr_assert(c.step >= 0);
    else {
        fr_assert(c.step == -1 && err.code != FR_OK && err.message[0] != '\0');
        for (int i = 0; i < N_A + N_B; i++) fr_assert((int)values[i] == UNTOUCHED);
    }
    return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
    static bool has_sound;
    if (!has_sound) { /* otherwise every input might be refused for the same reason */
        fr_assert(read_checkpoint(memory_file_of("tests/fuzz/corpus/checkpoint/sound", 0)) == FR_OK);
        has_sound = true;
    }
    (void)read_checkpoint(memory_file(bytes, n));
    return 0;
}

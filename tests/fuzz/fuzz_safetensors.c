/* fuzz_safetensors.c - any bytes given to the safetensors reader: they are refused, or all data of all tensors can be
 * read. */
#include "base/error.h"
#include "train/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
    SafeTensors *s;
    fr_error err = {0};
    if (safetensors_open_memory(&s, bytes, n, "fuzz", &err) != FR_OK) {
        fr_assert(!s && err.code != FR_OK && err.message[0] != '\0');
        return 0;
    }
    volatile unsigned sum = 0;
    size_t n_all = 0;
    for (int64_t i = 0; i < safetensors_count(s); i++) {
        const SafeTensor *t = safetensors_tensor(s, i);
        fr_assert(safetensors_find(s, t->name) == t && t->n_dims <= SAFETENSORS_MAX_DIMS);
        for (size_t k = 0; k < t->bytes; k++) sum += ((const uint8_t *)t->data)[k];
        n_all += t->bytes;
    }
    (void)sum;
    fr_assert(n_all < n);
    safetensors_close(s);
    return 0;
}

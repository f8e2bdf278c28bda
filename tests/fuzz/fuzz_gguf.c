/* fuzz_gguf.c - any bytes given to the GGUF reader: they are refused, or every accessor works on them. */
#include "gguf_build.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
    Gguf *g;
    fr_error err = {0};
    if (gguf_open_memory(&g, bytes, n, "fuzz", &err) == FR_OK) {
        volatile uint64_t sum = touch_everything(g);
        (void)sum;
    } else fr_assert(!g && err.code != FR_OK && err.message[0] != '\0');
    gguf_close(g);
    return 0;
}

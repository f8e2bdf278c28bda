/* fuzz_lines.c - any bytes as a text file, compressed with zstd or not: each line is returned whole, within its limit,
 * or the reader stops with an error. Bit 0 of byte 0: the file is zstd; bit 1: the whole file is one line. */
#include "scratch_file.h"

#include "train/records.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

enum { MAX_BYTES = 1 << 16 };

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
    LineReader *r;
    fr_error err = {0};
    const char *line;
    size_t n_line;
    int got;
    if (n == 0) return 0;
    bool is_zstd = bytes[0] & 1, whole = bytes[0] & 2;
    const char *path = scratch_file(is_zstd ? "lines.zst" : "lines", bytes + 1, n - 1);
    fr_assert(line_reader_open(&r, path, whole, MAX_BYTES, &err) == FR_OK);
    int64_t n_lines = 0;
    size_t n_all = 0;
    while ((got = line_reader_next(r, &line, &n_line, &err)) == 1) {
        fr_assert(n_line <= MAX_BYTES && line[n_line] == '\0' && (whole || !memchr(line, '\n', n_line)));
        fr_assert(line_reader_number(r) == ++n_lines && (!whole || n_lines == 1));
        n_all += n_line + 1;
    }
    fr_assert(got == 0 || (got < 0 && err.code != FR_OK && err.message[0] != '\0'));
    fr_assert(is_zstd || got < 0 || whole || (n_all >= n - 1 && n_all <= n));
    line_reader_close(r);
    return 0;
}

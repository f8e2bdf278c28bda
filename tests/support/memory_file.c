/* memory_file.c - one anonymous file (memfd), opened again through /proc: fast enough for a fuzzer. */
#include "memory_file.h"

#include "base/error.h"

#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

const char *memory_file(const uint8_t *bytes, size_t n) {
    static int fd = -1;
    static char path[32];
    if (fd >= 0) close(fd); /* a mapping of the last one keeps its bytes */
    fd = memfd_create("forerun-test", MFD_CLOEXEC);
    fr_assert(fd >= 0);
    for (size_t done = 0; done < n;) {
        ssize_t got = write(fd, bytes + done, n - done);
        fr_assert(got > 0);
        done += (size_t)got;
    }
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return path;
}

const char *memory_file_of(const char *path, size_t skip) {
    static uint8_t bytes[1 << 18];
    FILE *f = fopen(path, "rb");
    fr_assert(f);
    size_t n = fread(bytes, 1, sizeof bytes, f);
    fclose(f);
    fr_assert(n > skip && n < sizeof bytes);
    return memory_file(bytes + skip, n - skip);
}

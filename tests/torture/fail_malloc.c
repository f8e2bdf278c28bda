/* fail_malloc.c - a shared object for LD_PRELOAD that makes allocations fail on purpose.
 *
 *     FAIL_MALLOC_AT=K       the K-th allocation fails, counted from 1
 *     FAIL_MALLOC_MODE=      once: only that one; from: all from there on; random: each with the probability 1/K
 *     FAIL_MALLOC_SEED=S     the seed of random
 *     FAIL_MALLOC_COUNT=FILE the number of allocations is kept in FILE, 8 bytes; it exists and is that long
 *
 * Allocations are malloc, calloc, realloc, aligned_alloc, posix_memalign, memalign, anonymous mmap and pthread_create;
 * all that the C library allocates in their names (strdup, fopen, getline) is among them. Counting begins when the
 * program's libraries have been loaded and initialised. Children of the program are left alone. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t each);
extern void *__libc_realloc(void *p, size_t n);
extern void *__libc_memalign(size_t alignment, size_t n);

static enum { OFF, ONCE, FROM, RANDOM } mode;
static bool is_on;
static uint64_t at, seed;
static _Atomic uint64_t here, *count = &here;

__attribute__((constructor)) static void begin(void) {
    const char *k = getenv("FAIL_MALLOC_AT"), *m = getenv("FAIL_MALLOC_MODE"), *s = getenv("FAIL_MALLOC_SEED");
    const char *file = getenv("FAIL_MALLOC_COUNT");
    at = k ? strtoull(k, NULL, 10) : 0;
    seed = s ? strtoull(s, NULL, 10) : 0;
    mode = at == 0 ? OFF : m && strcmp(m, "from") == 0 ? FROM : m && strcmp(m, "random") == 0 ? RANDOM : ONCE;
    int fd = file ? open(file, O_RDWR | O_CLOEXEC) : -1;
    if (fd >= 0) {
        long p = syscall(SYS_mmap, NULL, sizeof *count, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (p != -1) count = (_Atomic uint64_t *)p;
        close(fd);
    }
    unsetenv("LD_PRELOAD");
    is_on = true;
}

static uint64_t mix(uint64_t z) {
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static bool fails(void) {
    if (!is_on) return false;
    uint64_t k = atomic_fetch_add(count, 1) + 1;
    bool failing = (mode == ONCE && k == at) || (mode == FROM && k >= at) ||
                   (mode == RANDOM && mix(k * 0x9e3779b97f4a7c15u + seed) % at == 0);
    if (failing) errno = ENOMEM;
    return failing;
}

__attribute__((visibility("default"))) void *malloc(size_t n) { return fails() ? NULL : __libc_malloc(n); }
__attribute__((visibility("default"))) void *calloc(size_t n, size_t each) {
    return fails() ? NULL : __libc_calloc(n, each);
}
__attribute__((visibility("default"))) void *realloc(void *p, size_t n) {
    return n > 0 && fails() ? NULL : __libc_realloc(p, n);
}
__attribute__((visibility("default"))) void *memalign(size_t alignment, size_t n) {
    return fails() ? NULL : __libc_memalign(alignment, n);
}
__attribute__((visibility("default"))) void *aligned_alloc(size_t alignment, size_t n) {
    return fails() ? NULL : __libc_memalign(alignment, n);
}
__attribute__((visibility("default"))) int posix_memalign(void **out, size_t alignment, size_t n) {
    if (fails()) return ENOMEM;
    *out = __libc_memalign(alignment, n);
    return *out || n == 0 ? 0 : ENOMEM;
}
__attribute__((visibility("default"))) void *mmap(void *addr, size_t n, int prot, int flags, int fd, off_t offset) {
    if ((flags & MAP_ANONYMOUS) && fails()) return MAP_FAILED;
    return (void *)syscall(SYS_mmap, addr, n, prot, flags, fd, offset);
}
__attribute__((visibility("default"))) int pthread_create(pthread_t *thread, const pthread_attr_t *attr,
                                                          void *(*start)(void *), void *arg) {
    static int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    void *found;
    if (fails()) return EAGAIN;
    if (!real) {
        found = dlsym(RTLD_NEXT, "pthread_create");
        memcpy(&real, &found, sizeof found);
    }
    return real(thread, attr, start, arg);
}

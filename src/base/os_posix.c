/* os_posix.c - os.h for macOS, FreeBSD, and systems that have POSIX and nothing else that is used here. `make
 * cross-systems` compiles it for macOS and FreeBSD; it has not been run there. */
#if !defined(__linux__)
#include "base/os.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#if defined(__APPLE__)
#include <sys/random.h>
#include <sys/sysctl.h>
#elif defined(__FreeBSD__)
#include <sys/auxv.h>
#include <sys/param.h>
#include <sys/cpuset.h>
#include <sys/sysctl.h>
#include <pthread_np.h>
#endif

/* ---- random numbers, memory, files --------------------------------------------------------------------------- */

bool os_random(void *out, size_t n, bool waits) {
    (void)waits; /* their kernels have random numbers before programs start */
    return getentropy(out, n) == 0;
}

void os_use_huge_pages(void *at, size_t n) { (void)at, (void)n; }

int os_nameless_file(void) {
    char path[] = "/tmp/forerun.XXXXXX";
    int fd = mkstemp(path);
    if (fd < 0) return -1;
    unlink(path);
    (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
    return fd;
}

#if defined(__APPLE__)
struct timespec os_modified(const struct stat *st) {
    return st->st_mtimespec;
}
struct timespec os_changed(const struct stat *st) {
    return st->st_ctimespec;
}
#else
struct timespec os_modified(const struct stat *st) {
    return st->st_mtim;
}
struct timespec os_changed(const struct stat *st) {
    return st->st_ctim;
}
#endif

/* ---- events: a pipe ------------------------------------------------------------------------------------------- */

bool os_event_open(OsEvent *e) {
    int ends[2];
    e->fd = e->writer = -1;
    if (pipe(ends) != 0) return false;
    for (int i = 0; i < 2; i++) {
        (void)fcntl(ends[i], F_SETFD, FD_CLOEXEC);
        (void)fcntl(ends[i], F_SETFL, O_NONBLOCK);
    }
    e->fd = ends[0], e->writer = ends[1];
    return true;
}

void os_event_close(OsEvent *e) {
    if (e->fd >= 0) close(e->fd), close(e->writer);
    e->fd = e->writer = -1;
}

void os_event_set(const OsEvent *e) { (void)!write(e->writer, "", 1); /* a full pipe is readable, too */ }

bool os_event_take(const OsEvent *e) {
    char bytes[64];
    bool was_set = false;
    while (read(e->fd, bytes, sizeof bytes) > 0) was_set = true;
    return was_set;
}

/* ---- processes and threads that wait for each other ------------------------------------------------------------ */

void os_word_wait(const atomic_uint *word, unsigned seen, int most_ms) {
    const struct timespec pause = {.tv_nsec = 200000};
    for (int i = 0; i < 5 * most_ms && atomic_load(word) == seen; i++) nanosleep(&pause, NULL);
}

void os_word_wake(atomic_uint *word) { (void)word; }

#if defined(__APPLE__)

void os_condition_open(pthread_cond_t *condition) { pthread_cond_init(condition, NULL); }

bool os_condition_wait(pthread_cond_t *condition, pthread_mutex_t *lock, int most_ms) {
    const struct timespec most = {.tv_sec = most_ms / 1000, .tv_nsec = most_ms % 1000 * 1000000L};
    return pthread_cond_timedwait_relative_np(condition, lock, &most) == 0;
}

#else

void os_condition_open(pthread_cond_t *condition) {
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(condition, &attr);
    pthread_condattr_destroy(&attr);
}

bool os_condition_wait(pthread_cond_t *condition, pthread_mutex_t *lock, int most_ms) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += most_ms / 1000, until.tv_nsec += most_ms % 1000 * 1000000L;
    if (until.tv_nsec >= 1000000000L) until.tv_sec++, until.tv_nsec -= 1000000000L;
    return pthread_cond_timedwait(condition, lock, &until) == 0;
}

#endif

void os_close_from(int fd) {
#if defined(__FreeBSD__)
    closefrom(fd);
#else
    for (int i = fd; i < getdtablesize(); i++) close(i);
#endif
}

/* ---- numbers of the system ------------------------------------------------------------------------------------ */

#if defined(__APPLE__) || defined(__FreeBSD__)
static int system_number(const char *name) {
    int value = 0;
    size_t n = sizeof value;
    return sysctlbyname(name, &value, &n, NULL, 0) == 0 && n == sizeof value ? value : 0;
}
#endif

/* ---- cores ---------------------------------------------------------------------------------------------------- */

#if defined(__FreeBSD__)

int os_cores(OsCore out[OS_MAX_CORES]) {
    cpuset_t set;
    int n = 0, n_threads = system_number("kern.smp.threads_per_core");
    if (n_threads < 1) n_threads = 1;
    CPU_ZERO(&set);
    (void)cpuset_getaffinity(CPU_LEVEL_WHICH, CPU_WHICH_TID, -1, sizeof set, &set);
    for (int cpu = 0; cpu < CPU_SETSIZE && n < OS_MAX_CORES; cpu++) {
        if (!CPU_ISSET(cpu, &set)) continue;
        OsCore core = {.cpu = cpu, .core = cpu / n_threads};
        if (n > 0 && out[n - 1].core == core.core) core.thread = out[n - 1].thread + 1;
        out[n++] = core;
    }
    return n;
}

bool os_pin(pthread_t thread, const OsCore *cores, int n) {
    cpuset_t set;
    CPU_ZERO(&set);
    for (int i = 0; i < n; i++) CPU_SET(cores[i].cpu, &set);
    return pthread_setaffinity_np(thread, sizeof set, &set) == 0;
}

#else

int os_cores(OsCore out[OS_MAX_CORES]) {
    long n = 0, n_physical = 0;
#if defined(__APPLE__)
    n = system_number("hw.perflevel0.logicalcpu"), n_physical = system_number("hw.perflevel0.physicalcpu");
    if (n < 1) n = system_number("hw.logicalcpu"), n_physical = system_number("hw.physicalcpu");
#endif
    if (n < 1) n = sysconf(_SC_NPROCESSORS_ONLN);
    if (n < 1) n = 1;
    if (n > OS_MAX_CORES) n = OS_MAX_CORES;
    if (n_physical < 1 || n_physical > n) n_physical = n;
    long n_threads = n / n_physical;
    for (int i = 0; i < (int)n; i++)
        out[i] = (OsCore){.cpu = i, .core = i / (int)n_threads, .thread = i % (int)n_threads};
    return (int)n;
}

bool os_pin(pthread_t thread, const OsCore *cores, int n) {
    (void)thread, (void)cores, (void)n;
    return false;
}

#endif

bool os_pin_process(const OsCore *cores, int n) {
    (void)cores, (void)n;
    return false;
}

void os_run_when_idle(void) { (void)!setpriority(PRIO_PROCESS, 0, 19); }

int os_n_runnable(void) { return 1; }

int os_cpu_quota(const char *root) {
    (void)root;
    return INT_MAX;
}

/* ---- the processor -------------------------------------------------------------------------------------------- */

void os_cpu_name(char *out, size_t size) {
    snprintf(out, size, "unknown");
#if defined(__APPLE__)
    size_t n = size;
    if (sysctlbyname("machdep.cpu.brand_string", out, &n, NULL, 0) != 0) snprintf(out, size, "unknown");
#elif defined(__FreeBSD__)
    size_t n = size;
    if (sysctlbyname("hw.model", out, &n, NULL, 0) != 0) snprintf(out, size, "unknown");
#endif
    out[size - 1] = '\0';
}

#if defined(__APPLE__) && defined(__aarch64__)
bool os_arm_has_dot(void) { return system_number("hw.optional.arm.FEAT_DotProd") == 1; }
bool os_arm_has_i8mm(void) { return system_number("hw.optional.arm.FEAT_I8MM") == 1; }
#elif defined(__FreeBSD__) && defined(__aarch64__)
static bool has_bit(int word, int bit) {
    unsigned long bits = 0;
    return elf_aux_info(word, &bits, (int)sizeof bits) == 0 && (bits >> bit & 1);
}
bool os_arm_has_dot(void) { return has_bit(AT_HWCAP, 20); }
bool os_arm_has_i8mm(void) { return has_bit(AT_HWCAP2, 13); }
#else
bool os_arm_has_dot(void) { return false; }
bool os_arm_has_i8mm(void) { return false; }
#endif

bool os_allow_tiles(void) { return false; }

/* ---- libraries ------------------------------------------------------------------------------------------------ */

#if defined(FORERUN_STATIC)

void *os_library_open(const char *name, int version) {
    (void)name, (void)version;
    return NULL;
}
const char *os_library_error(void) { return "this program is a static file, which loads no libraries"; }
int os_open_own_file(void) { return -1; }

#else

#if defined(__APPLE__)
#define LIBRARY_FILE "lib%s.%d.dylib"
#else
#define LIBRARY_FILE "lib%s.so.%d"
#endif

void *os_library_open(const char *name, int version) {
    char file[64];
    snprintf(file, sizeof file, LIBRARY_FILE, name, version);
    return dlopen(file, RTLD_NOW | RTLD_LOCAL);
}
const char *os_library_error(void) { return dlerror(); }

int os_open_own_file(void) {
    Dl_info self;
    return dladdr((void *)(uintptr_t)os_open_own_file, &self) ? open(self.dli_fname, O_RDONLY | O_CLOEXEC) : -1;
}

#endif

#endif

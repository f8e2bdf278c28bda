/* os_linux.c - os.h for Linux. */
#if defined(__linux__)
#include "base/os.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- random numbers, memory, files --------------------------------------------------------------------------- */

bool os_random(void *out, size_t n, bool waits) {
    return getrandom(out, n, waits ? 0 : GRND_NONBLOCK) == (ssize_t)n; /* up to 256 bytes are never cut short */
}

void os_use_huge_pages(void *at, size_t n) { (void)madvise(at, n, MADV_HUGEPAGE); }

int os_nameless_file(void) { return memfd_create("forerun", MFD_CLOEXEC); }

struct timespec os_modified(const struct stat *st) {
    return st->st_mtim;
}
struct timespec os_changed(const struct stat *st) {
    return st->st_ctim;
}

/* ---- events --------------------------------------------------------------------------------------------------- */

bool os_event_open(OsEvent *e) {
    e->fd = e->writer = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    return e->fd >= 0;
}

void os_event_close(OsEvent *e) {
    if (e->fd >= 0) close(e->fd);
    e->fd = e->writer = -1;
}

void os_event_set(const OsEvent *e) {
    const uint64_t one = 1;
    (void)!write(e->writer, &one, sizeof one); /* it cannot fail before 2^64 - 1 writes */
}

bool os_event_take(const OsEvent *e) {
    uint64_t n;
    return read(e->fd, &n, sizeof n) > 0;
}

/* ---- processes and threads that wait for each other ------------------------------------------------------------ */

void os_word_wait(const atomic_uint *word, unsigned seen, int most_ms) {
    const struct timespec most = {.tv_sec = most_ms / 1000, .tv_nsec = most_ms % 1000 * 1000000L};
    syscall(SYS_futex, word, FUTEX_WAIT, seen, &most, NULL, 0);
}

void os_word_wake(atomic_uint *word) { syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0); }

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

void os_close_from(int fd) { syscall(SYS_close_range, (unsigned)fd, ~0U, 0); }

/* ---- cores ---------------------------------------------------------------------------------------------------- */

/* Reads at most size - 1 bytes of a file of the kernel; an empty string if there is none. It allocates nothing. */
static void read_text(const char *path, char *out, size_t size) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, out, size - 1);
    if (fd >= 0) close(fd);
    out[n > 0 ? n : 0] = '\0';
}

/* Reads the number at the beginning of such a file. */
static int read_number(const char *path, int otherwise) {
    char text[32];
    read_text(path, text, sizeof text);
    return text[0] ? atoi(text) : otherwise;
}

static int node_of(int cpu) {
    enum { MOST_NODES = 64 };
    char path[96];
    if (access("/sys/devices/system/node/node1", F_OK) != 0) return 0;
    for (int node = 1; node < MOST_NODES; node++) {
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/node%d", cpu, node);
        if (access(path, F_OK) == 0) return node;
    }
    return 0;
}

/* The physical core has the number of the first of its logical cores. */
static OsCore core_of(int cpu) {
    char path[96];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    return (OsCore){.cpu = cpu, .node = node_of(cpu), .core = read_number(path, cpu)};
}

static int compare_cores(const void *a, const void *b) {
    const OsCore *p = a, *q = b;
    return p->node != q->node ? p->node - q->node : p->core != q->core ? p->core - q->core : p->cpu - q->cpu;
}

int os_cores(OsCore out[OS_MAX_CORES]) {
    cpu_set_t set;
    int n = 0;
    if (sched_getaffinity(0, sizeof set, &set) != 0) CPU_ZERO(&set);
    for (int cpu = 0; cpu < CPU_SETSIZE && n < OS_MAX_CORES; cpu++)
        if (CPU_ISSET((size_t)cpu, &set)) out[n++] = core_of(cpu);
    qsort(out, (size_t)n, sizeof *out, compare_cores);
    for (int i = 1; i < n; i++) out[i].thread = out[i].core == out[i - 1].core ? out[i - 1].thread + 1 : 0;
    return n;
}

/* ---- quotas of control groups: "QUOTA PERIOD" in cpu.max, or each in a file of its own in version 1 ------------- */

enum { MAX_FOLDER = 1024 };

/* Returns the quota of one group. */
static int quota_of(const char *folder, bool is_version_1) {
    char path[MAX_FOLDER + 24], text[64], period_text[64];
    long long quota, period;
    snprintf(path, sizeof path, "%s/%s", folder, is_version_1 ? "cpu.cfs_quota_us" : "cpu.max");
    read_text(path, text, sizeof text);
    if (is_version_1) {
        snprintf(path, sizeof path, "%s/cpu.cfs_period_us", folder);
        read_text(path, period_text, sizeof period_text);
        if (sscanf(text, "%lld", &quota) != 1 || sscanf(period_text, "%lld", &period) != 1) return INT_MAX;
    } else if (sscanf(text, "%lld %lld", &quota, &period) != 2) return INT_MAX; /* "max" is no quota */
    if (quota <= 0 || period <= 0) return INT_MAX;
    long long n = quota / period;
    return n < 1 ? 1 : n > INT_MAX ? INT_MAX : (int)n;
}

int os_cpu_quota(const char *root) {
    char groups[4096], folder[MAX_FOLDER], *rest = groups;
    int least = INT_MAX;
    snprintf(folder, sizeof folder, "%s/proc/self/cgroup", root);
    read_text(folder, groups, sizeof groups);
    for (const char *line; (line = strsep(&rest, "\n")) != NULL;) {
        const char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group) continue;
        bool is_version_1 = strncmp(controllers, ":cpu:", 5) == 0 || strncmp(controllers, ":cpu,", 5) == 0;
        if (!is_version_1 && strncmp(controllers, "::", 2) != 0) continue;
        snprintf(folder, sizeof folder, "%s/sys/fs/cgroup%s%s", root, is_version_1 ? "/cpu" : "", group + 1);
        /* The group and all above it; in a container the group may be named as the host names it. */
        size_t top = strlen(root) + strlen("/sys/fs/cgroup");
        for (char *end = folder + strlen(folder); end >= folder + top; end = strrchr(folder, '/')) {
            *end = '\0';
            int n = quota_of(folder, is_version_1);
            least = n < least ? n : least;
        }
    }
    return least;
}

static cpu_set_t set_of(const OsCore *cores, int n) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int i = 0; i < n; i++) CPU_SET((size_t)cores[i].cpu, &set);
    return set;
}

bool os_pin(pthread_t thread, const OsCore *cores, int n) {
    const cpu_set_t set = set_of(cores, n);
    return pthread_setaffinity_np(thread, sizeof set, &set) == 0;
}

bool os_pin_process(const OsCore *cores, int n) {
    cpu_set_t set = set_of(cores, n);
    if (n == 0) memset(&set, 0xff, sizeof set); /* the kernel leaves out those that the process must not use */
    DIR *threads = opendir("/proc/self/task");
    if (!threads) return false;
    const struct dirent *entry;
    bool all = true;
    while ((entry = readdir(threads)) != NULL)
        if (entry->d_name[0] != '.') all &= sched_setaffinity((pid_t)atoi(entry->d_name), sizeof set, &set) == 0;
    closedir(threads);
    return all;
}

void os_run_when_idle(void) {
    const struct sched_param none = {0};
    if (sched_setscheduler(0, SCHED_IDLE, &none) != 0) (void)!setpriority(PRIO_PROCESS, 0, 19);
}

int os_n_runnable(void) {
    double load[3];
    int n = 1;
    FILE *f = fopen("/proc/loadavg", "r");
    if (!f) return 1;
    if (fscanf(f, "%lf %lf %lf %d/", &load[0], &load[1], &load[2], &n) != 4) n = 1;
    fclose(f);
    return n;
}

/* ---- the processor -------------------------------------------------------------------------------------------- */

void os_cpu_name(char *out, size_t size) {
    char line[256];
    FILE *f = fopen("/proc/cpuinfo", "r");
    snprintf(out, size, "unknown");
    for (bool found = false; f && !found && fgets(line, sizeof line, f);) {
        const char *value = strchr(line, ':');
        found = value && (strncmp(line, "model name", 10) == 0 || strncmp(line, "CPU part", 8) == 0);
        if (found) snprintf(out, size, "%.90s", value + 1 + strspn(value + 1, " \t"));
    }
    if (f) fclose(f);
    out[strcspn(out, "\n")] = '\0';
}

#if defined(__aarch64__)
bool os_arm_has_dot(void) { return getauxval(AT_HWCAP) >> 20 & 1; /* HWCAP_ASIMDDP */ }
bool os_arm_has_i8mm(void) { return getauxval(AT_HWCAP2) >> 13 & 1; /* HWCAP2_I8MM */ }
#else
bool os_arm_has_dot(void) { return false; }
bool os_arm_has_i8mm(void) { return false; }
#endif

/* Linux before 5.16 does not know the request, and a sandbox may refuse it. */
bool os_allow_tiles(void) {
#if defined(__x86_64__)
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
#else
    return false;
#endif
}

/* ---- libraries ------------------------------------------------------------------------------------------------ */

#if defined(FORERUN_STATIC)

void *os_library_open(const char *name, int version) {
    (void)name, (void)version;
    return NULL;
}
const char *os_library_error(void) { return "this program is a static file, which loads no libraries"; }
int os_open_own_file(void) { return open("/proc/self/exe", O_RDONLY | O_CLOEXEC); }

#else

void *os_library_open(const char *name, int version) {
    char file[64];
    snprintf(file, sizeof file, "lib%s.so.%d", name, version);
    return dlopen(file, RTLD_NOW | RTLD_LOCAL);
}
const char *os_library_error(void) { return dlerror(); }

/* The name by which a program was started may be relative or may have changed. */
int os_open_own_file(void) {
    Dl_info self, program;
    if (!dladdr((void *)(uintptr_t)os_open_own_file, &self)) return -1;
    bool is_program = dladdr((void *)getauxval(AT_PHDR), &program) && program.dli_fbase == self.dli_fbase;
    return open(is_program ? "/proc/self/exe" : self.dli_fname, O_RDONLY | O_CLOEXEC);
}

#endif

#endif

/* os.h - what the kernels of operating systems offer in different ways: random numbers, advice about memory, events,
 * times of files, cores, features of processors, and a sandbox.
 *
 * os_linux.c implements it for Linux, and os_posix.c for macOS, FreeBSD and other systems, which lack some of it: a
 * comment at the function says what it does there. os_sandbox.c has the sandbox of Linux. Nothing else in the library
 * and the program may depend on the system. */
#ifndef BASE_OS_H
#define BASE_OS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <time.h>

/* ---- random numbers, memory, files --------------------------------------------------------------------------- */

/* Fills `out` with random bytes of the kernel. In the first seconds after booting it waits for them or, without
 * `waits`, returns false. */
bool os_random(void *out, size_t n, bool waits);

/* Advises the kernel to use huge pages for a block of memory. Linux only; elsewhere it does nothing. */
void os_use_huge_pages(void *at, size_t n);

/* Opens a new file that has no name and is removed when it is closed; on Linux it is in memory. Returns its
 * descriptor, or -1. */
int os_nameless_file(void);

struct timespec os_modified(const struct stat *st); /* when the contents of a file were last changed */
struct timespec os_changed(const struct stat *st);  /* the same for its contents or its owner, mode and links */

/* ---- events: a flag for poll() that any thread and any signal handler can set --------------------------------- */

typedef struct OsEvent {
    int fd; /* is readable while the flag is set; -1: the event is closed */
    int writer;
} OsEvent;

bool os_event_open(OsEvent *e); /* false: errno tells why */
void os_event_close(OsEvent *e);
void os_event_set(const OsEvent *e);
bool os_event_take(const OsEvent *e); /* clears the flag, and returns whether it was set */

/* ---- processes and threads that wait for each other ------------------------------------------------------------ */

/* Sleeps while *word is `seen`, until os_word_wake or for most_ms milliseconds; it may also return early. The word may
 * be in memory that processes share. Systems other than Linux look at the word every fifth of a millisecond. */
void os_word_wait(const atomic_uint *word, unsigned seen, int most_ms);
void os_word_wake(atomic_uint *word); /* wakes all sleepers */

/* A condition of pthreads whose waits are measured by a clock that nobody can set. */
void os_condition_open(pthread_cond_t *condition);
/* Waits for the condition, at most so many milliseconds. Returns false when they have passed. */
bool os_condition_wait(pthread_cond_t *condition, pthread_mutex_t *lock, int most_ms);

/* Closes all descriptors from this one on. */
void os_close_from(int fd);

/* ---- cores ---------------------------------------------------------------------------------------------------- */

enum { OS_MAX_CORES = 1024 };

/* A logical core. */
typedef struct OsCore {
    int cpu;    /* the kernel's number of it */
    int node;   /* its NUMA node */
    int core;   /* the same number for logical cores of the same physical core */
    int thread; /* counts the logical cores of its physical core, from 0 */
} OsCore;

/* Lists the cores that the calling thread may use, those of a NUMA node and of a physical core together. Returns their
 * number. On macOS, cores that save energy are not in the list, unless there are no others. */
int os_cores(OsCore out[OS_MAX_CORES]);
/* Returns of how many cores the process may use the time, by the quotas of its control groups (as a container with
 * --cpus=2 has one), without a last part of a core, but at least 1; INT_MAX if there are none. root: the folder that
 * contains /proc and /sys, "" for the system itself. */
int os_cpu_quota(const char *root);
/* Lets a thread run on these cores only. Returns false where the system cannot do that, as on macOS. */
bool os_pin(pthread_t thread, const OsCore *cores, int n);
/* The same for all threads of the process. n = 0: on all cores that the system lets it use. */
bool os_pin_process(const OsCore *cores, int n);
/* From now on this thread and those that it starts run when no other program needs the processor. Where the system
 * cannot do that, the process gets the lowest priority. */
void os_run_when_idle(void);
/* Returns the number of runnable threads on the whole machine, including this one; 1 if the system does not report
 * it. */
int os_n_runnable(void);

/* ---- the processor ---------------------------------------------------------------------------------------------- */

/* Writes the name of the processor; "unknown" where the system does not report it. */
void os_cpu_name(char *out, size_t size);
/* Returns whether a 64-bit ARM processor has the instructions for dot products, and for products of matrices. */
bool os_arm_has_dot(void);
bool os_arm_has_i8mm(void);
/* Asks for the permission to use the tile registers of AMX, for all threads of the process. Returns false where the
 * system does not give it. */
bool os_allow_tiles(void);

/* ---- libraries that are loaded when they are needed -------------------------------------------------------------- */

/* Loads a library, such as "curl" of version 4. Returns NULL if it cannot be loaded, as in a static program, and then
 * os_library_error gives the reason. */
void *os_library_open(const char *name, int version);
const char *os_library_error(void);
/* Opens the file that this code was loaded from, the program or the shared library, for reading. -1: it cannot be
 * opened. */
int os_open_own_file(void);

/* ---- the sandbox. Linux only; elsewhere its functions do nothing and return 0 ------------------------------------ */

typedef struct OsSandbox {
    int rules; /* a descriptor; -1: the kernel does not restrict files */
} OsSandbox;

/* Prepares a sandbox in which the process can read the files that are allowed and those that it has open, compute, and
 * write to open files. These functions return 0 or an errno. */
int os_sandbox_begin(OsSandbox *s);
int os_sandbox_allow_reading(const OsSandbox *s, const char *path); /* a file that does not exist is skipped */
/* Enters it with all threads, for good. What the kernel does not support is not restricted. */
int os_sandbox_enter(OsSandbox *s);
/* Gives up a sandbox that has been prepared. */
void os_sandbox_cancel(OsSandbox *s);

/* ---- files in the program ---------------------------------------------------------------------------------------- */

/* Puts the bytes of a file between the constants `name` and name_end, with a zero after them. The assembler reads the
 * file while the source is built, and looks for it from the root of the project. On macOS the two labels are one atom,
 * which the linker does not tear apart. */
#if defined(__APPLE__)
#define OS_EMBED(name, path) \
    __asm__(".section __TEXT,__const\n_" #name ":\n.incbin \"" path "\"\n" \
            ".alt_entry _" #name "_end\n_" #name "_end:\n.byte 0\n.text\n"); \
    OS_EMBEDDED(name)
#else
#define OS_EMBED(name, path) \
    __asm__(".section .rodata\n.local " #name "\n" #name ":\n.incbin \"" path "\"\n" \
            ".local " #name "_end\n" #name "_end:\n.byte 0\n.text\n"); \
    OS_EMBEDDED(name)
#endif
#define OS_EMBEDDED(name) \
    extern const char name[] __attribute__((visibility("hidden"))), name##_end[] __attribute__((visibility("hidde" \
                                                                                                           "n")));

#endif

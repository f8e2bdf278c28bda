/* os.h - what the kernels of operating systems offer in different ways: random numbers, advice about memory, events,
 * times of files, cores, features of processors, and a sandbox.
 *
 * os_linux.c implements it for Linux, and os_posix.c for macOS, FreeBSD and other systems, which lack some of it: a
 * comment at the function says what it does there. os_sandbox.c has the sandbox of Linux. Nothing else in the library
 * and the program may depend on the system. */
#ifndef BASE_OS_H
#define BASE_OS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
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

/* ---- the sandbox. Linux only; elsewhere its functions do nothing and return 0 ------------------------------------- */

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

#endif

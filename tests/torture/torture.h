/* torture.h - arguments, folders, a kit of small sound files, child processes with limits, and the judgement of their
 * exits, for all torture programs.
 *
 * A torture program attacks `forerun` from the outside for a given time. Everything random follows from --seed, and a
 * fault is printed with the command that repeats it. Without arguments a program makes a hundred runs with one seed, as
 * a part of `make test`; `make torture` runs it for longer and with other seeds. */
#ifndef TORTURE_TORTURE_H
#define TORTURE_TORTURE_H

#include "base/mem.h"

#include <stdint.h>
#include <sys/types.h>

enum { TORTURE_PATH = 512, TORTURE_WORDS = 80, TORTURE_MAX_FAULTS = 100 };

/* ---- children (torture_child.c) ------------------------------------------------------------------------ */

typedef struct Child {
    const char *words[TORTURE_WORDS]; /* the program and its arguments, then NULL */
    const char *env[12];              /* further variables NAME=VALUE, then NULL */
    const char *input;                /* file on standard input; NULL: /dev/null */
    const char *output;               /* file for standard output, such as /dev/full; NULL: it is kept in `out` */
    double timeout_s;                 /* 0: 30 s */
    double kill_after_s;              /* kill -9 at this time; 0: never */
    int64_t memory_mib;               /* RLIMIT_AS; 0: no limit */
    int64_t file_bytes;               /* RLIMIT_FSIZE, and SIGXFSZ is ignored; -1: no limit */

    /* The result of a child. */
    Buf out, err;                        /* its output, at most 4 MiB each */
    int rc;                              /* exit status, if signal is 0 */
    int signal;                          /* the signal that ended it */
    bool timed_out, was_killed, flooded; /* flooded: it printed more than is kept */
    double seconds;
    int64_t peak_mib; /* resident */
} Child;

void child_init(Child *c);
void child_free(Child *c);
enum { SPACE_IN_WORD = '\x1f' };
/* Appends the words of a command line; words are separated by spaces, and there is no quoting: SPACE_IN_WORD becomes a
 * space of a word. The text is borrowed and cut in place. */
void child_words(Child *c, char *text);
/* Runs the child to its end. A program that cannot be started ends with status 127. */
void child_run(Child *c);
/* Returns the fault in the exit of a child, whatever its task was; NULL: there is none. Faults are a signal, a timeout,
 * an exit status other than 0, 1 and 2, a failure without an error message, and raw control bytes on standard error. */
const char *child_fault(const Child *c);
/* Returns whether the bytes contain control characters other than newline and tab, in ASCII or as UTF-8. */
bool has_control_bytes(const char *bytes, size_t n);
/* The command line for a shell. */
void child_print(const Child *c, Buf *out);

/* ---- one torture program (torture_rig.c) ----------------------------------------------------------------- */

typedef struct Torture {
    const char *name; /* "mutate" */
    double seconds;   /* the duration of the attack */
    uint64_t seed;
    uint64_t random;                                 /* state of torture_random */
    const char *only;                                /* only cases whose names contain this; NULL: all */
    int64_t memory_mib;                              /* limit of a child's address space */
    bool is_smoke;                                   /* no arguments were given */
    char program[TORTURE_PATH], tools[TORTURE_PATH]; /* forerun; the folder of make_model and fail_malloc.so */
    char folder[TORTURE_PATH], kit[TORTURE_PATH], out[TORTURE_PATH];
    double begin_s;
    int64_t n_runs, n_faults;
    char *seen[TORTURE_MAX_FAULTS]; /* faults that were reported already */
    int n_seen;
} Torture;

/* Parses the arguments, and makes the folders build/torture/NAME, .../kit and .../out. Ends the program if that is
 * impossible. */
void torture_begin(Torture *t, const char *name, int argc, char **argv);
/* Whether another run begins. After a SIGTERM none does, so that a program that is ended early reports what it
 * found. */
bool torture_goes_on(const Torture *t);
/* Counts a fault, and prints it with the command that repeats it unless the same case had the same fault before. `c` is
 * NULL if no child had it. Returns true the first time. */
bool torture_fault(Torture *t, const char *what_case, const char *fault, const Child *c);
/* Prints the counts in the format that run_tests.c reads, and returns the exit status. */
int torture_end(Torture *t);

uint64_t torture_random(Torture *t);
/* Uniform in 0 .. n-1; n >= 1. */
uint64_t torture_below(Torture *t, uint64_t n);

/* Replaces %k by the kit's folder, %o by the folder of outputs and %f by the folder of the program, with SPACE_IN_WORD
 * for the spaces of their names. */
void torture_expand(const Torture *t, const char *text, char *out, size_t size);
/* Child with the program as its first word and the environment of all runs: a cache, a home and a folder for temporary
 * files of its own, and one thread of OpenBLAS. `line` has the other words, expanded; it is cut in place. */
void torture_child(const Torture *t, Child *c, char *line);

/* Reads a file (false: there is none; free the bytes with buf_free), writes a whole file, and empties a folder. */
bool file_read(const char *path, Buf *out);
void file_write(const char *path, const void *bytes, size_t n);
void folder_empty(const char *path);
bool file_exists(const char *path);

/* Writes the sound files into t->kit (torture_kit.c). The time of the run begins after that. */
void torture_make_kit(Torture *t);

#endif

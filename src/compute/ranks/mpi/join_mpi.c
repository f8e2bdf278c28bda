/* join_mpi.c - a process joins the ranks that mpirun has started, and notices if others do not.
 *
 * The problem. Each rank waits for all others in MPI_Init, and nothing of MPI can be used before it returns. A rank
 * that never starts, hangs or is stopped would let the others wait forever without a word; so would a network between
 * the machines that MPI has chosen and that carries nothing.
 *
 * The idea. A second thread joins, while the first one watches.
 *
 *   - The ranks of a machine count beats in memory that they share. One that has begun to beat and is silent for about
 *     a second has died or was stopped.
 *   - Ranks of other machines cannot be seen before MPI runs, and nobody knows how late they begin. So there is a limit
 *     for all of it. After that, the error names the ranks that are missing: while MPI starts, those that do not beat
 *     on this machine; then those that have not answered MPI's first message.
 *
 * Time is counted in sleeps, so that nobody is suspected after all processes were stopped and continued.
 *
 * Proof: tests/compute/test_join_mpi.c, tests/cli/test_ranks_mpi.c. */
#include "compute/ranks/transport.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { POLLS_PER_S = 1000, POLLS_PER_TICK = 100, SILENT_TICKS = 10, STALE_S = 60 };
enum { BEATS_BYTES = JOIN_RANKS * sizeof(atomic_uint) };

typedef struct Joining {
    int max_ranks, status;
    Transport *transport;
    fr_error err;
    JoinProgress progress;
    atomic_bool is_done;
    char name[128];     /* of the shared memory */
    atomic_uint *beats; /* [JOIN_RANKS] 0: the rank has not begun, or has joined; NULL: nothing is watched */
    int rank, n_ranks;  /* as the launcher says; n_ranks 0: it does not */
} Joining;

int join_refuse(fr_error *err, fr_code code, const char *format, ...) {
    va_list args;
    va_start(args, format);
    if (err) {
        err->code = code;
        vsnprintf(err->message, sizeof err->message, format, args);
    }
    va_end(args);
    return code;
}

const char *join_environment(const char *first, const char *second) {
    const char *value = getenv(first);
    return value ? value : getenv(second);
}

/* ---- beats on this machine ------------------------------------------------------------------------------------ */

/* Opens a small file of shared memory. One that is older than STALE_S is left from a job that was killed. */
static int open_memory(const char *name) {
    for (int i = 0; i < 2; i++) {
        struct stat st;
        int fd = shm_open(name, O_RDWR | O_CREAT, 0600);
        if (fd < 0) return -1;
        bool is_own = fstat(fd, &st) == 0 && st.st_uid == getuid();
        if (is_own && st.st_mtime + STALE_S >= time(NULL) && ftruncate(fd, BEATS_BYTES) == 0) return fd;
        close(fd);
        if (!is_own) return -1;
        shm_unlink(name);
    }
    return -1;
}

/* Opens the shared memory, where mpirun of Open MPI or srun --mpi=pmix has started this process. */
static void open_beats(Joining *j) {
    const char *job = getenv("PMIX_NAMESPACE"), *rank = join_environment("OMPI_COMM_WORLD_RANK", "PMIX_RANK"),
               *size = join_environment("OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS");
    if (!job || !rank || !size || strchr(job, '/')) return;
    int own = atoi(rank), n = atoi(size);
    if (n > JOIN_RANKS || own < 0 || own >= n) return;
    j->rank = own, j->n_ranks = n;
    snprintf(j->name, sizeof j->name, "/forerun-ranks-%u-%.80s", (unsigned)getuid(), job);
    int fd = open_memory(j->name);
    if (fd < 0) return;
    void *memory = mmap(NULL, BEATS_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (memory != MAP_FAILED) j->beats = memory;
}

/* When one rank has joined or given up, all have opened the memory, and its name is needed no more. */
static void close_beats(Joining *j) {
    if (!j->beats) return;
    atomic_store(&j->beats[j->rank], 0);
    shm_unlink(j->name);
    munmap(j->beats, BEATS_BYTES);
}

/* ---- who is missing ------------------------------------------------------------------------------------------- */

/* Writes "rank 1 of 4" or "ranks 0, 2-3 of 4"; at least one rank is to be named. */
static void name_ranks(const bool *which, int n_ranks, char *out, size_t size) {
    int n = 0;
    size_t at = 0;
    for (int i = 0; i < n_ranks; i++) n += which[i];
    at += (size_t)snprintf(out, size, n == 1 ? "rank" : "ranks");
    for (int i = 0; i < n_ranks; i++) {
        int last = i;
        if (!which[i]) continue;
        while (last + 1 < n_ranks && which[last + 1]) last++;
        at += (size_t)snprintf(out + at, size - at, last > i ? " %d-%d," : " %d,", i, last);
        i = last;
    }
    snprintf(out + at - 1, size - at + 1, " of %d", n_ranks); /* in the place of the last comma */
}

/* The error of a rank whose time is up. */
static int refuse_to_wait(const Joining *j, double limit_s, fr_error *err) {
    const JoinProgress *p = &j->progress;
    bool is_missing[JOIN_RANKS] = {false}, has_started = atomic_load(&p->n_ranks) > 0;
    char host[65] = "", own[32] = "the process", others[6 * JOIN_RANKS + 16] = "the other ranks";
    int n = has_started ? atomic_load(&p->n_ranks) : j->n_ranks, rank = has_started ? atomic_load(&p->rank) : j->rank,
        n_missing = 0;
    gethostname(host, sizeof host - 1);
    if (n) snprintf(own, sizeof own, "rank %d", rank);
    for (int i = 0; i < n; i++) {
        bool has_come = has_started ? atomic_load(&p->has_answered[i]) : !j->beats || atomic_load(&j->beats[i]) > 0;
        n_missing += is_missing[i] = i != rank && !has_come;
    }
    if (n_missing) name_ranks(is_missing, n, others, sizeof others);
    if (has_started)
        return join_refuse(err, FR_ERR_IO,
                           "after %.0f s, %s on %s has no message from %.200s: it was stopped, or MPI uses a network "
                           "that does not connect the machines; name the right one with mpirun --mca "
                           "btl_tcp_if_include 10.0.0.0/24",
                           limit_s, own, host, others);
    return join_refuse(
        err, FR_ERR_IO,
        "after %.0f s, %s on %s still waits for %.200s to start MPI: find out whether forerun runs there "
        "and was not stopped, and start all ranks again",
        limit_s, own, host, others);
}

/* Waits until the thread that joins is done. Returns an error if a rank is silent, or the time is up. */
static int watch(Joining *j, double limit_s, fr_error *err) {
    static const struct timespec pause = {.tv_nsec = 1000000000 / POLLS_PER_S};
    unsigned seen[JOIN_RANKS] = {0};
    int n_silent[JOIN_RANKS] = {0};
    for (int64_t poll = 0; !atomic_load(&j->is_done); poll++) {
        nanosleep(&pause, NULL);
        if ((double)poll > limit_s * POLLS_PER_S) return refuse_to_wait(j, limit_s, err);
        if (!j->beats || poll % POLLS_PER_TICK) continue;
        atomic_fetch_add(&j->beats[j->rank], 1);
        for (int i = 0; i < j->n_ranks; i++) {
            unsigned n = atomic_load(&j->beats[i]);
            n_silent[i] = i != j->rank && n > 0 && n == seen[i] ? n_silent[i] + 1 : 0;
            seen[i] = n;
            if (n_silent[i] == SILENT_TICKS)
                return join_refuse(err, FR_ERR_IO,
                                   "rank %d of %d has died or does not respond; the other ranks have ended, too", i,
                                   j->n_ranks);
        }
    }
    return 0;
}

/* ---- joining -------------------------------------------------------------------------------------------------- */

static void *join(void *joining) {
    Joining *j = joining;
    j->status = join_mpi(&j->transport, j->max_ranks, &j->progress, &j->err);
    atomic_store(&j->is_done, true);
    return NULL;
}

__attribute__((visibility("default"))) int transport_mpi_open(Transport **out, int max_ranks, double limit_s,
                                                              fr_error *err);

int transport_mpi_open(Transport **out, int max_ranks, double limit_s, fr_error *err) {
    pthread_t thread;
    *out = NULL;
    Joining *j = calloc(1, sizeof *j);
    if (!j) return join_refuse(err, FR_ERR_MEMORY, "out of memory: ranks cannot be joined");
    j->max_ranks = max_ranks < JOIN_RANKS ? max_ranks : JOIN_RANKS;
    open_beats(j);
    if (pthread_create(&thread, NULL, join, j) != 0) join(j);
    else {
        int status = watch(j, limit_s, err);
        if (status) { /* the thread waits in MPI until the process ends, and uses *j */
            if (j->beats) {
                atomic_store(&j->beats[j->rank], 0);
                shm_unlink(j->name);
            }
            return status;
        }
        pthread_join(thread, NULL);
    }
    close_beats(j);
    int status = j->status;
    if (status && err) *err = j->err;
    *out = j->transport;
    free(j);
    return status;
}

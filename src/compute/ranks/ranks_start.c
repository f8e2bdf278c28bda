/* ranks_start.c - the processes of ranks: how they begin and end.
 *
 * The ranks of one machine are forked before the model is loaded. A process that has been forked takes part in
 * exchanges and nothing else: it closes the files of its parent, prints nothing, and leaves an interrupt from the
 * terminal to rank 0. Ranks over MPI are processes that mpirun has started, and each of them opens the model. Each
 * rank, including rank 0, uses cores of its own from then on, so that its weights are in the memory of its NUMA
 * node. */
#include "compute/ranks/ranks.h"

#include "base/os.h"
#include "base/threads.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Seconds in which all processes of mpirun must have begun. They begin when the command line has been read, so this is
 * much more than the difference between two machines. */
#define JOIN_LIMIT_S 60

/* memory NULL: the ranks that mpirun has started. */
static int join(Ranks **out, CommMemory *memory, int rank, fr_error *err) {
    *out = NULL;
    Ranks *r = mem_calloc(1, sizeof *r);
    if (!r) return error_memory(err, "a rank", sizeof *r);
    int status = memory ? comm_open(&r->comm, memory, rank, err) : comm_open_mpi(&r->comm, JOIN_LIMIT_S, err);
    if (status) mem_free(r);
    else *out = r;
    return status;
}

int ranks_join(Ranks **out, CommMemory *memory, int rank, fr_error *err) { return join(out, memory, rank, err); }

int ranks_join_mpi(Ranks **out, fr_error *err) {
    int status = join(out, NULL, 0, err);
    if (!status) status = ranks_compare_programs(*out, err);
    if (status) {
        ranks_close(*out);
        *out = NULL;
        return status;
    }
    const Transport *t = comm_transport((*out)->comm);
    threads_take_share_of_machine(t->local_rank, t->n_local);
    return FR_OK;
}

/* Cuts what a forked process has inherited and must not use. */
static void leave_parent(void) {
    int null = open("/dev/null", O_RDWR);
    if (null >= 0) dup2(null, STDIN_FILENO), dup2(null, STDOUT_FILENO);
    os_close_from(STDERR_FILENO + 1);
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_DFL);
    signal(SIGHUP, SIG_DFL);
}

/* Forks the processes of the ranks after 0. Returns the rank of the calling one, or -1. */
static int fork_ranks(int n_ranks, pid_t processes[COMM_MAX_RANKS]) {
    for (int rank = 1; rank < n_ranks; rank++) {
        pid_t pid = fork();
        if (pid == 0) {
            leave_parent();
            return rank;
        }
        if (pid < 0) return -1;
        processes[rank] = pid;
    }
    return 0;
}

static void end_processes(const pid_t processes[COMM_MAX_RANKS]) {
    for (int i = 1; i < COMM_MAX_RANKS; i++) {
        if (!processes[i]) continue;
        kill(processes[i], SIGKILL);
        waitpid(processes[i], NULL, 0);
    }
}

int ranks_start(Ranks **out, int n_ranks, fr_error *err) {
    CommMemory *memory = NULL;
    pid_t processes[COMM_MAX_RANKS] = {0};
    *out = NULL;
    int status = comm_memory_open(&memory, n_ranks, err);
    if (status) return status;
    int rank = fork_ranks(n_ranks, processes);
    if (rank < 0) status = error_set(err, FR_ERR_MEMORY, "a process could not be started: %s", strerror(errno));
    if (!status) status = ranks_join(out, memory, rank, err);
    if (status) {
        if (rank > 0) _exit(1);
        end_processes(processes);
        comm_memory_close(memory);
        return status;
    }
    (*out)->memory = memory;
    threads_take_share(rank, n_ranks);
    if (rank == 0) memcpy((*out)->processes, processes, sizeof processes);
    return FR_OK;
}

int ranks_work_to_the_end(Ranks *r, const char *failure, fr_error *err) {
    char reason[sizeof((fr_error *)0)->message] = "";
    bool names_rank = failure && strncmp(failure, "rank ", 5) == 0; /* the ranks have agreed on it */
    if (!names_rank) snprintf(reason, sizeof reason, "rank %d: ", comm_rank(r->comm));
    if (failure) {
        strncat(reason, failure, sizeof reason - strlen(reason) - 1);
        comm_abort(r->comm, reason);
    } else ranks_work(r);
    if (comm_transport(r->comm)->is_own_process) {
        int status = comm_check(r->comm, err);
        return status ? status : (int)error_set(err, FR_ERR_CANCELLED, "rank 0 has closed the model");
    }
    comm_close(r->comm);
    _exit(failure ? 1 : 0);
}

/* Waits a little for a process to end by itself. */
static bool has_ended(pid_t process) {
    enum { TRIES = 200 };
    const struct timespec pause = {.tv_nsec = 5000000};
    for (int i = 0; i < TRIES; i++) {
        if (waitpid(process, NULL, WNOHANG) != 0) return true;
        nanosleep(&pause, NULL);
    }
    return false;
}

void ranks_close(Ranks *r) {
    if (!r) return;
    bool is_first = comm_rank(r->comm) == 0, has_failed = comm_check(r->comm, NULL) != FR_OK;
    if (is_first && r->weights) ranks_send(r, (Call){.kind = CALL_END, .context = -1});
    comm_close(r->comm);
    for (int i = 1; is_first && !has_failed && i < COMM_MAX_RANKS; i++)
        if (r->processes[i] && has_ended(r->processes[i])) r->processes[i] = 0;
    if (is_first) end_processes(r->processes);
    if (is_first && r->memory) threads_take_share(0, 1);
    comm_memory_close(r->memory);
    buf_free(&r->body);
    buf_free(&r->copies);
    mem_free(r);
}

/* mpi_rank.c - the processes that mpirun has started: rank 0 runs the command, and the others compute their parts of
 * the model, whatever the command is. In a training, all of them run the command (Command.runs_on_all_ranks).
 *
 * The launcher tells a process its rank and their number in the environment. A later rank reads no option but --ranks
 * and asks for no file: it gets all that it needs from rank 0. If rank 0 refuses its command line, or ends in another
 * way before it opens the model, the launcher ends the others. */
#include "cli/cli.h"
#include "cli/command.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Returns the value of the first variable that is set, or `otherwise`. */
static int number_of(const char *const *variables, int otherwise) {
    for (; *variables; variables++) {
        const char *value = getenv(*variables);
        if (value) return atoi(value);
    }
    return otherwise;
}

/* mpirun of Open MPI; launchers that speak PMI, such as srun --mpi=pmi2; srun --mpi=pmix. */
static int n_processes(void) {
    static const char *const variables[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", NULL}, *const of_slurm[] = {
                                                                                           "SLURM_STEP_NUM_TASKS",
                                                                                           NULL};
    return number_of(variables, getenv("PMIX_RANK") ? number_of(of_slurm, 1) : 1);
}

static int rank(void) {
    static const char *const variables[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", NULL};
    return number_of(variables, 0);
}

int mpi_rank_option(int n_ranks) {
    if (n_ranks) return n_ranks;
    return n_processes() > 1 ? FR_RANKS_MPI : 1;
}

/* Rank 0 does not open the model if the user asks for help, and does not use MPI if --ranks is given. */
bool mpi_rank_serves(int argc, char **argv) {
    static const char *const others[] = {"--help", "--help-all", "-h", "-?", "--ranks"};
    for (int i = 1; i < argc; i++)
        for (size_t k = 0; k < sizeof others / sizeof *others; k++)
            if (strcmp(argv[i], others[k]) == 0 || strncmp(argv[i], "--ranks=", strlen("--ranks=")) == 0) return false;
    return n_processes() > 1 && rank() > 0;
}

void mpi_rank_wait_for_first(void) {
    const struct timespec pause = {.tv_nsec = 300000000};
    nanosleep(&pause, NULL);
}

int mpi_rank_serve(void) {
    fr_error err;
    fr_model *model;
    const fr_model_options options = {.struct_size = sizeof options, .n_ranks = FR_RANKS_MPI};
    int status = fr_model_open(&model, "", &options, &err);
    if (status == FR_ERR_CANCELLED) return CLI_OK;
    mpi_rank_wait_for_first();
    return cli_fail(&err);
}

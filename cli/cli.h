/* cli.h - functions that the subcommands of `forerun` share: errors, files, the list of drafters, and the options of a
 * model. */
#ifndef CLI_CLI_H
#define CLI_CLI_H

#include "base/mem.h"
#include "base/threads.h"
#include "cli/command.h"
#include "compute/backend.h"

extern const Command command_run, command_chat, command_compare, command_bench, command_tokenize, command_inspect,
    command_logits, command_perf, command_pull, command_repack, command_replay, command_study, command_index,
    command_train, command_distill, command_import, command_quantize, command_imatrix, command_perplexity,
    command_convert, command_serve, command_embed;
/* `forerun train auto` (cli/train/cmd_train_auto.c), a method of command_train, and whether it runs: it continues and
 * measures by itself, so a training names no command for that. */
extern const Command command_train_auto;
extern bool train_is_automatic;
/* All of them in the order of `forerun --help`, then NULL. */
extern const Command *const cli_commands[];

/* Prints "forerun: <sentence>" on stderr and returns CLI_FAILED (CLI_USAGE for FR_ERR_ARGUMENT). */
int cli_fail(const fr_error *err);

/* Returns the ending of a noun after a number: "1 step", "2 steps". */
static inline const char *cli_plural(int64_t n) { return n == 1 ? "" : "s"; }

/* Returns whether output to fd may be coloured: fd is a terminal with escape sequences (TERM), and NO_COLOR is not set
 * (https://no-color.org). */
bool cli_may_color(int fd);

/* Reads a whole text file ("-": standard input) of at most max_bytes into malloc'ed memory, followed by a '\0'. */
int cli_read_file(const char *path, size_t max_bytes, char **out, size_t *n, fr_error *err);

/* Returns the folder for files that may be deleted at any time: $XDG_CACHE_HOME/forerun, else ~/.cache/forerun. It is
 * created if needed; NULL: it cannot be created. The string lives as long as the program. */
const char *cli_cache_folder(void);

/* Returns the file for the packed weights of a model file ('forerun repack'); NULL: there is no place for it. The
 * string lives until the next call. */
const char *cli_packed_file(const char *model);
/* Prints a note on standard error why packed weights are not used; NULL or "": prints nothing. */
void cli_note_packed(const char *packed_error);

/* Appends the list of drafters with their options, for --help. without_target: only those that need neither the
 * target's logits nor a model. False: memory ran out. */
bool cli_list_drafters(Buf *out, bool without_target);
/* For Option.suggest: the i-th method of --draft, kernel table, or verification rule; NULL after the last. */
const char *cli_suggest_draft(int i);
const char *cli_suggest_kernels(int i);
const char *cli_suggest_rule(int i);

/* Parses "1,2,3" into a malloc'ed array of integers in [min, max]. */
int cli_parse_ints(const char *name, const char *text, int64_t min, int64_t max, int32_t **out, int64_t *n,
                   fr_error *err);

/* ---- the model of commands that work below the public API, such as `logits` and `perf` ------------------ */

typedef struct CliModel {
    const char *path, *backend, *kernels;
    ActPrecision activations;
    int n_threads;
    bool pin, is_packed_anew; /* is_packed_anew: packed weights in the cache are not used */
    KvType kv;
    Gguf *gguf;
    Model *model;
    Weights *weights;
    Device *device;
} CliModel;

/* The rows of these options; the number of threads by itself, because `forerun perf` takes several. Call
 * cli_model_defaults before they are parsed. */
extern const Option cli_model_options[], cli_model_threads[];
void cli_model_defaults(CliModel *m);
int cli_model_open(CliModel *m, fr_error *err);
void cli_model_close(CliModel *m);

/* `forerun perf --figures` (perf/perf_figures.c): measures the opened model at contexts 128 and 1024, for about one and
 * a half times `seconds` each, and prints a table, or JSON. */
int perf_figures(const CliModel *m, double seconds, bool json, fr_error *err);

/* `forerun perf --threads 1,2,4` (perf/perf_scaling.c): times the opened model with each of these numbers of threads,
 * for about `seconds` in all, and prints a table, or JSON; plot NULL: draws nothing. */
typedef struct PerfScaling {
    const int32_t *threads;
    int n_counts, n_context;
    double seconds;
    bool json;
    const char *plot;
} PerfScaling;
enum { PERF_MAX_COUNTS = 16 };
int perf_scaling(const CliModel *m, const PerfScaling *options, fr_error *err);

/* Rows of options that several commands have: S is the struct, and further members of the row may follow the field. */
#define CLI_ROW_THREADS(S, field, ...) \
    { \
        .key = "threads", .letter = 't', OPT_INT(S, field, 1, THREADS_MAX), .default_help = "one per core", \
        .help = "number of threads", __VA_ARGS__ \
    }
#define CLI_ROW_PIN(S, field) \
    { \
        .key = "pin", OPT_FLAG(S, field), \
        .help = "keep each thread on a core of its own; for a machine that runs nothing else" \
    }
#define CLI_ROW_RANKS(S, field) \
    { \
        .key = "ranks", OPT_INT(S, field, 1, 64), .word = "numa", .word_value = FR_RANKS_NUMA, \
        .default_help = "1, or the processes that mpirun has started", \
        .help = "number of processes that divide the model and its KV cache, so that each needs about 1/N of their " \
                "memory; each has --threads threads, by default all of its share of the cores; numa: one for each " \
                "NUMA node" \
    }
#define CLI_ROW_CTX(S, field) \
    { \
        .key = "ctx", .letter = 'c', OPT_INT(S, field, 1, 1 << 24), .default_help = "the model's own, at most 4096", \
        .help = "longest context, in tokens" \
    }
#define CLI_ROW_KV(S, field) \
    { \
        .key = "kv", OPT_CHOICE(S, field, "f16", "f32", "q8"), \
        .values = (const int32_t[]){FR_KV_F16, FR_KV_F32, FR_KV_Q8}, .default_value = "f16", \
        .help = "type of the KV cache; q8 takes half the memory of f16 and is less exact" \
    }
#define CLI_ROW_BACKEND(S, field) \
    { \
        .key = "backend", OPT_NAME(S, field, backend_names), .default_value = "cpu", \
        .help = "what runs the model; reference is plain C in double precision on one thread, and slow" \
    }
#define CLI_ROW_KERNELS(S, field) \
    { \
        .key = "kernels", OPT_TEXT(S, field), .metavar = "NAME", .default_value = "auto", \
        .suggest = cli_suggest_kernels, \
        .help = "kernel table: auto, ref; avx2, avx-vnni, avx512, avx512-bf16, amx; neon, neon-dot, neon-i8mm" \
    }
#define CLI_ROW_ACT(S, field, ...) \
    { \
        .key = "act", OPT_CHOICE(S, field, "q16", "q8"), \
        .help = "what the inputs of quantised weights are rounded to; q8 is faster with many rows and less exact", \
        __VA_ARGS__ \
    }

/* Ranks over MPI (mpi_rank.c): the process of rank 0 runs the command, and the others serve it. mpi_rank_option returns
 * fr_model_options.n_ranks for a value of --ranks, where 0 means that the option is missing. mpi_rank_serves returns
 * whether mpirun has started this process as a later rank of a command with these arguments, and mpi_rank_serve does
 * what rank 0 asks for and returns an exit status. A later rank calls mpi_rank_wait_for_first before it prints an
 * error: rank 0 reports the same one, and when it ends, the launcher ends this process. */
int mpi_rank_option(int n_ranks);
bool mpi_rank_serves(int argc, char **argv);
int mpi_rank_serve(void);
void mpi_rank_wait_for_first(void);

enum { TABLE_COLUMNS = 80 }; /* tables fit a terminal of this width */

/* Prints a name as the first column of a table row, `width` columns wide. A longer name, such as
 * "eagle:file=models/eagle.gguf", gets a line of its own, and the row continues below it. */
void table_name(const char *name, int width);

#endif

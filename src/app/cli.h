/* cli.h - what the subcommands of `forerun` share. */
#ifndef APP_CLI_H
#define APP_CLI_H

#include "base/mem.h"
#include "backend/backend.h"

#include <argp.h>

/* Exit statuses of the program. */
enum { CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2 };

/* A subcommand: argv[0] is "forerun NAME". Returns an exit status. */
typedef struct CliCommand {
    const char *name;
    const char *summary; /* one line for `forerun --help` */
    int (*run)(int argc, char **argv);
} CliCommand;

int cmd_tokenize(int argc, char **argv);
int cmd_inspect(int argc, char **argv);
int cmd_replay(int argc, char **argv);
int cmd_run(int argc, char **argv);
int cmd_compare(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_logits(int argc, char **argv);
int cmd_perf(int argc, char **argv);
int cmd_study(int argc, char **argv);
int cmd_index(int argc, char **argv);
int cmd_train(int argc, char **argv);
int cmd_distill(int argc, char **argv);
int cmd_import(int argc, char **argv);

/* Prints "forerun: <sentence>" on stderr and returns CLI_FAILED (CLI_USAGE for FR_ERR_ARGUMENT). */
int cli_fail(const fr_error *err);

/* The whole of a file ("-": standard input), malloc'ed, with a '\0' after it; at most max_bytes. */
int cli_read_file(const char *path, size_t max_bytes, char **out, size_t *n, fr_error *err);

/* The folder for what may be lost: $XDG_CACHE_HOME/forerun, or ~/.cache/forerun; made if it is not there. NULL where it cannot be. The
 * string lives as long as the program. */
const char *cli_cache_folder(void);

/* Appends what --help says of the drafters, with their options; without_target: those alone that need neither the target's
 * logits nor a model. False where memory ran out. */
bool cli_list_drafters(Buf *out, bool without_target);

#define CLI_ACT_HELP "inputs of quantised weights are rounded to: q16 (default), or q8: faster with many rows, less exact"

#define CLI_KV_HELP "type of the KV cache: f16 (default), f32, or q8: half the memory of f16, less exact"
#define CLI_BACKEND_HELP "what computes: cpu (default), or reference: plain C in double precision on one thread, slow"
#define CLI_PIN_HELP "keep each thread on a core of its own; for a machine that runs nothing else"

/* What `logits` and `perf` run on, below the public API: a child argp (-m, -t, --pin, --kv, --kernels, --act) whose input is a
 * CliModel that cli_model_defaults filled, then the model itself. */
typedef struct CliModel {
    const char *path, *backend, *kernels;
    ActPrecision activations;
    int n_threads;
    bool pin;
    KvType kv;
    Gguf *gguf;
    Model *model;
    Weights *weights;
    Device *device;
} CliModel;

extern const struct argp cli_model_argp;
void cli_model_defaults(CliModel *m);
int cli_model_open(CliModel *m, fr_error *err);
void cli_model_close(CliModel *m);

/* The whole number in [min, max] that an option was given; else argp ends the program with a sentence. `option` is as the
 * user writes it: "--limit". */
int64_t cli_parse_int(struct argp_state *state, const char *text, int64_t min, int64_t max, const char *option);
/* "1,2,3" into a malloc'ed array of numbers in [min, max]. */
int cli_parse_ints(const char *text, int64_t min, int64_t max, int32_t **out, int64_t *n, fr_error *err);

#endif

/* cli.h - what the subcommands of `forerun` share: errors, files, the list of drafters, and the options of a model. */
#ifndef CLI_CLI_H
#define CLI_CLI_H

#include "base/mem.h"
#include "cli/command.h"
#include "compute/backend.h"

extern const Command command_run, command_chat, command_compare, command_bench, command_tokenize, command_inspect,
    command_logits, command_perf, command_pull, command_repack, command_replay, command_study, command_index,
    command_train, command_distill, command_import, command_quantize, command_imatrix, command_perplexity,
    command_convert, command_serve, command_embed;
/* All of them in the order of `forerun --help`, then NULL. */
extern const Command *const cli_commands[];

/* Prints "forerun: <sentence>" on stderr and returns CLI_FAILED (CLI_USAGE for FR_ERR_ARGUMENT). */
int cli_fail(const fr_error *err);

/* What follows a noun after the number: "1 step", "2 steps". */
static inline const char *cli_plural(int64_t n) { return n == 1 ? "" : "s"; }

/* Whether what is written to fd may be coloured: it is a terminal with escape sequences (TERM), and NO_COLOR is not
 * set (https://no-color.org). */
bool cli_may_color(int fd);

/* Reads the whole of a text (base/input_file.h; "-": standard input) into malloc'ed memory, followed by a '\0'; at most max_bytes. */
int cli_read_file(const char *path, size_t max_bytes, char **out, size_t *n, fr_error *err);

/* The folder for what may be deleted at any time: $XDG_CACHE_HOME/forerun, else ~/.cache/forerun; created if needed.
 * NULL where it cannot be created. The string lives as long as the program. */
const char *cli_cache_folder(void);

/* Where the packed weights of a model file are kept ('forerun repack'); NULL: nowhere. The string lives until the next
 * call. */
const char *cli_packed_file(const char *model);
/* Tells the user why packed weights are not used; NULL: nothing to tell. */
void cli_note_packed(const char *packed_error);

/* Appends the drafters with their options for --help; without_target: only those that need neither the target's
 * logits nor a model. False: no memory. */
bool cli_list_drafters(Buf *out, bool without_target);
/* For rows of options: the i-th method of --draft, the i-th kernel table; NULL after the last. */
const char *cli_suggest_draft(int i);
const char *cli_suggest_kernels(int i);
const char *cli_suggest_rule(int i);

/* "1,2,3" into a malloc'ed array of integers in [min, max]. */
int cli_parse_ints(const char *name, const char *text, int64_t min, int64_t max, int32_t **out, int64_t *n,
                   fr_error *err);

/* ---- the model of `logits` and `perf`, which run below the public API (cli_model.c) -------------------- */

typedef struct CliModel {
    const char *path, *backend, *kernels;
    ActPrecision activations;
    int n_threads;
    bool pin, is_packed_anew; /* from the model's file, although there may be packed weights */
    KvType kv;
    Gguf *gguf;
    Model *model;
    Weights *weights;
    Device *device;
} CliModel;

/* The rows of the options above, for a CliModel that cli_model_defaults filled. */
extern const Option cli_model_options[];
void cli_model_defaults(CliModel *m);
int cli_model_open(CliModel *m, fr_error *err);
void cli_model_close(CliModel *m);

/* Help texts that `run` and `logits` share. */
#define CLI_HELP_THREADS "number of threads"
#define CLI_HELP_PIN "keep each thread on a core of its own; for a machine that runs nothing else"
#define CLI_HELP_KV "type of the KV cache; q8 takes half the memory of f16 and is less exact"
#define CLI_HELP_BACKEND "what runs the model; reference is plain C in double precision on one thread, and slow"
#define CLI_HELP_KERNELS "kernel table: auto, ref; avx2, avx-vnni, avx512, avx512-bf16, amx; neon, neon-dot, neon-i8mm"
#define CLI_HELP_ACT "what the inputs of quantised weights are rounded to; q8 is faster with many rows and less exact"

/* Rows of a table that fits a terminal of 80 columns. */

enum { TABLE_COLUMNS = 80 };

/* Prints a name as the first column of a row, `width` columns wide. A longer name gets a line of its own, and the row goes
 * on below it. */
void table_name(const char *name, int width);

#endif

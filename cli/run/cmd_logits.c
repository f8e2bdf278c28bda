/* cmd_logits.c - `forerun logits`: writes the raw logits at every position of given tokens. */
#include "cli/cli.h"

#include "compute/executor.h"
#include "base/files.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 64 };

typedef struct LogitsArgs {
    CliModel model;
    const char *tokens, *out;
} LogitsArgs;

static LogitsArgs args;

static const Option option_table[] = {
    {.key = "tokens",
     OPT_TEXT(LogitsArgs, tokens),
     .metavar = "1,2,3",
     .required = "token ids",
     .section = "Input and output",
     .help = "token ids, separated by commas; no BOS is added"},
    {.key = "output",
     .letter = 'o',
     OPT_OUTPUT(LogitsArgs, out),
     .may_be_stdout = true,
     .required = "output file",
     .help = "file for the logits; -: standard output"},
    {.key = NULL},
};

static void set_defaults(void) { cli_model_defaults(&args.model); }

/* Runs the tokens in chunks and writes their rows of logits. */
static int write_logits(Executor *e, int32_t n_vocab, const int32_t *tokens, int32_t n, FILE *out, const char *path,
                        fr_error *err) {
    Row rows[CHUNK];
    int32_t sequence, kept[CHUNK];
    int status = executor_sequence_open(e, &sequence, err);
    for (int32_t done = 0; done < n && !status; done += CHUNK) {
        int32_t n_rows = n - done < CHUNK ? n - done : CHUNK;
        for (int32_t i = 0; i < n_rows; i++) {
            rows[i] = (Row){.token = tokens[done + i], .sequence = sequence, .parent = i - 1, .want_logits = true};
            kept[i] = i;
        }
        status = executor_reserve(e, sequence, n_rows, err);
        if (!status) status = executor_forward(e, rows, n_rows, err);
        if (status) return status;
        for (int32_t i = 0; i < n_rows; i++)
            if (fwrite(executor_logits(e, i), sizeof(float), (size_t)n_vocab, out) != (size_t)n_vocab)
                return error_set(err, FR_ERR_IO, "%s: cannot be written: %s", path, strerror(errno));
        executor_commit(e, sequence, kept, n_rows);
    }
    return status;
}

/* The file is replaced once all rows are written; standard output ("-") gets each row as it is computed. */
static int write_output(const LogitsArgs *a, Executor *e, const int32_t *tokens, int32_t n, fr_error *err) {
    int32_t n_vocab = a->model.model->hparams.n_vocab;
    ReplaceFile out;
    if (strcmp(a->out, "-") == 0) return write_logits(e, n_vocab, tokens, n, stdout, "standard output", err);
    int status = replace_file_begin(&out, a->out, err);
    if (status) return status;
    return replace_file_end(&out, write_logits(e, n_vocab, tokens, n, out.file, a->out, err), err);
}

static int write_all(const LogitsArgs *a, fr_error *err) {
    const Model *model = a->model.model;
    Executor *executor = NULL;
    int32_t *tokens = NULL;
    int64_t n = 0;
    int status = cli_parse_ints("--tokens", a->tokens, 0, model->hparams.n_vocab - 1, &tokens, &n, err);
    if (!status) {
        ExecutorOptions options = {.kv_type = a->model.kv,
                                   .page_size = 16,
                                   .n_ctx = (int32_t)n,
                                   .max_sequences = 1,
                                   .max_rows = CHUNK};
        status = executor_open(&executor, a->model.device, a->model.weights, &options, err);
    }
    if (!status) status = write_output(a, executor, tokens, (int32_t)n, err);
    executor_close(executor);
    free(tokens);
    return status;
}

static int run(int argc, char **argv) {
    (void)argc, (void)argv;
    fr_error err;
    int status = cli_model_open(&args.model, &err);
    if (!status) status = write_all(&args, &err);
    cli_model_close(&args.model);
    return status ? cli_fail(&err) : CLI_OK;
}

const Command command_logits = {
    .name = "logits",
    .summary = "write the raw logits at every position of given tokens",
    .about =
        "Write the raw logits after each of the given tokens: float32, little endian, row-major [n_tokens][n_vocab].",
    .sets = (const OptionSet[]){{option_table, &args},
                                {cli_model_options, &args.model},
                                {cli_model_threads, &args.model},
                                {NULL, NULL}},
    .examples = "  forerun logits -m models/target.gguf --tokens 1,400,500 --kv f32 -o logits.f32\n",
    .defaults = set_defaults,
    .run = run,
};

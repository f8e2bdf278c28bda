/* cmd_logits.c - `forerun logits`: the raw logits of every position of given tokens. */
#include "app/cli.h"

#include "backend/executor.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_TOKENS = 256, CHUNK = 64 };

typedef struct LogitsArgs {
    CliModel model;
    const char *tokens, *out;
} LogitsArgs;

static const struct argp_option option_table[] = {
    {"tokens", KEY_TOKENS, "1,2,3", 0, "token ids (nothing is added to them)", 0},
    {"output", 'o', "FILE", 0, "where the logits go (-: standard output)", 0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state) {
    LogitsArgs *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &a->model; return 0;
    case KEY_TOKENS: a->tokens = arg; return 0;
    case 'o': a->out = arg; return 0;
    case ARGP_KEY_END:
        if (!a->tokens || !a->out) argp_error(state, "--tokens and an output file (-o) are needed");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* Runs the tokens in chunks and writes each row as it comes. */
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

static int run(const LogitsArgs *a, fr_error *err) {
    const Model *model = a->model.model;
    Executor *executor = NULL;
    int32_t *tokens = NULL;
    int64_t n = 0;
    FILE *out = NULL;
    int status = cli_parse_ints(a->tokens, 0, model->hparams.n_vocab - 1, &tokens, &n, err);
    if (!status) {
        ExecutorOptions options = {.kv_type = a->model.kv, .page_size = 16,
                                   .n_ctx = (int32_t)n, .max_sequences = 1, .max_rows = CHUNK};
        status = executor_open(&executor, a->model.device, a->model.weights, &options, err);
    }
    if (!status) {
        out = strcmp(a->out, "-") == 0 ? stdout : fopen(a->out, "wb");
        if (!out) status = error_set(err, FR_ERR_IO, "%s: cannot be opened: %s", a->out, strerror(errno));
    }
    if (!status) status = write_logits(executor, model->hparams.n_vocab, tokens, (int32_t)n, out, a->out, err);
    if (out && (out == stdout ? fflush(out) : fclose(out)) && !status)
        status = error_set(err, FR_ERR_IO, "%s: cannot be written: %s", a->out, strerror(errno));
    executor_close(executor);
    free(tokens);
    return status;
}

int cmd_logits(int argc, char **argv) {
    static const struct argp_child children[] = {{&cli_model_argp, 0, NULL, 0}, {0}};
    static const struct argp argp = {
        .options = option_table, .parser = parse, .children = children,
        .doc = "Write the raw logits after each of the given tokens: float32, little endian, row-major "
               "[n_tokens][n_vocab].\v"
               "Example:\n  forerun logits -m models/target.gguf --tokens 1,400,500 --kv f32 -o logits.f32"};
    LogitsArgs a = {0};
    cli_model_defaults(&a.model);
    argp_parse(&argp, argc, argv, 0, NULL, &a);
    fr_error err;
    int status = cli_model_open(&a.model, &err);
    if (!status) status = run(&a, &err);
    cli_model_close(&a.model);
    return status ? cli_fail(&err) : CLI_OK;
}

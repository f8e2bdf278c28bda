/* cmd_logits.c - `forerun logits`: the raw logits of every position of given tokens. */
#include "cli/cli.h"

#include "base/threads.h"
#include "model/executor.h"

#include <argp.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_TOKENS = 256, KEY_KV, KEY_KERNELS, CHUNK = 64 };

typedef struct LogitsArgs {
    const char *model, *tokens, *out, *kernels;
    KvType kv;
    int n_threads;
} LogitsArgs;

static const struct argp_option option_table[] = {
    {"model", 'm', "FILE", 0, "GGUF file of the model", 0},
    {"tokens", KEY_TOKENS, "1,2,3", 0, "token ids (nothing is added to them)", 0},
    {"output", 'o', "FILE", 0, "where the logits go (-: standard output)", 0},
    {"kv", KEY_KV, "TYPE", 0, "type of the KV cache: f16 (default) or f32", 0},
    {"threads", 't', "N", 0, "threads (default: all cores)", 0},
    {"kernels", KEY_KERNELS, "NAME", 0, "kernel table: auto (default), ref, avx2, avx512, avx512-bf16", 0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state) {
    LogitsArgs *a = state->input;
    switch (key) {
    case 'm': a->model = arg; return 0;
    case KEY_TOKENS: a->tokens = arg; return 0;
    case 'o': a->out = arg; return 0;
    case KEY_KERNELS: a->kernels = arg; return 0;
    case 't':
        a->n_threads = atoi(arg);
        if (a->n_threads < 1 || a->n_threads > THREADS_MAX) argp_error(state, "--threads: 1 to %d", THREADS_MAX);
        return 0;
    case KEY_KV:
        if (strcmp(arg, "f16") != 0 && strcmp(arg, "f32") != 0) argp_error(state, "--kv: '%s' is neither f16 nor f32", arg);
        a->kv = arg[1] == '3' ? KV_F32 : KV_F16;
        return 0;
    case ARGP_KEY_END:
        if (!a->model || !a->tokens || !a->out) argp_error(state, "a model (-m), --tokens and an output file (-o) are needed");
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

static int run(const LogitsArgs *a, const Gguf *g, fr_error *err) {
    Model *model = NULL;
    Executor *executor = NULL;
    int32_t *tokens = NULL;
    int64_t n = 0;
    FILE *out = NULL;
    ModelOptions options = {.kernels = kernels_select(a->kernels), .n_threads = a->n_threads};
    int status = options.kernels ? model_open(&model, g, &options, err)
                                 : error_set(err, FR_ERR_ARGUMENT, "there are no kernels '%s' for this CPU", a->kernels);
    if (!status) status = cli_parse_ints(a->tokens, 0, model->hparams.n_vocab - 1, &tokens, &n, err);
    if (!status) {
        ExecutorOptions eo = {.n_threads = a->n_threads, .kv_type = a->kv, .page_size = 16, .n_ctx = (int32_t)n,
                              .max_sequences = 1, .max_rows = CHUNK};
        status = executor_open(&executor, model, &eo, err);
    }
    if (!status) {
        out = strcmp(a->out, "-") == 0 ? stdout : fopen(a->out, "wb");
        if (!out) status = error_set(err, FR_ERR_IO, "%s: cannot be opened: %s", a->out, strerror(errno));
    }
    if (!status) status = write_logits(executor, model->hparams.n_vocab, tokens, (int32_t)n, out, a->out, err);
    if (out && (out == stdout ? fflush(out) : fclose(out)) && !status)
        status = error_set(err, FR_ERR_IO, "%s: cannot be written: %s", a->out, strerror(errno));
    executor_close(executor);
    model_close(model);
    free(tokens);
    return status;
}

int cmd_logits(int argc, char **argv) {
    static const struct argp argp = {
        .options = option_table, .parser = parse,
        .doc = "Write the raw logits after each of the given tokens: float32, little endian, row-major "
               "[n_tokens][n_vocab].\v"
               "Example:\n  forerun logits -m models/target.gguf --tokens 1,400,500 --kv f32 -o logits.f32"};
    LogitsArgs a = {.kv = KV_F16, .n_threads = threads_n_cores()};
    argp_parse(&argp, argc, argv, 0, NULL, &a);
    fr_error err;
    Gguf *g;
    int status = gguf_open(&g, a.model, &err);
    if (!status) {
        status = run(&a, g, &err);
        gguf_close(g);
    }
    return status ? cli_fail(&err) : CLI_OK;
}

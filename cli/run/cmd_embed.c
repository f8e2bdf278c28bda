/* cmd_embed.c - `forerun embed`: prints the mean of the model's final hidden states over each text, normalised to
 * length 1, like the server's /v1/embeddings. */
#include "cli/cli.h"

#include "base/threads.h"
#include "forerun.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_INPUT = 1 << 30 };

typedef struct EmbedArgs {
    const char *model, *text, *file;
    int n_threads;
} EmbedArgs;

static EmbedArgs args;

static const Option option_table[] = {
    {.key = "model", .letter = 'm', OPT_MODEL(EmbedArgs, model), .required = "model", .help = "GGUF file of the model"},
    {.key = "prompt", .letter = 'p', OPT_TEXT(EmbedArgs, text), .help = "text to embed"},
    {.key = "file",
     .letter = 'f',
     OPT_FILE(EmbedArgs, file),
     .help = "embed each line of FILE; - or no option: read standard input"},
    CLI_ROW_THREADS(EmbedArgs, n_threads),
    {.key = NULL},
};

static void set_defaults(void) { args = (EmbedArgs){.text = NULL}; }

typedef struct Embedder {
    fr_model *model;
    fr_engine *engine;
    float *embedding; /* [n_embd] */
    int32_t n_embd;
} Embedder;

static int open_embedder(Embedder *m, const EmbedArgs *a, fr_error *err) {
    const fr_model_options options = {.struct_size = sizeof options,
                                      .n_threads = a->n_threads,
                                      .packed_file = cli_packed_file(a->model)};
    int status = fr_model_open(&m->model, a->model, &options, err);
    if (status) return status;
    fr_model_info info = {.struct_size = sizeof info};
    fr_model_get_info(m->model, &info);
    cli_note_packed(info.packed_error);
    m->n_embd = info.n_embd;
    m->embedding = calloc((size_t)info.n_embd, sizeof *m->embedding);
    if (!m->embedding) return error_memory(err, "an embedding", (size_t)info.n_embd * sizeof *m->embedding);
    return fr_engine_open(&m->engine, m->model,
                          &(fr_engine_options){.struct_size = sizeof(fr_engine_options), .n_threads = a->n_threads},
                          err);
}

static void close_embedder(Embedder *m) {
    fr_engine_close(m->engine);
    fr_model_close(m->model);
    free(m->embedding);
}

static int read_prompt(Embedder *m, const int32_t *tokens, int64_t n, fr_error *err) {
    fr_request *r;
    const fr_request_options o = {.struct_size = sizeof o,
                                  .prompt = tokens,
                                  .n_prompt = n,
                                  .max_tokens = 1,
                                  .sampling = fr_sampling_default(),
                                  .want_embedding = 1};
    int status = fr_request_open(&r, m->engine, &o, err), n_left = 1;
    if (status) return status;
    while (n_left > 0) n_left = fr_engine_step(m->engine, err);
    if (n_left < 0) status = n_left;
    else if (fr_request_finish_reason(r) == FR_FINISH_ERROR) {
        *err = *fr_request_error(r);
        status = err->code;
    } else status = fr_request_embedding(r, m->embedding, err);
    fr_request_close(r);
    return status;
}

/* Prints a JSON array on one line. */
static void print_embedding(const Embedder *m) {
    for (int32_t i = 0; i < m->n_embd; i++) printf("%s%.9g", i ? ", " : "[", (double)m->embedding[i]);
    puts("]");
}

static int embed(Embedder *m, const char *text, size_t n, fr_error *err) {
    int32_t *tokens;
    int64_t n_tokens;
    int status = fr_tokenize(m->model, text, n, FR_TOKENIZE_PROMPT, &tokens, &n_tokens, err);
    if (status) return status;
    status = read_prompt(m, tokens, n_tokens, err);
    fr_free(tokens);
    if (!status) print_embedding(m);
    return status;
}

static int embed_lines(Embedder *m, const char *path, fr_error *err) {
    char *text;
    size_t n;
    int status = cli_read_file(path, MAX_INPUT, &text, &n, err);
    if (status) return status;
    for (size_t begin = 0, end; begin < n && !status; begin = end + 1) {
        const char *line_end = memchr(text + begin, '\n', n - begin);
        end = line_end ? (size_t)(line_end - text) : n;
        status = embed(m, text + begin, end - begin, err);
    }
    free(text);
    return status;
}

static int run(int argc, char **argv) {
    (void)argc, (void)argv;
    fr_error err = {0};
    Embedder m = {.model = NULL};
    int status = args.text && args.file
                     ? error_set(&err, FR_ERR_ARGUMENT, "-p and -f exclude each other: pass one of them")
                     : open_embedder(&m, &args, &err);
    if (!status && args.text) status = embed(&m, args.text, strlen(args.text), &err);
    else if (!status) status = embed_lines(&m, args.file ? args.file : "-", &err);
    close_embedder(&m);
    return status ? cli_fail(&err) : CLI_OK;
}

const Command command_embed = {
    .name = "embed",
    .summary = "print an embedding vector for each text",
    .about =
        "Print an embedding of each text as a JSON array on one line: the mean of the model's final hidden states over "
        "the tokens of the text, normalised to length 1. The dot product of two embeddings measures how similar their "
        "texts are. 'forerun serve' returns the same embeddings under /v1/embeddings. Models that were trained for "
        "embeddings are better at it than models that generate text.",
    .sets = (const OptionSet[]){{option_table, &args}, {NULL, NULL}},
    .examples = "  forerun embed -m model.gguf -p \"The dog ran home.\"\n"
                "  forerun embed -m model.gguf -f sentences.txt > vectors.jsonl\n",
    .defaults = set_defaults,
    .run = run,
};

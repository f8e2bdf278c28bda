/* cmd_index.c - `forerun index`: a corpus becomes the index that the drafter rest looks things up in. */
#include "app/cli.h"

#include "base/clock.h"
#include "base/progress.h"
#include "app/train/corpus_reader.h"
#include "lab/corpus_build.h"
#include "text/tokenizer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

typedef struct Options {
    const char *vocab, *output;
    char **files;
    int n_files;
    int64_t limit; /* tokens; -1: none */
} Options;

typedef struct Index {
    Options options;
    Gguf *vocab;
    Tokenizer *tokenizer;
    CorpusBuild build;
    Progress bar;
    int64_t n_before; /* bytes of the files before the one being read */
} Index;

/* ---- command line ------------------------------------------------------------------------------- */

static error_t parse_option(int key, char *arg, struct argp_state *state) {
    Options *o = state->input;
    switch (key) {
    case 'm': o->vocab = arg; break;
    case 'o': o->output = arg; break;
    case 'n': o->limit = cli_parse_int(state, arg, 1, INT64_MAX, "--limit"); break;
    case ARGP_KEY_ARGS:
        o->files = state->argv + state->next;
        o->n_files = state->argc - state->next;
        break;
    case ARGP_KEY_END:
        if (o->n_files == 0) argp_error(state, "which texts? name one CORPUS file or more");
        if (!o->vocab) argp_error(state, "--vocab MODEL.gguf is needed to turn the corpus into that model's tokens");
        if (!o->output) argp_error(state, "where to? -o FILE");
        break;
    default: return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static const struct argp_option argp_options[] = {
    {"vocab", 'm', "MODEL", 0, "GGUF file of the model that the index is for", 0},
    {"output", 'o', "FILE", 0, "the index; a file that is there is replaced when all is done", 0},
    {"limit", 'n', "N", 0, "stop behind the document that makes it N tokens", 0},
    {0},
};

static const char doc[] =
    "Make a corpus into an index for the drafter rest.\v"
    "CORPUS is a text file, which is one document, or NAME.jsonl with a JSON object a line: a string \"text\", or "
    "\"prompt\" and \"response\", or \"messages\" with a \"content\" each. Either may be compressed (.zst). The index "
    "holds the tokens of all documents, sorted by what follows each; it is for models of this vocabulary alone. It takes 6 "
    "bytes a token (7 from 65,536 tokens in the vocabulary on), and making it 10 to 15 bytes of memory.\n\n"
    "  forerun index --vocab model.gguf chats.jsonl.zst manual.txt -o chats.index\n"
    "  forerun run -m model.gguf -p \"How do I ...\" --draft rest:index=chats.index\n";

/* ---- reading ------------------------------------------------------------------------------------ */

static int take_piece(void *ctx, const char *text, size_t n, fr_error *err) {
    Index *x = ctx;
    int32_t *ids = NULL;
    int64_t n_ids = 0;
    int status = tokenizer_encode(x->tokenizer, text, n, 0, &ids, &n_ids, err);
    if (!status) status = corpus_build_add(&x->build, ids, n_ids, err);
    free(ids);
    return status;
}

static bool is_full(const Index *x) { return x->options.limit > 0 && x->build.n_tokens >= x->options.limit; }

enum { ENOUGH = 1 }; /* no fr_code: ends the reading without being an error */

static int take_end(void *ctx, int64_t n_read, fr_error *err) {
    Index *x = ctx;
    int status = corpus_build_end(&x->build, err);
    progress_update(&x->bar, x->n_before + n_read);
    if (!status && is_full(x)) status = ENOUGH;
    return status;
}

static int measure(const Options *o, int64_t *n_bytes, fr_error *err) {
    *n_bytes = 0;
    for (int i = 0; i < o->n_files; i++) {
        struct stat st;
        if (stat(o->files[i], &st) != 0)
            return error_set(err, FR_ERR_IO, "%s: cannot be opened: %s", o->files[i], strerror(errno));
        *n_bytes += st.st_size;
    }
    return FR_OK;
}

static int read_corpus(Index *x, fr_error *err) {
    int64_t n_bytes;
    int status = measure(&x->options, &n_bytes, err);
    if (status) return status;
    const CorpusSink sink = {.piece = take_piece, .end = take_end, .ctx = x};
    progress_begin(&x->bar, stderr, "tokenize", n_bytes);
    for (int i = 0; i < x->options.n_files && !status; i++) {
        struct stat st;
        status = corpus_read(x->options.files[i], &sink, err);
        if (stat(x->options.files[i], &st) == 0) x->n_before += st.st_size;
    }
    progress_end(&x->bar);
    return status == ENOUGH ? FR_OK : status;
}

/* ---- the command -------------------------------------------------------------------------------- */

static int run(Index *x, fr_error *err) {
    int status = gguf_open(&x->vocab, x->options.vocab, err);
    if (!status) status = tokenizer_open(&x->tokenizer, x->vocab, err);
    if (status) return status;
    x->build.n_vocab = tokenizer_n_vocab(x->tokenizer);
    double start_s = clock_s();
    status = read_corpus(x, err);
    double read_s = clock_s() - start_s;
    if (!status) status = corpus_build_write(&x->build, x->options.output, x->vocab, err);
    if (status) return status;
    double sort_s = clock_s() - start_s - read_s;
    struct stat st;
    printf("%s: %lld tokens in %lld documents, %.1f MB; tokenized in %.1f s, sorted and written in %.1f s\n",
           x->options.output, (long long)(x->build.n_tokens - x->build.n_documents), (long long)x->build.n_documents,
           stat(x->options.output, &st) == 0 ? (double)st.st_size / 1e6 : 0, read_s, sort_s);
    return FR_OK;
}

int cmd_index(int argc, char **argv) {
    static const struct argp parser = {
        .options = argp_options, .parser = parse_option, .args_doc = "CORPUS...", .doc = doc};
    Index x = {.options.limit = -1};
    fr_error err = {0};
    argp_err_exit_status = CLI_USAGE;
    argp_parse(&parser, argc, argv, 0, NULL, &x.options);
    int status = run(&x, &err);
    corpus_build_free(&x.build);
    tokenizer_close(x.tokenizer);
    gguf_close(x.vocab);
    return status ? cli_fail(&err) : CLI_OK;
}

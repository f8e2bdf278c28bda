/* cmd_index.c - `forerun index`: turns a corpus into an index in which the drafter rest looks up continuations. */
#include "base/system.h"
#include "base/progress.h"
#include "cli/cli.h"
#include "train/records.h"
#include "research/corpus_build.h"
#include "text/tokenizer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_FILES = 1024 };

typedef struct IndexArgs {
    const char *vocab, *output;
    const char *files[MAX_FILES];
    int n_files;
    int64_t limit;    /* in tokens; 0: none */
    int64_t max_text; /* in bytes; 0: the defaults of TextLimit */
} IndexArgs;

typedef struct Index {
    Gguf *vocab;
    Tokenizer *tokenizer;
    CorpusBuild build;
    Progress bar;
    int64_t n_before; /* total size of the files that have been read */
} Index;

static IndexArgs args;

static int parse_max_text(void *to, const char *text, fr_error *err) {
    return corpus_parse_size(text, &((IndexArgs *)to)->max_text, err);
}

static const Option option_table[] = {
    {.key = "CORPUS",
     OPT_FILES(IndexArgs, files, n_files),
     .is_argument = true,
     .required = "corpus",
     .help = "text files or JSON lines, which may be compressed (.zst)"},
    {.key = "vocab",
     .letter = 'm',
     OPT_MODEL(IndexArgs, vocab),
     .required = "vocabulary",
     .help = "GGUF file of the model that the index is for"},
    {.key = "output",
     .letter = 'o',
     OPT_OUTPUT(IndexArgs, output),
     .required = "output file",
     .help = "index to write; an existing file is replaced when the new one is complete"},
    {.key = "limit",
     .letter = 'n',
     OPT_INT(IndexArgs, limit, 1, INT64_MAX),
     .default_help = "all",
     .help = "stop after the document in which the corpus reaches N tokens"},
    {.key = "max-text",
     OPT_CUSTOM(parse_max_text),
     .metavar = "SIZE",
     .default_help = CORPUS_MAX_TEXT_DEFAULT,
     .help = CORPUS_MAX_TEXT_HELP},
    {.key = NULL},
};

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

static bool is_full(const Index *x) { return args.limit > 0 && x->build.n_tokens >= args.limit; }

enum { ENOUGH = 1 }; /* not an fr_code: stops reading without an error */

static int take_end(void *ctx, int64_t n_read, fr_error *err) {
    Index *x = ctx;
    int status = corpus_build_end(&x->build, err);
    progress_update(&x->bar, x->n_before + n_read);
    if (!status && is_full(x)) status = ENOUGH;
    return status;
}

static int sum_sizes(const IndexArgs *o, int64_t *n_bytes, fr_error *err) {
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
    int status = sum_sizes(&args, &n_bytes, err);
    if (status) return status;
    TextLimit limit = {.max_bytes = args.max_text};
    const CorpusSink sink = {.piece = take_piece, .end = take_end, .ctx = x};
    progress_begin(&x->bar, stderr, "tokenizing", n_bytes);
    for (int i = 0; i < args.n_files && !status; i++) {
        struct stat st;
        status = corpus_read(args.files[i], &limit, &sink, err);
        if (stat(args.files[i], &st) == 0) x->n_before += st.st_size;
    }
    progress_end(&x->bar);
    return status == ENOUGH ? FR_OK : status;
}

/* ---- the command -------------------------------------------------------------------------------- */

static int build_index(Index *x, fr_error *err) {
    int status = gguf_open(&x->vocab, args.vocab, err);
    if (!status) status = tokenizer_open(&x->tokenizer, x->vocab, err);
    if (status) return status;
    x->build.n_vocab = tokenizer_n_vocab(x->tokenizer);
    double start_s = clock_s();
    status = read_corpus(x, err);
    double read_s = clock_s() - start_s;
    if (!status) status = corpus_build_write(&x->build, args.output, x->vocab, err);
    if (status) return status;
    double sort_s = clock_s() - start_s - read_s;
    struct stat st;
    int64_t n_tokens = x->build.n_tokens - x->build.n_documents;
    printf("%s: %lld token%s in %lld document%s, %.1f MB; tokenized in %.1f s, sorted and written in %.1f s\n",
           args.output, (long long)n_tokens, cli_plural(n_tokens), (long long)x->build.n_documents,
           cli_plural(x->build.n_documents), stat(args.output, &st) == 0 ? (double)st.st_size / 1e6 : 0, read_s,
           sort_s);
    return FR_OK;
}

static int run(int argc, char **argv) {
    (void)argc, (void)argv;
    Index x = {.vocab = NULL};
    fr_error err = {0};
    int status = build_index(&x, &err);
    corpus_build_free(&x.build);
    tokenizer_close(x.tokenizer);
    gguf_close(x.vocab);
    return status ? cli_fail(&err) : CLI_OK;
}

const Command command_index = {
    .name = "index",
    .summary = "turn a corpus into an index for the drafter rest",
    .about = "Turn a corpus into an index, in which the drafter rest looks up continuations of the last tokens.",
    .sets = (const OptionSet[]){{option_table, &args}, {NULL, NULL}},
    .notes =
        "CORPUS is a text file, which is one document, or NAME.jsonl with one JSON object per line: a string "
        "\"text\", or \"prompt\" and \"response\", or \"messages\" with a \"content\" each. Both may be compressed "
        "(.zst). The index holds the tokens of all documents, sorted by the text that follows each; it is only "
        "for models with this vocabulary. It takes 6 bytes per token (7 for vocabularies of 65,536 tokens and "
        "more), and building it takes 10 to 15 bytes of memory per token.",
    .examples = "  forerun index --vocab model.gguf chats.jsonl.zst manual.txt -o chats.index\n"
                "  forerun run -m model.gguf -p \"How do I ...\" --draft rest:index=chats.index\n",
    .run = run,
};

/* cmd_serve.c - `forerun serve`: the options of the server. */
#include "server/serve.h"

#include "cli/command_files.h"
#include "cli/cli.h"
#include "base/threads.h"
#include "draft/drafter.h"

#include <string.h>

static ServeOptions args;

static const Option option_table[] = {
    {.key = "model",
     .letter = 'm',
     OPT_TEXTS(ServeOptions, models, n_models),
     .required = "model",
     .metavar = "[NAME=]FILE",
     .section = "Models",
     .help = "GGUF file of a model, and the name by which clients call it; several times for several models"},
    {.key = "draft",
     OPT_TEXTS(ServeOptions, drafts, n_drafts),
     .metavar = "SPEC",
     .default_help = "auto",
     .suggest = cli_suggest_draft,
     .help = "drafter, as method or method:key=value,...; all of them draft for each request, unless it names some of "
             "them"},
    {.key = "tree-budget",
     OPT_INT(ServeOptions, tree_budget, 1, FR_TREE_BUDGET_MAX),
     .word = "auto",
     .word_value = FR_TREE_BUDGET_AUTO,
     .default_value = "auto",
     .help = "at most N drafted tokens in a step of a request; auto: as many as are expected to save time"},

    {.key = "host",
     OPT_TEXT(ServeOptions, host),
     .section = "Network",
     .default_value = "127.0.0.1",
     .metavar = "ADDRESS",
     .help = "address to listen at; 0.0.0.0: all"},
    {.key = "port",
     OPT_INT(ServeOptions, port, 0, 65535),
     .default_value = "8080",
     .help = "port to listen at; 0: a free one, which is printed"},
    {.key = "tls-cert", OPT_FILE(ServeOptions, tls_cert), .help = "certificate (PEM), with its chain: serve HTTPS"},
    {.key = "tls-key", OPT_FILE(ServeOptions, tls_key), .help = "private key of the certificate (PEM)"},
    {.key = "api-key-file",
     OPT_FILE(ServeOptions, api_key_file),
     .help = "file with API keys, one a line, of which each request needs one; so does the variable FORERUN_API_KEY"},
    {.key = "cors-origin",
     OPT_TEXTS(ServeOptions, origins, n_origins),
     .metavar = "ORIGIN",
     .help = "let the pages of this origin (https://example.org) use the server; *: all"},

    {.key = "parallel",
     OPT_INT(ServeOptions, engine.max_requests, 1, 256),
     .section = "Limits",
     .default_value = "16",
     .help = "requests that are computed at once; further ones wait in a queue"},
    {.key = "queue",
     OPT_INT(ServeOptions, n_queued, 0, 4096),
     .default_value = "512",
     .help = "requests that may wait; more are answered with status 429"},
    {.key = "max-body",
     OPT_INT(ServeOptions, max_body_mib, 1, 1024),
     .default_value = "8",
     .metavar = "MIB",
     .help = "largest body of a request, in MiB"},
    {.key = "request-timeout",
     OPT_REAL(ServeOptions, request_timeout_s, 0.1, 86400),
     .default_value = "30",
     .metavar = "S",
     .help = "seconds in which a request must have arrived"},
    {.key = "max-connections",
     OPT_INT(ServeOptions, max_connections, 1, 100000),
     .default_value = "1024",
     .help = "connections at once; where more come, the one that has sent nothing for longest is closed"},

    {.key = "threads",
     .letter = 't',
     OPT_INT(ServeOptions, engine.n_threads, 1, THREADS_MAX),
     .section = "Machine",
     .default_help = "all cores",
     .help = CLI_HELP_THREADS},
    {.key = "ctx",
     .letter = 'c',
     OPT_INT(ServeOptions, engine.n_ctx, 1, 1 << 24),
     .default_help = "the model's own, at most 4096",
     .help = "longest context, in tokens"},
    {.key = "kv",
     OPT_CHOICE(ServeOptions, engine.kv_type, "f16", "f32", "q8"),
     .values = (const int32_t[]){FR_KV_F16, FR_KV_F32, FR_KV_Q8},
     .default_value = "f16",
     .help = CLI_HELP_KV},
    {.key = "kv-tokens",
     OPT_INT(ServeOptions, engine.kv_tokens, 1, INT32_MAX),
     .default_help = "4 contexts",
     .help = "tokens that the KV cache holds in total, at least --ctx; bounds its memory"},
    {.key = "backend",
     OPT_CHOICE(ServeOptions, backend, "cpu", "reference"),
     .default_value = "cpu",
     .help = CLI_HELP_BACKEND},
    {.key = "kernels",
     OPT_TEXT(ServeOptions, kernels),
     .metavar = "NAME",
     .default_value = "auto",
     .suggest = cli_suggest_kernels,
     .help = CLI_HELP_KERNELS},
    {.key = "act", OPT_CHOICE(ServeOptions, activations, "q16", "q8"), .default_help = "q16", .help = CLI_HELP_ACT},
    {.key = "quiet", OPT_FLAG(ServeOptions, is_quiet), .help = "do not log requests"},
    {.key = NULL},
};

static int check(fr_error *err) {
    for (int i = 0; i < args.n_drafts; i++) {
        fr_error why;
        int status = strcmp(args.drafts[i], "auto") == 0 ? FR_OK : drafter_check(args.drafts[i], &why);
        if (status) return error_set(err, (fr_code)status, "--draft: %s", why.message);
    }
    if (!args.tls_cert != !args.tls_key)
        return error_set(err, FR_ERR_ARGUMENT, "--tls-cert and --tls-key belong together: pass both");
    return FR_OK;
}

static bool files(CommandFiles *out) {
    bool fits = true;
    for (int i = 0; i < args.n_drafts && fits; i++) fits = command_files_add_drafter(out, "--draft", args.drafts[i]);
    return fits;
}

static int run(int argc, char **argv) {
    (void)argc, (void)argv;
    fr_error err = {0};
    int status = serve(&args, &err);
    return status ? cli_fail(&err) : CLI_OK;
}

static bool list(Buf *out) { return buf_puts(out, "Drafters (--draft SPEC):\n") && cli_list_drafters(out, false); }

const Command command_serve = {
    .name = "serve",
    .summary = "serve models over HTTP: the APIs of OpenAI and llama.cpp",
    .about = "Answer requests over HTTP, many at once, with the endpoints of the OpenAI API (/v1/chat/completions, "
             "/v1/completions, /v1/models) and of llama.cpp's server (/completion, /tokenize, /props, /slots, ...). "
             "docs/SERVER.md describes endpoints and fields. Each request gets the tokens that it would get alone. "
             "SIGTERM or Ctrl-C finishes the running requests; a second one ends them.",
    .sets = (const OptionSet[]){{option_table, &args}, {NULL, NULL}},
    .list = list,
    .examples = "  forerun serve -m model.gguf\n"
                "  forerun serve -m small=a.gguf -m large=b.gguf --draft ngram-trie\n"
                "  forerun serve -m model.gguf --host 0.0.0.0 --api-key-file keys.txt\n",
    .check = check,
    .files = files,
    .run = run,
};

/* serve.c - `forerun serve`: its options, and their checks. */
#include "server/serve.h"

#include "base/error.h"
#include "cli/cli.h"
#include "cli/command.h"
#include "draft/drafter.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

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
     .is_basic = true,
     .default_help = "auto",
     .suggest = cli_suggest_draft,
     .help =
         "drafter, as method or method:key=value,...; a+b: two of them; all draft for each request, unless it names "
         "some of them"},
    {.key = "tree-budget",
     OPT_INT(ServeOptions, tree_budget, 1, FR_TREE_BUDGET_MAX),
     .word = "auto",
     .word_value = FR_TREE_BUDGET_AUTO,
     .default_value = "auto",
     .help = "at most N drafted tokens in a step of a request; auto: as many as are expected to save time"},

    {.key = "host",
     OPT_TEXT(ServeOptions, host),
     .section = "Network",
     .is_basic = true,
     .default_value = "127.0.0.1",
     .metavar = "ADDRESS",
     .help = "address to listen on; 0.0.0.0: all"},
    {.key = "port",
     OPT_INT(ServeOptions, port, 0, 65535),
     .is_basic = true,
     .default_value = "8080",
     .help = "port to listen on; 0: a free one, which is printed"},
    {.key = "tls-cert", OPT_FILE(ServeOptions, tls_cert), .help = "certificate (PEM), with its chain: serve HTTPS"},
    {.key = "tls-key", OPT_FILE(ServeOptions, tls_key), .help = "private key of the certificate (PEM)"},
    {.key = "api-key-file",
     OPT_FILE(ServeOptions, api_key_file),
     .help = "file with API keys, one on each line; each request needs one. The variable FORERUN_API_KEY adds a key"},
    {.key = "cors-origin",
     OPT_TEXTS(ServeOptions, origins, n_origins),
     .metavar = "ORIGIN",
     .help = "let the pages of this origin (https://example.org) use the server; *: all"},
    {.key = "allowed-host",
     OPT_TEXTS(ServeOptions, hosts, n_hosts),
     .metavar = "NAME",
     .help = "let requests address the server by this name (mybox.local); *: any; localhost, numeric addresses and the "
             "name given to --host need none, and with TLS or API keys no name does"},

    {.key = "parallel",
     OPT_INT(ServeOptions, engine.max_requests, 1, SERVE_MAX_PARALLEL),
     .section = "Limits",
     .default_value = "16",
     .help = "requests that are computed at once; further ones wait in a queue"},
    {.key = "queue",
     OPT_INT(ServeOptions, n_queued, 0, 4096),
     .default_value = "512",
     .help = "requests that may wait; more are answered with status 429"},
    {.key = "unknown-fields",
     OPT_CHOICE(ServeOptions, unknown_fields, "refuse", "ignore"),
     .default_value = "refuse",
     .help = "what to do with a field of a request that forerun does not know, and with tools that the model's chat "
             "template has no place for: refuse the request, or ignore them and say so in the answer's warnings"},
    {.key = "max-gap",
     OPT_REAL(ServeOptions, max_gap_ms, 0, 1e6),
     .default_help = "twice a step",
     .metavar = "MS",
     .help = "milliseconds that may pass between two tokens of a stream while prompts of other requests are read in "
             "pieces, and that a step with drafts may take; a smaller gap makes prompts take longer"},
    {.key = "max-body",
     OPT_INT(ServeOptions, max_body_mib, 1, 1024),
     .default_value = "8",
     .metavar = "MIB",
     .help = "largest body of a request, in MiB"},
    {.key = "request-timeout",
     OPT_REAL(ServeOptions, request_timeout_s, 0.1, 86400),
     .default_value = "30",
     .metavar = "S",
     .help = "seconds within which a request must arrive"},
    {.key = "max-connections",
     OPT_INT(ServeOptions, max_connections, 1, 100000),
     .default_value = "1024",
     .help = "connections at once; one more closes the connection that has been silent longest"},

    CLI_ROW_THREADS(ServeOptions, engine.n_threads, .section = "Machine"),
    CLI_ROW_RANKS(ServeOptions, n_ranks),
    CLI_ROW_CTX(ServeOptions, engine.n_ctx),
    CLI_ROW_KV(ServeOptions, engine.kv_type),
    {.key = "kv-tokens",
     OPT_INT(ServeOptions, engine.kv_tokens, 1, INT32_MAX),
     .default_help = "4 contexts",
     .help = "tokens that the KV cache holds in total, at least --ctx; bounds its memory"},
    {.key = "slot-save-path",
     OPT_TEXT(ServeOptions, slot_folder),
     .metavar = "FOLDER",
     .help = "existing folder in which clients may save and restore slots (POST /slots/ID?action=save)"},
    {.key = "prefix-folder",
     OPT_TEXT(ServeOptions, prefix_folder),
     .metavar = "FOLDER",
     .help = "existing folder that keeps the prefix cache while the server is not running"},
    CLI_ROW_BACKEND(ServeOptions, backend),
    CLI_ROW_KERNELS(ServeOptions, kernels),
    CLI_ROW_ACT(ServeOptions, activations, .default_help = "q16"),
    {.key = "metrics-names",
     OPT_CHOICE(ServeOptions, metrics_names, "forerun", "vllm", "both"),
     .default_value = "forerun",
     .help = "names of the metrics that vLLM has, too: forerun_NAME, vllm:NAME or both"},
    {.key = "kv-events",
     OPT_TEXT(ServeOptions, events_endpoint),
     .metavar = "ENDPOINT",
     .help =
         "publish what the prefix cache holds to routers, at this endpoint of ZeroMQ (tcp://*:5557), in the form of "
         "vLLM; needs libzmq"},
    {.key = "kv-events-topic",
     OPT_TEXT(ServeOptions, events_topic),
     .default_value = "kv@{host}@{model}",
     .metavar = "TOPIC",
     .help = "topic of these messages; {host} and {model} are replaced by names"},
    {.key = "kv-events-replay",
     OPT_TEXT(ServeOptions, events_replay),
     .metavar = "ENDPOINT",
     .help = "let routers ask for messages that they have missed at this endpoint (tcp://*:5558); with one model only"},
    {.key = "quiet", OPT_FLAG(ServeOptions, is_quiet), .help = "do not log requests"},
    {.key = NULL},
};

static int check_folder(const char *option, const char *folder, fr_error *err) {
    struct stat st;
    if (!folder || (stat(folder, &st) == 0 && S_ISDIR(st.st_mode))) return FR_OK;
    return error_set(err, FR_ERR_ARGUMENT, "%s: there is no folder %.200s; create it first", option, folder);
}

/* The drafters of --draft, one by one. */
static char *drafters[SERVED_MAX_DRAFTS];
static int n_drafters;

static int add_drafter(void *user, const char *spec, fr_error *err) {
    (void)user;
    fr_error why;
    int status = strcmp(spec, "auto") == 0 ? FR_OK : drafter_check(spec, &why);
    if (status) return error_set(err, (fr_code)status, "--draft: %s", why.message);
    if (n_drafters == SERVED_MAX_DRAFTS)
        return error_set(err, FR_ERR_ARGUMENT, "--draft: names more than the %d drafters that a server may have",
                         SERVED_MAX_DRAFTS);
    if (!(drafters[n_drafters] = strdup(spec))) return error_memory(err, "the names of drafters", strlen(spec));
    n_drafters++;
    return FR_OK;
}

/* A request may choose among all drafters, so the parts of "a+b" become drafters like those of several options. */
static int split_drafts(fr_error *err) {
    int status = FR_OK;
    for (int i = 0; i < args.n_drafts && !status; i++)
        status = strcmp(args.drafts[i], "auto") == 0 ? add_drafter(NULL, "auto", err)
                                                     : drafter_each(args.drafts[i], add_drafter, NULL, err);
    for (int i = 0; i < n_drafters; i++) args.drafts[i] = drafters[i];
    args.n_drafts = n_drafters;
    return status;
}

static int check(fr_error *err) {
    int wrong = check_folder("--slot-save-path", args.slot_folder, err);
    if (!wrong) wrong = check_folder("--prefix-folder", args.prefix_folder, err);
    if (!wrong) wrong = split_drafts(err);
    if (wrong) return wrong;
    if (args.events_replay && (!args.events_endpoint || args.n_models > 1))
        return error_set(err, FR_ERR_ARGUMENT,
                         "--kv-events-replay belongs to --kv-events and to one model: pass --kv-events and one -m");
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
    .summary = "serve models over HTTP: the APIs of OpenAI, Anthropic, Ollama and llama.cpp",
    .about = "Answer requests over HTTP, many at once, with the endpoints of the APIs of OpenAI (/v1/chat/completions, "
             "/v1/responses, /v1/embeddings, ...), Anthropic (/v1/messages), Ollama (/api/chat, ...) and llama.cpp's "
             "server (/completion, /tokenize, /props, /slots, ...). "
             "docs/SERVER.md describes endpoints and fields. Each request gets the tokens that it would get by itself. "
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

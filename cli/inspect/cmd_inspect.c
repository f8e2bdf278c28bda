/* cmd_inspect.c - `forerun inspect FILE.gguf`: what is in a file, a model or a drafter, as text or JSON. */
#include "base/mem.h"
#include "base/options.h"
#include "cli/cli.h"
#include "cli/inspect/inspect.h"
#include "cli/sandbox.h"
#include "draft/drafter_file.h"
#include "text/chat.h"
#include "text/vocab.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct InspectArgs {
    const char *path, *target;
    bool json, tensors;
} InspectArgs;

static InspectArgs args;

static const Option option_table[] = {
    {.key = "FILE.gguf",
     OPT_MODEL(InspectArgs, path),
     .is_argument = true,
     .required = "file",
     .help = "GGUF file of a model or a learned drafter"},
    {.key = "target",
     OPT_FILE(InspectArgs, target),
     .help = "tell how many tokens of this model the file's vocabulary contains, if it drafts for it (sps)"},
    {.key = "json", .letter = 'j', OPT_FLAG(InspectArgs, json), .help = "print one JSON object"},
    {.key = "tensors",
     .letter = 't',
     OPT_FLAG(InspectArgs, tensors),
     .help = "list every tensor with its type and shape"},
    {.key = NULL},
};

/* ---- the summary ----------------------------------------------------------------------------- */

const char *inspect_type_name(GgufType type) {
    static const char *names[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                  "bool", "string", "array", "u64", "i64", "f64"};
    return names[type];
}

double inspect_shortest_decimal(float f) {
    char text[32];
    for (int digits = 6; digits < 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)f);
        if (strtof(text, NULL) == f) return strtod(text, NULL);
    }
    return (double)f;
}

/* Returns the value of "ARCHITECTURE.key", or -1. */
static int64_t shape_number(const Gguf *g, GgufString architecture, const char *key) {
    char name[160];
    int64_t v;
    if (architecture.n > 64) return -1;
    snprintf(name, sizeof name, "%.*s.%s", (int)architecture.n, architecture.data, key);
    return gguf_get_i64(g, name, &v) ? v : -1;
}

static void read_shape(const Gguf *g, Summary *s) {
    s->n_context = shape_number(g, s->architecture, "context_length");
    s->n_layers = shape_number(g, s->architecture, "block_count");
    s->width = shape_number(g, s->architecture, "embedding_length");
    s->feed_forward = shape_number(g, s->architecture, "feed_forward_length");
    s->n_heads = shape_number(g, s->architecture, "attention.head_count");
    s->n_kv_heads = shape_number(g, s->architecture, "attention.head_count_kv");
    s->head_dim = shape_number(g, s->architecture, "attention.key_length");
    if (s->head_dim < 0 && s->n_heads > 0 && s->width > 0) s->head_dim = s->width / s->n_heads;
}

const char *inspect_tensor_type(const GgufTensor *t) {
    return t->is_i32 ? "I32" : t->is_i64 ? "I64" : tensor_type_info(t->type)->name;
}

static void read_drafter(const Gguf *g, Summary *s) {
    const char *published = drafter_file_published_method(g);
    if (published) s->drafter.method = (GgufString){published, strlen(published)};
    gguf_get_string(g, DRAFTER_KEY("method"), &s->drafter.method);
    gguf_get_string(g, DRAFTER_KEY("target.name"), &s->drafter.target);
    gguf_get_string(g, DRAFTER_KEY("target.fingerprint"), &s->drafter.fingerprint);
    gguf_get_string(g, DRAFTER_KEY("training.command"), &s->drafter.command);
    gguf_get_string(g, DRAFTER_KEY("training.data"), &s->drafter.data);
    gguf_get_string(g, DRAFTER_KEY("training.precision"), &s->drafter.precision);
}

static void read_chat_template(const Gguf *g, Summary *s) {
    ChatTemplate t;
    if (!gguf_get_string(g, "tokenizer.chat_template", &s->chat_template)) return;
    s->chat_family = chat_template_name(s->chat_template.data, s->chat_template.n);
    if (chat_template_open(&t, s->chat_template.data, s->chat_template.n, NULL)) return;
    memcpy(s->chat_error, t.why, sizeof s->chat_error);
    chat_template_close(&t);
}

static Summary read_summary(const Gguf *g) {
    Summary s = {.name = {"", 0},
                 .architecture = {"", 0},
                 .vocab_model = {"", 0},
                 .vocab_pre = {"", 0},
                 .chat_template = {"", 0}};
    gguf_get_string(g, "general.name", &s.name);
    gguf_get_string(g, "general.architecture", &s.architecture);
    gguf_get_string(g, "tokenizer.ggml.model", &s.vocab_model);
    gguf_get_string(g, "tokenizer.ggml.pre", &s.vocab_pre);
    int64_t tokens = gguf_find_key(g, "tokenizer.ggml.tokens");
    s.n_vocab = tokens >= 0 ? gguf_kv_count(g, tokens) : -1;
    read_chat_template(g, &s);
    read_shape(g, &s);
    read_drafter(g, &s);
    for (int64_t i = 0; i < gguf_n_tensors(g); i++) {
        const GgufTensor *t = gguf_tensor(g, i);
        s.n_parameters += t->dims[0] * t->dims[1] * t->dims[2] * t->dims[3];
        if (gguf_is_list(t)) continue;
        s.types[t->type].n_tensors++;
        s.types[t->type].bytes += t->bytes;
    }
    return s;
}

/* ---- the command ---------------------------------------------------------------------------------- */

static int compare_vocabularies(const Gguf *g, Summary *s, fr_error *err) {
    Gguf *target;
    int status = gguf_open(&target, args.target, err);
    if (status) return status;
    int64_t tokens = gguf_find_key(target, "tokenizer.ggml.tokens");
    s->target = args.target;
    s->n_target_vocab = tokens >= 0 ? gguf_kv_count(target, tokens) : 0;
    int32_t n = (int32_t)min_i64(s->n_target_vocab, INT32_MAX), *to_draft = mem_calloc((size_t)n + 1, sizeof *to_draft);
    status = to_draft ? vocab_shared(g, target, to_draft, n, &s->n_shared, &s->same_ids, err)
                      : error_memory(err, "a map of tokens", (size_t)n * sizeof *to_draft);
    mem_free(to_draft);
    gguf_close(target);
    return status;
}

static int run(int argc, char **argv) {
    (void)argc, (void)argv;
    Gguf *g;
    fr_error err = {0};
    const char *paths[] = {args.path, args.target};
    if (sandbox_enter(paths, args.target ? 2 : 1, &err) || gguf_open(&g, args.path, &err)) return cli_fail(&err);
    Summary s = read_summary(g);
    int status = args.target ? compare_vocabularies(g, &s, &err) : FR_OK;
    if (status) {
        gguf_close(g);
        return cli_fail(&err);
    }
    if (args.json) status = inspect_print_json(g, &s, args.tensors, &err);
    else if (!inspect_print_text(g, &s, args.tensors, cli_may_color(STDOUT_FILENO)))
        status = error_memory(&err, "the summary", 0);
    gguf_close(g);
    return status ? cli_fail(&err) : CLI_OK;
}

const Command command_inspect = {
    .name = "inspect",
    .summary = "show what is in a GGUF file",
    .about = "Show what is in a GGUF file, a model or a learned drafter: its shape, vocabulary, tensor types and "
             "key-values. Long arrays and strings are shortened.",
    .sets = (const OptionSet[]){{option_table, &args}, {sandbox_option_table, &sandbox_options}, {NULL, NULL}},
    .examples = "  forerun inspect models/target.gguf\n"
                "  forerun inspect --target models/target.gguf models/draft.gguf\n"
                "  forerun inspect --json --tensors models/draft.gguf | jq '.tensors[].name'\n",
    .run = run,
};

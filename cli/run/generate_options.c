/* generate_options.c - the options of a generation, and checks of them.
 *
 * `run`, `chat`, `compare`, `bench` and `distill-data` share generate_options; commands that continue one prompt have
 * generate_prompt_options, too. The sampling defaults are those of fr_sampling_default(), written out as text because
 * --help shows them; `chat` has its own (chat_sampling_begin). */
#include "cli/run/generate.h"

#include "base/os.h"
#include "base/threads.h"
#include "draft/drafter.h"
#include "text/chat.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define SEED_NOT_GIVEN UINT64_MAX /* not a value of --seed, whose maximum is INT64_MAX */
#define SECTION_DRAFTING "Drafting (does not change the text, except under some --verify rules)"
#define SECTION_SAMPLING "Sampling (these options and the seed determine the text)"

const Option generate_options[] = {
    {.key = "model",
     .letter = 'm',
     OPT_MODEL(GenerateArgs, model),
     .required = "model",
     .section = "Model and prompt",
     .help = "GGUF file of the target model"},
    {.key = "tokens",
     .letter = 'n',
     OPT_INT(GenerateArgs, n_tokens, 0, INT32_MAX),
     .default_help = "256; in chat 0",
     .help = "generate at most N tokens; 0: until the context is full"},
    {.key = "system", OPT_TEXT(GenerateArgs, system), .help = "system message of the chat"},
    {.key = "chat-template",
     OPT_TEXT(GenerateArgs, chat_template),
     .metavar = "NAME|FILE",
     .default_help = "the model's own",
     .help = "chat template: the name of one that comes with forerun (chatml, llama3.1, qwen3, gemma3, ...), or a file "
             "with a Jinja template"},
    {.key = "stop", OPT_TEXTS(GenerateArgs, stops, n_stops), .help = "stop before generating TEXT"},
    {.key = "ignore-eos", OPT_FLAG(GenerateArgs, ignore_eos), .help = "continue after the model's end-of-text token"},

    {.key = "draft",
     OPT_TEXTS(GenerateArgs, drafts, n_drafts),
     .metavar = "SPEC",
     .is_basic = true,
     .section = SECTION_DRAFTING,
     .suggest = cli_suggest_draft,
     .default_help = "in run and chat auto, with --verify sampled; otherwise none",
     .help =
         "drafter: method or method:key=value,...; a+b: both in one tree; auto: chosen while generating; none: plain "
         "decoding. Several --draft are compared with each other in compare and bench, and combined like a+b in "
         "all other commands"},
    {.key = "tree-budget",
     OPT_INT(GenerateArgs, tree_budget, 1, FR_TREE_BUDGET_MAX),
     .word = "auto",
     .word_value = FR_TREE_BUDGET_AUTO,
     .default_help = "8; auto with --draft=auto and in distill-data",
     .help = "draft at most N tokens in a step; auto: as many as are expected to save time"},
    {.key = "verify",
     OPT_TEXT(GenerateArgs, verify),
     .metavar = "RULE",
     .default_help = "sampled",
     .suggest = cli_suggest_rule,
     .help = "verification rule: rule or rule:key=value,...; the rules are listed below"},
    {.key = "lossy",
     OPT_FLAG(GenerateArgs, lossy),
     .help = "allow rules that change the output distribution, such as --verify typical"},

    {.key = "temp",
     OPT_REAL(GenerateArgs, sampling.temperature, 0, HUGE_VAL),
     .metavar = "T",
     .is_basic = true,
     .section = SECTION_SAMPLING,
     .default_help = "0; in chat the file's own, or 0.8",
     .help = "temperature; 0: greedy"},
    {.key = "top-k",
     OPT_INT(GenerateArgs, sampling.top_k, 0, INT32_MAX),
     .metavar = "K",
     .default_help = "0; in chat the file's own, or 40",
     .help = "sample from the K most probable tokens; 0: all"},
    {.key = "top-p",
     OPT_REAL(GenerateArgs, sampling.top_p, 1e-6, 1),
     .metavar = "P",
     .default_help = "1; in chat the file's own, or 0.95",
     .help = "sample from the most probable tokens whose probabilities add up to P; 1: all"},
    {.key = "min-p",
     OPT_REAL(GenerateArgs, sampling.min_p, 0, 1),
     .metavar = "P",
     .default_help = "0; in chat the file's own, or 0.05",
     .help = "sample from tokens that are at least P times as probable as the best one; 0: all"},
    {.key = "repeat-penalty",
     OPT_REAL(GenerateArgs, sampling.repeat_penalty, 1e-6, HUGE_VAL),
     .default_help = "1; in chat the file's own",
     .help = "divide the logits of recent tokens by X; 1: off"},
    {.key = "frequency-penalty",
     OPT_REAL(GenerateArgs, sampling.frequency_penalty, -HUGE_VAL, HUGE_VAL),
     .default_value = "0",
     .help = "subtract X from a logit for each recent occurrence of the token"},
    {.key = "presence-penalty",
     OPT_REAL(GenerateArgs, sampling.presence_penalty, -HUGE_VAL, HUGE_VAL),
     .default_value = "0",
     .help = "subtract X from the logits of recent tokens"},
    {.key = "penalty-last-n",
     OPT_INT(GenerateArgs, sampling.penalty_last_n, -1, INT32_MAX),
     .default_help = "64; in chat the file's own",
     .help = "number of tokens that count as recent; -1: all"},
    {.key = "logit-bias",
     OPT_TEXTS(GenerateArgs, bias_texts, n_bias),
     .metavar = "TOKEN=X",
     .help = "add X to the logit of the token with id TOKEN; -inf: never generate it. 'forerun tokenize' prints ids"},
    {.key = "seed",
     OPT_INT(GenerateArgs, sampling.seed, 0, INT64_MAX),
     .metavar = "S",
     .default_help = "random in run and chat, otherwise 0",
     .help = "seed of the sampling; --stats and --stats-json report a random one"},

    CLI_ROW_THREADS(GenerateArgs, engine.n_threads, .section = "Machine"),
    CLI_ROW_PIN(GenerateArgs, engine.pin_threads),
    CLI_ROW_RANKS(GenerateArgs, n_ranks),
    CLI_ROW_CTX(GenerateArgs, engine.n_ctx),
    CLI_ROW_KV(GenerateArgs, engine.kv_type),
    {.key = "page-size",
     OPT_INT(GenerateArgs, engine.kv_page_size, 1, 4096),
     .default_help = "16",
     .help = "number of tokens in a page of the KV cache"},
    {.key = "kv-tokens",
     OPT_INT(GenerateArgs, engine.kv_tokens, 1, INT32_MAX),
     .default_help = "--ctx for each request",
     .help = "number of tokens in the whole KV cache, at least --ctx; this limits its memory"},
    CLI_ROW_BACKEND(GenerateArgs, backend),
    CLI_ROW_KERNELS(GenerateArgs, kernels),
    CLI_ROW_ACT(GenerateArgs, activations, .default_help = "q16"),
    {.key = NULL},
};

const Option generate_prompt_options[] = {
    {.key = "prompt",
     .letter = 'p',
     OPT_TEXT(GenerateArgs, prompt),
     .section = "Model and prompt",
     .help = "text to continue"},
    {.key = "file",
     .letter = 'f',
     OPT_FILE(GenerateArgs, prompt_file),
     .help = "read the prompt from FILE, without its last newline; -: standard input"},
    {.key = "chat",
     OPT_FLAG(GenerateArgs, chat),
     .is_basic = true,
     .help = "treat the prompt as a user's message, in the model's chat format"},
    {.key = "special",
     OPT_FLAG(GenerateArgs, special),
     .help = "turn spellings such as </s> in a raw prompt into the special tokens"},
    {.key = "json-schema",
     OPT_FILE(GenerateArgs, json_schema),
     .section = "Constraints (docs/CONSTRAINED.md; they hold exactly, with every drafter)",
     .help = "generate JSON that is valid under the JSON schema in FILE; FILE may be the schema itself, which begins "
             "with {"},
    {.key = "grammar",
     OPT_FILE(GenerateArgs, grammar),
     .help = "generate text that matches the grammar in FILE, in llama.cpp's GBNF"},
    {.key = "regex",
     OPT_TEXT(GenerateArgs, regex),
     .help = "generate text that matches a regular expression as a whole"},
    {.key = "grammar-after",
     OPT_TEXT(GenerateArgs, grammar_after),
     .default_help = "from the first token",
     .help = "apply the schema, grammar or expression only after the first TEXT that is generated, such as </think>"},
    GENERATE_ROW_COLOR("never"),
    {.key = NULL},
};

void generate_defaults(GenerateArgs *a) {
    *a = (GenerateArgs){.sampling = fr_sampling_default(), .n_tokens = 256, .engine.cost_cache = cli_cache_folder()};
}

void generate_defaults_interactive(GenerateArgs *a) {
    generate_defaults(a);
    a->sampling.seed = SEED_NOT_GIVEN;
}

/* Returns a random seed of 32 bits, short enough to be typed again. */
static uint64_t random_seed(void) {
    uint32_t seed;
    if (os_random(&seed, sizeof seed, false)) return seed;
    return (uint32_t)time(NULL) ^ (uint32_t)getpid() << 16; /* the kernel has no random numbers yet */
}

void generate_complete_interactive(GenerateArgs *a) {
    if (a->sampling.seed == SEED_NOT_GIVEN) a->sampling.seed = random_seed();
    /* Under other rules the text depends on the drafts, so no drafter is chosen for them. */
    if (a->n_drafts == 0 && (!a->verify || strcmp(a->verify, "sampled") == 0)) a->drafts[a->n_drafts++] = "auto";
}

typedef struct TemplateNames {
    char text[320];
} TemplateNames;

static const char *template_names(TemplateNames *out) {
    size_t n = 0;
    out->text[0] = '\0';
    for (const char *const *name = named_templates(); *name && n < sizeof out->text; name++)
        n += (size_t)snprintf(out->text + n, sizeof out->text - n, "%s%s", n ? ", " : "", *name);
    return out->text;
}

/* Reads the file of --chat-template, unless it names a template that comes with forerun, before the model is loaded. */
static int read_chat_template(const GenerateArgs *a, fr_error *err) {
    GenerateArgs *args = (GenerateArgs *)(uintptr_t)a;
    Template *t;
    fr_error why;
    TemplateNames names;
    size_t n;
    if (!a->chat_template || a->chat_template_text || named_template(a->chat_template, &n)) return FR_OK;
    if (chat_family_from_name(a->chat_template) != CHAT_NONE) return FR_OK;
    int status = cli_read_file(a->chat_template, 1 << 20, &args->chat_template_text, &n, &why);
    if (status)
        return error_set(
            err, (fr_code)status,
            "--chat-template: no template '%s' comes with forerun (%s do), and it cannot be read as a file: %s",
            a->chat_template, template_names(&names), why.message);
    status = template_compile(&t, a->chat_template_text, n, NULL, &why);
    template_close(status ? NULL : t);
    return status ? error_set(err, (fr_code)status, "--chat-template: %s: %s", a->chat_template, why.message) : FR_OK;
}

/* Reads "TOKEN=X". */
static bool read_bias(const char *text, fr_logit_bias *out) {
    char *end;
    errno = 0;
    long token = strtol(text, &end, 10);
    if (end == text || *end != '=' || errno || token < 0 || token > INT32_MAX) return false;
    const char *number = end + 1;
    *out = (fr_logit_bias){(int32_t)token, strtof(number, &end)};
    return end > number && !*end && !isnan(out->bias) && out->bias < INFINITY;
}

static int read_biases(const GenerateArgs *a, fr_error *err) {
    GenerateArgs *args = (GenerateArgs *)(uintptr_t)a;
    for (int i = 0; i < a->n_bias; i++)
        if (!read_bias(a->bias_texts[i], &args->bias[i]))
            return error_set(err, FR_ERR_ARGUMENT,
                             "--logit-bias: '%.40s' must be TOKEN=X, the id of a token and a number or -inf",
                             a->bias_texts[i]);
    return FR_OK;
}

int generate_check(const GenerateArgs *a, fr_error *err) {
    for (int i = 0; i < a->n_stops; i++)
        if (!*a->stops[i])
            return error_set(err, FR_ERR_ARGUMENT,
                             "--stop: an empty text would end every answer at once: leave it out");
    int status = read_chat_template(a, err);
    if (!status) status = read_biases(a, err);
    if (status) return status;
    if (a->system) status = generate_check_message("--system", a->system, strlen(a->system), err);
    if (status) return status;
    const VerifyRule *rule;
    VerifyOptions options;
    fr_error why;
    if (!a->verify || !verify_rule_parse(a->verify, a->lossy, &rule, &options, &why)) return FR_OK;
    return error_set(err, FR_ERR_ARGUMENT, "--verify: %s", why.message);
}

static int check_one(void *user, const char *spec, fr_error *err) {
    (void)user;
    return drafter_check(spec, err);
}

static int count_one(void *counts, const char *spec, fr_error *err) {
    (void)err;
    ((int *)counts)[strcmp(spec, "none") == 0]++;
    return FR_OK;
}

int generate_check_union(const char *const *drafts, int n_drafts, fr_error *err) {
    int counts[2] = {0, 0}, status = FR_OK; /* drafters, and "none" */
    for (int i = 0; i < n_drafts && !status; i++) status = drafter_each(drafts[i], count_one, counts, err);
    if (status || counts[0] == 0 || counts[1] == 0) return status;
    return error_set(
        err, FR_ERR_ARGUMENT,
        "--draft: none is plain decoding and cannot be combined with a drafter: leave out one or the other");
}

int generate_check_drafts(const char *const *drafts, int n_drafts, fr_error *err) {
    for (int i = 0; i < n_drafts; i++) {
        fr_error why;
        int status = drafter_each(drafts[i], check_one, NULL, &why);
        if (status) return error_set(err, (fr_code)status, "--draft: %s", why.message);
        status = generate_check_union(&drafts[i], 1, err);
        if (status) return status;
    }
    return FR_OK;
}

static int add_files_of_one(void *files, const char *spec, fr_error *err) {
    bool fits = command_files_add_drafter(files, "--draft", spec);
    return fits ? FR_OK : (int)error_memory(err, "the names of files", strlen(spec));
}

bool generate_add_files(CommandFiles *out, const char *const *drafts, int n_drafts) {
    bool fits = true;
    for (int i = 0; i < n_drafts && fits; i++) fits = drafter_each(drafts[i], add_files_of_one, out, NULL) == FR_OK;
    return fits;
}

int generate_check_prompt(GenerateArgs *a, fr_error *err) {
    int status = generate_check(a, err);
    if (!status) status = generate_check_drafts(a->drafts, a->n_drafts, err);
    if (status) return status;
    if (!a->prompt && !a->prompt_file && !isatty(STDIN_FILENO)) a->prompt_file = "-";
    if (!a->prompt && !a->prompt_file)
        return error_set(err, FR_ERR_ARGUMENT,
                         "missing prompt: pass -p TEXT or -f FILE, or pipe it in; 'forerun chat' holds a conversation");
    if (a->prompt && a->prompt_file)
        return error_set(err, FR_ERR_ARGUMENT, "-p and -f both give a prompt: pass one of them");
    if ((a->json_schema != NULL) + (a->grammar != NULL) + (a->regex != NULL) > 1)
        return error_set(err, FR_ERR_ARGUMENT,
                         "--json-schema, --grammar and --regex exclude each other: pass one of them");
    if (a->grammar_after && !a->json_schema && !a->grammar && !a->regex)
        return error_set(err, FR_ERR_ARGUMENT,
                         "--grammar-after needs a grammar: pass --json-schema, --grammar or --regex, too");
    if (a->prompt && a->chat) status = generate_check_message("--prompt", a->prompt, strlen(a->prompt), err);
    if (status) return status;
    if (a->system && !a->chat)
        return error_set(err, FR_ERR_ARGUMENT, "--system is a message of a chat: pass --chat, too");
    if (a->chat_template && !a->chat)
        return error_set(err, FR_ERR_ARGUMENT, "--chat-template is the format of a chat: pass --chat, too");
    if (a->special && a->chat)
        return error_set(err, FR_ERR_ARGUMENT,
                         "--special is for raw prompts: in a chat, the text of a message never becomes special tokens");
    return FR_OK;
}

const VerifyRule *generate_rule(const GenerateArgs *a) {
    const VerifyRule *rule = verify_rules()[0];
    VerifyOptions options;
    if (a->verify) verify_rule_parse(a->verify, true, &rule, &options, NULL); /* generate_check has accepted it */
    return rule;
}

bool generate_list_methods(Buf *out) {
    bool fits = buf_puts(out, "Drafters (--draft SPEC):\n") && cli_list_drafters(out, false) &&
                buf_puts(out, "\nVerification rules (--verify RULE):\n");
    for (const VerifyRule *const *r = verify_rules(); *r && fits; r++)
        fits = buf_printf(out, "  %s: ", (*r)->name) &&
               text_wrap(out, (*r)->summary, (int)strlen((*r)->name) + 4, 4, CLI_WIDTH) && buf_puts(out, "\n") &&
               (!(*r)->option_table || options_help(out, (*r)->option_table, 6, CLI_WIDTH));
    return fits;
}

/* cmd_replay.c - `forerun replay`: runs drafters that need no model against recorded answers.
 *
 * A recorded answer shows which tokens greedy decoding of its model would accept, so that drafters can be compared
 * exactly and fast, without the model. replay.c counts and prints.
 */
#include "research/replay.h"

#include "base/progress.h"
#include "text/tokenizer.h"
#include "train/dataset.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* Parsed JSON takes up to 100 times its length. */
enum { MAX_TRACE_BYTES = 1 << 30, MAX_LINE_BYTES = 16 << 20 };

typedef struct ReplayArgs {
    const char *vocab, *trace;
    const char *drafts[REPLAY_MAX_DRAFTS];
    int n_drafts;
    int32_t budget, bound;
    int64_t limit; /* records; -1: all */
    bool json, calibration, chat;
} ReplayArgs;

typedef struct Replay {
    ReplayArgs options;
    Gguf *vocab;
    Tokenizer *tokenizer;
    ReplayDraft drafts[REPLAY_MAX_DRAFTS];
    int n_drafts;
    ReplayReport report;
} Replay;

static Replay replay; /* large; a command runs once */

/* ---- command line ------------------------------------------------------------------------------- */

static int add_one(void *to, const char *spec, fr_error *err) {
    ReplayArgs *a = to;
    if (a->n_drafts == REPLAY_MAX_DRAFTS)
        return error_set(err, FR_ERR_ARGUMENT, "at most %d drafters can be united", REPLAY_MAX_DRAFTS);
    char *copy = strdup(spec); /* kept until the program ends */
    if (!copy) return error_memory(err, "a drafter", strlen(spec));
    a->drafts[a->n_drafts++] = copy;
    return FR_OK;
}

static int add_draft(void *to, const char *text, fr_error *err) { return drafter_each(text, add_one, to, err); }

static const Option option_table[] = {
    {.key = "TRACE.jsonl",
     OPT_FILE(ReplayArgs, trace),
     .is_argument = true,
     .required = "file of recorded answers",
     .help = "the recorded answers"},
    {.key = "vocab",
     .letter = 'm',
     OPT_MODEL(ReplayArgs, vocab),
     .required = "vocabulary",
     .help = "GGUF file whose vocabulary the answers were written with"},
    {.key = "draft",
     .letter = 'd',
     OPT_CUSTOM(add_draft),
     .metavar = "SPEC",
     .default_help = "ngram-trie",
     .suggest = cli_suggest_draft,
     .help = "drafter, as method or method:key=value,...; a+b, or several --draft: united by their calibrated "
             "estimates; auto: "
             "those that auto unites; none: "
             "plain decoding (may be repeated)"},
    /* ngram-trie is made for 32 nodes: a CPU verifies them at a few times the cost of one row. */
    {.key = "tree-budget",
     .letter = 'b',
     OPT_INT(ReplayArgs, budget, 0, TREE_MAX_NODES - 1),
     .default_value = "32",
     .help = "at most N drafted tokens in a step"},
    {.key = "chat",
     OPT_FLAG(ReplayArgs, chat),
     .help =
         "treat a \"prompt\" as a user's message, in the chat format of the vocabulary's file, as train --chat does"},
    {.key = "limit",
     .letter = 'n',
     OPT_INT(ReplayArgs, limit, 0, INT32_MAX),
     .default_help = "all",
     .help = "use only the first N records"},
    {.key = "calibration",
     .letter = 'c',
     OPT_FLAG(ReplayArgs, calibration),
     .help = "also print how often nodes are right, by the drafters' own estimates and by the calibrated ones"},
    {.key = "bound",
     OPT_INT(ReplayArgs, bound, 0, 4096),
     .metavar = "N",
     .default_value = "0",
     .default_help = "none",
     .help =
         "also print what an oracle accepts that copies, in each step, the passage of at most N tokens of the prompt "
         "that the answer follows furthest: no drafter that copies from the prompt accepts more"},
    {.key = "json",
     .letter = 'j',
     OPT_FLAG(ReplayArgs, json),
     .help = "print JSON: one object per category, and \"all\""},
    {.key = NULL},
};

static void set_defaults(void) { replay.options.limit = -1; }

static bool list_drafters(Buf *out) {
    return buf_puts(out, "Drafters that need no target:\n") && cli_list_drafters(out, true);
}

/* ---- records -------------------------------------------------------------------------------------- */

/* Appends the token (-1: none) to tokens[0..*n), which has room for it. */
static void append(int32_t *tokens, int64_t *n, int32_t token) {
    if (token >= 0) tokens[(*n)++] = token;
}

/* Encodes the text's tokens between `first` and `last` (-1: none), malloc'ed. */
static int encode(const Tokenizer *t, int32_t first, const json_t *text, int32_t last, int32_t **out, int64_t *n,
                  fr_error *err) {
    int32_t *inner = NULL;
    int64_t n_inner = 0;
    *out = NULL;
    *n = 0;
    int status = tokenizer_encode(t, json_string_value(text), json_string_length(text), 0, &inner, &n_inner, err);
    if (status) return status;
    *out = malloc((size_t)(n_inner + 2) * sizeof **out);
    if (!*out) status = error_memory(err, "the tokens of a record", (size_t)(n_inner + 2) * sizeof **out);
    else {
        append(*out, n, first);
        if (n_inner) memcpy(*out + *n, inner, (size_t)n_inner * sizeof *inner);
        *n += n_inner;
        append(*out, n, last);
    }
    free(inner);
    return status;
}

static int replay_tokens(Replay *r, const char *category, const ReplayInput *in, fr_error *err) {
    if (in->n_context == 0) return error_set(err, FR_ERR_FORMAT, "has an empty prompt");
    ReplayCategory *c = replay_category(&r->report, category, err);
    if (!c) return FR_ERR_FORMAT;
    double *step_s = malloc((size_t)(in->n_output + 1) * sizeof *step_s);
    if (!step_s) return error_memory(err, "the times of a record", (size_t)in->n_output * sizeof *step_s);
    ReplayStats s;
    int status = replay_run(r->drafts, r->n_drafts, in, &s, step_s, err);
    if (!status) status = replay_add(c, &s, step_s, err);
    if (!status) status = replay_add(&r->report.all, &s, step_s, err);
    free(step_s);
    return status;
}

/* Replays each answer of a conversation after the messages before it, in the chat format of training data. */
static int replay_conversation(Replay *r, const char *category, const char *line, size_t n, fr_error *err) {
    Record record;
    Document d;
    ChatFamily family = chat_family_of(r->vocab);
    const DocumentForm form = {r->tokenizer, family == CHAT_NONE ? CHAT_PLAIN : family, true,
                               tokenizer_n_vocab(r->tokenizer)};
    int status = record_parse(&record, line, n, err);
    if (status) return status;
    status = document_make(&d, &form, &record, err);
    for (int64_t i = 0, end; !status && i < d.n; i = end) {
        for (end = i; end < d.n && d.loss_mask[end] == d.loss_mask[i];) end++;
        if (!d.loss_mask[i]) continue;
        const ReplayInput in = {d.tokens, i, d.tokens + i, end - i, r->options.budget, form.n_vocab, r->options.bound};
        status = replay_tokens(r, category, &in, err);
    }
    document_free(&d);
    record_free(&record);
    return status;
}

static int replay_pair(Replay *r, const char *category, const json_t *prompt, const json_t *response, fr_error *err) {
    const Tokenizer *t = r->tokenizer;
    int32_t *context = NULL, *output = NULL;
    ReplayInput in = {.budget = r->options.budget, .n_vocab = tokenizer_n_vocab(t), .bound = r->options.bound};
    int status = encode(t, tokenizer_bos(t), prompt, -1, &context, &in.n_context, err);
    if (!status) status = encode(t, -1, response, tokenizer_eos(t), &output, &in.n_output, err);
    in.context = context;
    in.output = output;
    if (!status) status = replay_tokens(r, category, &in, err);
    free(context);
    free(output);
    return status;
}

/* `line` is the text of the record. */
static int replay_record(Replay *r, const json_t *record, const char *line, size_t n, fr_error *err) {
    const json_t *prompt = json_object_get(record, "prompt"), *response = json_object_get(record, "response");
    const json_t *category = json_object_get(record, "category");
    bool is_pair = json_is_string(prompt) && json_is_string(response);
    if (category && !json_is_string(category))
        return error_set(err, FR_ERR_FORMAT, "has a \"category\" that is not a string");
    const char *name = category ? json_string_value(category) : "other";
    if (json_is_array(json_object_get(record, "messages")) || (is_pair && r->options.chat))
        return replay_conversation(r, name, line, n, err);
    if (is_pair) return replay_pair(r, name, prompt, response, err);
    return error_set(
        err, FR_ERR_FORMAT,
        "must have the strings \"prompt\" and \"response\", or a list \"messages\"; `forerun distill-data` "
        "generates the answers with a model");
}

static int replay_line(Replay *r, const char *line, size_t n, int64_t number, fr_error *err) {
    json_error_t where;
    fr_error why;
    bool fits = n <= MAX_LINE_BYTES;
    json_t *record = fits ? json_loadb(line, n, JSON_REJECT_DUPLICATES, &where) : NULL;
    int status = record ? replay_record(r, record, line, n, &why)
                 : fits ? error_set(&why, FR_ERR_FORMAT, "is not a JSON object: %s", where.text)
                        : error_set(&why, FR_ERR_FORMAT, "has more than %d bytes, the limit of one record",
                                    MAX_LINE_BYTES);
    json_decref(record);
    if (status) error_set(err, status, "%s: line %lld %s", r->options.trace, (long long)number, why.message);
    return status;
}

static int replay_file(Replay *r, fr_error *err) {
    char *text;
    size_t n;
    int status = cli_read_file(r->options.trace, MAX_TRACE_BYTES, &text, &n, err);
    if (status) return status;
    Progress bar;
    progress_begin(&bar, stderr, "replay", (int64_t)n);
    int64_t number = 1, left = r->options.limit;
    for (size_t begin = 0, end; !status && begin < n && left != 0; begin = end + 1, number++) {
        const char *newline = memchr(text + begin, '\n', n - begin);
        end = newline ? (size_t)(newline - text) : n;
        size_t skipped = begin + strspn(text + begin, " \t\r");
        if (skipped >= end) continue; /* an empty line */
        status = replay_line(r, text + begin, end - begin, number, err);
        if (left > 0) left--;
        progress_update(&bar, (int64_t)end);
    }
    progress_end(&bar);
    free(text);
    if (!status && r->report.all.n_records == 0)
        status = error_set(err, FR_ERR_FORMAT, "%s: holds no records", r->options.trace);
    return status;
}

/* ---- the command -------------------------------------------------------------------------------- */

static int replay_all(Replay *r, fr_error *err) {
    int status = gguf_open(&r->vocab, r->options.vocab, err);
    if (!status) status = tokenizer_open(&r->tokenizer, r->vocab, err);
    if (status) return status;
    DrafterEnv env = {.n_vocab = tokenizer_n_vocab(r->tokenizer), .max_sequences = 1, .vocab = r->vocab};
    for (int i = 0; i < r->options.n_drafts && !status; i++) {
        ReplayDraft *d = &r->drafts[r->n_drafts];
        status = drafter_open(&d->drafter, r->options.drafts[i], &env, i, err);
        calibration_init(&d->shared, NULL);
        r->n_drafts += d->drafter != NULL; /* "none" is no drafter */
    }
    if (!status) status = replay_file(r, err);
    if (status) return status;
    const ReplayArgs *a = &r->options;
    if (a->json) return replay_print_json(&r->report, err);
    for (int i = 0; i < a->n_drafts; i++) printf("%s%s", i ? " + " : "", a->drafts[i]);
    printf(", %d nodes, %lld answer%s\n", a->budget, (long long)r->report.all.n_records,
           cli_plural(r->report.all.n_records));
    replay_print_table(&r->report, a->calibration);
    return FR_OK;
}

static int run(int argc, char **argv) {
    (void)argc, (void)argv;
    ReplayArgs *a = &replay.options;
    if (!a->n_drafts) a->drafts[a->n_drafts++] = "ngram-trie";
    fr_error err;
    int status = replay_all(&replay, &err);
    for (int i = 0; i < replay.n_drafts; i++) drafter_close(replay.drafts[i].drafter);
    tokenizer_close(replay.tokenizer);
    gguf_close(replay.vocab);
    replay_report_free(&replay.report);
    return status ? cli_fail(&err) : CLI_OK;
}

const Command command_replay = {
    .name = "replay",
    .summary = "run a drafter against recorded answers, without the model",
    .about = "Run drafters that need no model against recorded answers, and count how many steps that saves.",
    .sets = (const OptionSet[]){{option_table, &replay.options}, {NULL, NULL}},
    .list = list_drafters,
    .notes = "TRACE.jsonl holds one JSON object per line: \"prompt\" (the whole templated text), \"response\" (the "
             "greedy answer of a model) and "
             "optionally \"category\"; or \"messages\", a conversation whose answers are replayed one after the other. "
             "'forerun distill-data' writes both; pass --chat here if it was given there. The context is BOS and the "
             "prompt, the output is the response and EOS. A step "
             "drafts below the last token, "
             "keeps the path that the response takes and adds one token; the acceptance length is tokens / steps, 1 "
             "for plain decoding; --json also counts the steps of 1, 2, ... tokens (steps_by_length, 16 and more "
             "together). The "
             "result is "
             "exactly what greedy decoding with that model would accept.",
    .examples = "  forerun replay --vocab vicuna.gguf answers.jsonl\n"
                "  forerun replay --vocab vicuna.gguf answers.jsonl --tree-budget 64 --draft "
                "ngram-trie:rule=paper\n"
                "  forerun replay --vocab vicuna.gguf answers.jsonl --draft ngram-trie --draft suffix --calibration\n",
    .defaults = set_defaults,
    .run = run,
};

/* cmd_replay.c - `forerun replay`: a model-free drafter against recorded answers. */
#include "app/cli.h"

#include "base/progress.h"
#include "format/gguf.h"
#include "lab/replay.h"
#include "text/tokenizer.h"

#include <argp.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_CATEGORIES = 64,
    MAX_TRACE_BYTES = 1 << 30,
    DEFAULT_BUDGET =
        32, /* what ngram-trie is made for: a CPU verifies it at a few times the cost of one row */
};

typedef struct Options {
    const char *vocab, *trace;
    const char *drafts[REPLAY_MAX_DRAFTS];
    int n_drafts;
    int32_t budget;
    int64_t limit; /* records; -1: all */
    bool json, calibration;
} Options;

typedef struct Category {
    char name[64];
    ReplayStats stats;
    int64_t n_records;
    double *step_s; /* [n_steps] times of the proposals */
    int64_t capacity;
} Category;

typedef struct Report {
    Category all, categories[MAX_CATEGORIES];
    int n_categories;
} Report;

typedef struct Replay {
    Options options;
    Gguf *vocab;
    Tokenizer *tokenizer;
    ReplayDraft drafts[REPLAY_MAX_DRAFTS];
    int n_drafts;
    Report report;
} Replay;

/* ---- command line ------------------------------------------------------------------------------- */

enum {
    KEY_VOCAB = 'm',
    KEY_DRAFT = 'd',
    KEY_BUDGET = 'b',
    KEY_LIMIT = 'n',
    KEY_JSON = 'j',
    KEY_CALIBRATION = 'c'
};

static void add_draft(struct argp_state *state, Options *o, const char *spec) {
    if (strcmp(spec, "auto") == 0) {
        for (const char *const *m = drafter_auto_members(); *m; m++) add_draft(state, o, *m);
        return;
    }
    if (o->n_drafts == REPLAY_MAX_DRAFTS) argp_error(state, "at most %d drafts can be united", REPLAY_MAX_DRAFTS);
    o->drafts[o->n_drafts++] = spec;
}

static error_t parse_option(int key, char *arg, struct argp_state *state) {
    Options *o = state->input;
    switch (key) {
    case KEY_VOCAB:
        o->vocab = arg;
        break;
    case KEY_DRAFT:
        add_draft(state, o, arg);
        break;
    case KEY_BUDGET:
        o->budget = (int32_t)cli_parse_int(state, arg, 0, TREE_MAX_NODES - 1, "--tree-budget");
        break;
    case KEY_LIMIT:
        o->limit = cli_parse_int(state, arg, 0, INT32_MAX, "--limit");
        break;
    case KEY_JSON:
        o->json = true;
        break;
    case KEY_CALIBRATION:
        o->calibration = true;
        break;
    case ARGP_KEY_ARG:
        if (o->trace) argp_error(state, "one TRACE.jsonl at a time; '%s' is the second", arg);
        o->trace = arg;
        break;
    case ARGP_KEY_END:
        if (!o->trace) argp_error(state, "which recorded answers? name a TRACE.jsonl");
        if (!o->vocab)
            argp_error(state, "--vocab MODEL.gguf is needed to turn the recorded text into tokens");
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static const struct argp_option argp_options[] = {
    {"vocab", KEY_VOCAB, "MODEL", 0, "GGUF file whose vocabulary the answers were written with", 0},
    {"draft", KEY_DRAFT, "SPEC", 0, "method:key=value,... (default ngram-trie); several are united by their calibrated estimates, `auto` "
     "unites those it has; `none` is plain decoding", 0},
    {"tree-budget", KEY_BUDGET, "B", 0, "nodes drafted in a step at most (default 32)", 0},
    {"limit", KEY_LIMIT, "N", 0, "the first N records only", 0},
    {"calibration", KEY_CALIBRATION, NULL, 0,
     "more tables: how often nodes are right, by the drafters' own estimates and by the calibrated ones", 0},
    {"json", KEY_JSON, NULL, 0, "print JSON: one object a category, and \"all\"", 0},
    {NULL, 0, NULL, 0, NULL, 0},
};

static char *add_drafters(int key, const char *text, void *input) {
    (void)input;
    if (key != ARGP_KEY_HELP_EXTRA) return (char *)(uintptr_t)text;
    static const char head[] = "Drafters that need no target:";
    Buf out = {.max_bytes = 64 << 10};
    if (buf_append(&out, head, sizeof head - 1)) cli_list_drafters(&out, true);
    return out.data; /* argp frees it */
}

static const struct argp argp = {
    .options = argp_options,
    .parser = parse_option,
    .help_filter = add_drafters,
    .args_doc = "TRACE.jsonl",
    .doc =
        "Run drafters that need no model against recorded answers, and count what that saves.\v"
        "TRACE.jsonl holds one JSON object a line: \"prompt\" (the whole templated text), \"response\" (what "
        "a "
        "model answered greedily) and optionally \"category\". The context is BOS and the prompt, the output "
        "the response and EOS. A step drafts below the last token, keeps the path that the response takes "
        "and adds one token; the acceptance length is tokens / steps, 1 for plain decoding. What is "
        "measured here is exactly what greedy decoding with that model would accept.\n\n"
        "  forerun replay --vocab vicuna.gguf answers.jsonl\n"
        "  forerun replay --vocab vicuna.gguf answers.jsonl --tree-budget 64 \\\n"
        "          --draft ngram-trie:rule=paper,n=13,prefix=3,live=0\n"
        "  forerun replay --vocab vicuna.gguf answers.jsonl --draft ngram-trie --draft suffix --calibration\n",
};

/* ---- counting ----------------------------------------------------------------------------------- */

static void add_bins(ReplayBin *to, const ReplayBin *bins) {
    for (int i = 0; i < REPLAY_N_BINS; i++) {
        to[i].n += bins[i].n;
        to[i].n_right += bins[i].n_right;
        to[i].sum_p_accept += bins[i].sum_p_accept;
    }
}

static int add_to(Category *c, const ReplayStats *s, const double *step_s, fr_error *err) {
    int64_t n = c->stats.n_steps + s->n_steps;
    if (n > c->capacity) {
        double *times = realloc(c->step_s, (size_t)(2 * n) * sizeof *times);
        if (!times) return error_memory(err, "the times of the steps", (size_t)(2 * n) * sizeof *times);
        c->step_s = times;
        c->capacity = 2 * n;
    }
    if (s->n_steps) memcpy(c->step_s + c->stats.n_steps, step_s, (size_t)s->n_steps * sizeof *step_s);
    c->n_records++;
    c->stats.n_tokens += s->n_tokens;
    c->stats.n_steps = n;
    c->stats.n_drafted += s->n_drafted;
    c->stats.propose_s += s->propose_s;
    c->stats.build_s += s->build_s;
    add_bins(c->stats.bins, s->bins);
    add_bins(c->stats.calibrated, s->calibrated);
    return FR_OK;
}

static Category *find_category(Report *r, const char *name, fr_error *err) {
    for (int i = 0; i < r->n_categories; i++)
        if (strcmp(r->categories[i].name, name) == 0) return &r->categories[i];
    Category *c = &r->categories[r->n_categories];
    if (strcmp(name, "all") == 0)
        error_set(err, FR_ERR_FORMAT, "has the category \"all\", the name of the sum over all; rename it");
    else if (r->n_categories == MAX_CATEGORIES)
        error_set(err, FR_ERR_FORMAT, "brings more than %d categories", MAX_CATEGORIES);
    else if (strlen(name) >= sizeof c->name)
        error_set(err, FR_ERR_FORMAT, "has a category of more than %zu bytes", sizeof c->name - 1);
    else {
        strcpy(c->name, name);
        r->n_categories++;
        return c;
    }
    return NULL;
}

/* Appends the token (-1: none) to tokens[0..*n), which has room for it. */
static void append(int32_t *tokens, int64_t *n, int32_t token) {
    if (token >= 0) tokens[(*n)++] = token;
}

/* The text's tokens between `first` and `last` (-1: none), malloc'ed. */
static int encode(const Tokenizer *t, int32_t first, const json_t *text, int32_t last, int32_t **out,
                  int64_t *n, fr_error *err) {
    int32_t *inner = NULL;
    int64_t n_inner = 0;
    *out = NULL;
    *n = 0;
    int status = tokenizer_encode(t, json_string_value(text), json_string_length(text), 0, &inner, &n_inner, err);
    if (status) return status;
    *out = malloc((size_t)(n_inner + 2) * sizeof **out);
    if (!*out)
        status = error_memory(err, "the tokens of a record", (size_t)(n_inner + 2) * sizeof **out);
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
    Category *c = find_category(&r->report, category, err);
    if (!c) return FR_ERR_FORMAT;
    double *step_s = malloc((size_t)(in->n_output + 1) * sizeof *step_s);
    if (!step_s) return error_memory(err, "the times of a record", (size_t)in->n_output * sizeof *step_s);
    ReplayStats s;
    int status = replay_run(r->drafts, r->n_drafts, in, &s, step_s, err);
    if (!status) status = add_to(c, &s, step_s, err);
    if (!status) status = add_to(&r->report.all, &s, step_s, err);
    free(step_s);
    return status;
}

static int replay_record(Replay *r, const json_t *record, fr_error *err) {
    const json_t *prompt = json_object_get(record, "prompt"), *response = json_object_get(record, "response");
    const json_t *category = json_object_get(record, "category");
    if (!json_is_string(prompt) || !json_is_string(response))
        return error_set(err, FR_ERR_FORMAT, "wants the strings \"prompt\" and \"response\"");
    if (category && !json_is_string(category))
        return error_set(err, FR_ERR_FORMAT, "has a \"category\" that is not a string");
    const Tokenizer *t = r->tokenizer;
    int32_t *context = NULL, *output = NULL;
    ReplayInput in = {.budget = r->options.budget, .n_vocab = tokenizer_n_vocab(t)};
    int status = encode(t, tokenizer_bos(t), prompt, -1, &context, &in.n_context, err);
    if (!status) status = encode(t, -1, response, tokenizer_eos(t), &output, &in.n_output, err);
    in.context = context;
    in.output = output;
    if (!status) status = replay_tokens(r, category ? json_string_value(category) : "other", &in, err);
    free(context);
    free(output);
    return status;
}

static int replay_line(Replay *r, const char *line, size_t n, int64_t number, fr_error *err) {
    json_error_t where;
    fr_error why;
    json_t *record = json_loadb(line, n, JSON_REJECT_DUPLICATES, &where);
    int status = record ? replay_record(r, record, &why)
                    : error_set(&why, FR_ERR_FORMAT, "is not a JSON object: %s", where.text);
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

/* ---- printing ----------------------------------------------------------------------------------- */

static double ratio(double a, int64_t b) { return b ? a / (double)b : 0; }

static int compare_times(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median_us(Category *c) {
    int64_t n = c->stats.n_steps;
    if (n == 0) return 0;
    qsort(c->step_s, (size_t)n, sizeof *c->step_s, compare_times);
    return 1e6 * c->step_s[n / 2];
}

static void print_row(Category *c, const char *name) {
    const ReplayStats *s = &c->stats;
    printf("%-16s %8lld %8lld %10.3f %10.1f %10.1f %10.1f\n", name, (long long)s->n_tokens,
           (long long)s->n_steps, ratio((double)s->n_tokens, s->n_steps),
           ratio((double)s->n_drafted, s->n_steps), 1e6 * ratio(s->propose_s, s->n_steps), median_us(c));
}

static void print_calibration(const ReplayBin *bins, const char *name) {
    printf("\n%-16s %8s %10s %10s\n", name, "nodes", "mean est", "right");
    for (int i = 0; i < REPLAY_N_BINS; i++) {
        const ReplayBin *b = &bins[i];
        if (b->n)
            printf("%.1f to %.1f       %8lld %10.3f %10.3f\n", i / (double)REPLAY_N_BINS,
                   (i + 1) / (double)REPLAY_N_BINS, (long long)b->n, ratio(b->sum_p_accept, b->n),
                   ratio((double)b->n_right, b->n));
    }
}

static void print_table(Replay *r) {
    for (int i = 0; i < r->options.n_drafts; i++) printf("%s%s", i ? " + " : "", r->options.drafts[i]);
    printf(", %d nodes, %lld records\n", r->options.budget, (long long)r->report.all.n_records);
    printf("%-16s %8s %8s %10s %10s %10s %10s\n", "category", "tokens", "steps", "acceptance", "drafted/st",
           "propose us", "median us");
    for (int i = 0; i < r->report.n_categories; i++)
        print_row(&r->report.categories[i], r->report.categories[i].name);
    print_row(&r->report.all, "all");
    if (!r->options.calibration) return;
    print_calibration(r->report.all.stats.bins, "own estimate");
    print_calibration(r->report.all.stats.calibrated, "calibrated");
}

static json_t *calibration_json(const ReplayBin *b) {
    json_t *bins = json_array();
    for (int i = 0; i < REPLAY_N_BINS; i++)
        json_array_append_new(bins, json_pack("{s:I, s:f, s:f}", "nodes", (json_int_t)b[i].n, "mean_est",
                                              ratio(b[i].sum_p_accept, b[i].n), "right",
                                              ratio((double)b[i].n_right, b[i].n)));
    return bins;
}

static json_t *category_json(Category *c) {
    const ReplayStats *s = &c->stats;
    return json_pack("{s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:o, s:o}", "records", (json_int_t)c->n_records,
                     "tokens", (json_int_t)s->n_tokens, "steps", (json_int_t)s->n_steps, "acceptance_length",
                     ratio((double)s->n_tokens, s->n_steps), "drafted_per_step",
                     ratio((double)s->n_drafted, s->n_steps), "propose_us",
                     1e6 * ratio(s->propose_s, s->n_steps), "propose_us_median", median_us(c), "build_us",
                     1e6 * ratio(s->build_s, c->n_records), "calibration", calibration_json(s->bins),
                     "calibrated", calibration_json(s->calibrated));
}

static int print_json(Replay *r, fr_error *err) {
    json_t *root = json_object();
    int status = json_object_set_new(root, "all", category_json(&r->report.all));
    for (int i = 0; i < r->report.n_categories && status == 0; i++)
        status = json_object_set_new(root, r->report.categories[i].name, category_json(&r->report.categories[i]));
    char *text = status == 0 ? json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(8)) : NULL;
    json_decref(root);
    if (!text) return error_set(err, FR_ERR_MEMORY, "out of memory while writing JSON");
    puts(text);
    free(text);
    return FR_OK;
}

/* ---- the command -------------------------------------------------------------------------------- */

static int run(Replay *r, fr_error *err) {
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
    if (r->options.json) return print_json(r, err);
    print_table(r);
    return FR_OK;
}

int cmd_replay(int argc, char **argv) {
    static Replay r; /* large; a command runs once */
    r.options = (Options){.budget = DEFAULT_BUDGET, .limit = -1};
    argp_err_exit_status = CLI_USAGE;
    if (argp_parse(&argp, argc, argv, 0, NULL, &r.options)) return CLI_USAGE;
    if (!r.options.n_drafts) r.options.drafts[r.options.n_drafts++] = "ngram-trie";
    fr_error err;
    int status = run(&r, &err);
    for (int i = 0; i < r.n_drafts; i++) drafter_close(r.drafts[i].drafter);
    tokenizer_close(r.tokenizer);
    gguf_close(r.vocab);
    free(r.report.all.step_s);
    for (int i = 0; i < r.report.n_categories; i++) free(r.report.categories[i].step_s);
    return status ? cli_fail(&err) : CLI_OK;
}

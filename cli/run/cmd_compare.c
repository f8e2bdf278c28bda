/* cmd_compare.c - `forerun compare`: continues the same prompt plainly and with each drafter, side by side. */
#include "cli/json_memory.h"
#include "cli/run/generate.h"
#include "cli/safe_text.h"
#include "cli/speed.h"
#include "cli/stats_json.h"
#include "cli/cli.h"

#include "base/mem.h"
#include "base/progress.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NAME_WIDTH = 10 };

typedef struct CompareArgs {
    GenerateArgs generate;
    int n_runs, json, no_text;
} CompareArgs;

static CompareArgs args;

static const Option option_table[] = {
    {.key = "runs",
     OPT_INT(CompareArgs, n_runs, 1, SPEED_MAX_RUNS),
     .default_value = "3",
     .section = "Output",
     .help = "repeat N times, alternating the methods, and show the run of each method with the median speed"},
    {.key = "no-text", OPT_FLAG(CompareArgs, no_text), .help = "print only the table"},
    {.key = "json", OPT_FLAG(CompareArgs, json), .help = "print the table as JSON"},
    {.key = NULL},
};

static void set_defaults(void) { generate_defaults(&args.generate); }

static int check(fr_error *err) {
    int status = generate_check_prompt(&args.generate, err);
    if (status || args.generate.n_drafts > 0) return status;
    return error_set(err, FR_ERR_ARGUMENT, "missing drafter to compare with plain decoding: pass --draft=SPEC");
}

static bool files(CommandFiles *out) { return generate_add_files(out, args.generate.drafts, args.generate.n_drafts); }

/* One method: plain decoding (spec NULL) or one drafter. */
typedef struct Method {
    const char *spec;
    double tokens_per_s[SPEED_MAX_RUNS];
    RequestStats *runs; /* [n_runs]; owned */
    int32_t *tokens;    /* the tokens of the first run, as in logits_hash */
    int64_t n_tokens;
    uint64_t logits_hash;
    Buf colored; /* the text of the first run, with colours */
    int use_color;
    bool is_terminal; /* standard output: the text is escaped */
    bool trims;       /* white space at the beginning of the text is left out */
    bool dist_only;   /* the rule keeps the output distribution, but not the text */
    bool is_lossy;    /* the rule keeps neither */
    /* In every run, tokens and hash of the logits equal those of plain decoding, or with dist_only or is_lossy those of
     * the first run. */
    bool same;
} Method;

static const char *verdict(const Method *m) {
    return !m->spec ? "" : !m->same ? "DIFFERENT" : m->is_lossy ? "LOSSY" : m->dist_only ? "own text" : "identical";
}

static int keep_token(void *user, const fr_token_event *event) {
    Method *m = user;
    const char *text = event->text;
    size_t n = event->n_bytes;
    if (m->trims && m->colored.n == 0) text = text_output_trimmed(text, &n);
    bool paint = m->use_color && event->source >= 0 && n;
    const char *color = generate_source_color(event->source);
    bool fits = true;
    if (paint) fits = buf_append(&m->colored, color, strlen(color));
    if (m->is_terminal) fits = fits && safe_text_append_lines(&m->colored, text, n);
    else fits = fits && buf_append(&m->colored, text, n);
    if (paint) fits = fits && buf_append(&m->colored, GENERATE_COLOR_OFF, strlen(GENERATE_COLOR_OFF));
    return !fits;
}

/* Gives each run a new engine, as `bench` does: drafters remember answers, and every run generates the same one. */
static int renew_engine(Generator *g, const GenerateArgs *a, const Method *m, fr_error *err) {
    fr_engine_close(g->engine);
    return generate_open_engine(&g->engine, g->model, &a->engine, &m->spec, m->spec != NULL, a->tree_budget, err);
}

static int run_once(Generator *g, const GenerateArgs *a, Method *m, const Method *plain, int i_run, fr_error *err) {
    fr_request *r;
    GenerateArgs own = *a;
    if (!m->spec) own.verify = NULL;               /* plain decoding samples by the seed, whatever the rule */
    const char *spec = m->spec ? m->spec : "none"; /* an empty list would select a drafter for the grammar */
    int status = renew_engine(g, a, m, err);
    if (!status) status = generator_run(g, &own, &spec, 1, i_run == 0 ? keep_token : NULL, m, &r, err);
    if (status) return status;
    int64_t n;
    const int32_t *tokens = fr_request_tokens(r, &n);
    RequestStats *stats = &m->runs[i_run];
    stats_read(stats, r);
    m->tokens_per_s[i_run] = stats->counts.tokens_per_s;
    if (i_run == 0) {
        m->n_tokens = n;
        m->logits_hash = stats->counts.logits_hash;
        m->tokens = malloc((size_t)(n ? n : 1) * sizeof *m->tokens);
        if (!m->tokens) status = error_memory(err, "tokens", (size_t)n * sizeof *m->tokens);
        else memcpy(m->tokens, tokens, (size_t)n * sizeof *m->tokens);
    }
    const Method *want = m->dist_only || m->is_lossy ? m : plain;
    if (!status)
        m->same = m->same && n == want->n_tokens && memcmp(tokens, want->tokens, (size_t)n * sizeof *tokens) == 0 &&
                  stats->counts.logits_hash == want->logits_hash;
    fr_request_close(r);
    return status;
}

/* What one row of the table shows. All its figures are those of one run, so that they agree with each other: the
 * speed-up is the ratio of the two rates that the table prints. */
typedef struct CompareRow {
    const RequestStats *stats; /* the run with the median rate */
    SpeedUp speed_up;
    double overhead; /* the share of the decoding time outside the target's forwards */
} CompareRow;

static CompareRow row_of(const Method *m, const Method *plain, int n_runs) {
    CompareRow row = {.stats = &m->runs[speed_median_run(m->tokens_per_s, n_runs)]};
    const fr_stats *c = &row.stats->counts;
    double ratios[SPEED_MAX_RUNS], base = plain->tokens_per_s[speed_median_run(plain->tokens_per_s, n_runs)];
    for (int i = 0; i < n_runs; i++)
        ratios[i] = plain->tokens_per_s[i] > 0 ? m->tokens_per_s[i] / plain->tokens_per_s[i] : 0;
    row.overhead = c->decode_s > 0 ? 1 - c->forward_s / c->decode_s : 0;
    row.speed_up = speed_up(base > 0 ? c->tokens_per_s / base : 0, speed_deviation(ratios, n_runs),
                            c->acceptance_length);
    if (m == plain) row.speed_up = (SpeedUp){.value = 1, .sd = NAN, .verdict = SPEED_BASELINE};
    return row;
}

static void print_table(const Method *methods, int n, int n_runs) {
    bool has_disturbed = false, has_loop = false;
    printf("%-*s %8s %-*s%6s %6s %6s %7s %s\n", NAME_WIDTH, "method", "tokens/s", SPEED_UP_COLUMNS, " speed-up",
           "accept", "draft", "draft", "target", "text");
    printf("%-*s %8s %*s %6s %6s %6s %7s\n", NAME_WIDTH, "", "", SPEED_UP_COLUMNS - 1, "per step:", "tokens", "tokens",
           "ms", "ms");
    for (int i = 0; i < n; i++) {
        const Method *m = &methods[i];
        CompareRow row = row_of(m, &methods[0], n_runs);
        const fr_stats *c = &row.stats->counts;
        double steps = (double)(c->n_steps ? c->n_steps : 1);
        table_name(m->spec ? m->spec : "plain", NAME_WIDTH);
        printf(" %8.1f", c->tokens_per_s);
        speed_up_print(&row.speed_up);
        double draft_ms = 1e3 * c->draft_s / steps, target_ms = 1e3 * c->forward_s / steps;
        printf("%6.2f %6.1f %6.*f %7.*f%s%s\n", c->acceptance_length, (double)c->drafted / steps,
               speed_ms_digits(draft_ms), draft_ms, speed_ms_digits(target_ms), target_ms, m->spec ? " " : "",
               verdict(m));
        if (row.stats->draft_error[0]) printf("    switched off: %s\n", row.stats->draft_error);
        has_disturbed = has_disturbed || row.speed_up.verdict == SPEED_DISTURBED;
        has_loop = has_loop || row.stats->n_repeating;
    }
    speed_print_legend(n_runs, has_disturbed);
    if (has_loop)
        puts("a text repeats itself, which is easily guessed: what is accepted here says\n"
             "little about other text; --repeat-penalty 1.1 may avoid it");
    if (methods[n - 1].dist_only) puts("own text: another text, from the same distribution as plain decoding's");
}

static void print_depths(const Method *methods, int n, int n_runs) {
    stats_print_depths_head(STATS_NAME_WIDTH);
    for (int i = 1; i < n; i++)
        stats_print_depths(row_of(&methods[i], &methods[0], n_runs).stats, methods[i].spec, STATS_NAME_WIDTH);
}

static void print_texts(const Method *methods, int n) {
    for (int i = 0; i < n; i++) {
        const Method *m = &methods[i];
        if (i == 0) printf("plain decoding:\n");
        else if (m->use_color)
            printf("%s%s%s (coloured: drafted and accepted tokens):\n", generate_source_color(0), m->spec,
                   GENERATE_COLOR_OFF);
        else printf("%s:\n", m->spec);
        printf("%s\n\n", m->colored.data ? m->colored.data : "");
        if (!m->use_color && !methods[n - 1].dist_only && !methods[n - 1].is_lossy)
            break; /* without colours all texts look the same */
    }
}

static int print_json(const Method *methods, int n, int n_runs, fr_error *err) {
    json_t *rows = json_array();
    for (int i = 0; i < n; i++) {
        const Method *m = &methods[i];
        CompareRow row = row_of(m, &methods[0], n_runs);
        json_t *j = stats_json(row.stats);
        json_object_update_new(
            j, json_pack("{s:o, s:o, s:o, s:s, s:o, s:b, s:b, s:b}", "method",
                         json_string_or_null(m->spec ? m->spec : "plain"), "speed_up",
                         json_real_or_null(row.speed_up.value), "speed_up_sd", json_real_or_null(row.speed_up.sd),
                         "verdict", speed_verdict_name(row.speed_up.verdict), "overhead",
                         json_real_or_null(row.overhead), "identical", (int)(m->same && !m->dist_only && !m->is_lossy),
                         "same_distribution", (int)(m->same && !m->is_lossy), "lossy", (int)m->is_lossy));
        if (row.stats->draft_error[0])
            json_object_set_new(j, "draft_error", json_string_or_null(row.stats->draft_error));
        json_array_append_new(rows, j);
    }
    return json_print(rows, JSON_INDENT(2) | JSON_REAL_PRECISION(9), err);
}

/* Under a ratio rule, sampling with the same seed gives another text from the same distribution. Greedy texts stay
 * identical. */
static bool keeps_only_distribution(const VerifyRule *rule, const GenerateArgs *a) {
    return rule->is_ratio && a->sampling.temperature > 0;
}

/* Generates a few tokens that are not measured, so that the first run does not meet cold caches and a low clock
 * rate. */
static int warm_up(Generator *g, const GenerateArgs *a, fr_error *err) {
    enum { N_TOKENS = 16 };
    GenerateArgs own = *a;
    own.verify = NULL;
    if (own.n_tokens == 0 || own.n_tokens > N_TOKENS) own.n_tokens = N_TOKENS;
    fr_request *r;
    int status = generator_run(g, &own, NULL, 0, NULL, NULL, &r, err);
    if (!status) fr_request_close(r);
    return status;
}

/* Runs a few steps with each drafter, before minutes of plain decoding: a ratio rule may refuse a drafter's trees,
 * which shows only when there is a tree. */
static int try_rule(Generator *g, const GenerateArgs *a, fr_error *err) {
    GenerateArgs few = *a;
    int status = FR_OK;
    if (few.n_tokens == 0 || few.n_tokens > GENERATE_TRIAL_TOKENS) few.n_tokens = GENERATE_TRIAL_TOKENS;
    for (int i = 0; i < a->n_drafts && !status; i++) {
        fr_request *r;
        status = generator_run(g, &few, &a->drafts[i], 1, NULL, NULL, &r, err);
        if (!status) fr_request_close(r);
    }
    return status;
}

static int compare(Generator *g, const CompareArgs *a, Method *methods, int n, fr_error *err) {
    int status = FR_OK;
    for (int i = 0; i < n && !status; i++) {
        methods[i].runs = calloc((size_t)a->n_runs, sizeof *methods[i].runs);
        if (!methods[i].runs) status = error_memory(err, "statistics", (size_t)a->n_runs * sizeof *methods[i].runs);
    }
    speed_warn_if_busy("compare");
    if (!status && generate_rule(&a->generate)->is_ratio) status = try_rule(g, &a->generate, err);
    if (!status) status = warm_up(g, &a->generate, err);
    Progress bar;
    progress_begin(&bar, stderr, "comparing", (int64_t)a->n_runs * n);
    for (int i_run = 0; i_run < a->n_runs && !status; i_run++)
        for (int i = 0; i < n && !status; i++) {
            status = run_once(g, &a->generate, &methods[i], &methods[0], i_run, err);
            progress_update(&bar, (int64_t)i_run * n + i + 1);
        }
    progress_end(&bar);
    return status;
}

static int run(int argc, char **argv) {
    (void)argc, (void)argv;
    args.generate.engine.prefix_cache = -1; /* every run computes its prompt, so that prefill_s is the whole prefill */
    fr_error err;
    Generator g;
    if (generator_open(&g, &args.generate, &err)) return cli_fail(&err);
    const VerifyRule *rule = generate_rule(&args.generate);
    Method methods[GENERATE_MAX_DRAFTS + 1] = {0};
    int n = args.generate.n_drafts + 1, use_color = generate_use_color(args.generate.color, 1);
    for (int i = 0; i < n; i++)
        methods[i] = (Method){.spec = i ? args.generate.drafts[i - 1] : NULL,
                              .colored.max_bytes = 64 << 20,
                              .use_color = use_color,
                              .is_terminal = isatty(STDOUT_FILENO),
                              .trims = args.generate.chat,
                              .dist_only = i && keeps_only_distribution(rule, &args.generate),
                              .is_lossy = i && rule->is_lossy,
                              .same = true};
    int status = compare(&g, &args, methods, n, &err);
    bool same = true;
    for (int i = 0; i < n; i++) same = same && methods[i].same;
    if (!status) {
        if (args.json) status = print_json(methods, n, args.n_runs, &err);
        else {
            if (!args.no_text) print_texts(methods, n);
            print_table(methods, n, args.n_runs);
            print_depths(methods, n, args.n_runs);
        }
        if (!same) {
            error_set(&err, FR_ERR_INTERNAL, "a text differs where it must be identical: this is a bug in forerun");
            status = err.code;
        }
    }
    for (int i = 0; i < n; i++) {
        free(methods[i].tokens);
        free(methods[i].runs);
        buf_free(&methods[i].colored);
    }
    generator_close(&g);
    return status ? cli_fail(&err) : CLI_OK;
}

const Command command_compare = {
    .name = "compare",
    .summary = "continue a prompt plainly and with each drafter, side by side",
    .about = "Continue the same prompt plainly and with each --draft by itself, and print one table of speed, "
             "acceptance and equality. The exit status is 1 if a token or a logit differs. With a temperature and a "
             "--verify rule other than sampled, drafted texts come from the same distribution as plain decoding but "
             "are different texts: the table then marks them \"own text\" and only checks that repeated runs agree. "
             "Under a lossy rule it marks them \"LOSSY\".",
    .sets = (const OptionSet[]){{generate_options, &args.generate},
                                {generate_prompt_options, &args.generate},
                                {option_table, &args},
                                {NULL, NULL}},
    .list = generate_list_methods,
    .examples =
        "  forerun compare -m models/target.gguf -p \"Once upon a time\" --draft ngram-trie --draft "
        "ngram-trie:rule=paper --color=auto\n"
        "  forerun compare -m target.gguf -f prompt.txt --temp 0.7 --verify recursive --draft rsd-c:model=small.gguf\n",
    .defaults = set_defaults,
    .check = check,
    .files = files,
    .run = run,
};

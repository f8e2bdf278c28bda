/* cmd_compare.c - `forerun compare`: the same prompt plainly and with each drafter, side by side. */
#include "app/run/generate.h"
#include "app/run/step_counts.h"

#include "base/mem.h"
#include "base/progress.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_RUNS = 512, KEY_JSON, KEY_NO_TEXT, MAX_RUNS = 100 };

typedef struct CompareArgs {
    GenerateArgs generate;
    int n_runs, json, no_text;
} CompareArgs;

static const struct argp_option option_table[] = {
    {"runs", KEY_RUNS, "N", 0, "repeat N times, methods in turn, and show medians (default 3)", 5},
    {"no-text", KEY_NO_TEXT, NULL, 0, "only the table", 5},
    {"json", KEY_JSON, NULL, 0, "the table as JSON", 5},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state) {
    CompareArgs *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = state->child_inputs[1] = &a->generate; return 0;
    case KEY_RUNS: a->n_runs = (int)cli_parse_int(state, arg, 1, MAX_RUNS, "--runs"); return 0;
    case KEY_JSON: a->json = 1; return 0;
    case KEY_NO_TEXT: a->no_text = 1; return 0;
    case ARGP_KEY_END:
        if (a->generate.n_drafts == 0) argp_error(state, "no drafter to compare with: --draft SPEC");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* One method: plain decoding (spec NULL) or one drafter. */
typedef struct Method {
    const char *spec;
    double tokens_per_s[MAX_RUNS];
    fr_stats stats;      /* of the last run */
    int32_t *tokens;     /* of the first run, and the hash of its logits */
    int64_t n_tokens;
    uint64_t logits_hash;
    Buf colored;         /* the text of the first run, with colours */
    int use_color;
    bool dist_only;       /* the rule promises the output distribution, not the text */
    bool is_lossy;       /* it promises neither */
    bool same;           /* every run: tokens and hash of logits equal to plain decoding's; with dist_only or is_lossy, to those of
                          * the first run */
} Method;

static const char *verdict(const Method *m) {
    return !m->spec ? "" : !m->same ? "DIFFERENT" : m->is_lossy ? "LOSSY" : m->dist_only ? "same distribution" : "identical";
}

static int keep_token(void *user, const fr_token_event *event) {
    Method *m = user;
    bool paint = m->use_color && event->source >= 0 && event->n_bytes;
    const char *color = generate_source_color(event->source);
    bool fits = true;
    if (paint) fits = buf_append(&m->colored, color, strlen(color));
    fits = fits && buf_append(&m->colored, event->text, event->n_bytes);
    if (paint) fits = fits && buf_append(&m->colored, GENERATE_COLOR_OFF, strlen(GENERATE_COLOR_OFF));
    return !fits;
}

static int run_once(Generator *g, const GenerateArgs *a, Method *m, const Method *plain, int i_run, fr_error *err) {
    fr_request *r;
    GenerateArgs args = *a;
    if (!m->spec) args.verify = NULL; /* plain decoding is sampled by seed, whatever the rule */
    int status = generator_run(g, &args, &m->spec, m->spec != NULL, i_run == 0 ? keep_token : NULL, m, &r, err);
    if (status) return status;
    int64_t n;
    const int32_t *tokens = fr_request_tokens(r, &n);
    fr_request_get_stats(r, &m->stats);
    m->tokens_per_s[i_run] = m->stats.tokens_per_s;
    if (i_run == 0) {
        m->n_tokens = n;
        m->logits_hash = m->stats.logits_hash;
        m->tokens = malloc((size_t)(n ? n : 1) * sizeof *m->tokens);
        if (!m->tokens) status = error_memory(err, "tokens", (size_t)n * sizeof *m->tokens);
        else memcpy(m->tokens, tokens, (size_t)n * sizeof *m->tokens);
    }
    const Method *want = m->dist_only || m->is_lossy ? m : plain;
    if (!status)
        m->same = m->same && n == want->n_tokens && memcmp(tokens, want->tokens, (size_t)n * sizeof *tokens) == 0 &&
                  m->stats.logits_hash == want->logits_hash;
    fr_request_close(r);
    return status;
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const double *v, int n) {
    double sorted[MAX_RUNS];
    memcpy(sorted, v, (size_t)n * sizeof *v);
    qsort(sorted, (size_t)n, sizeof *sorted, compare_doubles);
    return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

/* What a step does beside the target's forward (drafting, verifying, sampling, bookkeeping), as a share of its time. */
static double overhead(const Method *m) {
    return m->stats.decode_s > 0 ? 1 - m->stats.forward_s / m->stats.decode_s : 0;
}

static void print_table(const Method *methods, int n, int n_runs) {
    printf("%-36s %9s %8s %10s %8s %9s %9s %8s  %s\n", "method", "tokens/s", "speed-up", "acceptance", "drafted", "draft ms",
           "target ms", "overhead", "text");
    printf("%-36s %9s %8s %10s %8s %9s %9s %8s\n", "", "", "", "a step", "a step", "a step", "a step", "% of time");
    double plain = median(methods[0].tokens_per_s, n_runs);
    for (int i = 0; i < n; i++) {
        const Method *m = &methods[i];
        double rate = median(m->tokens_per_s, n_runs), steps = (double)(m->stats.n_steps ? m->stats.n_steps : 1);
        printf("%-36.36s %9.1f %7.2fx %10.2f %8.1f %9.3f %9.3f %8.1f  %s\n", m->spec ? m->spec : "plain", rate, rate / plain,
               m->stats.acceptance_length, (double)m->stats.drafted / steps, 1e3 * m->stats.draft_s / steps,
               1e3 * m->stats.forward_s / steps, 100 * overhead(m), verdict(m));
        if (m->stats.draft_error[0]) printf("    switched off: %s\n", m->stats.draft_error);
    }
}

static StepCounts steps_of(const Method *m) {
    StepCounts steps = {0};
    step_counts_take(&steps, &m->stats);
    return steps;
}

static void print_steps(const Method *methods, int n) {
    enum { WIDTH = 36 };
    step_counts_print_head(WIDTH);
    for (int i = 1; i < n; i++) {
        StepCounts steps = steps_of(&methods[i]);
        step_counts_print(&steps, methods[i].spec, WIDTH);
    }
}

static void print_texts(const Method *methods, int n) {
    for (int i = 0; i < n; i++) {
        const Method *m = &methods[i];
        if (i == 0) printf("plain decoding, one token at a time:\n");
        else if (m->use_color)
            printf("%s%s%s, coloured: drafted and accepted:\n", generate_source_color(0), m->spec, GENERATE_COLOR_OFF);
        else printf("%s:\n", m->spec);
        printf("%s\n\n", m->colored.data ? m->colored.data : "");
        if (!m->use_color && !methods[n - 1].dist_only && !methods[n - 1].is_lossy) break; /* without colours the texts are the same text */
    }
}

static void print_json(const Method *methods, int n, int n_runs) {
    json_t *rows = json_array();
    double plain = median(methods[0].tokens_per_s, n_runs);
    for (int i = 0; i < n; i++) {
        const Method *m = &methods[i];
        double rate = median(m->tokens_per_s, n_runs);
        json_array_append_new(rows, json_pack("{s:s, s:f, s:f, s:f, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:b, s:b, s:b}", "method",
            m->spec ? m->spec : "plain", "tokens_per_s", rate, "speed_up", rate / plain, "acceptance_length",
            m->stats.acceptance_length, "n_generated", (json_int_t)m->stats.n_generated, "n_steps",
            (json_int_t)m->stats.n_steps, "drafted", (json_int_t)m->stats.drafted, "accepted",
            (json_int_t)m->stats.accepted, "draft_s", m->stats.draft_s, "forward_s", m->stats.forward_s, "verify_s",
            m->stats.verify_s, "prefill_s", m->stats.prefill_s, "decode_s", m->stats.decode_s, "overhead", overhead(m),
            "identical", (int)(m->same && !m->dist_only && !m->is_lossy), "same_law", (int)(m->same && !m->is_lossy), "lossy",
            (int)m->is_lossy));
        StepCounts steps = steps_of(m);
        step_counts_json(&steps, json_array_get(rows, (size_t)i));
    }
    json_dumpf(rows, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
    putchar('\n');
    json_decref(rows);
}

/* Under a ratio rule a seed gives the text of another draw from the same distribution; greedy texts stay identical. */
static bool only_dist_is_promised(const VerifyRule *rule, const GenerateArgs *a) {
    return rule->is_ratio && a->sampling.temperature > 0;
}

/* What comes first meets cold memory and a sleeping processor: some tokens that nobody counts. */
static int warm_up(Generator *g, const GenerateArgs *a, fr_error *err) {
    enum { N_TOKENS = 16 };
    GenerateArgs args = *a;
    args.verify = NULL;
    if (args.n_tokens == 0 || args.n_tokens > N_TOKENS) args.n_tokens = N_TOKENS;
    fr_request *r;
    int status = generator_run(g, &args, NULL, 0, NULL, NULL, &r, err);
    if (!status) fr_request_close(r);
    return status;
}

static int compare(Generator *g, const CompareArgs *a, Method *methods, int n, fr_error *err) {
    int status = warm_up(g, &a->generate, err);
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

int cmd_compare(int argc, char **argv) {
    static const struct argp_child children[] = {{&generate_argp, 0, NULL, 0}, {&generate_prompt_argp, 0, NULL, 0}, {0}};
    static const struct argp argp = {
        .options = option_table, .parser = parse, .children = children,
        .doc = "Generate from the same prompt plainly and with each drafter by itself: one table of speed, acceptance and "
               "equality. Exits with 1 where any token or logit differs. With --verify RULE other than sampled and a "
               "temperature, drafted texts have the distribution of plain decoding but are other texts: the table says \"same distribution\" "
               "(tests prove the distribution), and only repetitions of a seed are compared; under a lossy rule it says \"LOSSY\".\v"
               "Example:\n"
               "  forerun compare -m models/target.gguf -p \"Once upon a time\" --draft ngram-trie "
               "--draft ngram-trie:rule=paper --color=auto\n"
               "  forerun compare -m target.gguf -f prompt.txt --temp 0.7 --verify recursive "
               "--draft rsd-c:model=small.gguf"};
    CompareArgs a = {.n_runs = 3};
    generate_defaults(&a.generate);
    argp_parse(&argp, argc, argv, 0, NULL, &a);
    a.generate.engine.prefix_cache = -1; /* every run reads its prompt: prefill_s is what it says */
    fr_error err;
    Generator g;
    if (generator_open(&g, &a.generate, &err)) return cli_fail(&err);
    const VerifyRule *rule = generate_rule(&a.generate);
    Method methods[GENERATE_MAX_DRAFTS + 1] = {0};
    int n = a.generate.n_drafts + 1, use_color = generate_use_color(a.generate.color, 1);
    for (int i = 0; i < n; i++)
        methods[i] = (Method){.spec = i ? a.generate.drafts[i - 1] : NULL, .colored.max_bytes = 64 << 20,
                              .use_color = use_color, .dist_only = i && only_dist_is_promised(rule, &a.generate),
                              .is_lossy = i && rule->is_lossy, .same = true};
    int status = compare(&g, &a, methods, n, &err);
    bool same = true;
    for (int i = 0; i < n; i++) same = same && methods[i].same;
    if (!status) {
        if (a.json) print_json(methods, n, a.n_runs);
        else {
            if (!a.no_text) print_texts(methods, n);
            print_table(methods, n, a.n_runs);
            print_steps(methods, n);
        }
        if (!same) {
            error_set(&err, FR_ERR_INTERNAL, "a text differs where it must not: this is a bug in forerun");
            status = err.code;
        }
    }
    for (int i = 0; i < n; i++) {
        free(methods[i].tokens);
        buf_free(&methods[i].colored);
    }
    generator_close(&g);
    return status ? cli_fail(&err) : CLI_OK;
}

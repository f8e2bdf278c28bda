/* study_run.c - runs every tree of an experiment on every prompt, alternating with plain decoding. */
#include "base/progress.h"
#include "cli/json_memory.h"
#include "cli/plot.h"
#include "research/acceptance.h"
#include "research/study.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PROMPTS = 256, MAX_PROMPTS_BYTES = 16 << 20, MAX_DRAFT = 512 };

typedef struct Prompt {
    int32_t *tokens;
    int64_t n;
} Prompt;

typedef struct Study {
    fr_model *target;
    fr_engine *engine;
    Prompt prompts[MAX_PROMPTS];
    int n_prompts;
    Progress bar;
    int64_t n_done;
} Study;

static int read_prompt(Study *s, const char *line, size_t n, fr_error *err) {
    json_error_t where;
    json_t *record = json_loadb(line, n, 0, &where);
    const json_t *text = json_object_get(record, "prompt");
    int status;
    if (!json_is_string(text)) status = error_set(err, FR_ERR_FORMAT, "is not a JSON object with a string \"prompt\"");
    else if (s->n_prompts == MAX_PROMPTS)
        status = error_set(err, FR_ERR_FORMAT, "is one prompt too many: a study takes at most %d", MAX_PROMPTS);
    else {
        Prompt *p = &s->prompts[s->n_prompts++];
        status = fr_tokenize(s->target, json_string_value(text), json_string_length(text), FR_TOKENIZE_PROMPT,
                             &p->tokens, &p->n, err);
    }
    json_decref(record);
    return status;
}

static int read_prompts(Study *s, const char *path, fr_error *err) {
    char *text;
    size_t n;
    int status = cli_read_file(path, MAX_PROMPTS_BYTES, &text, &n, err), number = 1;
    if (status) return status;
    for (char *line = text, *end; !status && line < text + n; line = end + 1, number++) {
        end = memchr(line, '\n', (size_t)(text + n - line));
        if (!end) end = text + n;
        if (strspn(line, " \t\r") >= (size_t)(end - line)) continue;
        fr_error why;
        status = read_prompt(s, line, (size_t)(end - line), &why);
        if (status) error_set(err, status, "%s: line %d %s", path, number, why.message);
    }
    free(text);
    if (!status && s->n_prompts == 0) status = error_set(err, FR_ERR_FORMAT, "%s: the file has no prompts", path);
    return status;
}

/* Finds the bytes that a forward of the draft model reads. */
static int draft_bytes(const char *path, size_t *out, fr_error *err) {
    fr_model *draft;
    fr_model_info info = {.struct_size = sizeof info};
    int status = fr_model_open(&draft, path, NULL, err);
    if (status) return status;
    fr_model_get_info(draft, &info);
    *out = info.weight_bytes;
    fr_model_close(draft);
    return FR_OK;
}

static int open_study(Study *s, const StudyArgs *a, double *size_ratio, fr_error *err) {
    fr_model_options model_options = {.struct_size = sizeof model_options,
                                      .n_threads = a->n_threads,
                                      .packed_file = cli_packed_file(a->model)};
    fr_engine_options engine_options = {.struct_size = sizeof engine_options, .n_threads = a->n_threads};
    fr_model_info info = {.struct_size = sizeof info};
    int status = fr_model_open(&s->target, a->model, &model_options, err);
    fr_model_get_info(s->target, &info);
    cli_note_packed(info.packed_error);
    if (!status) status = fr_engine_open(&s->engine, s->target, &engine_options, err);
    if (!status) status = read_prompts(s, a->prompts, err);
    size_t n_bytes = 0;
    if (!status) status = draft_bytes(a->draft_model, &n_bytes, err);
    if (status) return status;
    *size_ratio = (double)n_bytes / (double)info.weight_bytes;
    return FR_OK;
}

static void close_study(Study *s) {
    for (int i = 0; i < s->n_prompts; i++) fr_free(s->prompts[i].tokens);
    fr_engine_close(s->engine);
    fr_model_close(s->target);
}

/* ---- trees ----------------------------------------------------------------------------------------------- */

enum { MAX_NUMBERS = 32 };

/* Reads the numbers of a shape; returns their count. */
static int32_t read_shape(const char *shape, int32_t *numbers) {
    int32_t n = 0;
    for (const char *p = shape;; p++) {
        char *end;
        numbers[n++] = (int32_t)strtol(p, &end, 10);
        p = end;
        if (!*p) return n;
    }
}

int32_t study_tree_depth(const StudyTree *t) {
    int32_t numbers[MAX_NUMBERS] = {0}, n = read_shape(t->shape, numbers);
    if (t->method == STUDY_SD) return numbers[0];
    return t->method == STUDY_RSD_C ? n : numbers[1];
}

int32_t study_tree_nodes(const StudyTree *t) {
    int32_t numbers[MAX_NUMBERS] = {0}, n = read_shape(t->shape, numbers);
    if (t->method == STUDY_SD) return numbers[0];
    if (t->method != STUDY_RSD_C) return numbers[0] * numbers[1];
    int32_t level = 1, nodes = 0;
    for (int32_t i = 0; i < n; i++) {
        level *= numbers[i];
        nodes += level;
    }
    return nodes;
}

/* Writes the spec of the draft that proposes such trees. */
static void study_tree_draft(const StudyTree *t, const char *draft_model, char *out, size_t n_out) {
    int32_t v[MAX_NUMBERS] = {0};
    read_shape(t->shape, v);
    switch (t->method) {
    case STUDY_SD: snprintf(out, n_out, "sps:model=%s,length=%d", draft_model, v[0]); return;
    case STUDY_SPECTR: snprintf(out, n_out, "spectr:model=%s,paths=%d,length=%d", draft_model, v[0], v[1]); return;
    case STUDY_RSD_C: snprintf(out, n_out, "rsd-c:model=%s,branch=%s", draft_model, t->shape); return;
    case STUDY_RSD_S:
    case STUDY_RSD_S_TRANSPORT:
        snprintf(out, n_out, "rsd-s:model=%s,width=%d,depth=%d", draft_model, v[0], v[1]);
        return;
    case STUDY_N_METHODS: fr_assert(t->method < STUDY_N_METHODS);
    }
}

/* ---- answers --------------------------------------------------------------------------------------------- */

/* Generates one answer and adds its statistics to the row. */
static int answer(Study *s, const StudyArgs *a, const StudyResult *r, StudyRow *row, const Prompt *p, int run,
                  fr_error *err) {
    char text[MAX_DRAFT];
    const char *draft = text;
    fr_request_options o = {.struct_size = sizeof o,
                            .prompt = p->tokens,
                            .n_prompt = p->n,
                            .max_tokens = a->n_tokens,
                            .sampling = fr_sampling_default()};
    o.sampling.temperature = (float)r->temperature;
    o.sampling.top_p = (float)r->top_p;
    o.sampling.seed = (uint64_t)run + 1;
    if (row->tree) {
        study_tree_draft(row->tree, a->draft_model, text, sizeof text);
        o.drafts = &draft;
        o.n_drafts = 1;
        o.tree_budget = study_tree_nodes(row->tree);
        o.verify = study_method_rule(row->tree->method);
    }
    fr_request *request;
    int status = row->tree ? fr_engine_open_draft(s->engine, draft, err)
                           : FR_OK; /* the arrays are already open, except for the first prompt */
    if (!status) status = fr_request_open(&request, s->engine, &o, err);
    if (status) return status;
    while ((status = fr_engine_step(s->engine, err)) > 0) {}
    fr_stats stats = {.struct_size = sizeof stats};
    fr_request_get_stats(request, &stats);
    if (!status && fr_request_finish_reason(request) == FR_FINISH_ERROR)
        *err = *fr_request_error(request), status = err->code;
    if (!status && *fr_request_draft_error(request))
        status = error_set(err, FR_ERR_INTERNAL, "a drafter failed: %s", fr_request_draft_error(request));
    fr_request_close(request);
    row->n_tokens[run] += stats.n_generated;
    row->n_steps[run] += stats.n_steps;
    row->decode_s[run] += stats.decode_s;
    return status;
}

/* The rows alternate on each prompt, so that other load on the machine affects them alike. */
static int answer_all(Study *s, const StudyArgs *a, StudyResult *r, fr_error *err) {
    for (int run = 0; run < r->n_runs; run++)
        for (int p = 0; p < s->n_prompts; p++)
            for (int i = 0; i < r->n_rows; i++) {
                int status = answer(s, a, r, &r->rows[(i + run + p) % r->n_rows], &s->prompts[p], run, err);
                if (status) return status;
                progress_update(&s->bar, ++s->n_done);
            }
    return FR_OK;
}

int study_run(const StudyArgs *a, const StudyPlan *plan, double temperature, double top_p, StudyResult *out,
              fr_error *err) {
    fr_assert(plan->n_trees < STUDY_MAX_ROWS && a->n_runs <= STUDY_MAX_RUNS);
    *out = (StudyResult){.plan = plan,
                         .temperature = temperature,
                         .top_p = top_p,
                         .n_runs = a->n_runs,
                         .n_rows = plan->n_trees + 1};
    for (int i = 1; i < out->n_rows; i++) out->rows[i].tree = &plan->trees[i - 1];
    Study s = {.n_prompts = 0};
    int status = open_study(&s, a, &out->size_ratio, err);
    if (!status) {
        progress_begin(&s.bar, stderr, plan->group_name, (int64_t)a->n_runs * s.n_prompts * out->n_rows);
        status = answer_all(&s, a, out, err);
        progress_end(&s.bar);
    }
    close_study(&s);
    return status;
}

/* Fig. 1 of Recursive Speculative Decoding shows how often four verification rules accept one of two drafts from Ber(p)
 * where the target is Ber(q). Nothing is sampled: the rules themselves run once for every possible outcome of drafts
 * and random source (acceptance.h), and the optimum is a maximum flow (acceptance.c). */

enum { N_POINTS = 19, N_RULES = 4, N_DRAFTS = 2 };

static const char *const names[N_RULES] = {"multi-round", "k-seq", "optimum with replacement", "recursive"};

static const char *const headings[N_RULES] = {"multi-round", "k-seq", "optimum", "recursive"};

typedef struct Toy {
    double target, draft[N_POINTS], accepted[N_RULES][N_POINTS];
} Toy;

static void compute(Toy *t, double target) {
    const double p[2] = {1 - target, target}; /* the paper calls the target q; here it is p, as everywhere */
    t->target = target;
    for (int i = 0; i < N_POINTS; i++) {
        t->draft[i] = (i + 1) / (double)(N_POINTS + 1);
        const float q[2] = {(float)(1 - t->draft[i]), (float)t->draft[i]};
        t->accepted[0][i] = acceptance_multi_round(p, q, 2, N_DRAFTS);
        t->accepted[1][i] = acceptance_k_seq(p, q, 2, N_DRAFTS, 0);
        t->accepted[2][i] = acceptance_optimum(p, q, 2, N_DRAFTS);
        t->accepted[3][i] = acceptance_recursive(p, q, 2, N_DRAFTS);
    }
}

static void print(const Toy *t) {
    printf("target Ber(%g), two drafts from Ber(p): how often one of them is accepted\n"
           "optimum: of rules whose drafts are drawn with replacement\n%-6s",
           t->target, "p");
    for (int r = 0; r < N_RULES; r++) printf("  %-16s", headings[r]);
    putchar('\n');
    for (int i = 0; i < N_POINTS; i++) {
        printf("%-6.2f", t->draft[i]);
        for (int r = 0; r < N_RULES; r++) printf("  %-16.6f", t->accepted[r][i]);
        putchar('\n');
    }
}

static int write_json(const Toy *t, const char *path, fr_error *err) {
    json_t *j = json_pack("{s:f}", "target", t->target), *draft = json_array();
    for (int i = 0; i < N_POINTS; i++) json_array_append_new(draft, json_real(t->draft[i]));
    json_object_set_new(j, "draft", draft);
    for (int r = 0; r < N_RULES; r++) {
        json_t *values = json_array();
        for (int i = 0; i < N_POINTS; i++) json_array_append_new(values, json_real(t->accepted[r][i]));
        json_object_set_new(j, names[r], values);
    }
    int status = json_file_write(j, path, JSON_INDENT(1), err);
    json_decref(j);
    return status;
}

static int draw(const Toy *t, const char *prefix, fr_error *err) {
    char path[STUDY_MAX_PATH], title[128];
    snprintf(path, sizeof path, "%.*s.svg", STUDY_MAX_PREFIX, prefix);
    snprintf(title, sizeof title, "Two drafts from Ber(p), target Ber(%g)", t->target);
    PlotSeries series[N_RULES];
    for (int r = 0; r < N_RULES; r++)
        series[r] = (PlotSeries){.name = names[r], .n = N_POINTS, .x = t->draft, .y = t->accepted[r]};
    Plot plot = {.kind = PLOT_LINES,
                 .title = title,
                 .x_label = "p of the draft",
                 .y_label = "probability that a draft is accepted",
                 .series = series,
                 .n_series = N_RULES};
    return plot_write_svg(&plot, path, err);
}

int study_toy(double target, const char *json, const char *prefix, fr_error *err) {
    Toy t;
    int status = prefix ? plot_check(err) : FR_OK;
    if (status) return status;
    compute(&t, target);
    print(&t);
    if (json) status = write_json(&t, json, err);
    return status || !prefix ? status : draw(&t, prefix, err);
}

/* The trees of appendix D.3 of the paper, and the --draft options that make them here. */

static const struct {
    const char *name, *rule;
} methods[STUDY_N_METHODS] = {
    {"SD", "chain"},
    {"SpecTr", "k-seq"},
    {"RSD-C", "recursive"},
    {"RSD-S", "recursive"},
    {"RSD-S transport", "transport"},
};

const char *study_method_name(StudyMethod m) { return methods[m].name; }
const char *study_method_rule(StudyMethod m) { return methods[m].rule; }

#define SD(group, shape) \
    { group, STUDY_SD, shape }
#define PATHS(group, shape) \
    {group, STUDY_SPECTR, shape}, {group, STUDY_RSD_S, shape}, { group, STUDY_RSD_S_TRANSPORT, shape }
#define BRANCH(group, shape) \
    { group, STUDY_RSD_C, shape }

static const StudyTree by_length[] = {
    SD(2, "2"),
    PATHS(2, "2x2"),
    PATHS(2, "3x2"),
    BRANCH(2, "2-2"),
    BRANCH(2, "2-1"),
    BRANCH(2, "3-1"),
    SD(3, "3"),
    PATHS(3, "3x3"),
    PATHS(3, "4x3"),
    BRANCH(3, "2-2-2"),
    BRANCH(3, "3-1-1"),
    BRANCH(3, "4-1-1"),
    SD(4, "4"),
    PATHS(4, "5x4"),
    PATHS(4, "7x4"),
    BRANCH(4, "2-2-2-2"),
    BRANCH(4, "5-1-1-1"),
    BRANCH(4, "7-1-1-1"),
    SD(5, "5"),
    PATHS(5, "6x5"),
    PATHS(5, "12x5"),
    BRANCH(5, "2-2-2-2-2"),
    BRANCH(5, "6-1-1-1-1"),
    BRANCH(5, "12-1-1-1-1"),
};

static const StudyTree by_budget[] = {
    SD(6, "6"),
    PATHS(6, "2x3"),
    PATHS(6, "3x2"),
    BRANCH(6, "2-1-1"),
    BRANCH(6, "2-2"),
    BRANCH(6, "3-1"),
    SD(10, "10"),
    PATHS(10, "2x5"),
    PATHS(10, "5x2"),
    BRANCH(10, "2-1-1-1-1"),
    BRANCH(10, "2-2-1"),
    BRANCH(10, "5-1"),
    SD(14, "14"),
    PATHS(14, "2x7"),
    PATHS(14, "7x2"),
    BRANCH(14, "2-1-1-1-1-1"),
    BRANCH(14, "2-2-2"),
    BRANCH(14, "7-1"),
    SD(21, "21"),
    PATHS(21, "3x7"),
    PATHS(21, "7x3"),
    BRANCH(21, "3-1-1-1-1-1"),
    BRANCH(21, "3-2-2"),
    BRANCH(21, "7-1-1"),
    SD(30, "30"),
    PATHS(30, "5x6"),
    PATHS(30, "6x5"),
    BRANCH(30, "2-2-2-2"),
    BRANCH(30, "5-1-1-1-1"),
    BRANCH(30, "6-1-1-1-1"),
};

#define COUNT(a) ((int32_t)(sizeof(a) / sizeof *(a)))
const StudyPlan study_by_length = {"length", "draft length", by_length, COUNT(by_length)};
const StudyPlan study_by_budget = {"budget", "node budget", by_budget, COUNT(by_budget)};

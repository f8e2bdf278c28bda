/* study_run.c - runs every tree of an experiment on every prompt, alternating with plain decoding. */
#include "research/study.h"

#include "base/progress.h"

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

/* The bytes that a forward of the draft model reads. */
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
                           : FR_OK; /* open already but for the first prompt */
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

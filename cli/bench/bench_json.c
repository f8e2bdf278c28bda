/* bench_json.c - writes all measurements of `forerun bench` as one JSON object. docs/BENCH.md explains the fields. */
#include "cli/bench/bench.h"
#include "cli/json_memory.h"

#include "base/os.h"
#include "base/threads.h"
#include "draft/drafter.h"

#include <stdio.h>

static json_t *spread_json(const BenchSpread *s, int n) {
    json_t *runs = json_array();
    for (int i = 0; i < n; i++) json_array_append_new(runs, json_real_or_null(s->runs[i]));
    return json_pack("{s:o, s:o, s:o}", "mean", json_real_or_null(s->mean), "sd", json_real_or_null(s->sd), "runs",
                     runs);
}

static json_t *record_json(const BenchRecord *x) {
    json_t *j = stats_json(&x->stats);
    json_object_set_new(j, "n_turns", json_integer(x->n_turns));
    return j;
}

static json_t *row_json(const BenchResults *r, int i_category, int i_method) {
    BenchRow row;
    bench_row(r, i_category, i_method, &row);
    double steps = row.sum.stats.counts.n_steps ? (double)row.sum.stats.counts.n_steps : 1;
    json_t *j = record_json(&row.sum);
    json_object_update_new(
        j, json_pack("{s:s, s:o, s:i, s:i, s:o, s:o, s:s, s:o, s:f, s:i, s:i, s:b, s:b}", "category",
                     i_category < 0 ? "all" : r->questions->categories[i_category], "method",
                     json_string_or_null(r->methods[i_method].name), "n_parallel", r->n_parallel, "n_questions",
                     row.n_questions, "tokens_per_s", spread_json(&row.rate, r->n_runs), "speed_up",
                     spread_json(&row.speed_up, r->n_runs), "verdict", speed_verdict_name(row.verdict),
                     "prefill_tokens_per_s", spread_json(&row.prefill_rate, r->n_runs), "drafted_per_step",
                     (double)row.sum.stats.counts.drafted / steps, "n_answers", row.n_answers, "n_identical",
                     row.n_same, "identical", (int)(row.same && !(r->is_lossy && i_method > 0)), "lossy",
                     (int)(r->is_lossy && i_method > 0)));
    return j;
}

static void add_rows(json_t *rows, const BenchResults *r) {
    for (int c = -1; c < r->questions->n_categories && r->n_runs; c++) {
        for (int m = 0; m < r->n_methods; m++) {
            json_t *row = row_json(r, c, m);
            if (r->wall_s && c >= 0) { /* a pass has one wall time for all categories */
                json_object_set_new(row, "tokens_per_s", json_null());
                json_object_set_new(row, "speed_up", json_null());
                json_object_set_new(row, "verdict", json_null());
            }
            json_array_append_new(rows, row);
        }
    }
}

static void add_records(json_t *records, const BenchResults *r) {
    for (int run = 0; run < r->n_runs; run++)
        for (int q = 0; q < r->n_questions; q++)
            for (int m = 0; m < r->n_methods; m++) {
                const BenchRecord *x = bench_record(r, run, q, m);
                const BenchQuestion *question = &r->questions->items[q];
                char fingerprint[20];
                snprintf(fingerprint, sizeof fingerprint, "%016llx", (unsigned long long)x->fingerprint);
                json_t *j = record_json(x);
                json_object_update_new(j, json_pack("{s:i, s:I, s:s, s:o, s:i, s:s}", "run", run, "question_id",
                                                    (json_int_t)question->id, "category",
                                                    r->questions->categories[question->i_category], "method",
                                                    json_string_or_null(r->methods[m].name), "n_parallel",
                                                    r->n_parallel, "fingerprint", fingerprint));
                if (question->name) json_object_set_new(j, "question_id", json_string_or_null(question->name));
                if (question->thinking >= 0) json_object_set_new(j, "thinking", json_boolean(question->thinking));
                json_array_append_new(records, j);
            }
}

static int append_name(void *list, const char *spec, fr_error *err) {
    (void)err;
    json_array_append_new(list, json_string_or_null(spec));
    return FR_OK;
}

static json_t *methods_json(const BenchResults *r) {
    json_t *methods = json_array();
    for (int m = 0; m < r->n_methods; m++) {
        json_t *drafts = json_array();
        for (int i = 0; i < r->methods[m].n_drafts; i++)
            (void)drafter_each(r->methods[m].drafts[i], append_name, drafts, NULL);
        int budget = r->methods[m].tree_budget ? r->methods[m].tree_budget : FR_TREE_BUDGET;
        int64_t memory = bench_memory(r, m);
        json_array_append_new(methods,
                              json_pack("{s:o, s:o, s:i, s:o}", "name", json_string_or_null(r->methods[m].name),
                                        "drafts", drafts, "tree_budget", r->methods[m].n_drafts ? budget : 0,
                                        "memory_bytes", memory < 0 ? json_null() : json_integer(memory)));
    }
    return methods;
}

static json_t *tuning_json(const BenchTuning *t) {
    if (!t->chain) return json_null();
    json_t *tried = json_array();
    for (int i = 0; i < t->n_lengths; i++)
        json_array_append_new(tried, json_pack("{s:i, s:o}", "length", t->lengths[i], "tokens_per_s",
                                               json_real_or_null(t->tokens_per_s[i])));
    return json_pack("{s:o, s:i, s:i, s:o}", "chain", json_string_or_null(t->chain), "n_questions", t->n_questions,
                     "best_length", t->lengths[t->best], "tried", tried);
}

static json_t *settings_json(const BenchReport *r) {
    const GenerateArgs *a = r->rig->args;
    const fr_sampling *s = &a->sampling;
    fr_model_info info = {.struct_size = sizeof info};
    fr_model_get_info(r->rig->model, &info);
    json_t *sampling = json_pack("{s:f, s:i, s:f, s:f, s:f, s:f, s:f, s:i, s:I}", "temperature", (double)s->temperature,
                                 "top_k", s->top_k, "top_p", (double)s->top_p, "min_p", (double)s->min_p,
                                 "repeat_penalty", (double)s->repeat_penalty, "frequency_penalty",
                                 (double)s->frequency_penalty, "presence_penalty", (double)s->presence_penalty,
                                 "penalty_last_n", s->penalty_last_n, "seed", (json_int_t)s->seed);
    char cpu[128];
    os_cpu_name(cpu, sizeof cpu);
    return json_pack("{s:s, s:s, s:o, s:o, s:s, s:o, s:o, s:s, s:i, s:o, s:s, s:I, s:o, s:s, s:i, s:i, s:i}", "version",
                     fr_version(), "commit", bench_commit(), "cpu", json_string_or_null(cpu), "command",
                     json_string_or_null(r->command), "model_hash", r->model_hash, "model",
                     json_string_or_null(a->model), "model_name", json_string_or_null(info.name), "kernel_table",
                     info.kernels, "threads", a->engine.n_threads ? a->engine.n_threads : threads_n_physical_cores(),
                     "questions_file", json_string_or_null(r->path), "chat_family",
                     r->rig->chat ? info.chat_family : "none", "max_tokens", (json_int_t)a->n_tokens, "sampling",
                     sampling, "verify", a->verify ? a->verify : "sampled", "runs_wanted", r->n_runs_wanted, "runs",
                     r->results[0].n_runs, "questions_left_out", r->n_left_out);
}

int bench_write_json(const BenchReport *r, const char *path, fr_error *err) {
    json_t *j = settings_json(r), *rows = json_array(), *records = json_array();
    for (int b = 0; b < r->n_results; b++) {
        add_rows(rows, &r->results[b]);
        add_records(records, &r->results[b]);
    }
    int failed = json_object_set_new(j, "warm_up_file", json_string_or_null(r->warm_up_path));
    failed |= json_object_set_new(j, "methods", methods_json(&r->results[0]));
    failed |= json_object_set_new(j, "tuning", tuning_json(&r->tuning));
    failed |= json_object_set_new(j, "summary", rows);
    failed |= json_object_set_new(j, "records", records);
    failed |= json_object_set_new(j, "draft_error", json_string_or_null(r->rig->draft_error));
    int status = json_file_write(failed ? NULL : j, path, JSON_INDENT(1) | JSON_REAL_PRECISION(9), err);
    json_decref(j);
    return status;
}

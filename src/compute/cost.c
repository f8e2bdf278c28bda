/* cost.c - T(n): the time of a forward of n rows, measured, and the least that the machine would allow. */
#include "compute/cost.h"

#include "base/system.h"
#include "base/mem.h"

#include <math.h>
#include <stdlib.h>

void cost_work(const Weights *w, KvType kv_type, CostWork *out) { w->backend->work(w, kv_type, out); }

int cost_machine_speed(const Weights *w, int n_threads, MachineSpeed *out, fr_error *err) {
    *out = (MachineSpeed){0};
    return w->backend->speed ? w->backend->speed(w, n_threads, out, err) : FR_OK;
}

/* Of the experts, what n_rows rows are expected to read. */
static double expert_bytes(const CostWork *work, int32_t n_rows) {
    return work->expert_bytes * (1 - pow(1 - work->expert_share, n_rows));
}

double cost_limit_s(const CostWork *work, const MachineSpeed *speed, int32_t n_rows, int32_t n_context) {
    if (speed->read_gb_s <= 0) return 0;
    double read_s = (work->weight_bytes + expert_bytes(work, n_rows) +
                     cost_keys_seen(work, n_context + n_rows) * work->kv_bytes_per_key) /
                    (speed->read_gb_s * 1e9);
    double attention_ops = n_rows * cost_keys_seen(work, cost_keys_of_row(n_rows, n_context)) * work->attention_ops;
    double compute_s = attention_ops / (speed->peak_gop_s[PEAK_F32] * 1e9);
    for (int k = 0; k < PEAK_COUNT; k++) compute_s += n_rows * work->ops_per_row[k] / (speed->peak_gop_s[k] * 1e9);
    return read_s > compute_s ? read_s : compute_s;
}

enum { MAX_ROUNDS = 200 };

/* Any tokens do: the cost of a forward does not depend on what is read. */
static void fill_chain(Row *rows, int32_t n, int32_t sequence, int32_t n_vocab, bool want_logits) {
    for (int32_t i = 0; i < n; i++)
        rows[i] =
            (Row){.token = (i * 37 + 11) % n_vocab, .sequence = sequence, .parent = i - 1, .want_logits = want_logits};
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int measure(Executor *e, Row *rows, int32_t sequence, int32_t n_vocab, const int32_t *row_counts, int n,
                   int min_rounds, double budget_s, double quantile, double *samples, double *seconds, fr_error *err) {
    int n_rounds = 0;
    double end_s = clock_s() + budget_s;
    while (n_rounds < min_rounds || (n_rounds < MAX_ROUNDS && clock_s() < end_s)) {
        for (int i = 0; i < n; i++) {
            fill_chain(rows, row_counts[i], sequence, n_vocab, true);
            int status = executor_reserve(e, sequence, row_counts[i], err);
            double start_s = clock_s();
            if (!status) status = executor_forward(e, rows, row_counts[i], err);
            if (status) return status;
            samples[i * MAX_ROUNDS + n_rounds] = clock_s() - start_s;
            executor_commit(e, sequence, NULL, 0);
        }
        n_rounds++;
    }
    for (int i = 0; i < n; i++) {
        qsort(samples + i * MAX_ROUNDS, (size_t)n_rounds, sizeof *samples, compare_doubles);
        seconds[i] = samples[i * MAX_ROUNDS + (int)(quantile * n_rounds)];
    }
    return FR_OK;
}

int cost_measure(Executor *e, int32_t n_context, const int32_t *row_counts, int n, int min_rounds, double budget_s,
                 double quantile, double *seconds, fr_error *err) {
    int32_t max_rows = executor_max_rows(e), n_vocab = executor_n_vocab(e), sequence;
    int status = FR_OK;
    for (int i = 0; i < n && !status; i++) status = executor_reserve_logits(e, row_counts[i], err);
    if (!status) status = executor_sequence_open(e, &sequence, err);
    if (status) return status;
    Row *rows = mem_calloc((size_t)max_rows, sizeof *rows);
    double *samples = mem_calloc((size_t)n * MAX_ROUNDS, sizeof *samples);
    if (!rows || !samples) status = error_memory(err, "a measurement", (size_t)max_rows * sizeof *rows);
    if (!status) status = executor_sequence_pad(e, sequence, n_context, err);
    if (!status)
        status = measure(e, rows, sequence, n_vocab, row_counts, n, min_rounds, budget_s, quantile, samples, seconds,
                         err);
    mem_free(rows);
    mem_free(samples);
    executor_sequence_close(e, sequence);
    return status;
}

#include "backend/cost.h"

#include "base/clock.h"
#include "base/mem.h"

#include <stdlib.h>

static void add_matrix(const PackedMatrix *m, CostWork *w) {
    double ops = 2.0 * (double)m->n_out * (double)m->n_in;
    ActForm form = m->act;
    /* 16-bit activations are two byte planes */
    if (form == ACT_Q16) w->ops_per_row[PEAK_INT8] += 2 * ops;
    else if (form == ACT_Q8) w->ops_per_row[PEAK_INT8] += ops;
    else w->ops_per_row[form == ACT_BF16 ? PEAK_BF16 : PEAK_F32] += ops;
}

void cost_work(const Model *m, KvType kv_type, CostWork *out) {
    const Hparams *h = &m->hparams;
    *out = (CostWork){.weight_bytes = (double)m->weight_bytes};
    out->kv_bytes_per_key = 2.0 * h->n_layer * h->n_head_kv * (double)kv_row_bytes(kv_type, h->head_dim);
    out->attention_ops = 4.0 * (double)hparams_q_dim(h) * h->n_layer;
    add_matrix(&m->output, out);
    for (int32_t i = 0; i < h->n_layer; i++) {
        const LayerWeights *l = &m->layers[i];
        const PackedMatrix *all[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down};
        for (size_t k = 0; k < sizeof all / sizeof *all; k++) add_matrix(all[k], out);
    }
}

double cost_limit_s(const CostWork *work, const MachineSpeed *speed, int32_t n_rows, int32_t n_context) {
    double read_s = (work->weight_bytes + (n_context + n_rows) * work->kv_bytes_per_key) / (speed->read_gb_s * 1e9);
    double attention_ops = n_rows * cost_keys_of_row(n_rows, n_context) * work->attention_ops;
    double compute_s = attention_ops / (speed->peak_gop_s[PEAK_F32] * 1e9);
    for (int k = 0; k < PEAK_COUNT; k++) compute_s += n_rows * work->ops_per_row[k] / (speed->peak_gop_s[k] * 1e9);
    return read_s > compute_s ? read_s : compute_s;
}

enum { MAX_ROUNDS = 200 };

/* Any tokens do: the cost of a forward does not depend on what is read. */
static void fill_chain(Row *rows, int32_t n, int32_t sequence, int32_t n_vocab, bool want_logits) {
    for (int32_t i = 0; i < n; i++)
        rows[i] = (Row){.token = (i * 37 + 11) % n_vocab, .sequence = sequence, .parent = i - 1, .want_logits = want_logits};
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
    int status = executor_sequence_open(e, &sequence, err);
    if (status) return status;
    Row *rows = mem_calloc((size_t)max_rows, sizeof *rows);
    double *samples = mem_calloc((size_t)n * MAX_ROUNDS, sizeof *samples);
    if (!rows || !samples) status = error_memory(err, "a measurement", (size_t)max_rows * sizeof *rows);
    if (!status) status = executor_sequence_pad(e, sequence, n_context, err);
    if (!status) status = measure(e, rows, sequence, n_vocab, row_counts, n, min_rounds, budget_s, quantile, samples, seconds, err);
    mem_free(rows);
    mem_free(samples);
    executor_sequence_close(e, sequence);
    return status;
}

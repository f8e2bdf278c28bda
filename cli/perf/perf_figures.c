/* perf_figures.c - `forerun perf --figures`: a few figures of verification beside the limits of this machine.
 *
 * For one row it prints the share of the read bandwidth, and for 4, 8, 16 and 32 rows T(n)/T(1). Beside each figure it
 * prints the limit: the same figure for a forward that keeps either the memory or the arithmetic units busy all the
 * time, at the speeds measured in the same run. The bandwidth is measured by reading the model's own weights,
 * alternating with the forwards, because the placement of pages can change it by a factor of two. Then the time is
 * broken down into products, attention and the rest. */
#include "cli/cli.h"

#include "cli/json_memory.h"
#include "base/system.h"
#include "compute/cost.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>

enum { N_COUNTS = 5, N_SPLITS = 2, MIN_ROUNDS = 5 };
static const int32_t COUNTS[N_COUNTS] = {1, 4, 8, 16, 32}, CONTEXTS[] = {128, 1024}, SPLITS[N_SPLITS] = {1, 16};

typedef struct Figures {
    int32_t n_context;
    MachineSpeed speed; /* its read bandwidth is measured on the model's weights */
    double seconds[N_COUNTS], limit_s[N_COUNTS];
    double value[N_COUNTS], floor[N_COUNTS];
    struct {
        double products_s, products_floor_s, attention_s, attention_floor_s, rest_s;
    } split[N_SPLITS];
} Figures;

/* Alternates reading the weights with forwards over each number of rows, and keeps the fastest time of each. */
static int measure(Figures *f, const CliModel *m, Executor *e, double seconds, fr_error *err) {
    double read_s = INFINITY, end_s = clock_s() + seconds;
    for (int i = 0; i < N_COUNTS; i++) f->seconds[i] = INFINITY;
    for (int round = 0; round < MIN_ROUNDS || clock_s() < end_s; round++) {
        double now[N_COUNTS], reading;
        int status = cost_read_weights(m->device, m->weights, &reading, err);
        if (!status) status = cost_measure(e, f->n_context, COUNTS, N_COUNTS, 1, 0, 0, now, err);
        if (status) return status;
        if (reading < read_s) read_s = reading;
        for (int i = 0; i < N_COUNTS; i++)
            if (now[i] < f->seconds[i]) f->seconds[i] = now[i];
    }
    f->speed.read_gb_s = (double)m->weights->bytes / read_s * 1e-9;
    return FR_OK;
}

/* Measures the arithmetic peaks before and after and keeps the better ones, because other programs may have slowed down
 * one of the two measurements. */
static int measure_between_peaks(Figures *f, const CliModel *m, Executor *e, double seconds, fr_error *err) {
    MachineSpeed after;
    int status = cost_machine_speed(m->weights, m->n_threads, &f->speed, err);
    if (!status) status = measure(f, m, e, seconds, err);
    if (!status) status = cost_machine_speed(m->weights, m->n_threads, &after, err);
    if (!status) machine_speed_keep_peaks(&f->speed, &after);
    return status;
}

static void derive(Figures *f, const CostWork *work) {
    for (int i = 0; i < N_COUNTS; i++) {
        f->limit_s[i] = cost_limit_s(work, &f->speed, COUNTS[i], f->n_context);
        f->value[i] = f->seconds[i] / f->seconds[0];
        f->floor[i] = f->limit_s[i] / f->limit_s[0];
    }
    double bytes = work->weight_bytes + cost_keys_seen(work, f->n_context) * work->kv_bytes_per_key;
    f->value[0] = bytes / f->seconds[0] / (f->speed.read_gb_s * 1e9);
}

static int measure_parts(Figures *f, Executor *e, double seconds, fr_error *err) {
    for (int k = 0; k < N_SPLITS; k++) {
        CostPart parts[COST_PARTS_MAX];
        double whole_s;
        int n = cost_parts_measure(e, &f->speed, SPLITS[k], f->n_context, seconds, parts, &whole_s, err);
        if (n < 0) return n;
        for (int i = 0; i < n; i++)
            if (parts[i].n_out) {
                f->split[k].products_s += parts[i].seconds;
                f->split[k].products_floor_s += parts[i].floor_s;
            } else if (parts[i].floor_s > 0) {
                f->split[k].attention_s = parts[i].seconds;
                f->split[k].attention_floor_s = parts[i].floor_s;
            } else f->split[k].rest_s = parts[i].seconds;
    }
    return FR_OK;
}

static void print_text(const Figures *f, const CliModel *m) {
    const double *peak = f->speed.peak_gop_s;
    const GgufTensor *const *matrices = m->model->layers[0].matrices, *typical = matrices[MATRIX_O];
    if (matrices[MATRIX_GATE]) typical = matrices[MATRIX_GATE];
    if (matrices[MATRIX_EXPERT_GATE]) typical = matrices[MATRIX_EXPERT_GATE];
    printf("\n%s, context %d: reads %.1f GB/s\nbillion op/s: int8 %.0f, ", tensor_type_info(typical->type)->name,
           f->n_context, f->speed.read_gb_s, peak[PEAK_INT8]);
    if (isfinite(peak[PEAK_INT16])) printf("int16 %.0f, ", peak[PEAK_INT16]);
    printf("bf16 %.0f, f32 %.0f\n", peak[PEAK_BF16], peak[PEAK_F32]);
    printf("%-22s %9s %9s %9s %8s\n", "", "ms", "limit ms", "measured", "limit");
    for (int i = 0; i < N_COUNTS; i++) {
        char name[32];
        if (i == 0) snprintf(name, sizeof name, "1 row, bandwidth");
        else snprintf(name, sizeof name, "T(%d)/T(1)", COUNTS[i]);
        printf("%-22s %9.2f %9.2f %9.2f %8.2f\n", name, 1e3 * f->seconds[i], 1e3 * f->limit_s[i], f->value[i],
               f->floor[i]);
    }
    for (int k = 0; k < N_SPLITS; k++)
        printf("%2d row%s products %.2f ms (limit %.2f), attention %.2f (%.2f), rest %.2f\n", SPLITS[k],
               SPLITS[k] == 1 ? ": " : "s:", 1e3 * f->split[k].products_s, 1e3 * f->split[k].products_floor_s,
               1e3 * f->split[k].attention_s, 1e3 * f->split[k].attention_floor_s, 1e3 * f->split[k].rest_s);
}

static json_t *to_json(const Figures *f) {
    json_t *rows = json_array(), *split = json_array();
    for (int i = 0; i < N_COUNTS; i++)
        json_array_append_new(rows, json_pack("{s:i, s:f, s:f, s:f, s:f}", "rows", COUNTS[i], "seconds", f->seconds[i],
                                              "limit_s", f->limit_s[i], "value", f->value[i], "limit", f->floor[i]));
    for (int k = 0; k < N_SPLITS; k++)
        json_array_append_new(split, json_pack("{s:i, s:f, s:f, s:f, s:f, s:f}", "rows", SPLITS[k], "products_s",
                                               f->split[k].products_s, "products_limit_s", f->split[k].products_floor_s,
                                               "attention_s", f->split[k].attention_s, "attention_limit_s",
                                               f->split[k].attention_floor_s, "rest_s", f->split[k].rest_s));
    const double *peak = f->speed.peak_gop_s;
    return json_pack("{s:i, s:f, s:f, s:o, s:f, s:f, s:o, s:o}", "context", f->n_context, "read_gb_s",
                     f->speed.read_gb_s, "int8_gop_s", peak[PEAK_INT8], "int16_gop_s",
                     json_real_or_null(peak[PEAK_INT16]), "bf16_gop_s", peak[PEAK_BF16], "f32_gop_s", peak[PEAK_F32],
                     "figures", rows, "split", split);
}

int perf_figures(const CliModel *m, double seconds, bool json, fr_error *err) {
    if (!m->weights->backend->speed)
        return error_set(err, FR_ERR_UNSUPPORTED,
                         "--figures: the backend %s does not know the limits of the machine; use --backend cpu",
                         m->weights->backend->name);
    ExecutorOptions options = {.kv_type = m->kv,
                               .page_size = 16,
                               .n_ctx = 1024 + 64,
                               .max_sequences = 1,
                               .max_rows = 64};
    Executor *e;
    CostWork work;
    cost_work(m->weights, m->kv, &work);
    json_t *list = json_array();
    int status = executor_open(&e, m->device, m->weights, &options, err);
    if (!status && !json)
        printf("%d threads, kernels %s, activations %s, %.3f GB of weights;\n"
               "T(n) is the time of a forward of n rows, the fastest of several rounds\n",
               m->n_threads, m->weights->options.kernels, weights_activations(m->weights), work.weight_bytes * 1e-9);
    for (size_t c = 0; !status && c < sizeof CONTEXTS / sizeof *CONTEXTS; c++) {
        Figures f = {.n_context = CONTEXTS[c]};
        status = measure_between_peaks(&f, m, e, seconds, err);
        if (!status) status = measure_parts(&f, e, seconds / 4, err);
        if (status) break;
        derive(&f, &work);
        if (json) json_array_append_new(list, to_json(&f));
        else print_text(&f, m);
    }
    executor_close(e);
    if (!status && json) return json_print(list, JSON_INDENT(2) | JSON_REAL_PRECISION(6), err);
    json_decref(list);
    return status;
}

/* cost.c - measures T(n), the time of a forward of n rows, corrects it by every forward, and keeps it in a file. */
#include "base/math_functions.h"
#include "base/system.h"
#include "base/hash.h"
#include "base/files.h"
#include "base/mem.h"
#include "base/os.h"
#include "base/threads.h"
#include "compute/cost.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

void cost_work(const Weights *w, KvType kv_type, CostWork *out) { w->backend->work(w, kv_type, out); }

int cost_machine_speed(const Weights *w, int n_threads, MachineSpeed *out, fr_error *err) {
    *out = (MachineSpeed){0};
    return w->backend->speed ? w->backend->speed(w, n_threads, out, err) : FR_OK;
}

/* Returns the bytes of experts that n_rows rows are expected to read. */
static double expert_bytes(const CostWork *work, int32_t n_rows) {
    return work->expert_bytes * (1 - math_pow(1 - work->expert_share, n_rows));
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

/* The tokens do not matter: the cost of a forward does not depend on what is read. */
static void fill_chain(Row *rows, int32_t n, int32_t sequence, int32_t n_vocab) {
    for (int32_t i = 0; i < n; i++)
        rows[i] = (Row){.token = (i * 37 + 11) % n_vocab,
                        .sequence = sequence,
                        .parent = i - 1,
                        .want_logits = true,
                        .only_best = true};
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
            fill_chain(rows, row_counts[i], sequence, n_vocab);
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

/* ---- the curve ------------------------------------------------------------------------------------- */

/* A drafted token pays only if the row that verifies it costs less time than it saves, so the budget allocator must
 * know T(n) within a few per cent. Disturbances only ever make a forward slower: of several measurements the fastest
 * counts. */

enum { SINK = 2048 /* forwards */, LONG = 1024 /* tokens */, ROUNDS = 32, FEWEST = 4 /* counts */, ATTEMPTS = 3 };
/* The numbers of rows that are measured, in this order: closer together where arithmetic usually begins to take longer
 * than reading the weights. For a large model only the first are: the line through its last two points, 8 and 16, must
 * have the slope of arithmetic, because the curve continues with it. */
static const int32_t COUNTS[COST_CURVE_MAX] = {1, 4, 8, 16, 2, 32, 6, 12, 3};
enum { KEY_ROWS = 8 };
/* Seconds: the least for each number of rows; for each measurement of keys; the time after which larger numbers of rows
 * are left out; the time after which nothing is repeated; and the time after which a disturbed measurement is not
 * repeated as a whole. */
#define ROWS_S 0.012
#define KEYS_S 0.01
#define GROW_S 0.7
#define LIMIT_S 1.1
#define AGAIN_S 0.5
/* What an idle machine stays within: the mean time of a forward in multiples of the fastest, and the share of the time
 * in which the threads run. They wait for each other by spinning, so on an idle machine they run all the time. */
#define MOST_SPREAD 1.5
#define LEAST_CPU 0.85
#define MOST 0.08 /* the greatest relative error of a forward that is taken into account */
/* The parts of an error that move the whole curve, and the points next to it. A virtual machine may be half as fast for
 * seconds, at all numbers of rows, while the shape of the curve, on which the choice of rows depends, stays as it was
 * measured. If most of an error moved only the points next to it, a change of speed while trees of one size ran would
 * make that size look too expensive, or too cheap. */
#define OF_CURVE 0.75
#define OF_POINT 0.25

/* Two facts hold for every forward: more rows never take less time, and never more than several forwards of fewer rows
 * would. Points that contradict them are noise.
 *
 * If more rows took less time than fewer, both get the mean. Some kernels are slow at a certain number of rows, and of
 * all rising curves this one is the nearest (isotonic regression). If only the upper point were moved, each slow
 * forward of few rows would lift its neighbours, whose next forwards would then seem fast and pull the whole curve
 * down. */
static void make_rising(CostCurve *c) {
    double sum[COST_CURVE_MAX];
    int count[COST_CURVE_MAX], n = 0; /* adjacent points that get their common mean */
    for (int k = 0; k < c->n; k++) {
        sum[n] = c->seconds[k], count[n++] = 1;
        for (; n > 1 && sum[n - 2] / count[n - 2] > sum[n - 1] / count[n - 1]; n--)
            sum[n - 2] += sum[n - 1], count[n - 2] += count[n - 1];
    }
    for (int i = 0, k = 0; i < n; i++)
        for (int j = 0; j < count[i]; j++) c->seconds[k++] = sum[i] / count[i];
}

static void make_sound(CostCurve *c) {
    make_rising(c);
    for (int k = 1; k < c->n; k++) {
        double most = c->seconds[k - 1] * (double)c->rows[k] / (double)c->rows[k - 1];
        if (c->seconds[k] > most) c->seconds[k] = most;
    }
}

/* The forwards of one number of rows. */
typedef struct Timing {
    int32_t rows;
    double each_s[ROUNDS], least_s, spent_s; /* the fastest; all together */
    int n;
} Timing;

static int fewer_rows_first(const void *a, const void *b) {
    const Timing *x = a, *y = b;
    return (x->rows > y->rows) - (x->rows < y->rows);
}

/* Times one forward without context. */
static int time_once(Executor *e, Timing *t, fr_error *err) {
    double s;
    int status = cost_measure(e, 0, &t->rows, 1, 1, 0, 0, &s, err);
    if (status) return status;
    if (t->n == 0 || s < t->least_s) t->least_s = s;
    t->spent_s += s;
    t->each_s[t->n++] = s;
    return FR_OK;
}

/* Returns what the curve has for a number of rows. In one process it is the fastest forward. Ranks wait for the slowest
 * of them in every exchange, some hundred times in a forward, so what varies there is a part of the price that every
 * forward pays, and the fastest one was merely lucky: there it is the median, or the mean of the two in the middle. */
static double cost_of(Timing *t, bool has_exchanges) {
    if (!has_exchanges) return t->least_s;
    qsort(t->each_s, (size_t)t->n, sizeof *t->each_s, compare_doubles);
    return 0.5 * (t->each_s[(t->n - 1) / 2] + t->each_s[t->n / 2]);
}

double cost_disturbance(double spread, double cpu_share) { return fmax(spread / MOST_SPREAD, LEAST_CPU / cpu_share); }

/* Returns the mean time of a forward as a multiple of the fastest one of as many rows. */
static double spread_of(const Timing *t, int n) {
    double spent_s = 0, least_s = 0;
    for (int k = 0; k < n; k++) {
        spent_s += t[k].spent_s;
        least_s += t[k].n * t[k].least_s;
    }
    return spent_s / least_s;
}

/* Returns the time that n_keys keys add to a forward: measured with and without them in turn, because the difference is
 * small and the speed of the machine varies. At least two forwards are timed, because the first finds the caches full
 * of the keys that were just written. */
static double added_by(Executor *e, int32_t n_keys, int32_t rows) {
    double least[2] = {INFINITY, INFINITY}, s;
    for (int round = 0; round < 2; round++)
        for (int k = 0; k < 2; k++) {
            if (cost_measure(e, k * n_keys, &rows, 1, 2, KEYS_S, 0, &s, NULL)) return 0;
            if (s < least[k]) least[k] = s;
        }
    return least[1] > least[0] ? least[1] - least[0] : 0;
}

/* Measures keys with one row and with a few rows: both read the keys once, and the difference is the arithmetic of the
 * additional rows. */
static void measure_keys(CostCurve *c, Executor *e, int32_t n_ctx) {
    int32_t few = 1;
    for (int k = 0; k < c->n && c->rows[k] <= KEY_ROWS; k++) few = c->rows[k];
    int32_t n_keys = n_ctx - few < LONG ? n_ctx - few : LONG;
    c->key_s = c->key_read_s = 0;
    if (n_keys < 1) return;
    double one_s = added_by(e, n_keys, 1) / n_keys, few_s = few > 1 ? added_by(e, n_keys, few) / n_keys : one_s;
    c->key_s = few > 1 && few_s > one_s ? (few_s - one_s) / (few - 1) : few_s / few;
    if (one_s > c->key_s) c->key_read_s = one_s - c->key_s;
}

/* Measures the numbers of rows in turn, the small ones more often, so that each gets about as much time as the
 * largest: a moment in which something else ran must not decide a point. A first forward, with cold caches, is not
 * counted. */
static int measure_rows(CostCurve *c, Executor *e, int32_t n_ctx, int n_threads, fr_error *err) {
    Timing timings[COST_CURVE_MAX] = {{.n = 0}}, cold = {.rows = 1};
    double begin_s = clock_s(), begin_cpu_s;
    int n = 0, status = time_once(e, &cold, err);
    double warm_s = clock_s();
    begin_cpu_s = clock_cpu_s();
    for (int k = 0; !status && k < COST_CURVE_MAX; k++) {
        if (COUNTS[k] > executor_max_rows(e) || COUNTS[k] > n_ctx) continue;
        if (n >= FEWEST && clock_s() > begin_s + GROW_S) break;
        timings[n].rows = COUNTS[k];
        status = time_once(e, &timings[n++], err);
    }
    if (status) return status;
    qsort(timings, (size_t)n, sizeof *timings, fewer_rows_first);
    double share_s = fmax(1.5 * timings[n - 1].least_s, ROWS_S);
    for (int round = 1; !status && round < ROUNDS && clock_s() < begin_s + LIMIT_S; round++)
        for (int k = 0; !status && k < n; k++)
            if (timings[k].spent_s < share_s) status = time_once(e, &timings[k], err);
    for (int k = 0; k < n; k++) {
        c->rows[k] = timings[k].rows;
        c->seconds[k] = cost_of(&timings[k], executor_weights(e)->n_ranks > 1);
    }
    int n_running = n_threads < threads_n_cores() ? n_threads : threads_n_cores();
    c->disturbance = cost_disturbance(spread_of(timings, n),
                                      (clock_cpu_s() - begin_cpu_s) / (n_running * (clock_s() - warm_s)));
    c->n = status ? 0 : n;
    return status;
}

int cost_curve_measure(CostCurve *c, Executor *e, int32_t n_ctx, int n_threads, fr_error *err) {
    double begin_s = clock_s();
    *c = (CostCurve){0};
    for (int attempt = 0; attempt < ATTEMPTS && (attempt == 0 || (c->disturbance > 1 && clock_s() < begin_s + AGAIN_S));
         attempt++) {
        CostCurve now = {0};
        int status = measure_rows(&now, e, n_ctx, n_threads, err);
        if (status) {
            c->n = 0;
            return status;
        }
        if (attempt == 0 || now.disturbance < c->disturbance) *c = now;
    }
    make_sound(c);
    measure_keys(c, e, n_ctx);
    return FR_OK;
}

/* Returns the point at which the line segment through n_rows begins. */
static int segment(const CostCurve *c, int32_t n_rows) {
    int i = 0;
    while (i + 2 < c->n && c->rows[i + 1] <= n_rows) i++;
    return i;
}

static double without_keys(const CostCurve *c, int32_t n_rows) {
    if (c->n == 1 || n_rows == c->rows[0]) return c->seconds[0];
    int i = segment(c, n_rows);
    double slope = (c->seconds[i + 1] - c->seconds[i]) / (double)(c->rows[i + 1] - c->rows[i]);
    return c->seconds[i] + slope * (double)(n_rows - c->rows[i]);
}

double cost_logits_s(const Weights *w) {
    if (w->n_ranks < 2 || w->exchange_bytes_per_s <= 0) return 0;
    double row_bytes = (double)w->model->hparams.n_vocab * sizeof(float);
    return row_bytes * (w->n_ranks - 1) / w->n_ranks / w->exchange_bytes_per_s;
}

double cost_curve_at(const CostCurve *c, int32_t n_rows) {
    return without_keys(c, n_rows) + c->n_context * (c->key_read_s + n_rows * c->key_s) + n_rows * c->logits_s;
}

/* Points above n_rows move slowly down to the neighbours of n_rows: a size that looks too expensive to be used would
 * otherwise never be measured again. */
void cost_curve_observe(CostCurve *c, int32_t n_rows, double seconds) {
    if (n_rows > 2 * c->rows[c->n - 1]) return;
    double wrong = seconds / cost_curve_at(c, n_rows) - 1;
    wrong = wrong > MOST ? MOST : wrong < -MOST ? -MOST : wrong;
    c->key_s *= 1 + wrong * OF_CURVE;
    c->key_read_s *= 1 + wrong * OF_CURVE;
    int i = n_rows == 1 || c->n == 1 ? 0 : segment(c, n_rows);
    double part = i + 1 < c->n ? (double)(n_rows - c->rows[i]) / (double)(c->rows[i + 1] - c->rows[i]) : 0;
    part = part > 1 ? 1 : part;
    for (int k = 0; k < c->n; k++) {
        double local = k == i ? 1 - part : k == i + 1 ? part : 0;
        c->seconds[k] *= 1 + wrong * (OF_CURVE + OF_POINT * local);
        if (k > i && local <= 0) c->seconds[k] -= (c->seconds[k] - c->seconds[k - 1]) / SINK;
    }
    make_sound(c);
}

/* ---- parts ----------------------------------------------------------------------------------------- */

/* Measures the seconds of each part in the fastest of some forwards. */
static int time_parts(Executor *e, int32_t n_rows, int32_t n_context, double seconds, double *part_s, double *whole_s,
                      fr_error *err) {
    Context *c = executor_context(e);
    const Backend *backend = executor_weights(e)->backend;
    double end_s = clock_s() + seconds, now_s[COST_PARTS_MAX], forward_s;
    int status = FR_OK;
    for (int round = 0; !status && (round < 3 || clock_s() < end_s); round++) {
        memset(now_s, 0, sizeof now_s);
        backend->time_parts(c, now_s);
        status = cost_measure(e, n_context, &n_rows, 1, 1, 0, 0, &forward_s, err);
        if (status || (round > 0 && forward_s >= *whole_s)) continue;
        *whole_s = forward_s;
        memcpy(part_s, now_s, sizeof now_s);
    }
    backend->time_parts(c, NULL);
    return status;
}

int cost_parts_measure(Executor *e, const MachineSpeed *speed, int32_t n_rows, int32_t n_context, double seconds,
                       CostPart *parts, double *whole_s, fr_error *err) {
    const Weights *w = executor_weights(e);
    double part_s[COST_PARTS_MAX] = {0};
    int status = time_parts(e, n_rows, n_context, seconds, part_s, whole_s, err);
    if (status) return status;
    int n = w->backend->parts(w, executor_options(e)->kv_type, speed, n_rows, n_context, parts);
    for (int i = 0; i < n; i++) parts[i].seconds = part_s[i];
    return n;
}

int cost_read_weights(Device *d, const Weights *w, double *seconds, fr_error *err) {
    *seconds = 0;
    return w->backend->read_weights ? w->backend->read_weights(d, w, seconds, err) : FR_OK;
}

/* ---- the cache: a small text file, checked by a hash in its last line ---------------------------------- */

enum { PATH_BYTES = 4096, FILE_BYTES = 2048 };

/* Names, types and dimensions of all tensors. */
static uint64_t shape_hash(const Gguf *g) {
    uint64_t hash = 0;
    for (int64_t i = 0; i < gguf_n_tensors(g); i++) {
        const GgufTensor *t = gguf_tensor(g, i);
        uint32_t type = (uint32_t)t->type;
        hash = hash64(t->name, strlen(t->name), hash);
        hash = hash64(t->dims, sizeof t->dims, hash64(&type, sizeof type, hash));
    }
    return hash;
}

void cost_cache_key(const Executor *e, int n_threads, char out[COST_KEY_BYTES]) {
    const Weights *w = executor_weights(e);
    const ExecutorOptions *o = executor_options(e);
    char cpu[96];
    os_cpu_name(cpu, sizeof cpu);
    snprintf(out, COST_KEY_BYTES,
             "cpu %s; backend %s; %d threads; kernels %s; act %s; kv %s; context %d; model %016" PRIx64, cpu,
             w->backend->name, n_threads, w->options.kernels, act_precision_name(w->options.activations),
             kv_type_name(o->kv_type), o->n_ctx, shape_hash(w->model->gguf));
    size_t n = strlen(out);
    if (w->n_ranks) snprintf(out + n, COST_KEY_BYTES - n, "; %d ranks, best tokens", w->n_ranks);
    n = strlen(out);
    /* A curve belongs to a network, which its latency identifies up to a factor of two. */
    if (w->exchange_s > 0) snprintf(out + n, COST_KEY_BYTES - n, " at 2^%d s", ilogb(w->exchange_s));
}

static bool path_of(const char *folder, const char *key, char out[PATH_BYTES]) {
    int n = snprintf(out, PATH_BYTES, "%s/cost-%016" PRIx64, folder, hash64(key, strlen(key), 0));
    return n > 0 && n < PATH_BYTES;
}

/* Writes the text of the file except its last line, which is a hash of everything before it. Returns the number of
 * bytes. */
static size_t write_text(const char *key, const CostCurve *c, char out[FILE_BYTES]) {
    int n = snprintf(out, FILE_BYTES, "forerun cost 1\n%s\n%.9g %.9g\n%d\n", key, c->key_s, c->key_read_s, c->n);
    for (int k = 0; k < c->n; k++)
        n += snprintf(out + n, FILE_BYTES - (size_t)n, "%d %.9g\n", c->rows[k], c->seconds[k]);
    return (size_t)n;
}

/* No forward of any model takes less or more; between these limits no sum, product or quotient of costs overflows. */
static const double MIN_S = 1e-9, MAX_S = 1e5;
enum { MAX_ROWS = 1 << 16 };

static bool is_sound(const CostCurve *c) {
    bool ok = c->rows[0] == 1 && c->seconds[0] >= MIN_S;
    for (int k = 1; k < c->n; k++) ok = ok && c->rows[k] > c->rows[k - 1] && c->seconds[k] >= c->seconds[k - 1];
    return ok && c->rows[c->n - 1] <= MAX_ROWS && c->seconds[c->n - 1] <= MAX_S && c->key_s >= 0 && c->key_s <= MAX_S &&
           c->key_read_s >= 0 && c->key_read_s <= MAX_S;
}

/* Reads the numbers of the file, which begin at `at`, after the key. */
static bool read_numbers(const char *at, CostCurve *c) {
    int used;
    if (sscanf(at, "%lf %lf %d%n", &c->key_s, &c->key_read_s, &c->n, &used) != 3 || c->n < 1 || c->n > COST_CURVE_MAX)
        return false;
    for (int k = 0; k < c->n; k++) {
        at += used;
        if (sscanf(at, "%d %lf%n", &c->rows[k], &c->seconds[k], &used) != 2) return false;
    }
    return is_sound(c);
}

/* The file is parsed and formatted again: if the two texts differ, hash included, the file is damaged. */
bool cost_cache_load(const char *folder, const char *key, CostCurve *out) {
    char path[PATH_BYTES], got[FILE_BYTES], want[FILE_BYTES];
    FILE *f = path_of(folder, key, path) ? input_text_open(path, NULL) : NULL;
    if (!f) return false;
    size_t n = fread(got, 1, sizeof got - 1, f), begin = strlen("forerun cost 1\n") + strlen(key);
    fclose(f);
    got[n] = '\0';
    CostCurve c = {0};
    if (n <= begin || !read_numbers(got + begin, &c)) return false;
    size_t n_want = write_text(key, &c, want);
    n_want += (size_t)snprintf(want + n_want, FILE_BYTES - n_want, "%016" PRIx64 "\n", hash64(want, n_want, 0));
    if (n != n_want || memcmp(got, want, n) != 0) return false;
    *out = c;
    return true;
}

int cost_cache_store(const char *folder, const char *key, const CostCurve *c, fr_error *err) {
    char path[PATH_BYTES], text[FILE_BYTES];
    if (!path_of(folder, key, path))
        return error_set(err, FR_ERR_ARGUMENT, "the name of the cache folder is too long; name another");
    size_t n = write_text(key, c, text);
    ReplaceFile r;
    int status = replace_file_begin(&r, path, err);
    if (status) return status;
    fprintf(r.file, "%s%016" PRIx64 "\n", text, hash64(text, n, 0));
    return replace_file_end(&r, FR_OK, err);
}

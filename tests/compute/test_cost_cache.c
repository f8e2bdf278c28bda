/* test_cost_cache.c - measured costs in files: an entry is read back unchanged; damaged or foreign files are
 * ignored, and costs that other programs disturbed are not kept. For a large model few numbers of rows are measured. */
#include "compute/backend.h"
#include "engine_rig.h"
#include "model_rig.h"

#include "engine/engine.h"
#include "engine/request.h"
#include "compute/cost.h"

#include "base/threads.h"

#include <dirent.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[64], entry[400];

static const CostCurve CURVE = {
    .n = 3, .rows = {1, 4, 32}, .seconds = {0.0125, 0.015625, 0.0625}, .key_s = 1e-6, .key_read_s = 0};

/* The number of files in the folder; `entry` becomes the path of one. */
static int n_entries(void) {
    DIR *d = opendir(folder);
    int n = 0;
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));)
        if (e->d_name[0] != '.') snprintf(entry, sizeof entry, "%s/%s", folder, e->d_name), n++;
    closedir(d);
    return n;
}

static void find_entry(void) { assert_int_equal(n_entries(), 1); }

static size_t read_entry(char *out, size_t size) {
    FILE *f = fopen(entry, "rb");
    assert_non_null(f);
    size_t n = fread(out, 1, size, f);
    fclose(f);
    return n;
}

static void write_entry(const char *bytes, size_t n) {
    FILE *f = fopen(entry, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    fclose(f);
}

static int begin(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "build/cost-cache-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int end(void **state) {
    (void)state;
    if (n_entries() > 0) unlink(entry);
    return rmdir(folder);
}

static void it_comes_back_as_it_was(void **state) {
    (void)state;
    CostCurve got = {.n_context = 7};
    assert_false(cost_cache_load(folder, "a key", &got));
    assert_int_equal(cost_cache_store(folder, "a key", &CURVE, NULL), FR_OK);
    assert_true(cost_cache_load(folder, "a key", &got));
    assert_int_equal(got.n, CURVE.n);
    for (int k = 0; k < CURVE.n; k++) assert_true(got.rows[k] == CURVE.rows[k] && got.seconds[k] == CURVE.seconds[k]);
    assert_true(got.key_s == CURVE.key_s && got.key_read_s == 0);
    assert_false(cost_cache_load(folder, "another key", &got));
    fr_error err;
    assert_int_equal(cost_cache_store("build/there/is/none", "a key", &CURVE, &err), FR_ERR_IO);
}

/* A file with any byte altered, with any end cut off, with bytes after its end, or with numbers that no curve has is no
 * entry, and the curve does not change. */
static void a_damaged_file_is_no_entry(void **state) {
    (void)state;
    char sound[2048], bad[2048];
    CostCurve got = {.n = -1};
    cost_cache_store(folder, "a key", &CURVE, NULL);
    find_entry();
    size_t n = read_entry(sound, sizeof sound);
    for (size_t i = 0; i < n; i++) {
        memcpy(bad, sound, n);
        bad[i] ^= 1;
        write_entry(bad, n);
        if (cost_cache_load(folder, "a key", &got)) fail_msg("byte %zu of %zu altered: taken", i, n);
        write_entry(sound, i);
        if (cost_cache_load(folder, "a key", &got)) fail_msg("cut to %zu of %zu bytes: taken", i, n);
    }
    memcpy(bad, sound, n);
    bad[n] = '\n';
    write_entry(bad, n + 1);
    assert_false(cost_cache_load(folder, "a key", &got));
    CostCurve unsound[11];
    for (int i = 0; i < 11; i++) unsound[i] = CURVE;
    unsound[0].rows[0] = 2, unsound[1].seconds[2] = INFINITY, unsound[2].seconds[1] = 0.001, unsound[3].key_s = -1;
    unsound[4].seconds[2] = 1e300, unsound[5].seconds[0] = 1e-310, unsound[6].rows[2] = INT32_MAX;
    unsound[7].key_s = 1e308, unsound[8].key_read_s = 1e308, unsound[9].key_s = NAN, unsound[10].seconds[1] = NAN;
    for (int i = 0; i < 11; i++) {
        cost_cache_store(folder, "a key", &unsound[i], NULL);
        if (cost_cache_load(folder, "a key", &got)) fail_msg("unsound curve %d: taken", i);
    }
    assert_int_equal(got.n, -1);
    cost_cache_store(folder, "a key", &CURVE, NULL);
    assert_true(cost_cache_load(folder, "a key", &got));
}

/* Puts the entry under the name of another key. */
static void an_entry_of_another_key_is_ignored(void **state) {
    (void)state;
    char text[2048];
    CostCurve got;
    cost_cache_store(folder, "another key", &CURVE, NULL);
    find_entry();
    size_t n = read_entry(text, sizeof text);
    unlink(entry);
    cost_cache_store(folder, "a key", &CURVE, NULL);
    find_entry();
    write_entry(text, n);
    assert_false(cost_cache_load(folder, "a key", &got));
}

/* The key of an executor of these weights, which is opened for that. */
static void key_of(const Weights *w, int n_threads, KvType kv_type, int32_t n_ctx, char out[COST_KEY_BYTES]) {
    RigOptions o = rig_options(n_ctx, 4);
    o.kv_type = kv_type;
    Executor *e = rig_executor(w, &o);
    cost_cache_key(e, n_threads, out);
    rig_executor_close(e);
}

static void keys_differ_where_costs_do(void **state) {
    (void)state;
    fr_model *small = rig_open_model("models/draft.gguf", NULL), *large = rig_open_model("models/target.gguf", NULL);
    fr_model *q8 = rig_open_model_with("models/draft.gguf", NULL, "q8"),
             *ref = rig_open_model("models/draft.gguf", "ref");
    Weights *slow = rig_weights_in(&backend_reference, small->gguf);
    char keys[9][COST_KEY_BYTES];
    key_of(small->weights, 2, KV_F16, 100, keys[0]);
    key_of(large->weights, 2, KV_F16, 100, keys[1]);
    key_of(q8->weights, 2, KV_F16, 100, keys[2]);
    key_of(ref->weights, 2, KV_F16, 100, keys[3]);
    key_of(small->weights, 3, KV_F16, 100, keys[4]);
    key_of(small->weights, 2, KV_F32, 100, keys[5]);
    key_of(small->weights, 2, KV_F16, 200, keys[6]);
    key_of(slow, 2, KV_F16, 100, keys[7]);
    key_of(small->weights, 2, KV_F16, 100, keys[8]);
    for (int i = 0; i < 8; i++)
        for (int k = 0; k < i; k++) assert_string_not_equal(keys[i], keys[k]);
    assert_string_equal(keys[0], keys[8]);
    rig_weights_close(slow);
    fr_model_close(small), fr_model_close(large), fr_model_close(q8), fr_model_close(ref);
}

/* Returns the costs with which an engine begins its first request with an automatic budget. When it is closed, the
 * folder is empty and the measurement of its costs had this disturbance. */
static CostCurve begin_and_end(const fr_model *model, double disturbance) {
    static const char *const drafts[] = {"auto"};
    static const int32_t prompt[] = {1, 5, 9, 5, 9};
    const fr_engine_options eo = {.struct_size = sizeof eo, .n_threads = 1, .n_ctx = 64, .cost_cache = folder};
    const fr_request_options o = {.struct_size = sizeof o,
                                  .prompt = prompt,
                                  .n_prompt = 5,
                                  .max_tokens = 4,
                                  .drafts = drafts,
                                  .n_drafts = 1,
                                  .sampling = fr_sampling_default()};
    fr_engine *e = rig_open_engine(model, &eo);
    fr_request *r;
    assert_int_equal(rig_open_request(&r, e, &o, NULL), FR_OK);
    CostCurve c = e->policy.cost;
    e->policy.cost.disturbance = disturbance; /* whatever else this machine runs now */
    if (n_entries() > 0) unlink(entry);       /* it was kept at once if the machine is idle */
    fr_request_close(r);
    fr_engine_close(e);
    return c;
}

static void an_engine_keeps_and_finds_its_costs(void **state) {
    (void)state;
    fr_model *model = rig_open_model("models/draft.gguf", NULL);
    CostCurve stored = CURVE, first = begin_and_end(model, 1);
    assert_true(first.n > 1);
    find_entry();
    char key[COST_KEY_BYTES];
    key_of(model->weights, 1, KV_F16, 64, key);
    cost_cache_store(folder, key, &stored, NULL);
    assert_true(begin_and_end(model, 1).seconds[2] ==
                stored.seconds[2]); /* not measured: 32 rows of this model never take 62 ms */
    write_entry("nonsense", 8);
    assert_true(begin_and_end(model, 1).seconds[2] != stored.seconds[2]);
    assert_true(cost_cache_load(folder, key, &stored) && stored.n == first.n); /* and written again */
    fr_model_close(model);
}

/* Children that keep all cores busy, until spinners_end. */
typedef struct Spinners {
    pid_t pids[64];
    int n;
} Spinners;

static Spinners spinners_begin(void) {
    Spinners s = {.n = 2 * threads_n_cores() < 64 ? 2 * threads_n_cores() : 64};
    for (int i = 0; i < s.n; i++) {
        s.pids[i] = fork();
        assert_true(s.pids[i] >= 0);
        while (s.pids[i] == 0) {}
    }
    return s;
}

static void spinners_end(const Spinners *s) {
    for (int i = 0; i < s->n; i++) {
        kill(s->pids[i], SIGKILL);
        waitpid(s->pids[i], NULL, 0);
    }
}

static void disturbed_costs_are_not_kept(void **state) {
    (void)state;
    fr_model *model = rig_open_model("models/target.gguf", NULL);
    assert_true(cost_disturbance(1.4, 0.9) <= 1);
    assert_true(cost_disturbance(1.6, 1) > 1);
    assert_true(cost_disturbance(1, 0.66) > 1);
    begin_and_end(model, 1.01);
    assert_int_equal(n_entries(), 0);
    const fr_engine_options eo = {.struct_size = sizeof eo, .n_ctx = 64, .cost_cache = folder};
    fr_engine *e = rig_open_engine(model, &eo);
    Spinners spinners = spinners_begin();
    int status = fr_engine_measure_costs(e, NULL);
    spinners_end(&spinners);
    assert_int_equal(status, FR_OK);
    print_message("beside %d busy programs: disturbance %.2f\n", spinners.n, e->policy.cost.disturbance);
    assert_true(e->policy.cost.disturbance > 1);
    assert_true(e->policy.cost.n > 1);
    fr_engine_close(e);
    assert_int_equal(n_entries(), 0);
    fr_model_close(model);
}

/* The CPU backend, with first forwards that take as long as those of a large model. */
static Backend large;
static int n_slow;

static void forward_slowly(Context *c, const RowPlace *rows, int32_t n_rows) {
    double end_s = clock_s() + (n_slow-- > 0 ? 0.16 : 0);
    backend_cpu.forward(c, rows, n_rows);
    while (clock_s() < end_s) {}
}

static int open_large_device(Device **out, const DeviceOptions *options, fr_error *err) {
    int status = backend_cpu.device_open(out, options, err);
    if (!status) (*out)->backend = &large;
    return status;
}

/* If a curve ended where a forward still waits for memory, more rows would seem to cost next to nothing. */
static void a_large_model_is_measured_where_arithmetic_limits_it(void **state) {
    (void)state;
    fr_model *model = rig_open_model("models/draft.gguf", NULL);
    fr_error err;
    CostCurve few, all;
    Weights *w = model->weights;
    large = backend_cpu;
    large.device_open = open_large_device, large.forward = forward_slowly;
    w->backend = &large;
    RigOptions o = rig_options(64, 32);
    Executor *e = rig_executor(w, &o);
    n_slow = 5; /* 0.8 s */
    if (cost_curve_measure(&few, e, 64, 1, &err)) fail_msg("%s", err.message);
    n_slow = 0;
    if (cost_curve_measure(&all, e, 64, 1, &err)) fail_msg("%s", err.message);
    w->backend = &backend_cpu;
    static const int32_t rows_of_few[] = {1, 4, 8, 16}, rows_of_all[] = {1, 2, 3, 4, 6, 8, 12, 16, 32};
    assert_int_equal(few.n, 4);
    assert_memory_equal(few.rows, rows_of_few, sizeof rows_of_few);
    assert_int_equal(all.n, COST_CURVE_MAX);
    assert_memory_equal(all.rows, rows_of_all, sizeof rows_of_all);
    rig_executor_close(e);
    fr_model_close(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_large_model_is_measured_where_arithmetic_limits_it),
        cmocka_unit_test_setup_teardown(it_comes_back_as_it_was, begin, end),
        cmocka_unit_test_setup_teardown(a_damaged_file_is_no_entry, begin, end),
        cmocka_unit_test_setup_teardown(an_entry_of_another_key_is_ignored, begin, end),
        cmocka_unit_test(keys_differ_where_costs_do),
        cmocka_unit_test_setup_teardown(an_engine_keeps_and_finds_its_costs, begin, end),
        cmocka_unit_test_setup_teardown(disturbed_costs_are_not_kept, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

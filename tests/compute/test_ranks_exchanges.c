/* test_ranks_exchanges.c - what ranks exchange and what it costs: only what the formula says, whole or in halves; best
 * and drawn tokens in the place of logits; and the costs that the planner reads contain all of it. */
#include "testing.h"

#include "base/row_kernels.h"
#include "base/system.h"
#include "compute/cost.h"
#include "compute/cpu/cpu.h"
#include "model_patch.h"
#include "ranks_rig.h"
#include "verify/sampler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N_CTX = 64, N_VOCAB = SMALL_MODELS_VOCAB };

/* ---- what is exchanged ------------------------------------------------------------------------------------- */

/* Runs three rows, all of whose logits are read. */
static void run_three_rows(const Weights *w) {
    RigOptions o = rig_options(N_CTX, 3);
    Executor *e = rig_executor(w, &o);
    float logits[3][N_VOCAB];
    const int32_t tokens[3] = {5, 200, 299};
    rig_append(e, rig_sequence(e), tokens, 3, 3, N_VOCAB, logits[0]);
    rig_executor_close(e);
}

/* Checks what three rows of a model exchange. n_of_layer: exchanges of each layer.
 * has_acts: inputs of o and down travel in the form of the product.
 * has_inputs: the rows bring their inputs along, so that no embeddings travel. */
static void check_exchanged(const Weights *w, const Comm *comm, const RandomModel *m, int n_of_layer, bool has_acts,
                            bool has_inputs) {
    int64_t n_layer = m->n_layer, row = m->n_embd * 4, n_ff = m->n_ff;
    int64_t attended = has_acts ? (int64_t)act_row_bytes(ACT_Q16, m->n_embd) : row;
    int64_t inner = (int64_t)act_row_bytes(has_acts ? ACT_Q16 : ACT_F32, n_ff);
    RigOptions o = rig_options(N_CTX, 3);
    Executor *e = rig_executor(w, &o);
    static const float input[256];
    const int32_t tokens[3] = {5, 200, 299};
    int32_t s = rig_sequence(e);
    Row rows[3];
    fr_error err;
    for (int i = 0; i < 3; i++)
        rows[i] = (Row){.token = tokens[i],
                        .sequence = s,
                        .parent = i - 1,
                        .want_logits = true,
                        .input = has_inputs ? input : NULL};
    if (executor_reserve(e, s, 3, &err)) fail_msg("%s", err.message);
    CommCounts before = comm_counts(comm);
    if (executor_forward(e, rows, 3, &err)) fail_msg("%s", err.message);
    CommCounts after = comm_counts(comm);
    assert_int_equal(after.n_gathers - before.n_gathers, n_of_layer * n_layer + 1 + !has_inputs);
    assert_int_equal(after.n_gather_bytes - before.n_gather_bytes,
                     3 * ((has_inputs ? 0 : row) + n_layer * (attended + inner + 2 * row) + N_VOCAB * 4));
    assert_int_equal(after.n_early_gathers - before.n_early_gathers, (n_of_layer - 4) * n_layer);
    assert_int_equal(after.n_broadcasts - before.n_broadcasts, 2); /* the call and its rows */
    rig_executor_close(e);
}

/* Does so with the layers of the target, which is in a file that stays, in the role of those of a drafter. */
static void check_exchanged_by_layers(Group *g, const RandomModel *m, bool has_acts) {
    const Weights *target = g->ranks[0].weights;
    Model layers = model_of_layers(target->model, target->model->layers, m->n_layer, m->n_ff);
    Device *d = rig_device(target, 1);
    Weights *w;
    fr_error err;
    g->ranks[0].ranks->draft_place = DRAFTS_DIVIDED;
    if (weights_open_draft(&w, d, target, &layers, 2, &err)) fail_msg("%s", err.message);
    assert_int_equal(w->n_ranks, g->n);
    check_exchanged(w, g->ranks[0].ranks->comm, m, 4, has_acts, true);
    weights_close(w);
    device_close(d);
}

/* A llama of two layers, whose heads of 12 numbers are not blocks of activations, so that floats are exchanged before
 * o; and one with heads of 32 and Q8_0 weights, whose inputs are exchanged in the form of the product. Each is the
 * target, and then a draft model beside it. */
static void only_what_the_formula_says_is_exchanged(void **state) {
    (void)state;
    const RandomModel models[] = {small_models[0],
                                  {.arch = "llama",
                                   .n_layer = 1,
                                   .n_embd = 64,
                                   .n_head = 2,
                                   .n_head_kv = 1,
                                   .n_ff = 96,
                                   .n_vocab = N_VOCAB,
                                   .types = {TYPE_Q8_0},
                                   .n_types = 1,
                                   .seed = 3}};
    for (int i = 0; i < 2; i++) {
        char path[] = "build/test_draft.XXXXXX";
        rig_write_random(&models[i], path);
        Gguf *gguf = rig_gguf(path);
        Group g;
        if (group_open(&g, gguf, 2, -1)) fail_msg("%s", g.ranks[0].err.message);
        Draft d = draft_open(&g, &models[i], DRAFTS_DIVIDED);
        assert_int_equal(d.weights->n_ranks, 2);
        check_exchanged(g.ranks[0].weights, g.ranks[0].ranks->comm, &models[i], 4, i > 0, false);
        check_exchanged(d.weights, g.ranks[0].ranks->comm, &models[i], 4, i > 0, false);
        draft_close(&d);
        check_exchanged_by_layers(&g, &models[i], i > 0);
        d = draft_open(&g, &models[i], DRAFTS_WHOLE);
        CommCounts before = comm_counts(g.ranks[0].ranks->comm);
        run_three_rows(d.weights);
        CommCounts after = comm_counts(g.ranks[0].ranks->comm);
        assert_int_equal(d.weights->n_ranks, 0);
        assert_int_equal(after.n_gathers + after.n_broadcasts, before.n_gathers + before.n_broadcasts);
        draft_close(&d);
        group_send_halves(&g);
        check_exchanged(g.ranks[0].weights, g.ranks[0].ranks->comm, &models[i], 7, i > 0, false);
        group_close(&g);
        gguf_close(gguf);
        unlink(path);
    }
}

/* Runs rows of which only the best token is wanted, at positions from that of the draw on, or whole rows (draw: NULL),
 * after one of which no logits are wanted. Returns the bytes that were gathered, if there are several ranks. */
static int64_t run_rows(const Weights *w, const Comm *comm, const RowDraw *draw, float out[3][N_VOCAB]) {
    RigOptions o = rig_options(N_CTX, 4);
    Executor *e = rig_executor(w, &o);
    const int32_t tokens[4] = {7, 5, 200, 299}, s = rig_sequence(e);
    Row rows[4];
    fr_error err;
    for (int i = 0; i < 4; i++) {
        rows[i] = (Row){.token = tokens[i], .sequence = s, .parent = i - 1, .want_logits = i > 0};
        if (!draw || i == 0) continue;
        rows[i].only_best = true, rows[i].draw = *draw;
        rows[i].draw.position += (uint64_t)i - 1;
    }
    int64_t before = comm ? comm_counts(comm).n_gather_bytes : 0;
    if (executor_reserve(e, s, 4, &err) || executor_forward(e, rows, 4, &err)) fail_msg("%s", err.message);
    int64_t after = comm ? comm_counts(comm).n_gather_bytes : 0;
    for (int i = 0; i < 3; i++) memcpy(out[i], executor_logits(e, i + 1), sizeof out[i]);
    rig_executor_close(e);
    return after - before;
}

/* Fills the LM head of a model with one number, so that all logits of a row are equal, or are not finite. */
static void fill_head(const char *path, float x) {
    ModelPatch p;
    model_patch_open(&p, path);
    float *head = model_patch_tensor(&p, "output.weight");
    for (int64_t i = 0; i < (int64_t)small_models[0].n_embd * N_VOCAB; i++) head[i] = x;
    model_patch_write(&p, path);
    model_patch_close(&p);
}

static void the_best_token_is_found_without_exchanging_logits(void **state) {
    (void)state;
    enum { AS_IS, TIES, INFINITE, N_CASES, N_RANKS = 3 };
    static float whole[3][N_VOCAB], best[3][N_VOCAB];
    const RowKernels *kernels = &row_kernels_plain;
    const RowDraw greedy = {.temperature = 0};
    char path[] = "build/test_ranks_best.XXXXXX";
    rig_write_random(&small_models[0], path);
    for (int k = 0; k < N_CASES; k++) {
        if (k != AS_IS) fill_head(path, k == TIES ? 0 : 3e38f);
        Gguf *gguf = rig_gguf(path);
        Weights *w = rig_weights_in(&backend_cpu, gguf);
        Group g;
        run_rows(w, NULL, NULL, whole);
        rig_weights_close(w);
        if (group_open(&g, gguf, N_RANKS, -1)) fail_msg("%s", g.ranks[0].err.message);
        const Comm *comm = g.ranks[0].ranks->comm;
        int64_t all_bytes = run_rows(g.ranks[0].weights, comm, NULL, best),
                best_bytes = run_rows(g.ranks[0].weights, comm, &greedy, best);
        assert_int_equal(all_bytes - best_bytes, 3 * (N_VOCAB * 4 - N_RANKS * 8));
        for (int i = 0; i < 3; i++) {
            assert_true(kernels->is_finite(whole[i], N_VOCAB) == (k != INFINITE));
            assert_true(kernels->is_finite(best[i], N_VOCAB) == (k != INFINITE));
            if (k == INFINITE) continue;
            int32_t token = kernels->argmax(whole[i], N_VOCAB);
            assert_true(k == AS_IS || token == 0);
            assert_int_equal(kernels->argmax(best[i], N_VOCAB), token);
            assert_memory_equal(&best[i][token], &whole[i][token], sizeof(float));
        }
        group_close(&g);
        gguf_close(gguf);
    }
    unlink(path);
}

/* With a temperature, the token is that of whole rows, and no more bytes travel than for a greedy one. */
static void the_drawn_token_is_found_without_exchanging_logits(void **state) {
    (void)state;
    enum { N_DRAWS = 8, N_RANKS = 3 };
    static const float temperatures[] = {0.7f, 1, 100, ROW_TEMPERATURE_MAX};
    static float whole[3][N_VOCAB], best[3][N_VOCAB];
    Gguf *gguf = rig_random_gguf(&small_models[0]);
    Weights *w = rig_weights_in(&backend_cpu, gguf);
    Sampler *sampler = sampler_new(N_VOCAB);
    Group g;
    int n_others = 0;
    run_rows(w, NULL, NULL, whole);
    rig_weights_close(w);
    if (group_open(&g, gguf, N_RANKS, -1)) fail_msg("%s", g.ranks[0].err.message);
    const Comm *comm = g.ranks[0].ranks->comm;
    int64_t all_bytes = run_rows(g.ranks[0].weights, comm, NULL, best);
    for (int k = 0; k < N_DRAWS; k++) {
        SamplingOptions o = SAMPLING_DEFAULT;
        o.temperature = temperatures[k % 4], o.seed = (uint64_t)k;
        const RowDraw draw = {.temperature = o.temperature, .seed = o.seed, .position = (uint64_t)k * 10};
        int64_t best_bytes = run_rows(g.ranks[0].weights, comm, &draw, best);
        assert_int_equal(all_bytes - best_bytes, 3 * (N_VOCAB * 4 - N_RANKS * 8));
        for (int i = 0; i < 3; i++) {
            int32_t token = sampler_choose(sampler, &o, whole[i], NULL, 0, draw.position + (uint64_t)i);
            assert_int_equal(sampler_choose(sampler, &o, best[i], NULL, 0, draw.position + (uint64_t)i), token);
            assert_memory_equal(&best[i][token], &whole[i][token], sizeof(float));
            n_others += token != row_kernels_plain.argmax(whole[i], N_VOCAB);
        }
    }
    assert_true(n_others > N_DRAWS);
    group_close(&g);
    sampler_free(sampler);
    gguf_close(gguf);
}

/* ---- what it costs ----------------------------------------------------------------------------------------- */

/* A row of logits travels only if it is wanted whole, and has a price of its own. */
static void the_cost_of_a_forward_is_without_rows_of_logits(void **state) {
    (void)state;
    enum { N_ROWS = 3, N_RANKS = 3 };
    static float logits[N_ROWS][N_VOCAB];
    const int32_t n_rows = N_ROWS;
    const RowDraw greedy = {.temperature = 0};
    Gguf *gguf = rig_random_gguf(&small_models[0]);
    Group g;
    fr_error err;
    double seconds;
    if (group_open(&g, gguf, N_RANKS, -1)) fail_msg("%s", g.ranks[0].err.message);
    Weights *w = g.ranks[0].weights;
    const Comm *comm = g.ranks[0].ranks->comm;
    int64_t of_others = run_rows(w, comm, &greedy, logits) - N_ROWS * 8 * N_RANKS; /* of four rows */
    RigOptions o = rig_options(N_CTX, N_ROWS);
    Executor *e = rig_executor(w, &o);
    int64_t before = comm_counts(comm).n_gather_bytes;
    if (cost_measure(e, 0, &n_rows, 1, 1, 0, 0, &seconds, &err)) fail_msg("%s", err.message);
    assert_int_equal(comm_counts(comm).n_gather_bytes - before, of_others / 4 * N_ROWS + N_ROWS * 8 * N_RANKS);
    w->exchange_bytes_per_s = 1e6;
    assert_true(fabs(cost_logits_s(w) - N_VOCAB * 4 * 2 / 3e6) < 1e-12);
    const CostCurve curve = {.n = 1, .rows = {1}, .seconds = {2}, .logits_s = 0.25};
    assert_true(fabs(cost_curve_at(&curve, 4) - 3) < 1e-12);
    rig_executor_close(e);
    group_close(&g);
    w = rig_weights_in(&backend_cpu, gguf);
    assert_true(cost_logits_s(w) == 0);
    rig_weights_close(w);
    gguf_close(gguf);
}

/* The costs that the planner reads are measured with the exchanges in them. Rank 0 has the embedding of the token that
 * is read, and receives nothing in that exchange. */
static void the_cost_of_a_forward_contains_its_exchanges(void **state) {
    (void)state;
    enum { DELAY_US = 3000 };
    Gguf *gguf = rig_random_gguf(&small_models[0]);
    Group g;
    fr_error err;
    double cheap_s, expensive_s, exchanges_s = 1e-6 * DELAY_US * (4 * small_models[0].n_layer + 1);
    const int32_t one = 1;
    if (group_open(&g, gguf, 2, -1)) fail_msg("%s", g.ranks[0].err.message);
    RigOptions o = rig_options(N_CTX, 1);
    Executor *e = rig_executor(g.ranks[0].weights, &o);
    if (cost_measure(e, 0, &one, 1, 3, 0, 0, &cheap_s, &err)) fail_msg("%s", err.message);
    comm_slow_down(g.ranks[0].ranks->comm, (CommNetwork){.delay_s = 1e-6 * DELAY_US});
    if (cost_measure(e, 0, &one, 1, 3, 0, 0, &expensive_s, &err)) fail_msg("%s", err.message);
    print_message("%.2f ms without a network, %.2f ms with exchanges of %.2f ms\n", 1e3 * cheap_s, 1e3 * expensive_s,
                  1e3 * exchanges_s);
    assert_true(expensive_s > exchanges_s && expensive_s > cheap_s);
    rig_executor_close(e);
    group_close(&g);
    gguf_close(gguf);
}

/* A backend of which two of three forwards of as many rows are slow: so are most of them, wherever a measurement
 * that is repeated begins. */
static Backend uneven;
static int n_uneven[33];
static void forward_unevenly(Context *c, const RowPlace *rows, int32_t n_rows) {
    double end_s = clock_s() + (n_uneven[n_rows]++ % 3 == 2 ? 0 : 4e-3);
    ranks_backend()->forward(c, rows, n_rows);
    while (clock_s() < end_s) {}
}

static int open_uneven_device(Device **out, const DeviceOptions *options, fr_error *err) {
    int status = ranks_backend()->device_open(out, options, err);
    if (!status) (*out)->backend = &uneven;
    return status;
}

/* The fastest forward of ranks is no measure of the others, because the time of an exchange varies. */
static void the_cost_of_a_forward_is_what_most_forwards_take(void **state) {
    (void)state;
    Gguf *gguf = rig_random_gguf(&small_models[0]);
    Group g;
    fr_error err;
    CostCurve curve;
    if (group_open(&g, gguf, 2, -1)) fail_msg("%s", g.ranks[0].err.message);
    uneven = *ranks_backend();
    uneven.device_open = open_uneven_device, uneven.forward = forward_unevenly;
    g.ranks[0].weights->backend = &uneven;
    RigOptions o = rig_options(N_CTX, 32);
    Executor *e = rig_executor(g.ranks[0].weights, &o);
    if (cost_curve_measure(&curve, e, N_CTX, 1, &err)) fail_msg("%s", err.message);
    g.ranks[0].weights->backend = ranks_backend();
    print_message("%.1f ms for one row, %.1f ms for %d\n", 1e3 * curve.seconds[0], 1e3 * curve.seconds[curve.n - 1],
                  curve.rows[curve.n - 1]);
    for (int k = 0; k < curve.n; k++) assert_true(curve.seconds[k] > 1.5e-3);
    rig_executor_close(e);
    group_close(&g);
    gguf_close(gguf);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_what_the_formula_says_is_exchanged),
        cmocka_unit_test(the_best_token_is_found_without_exchanging_logits),
        cmocka_unit_test(the_drawn_token_is_found_without_exchanging_logits),
        cmocka_unit_test(the_cost_of_a_forward_is_without_rows_of_logits),
        cmocka_unit_test(the_cost_of_a_forward_contains_its_exchanges),
        cmocka_unit_test(the_cost_of_a_forward_is_what_most_forwards_take),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_reference_backend.c - compares parts of the reference backend that not every model has with values worked out by
 * hand: sliding windows, capped scores, attention sinks and mixtures of experts. test_reference.c compares the CPU
 * backend with it.
 *
 * The specs are changed in memory: a layer of a plain random model gets a window, and so on. If a change must make no
 * difference (a window as long as the text, a cap far above every score, a single expert) the logits must be the same;
 * otherwise they must differ. */
#include "model_rig.h"
#include "testing.h"

#include "compute/backend.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { V = 61, N = 12, N_LAYER = 2, EMBD = 32, HEADS = 4 };

static const RandomModel shape = {.arch = "llama",
                                  .n_layer = N_LAYER,
                                  .n_embd = EMBD,
                                  .n_head = HEADS,
                                  .n_head_kv = 2,
                                  .n_ff = 64,
                                  .n_vocab = V,
                                  .types = {TYPE_F32},
                                  .n_types = 1,
                                  .seed = 17};

/* A model whose layers the test may change. */
typedef struct Changed {
    Gguf *g;
    Model *opened, model;
    LayerSpec layers[N_LAYER];
} Changed;

static void open_changed(Changed *c) {
    c->g = rig_random_gguf(&shape);
    assert_int_equal(model_open(&c->opened, c->g, NULL), FR_OK);
    c->model = *c->opened;
    memcpy(c->layers, c->opened->layers, sizeof c->layers);
    c->model.layers = c->layers;
}

static void close_changed(Changed *c) {
    model_close(c->opened);
    gguf_close(c->g);
}

/* Logits of N tokens, [N][V]. */
static void logits_of(const Changed *c, float *logits) {
    Weights *w = NULL;
    int32_t tokens[N];
    assert_int_equal(backend_reference.weights_open(&w, &c->model, &(WeightsOptions){.n_threads = 1}, NULL), FR_OK);
    RigOptions o = rig_options(N, N);
    Executor *e = rig_executor(w, &o);
    rig_tokens(4, V, tokens, N);
    rig_append(e, rig_sequence(e), tokens, N, 5, V, logits);
    rig_executor_close(e);
    weights_close(w);
}

/* Returns the first row of `a` that is not that of `b`; N: none. */
static int32_t differ_from(const float *a, const float *b) {
    for (int32_t i = 0; i < N; i++)
        if (memcmp(a + i * V, b + i * V, V * sizeof *a)) return i;
    return N;
}

static void a_window_hides_earlier_tokens(void **state) {
    (void)state;
    Changed c;
    float full[N * V], windowed[N * V];
    open_changed(&c);
    logits_of(&c, full);
    for (int i = 0; i < N_LAYER; i++) c.layers[i].mixer = MIXER_WINDOW, c.layers[i].window = N;
    logits_of(&c, windowed);
    assert_int_equal(differ_from(windowed, full), N);
    for (int i = 0; i < N_LAYER; i++) c.layers[i].window = 5;
    logits_of(&c, windowed);
    assert_int_equal(differ_from(windowed, full), 5); /* rows 0 to 4 see all keys */
    close_changed(&c);
}

static void a_cap_bends_scores_and_a_high_one_does_not(void **state) {
    (void)state;
    Changed c;
    float plain[N * V], capped[N * V];
    open_changed(&c);
    logits_of(&c, plain);
    for (int i = 0; i < N_LAYER; i++) c.layers[i].soft_cap = 1e6f;
    logits_of(&c, capped);
    assert_true(rig_rel_rms(capped, plain, N * V) < 1e-6);
    for (int i = 0; i < N_LAYER; i++) c.layers[i].soft_cap = 0.25f;
    logits_of(&c, capped);
    assert_true(rig_rel_rms(capped, plain, N * V) > 1e-3);
    assert_int_equal(differ_from(capped, plain), 1); /* the first row has one key, whatever its score */
    close_changed(&c);
}

/* A sink of logit s next to the only key, of score x, leaves exp(x) / (exp(x) + exp(s)) of the value, which is nothing
 * if s is far above x. */
static void a_sink_takes_its_share_of_attention(void **state) {
    (void)state;
    Changed c;
    float plain[N * V], with_sink[N * V], sinks[HEADS];
    open_changed(&c);
    logits_of(&c, plain);
    for (int i = 0; i < HEADS; i++) sinks[i] = -1e4f;
    for (int i = 0; i < N_LAYER; i++) c.layers[i].sinks = sinks;
    logits_of(&c, with_sink);
    assert_int_equal(differ_from(with_sink, plain), N); /* exp(-1e4) is 0 */
    for (int i = 0; i < HEADS; i++) sinks[i] = 1e4f;
    logits_of(&c, with_sink);
    assert_int_equal(differ_from(with_sink, plain), 0);
    for (int i = 0; i < HEADS; i++) sinks[i] = 0;
    logits_of(&c, with_sink);
    assert_int_equal(differ_from(with_sink, plain), 0);
    close_changed(&c);
}

/* ---- experts -------------------------------------------------------------------------------------- */

/* n copies of a matrix, one after the other, as a tensor of experts; `scale` multiplies the last one. */
static GgufTensor experts_of(const GgufTensor *t, int64_t n, float scale) {
    GgufTensor out = *t;
    int64_t each = t->dims[0] * t->dims[1];
    float *data = malloc((size_t)(n * each) * sizeof *data);
    assert_non_null(data);
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = 0; k < each; k++) data[i * each + k] = ((const float *)t->data)[k] * (i == n - 1 ? scale : 1);
    out.n_dims = 3, out.dims[2] = n, out.bytes = (size_t)(n * each) * sizeof *data, out.data = data;
    return out;
}

static void experts_are_chosen_and_weighted_by_the_router(void **state) {
    (void)state;
    enum { N_EXPERT = 3 };
    Changed c;
    float dense[N * V], mixed[N * V], doubled[N * V];
    float router_rows[N_EXPERT][EMBD] = {{0}};
    GgufTensor gate[2][N_LAYER], up[2][N_LAYER], down[2][N_LAYER];
    GgufTensor router = {.name = "router",
                         .type = TYPE_F32,
                         .n_dims = 2,
                         .dims = {EMBD, N_EXPERT, 1, 1},
                         .data = router_rows,
                         .bytes = sizeof router_rows};
    open_changed(&c);
    logits_of(&c, dense);
    LayerSpec before[N_LAYER];
    memcpy(before, c.layers, sizeof before);
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < N_LAYER; i++) {
            gate[k][i] = experts_of(before[i].matrices[MATRIX_GATE], N_EXPERT, 1);
            up[k][i] = experts_of(before[i].matrices[MATRIX_UP], N_EXPERT, 1);
            down[k][i] = experts_of(before[i].matrices[MATRIX_DOWN], N_EXPERT, k ? 2 : 1);
        }
    for (int used = 1; used <= N_EXPERT; used++) { /* equal experts are the same as one, however many are used */
        for (int i = 0; i < N_LAYER; i++) {
            LayerSpec *l = &c.layers[i];
            l->ffn = FFN_EXPERTS, l->matrices[MATRIX_ROUTER] = &router, l->n_expert_used = used;
            l->matrices[MATRIX_EXPERT_GATE] = &gate[0][i];
            l->matrices[MATRIX_EXPERT_UP] = &up[0][i];
            l->matrices[MATRIX_EXPERT_DOWN] = &down[0][i];
        }
        logits_of(&c, mixed);
        assert_true(rig_rel_rms(mixed, dense, N * V) < 1e-6);
    }
    Weights *w = NULL;
    fr_error err;
    c.layers[1].n_expert_used = N_EXPERT + 1; /* more experts than the layer has */
    assert_int_equal(backend_reference.weights_open(&w, &c.model, &(WeightsOptions){.n_threads = 1}, &err),
                     FR_ERR_UNSUPPORTED);
    assert_null(w);
    assert_non_null(strstr(err.message, "layer 1 uses 4 of 3 experts"));
    c.layers[1].n_expert_used = N_EXPERT;
    /* A router of zeros gives all experts the same probability: if all are used, the last one's doubled output has a
     * weight of a third. */
    for (int i = 0; i < N_LAYER; i++) c.layers[i].matrices[MATRIX_EXPERT_DOWN] = &down[1][i];
    logits_of(&c, mixed);
    for (int i = 0; i < N_LAYER; i++) { /* by hand: a dense layer whose output is (1 + 1 + 2) / 3 as large */
        c.layers[i] = before[i];
        GgufTensor *scaled = &down[0][i];
        for (int64_t k = 0; k < before[i].matrices[MATRIX_DOWN]->dims[0] * before[i].matrices[MATRIX_DOWN]->dims[1];
             k++)
            ((float *)(uintptr_t)scaled->data)[k] = ((const float *)before[i].matrices[MATRIX_DOWN]->data)[k] *
                                                    (4.0f / 3.0f);
        scaled->n_dims = 2;
        c.layers[i].matrices[MATRIX_DOWN] = scaled;
    }
    logits_of(&c, doubled);
    assert_true(rig_rel_rms(mixed, doubled, N * V) < 1e-6);
    assert_true(rig_rel_rms(mixed, dense, N * V) > 1e-3);
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < N_LAYER; i++)
            free((void *)(uintptr_t)gate[k][i].data), free((void *)(uintptr_t)up[k][i].data),
                free((void *)(uintptr_t)down[k][i].data);
    close_changed(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_window_hides_earlier_tokens),
        cmocka_unit_test(a_cap_bends_scores_and_a_high_one_does_not),
        cmocka_unit_test(a_sink_takes_its_share_of_attention),
        cmocka_unit_test(experts_are_chosen_and_weighted_by_the_router),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

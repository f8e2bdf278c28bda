/* test_head.c - the parts of the target that drafters use: its LM head outside a forward gives the bits of the forward,
 * hidden states can be requested without logits, residual streams can be kept, and embeddings are the rows of the
 * file. */
#include "model_rig.h"
#include "testing.h"

#include "gguf/tensor_type.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { V = 270, N = 23 };

static RandomModel model_of(TensorType type, bool tied) {
    return (RandomModel){.arch = "llama",
                         .n_layer = 1,
                         .n_embd = type == TYPE_Q4_K ? 256 : 96,
                         .n_head = 4,
                         .n_head_kv = 2,
                         .n_ff = type == TYPE_Q4_K ? 256 : 96,
                         .n_vocab = V,
                         .tied = tied,
                         .types = {type},
                         .n_types = 1,
                         .seed = 3};
}

static const TensorType types[] = {TYPE_F32, TYPE_F16, TYPE_BF16, TYPE_Q8_0, TYPE_Q4_0, TYPE_Q4_K};

/* Runs N tokens; row i wants its logits if i % 3 == 0, and its hidden state if i % 3 == 1. */
static void run_rows(Executor *e, const int32_t *tokens) {
    int32_t s = rig_sequence(e);
    Row rows[N];
    fr_error err;
    for (int32_t i = 0; i < N; i++)
        rows[i] = (Row){.token = tokens[i],
                        .sequence = s,
                        .parent = i - 1,
                        .want_logits = i % 3 == 0,
                        .want_hidden = i % 3 == 1};
    if (executor_reserve(e, s, N, &err) || executor_forward(e, rows, N, &err)) fail_msg("%s", err.message);
}

static void the_head_gives_the_executors_bits(void **state) {
    (void)state;
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (int n_threads = 1; n_threads <= 3; n_threads++) {
            RandomModel r = model_of(types[t], n_threads == 2);
            Gguf *g = rig_random_gguf(&r);
            Weights *m = rig_weights(g, NULL);
            RigOptions options = rig_options(64, 64);
            Executor *e = rig_executor(m, &options);
            int32_t tokens[N], n_rows = 0, width = m->model->hparams.n_embd;
            fr_error err;
            Device *device = rig_device(m, n_threads);
            if (m->backend->head_reserve(device, m, N, &err)) fail_msg("%s", err.message);
            rig_tokens(7, V, tokens, N);
            run_rows(e, tokens);
            Buffer *x = rig_buffer(device, (int64_t)N * width), *y = rig_buffer(device, (int64_t)N * V);
            for (int32_t i = 0; i < N; i += 3, n_rows++)
                memcpy(x->floats + n_rows * width, executor_hidden(e, i), sizeof(float) * (size_t)width);
            buffer_push(x, 0, x->n);
            for (int32_t n = 1; n <= n_rows; n += 3) { /* any number of rows at once */
                m->backend->head(device, m, (Slice){x, 0}, n, (Slice){y, 0});
                buffer_pull(y, 0, (int64_t)n * V);
                for (int32_t i = 0; i < n; i++)
                    assert_memory_equal(y->floats + i * V, executor_logits(e, 3 * i), sizeof(float) * V);
            }
            x->floats[0] = x->floats[0] * 1.5f + 1; /* and other inputs give others */
            buffer_push(x, 0, 1);
            m->backend->head(device, m, (Slice){x, 0}, 1, (Slice){y, 0});
            buffer_pull(y, 0, V);
            assert_memory_not_equal(y->floats, executor_logits(e, 0), sizeof(float) * V);
            buffer_close(x);
            buffer_close(y);
            device_close(device);
            rig_executor_close(e);
            rig_weights_close(m);
            gguf_close(g);
        }
}

static void hidden_states_come_with_and_without_logits(void **state) {
    (void)state;
    RandomModel r = model_of(TYPE_Q8_0, false);
    Gguf *g = rig_random_gguf(&r);
    Weights *m = rig_weights(g, NULL);
    RigOptions options = rig_options(64, 64);
    Executor *some = rig_executor(m, &options), *all = rig_executor(m, &options);
    int32_t tokens[N], s = rig_sequence(all);
    fr_error err;
    Row rows[N];
    rig_tokens(8, V, tokens, N);
    run_rows(some, tokens);
    for (int32_t i = 0; i < N; i++)
        rows[i] = (Row){.token = tokens[i], .sequence = s, .parent = i - 1, .want_logits = true};
    if (executor_reserve(all, s, N, &err) || executor_forward(all, rows, N, &err)) fail_msg("%s", err.message);
    for (int32_t i = 0; i < N; i++) {
        const float *hidden = executor_hidden(some, i), *logits = executor_logits(some, i);
        assert_int_equal(hidden != NULL, i % 3 != 2);
        assert_int_equal(logits != NULL, i % 3 == 0);
        if (hidden)
            assert_memory_equal(hidden, executor_hidden(all, i), sizeof(float) * (size_t)m->model->hparams.n_embd);
        if (logits) assert_memory_equal(logits, executor_logits(all, i), sizeof(float) * V);
    }
    rig_executor_close(some);
    rig_executor_close(all);
    rig_weights_close(m);
    gguf_close(g);
}

/* Runs the rows of run_rows in chunks, and copies the hidden states with their streams; 0 for rows that want none. */
static void run_keeping(const Weights *m, const KeptLayers *kept, const int32_t *tokens, int32_t chunk, int n_threads,
                        float *out) {
    RigOptions options = rig_options(64, 64);
    options.n_threads = n_threads;
    Executor *e = rig_executor(m, &options);
    int32_t s = rig_sequence(e), ids[N];
    size_t width = (size_t)(1 + kept->n) * (size_t)m->model->hparams.n_embd;
    Row rows[N];
    fr_error err;
    if (executor_keep_layers(e, kept, &err)) fail_msg("%s", err.message);
    for (int32_t first = 0; first < N; first += chunk) {
        int32_t n = first + chunk < N ? chunk : N - first;
        for (int32_t i = 0; i < n; i++) {
            ids[i] = i;
            rows[i] = (Row){.token = tokens[first + i],
                            .sequence = s,
                            .parent = i - 1,
                            .want_logits = (first + i) % 3 == 0,
                            .want_hidden = (first + i) % 3 == 1};
        }
        if (executor_reserve(e, s, n, &err) || executor_forward(e, rows, n, &err)) fail_msg("%s", err.message);
        for (int32_t i = 0; i < n; i++)
            if ((first + i) % 3 != 2)
                memcpy(out + (size_t)(first + i) * width, executor_hidden(e, i), width * sizeof *out);
        executor_commit(e, s, ids, n);
    }
    rig_executor_close(e);
}

/* The stream after no layer is the embedding, the one after all layers becomes the hidden state by the final norm, and
 * one between them is the stream after all layers of a model that ends there. All have the same bits in every chunk,
 * for every number of threads and with every kernel table. */
static void streams_are_kept_where_they_are_wanted(void **state) {
    (void)state;
    enum { LAYERS = 3, H = 96 };
    static const KeptLayers kept = {3, {0, LAYERS, 2}}, last = {1, {2}};
    static float first[N][4 * H], again[N][4 * H], shorter[N][2 * H], embedding[H];
    for (const Backend *const *b = backends(); *b; b++)
        for (const char *const *kernels = (*b)->kernel_names(); *kernels; kernels++) {
            RandomModel r = model_of(TYPE_Q8_0, false);
            r.n_layer = LAYERS;
            Gguf *g = rig_random_gguf(&r);
            Model *model;
            Weights *m, *cut;
            int32_t tokens[N];
            fr_error err;
            const WeightsOptions options = {.kernels = *kernels, .n_threads = 1};
            if (model_open(&model, g, &err) || (*b)->weights_open(&m, model, &options, &err))
                fail_msg("%s", err.message);
            Model prefix = *model;
            prefix.hparams.n_layer = 2;
            if ((*b)->weights_open(&cut, &prefix, &options, &err)) fail_msg("%s", err.message);
            rig_tokens(8, V, tokens, N);
            run_keeping(m, &kept, tokens, N, 1, first[0]);
            run_keeping(cut, &last, tokens, N, 1, shorter[0]);
            for (int32_t i = 0; i < N; i++) {
                double squares = 0;
                if (i % 3 == 2) continue;
                model_embedding(model, tokens[i], embedding);
                assert_memory_equal(first[i] + H, embedding, sizeof embedding);
                assert_memory_equal(first[i] + 3 * H, shorter[i] + H, sizeof embedding);
                for (int32_t k = 0; k < H; k++) squares += pow((double)first[i][2 * H + k], 2) / H;
                for (int32_t k = 0; k < H; k++) {
                    double normed = (double)first[i][2 * H + k] / sqrt(squares + (double)model->hparams.rms_eps);
                    assert_true(fabs((double)first[i][k] - normed * (double)model->output_norm[k]) < 2e-5);
                }
            }
            for (int32_t chunk = 1; chunk < N; chunk += 5) {
                run_keeping(m, &kept, tokens, chunk, chunk % 3 + 1, again[0]);
                assert_memory_equal(first, again, sizeof first);
            }
            weights_close(cut);
            weights_close(m);
            model_close(model);
            gguf_close(g);
        }
}

static void embeddings_are_the_rows_of_the_file(void **state) {
    (void)state;
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        RandomModel r = model_of(types[t], false);
        Gguf *g = rig_random_gguf(&r);
        Weights *m = rig_weights(g, NULL);
        const GgufTensor *e = gguf_find_tensor(g, "token_embd.weight");
        int64_t n = e->dims[0];
        float *all = malloc(sizeof *all * (size_t)(n * V));
        Device *device = rig_device(m, 1);
        Buffer *row = rig_buffer(device, 2 * n);
        blocks_dequantize(e->type, e->data, n * V, all);
        for (int32_t v = 0; v < V; v++) {
            m->backend->embed(device, m, &v, 1, (Slice){row, n});
            buffer_pull(row, n, n);
            assert_memory_equal(row->floats + n, all + v * n, sizeof(float) * (size_t)n);
        }
        buffer_close(row);
        device_close(device);
        free(all);
        rig_weights_close(m);
        gguf_close(g);
    }
}

/* The reference backend keeps a device's floats apart from those of the CPU, as an accelerator does; the CPU backend
 * has no copy. */
static void buffers_move_only_when_they_are_asked_to(void **state) {
    (void)state;
    for (const Backend *const *b = backends(); *b; b++) {
        bool has_copy = *b == &backend_reference;
        Device *device;
        Buffer *x;
        fr_error err;
        static const float gain[3] = {1, 1, 1};
        assert_int_equal((*b)->device_open(&device, &(DeviceOptions){.n_threads = 1}, &err), 0);
        x = rig_buffer(device, 6);
        for (int i = 0; i < 6; i++) assert_true(x->floats[i] == 0);
        for (int i = 0; i < 6; i++) x->floats[i] = 2;
        buffer_push(x, 3, 3);
        (*b)->rmsnorm(device, (Slice){x, 0}, 2, 3, gain, 0.0625f); /* 2 / sqrt(4 + 1/16); of zeros 0 */
        buffer_pull(x, 2, 4);
        assert_true(x->floats[1] == (has_copy ? 2.0f : x->floats[3]));
        assert_true(x->floats[2] == (has_copy ? 0.0f : x->floats[3]));
        for (int i = 3; i < 6; i++) assert_true(x->floats[i] > 0.992f && x->floats[i] < 0.9925f);
        buffer_close(x);
        device_close(device);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_head_gives_the_executors_bits),
        cmocka_unit_test(hidden_states_come_with_and_without_logits),
        cmocka_unit_test(streams_are_kept_where_they_are_wanted),
        cmocka_unit_test(embeddings_are_the_rows_of_the_file),
        cmocka_unit_test(buffers_move_only_when_they_are_asked_to),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
